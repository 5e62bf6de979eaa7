//! Counts the lines of Rust code without tests.
//!
//! All lines count: code, comments, documentation and blank lines. Not counted are items for tests and files
//! of tests: `tests.rs`, files below a folder `tests`, and modules under `#[cfg(test)]`.

use super::circles::{attributes, is_for_tests};
use super::parsed::parsed;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{ImplItem, Item};

/// The names of the measured totals, and the path prefixes of their files.
const SUMS: [(&str, &[&str]); 2] =
    [("workspace", &[""]), ("array and engine", &["vmarray/src/", "vmarray/engine/"])];

/// Returns the number of lines without tests, for each group of files in `SUMS`. A file is a name and a text.
pub fn measured<'a>(files: impl Iterator<Item = (&'a str, &'a str)>) -> BTreeMap<String, usize> {
    let (mut lines, mut for_tests) = (Vec::new(), Vec::new());
    for (name, text) in files.filter(|(name, _)| name.ends_with(".rs")) {
        if name.split('/').any(|part| ["tests", "tests.rs"].contains(&part)) {
            continue;
        }
        let mut tests = TestLines { folder: folder_of_children(name), ..TestLines::default() };
        if let Some(file) = parsed(text) {
            tests.visit_file(&file);
        }
        for_tests.append(&mut tests.files);
        lines.push((name, text.lines().count() - tests.lines.len()));
    }
    let is_test = |name: &str| {
        let below =
            |test: &String| name.strip_prefix(test.as_str()).is_some_and(|rest| rest.starts_with(['.', '/']));
        for_tests.iter().any(below)
    };
    lines.retain(|(name, _)| !is_test(name));
    let sum = |starts: &[&str]| {
        let counted = lines.iter().filter(|(name, _)| starts.iter().any(|start| name.starts_with(start)));
        counted.map(|(_, lines)| lines).sum()
    };
    SUMS.iter().map(|(name, starts)| (name.to_string(), sum(starts))).collect()
}

/// Returns the folder with the files of the modules that a file declares.
fn folder_of_children(name: &str) -> String {
    let stem = name.trim_end_matches(".rs");
    let (folder, file) = stem.rsplit_once('/').unwrap_or(("", stem));
    if ["lib", "main", "mod"].contains(&file) { folder.into() } else { stem.into() }
}

/// The lines of a file that belong to tests, and the modules that the file declares for tests.
#[derive(Default)]
struct TestLines {
    folder: String,
    lines: BTreeSet<usize>,
    files: Vec<String>,
}

fn lines_of(item: &impl Spanned) -> RangeInclusive<usize> {
    item.span().start().line..=item.span().end().line
}

impl<'ast> Visit<'ast> for TestLines {
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_for_tests(attributes(item)) {
            return visit::visit_item(self, item);
        }
        if let Item::Mod(module) = item
            && module.content.is_none()
        {
            self.files.push(format!("{}/{}", self.folder, module.ident));
        }
        self.lines.extend(lines_of(item));
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        match item {
            ImplItem::Fn(function) if is_for_tests(&function.attrs) => self.lines.extend(lines_of(item)),
            _ => visit::visit_impl_item(self, item),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_do_not_count() {
        let library = "//! A library.\n\n#[cfg(test)]\nmod model;\nfn f() {}\n";
        let tested = "struct A;\nimpl A {\n    /// For tests.\n    #[cfg(test)]\n    fn f() {}\n}\n\
                      #[cfg(test)]\nmod tests {\n    fn g() {}\n}\n";
        let files = [
            ("vmarray/src/lib.rs", library),
            ("vmarray/src/model.rs", library),
            ("vmarray/src/model/a.rs", library),
            ("vmarray/src/a.rs", tested),
            ("vmarray/src/a/tests.rs", library),
            ("vmarray/tests/it/main.rs", library),
            ("xtask/src/main.rs", library),
            ("xtask/src/main.md", library),
        ];
        let expected = [("array and engine", 3 + 3), ("workspace", 3 + 3 + 3)];
        let expected = expected.map(|(name, lines)| (name.to_string(), lines));
        assert_eq!(measured(files.into_iter()), expected.into());
    }
}
