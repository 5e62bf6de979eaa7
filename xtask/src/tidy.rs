//! `cargo xtask tidy`: the small rules that no compiler checks.

use crate::Cli;
use crate::project::{self, Metadata};
use crate::steps::Outcome;
use anyhow::{Result, bail};
use clap::CommandFactory;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use xshell::{Shell, cmd};

/// The folders of the library: each knows those before it.
const LAYERS: [&str; 8] = ["base", "engine", "setup", "array", "ops", "source", "index_set", "shapes"];
/// The longest line of a comment, in characters, but for rows of tables, which cannot be broken. Code is
/// rustfmt's.
const WIDTH_MAX: usize = 110;
/// The longest line of prose in Markdown, and of examples.
const PROSE_MAX: usize = 120;
/// What must not be left in a source file.
const LEFTOVERS: [&str; 3] = [concat!("to", "do!("), concat!("dbg", "!("), concat!("unimplemented", "!(")];
/// How paths of somebody's machine begin.
const MACHINE_PATHS: [&str; 6] = ["/work", "/root", "/home", "/Users", "/mnt", "/tmp"];

/// Runs the command.
pub fn run() -> Result<()> {
    check(&project::shell()?)?.print();
    Ok(())
}

/// The rules as a step.
pub fn check(sh: &Shell) -> Result<Outcome> {
    let root = project::root();
    let mut faults = Vec::new();
    let mut documents = String::new();
    let mut types: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let (mut count, mut lines, mut of_library) = (0, 0, 0);
    let files = files(sh, &root)?;
    for file in &files {
        let Ok(text) = std::fs::read_to_string(root.join(file)) else {
            continue; // Not text, or deleted and not yet committed.
        };
        count += 1;
        let name = file.to_string_lossy().replace('\\', "/");
        let mut found = text_faults(&name, &text);
        if name.ends_with(".rs") {
            lines += text.lines().count();
        }
        if let Some(path) = name.strip_prefix("vmarray/src/") {
            of_library += text.lines().count();
            for one in type_names(path, &text) {
                types.entry(one).or_default().push(path.to_string());
            }
        }
        if name.ends_with(".md") || name == ".ci/run" {
            found.extend(command_faults(&text));
            documents.push_str(&text);
        }
        if name.ends_with(".md") {
            found.extend(name_faults(&root, &files, file.parent().unwrap_or(Path::new("")), &text));
        }
        faults.extend(found.into_iter().map(|fault| format!("{name}{fault}")));
    }
    let twice = types.into_iter().filter(|(_, files)| files.len() > 1);
    faults
        .extend(twice.map(|(name, files)| format!("several types are called {name}: {}", files.join(", "))));
    faults.extend(package_faults(&Metadata::members(sh)?, &documents));
    if !faults.is_empty() {
        bail!("{} faults\n{}", faults.len(), faults.join("\n"));
    }
    Ok(Outcome::Passed(format!("{count} files, {lines} lines of Rust, {of_library} of them in vmarray/src")))
}

/// Files that git knows or would add; without git, all files outside hidden and build folders.
fn files(sh: &Shell, root: &Path) -> Result<Vec<PathBuf>> {
    let listed = cmd!(sh, "git ls-files --cached --others --exclude-standard").quiet().ignore_stderr().read();
    if let Ok(list) = listed {
        return Ok(list.lines().map(PathBuf::from).collect());
    }
    let mut files = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in folder.read_dir()? {
            let path = entry?.path();
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            match path.is_dir() {
                true if name == "target" || name == "dist" || name == ".git" => {}
                true => folders.push(path),
                false => files.push(path.strip_prefix(root)?.to_path_buf()),
            }
        }
    }
    Ok(files)
}

/// Faults of one file's text, each as `:line: what`.
fn text_faults(name: &str, text: &str) -> Vec<String> {
    let endings = [".rs", ".toml", ".md", ".sh", ".cu", ".cl", ".ci/run"];
    let ours = endings.iter().any(|ending| name.ends_with(ending));
    let mut faults = Vec::new();
    if !text.is_empty() && !text.ends_with('\n') {
        faults.push(": does not end with a line end".to_string());
    }
    if text.ends_with("\n\n") && ours {
        faults.push(": ends with an empty line".to_string());
    }
    if !ours {
        return faults;
    }
    let mut is_code = false;
    for (number, line) in (1..).zip(text.split_terminator('\n')) {
        let mut fault = |what: &str| faults.push(format!(":{number}: {what}"));
        if line.ends_with([' ', '\t', '\r']) {
            fault("ends with a blank");
        }
        if let Some(path) = machine_path(line) {
            fault(&format!("path of a machine: {path}"));
        }
        if name.ends_with(".rs") {
            let comment = line.trim_start();
            is_code ^= comment.get(4..).is_some_and(|text| text.starts_with("```"));
            let is_row = comment.starts_with("/// |") || comment.starts_with("//! |");
            let most = if is_code { PROSE_MAX } else { WIDTH_MAX };
            if comment.starts_with("//") && !is_row && line.chars().count() > most {
                fault(&format!("longer than {most} characters"));
            }
            if let Some(word) = LEFTOVERS.iter().find(|word| line.contains(**word)) {
                fault(&format!("{word}…) is left"));
            }
        } else if name.ends_with(".md") {
            let text = line.trim_start();
            is_code ^= text.starts_with("```");
            // Rows of tables, pictures and links cannot be broken.
            let is_prose = !is_code && !text.starts_with(['|', '<', '[']) && text.contains(' ');
            if is_prose && line.chars().count() > PROSE_MAX {
                fault(&format!("longer than {PROSE_MAX} characters"));
            }
        }
    }
    if let Some(path) = name.strip_prefix("vmarray/src/") {
        faults.extend(layer_faults(path, text));
    }
    faults
}

/// The types that a file of the library defines, tests aside.
fn type_names(path: &str, text: &str) -> Vec<String> {
    if path.contains("tests") || path.contains("model") {
        return Vec::new();
    }
    let lines = text.lines().take_while(|line| !line.starts_with("#[cfg(test)]"));
    let name = |line: &str| {
        let mut words = line.split_whitespace().filter(|word| !word.starts_with("pub") && *word != "unsafe");
        let is_type = matches!(words.next()?, "struct" | "enum" | "trait" | "union");
        let name = words.next().filter(|_| is_type && !line.trim_start().starts_with("//"))?;
        let end = name.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(name.len());
        Some(name[..end].to_string()).filter(|name| name.starts_with(char::is_uppercase))
    };
    lines.filter_map(name).collect()
}

/// Lines of a file of the library that name a folder which comes after its own in [`LAYERS`]. Tests may.
fn layer_faults(path: &str, text: &str) -> Vec<String> {
    let layer_of = |name: &str| LAYERS.iter().position(|layer| *layer == name);
    let is_test = path.contains("tests") || path.contains("model");
    let Some(own) = layer_of(path.split(['/', '.']).next().unwrap_or_default()).filter(|_| !is_test) else {
        return Vec::new();
    };
    let mut faults = Vec::new();
    let mut before = "";
    for (number, line) in (1..).zip(text.lines()).take_while(|(_, line)| *line != "#[cfg(test)]") {
        let is_text = line.trim_start().starts_with("//") || before == "#[cfg(doc)]";
        before = line;
        for rest in line.split("crate::").skip(1).filter(|_| !is_text) {
            let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
            if layer_of(name).is_some_and(|layer| layer > own) {
                faults.push(format!(":{number}: {} must not know {name}", LAYERS[own]));
            }
        }
    }
    faults
}

/// The first word of a line that is an absolute path below one of the folders that differ from machine to
/// machine.
fn machine_path(line: &str) -> Option<&str> {
    let word_end = |c: char| c.is_whitespace() || "\"'`(),;=<>|".contains(c);
    line.split(word_end).find(|word| {
        MACHINE_PATHS.iter().any(|path| word.strip_prefix(path).is_some_and(|rest| rest.starts_with('/')))
    })
}

/// Commands named as `cargo xtask NAME` that do not exist, each as `:line: what`.
fn command_faults(text: &str) -> Vec<String> {
    let cli = Cli::command();
    let known: BTreeSet<&str> = cli.get_subcommands().map(|command| command.get_name()).collect();
    let mut faults = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        for rest in line.split("cargo xtask ").skip(1) {
            let name: String = rest.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
            if !name.is_empty() && !name.starts_with('-') && !known.contains(name.as_str()) {
                faults.push(format!(":{number}: there is no `cargo xtask {name}`"));
            }
        }
    }
    faults
}

/// Files and folders named in backticks that do not exist, each as `:line: what`.
///
/// A name is taken for a path when it has a slash, no blank and no placeholder, and begins with something
/// that exists (seen from the root or from the document) or ends like a source file. The end of a file's path
/// is name enough.
fn name_faults(root: &Path, files: &[PathBuf], folder: &Path, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let mut fenced = false;
    for (number, line) in (1..).zip(text.lines()) {
        fenced ^= line.trim_start().starts_with("```");
        if fenced {
            continue;
        }
        for name in line.split('`').skip(1).step_by(2) {
            let plain = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
            let Some((first, _)) = name.split_once('/') else { continue };
            if first.is_empty() || !name.chars().all(plain) {
                continue;
            }
            let exists = |path: &str| root.join(path).exists() || root.join(folder).join(path).exists();
            let like_ours =
                exists(first) || [".rs", ".toml", ".md", ".cu", ".cl"].iter().any(|end| name.ends_with(end));
            let made_later = ["target", "dist", "logs"].contains(&first);
            let known = exists(name) || files.iter().any(|file| file.ends_with(name));
            if like_ours && !made_later && !known {
                faults.push(format!(":{number}: there is no `{name}`"));
            }
        }
    }
    faults
}

/// What is wrong with the manifests, and examples and benchmarks that no document mentions.
fn package_faults(metadata: &Metadata, documents: &str) -> Vec<String> {
    let mut faults = Vec::new();
    for package in metadata.workspace() {
        let name = &package.name;
        if package.is_published() {
            if package.description.is_none() || package.license.is_none() {
                faults.push(format!("{name}: is published and states no description or no licence"));
            }
            match &package.readme {
                Some(readme) if package.folder().join(readme).is_file() => {}
                _ => faults.push(format!("{name}: is published and has no README")),
            }
        }
        for target in &package.targets {
            let shown = target.kind.iter().any(|kind| kind == "example" || kind == "bench");
            if shown && !documents.contains(&target.name) {
                faults.push(format!(
                    "{name}: no document mentions its {} `{}`",
                    target.kind.join(", "),
                    target.name
                ));
            }
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn faults_of_a_text() {
        assert!(text_faults("a.rs", "fn main() {}\n").is_empty());
        assert!(text_faults("a.rs", "").is_empty());
        assert_eq!(text_faults("a.rs", "fn main() {}").len(), 1);
        assert_eq!(text_faults("a.rs", "a \nb\t\nc\r\n").len(), 3);
        assert_eq!(text_faults("a.md", "a\n\n").len(), 1);
        assert_eq!(text_faults("a.rs", &format!("//{}\n", "é".repeat(WIDTH_MAX - 2))).len(), 0);
        assert_eq!(text_faults("a.rs", &format!("//{}\n", "é".repeat(WIDTH_MAX - 1))).len(), 1);
        assert_eq!(text_faults("a.rs", &format!("{}\n", "é".repeat(WIDTH_MAX + 1))).len(), 0);
        assert_eq!(text_faults("a.rs", &format!("    /// | {} |\n", "é".repeat(WIDTH_MAX))).len(), 0);
        assert_eq!(text_faults("a.md", &format!("{}\n", "é ".repeat(PROSE_MAX / 2) + "é")).len(), 1);
        assert_eq!(text_faults("a.md", &format!("| {}\n", "é ".repeat(PROSE_MAX) + "é")).len(), 0);
        let fenced = format!("```text\n{}é\n```\n", "é ".repeat(PROSE_MAX));
        assert_eq!(text_faults("a.md", &fenced).len(), 0);
        for leftover in LEFTOVERS {
            assert_eq!(text_faults("a.rs", &format!("    {leftover})\n")).len(), 1, "{leftover}");
        }
        assert_eq!(text_faults("data.bin", "x \n"), Vec::<String>::new());
    }

    #[test]
    fn types_are_known_by_name() {
        let text = "pub(crate) struct One<T>(T);\n    enum Two {\n/// struct Three\npub unsafe trait Four: Send {}\n\
                    let structure = 1;\nstruct $Five;\n#[cfg(test)]\nmod tests { struct Six; }\n";
        assert_eq!(type_names("a.rs", text), ["One", "Two", "Four"]);
        assert!(type_names("a/tests.rs", text).is_empty());
    }

    #[test]
    fn folders_know_those_before_them() {
        assert!(layer_faults("array/range.rs", "use crate::engine::page;\n").is_empty());
        assert!(layer_faults("array/range.rs", "// crate::ops\n#[cfg(doc)]\nuse crate::ops;\n").is_empty());
        assert_eq!(layer_faults("engine.rs", "use crate::array::range;\n").len(), 1);
        assert!(layer_faults("engine/pager.rs", "#[cfg(test)]\nuse crate::array::range;\n").is_empty());
        assert!(layer_faults("engine/pager/tests.rs", "use crate::array::range;\n").is_empty());
    }

    #[test]
    fn paths_of_machines() {
        let (home, temporary) = (format!("{}/me/x", MACHINE_PATHS[2]), format!("{}/y", MACHINE_PATHS[5]));
        assert_eq!(machine_path(&format!("cd \"{home}\"")), Some(home.as_str()));
        assert_eq!(machine_path(&format!("OUT={temporary}")), Some(temporary.as_str()));
        assert_eq!(machine_path("src/home/page.rs and /homework/x and a/tmp/b"), None);
    }

    #[test]
    fn commands_that_do_not_exist() {
        assert!(command_faults("run `cargo xtask demo --fasta x` or cargo xtask test-host\n").is_empty());
        assert!(command_faults("every `cargo xtask …` and `cargo xtask --help`\n").is_empty());
        assert_eq!(command_faults("\nthen cargo xtask dance\n"), [":2: there is no `cargo xtask dance`"]);
    }

    #[test]
    fn names_that_do_not_exist() {
        let root = project::root();
        let files = [PathBuf::from("xtask/src/demo/letters.rs")];
        let faults = |text: &str| name_faults(&root, &files, Path::new("xtask/data"), text);
        assert!(faults("see `demo/letters.rs`\n").is_empty());
        assert_eq!(faults("see `emo/letters.rs`\n").len(), 1);
        assert!(
            faults(
                "see `xtask/src/main.rs`, `xtask/data/`, `data/x`, `README.md`, `a/b` and `dist/bundle`\n"
            )
            .is_empty()
        );
        assert_eq!(faults("\nsee `xtask/src/gone.rs`\n"), [":2: there is no `xtask/src/gone.rs`"]);
        assert!(faults("```\n`xtask/src/gone.rs`\n```\n").is_empty());
    }
}
