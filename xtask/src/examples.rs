//! `cargo xtask examples`: checks that each public item of the published crates has an example in its
//! documentation, that rustdoc prints no warning, and that the public API equals its record in `docs/api`.
//!
//! The command only checks that examples exist; `cargo test --doc` compiles and runs them. A function must
//! occur in an example of its own, of its type, trait or module, or of a function of the same name to which
//! its documentation links. Functions of the crates in [`TYPES_ALONE`] need no example. Rustdoc's JSON, which
//! is unstable, lists the public items.

use crate::api::Records;
use crate::project;
use crate::steps::Outcome;
use anyhow::{Context, Result, bail};
use cargo_metadata::camino::Utf8Path;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::{HashMap, HashSet};
use xshell::{Shell, cmd};

/// Crates for authors of backends and macros: only their types, traits and modules need examples.
const TYPES_ALONE: [&str; 3] = ["vmarray-backend-api", "vmarray-kernel", "vmarray-support"];

/// Options of `cargo xtask examples`.
#[derive(clap::Args)]
pub struct Args {
    /// Records the public API in docs/api, which the command otherwise compares with the present one.
    #[arg(long)]
    record: bool,
}

/// Runs `cargo xtask examples`.
pub fn run(args: &Args) -> Result<()> {
    judge(&project::shell()?, args.record)?.print();
    Ok(())
}

/// Checks that public items have examples, and that the public API matches its record. The error lists the
/// items without an example, or the differences.
pub fn check(sh: &Shell) -> Result<Outcome> {
    judge(sh, false)
}

fn judge(sh: &Shell, record: bool) -> Result<Outcome> {
    let metadata = project::members()?;
    let _rustdoc = with_unstable_options(sh, &metadata.target_directory)?;
    // Use one command for all crates, so that cargo runs several at a time.
    let _flags = sh.push_env("RUSTDOCFLAGS", "-D warnings -Zunstable-options --output-format json");
    cmd!(sh, "cargo doc --quiet --workspace --no-deps --all-features").run()?;
    let (mut items, mut crates, mut faults) = (0, 0, Vec::new());
    let mut records = Records::default();
    for package in project::published(&metadata) {
        let Some(library) = package.targets.iter().find(|target| target.is_lib()) else { continue };
        let name = package.name.as_str();
        crates += 1;
        let path = metadata.target_directory.join("doc").join(library.name.replace('-', "_") + ".json");
        let json = std::fs::read_to_string(&path).with_context(|| path.to_string())?;
        let documentation = serde_json::from_str(&json).context("rustdoc's JSON has an unknown form")?;
        let walk = Walk::of(&documentation, TYPES_ALONE.contains(&name));
        items += walk.items;
        faults.extend(walk.faults);
        records.add(name, &path)?;
    }
    if !faults.is_empty() {
        bail!(
            "{} of {items} public items have faults in their documentation:\n{}",
            faults.len(),
            faults.join("\n")
        );
    }
    records.settle(sh, record)?;
    Ok(Outcome::Passed(format!("{items} public items of {crates} crates")))
}

/// Permits rustdoc unstable options on the stable compiler. If cargo had the variable, cargo would compile
/// nearly all dependencies anew, and once more without the variable.
fn with_unstable_options<'a>(sh: &'a Shell, folder: &Utf8Path) -> Result<xshell::PushEnv<'a>> {
    const VARIABLE: &str = "RUSTC_BOOTSTRAP";
    if cfg!(not(unix)) {
        return Ok(sh.push_env(VARIABLE, "1"));
    }
    let script = folder.join("rustdoc-unstable");
    sh.write_file(&script, format!("#!/bin/sh\n{VARIABLE}=1 exec rustdoc \"$@\"\n"))?;
    cmd!(sh, "chmod +x {script}").quiet().run()?;
    Ok(sh.push_env("RUSTDOC", script))
}

/// The used part of rustdoc's JSON. Its format changes now and then, but these fields have not changed yet.
#[derive(Deserialize)]
struct Documentation {
    root: Value,
    index: HashMap<String, Item>,
}

#[derive(Deserialize)]
struct Item {
    /// The crate of the item; 0 for the documented crate itself.
    crate_id: u32,
    name: Option<String>,
    docs: Option<String>,
    /// The items to which the documentation links.
    #[serde(default)]
    links: HashMap<String, Value>,
    visibility: Value,
    span: Option<Span>,
    /// The kind of the item, and the fields of this kind.
    inner: Map<String, Value>,
}

#[derive(Deserialize)]
struct Span {
    filename: String,
    begin: (usize, usize),
}

/// A search through all items that users of a crate can name.
struct Walk<'a> {
    index: &'a HashMap<String, Item>,
    seen: HashSet<String>,
    items: usize,
    faults: Vec<String>,
    /// True if functions of this crate need no example.
    types_alone: bool,
}

impl<'a> Walk<'a> {
    fn of(documentation: &'a Documentation, types_alone: bool) -> Self {
        let index = &documentation.index;
        let mut walk = Self { index, seen: HashSet::new(), items: 0, faults: Vec::new(), types_alone };
        walk.visit(&documentation.root, "", None, "");
        walk
    }

    fn visit_all(&mut self, ids: &Value, path: &str, around: &str) {
        for id in ids.as_array().into_iter().flatten() {
            self.visit(id, path, None, around);
        }
    }

    /// Checks an item and its contents. `path` is the module path, `alias` the item's name there if it may
    /// differ, and `around` the documentation of the parent.
    fn visit(&mut self, id: &Value, path: &str, alias: Option<&str>, around: &str) {
        let id = id.as_str().map_or_else(|| id.to_string(), str::to_owned);
        // Skip items of other crates, and items that the walk has already reached.
        let Some(item) = self.index.get(&id).filter(|item| item.crate_id == 0) else { return };
        let Some((kind, inner)) = item.inner.iter().next() else { return };
        if !self.seen.insert(id) {
            return;
        }
        let own = item.docs.as_deref().unwrap_or_default();
        let parts = [path, alias.or(item.name.as_deref()).unwrap_or_default()];
        let path = parts.iter().filter(|part| !part.is_empty()).copied().collect::<Vec<_>>().join("::");
        match kind.as_str() {
            "module" => self.visit_all(&inner["items"], &path, own),
            // Pass an empty name for a glob import, which adds no module to the path that users see.
            "use" if inner["is_glob"] == true => self.visit(&inner["id"], &path, Some(""), around),
            "use" => self.visit(&inner["id"], &path, inner["name"].as_str(), around),
            // Skip implementations of traits, because the trait documents its methods.
            "impl" if inner["trait"].is_null() => self.visit_all(&inner["items"], &path, around),
            "impl" | "variant" | "struct_field" | "assoc_type" | "assoc_const" => {}
            _ => {
                self.judge(item, kind, &path, around);
                self.visit_all(&inner["impls"], &path, own);
                self.visit_all(&inner["items"], &path, own);
            }
        }
    }

    /// Returns true if the documentation links to a function of the same name whose example shows it,
    /// directly or over further links.
    fn is_shown_elsewhere(&self, item: &Item, depth: usize) -> bool {
        const DEPTH_MAX: usize = 4;
        let name = item.name.as_deref().unwrap_or_default();
        let ids = item.links.values().map(|id| id.as_str().map_or_else(|| id.to_string(), str::to_owned));
        let mut linked = ids.filter_map(|id| self.index.get(&id)).filter(|other| other.name == item.name);
        depth < DEPTH_MAX
            && linked.any(|other| {
                let examples = examples(other.docs.as_deref().unwrap_or_default());
                examples.iter().any(|example| mentions(example, name))
                    || self.is_shown_elsewhere(other, depth + 1)
            })
    }

    fn judge(&mut self, item: &Item, kind: &str, path: &str, around: &str) {
        // Skip private items. Items of traits are `default`: as public as the trait.
        if item.visibility != "public" && item.visibility != "default" {
            return;
        }
        self.items += 1;
        let examples = examples(item.docs.as_deref().unwrap_or_default());
        let is_called = matches!(kind, "function" | "macro");
        if kind == "function" && self.types_alone {
            return;
        }
        let name = item.name.as_deref().unwrap_or_default();
        let mentioned = |examples: &[String]| examples.iter().any(|example| mentions(example, name));
        let is_shown = is_called && (mentioned(&self::examples(around)) || self.is_shown_elsewhere(item, 0));
        let fault = if is_shown {
            return;
        } else if examples.is_empty() {
            "has no example that runs"
        } else if is_called && !mentioned(&examples) {
            "is not in its example"
        } else {
            return;
        };
        let place = match &item.span {
            Some(span) => format!("{}:{}", span.filename, span.begin.0),
            None => "somewhere".to_owned(),
        };
        self.faults.push(format!("{place}: {kind} `{path}` {fault}"));
    }
}

/// Returns the lines of all examples in a documentation that rustdoc runs, except for hidden lines.
fn examples(docs: &str) -> Vec<String> {
    let mut examples = Vec::new();
    let mut lines = docs.lines().map(str::trim);
    while let Some(line) = lines.next() {
        let Some(words) = line.strip_prefix("```") else { continue };
        let block = lines.by_ref().take_while(|line| !line.starts_with("```"));
        let shown: Vec<&str> = block.filter(|line| *line != "#" && !line.starts_with("# ")).collect();
        if is_run(words) {
            examples.push(shown.join("\n"));
        }
    }
    examples
}

/// Returns true if rustdoc runs a block with these words behind the backticks of its first line.
fn is_run(words: &str) -> bool {
    let known = |word: &str| matches!(word, "rust" | "should_panic") || word.starts_with("edition");
    words.split([',', ' ']).map(str::trim).all(|word| word.is_empty() || known(word))
}

fn mentions(example: &str, name: &str) -> bool {
    example.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// The links of a documentation, as text to item: `[17]` links to item 17.
    fn links(docs: &str) -> Value {
        let ids = docs.split('[').skip(1).filter_map(|rest| rest.split(']').next()?.parse::<u32>().ok());
        ids.map(|id| (id.to_string(), json!(id))).collect::<Map<_, _>>().into()
    }

    /// Checks a crate with items given as (number, name, documentation, inner); number 0 is its root.
    fn faults(items: &[(u32, &str, &str, Value)], types_alone: bool) -> (usize, Vec<String>) {
        let index: Map<String, Value> = items
            .iter()
            .map(|(id, name, docs, inner)| {
                let crate_id = u32::from(*name == "foreign");
                let name = if name.is_empty() { Value::Null } else { json!(name) };
                let item = json!({
                    "crate_id": crate_id, "name": name, "docs": docs, "visibility": "public", "inner": inner,
                    "links": links(docs),
                    "span": { "filename": "lib.rs", "begin": [id, 1], "end": [id, 2] },
                });
                (id.to_string(), item)
            })
            .collect();
        let documentation = serde_json::from_value(json!({ "root": 0, "index": index })).unwrap();
        let walk = Walk::of(&documentation, types_alone);
        (walk.items, walk.faults)
    }

    #[test]
    fn public_names_need_an_example() {
        let method = || json!({ "function": {} });
        let items = [
            (0, "krate", "", json!({ "module": { "items": [1, 12] } })),
            (1, "", "", json!({ "use": { "name": "facade", "id": 2, "is_glob": true } })),
            (2, "facade", "", json!({ "module": { "items": [3, 4, 13] } })),
            (3, "", "", json!({ "use": { "name": "Renamed", "id": 5, "is_glob": false } })),
            (4, "", "", json!({ "use": { "name": "foreign", "id": 6, "is_glob": false } })),
            (5, "Original", "```\nOriginal.with_type()\n```", json!({ "struct": { "impls": [7, 8] } })),
            (6, "foreign", "", json!({ "struct": { "impls": [] } })),
            (7, "", "", json!({ "impl": { "trait": null, "items": [9, 10, 15, 16, 17] } })),
            (8, "", "", json!({ "impl": { "trait": { "path": "Clone" }, "items": [11] } })),
            (9, "shown", "Text.\n\n```\nx.shown();\n```", method()),
            (10, "bare", "Text.", method()),
            (15, "with_type", "Text.", method()),
            (16, "shown", "Short for [9].", method()),
            (17, "bare", "See [10] and [17].", method()),
            (11, "clone", "", method()),
            (12, "Contract", "", json!({ "trait": { "items": [14] } })),
            (13, "", "", json!({ "use": { "name": "Again", "id": 5, "is_glob": false } })),
            (14, "call", "```\n# call();\nother();\n```", method()),
        ];
        let (count, found) = faults(&items, false);
        assert_eq!(count, 8);
        assert_eq!(
            found,
            [
                "lib.rs:10: function `krate::Renamed::bare` has no example that runs",
                "lib.rs:17: function `krate::Renamed::bare` has no example that runs",
                "lib.rs:12: trait `krate::Contract` has no example that runs",
                "lib.rs:14: function `krate::Contract::call` is not in its example",
            ]
        );
        assert_eq!(faults(&items, true).1, ["lib.rs:12: trait `krate::Contract` has no example that runs"]);
    }

    #[test]
    fn only_shown_code_that_runs_is_an_example() {
        for words in ["", "rust", "should_panic, edition2024"] {
            assert_eq!(examples(&format!("Text.\n```{words}\n# hidden();\n#\nshown();\n```")), ["shown();"]);
        }
        for words in ["text", "ignore", "no_run", "compile_fail"] {
            assert!(examples(&format!("```{words}\na\n```")).is_empty());
        }
        assert!(mentions("let x = page.len();", "len"));
        assert!(!mentions("let x = page.length(); page_len()", "len"));
    }
}
