//! Generator of BENCHMARKS.md and its plots from the records in docs/benchmarks.
//!
//! `topics.toml` selects the rows and gives them titles. The value of a row comes from the newest record that
//! has the row. `gaps.md` holds the text after the tables.

use super::plot;
use super::record::{Measurements, Role, Row, digits};
use crate::project;
use anyhow::{Context, Result, bail};
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// The folder of the records, of the selection of rows, and of the plots.
const FOLDER: &str = "docs/benchmarks";
/// The path of the generated page.
const PAGE: &str = "BENCHMARKS.md";
/// The text above the tables.
const OPENING: &str = "# Benchmarks

`cargo xtask report` makes this page and its plots from the records in `docs/benchmarks/records`. A run of
`cargo xtask bench --record`, or of `on_card.py --record` in `vmarray/python/benches`, adds a record. Older
tables and their discussion are in `docs/benchmarks/history.md`.

*Ours* is a median; ± is half of the distance between the lowest and the highest repetition, if the record has
them. The columns of ratios hold the speed of ours divided by the speed of the fastest peer, and by the limit of
the hardware, measured in the same run. Above 1 ours is faster. GB = 10^9 bytes. Machines are noisy: trust ratios,
to about ten per cent.
";

/// The contents of `topics.toml`.
#[derive(Deserialize)]
struct Selection {
    plot: Vec<Plot>,
    topic: Vec<Topic>,
}

/// A plot of the contenders of some rows.
#[derive(Deserialize)]
struct Plot {
    /// The name of the plot's file.
    file: String,
    /// A sentence about the plot, shown if the plot itself is not.
    title: String,
    /// The rows, one panel each, and their titles.
    rows: Vec<(String, String)>,
}

/// A table of the page.
#[derive(Deserialize)]
struct Topic {
    title: String,
    /// A sentence about all rows.
    #[serde(default)]
    about: String,
    /// Names of rows, and their descriptions in the table.
    rows: Vec<(String, String)>,
}

/// All records, the newest one first.
struct Records(Vec<Measurements>);

impl Records {
    fn read(folder: &Path) -> Result<Self> {
        let mut all: Vec<(PathBuf, Measurements)> = Vec::new();
        let entries = folder.read_dir().with_context(|| format!("{} cannot be read", folder.display()))?;
        for entry in entries {
            let path = entry?.path();
            all.push((path.clone(), Measurements::read(&path)?));
        }
        // Sort records from new to old; order records of one day by file name.
        all.sort_by(|(path, a), (other, b)| (b.fact("date"), other).cmp(&(a.fact("date"), path)));
        Ok(Self(all.into_iter().map(|(_, record)| record).collect()))
    }

    /// Returns the newest row of this name, and the number of its record.
    fn row(&self, name: &str) -> Result<(&Row, usize)> {
        let find = |record: &'_ Measurements| record.rows.iter().position(|row| row.name == name);
        let found = self.0.iter().enumerate().find_map(|(number, record)| Some((number, find(record)?)));
        let (number, row) = found.with_context(|| format!("no record has the row {name:?}"))?;
        Ok((&self.0[number].rows[row], number))
    }
}

/// Writes BENCHMARKS.md and its plots.
pub fn write() -> Result<()> {
    for (path, text) in files()? {
        std::fs::write(&path, text).with_context(|| format!("{} cannot be written", path.display()))?;
        println!("{}", path.display());
    }
    Ok(())
}

/// Returns a message for each file (BENCHMARKS.md or a plot) that differs from newly generated text.
pub fn faults() -> Result<Vec<String>> {
    let mut faults = Vec::new();
    for (path, text) in files()? {
        if std::fs::read_to_string(&path).ok().is_none_or(|present| present != text) {
            let name = path.strip_prefix(project::root()).unwrap_or(&path).display().to_string();
            faults.push(format!("{name} differs from the records; run `cargo xtask report`"));
        }
    }
    Ok(faults)
}

/// Returns the path of a new record; its name contains the date and properties of the run.
#[cfg(feature = "array")]
pub fn record_path(run: &Measurements) -> PathBuf {
    let device: String = run.fact("devices").chars().take_while(|c| !"(,".contains(*c)).collect();
    let words: Vec<String> = device.split_whitespace().map(str::to_lowercase).collect();
    let name = format!("{}-{}.json", run.fact("date").replace(':', ""), words.join("-"));
    project::root().join(FOLDER).join("records").join(name)
}

/// Generates the page and its plots: returns paths and contents.
fn files() -> Result<Vec<(PathBuf, String)>> {
    let root = project::root();
    let folder = root.join(FOLDER);
    let text = |name: &str| {
        let path = folder.join(name);
        std::fs::read_to_string(&path).with_context(|| format!("{} cannot be read", path.display()))
    };
    let selection: Selection = toml::from_str(&text("topics.toml")?).context("topics.toml")?;
    let records = Records::read(&folder.join("records"))?;
    let mut files = vec![(root.join(PAGE), page(&selection, &records, &text("gaps.md")?)?)];
    for plot in &selection.plot {
        files.push((folder.join(&plot.file), bars(plot, &records)?));
    }
    files.push((folder.join("shares.svg"), shares(&selection, &records)?));
    Ok(files)
}

/// Generates the page: plots, a table for each topic, the list of runs, and `gaps`.
fn page(selection: &Selection, records: &Records, gaps: &str) -> Result<String> {
    let mut page = OPENING.to_string();
    for plot in &selection.plot {
        page += &format!("\n![{}]({FOLDER}/{})\n", plot.title, plot.file);
    }
    page += &format!("\n![Speed as a share of the limit of the hardware]({FOLDER}/shares.svg)\n");
    let mut runs: Vec<usize> = Vec::new();
    for topic in &selection.topic {
        page += &format!("\n## {}\n\n", topic.title);
        if !topic.about.is_empty() {
            page += &format!("{}\n\n", topic.about);
        }
        page += "| work | ours | peers | limit | to the fastest peer | to the limit | run |\n";
        page += "|---|---|---|---|---|---|---|\n";
        for (name, words) in &topic.rows {
            let (row, record) = records.row(name)?;
            let run = runs.iter().position(|run| *run == record).unwrap_or_else(|| {
                runs.push(record);
                runs.len() - 1
            });
            page += &line(row, words, run + 1)?;
        }
    }
    page += "\n## Runs\n\n| run | date | machine | commit | command |\n|---|---|---|---|---|\n";
    for (number, run) in (1..).zip(&runs) {
        page += &described(&records.0[*run], number);
    }
    Ok(page + "\n" + gaps)
}

/// Generates a line of a topic's table.
fn line(row: &Row, words: &str, run: usize) -> Result<String> {
    let Some(base) = row.base() else { bail!("the row {:?} has no measurement of the array", row.name) };
    let unit = row.unit.symbol();
    let others = |role: Role| -> String {
        let of_role = row.entries.iter().filter(|entry| entry.role == role);
        let shown = of_role.map(|entry| {
            let version = entry.version.as_deref().map(|version| format!(" ({version})")).unwrap_or_default();
            format!("{}{version}: {}", entry.name, digits(entry.summary.median))
        });
        shown.collect::<Vec<_>>().join("; ")
    };
    let peers = row.ratios().filter(|(entry, _)| entry.role == Role::Alternative).map(|(_, ratio)| ratio);
    let to_peer = peers.min_by(f64::total_cmp).map(digits).unwrap_or_default();
    let to_limit = row.share_of_limit().map(digits).unwrap_or_default();
    let spread = match base.summary.runs {
        0 | 1 => String::new(),
        _ => format!(" ± {:.0} %", 50.0 * base.summary.spread()),
    };
    let (ours, peers, limit) = (digits(base.summary.median), others(Role::Alternative), others(Role::Limit));
    Ok(format!("| {words} | {ours} {unit}{spread} | {peers} | {limit} | {to_peer} | {to_limit} | {run} |\n"))
}

/// Generates a line of the table of runs.
fn described(run: &Measurements, number: usize) -> String {
    let known = |name: &str| match run.fact(name) {
        "unknown" => String::new(),
        fact => fact.to_string(),
    };
    let mut machine = match run.fact("machine") {
        "unknown" => format!("{}; {}, {} threads", known("devices"), known("processor"), known("threads")),
        machine => machine.to_string(),
    };
    if !known("note").is_empty() {
        machine += &format!(" ({})", known("note"));
    }
    let (date, command) = (known("date"), known("command"));
    let day = date.split('T').next().unwrap_or_default();
    format!("| {number} | {day} | {machine} | {} | `{command}` |\n", known("commit"))
}

/// Draws a plot of bars, with one panel for each row.
fn bars(plot: &Plot, records: &Records) -> Result<String> {
    let mut panels = Vec::new();
    for (name, title) in &plot.rows {
        let (row, _) = records.row(name)?;
        let bars = row.entries.iter().map(|entry| {
            let name = if entry.role == Role::Ours { "vmarray" } else { &entry.name };
            (name.to_string(), entry.summary.median, entry.role)
        });
        panels.push(plot::Panel {
            title: format!("{title}, {}", row.unit.symbol()),
            bars: bars.collect(),
            is_logarithmic: true,
        });
    }
    Ok(plot::svg(&panels))
}

/// Draws a plot of each row's share of the hardware limit.
fn shares(selection: &Selection, records: &Records) -> Result<String> {
    let mut panels = Vec::new();
    for topic in &selection.topic {
        let mut bars = Vec::new();
        for (name, words) in &topic.rows {
            let (row, _) = records.row(name)?;
            bars.extend(row.share_of_limit().map(|share| (words.replace('`', ""), share, Role::Ours)));
        }
        if !bars.is_empty() {
            let title = format!("{}: share of the limit", topic.title);
            panels.push(plot::Panel { title, bars, is_logarithmic: false });
        }
    }
    Ok(plot::svg(&panels))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::record::{Effort, Entry, Summary, Unit};

    fn record(date: &str, ours: f64) -> Measurements {
        let entry = |name: &str, role, median, runs| Entry {
            name: name.into(),
            version: (name == "rdst").then(|| "0.20".into()),
            role,
            summary: Summary { median, low: median * 0.9, high: median * 1.1, runs },
        };
        let mut row = Row::new("sort/u32".into(), Unit::GigaPerSecond, Effort::default());
        row.entries = vec![
            entry("ours", Role::Ours, ours, 5),
            entry("rayon", Role::Alternative, 1.0, 0),
            entry("rdst", Role::Alternative, 2.0, 0),
            entry("kernel", Role::Limit, 10.0, 0),
        ];
        let facts = [("date", date), ("machine", "a card"), ("command", "cargo xtask bench")];
        let about = facts.map(|(name, value)| (name.to_string(), value.to_string())).into();
        Measurements { about, rows: vec![row] }
    }

    fn selection(name: &str) -> Selection {
        let rows = vec![(name.to_string(), "sort of `u32`".to_string())];
        let topic = Topic { title: "Order".into(), about: "Keys.".into(), rows: rows.clone() };
        Selection {
            plot: vec![Plot { file: "a.svg".into(), title: "A plot".into(), rows }],
            topic: vec![topic],
        }
    }

    #[test]
    fn a_page_has_the_newest_figures_with_peer_limit_ratios_and_run() {
        let records = Records(vec![record("2026-11-29T10:00:00Z", 8.0), record("2026-11-28", 4.0)]);
        let page = page(&selection("sort/u32"), &records, "## Gaps\n").unwrap();
        for wanted in [
            "![A plot](docs/benchmarks/a.svg)\n",
            "\n## Order\n\nKeys.\n\n| work |",
            "| sort of `u32` | 8.00 G/s ± 10 % | rayon: 1.00; rdst (0.20): 2.00 | kernel: 10.0 | 4.00 | 0.800 | 1 |\n",
            "| 1 | 2026-11-29 | a card |  | `cargo xtask bench` |\n\n## Gaps\n",
        ] {
            assert!(page.contains(wanted), "{wanted:?} is not in:\n{page}");
        }
        assert!(!page.contains("2026-11-28"));
    }

    #[test]
    fn rows_without_a_record_are_errors() {
        let records = Records(vec![record("2026-11-29", 8.0)]);
        let error = page(&selection("sort/u64"), &records, "").unwrap_err();
        assert_eq!(error.to_string(), "no record has the row \"sort/u64\"");
        assert!(bars(&selection("sort/u64").plot[0], &records).is_err());
    }

    #[test]
    fn plots_show_every_contender() {
        let records = Records(vec![record("2026-11-29", 8.0)]);
        let plot = bars(&selection("sort/u32").plot[0], &records).unwrap();
        for wanted in [">vmarray<", ">rdst<", ">kernel<", ">8.00<", "sort of `u32`, G/s"] {
            assert!(plot.contains(wanted), "{wanted:?} is not in:\n{plot}");
        }
        assert!(shares(&selection("sort/u32"), &records).unwrap().contains(">0.800<"));
    }

    #[test]
    fn the_page_is_the_one_made_of_the_records() {
        assert_eq!(faults().unwrap(), Vec::<String>::new());
    }
}
