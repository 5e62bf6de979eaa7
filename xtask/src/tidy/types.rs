//! Checks that a type's name occurs only once in all libraries.
//!
//! The check compares the structs, enums, unions, traits and type aliases of the workspace's libraries that
//! are visible outside of their module. It does not see types of tests and types that macros define. Types of
//! one name for different configurations count once if they are in one file or in the files [`ALTERNATIVES`].
//! Each crate may define the names in [`CONVENTIONAL`] once.

use super::circles::{self, is_test};
use super::parsed::parsed;
use std::collections::{BTreeMap, BTreeSet};
use syn::{Ident, Item, ItemMod, Visibility};

/// Conventional names, which each Rust crate gives to its own types.
const CONVENTIONAL: [&str; 3] = ["Error", "ErrorKind", "Result"];
/// Files that define the same types for different configurations.
const ALTERNATIVES: [[&str; 2]; 1] =
    [["backend-host/src/kernel/compute/fused.rs", "backend-host/src/kernel/compute/not_fused.rs"]];
/// Folders of packages that are no libraries of the workspace.
const EXEMPT: [&str; 6] = [
    "xtask/",
    "vmarray/formats/servers/",
    "vmarray/fuzz/",
    "vmarray/monitor/",
    "vmarray/python/",
    "vmarray/tests/",
];

/// Returns a message for each name that several types have, given the names and texts of the files.
pub fn faults<'a>(files: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<String> {
    let (mut types, mut for_tests) = (Types::default(), Vec::new());
    for (name, text) in files.filter(|(name, _)| name.ends_with(".rs") && !is_test(name)) {
        let is_library = name.contains("/src/") && !EXEMPT.iter().any(|start| name.starts_with(start));
        let Some(file) = is_library.then(|| parsed(text)).flatten() else { continue };
        let folder = name.trim_end_matches(".rs").trim_end_matches("/lib");
        let declared = file.items.iter().filter(|item| circles::is_for_tests(circles::attributes(item)));
        for_tests.extend(declared.filter_map(|item| match item {
            Item::Mod(module) => Some(format!("{folder}/{}", module.ident)),
            _ => None,
        }));
        types.read(name, &file.items);
    }
    types.faults(&for_tests)
}

/// The files that define types, by the name of the type.
#[derive(Default)]
struct Types(BTreeMap<String, BTreeSet<String>>);

impl Types {
    fn read(&mut self, file: &str, items: &[Item]) {
        for item in items.iter().filter(|item| !circles::is_for_tests(circles::attributes(item))) {
            if let Item::Mod(ItemMod { content: Some((_, items)), .. }) = item {
                self.read(file, items);
            } else if let Some((name, visibility)) = named(item)
                && !matches!(visibility, Visibility::Inherited)
            {
                let alternatives = ALTERNATIVES.iter().find(|files| files.contains(&file));
                let file = alternatives.map_or(file, |files| files[0]);
                self.0.entry(name.to_string()).or_default().insert(file.to_string());
            }
        }
    }

    fn faults(&self, for_tests: &[String]) -> Vec<String> {
        let is_for_tests = |file: &str| for_tests.iter().any(|module| file.starts_with(module.as_str()));
        let mut faults = Vec::new();
        for (name, files) in &self.0 {
            let files: Vec<&str> =
                files.iter().map(String::as_str).filter(|file| !is_for_tests(file)).collect();
            let crates: BTreeSet<_> = files.iter().map(|file| file.split("/src/").next()).collect();
            let allowed = if CONVENTIONAL.contains(&name.as_str()) { crates.len() } else { 1 };
            if files.len() > allowed {
                faults.push(format!("several types have the name {name}: {}", files.join(", ")));
            }
        }
        faults
    }
}

/// Returns the name and visibility of a type; none for other items.
fn named(item: &Item) -> Option<(&Ident, &Visibility)> {
    Some(match item {
        Item::Enum(item) => (&item.ident, &item.vis),
        Item::Struct(item) => (&item.ident, &item.vis),
        Item::Trait(item) => (&item.ident, &item.vis),
        Item::Type(item) => (&item.ident, &item.vis),
        Item::Union(item) => (&item.ident, &item.vis),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_serves_one_type() {
        let files = [
            ("a/src/lib.rs", "#[cfg(test)] mod fake; pub struct Error; struct Own; pub(crate) struct Same;"),
            ("a/src/fake.rs", "pub struct Same;"),
            ("a/src/fake/one.rs", "pub struct Same;"),
            ("b/src/lib.rs", "pub struct Error; struct Own; struct Same; mod c { pub(super) enum Place {} }"),
            ("b/src/d.rs", "#[cfg(unix)] pub type Place = u8; #[cfg(windows)] pub type Place = u16;"),
            ("xtask/src/e.rs", "pub struct Same;"),
        ];
        assert_eq!(
            faults(files.into_iter()),
            ["several types have the name Place: b/src/d.rs, b/src/lib.rs"]
        );
    }
}
