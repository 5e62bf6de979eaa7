//! Compares the code's structure with the limits in `structure-budget.toml`: lines without tests, files that
//! use each other in circles, files with `unsafe`, long functions, and functions with many arguments.
//!
//! A function that is a table may be long. It is a table if its last expression is a `match` whose arms have
//! at most [`ARM_LINES_MAX`] lines each, after at most [`LETS_MAX`] `let` statements and no others. A
//! function of a foreign interface (`extern "C"`) may have the arguments that the interface requires, and a
//! kernel one argument for each view.
//!
//! A count must not rise above its limit; [`Budget::tightened`] lowers the limits to the present counts.

use super::circles::{self, Modules, is_test};
use super::parsed::parsed;
use super::size;
use crate::project;
use anyhow::{Context, Result};
use proc_macro2::{TokenStream, TokenTree};
use serde::Deserialize;
use std::collections::BTreeMap;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{
    Attribute, Block, Expr, ExprUnsafe, ImplItemFn, Item, ItemFn, ItemImpl, ItemTrait, Macro, Signature,
    Stmt, TraitItemFn,
};

/// The file with the budget, relative to the workspace.
const FILE: &str = "xtask/structure-budget.toml";
/// Path prefixes of the files whose functions are measured: the libraries, but not xtask.
const MEASURED: [&str; 2] = ["backend-", "vmarray/"];
/// The maximum number of lines of a function.
const LINES_MAX: usize = 70;
/// The maximum number of arguments of a function.
const ARGUMENTS_MAX: usize = 6;
/// The maximum number of lines of a `match` arm in a function that is a table.
const ARM_LINES_MAX: usize = 12;
/// The maximum number of `let` statements in a function that is a table.
const LETS_MAX: usize = 4;
/// Sizes are rounded up to multiples of this number of lines, so that a small fix stays within the budget.
const SIZE_STEP: usize = 500;

/// Counts of the code's structure: the allowed maximum of each, or the present values.
#[derive(Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    /// Lines without tests, by the name of the total.
    size: BTreeMap<String, usize>,
    /// Files in circles, by folder.
    circles: BTreeMap<String, usize>,
    /// Files with `unsafe` outside tests, by library.
    #[serde(rename = "unsafe")]
    unsafe_files: BTreeMap<String, usize>,
    /// Lines of the functions above the maximum, by file and name.
    lines: BTreeMap<String, usize>,
    /// Numbers of arguments of the functions above the maximum, by file and name.
    arguments: BTreeMap<String, usize>,
}

impl Budget {
    /// Reads the budget of this workspace: the maximum of each count.
    pub fn read() -> Result<Self> {
        let text = std::fs::read_to_string(project::root().join(FILE)).context(FILE)?;
        toml::from_str(&text).context(FILE)
    }

    /// Measures files, given by name and text.
    pub fn measured<'a>(files: impl Iterator<Item = (&'a str, &'a str)> + Clone) -> (Self, Vec<String>) {
        let size = size::measured(files.clone()).into_iter();
        let size = size.map(|(sum, lines)| (sum, lines.next_multiple_of(SIZE_STEP))).collect();
        let mut present = Self { size, ..Self::default() };
        let mut crates = BTreeMap::<&str, Vec<(&str, &str)>>::new();
        for (name, text) in files.filter(|(name, _)| name.ends_with(".rs") && !is_test(name)) {
            let Some((of, path)) = name.split_once("/src/") else { continue };
            crates.entry(of).or_default().push((path, text));
            if MEASURED.iter().any(|start| name.starts_with(start)) {
                present.measure_functions(name, text);
            }
        }
        let mut all = Vec::new();
        for (of, files) in crates {
            let texts: BTreeMap<&str, &str> = files.iter().copied().collect();
            let modules = Modules::of(files.into_iter());
            if MEASURED.iter().any(|start| format!("{of}/").starts_with(start)) {
                let count = modules.files().into_iter().filter(|file| has_unsafe(texts[file])).count();
                if count > 0 {
                    present.unsafe_files.insert(format!("{of}/src"), count);
                }
            }
            for circle in modules.circles() {
                all.push(format!("{of}/src: {} files: {}", circle.len(), circle.join(", ")));
                for file in circle {
                    *present.circles.entry(folder(of, file)).or_default() += 1;
                }
            }
        }
        (present, all)
    }

    fn measure_functions(&mut self, name: &str, text: &str) {
        let Some(file) = parsed(text) else { return };
        let mut functions = Functions::default();
        functions.visit_file(&file);
        for (function, lines, arguments) in functions.0 {
            let key = format!("{name} {function}");
            let numbers =
                [(&mut self.lines, lines, LINES_MAX), (&mut self.arguments, arguments, ARGUMENTS_MAX)];
            for (of, number, _) in numbers.into_iter().filter(|(_, number, most)| number > most) {
                let longest = of.entry(key.clone()).or_default();
                *longest = number.max(*longest);
            }
        }
    }

    /// Describes the present sizes, for the command's output.
    pub fn sizes(&self) -> String {
        self.size.iter().map(|(sum, lines)| format!("; {sum}: {lines} lines without tests")).collect()
    }

    /// Returns all tables of counts, each with the noun for the error message.
    fn tables(&self) -> [(&'static str, &BTreeMap<String, usize>); 5] {
        [
            ("lines without tests", &self.size),
            ("files in circles", &self.circles),
            ("files with `unsafe`", &self.unsafe_files),
            ("lines (70 are allowed)", &self.lines),
            ("arguments (6 are allowed)", &self.arguments),
        ]
    }

    /// Returns an error message for each count that exceeds its allowed maximum.
    pub fn faults(&self, present: &Self) -> Vec<String> {
        let mut faults = Vec::new();
        for ((what, allowed), (_, present)) in self.tables().into_iter().zip(present.tables()) {
            for (key, number) in present {
                let most = allowed.get(key).copied().unwrap_or_default();
                if *number > most {
                    faults.push(format!("structure: {key}: {number} {what}; {FILE} allows {most}"));
                }
            }
        }
        faults
    }

    /// Returns a note with the counts whose allowed maximum exceeds the present value; empty if there are
    /// none.
    pub fn slack(&self, present: &Self) -> String {
        let below =
            self.tables().into_iter().zip(present.tables()).flat_map(|((_, allowed), (_, present))| {
                allowed.iter().filter(|(key, most)| present.get(*key).is_none_or(|number| number < *most))
            });
        match below.count() {
            0 => String::new(),
            count => format!("; `cargo xtask tidy --tighten` lowers {count} numbers of {FILE}"),
        }
    }

    /// Lowers each maximum in the budget file to the present count.
    pub fn tighten(&self, present: &Self) -> Result<()> {
        let path = project::root().join(FILE);
        let text = std::fs::read_to_string(&path)?;
        Ok(std::fs::write(path, present.tightened(&text))?)
    }

    /// Returns the text of the budget file with these counts as upper bounds; drops entries without a count.
    fn tightened(&self, text: &str) -> String {
        let (mut table, mut lowered) = (None, String::new());
        for line in text.lines() {
            table = match line {
                "[size]" => Some(&self.size),
                "[circles]" => Some(&self.circles),
                "[unsafe]" => Some(&self.unsafe_files),
                "[lines]" => Some(&self.lines),
                "[arguments]" => Some(&self.arguments),
                _ => table,
            };
            let entry = line.strip_prefix('"').and_then(|entry| entry.split_once("\" = "));
            let entry = entry.and_then(|(key, most)| Some((key, most.parse::<usize>().ok()?)));
            match (entry, table) {
                (Some((key, most)), Some(table)) => {
                    if let Some(number) = table.get(key) {
                        lowered += &format!("\"{key}\" = {}\n", most.min(*number));
                    }
                }
                _ => lowered = lowered + line + "\n",
            }
        }
        lowered
    }
}

/// Returns the folder that counts a file: for the array's crate one of the top level, else all sources.
fn folder(of: &str, file: &str) -> String {
    match file.split(['/', '.']).next().filter(|_| of == "vmarray") {
        Some(first) => format!("{of}/src/{first}"),
        None => format!("{of}/src"),
    }
}

/// Returns true if the code of a file outside tests has the keyword `unsafe`.
fn has_unsafe(text: &str) -> bool {
    let mut found = UnsafeCode(false);
    if let Some(file) = parsed(text) {
        found.visit_file(&file);
    }
    found.0
}

/// True after a visit of code with the keyword `unsafe`.
struct UnsafeCode(bool);

impl UnsafeCode {
    fn add_tokens(&mut self, tokens: TokenStream) {
        for token in tokens {
            match token {
                TokenTree::Ident(name) => self.0 |= name == "unsafe",
                TokenTree::Group(group) => self.add_tokens(group.stream()),
                _ => {}
            }
        }
    }
}

impl<'ast> Visit<'ast> for UnsafeCode {
    fn visit_item(&mut self, item: &'ast Item) {
        if !circles::is_for_tests(circles::attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_expr_unsafe(&mut self, _: &'ast ExprUnsafe) {
        self.0 = true;
    }

    fn visit_signature(&mut self, signature: &'ast Signature) {
        self.0 |= signature.unsafety.is_some();
    }

    fn visit_item_impl(&mut self, item: &'ast ItemImpl) {
        self.0 |= item.unsafety.is_some();
        visit::visit_item_impl(self, item);
    }

    fn visit_item_trait(&mut self, item: &'ast ItemTrait) {
        self.0 |= item.unsafety.is_some();
        visit::visit_item_trait(self, item);
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        self.add_tokens(call.tokens.clone());
    }
}

/// Collects the functions of a file outside tests: name, number of lines, number of arguments.
#[derive(Default)]
struct Functions(Vec<(String, usize, usize)>);

impl Functions {
    fn add(&mut self, attributes: &[Attribute], signature: &Signature, block: &Block) {
        let lines = if is_table(block) { 0 } else { lines(signature, block) };
        let name =
            |attribute: &Attribute| attribute.path().segments.last().map(|last| last.ident.to_string());
        let is_kernel = attributes.iter().any(|attribute| name(attribute).as_deref() == Some("kernel"));
        let arguments = if signature.abi.is_some() || is_kernel { 0 } else { signature.inputs.len() };
        self.0.push((signature.ident.to_string(), lines, arguments));
    }
}

/// Returns the number of lines from the start of `first` to the end of `last`.
fn lines(first: &impl Spanned, last: &impl Spanned) -> usize {
    last.span().end().line + 1 - first.span().start().line
}

/// Returns true if the body of a function is a table.
fn is_table(block: &Block) -> bool {
    let Some((Stmt::Expr(Expr::Match(table), None), before)) = block.stmts.split_last() else { return false };
    before.len() <= LETS_MAX
        && before.iter().all(|statement| matches!(statement, Stmt::Local(_)))
        && table.arms.iter().all(|arm| lines(arm, arm) <= ARM_LINES_MAX)
}

impl<'ast> Visit<'ast> for Functions {
    fn visit_item(&mut self, item: &'ast Item) {
        if !circles::is_for_tests(circles::attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_fn(&mut self, function: &'ast ItemFn) {
        self.add(&function.attrs, &function.sig, &function.block);
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast ImplItemFn) {
        self.add(&function.attrs, &function.sig, &function.block);
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_trait_item_fn(&mut self, function: &'ast TraitItemFn) {
        if let Some(block) = &function.default {
            self.add(&function.attrs, &function.sig, block);
        }
        visit::visit_trait_item_fn(self, function);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_fall_and_do_not_rise() {
        let long = format!("fn long(a: u8) {{\n{}}}\n", "    ();\n".repeat(LINES_MAX));
        let many = "impl A {\n    fn many(&self, b: u8, c: u8, d: u8, e: u8, f: u8, g: u8) {}\n}\n";
        let kernel = "#[kernel(crate = k)]\nfn kernel(a: u8, b: u8, c: u8, d: u8, e: u8, f: u8, g: u8) {}\n";
        let text = format!("{long}{many}{kernel}#[cfg(test)]\nmod tests {{\n{long}}}\n");
        let (present, circles) = Budget::measured([("vmarray/src/a.rs", text.as_str())].into_iter());
        assert!(circles.is_empty());
        assert_eq!(present.lines, [("vmarray/src/a.rs long".to_string(), LINES_MAX + 2)].into());
        assert_eq!(present.arguments, [("vmarray/src/a.rs many".to_string(), 7)].into());
        let file = "# A comment.\n[size]\n\"array and engine\" = 500\n\"workspace\" = 500\n[circles]\n\"x/src\" = 2\n\
                    [unsafe]\n[lines]\n\"vmarray/src/a.rs long\" = 90\n[arguments]\n";
        let budget: Budget = toml::from_str(file).expect("the text is well-formed");
        let faults = budget.faults(&present);
        assert!(faults.len() == 1 && faults[0].contains("many: 7 arguments"), "{faults:?}");
        assert!(budget.slack(&present).contains("lowers 2 numbers"));
        let lowered = present.tightened(file);
        assert_eq!(lowered, file.replace("= 90", "= 72").replace("\"x/src\" = 2\n", ""));
    }

    #[test]
    fn tables_may_be_long() {
        let arms = |lines: usize| format!("A => {{\n{}}}\n", "();\n".repeat(lines - 2)).repeat(LINES_MAX);
        let measured = |text: &str| Budget::measured([("vmarray/src/a.rs", text)].into_iter()).0;
        let table = |lines| measured(&format!("fn a() {{\nlet a = 1;\nmatch a {{\n{}}}\n}}\n", arms(lines)));
        assert!(table(ARM_LINES_MAX).lines.is_empty());
        assert_eq!(table(ARM_LINES_MAX + 1).lines.len(), 1);
        let statement = measured(&format!("fn a() {{\nf();\nmatch a {{\n{}}}\n}}\n", arms(2)));
        assert_eq!(statement.lines.len(), 1);
        let foreign = "extern \"C\" fn a(b: u8, c: u8, d: u8, e: u8, f: u8, g: u8, h: u8) {}\n";
        assert!(measured(foreign).arguments.is_empty());
    }

    #[test]
    fn files_with_unsafe_are_counted_outside_tests() {
        let files = [
            ("vmarray/src/lib.rs", "mod a; mod b; mod c; mod d;\n#[cfg(all(test, not(miri)))]\nmod e;"),
            ("vmarray/src/a.rs", "fn f() { loop { unsafe { g() } } }"),
            ("vmarray/src/b.rs", "#![forbid(unsafe_code)]\n// unsafe\n#[unsafe(no_mangle)]\nfn f() {}"),
            ("vmarray/src/c.rs", "call! { |x| unsafe { x() } }"),
            ("vmarray/src/d.rs", "#[cfg(test)]\nmod tests {\n    unsafe impl Send for A {}\n}"),
            ("vmarray/src/e.rs", "unsafe fn f() {}"),
        ];
        let (present, _) = Budget::measured(files.into_iter());
        assert_eq!(present.unsafe_files, [("vmarray/src".to_string(), 2)].into());
    }

    #[test]
    fn the_budget_of_the_workspace_is_well_formed() {
        Budget::read().expect("the budget is well-formed");
    }
}
