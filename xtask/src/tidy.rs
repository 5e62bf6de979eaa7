//! `cargo xtask tidy`: checks rules of the source text, such as line lengths, that no compiler checks.

mod circles;
mod language;
mod parsed;
mod prose;
mod size;
mod structure;
mod types;

use crate::project;
use crate::steps::Outcome;
use anyhow::{Result, bail};
use cargo_metadata::Metadata;
use regex::Regex;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use xshell::{Shell, cmd};

/// The folders of the library: each may use the folders before it.
const LAYERS: [&str; 8] = ["base", "engine", "setup", "array", "ops", "sources", "index_sets", "shapes"];
/// The modules of `ops`: each may use the modules of groups before its own. `ops.rs` documents them.
const OPERATIONS: [&[&str]; 15] = [
    &["sealed"],
    &["expr"],
    &["executor"],
    &["find"],
    &["view"],
    &["gather"],
    &["array_store"],
    &["query"],
    &["sort"],
    &["launch"],
    &["scan"],
    &["matmul"],
    &["join"],
    &["order"],
    &["explain", "saved", "shift", "convert", "paged"],
];
/// The maximum length of a comment line, in characters. Rows of tables may be longer. Rustfmt limits lines of
/// code.
const WIDTH_MAX: usize = 110;
/// The maximum length of a line of prose in Markdown and in examples, in characters.
const PROSE_MAX: usize = 120;

/// Files with a table of the features of the array's crate.
const FEATURE_TABLES: [&str; 2] = ["README.md", "vmarray/src/lib.rs"];

/// Makes statics of regular expressions.
macro_rules! patterns {
    ($($(#[$doc:meta])* $NAME:ident = $pattern:expr;)*) => { $(
        $(#[$doc])*
        static $NAME: LazyLock<Regex> = LazyLock::new(|| Regex::new($pattern).expect("the pattern is valid"));
    )* };
}

patterns! {
    /// Text that must not be left in a source file.
    LEFTOVER = r"\b(todo|dbg|unimplemented)!\(";
    /// An absolute path below one of the folders that differ from machine to machine.
    MACHINE_PATH = r#"(?:^|[\s"'`(),;=<>|])(/(?:work|root|home|Users|mnt|tmp)/[^\s"'`(),;=<>|]*)"#;
    /// A vendor's interface, or a query of a backend's name.
    VENDOR = r"(?i)cuda|opencl|\binfo(?:\(\))?\.backend\b";
    /// A module path within the library.
    MODULE = r"crate::(\w+)(?:::(\w+))?";
    /// A command of this program in the text of its help.
    HELP = r"(?m)^  ([a-z][a-z-]*)";
    /// A command of this program in a document.
    COMMAND = r"cargo xtask ([a-zA-Z0-9][a-zA-Z0-9-]*)";
    /// A path in backticks: it has a slash, no blank and no placeholder.
    PATH = r"`([\w.-]+/[\w./-]*)`";
    /// A row of a table of features.
    FEATURE = r"(?m)^(?://! )?\| `([\w-]+)` \| (yes|no) \|";
    /// The end of a source file.
    SOURCE = r"\.(rs|toml|md|cu|cl)$";
}

/// Options of `cargo xtask tidy`.
#[derive(clap::Args)]
pub struct Args {
    /// Prints the number of lines of prose that hold words of the language budget, by file, worst first;
    /// for one file its lines.
    #[arg(long, value_name = "PATH", num_args = 0..=1)]
    language: Option<Option<PathBuf>>,
    /// Lowers the budgets of language and structure to the present counts.
    #[arg(long)]
    tighten: bool,
    /// Prints the circles of files.
    #[arg(long)]
    circles: bool,
}

pub fn run(args: &Args) -> Result<()> {
    let sh = project::shell()?;
    if args.language.is_none() && !args.tighten && !args.circles {
        check(&sh)?.print();
        return Ok(());
    }
    let files = texts(&sh)?;
    let (structure, circles) = structure::Budget::measured(pairs(&files));
    if args.circles {
        circles.iter().for_each(|circle| println!("{circle}"));
    }
    let budget = language::Budget::read()?;
    let counts = budget.count(pairs(&files))?;
    if args.tighten {
        budget.tighten(&counts)?;
        structure::Budget::read()?.tighten(&structure)?;
    }
    if let Some(path) = &args.language {
        print!("{}", budget.report(&counts, path.as_deref()));
    }
    Ok(())
}

/// Returns the names and texts of all files that git tracks or would add; without git, of all files outside
/// the build folders.
fn texts(sh: &Shell) -> Result<Vec<(String, String)>> {
    let root = project::root();
    let not_ours = ["-path", "./target", "-o", "-path", "./dist"];
    let listed = cmd!(sh, "git ls-files --cached --others --exclude-standard").quiet().ignore_stderr().read();
    let listed = listed
        .or_else(|_| cmd!(sh, "find . ( {not_ours...} ) -prune -o -type f -printf %P\\n").quiet().read())?;
    // Leave out files that are not text, and files whose deletion is not committed yet.
    let text = |name: &str| Some((name.replace('\\', "/"), std::fs::read_to_string(root.join(name)).ok()?));
    Ok(listed.lines().filter_map(text).collect())
}

/// Borrows names and texts.
fn pairs(texts: &[(String, String)]) -> impl Iterator<Item = (&str, &str)> + Clone {
    texts.iter().map(|(name, text)| (name.as_str(), text.as_str()))
}

/// Checks the repository against all rules of `cargo xtask tidy`.
pub fn check(sh: &Shell) -> Result<Outcome> {
    let root = project::root();
    let mut faults = Vec::new();
    let mut documents = String::new();
    let (mut count, mut lines) = (0, 0);
    let texts = texts(sh)?;
    let program = std::env::current_exe()?;
    let help = cmd!(sh, "{program} --help").quiet().read()?;
    let files: Vec<PathBuf> = texts.iter().map(|(name, _)| PathBuf::from(name)).collect();
    for (name, text) in &texts {
        count += 1;
        let mut found = text_faults(name, text);
        found.extend(vendor_faults(name, text));
        if name.ends_with(".rs") {
            lines += text.lines().count();
        }
        if name.ends_with(".md") || name == ".ci/run" {
            found.extend(command_faults(&help, text));
            documents.push_str(text);
        }
        if name.ends_with(".md") {
            found.extend(name_faults(&root, &files, Path::new(name).parent().unwrap_or(Path::new("")), text));
        }
        faults.extend(found.into_iter().map(|fault| format!("{name}{fault}")));
    }
    faults.extend(types::faults(pairs(&texts)));
    let metadata = project::members()?;
    faults.extend(package_faults(&metadata, &documents));
    for (name, text) in texts.iter().filter(|(name, _)| FEATURE_TABLES.contains(&name.as_str())) {
        let array = metadata.workspace_packages().into_iter().find(|package| package.name == "vmarray");
        faults.extend(
            array
                .map(|array| feature_faults(&array.features, text))
                .into_iter()
                .flatten()
                .map(|fault| format!("{name}: {fault}")),
        );
    }
    faults.extend(crate::bench::page::faults()?);
    let budget = language::Budget::read()?;
    let words = budget.count(pairs(&texts))?;
    faults.extend(budget.faults(&words));
    let (allowed, (structure, _)) = (structure::Budget::read()?, structure::Budget::measured(pairs(&texts)));
    faults.extend(allowed.faults(&structure));
    if !faults.is_empty() {
        bail!("{} faults\n{}", faults.len(), faults.join("\n"));
    }
    let (sizes, slack) = (structure.sizes(), budget.slack(&words) + &allowed.slack(&structure));
    Ok(Outcome::Passed(format!("{count} files, {lines} lines of Rust{sizes}{slack}")))
}

/// Checks one file's text: returns its faults, each as `:line: fault`.
fn text_faults(name: &str, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    if !text.is_empty() && !text.ends_with('\n') {
        faults.push(": does not end with a line end".to_string());
    }
    if !SOURCE.is_match(name) && !name.ends_with(".sh") && name != ".ci/run" {
        return faults;
    }
    if text.ends_with("\n\n") {
        faults.push(": ends with an empty line".to_string());
    }
    let mut is_code = false;
    for (number, line) in (1..).zip(text.split_terminator('\n')) {
        let mut fault = |what: &str| faults.push(format!(":{number}: {what}"));
        if line.ends_with([' ', '\t', '\r']) {
            fault("ends with a blank");
        }
        if let Some(path) = MACHINE_PATH.captures(line) {
            fault(&format!("path of a machine: {}", &path[1]));
        }
        let (trimmed, width) = (line.trim_start(), line.chars().count());
        if name.ends_with(".rs") {
            is_code ^= trimmed.get(4..).is_some_and(|text| text.starts_with("```"));
            let is_row = trimmed.starts_with("/// |") || trimmed.starts_with("//! |");
            let most = if is_code { PROSE_MAX } else { WIDTH_MAX };
            if trimmed.starts_with("//") && !is_row && width > most {
                fault(&format!("longer than {most} characters"));
            }
            if let Some(word) = LEFTOVER.find(line) {
                fault(&format!("{}…) is left", word.as_str()));
            }
        } else if name.ends_with(".md") {
            is_code ^= trimmed.starts_with("```");
            // Rows of tables, pictures and links may be longer, because they cannot be broken.
            let is_prose = !is_code && !trimmed.starts_with(['|', '<', '[']) && trimmed.contains(' ');
            if is_prose && width > PROSE_MAX {
                fault(&format!("longer than {PROSE_MAX} characters"));
            }
        }
    }
    if let Some(path) = name.strip_prefix("vmarray/src/") {
        faults.extend(layer_faults(path, text));
    }
    faults
}

/// Returns the lines of a library file before its tests; none for a file of tests.
fn lines_without_tests<'a>(path: &str, text: &'a str) -> impl Iterator<Item = (usize, &'a str)> {
    let is_test = circles::is_test(path);
    (1..).zip(text.lines()).take_while(move |(_, line)| {
        !is_test && !line.starts_with("#[cfg(test)]") && !line.starts_with("#[cfg(all(test")
    })
}

/// Finds code lines of array and engine that name a vendor's interface or query a backend's name, instead of
/// asking a device for a capability. Exempt are the selection of backends, the list of public modules, and
/// the names of OpenCL C, the language of generated kernels.
fn vendor_faults(name: &str, text: &str) -> Vec<String> {
    let array = name.strip_prefix("vmarray/src/");
    let is_exempt =
        |path: &str| ["setup/", "setup.rs", "facade.rs"].iter().any(|start| path.starts_with(start));
    let is_bound = name.starts_with("vmarray/engine/src/") || array.is_some_and(|path| !is_exempt(path));
    if !is_bound || !name.ends_with(".rs") {
        return Vec::new();
    }
    let code = lines_without_tests(name, text).filter(|(_, line)| !line.trim_start().starts_with("//"));
    let code = code.map(|(number, line)| (number, line.replace("OpenClC", "").replace("opencl_c", "")));
    let named = code.filter(|(_, line)| VENDOR.is_match(line));
    named.map(|(number, _)| format!(":{number}: names a vendor; ask the device for a capability")).collect()
}

/// Finds lines of a library file that use a folder after its own in [`LAYERS`], or a module after its own in
/// [`OPERATIONS`].
fn layer_faults(path: &str, text: &str) -> Vec<String> {
    let layer_of = |name: &str| LAYERS.iter().position(|layer| *layer == name);
    let group_of = |name: &str| OPERATIONS.iter().position(|group| group.contains(&name));
    let mut names = path.split(['/', '.']);
    let (first, second) = (names.next().unwrap_or_default(), names.next().unwrap_or_default());
    let Some(own) = layer_of(first) else { return Vec::new() };
    let own_group = group_of(second).filter(|_| first == "ops");
    let mut faults = Vec::new();
    let mut before = "";
    for (number, line) in lines_without_tests(path, text) {
        let is_text = line.trim_start().starts_with("//") || before == "#[cfg(doc)]";
        before = line;
        for name in MODULE.captures_iter(line).filter(|_| !is_text) {
            if layer_of(&name[1]).is_some_and(|layer| layer > own) {
                faults.push(format!(":{number}: {} must not use {}", LAYERS[own], &name[1]));
            }
            let module = name.get(2).map(|module| module.as_str()).filter(|_| &name[1] == "ops");
            if let (Some(own_group), Some(module)) = (own_group, module)
                && group_of(module).is_some_and(|group| group > own_group)
            {
                faults.push(format!(":{number}: ops/{second} must not use ops/{module}"));
            }
        }
    }
    faults
}

/// Finds commands `cargo xtask NAME` that the program's help does not list, each as `:line: fault`.
fn command_faults(help: &str, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let is_known = |name: &str| HELP.captures_iter(help).any(|command| command[1] == *name);
        for name in COMMAND.captures_iter(line).filter(|name| !is_known(&name[1])) {
            faults.push(format!(":{number}: there is no `cargo xtask {}`", &name[1]));
        }
    }
    faults
}

/// Finds paths in backticks that do not exist. Returns each as `:line: fault`.
///
/// A name counts as a path if its first part exists (seen from the root or the document), or if it ends like
/// a source file. The last part of an existing path suffices.
fn name_faults(root: &Path, files: &[PathBuf], folder: &Path, text: &str) -> Vec<String> {
    let exists = |path: &str| root.join(path).exists() || root.join(folder).join(path).exists();
    let mut faults = Vec::new();
    let mut fenced = false;
    for (number, line) in (1..).zip(text.lines()) {
        fenced ^= line.trim_start().starts_with("```");
        for name in PATH.captures_iter(line).filter(|_| !fenced) {
            let name = &name[1];
            let first = name.split('/').next().unwrap_or_default();
            let like_ours = exists(first) || SOURCE.is_match(name);
            let made_later = ["target", "dist", "logs"].contains(&first);
            let known = exists(name) || files.iter().any(|file| file.ends_with(name));
            if like_ours && !made_later && !known {
                faults.push(format!(":{number}: there is no `{name}`"));
            }
        }
    }
    faults
}

/// Finds faults of the manifests, and examples and benchmarks that no document mentions.
fn package_faults(metadata: &Metadata, documents: &str) -> Vec<String> {
    let mut faults = Vec::new();
    for package in project::published(metadata) {
        let name = &package.name;
        if package.description.is_none() || package.license.is_none() {
            faults.push(format!("{name}: is published and states no description or no licence"));
        }
        if !package.readme().is_some_and(|readme| readme.is_file()) {
            faults.push(format!("{name}: is published and has no README"));
        }
    }
    for package in metadata.workspace_packages() {
        let shown = package.targets.iter().filter(|target| target.is_example() || target.is_bench());
        for target in shown.filter(|target| !documents.contains(&target.name)) {
            faults.push(format!("{}: no document mentions `{}`", package.name, target.name));
        }
    }
    faults
}

/// Compares a table of features with the manifest: finds missing and unknown features, and wrong defaults.
fn feature_faults(features: &BTreeMap<String, Vec<String>>, text: &str) -> Vec<String> {
    let defaults = features.get("default");
    let is_default = |name: &String| defaults.is_some_and(|defaults| defaults.contains(name));
    let expected: BTreeMap<&str, bool> = features
        .keys()
        .filter(|name| *name != "default")
        .map(|name| (name.as_str(), is_default(name)))
        .collect();
    let rows = FEATURE.captures_iter(text).map(|row| row.extract().1);
    let listed: BTreeMap<&str, bool> = rows.map(|[name, default]| (name, default == "yes")).collect();
    let mut faults = Vec::new();
    for (name, default) in &expected {
        match listed.get(name) {
            None => faults.push(format!("the table of features lacks `{name}`")),
            Some(listed) if listed != default => {
                faults.push(format!("the table of features has the wrong default for `{name}`"));
            }
            Some(_) => {}
        }
    }
    let unknown = listed.keys().filter(|name| !expected.contains_key(*name));
    faults.extend(unknown.map(|name| format!("the table of features names `{name}`, which does not exist")));
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_features() {
        let features = [("default", vec!["a".to_string()]), ("a", vec![]), ("b-c", vec![])];
        let features = features.map(|(name, on)| (name.to_string(), on)).into_iter().collect();
        let rows =
            |rows: &[&str]| rows.iter().map(|row| format!("//! | {row} | text |\n")).collect::<String>();
        assert!(feature_faults(&features, &rows(&["`a` | yes", "`b-c` | no"])).is_empty());
        assert_eq!(feature_faults(&features, &rows(&["`a` | no", "`d` | no"])).len(), 3);
    }

    #[test]
    fn faults_of_a_text() {
        let wide = |begin: &str, chars: usize| format!("{begin}{}\n", "é".repeat(chars - begin.len()));
        let prose = |begin: &str| format!("{begin}{}é\n", "é ".repeat(PROSE_MAX / 2));
        let leftover = |word: &str| format!("    {word}!()\n");
        let path = |folder: &str| format!("cd \"/{folder}/me/x\"\n");
        for (name, text, faults) in [
            ("a.rs", "fn main() {}\n".into(), 0),
            ("a.rs", String::new(), 0),
            ("a.rs", "fn main() {}".into(), 1),
            ("a.rs", "a \nb\t\nc\r\n".into(), 3),
            ("a.md", "a\n\n".into(), 1),
            ("a.rs", wide("//", WIDTH_MAX), 0),
            ("a.rs", wide("//", WIDTH_MAX + 1), 1),
            ("a.rs", wide("", WIDTH_MAX + 1), 0),
            ("a.rs", wide("    /// | ", WIDTH_MAX + 9), 0),
            ("a.md", prose(""), 1),
            ("a.md", prose("| "), 0),
            ("a.md", format!("```text\n{}```\n", prose("")), 0),
            ("a.rs", ["todo", "dbg", "unimplemented"].map(leftover).concat(), 3),
            ("a.sh", ["home", "tmp"].map(path).concat(), 2),
            ("a.sh", "src/home/page.rs and /homework/x and a/tmp/b\n".into(), 0),
            ("data.bin", "x \n".into(), 0),
        ] {
            let found = text_faults(name, &text);
            assert_eq!(found.len(), faults, "{name}: {text}{found:?}");
        }
    }

    #[test]
    fn names_of_vendors_are_found() {
        let text = "/// On CUDA.\nuse backend_api::CodeLanguage::OpenClC;\n\
            #[cfg(feature = \"opencl\")]\nfn takes_opencl() -> bool {\n    device.info().backend == name\n}\n\
            fn text(code: Code) {\n    let texts = vec![\"Cuda\", code.opencl_c(text)];\n}\n\
            #[cfg(test)]\nmod tests {\n    use crate::opencl::OpenClDevice;\n}\n";
        let lines =
            |name: &str| vendor_faults(name, text).iter().map(|fault| fault[1..2].to_string()).collect();
        let found: Vec<String> = lines("vmarray/src/ops/sort.rs");
        assert_eq!(found, ["3", "4", "5", "8"]);
        for exempt in ["vmarray/src/setup/any.rs", "vmarray/src/facade.rs", "vmarray/src/ops/tests.rs"] {
            assert!(vendor_faults(exempt, text).is_empty(), "{exempt}");
        }
        assert_eq!(vendor_faults("vmarray/engine/src/error.rs", text).len(), 4);
    }

    #[test]
    fn folders_use_earlier_folders_only() {
        assert!(layer_faults("array/range.rs", "use crate::engine::page;\n").is_empty());
        assert!(layer_faults("array/range.rs", "// crate::ops\n#[cfg(doc)]\nuse crate::ops;\n").is_empty());
        assert_eq!(layer_faults("engine.rs", "use crate::array::range;\n").len(), 1);
        assert!(layer_faults("engine/pager.rs", "#[cfg(test)]\nuse crate::array::range;\n").is_empty());
        assert!(layer_faults("engine/pager/tests.rs", "use crate::array::range;\n").is_empty());
        assert!(layer_faults("ops/sort.rs", "use crate::ops::view::View;\n").is_empty());
        assert_eq!(layer_faults("ops/view/store.rs", "use crate::ops::sort::sort;\n").len(), 1);
    }

    #[test]
    fn names_that_do_not_exist() {
        let commands = |text: &str| command_faults("Commands:\n  demo       Runs\n  test-host  Runs\n", text);
        assert!(commands("`cargo xtask demo --fasta x`, cargo xtask test-host\n").is_empty());
        assert!(commands("every `cargo xtask …` and `cargo xtask --help`\n").is_empty());
        assert_eq!(commands("\nthen cargo xtask dance\n"), [":2: there is no `cargo xtask dance`"]);
        let files = [PathBuf::from("xtask/demo/src/letters.rs")];
        let faults = |text: &str| name_faults(&project::root(), &files, Path::new("xtask/demo/data"), text);
        assert!(faults("`src/letters.rs`, `xtask/src/main.rs`, `xtask/demo/data/`, `data/x`\n").is_empty());
        assert!(faults("`README.md`, `a/b`, `dist/bundle`\n```\n`xtask/src/gone.rs`\n```\n").is_empty());
        assert_eq!(faults("see `emo/letters.rs`\n").len(), 1);
        assert_eq!(faults("\nsee `xtask/src/gone.rs`\n"), [":2: there is no `xtask/src/gone.rs`"]);
    }
}
