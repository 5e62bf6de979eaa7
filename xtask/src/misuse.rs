//! `cargo xtask misuse`: checks the compiler's messages for programs that use the library wrongly.
//!
//! [`PROGRAMS`] lists the programs. A comment `//~ text` states a text that each error and warning of its
//! line must contain; a line without the comment must have no error. (`compile_fail` examples only check that
//! code does not compile.)

use crate::steps::Outcome;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::collections::BTreeMap;
use xshell::{Shell, cmd};

/// Packages, the names of their libraries, and the folders of the programs that misuse them.
const PROGRAMS: [(&str, &str, &str); 2] = [
    ("vmarray", "vmarray", "vmarray/tests/misuse"),
    ("vmarray-kernel", "vmarray_kernel", "vmarray/kernel/tests/misuse"),
];

/// Checks rustc's messages about programs that must not compile. The error lists each source line with a
/// message that differs from the expected message.
pub fn check(sh: &Shell) -> Result<Outcome> {
    let (mut lines, mut faults) = (0, Vec::new());
    for (package, name, programs) in PROGRAMS {
        let checked = cmd!(sh, "cargo check --quiet -p {package} --lib --message-format json").read()?;
        let library = library(&checked, name).context("`cargo check` names no library")?;
        let folder = library.rsplit_once(['/', '\\']).context("the library lies in no folder")?.0;
        let dependencies = format!("dependency={folder}");
        for file in sh.read_dir(programs)? {
            let said = cmd!(sh, "rustc --verbose --edition 2024 --error-format json --emit metadata=-")
                .args(["--extern", &format!("{name}={library}"), "-L", &dependencies])
                .arg(&file)
                .ignore_status()
                .quiet()
                .output()?;
            let said = errors(&String::from_utf8(said.stderr)?)?;
            let wanted = wanted(&sh.read_file(&file)?);
            lines += wanted.len();
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            faults.extend(compare(&wanted, &said).into_iter().map(|fault| format!("{name}:{fault}")));
        }
    }
    if !faults.is_empty() {
        bail!("{} faults\n{}", faults.len(), faults.join("\n"));
    }
    Ok(Outcome::Passed(format!("{lines} lines")))
}

/// Returns the path of the compiled library `name`, from the JSON output `checked` of `cargo check`.
pub fn library(checked: &str, name: &str) -> Option<String> {
    let mut messages = checked.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let made = messages.rfind(|message| message["target"]["name"] == name)?;
    Some(made["filenames"][0].as_str()?.to_owned())
}

/// Returns the expected error of each line of a program.
fn wanted(program: &str) -> BTreeMap<u64, String> {
    let marked = |(number, line): (u64, &str)| Some((number, line.split_once("//~")?.1.trim().to_owned()));
    (1..).zip(program.lines()).filter_map(marked).collect()
}

/// Returns all of the compiler's errors and warnings by line.
fn errors(messages: &str) -> Result<BTreeMap<u64, Vec<String>>> {
    let mut errors: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    for line in messages.lines() {
        let message: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
        let primary =
            message["spans"].as_array().into_iter().flatten().find(|span| span["is_primary"] == true);
        if (message["level"] == "error" || message["level"] == "warning")
            && let Some(number) = primary.and_then(|span| span["line_start"].as_u64())
        {
            let rendered = message["rendered"].as_str().unwrap_or_default();
            errors.entry(number).or_default().push(rendered.to_owned());
        }
    }
    Ok(errors)
}

/// Returns a fault for each line whose messages differ. Each message of a line must contain the expected
/// text: rustc checks a kernel in two forms, and may report an error of both.
fn compare(wanted: &BTreeMap<u64, String>, said: &BTreeMap<u64, Vec<String>>) -> Vec<String> {
    let unexpected = said.iter().filter(|(line, _)| !wanted.contains_key(line));
    let mut faults: Vec<String> =
        unexpected.map(|(line, said)| format!("{line}: {}", said.concat())).collect();
    for (line, text) in wanted {
        match said.get(line) {
            None => faults.push(format!("{line}: compiles without the error")),
            Some(said) => {
                let other = said.iter().filter(|said| !said.contains(text));
                faults.extend(other.map(|said| format!("{line}: not `{text}` but {said}")));
            }
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_compared_with_their_annotations() {
        let wanted = wanted("a\nb //~ say this\nc //~ or that\nd //~ fine");
        assert_eq!(wanted.len(), 3);
        let message = |line: u64, rendered: &str| {
            let spans = [serde_json::json!({ "is_primary": true, "line_start": line })];
            serde_json::json!({ "level": "error", "spans": spans, "rendered": rendered }).to_string()
        };
        let said =
            [message(1, "odd"), message(2, "say that"), message(4, "all is fine"), message(4, "fine too")];
        let faults = compare(&wanted, &errors(&said.join("\n")).unwrap());
        assert_eq!(faults, ["1: odd", "2: not `say this` but say that", "3: compiles without the error"]);
        let other = errors(&message(4, "fine").replace("\"error\"", "\"warning\"")).unwrap();
        assert_eq!(compare(&wanted, &other).len(), 2);
    }
}
