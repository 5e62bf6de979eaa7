//! The recorded public API: `docs/api` has a text file for each published library, with one line for each
//! public item and its signature. If a commit changes the API, the diff of these files shows the change for
//! users.
//!
//! The lines are made from rustdoc's JSON by the crate public-api, whose version must fit the JSON's format:
//! a new pinned compiler may need another version of that crate.

use crate::project;
use anyhow::{Context, Result, bail};
use cargo_metadata::camino::Utf8Path;
use std::collections::{BTreeMap, HashSet};
use std::fmt::Write;
use xshell::Shell;

/// The folder of the recorded public APIs.
const FOLDER: &str = "docs/api";
/// The command that updates the recorded APIs.
const COMMAND: &str = "cargo xtask examples --record";
/// The maximum number of differing lines that an error lists.
const LINES_MAX: usize = 60;
/// Traits that the compiler implements. The records name the types without them.
const AUTO_TRAITS: [&str; 7] =
    ["Freeze", "RefUnwindSafe", "Send", "Sync", "Unpin", "UnsafeUnpin", "UnwindSafe"];

/// The lines of each crate's public API, one for each public item.
#[derive(Default)]
pub struct Records(BTreeMap<String, Vec<String>>);

impl Records {
    /// Adds the public API of the crate `package`, from the file `json` that rustdoc wrote.
    pub fn add(&mut self, package: &str, json: &Utf8Path) -> Result<()> {
        let built = public_api::Builder::from_rustdoc_json(json).omit_blanket_impls(true).build();
        let api = built.with_context(|| format!("public-api cannot read {json}"))?;
        let items: Vec<_> = api.items().map(|item| (item, item.to_string())).collect();
        let is_trait_impl = |line: &str| line.starts_with("impl") && line.contains(" for ");
        let impls: HashSet<_> =
            items.iter().filter(|(_, line)| is_trait_impl(line)).map(|(item, _)| item.id()).collect();
        // Leave out functions of trait implementations, because the trait determines them.
        let is_implied = |parent| impls.contains(&parent);
        // Print an implementation once, although it is listed both with its trait and with its type.
        let mut seen = HashSet::new();
        let lines = items
            .iter()
            .filter(|(item, line)| !(is_function(line) && item.parent_id().is_some_and(is_implied)))
            .filter(|(_, line)| !is_usual(line) && seen.insert(line))
            .map(|(_, line)| line.clone());
        self.0.insert(package.to_owned(), lines.collect());
        Ok(())
    }

    /// If `record` is true, writes the API to the recorded files. Otherwise compares it with these files; the
    /// error lists removed and added lines, and the command that updates the files.
    pub fn settle(&self, sh: &Shell, record: bool) -> Result<()> {
        if record {
            sh.remove_path(FOLDER)?;
            for (package, lines) in &self.0 {
                sh.write_file(format!("{FOLDER}/{package}.txt"), lines.join("\n") + "\n")?;
            }
            return Ok(());
        }
        let mut text = String::new();
        for (package, lines) in &self.0 {
            let recorded = sh.read_file(format!("{FOLDER}/{package}.txt")).unwrap_or_default();
            difference(package, &recorded.lines().collect::<Vec<_>>(), lines, &mut text)?;
        }
        for path in sh.read_dir(project::root().join(FOLDER)).unwrap_or_default() {
            let package = path.file_stem().unwrap_or_default().to_string_lossy();
            if !self.0.contains_key(&*package) {
                writeln!(text, "{FOLDER}/{package}.txt is about no published library")?;
            }
        }
        if !text.is_empty() {
            bail!("the public API differs from {FOLDER}; if that is intended, run `{COMMAND}`\n{text}");
        }
        Ok(())
    }
}

/// Returns true for lines of functions: `pub fn`, `pub const unsafe fn` and others.
fn is_function(line: &str) -> bool {
    let is_qualifier = |word: &&str| {
        matches!(*word, "pub" | "const" | "async" | "unsafe" | "extern") || word.starts_with('"')
    };
    line.split(' ').find(|word| !is_qualifier(word)) == Some("fn")
}

/// Returns true if a line is the implementation of an auto trait, which is not recorded. Its absence is
/// recorded, as `impl !Send for …`, except for traits about panics and the compiler's own.
fn is_usual(line: &str) -> bool {
    let Some((head, _)) = line.strip_prefix("impl").and_then(|line| line.split_once(" for ")) else {
        return false;
    };
    let path = head.rsplit(' ').next().unwrap_or_default();
    let name = path.rsplit("::").next().unwrap_or_default();
    let is_counted = matches!(name, "Send" | "Sync" | "Unpin") && path.starts_with('!');
    AUTO_TRAITS.contains(&name) && !is_counted
}

/// Appends the differences of a crate's items from its record.
fn difference(package: &str, recorded: &[&str], lines: &[String], text: &mut String) -> Result<()> {
    let old: HashSet<&str> = recorded.iter().copied().collect();
    let new: HashSet<&str> = lines.iter().map(String::as_str).collect();
    let removed = recorded.iter().filter(|line| !new.contains(**line)).map(|line| format!("-{line}"));
    let added = lines.iter().filter(|line| !old.contains(line.as_str())).map(|line| format!("+{line}"));
    let (removed, added): (Vec<_>, Vec<_>) = (removed.collect(), added.collect());
    if removed.is_empty() && added.is_empty() {
        return Ok(());
    }
    writeln!(text, "{package}: {} lines removed or changed, {} added", removed.len(), added.len())?;
    let all = removed.len() + added.len();
    for line in removed.iter().chain(&added).take(LINES_MAX) {
        writeln!(text, "  {line}")?;
    }
    if all > LINES_MAX {
        writeln!(text, "  and {} more", all - LINES_MAX)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_traits_are_recorded_where_they_are_missing() {
        for usual in [
            "impl core::marker::Send for a::B",
            "impl<T> core::marker::Sync for a::B<T> where T: core::marker::Sync",
            "impl !core::marker::Freeze for a::B",
            "impl core::panic::unwind_safe::UnwindSafe for a::B",
        ] {
            assert!(is_usual(usual), "{usual}");
        }
        for kept in [
            "impl !core::marker::Send for a::B",
            "impl<'a> core::clone::Clone for a::B<'a>",
            "impl a::Send",
            "pub fn a::B::c(&self)",
        ] {
            assert!(!is_usual(kept), "{kept}");
        }
    }

    #[test]
    fn functions_are_known_by_their_first_words() {
        assert!(is_function("pub const unsafe fn a::b(u8) -> u8"));
        assert!(is_function("pub fn a::b<F: Fn()>(F)"));
        assert!(!is_function("pub type a::B::C = fn()"));
        assert!(!is_function("pub struct a::B"));
    }

    #[test]
    fn a_difference_lists_both_sides() {
        let mut text = String::new();
        let new = ["pub fn a::kept()", "pub fn a::new()"].map(str::to_owned);
        difference("a", &["pub fn a::old()", "pub fn a::kept()"], &new, &mut text).unwrap();
        let expected = "a: 1 lines removed or changed, 1 added\n  -pub fn a::old()\n  +pub fn a::new()\n";
        assert_eq!(text, expected);
        text.clear();
        difference("a", &["pub fn a::kept()", "pub fn a::new()"], &new, &mut text).unwrap();
        assert!(text.is_empty());
    }
}
