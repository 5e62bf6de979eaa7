//! Finds circles of files: files of one crate that use each other, directly or through further files.
//!
//! A file uses another file if its code names an item that the other file defines. Re-exports, tests and
//! imports for documentation do not count. The check does not see items that macros define.

use super::parsed::parsed;
use proc_macro2::{TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};
use syn::visit::{self, Visit};
use syn::{Attribute, File, Item, ItemMod, ItemUse, Macro, UseTree, Visibility};

/// A path of module names, from the root of the crate.
type ModulePath = Vec<String>;

/// The maximum number of names in a path; imports in a circle would result in longer paths.
const LENGTH_MAX: usize = 8;

/// The pairs of module and path that a search has already followed.
type Seen = BTreeSet<(ModulePath, Vec<String>)>;

/// A module: a file, or a module within a file.
#[derive(Default)]
struct Module {
    /// The module's file, relative to the crate's sources.
    file: String,
    /// The items that the module defines.
    items: BTreeSet<String>,
    /// Imported names, their paths, and true if the import is visible to other modules.
    imports: Vec<(String, Vec<String>, bool)>,
    /// Paths of glob imports.
    globs: Vec<Vec<String>>,
    /// Paths that the module's code names.
    paths: BTreeSet<Vec<String>>,
}

/// The modules of a crate, with the items that they define and import.
#[derive(Default)]
pub struct Modules(BTreeMap<ModulePath, Module>);

impl Modules {
    /// Reads the modules of a crate from its source files, given by their path below `src` and their text.
    pub fn of<'a>(files: impl Iterator<Item = (&'a str, &'a str)>) -> Self {
        let (mut modules, mut for_tests) = (Self::default(), Vec::new());
        for (name, text) in files {
            let Some(file) = parsed(text) else { continue };
            let path = module_path(name);
            let declared = file.items.iter().filter(|item| is_for_tests(attributes(item)));
            for_tests.extend(declared.filter_map(|item| match item {
                Item::Mod(module) => Some([&path[..], &[module.ident.to_string()]].concat()),
                _ => None,
            }));
            modules.read(path, name, &file.items);
        }
        modules.0.retain(|path, _| !for_tests.iter().any(|of| path.starts_with(of)));
        modules
    }

    fn read(&mut self, path: ModulePath, file: &str, items: &[Item]) {
        let mut module = Module { file: file.to_string(), ..Module::default() };
        for item in items.iter().filter(|item| !is_for_tests(attributes(item))) {
            match item {
                Item::Use(import) => {
                    let is_public = !matches!(import.vis, Visibility::Inherited);
                    listed(&import.tree, &mut Vec::new(), is_public, &mut module);
                }
                Item::Mod(ItemMod { content: Some((_, items)), ident, .. }) => {
                    let inner = path.iter().cloned().chain([ident.to_string()]).collect();
                    self.read(inner, file, items);
                }
                _ => module.items.extend(name_of(item)),
            }
        }
        let mut named = NamedPaths::default();
        named.visit_file(&File { shebang: None, attrs: Vec::new(), items: items.to_vec() });
        module.paths = named.0;
        self.0.insert(path, module);
    }

    /// Returns the file that defines the item to which a path refers in a module; none for other crates.
    fn resolved(&self, from: &[String], path: &[String], seen: &mut Seen) -> Option<&str> {
        let module = self.0.get(from)?;
        // Return `None` for an empty path, which names the module itself and no item.
        let (first, rest) = path.split_first()?;
        if path.len() > LENGTH_MAX || !seen.insert((from.to_vec(), path.to_vec())) {
            return None;
        }
        match first.as_str() {
            "crate" => return self.resolved(&[], rest, seen),
            "self" => return self.resolved(from, rest, seen),
            "super" => return self.resolved(&from[..from.len().checked_sub(1)?], rest, seen),
            _ => {}
        }
        let child: ModulePath = from.iter().chain([first]).cloned().collect();
        if self.0.contains_key(&child) {
            return self.resolved(&child, rest, seen);
        }
        if module.items.contains(first) {
            return Some(&module.file);
        }
        let import = module.imports.iter().find(|(name, ..)| name == first);
        if let Some((_, target, _)) = import {
            let full: Vec<String> = target.iter().chain(rest).cloned().collect();
            let is_own = |path: &[String]| path.first() != Some(first) || self.0.contains_key(&child);
            return is_own(target).then(|| self.resolved(from, &full, seen)).flatten();
        }
        let mut globs = module.globs.iter().filter(|target| target.first() != Some(first));
        globs.find_map(|target| {
            let full: Vec<String> = target.iter().chain(path).cloned().collect();
            self.resolved(from, &full, seen)
        })
    }

    /// Returns the crate's files, without the files of tests.
    pub fn files(&self) -> BTreeSet<&str> {
        self.0.values().map(|module| &*module.file).collect()
    }

    fn is_module(&self, from: &[String], path: &[String]) -> bool {
        let mut at = from.to_vec();
        for name in path {
            match name.as_str() {
                "crate" => at.clear(),
                "self" => {}
                "super" => drop(at.pop()),
                _ => at.push(name.clone()),
            }
        }
        self.0.contains_key(&at)
    }

    /// Returns the files that each file uses.
    fn uses(&self) -> BTreeMap<&str, BTreeSet<&str>> {
        let mut uses: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (path, module) in &self.0 {
            let imports = module
                .imports
                .iter()
                .filter(|(_, target, is_public)| !is_public && !self.is_module(path, target));
            let named = imports.map(|(_, target, _)| target).chain(&module.paths);
            let files = named.filter_map(|named| self.resolved(path, named, &mut Seen::new()));
            uses.entry(&module.file).or_default().extend(files.filter(|file| *file != module.file));
        }
        uses
    }

    /// Returns all circles (files that use each other, directly or not), each as a sorted list of files.
    pub fn circles(&self) -> Vec<Vec<&str>> {
        let uses = self.uses();
        let reached: BTreeMap<&str, BTreeSet<&str>> =
            uses.keys().map(|file| (*file, reached_from(file, &uses))).collect();
        let mut circles: BTreeSet<Vec<&str>> = BTreeSet::new();
        for (file, others) in reached.iter().filter(|(file, others)| others.contains(*file)) {
            circles.insert(others.iter().copied().filter(|other| reached[other].contains(file)).collect());
        }
        circles.into_iter().collect()
    }
}

/// Returns the files that a file uses, directly or through others.
fn reached_from<'a>(file: &'a str, uses: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> BTreeSet<&'a str> {
    let (mut reached, mut open) = (BTreeSet::new(), vec![file]);
    while let Some(file) = open.pop() {
        for other in uses.get(file).into_iter().flatten() {
            if reached.insert(*other) {
                open.push(other);
            }
        }
    }
    reached
}

fn module_path(name: &str) -> ModulePath {
    let stem = name.trim_end_matches(".rs");
    let names = stem.split('/').filter(|name| !["lib", "main", "mod"].contains(name));
    names.map(str::to_string).collect()
}

/// Adds the names of an import to a module.
fn listed(tree: &UseTree, before: &mut Vec<String>, is_public: bool, module: &mut Module) {
    match tree {
        UseTree::Path(path) => {
            before.push(path.ident.to_string());
            listed(&path.tree, before, is_public, module);
            before.pop();
        }
        UseTree::Group(group) => group.items.iter().for_each(|tree| listed(tree, before, is_public, module)),
        UseTree::Glob(_) => module.globs.push(before.clone()),
        UseTree::Name(name) if name.ident == "self" => {
            let name = before.last().cloned().unwrap_or_default();
            module.imports.push((name, before.clone(), is_public));
        }
        UseTree::Name(name) => {
            let target = before.iter().cloned().chain([name.ident.to_string()]).collect();
            module.imports.push((name.ident.to_string(), target, is_public));
        }
        UseTree::Rename(rename) if rename.ident == "self" => {
            module.imports.push((rename.rename.to_string(), before.clone(), is_public));
        }
        UseTree::Rename(rename) => {
            let target = before.iter().cloned().chain([rename.ident.to_string()]).collect();
            module.imports.push((rename.rename.to_string(), target, is_public));
        }
    }
}

/// A visitor that collects all paths in code.
#[derive(Default)]
struct NamedPaths(BTreeSet<Vec<String>>);

impl NamedPaths {
    /// Adds the paths in the tokens of a macro call.
    fn add_tokens(&mut self, tokens: TokenStream) {
        let (mut path, mut colons) = (Vec::new(), 0);
        for token in tokens {
            match token {
                TokenTree::Ident(name) => {
                    if colons != 2 && !path.is_empty() {
                        self.0.insert(std::mem::take(&mut path));
                    }
                    path.push(name.to_string());
                    colons = 0;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                other => {
                    colons = 0;
                    if let TokenTree::Group(group) = other {
                        self.add_tokens(group.stream());
                    }
                }
            }
        }
        self.0.insert(path);
    }
}

impl<'ast> Visit<'ast> for NamedPaths {
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_for_tests(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    // Do not visit nested modules here, because the caller visits them one by one.
    fn visit_item_mod(&mut self, _: &'ast ItemMod) {}

    fn visit_item_use(&mut self, _: &'ast ItemUse) {}

    fn visit_visibility(&mut self, _: &'ast Visibility) {}

    fn visit_attribute(&mut self, _: &'ast Attribute) {}

    fn visit_macro(&mut self, call: &'ast Macro) {
        self.add_tokens(call.tokens.clone());
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.0.insert(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        visit::visit_path(self, path);
    }
}

/// Returns true if `path` is the path of a test file, or of a model for tests.
pub fn is_test(path: &str) -> bool {
    path.contains("tests") || path.contains("model")
}

/// Returns true if an item exists only in tests or in documentation.
pub fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes
        .iter()
        .filter(|attribute| attribute.path().is_ident("cfg"))
        .any(|attribute| attribute.meta.require_list().is_ok_and(|list| names_tests(list.tokens.clone())))
}

/// Returns true if a condition names tests or documentation outside of `not(…)`.
fn names_tests(condition: TokenStream) -> bool {
    let (mut is_negated, mut found) = (false, false);
    for token in condition {
        match token {
            TokenTree::Ident(name) => {
                found |= name == "test" || name == "doc";
                is_negated = name == "not";
            }
            TokenTree::Group(group) => found |= !is_negated && names_tests(group.stream()),
            _ => is_negated = false,
        }
    }
    found
}

pub fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

fn name_of(item: &Item) -> Option<String> {
    let name = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(name.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn circles_follow_imports_and_re_exports() {
        let files = [
            ("lib.rs", "mod a; mod b; pub use b::two::Two;"),
            ("a.rs", "use crate::Two;\npub struct One(Two);"),
            ("c.rs", "use crate::a::One;"),
            ("b.rs", "#[cfg(test)] mod four; mod two; mod three; pub use two::Two; pub use three::Three;"),
            (
                "b/two.rs",
                "use super::Three;\npub struct Two;\nfn f() { let _: Three = crate::a::One::new(); }",
            ),
            ("b/four.rs", "use super::two::Two;\npub struct Four(Two);"),
            ("b/three.rs", "#[cfg(test)]\nuse super::Two;\npub(in crate::b) struct Three;"),
        ];
        let modules = Modules::of(files.into_iter());
        assert_eq!(modules.circles(), [["a.rs", "b/two.rs"]]);
    }

    #[test]
    fn a_module_may_re_export_the_items_of_its_children() {
        let parent = |code: &str| {
            let files = [
                ("a.rs", format!("mod b; pub use b::{{One, two}};\npub struct Own;\n{code}")),
                ("a/b.rs", "use super::Own;\npub struct One(Own);\npub fn two() {}".to_string()),
            ];
            Modules::of(files.iter().map(|(name, text)| (*name, text.as_str()))).circles().len()
        };
        assert_eq!(parent("fn two_of() -> Self::One {}"), 0);
        assert_eq!(parent("fn own() { two() }"), 1);
        assert_eq!(parent("macro_rules! m { () => { b::two() } }"), 1);
        assert_eq!(parent("fn own() { vec![b::two(), 1] }"), 1);
    }
}
