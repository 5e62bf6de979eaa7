//! Reports: a line on a terminal for each row, and a page of Markdown for the whole run.

use super::record::{UNITS, digits};
use super::results::{Measurements, Role, Row};
use super::workloads::{FAMILIES, TUNING};
use std::fmt::Write;

/// The name and the description of each contender.
pub const CONTENDERS: [(&str, &str); 34] = [
    ("ours", "the array, or the source"),
    ("bus", "long copies between host memory and all devices, without an array"),
    ("queued", "copies of that length, one a call, many queued"),
    ("batched", "copies of that length between scattered places, 256 a call"),
    ("single", "one copy of the page or element and a wait, again and again, by as many threads"),
    ("raw", "the devices alone, without an array"),
    ("internal-copy", "copies within the devices: bytes read and written both count"),
    ("link", "long copies from device to device, without an array: each byte counts once"),
    ("kernel", "elements at random places collected or distributed by long kernels, without an array"),
    ("memcpy", "copies of plain memory into buffers of a few MiB, as bulk reads do"),
    ("copy", "copies of plain memory by all threads"),
    ("scan", "sums over plain memory"),
    ("overwrite", "plain memory filled"),
    ("update", "plain memory changed in place"),
    ("vec", "the same loop over a `Vec`"),
    ("in-ram", "the same of what is in RAM, by all threads"),
    ("array", "the same question to an array"),
    ("whole", "the whole array instead of a part"),
    ("one-array", "one array as large as all"),
    ("plain", "the same devices without mirrors or parity"),
    ("file", "the file alone, without a tier"),
    ("pread", "the file alone, read by system calls, without a cache"),
    ("free-hits", "the file alone, had it not been read where cards had the page"),
    ("later", "later calls of the same kind"),
    ("lru", "the crate `lru` behind locks, one a shard"),
    ("mmap", "a mapped file of the same size"),
    ("pread", "plain reads and writes of a file of the same size, by as many threads"),
    ("fdatasync", "plain writes to a file, each followed by the system's call that makes them stay"),
    (
        "ahead",
        "plain writes by as many threads to a file that has room, which the system begins to store at once",
    ),
    ("nvcc", "the same kernel, written by hand in CUDA C"),
    ("managed", "CUDA's managed memory"),
    ("peer", "the program that `--peer` names"),
    ("advised", "settings as the devices' profiles advise"),
    ("best", "the best settings found by hand"),
];
/// The most rows in a list of the summary.
const LISTED: usize = 12;

/// Returns the description of a contender.
pub fn meaning(contender: &str) -> Option<&'static str> {
    CONTENDERS.iter().find(|(name, _)| *name == contender).map(|(_, meaning)| *meaning)
}

/// Formats a row as text: its name, the array's result with its spread, and each other result with the factor
/// by which the array is faster.
pub fn line(row: &Row) -> String {
    let unit = row.unit.symbol();
    let mut line = format!("{:46}", row.name);
    for entry in &row.entries {
        let median = digits(entry.summary.median);
        let _ = match entry.role {
            Role::Ours => {
                write!(line, " {median:>7} {unit} ±{:.0} %", 50.0 * entry.summary.spread())
            }
            _ => match row.base() {
                Some(base) => {
                    let ratio = row.unit.speed_ratio(base.summary.median, entry.summary.median);
                    write!(line, "   {} {median} ({}x)", entry.name, digits(ratio))
                }
                None => write!(line, "   {} {median} {unit}", entry.name),
            },
        };
    }
    if let Some((_, cores)) = row.counts.iter().find(|(name, _)| name == "cores") {
        let _ = write!(line, "   {} cores", digits(*cores));
    }
    if let Some((_, bytes)) = row.counts.iter().find(|(name, _)| name == "more_ram_bytes") {
        let _ = write!(line, "   {} MiB more RAM", digits(*bytes / 1_048_576.0));
    }
    for (name, times) in &row.counts {
        if let Some(other) = name.strip_prefix("processor_time_to_") {
            let _ = write!(line, "   {} of the processor time of {other}", digits(*times));
        }
    }
    line
}

/// Formats a whole run as Markdown: the setup, a summary, a table for each family of workloads, and a legend.
/// With an earlier run, also formats the changes since then.
pub fn markdown(run: &Measurements, earlier: Option<&Measurements>) -> String {
    let families: Vec<_> = FAMILIES
        .iter()
        .chain(TUNING)
        .map(|family| (family, run.rows.iter().filter(|row| row.family() == family.name).collect::<Vec<_>>()))
        .filter(|(_, rows)| !rows.is_empty())
        .collect();
    let mut page = String::from("# What was measured\n\n| | |\n|---|---|\n");
    for (name, value) in &run.about {
        page += &format!("| {name} | {value} |\n");
    }
    page += "\n## Summary\n\nShares of what the hardware allows: of the lowest limit of each workload. \
             1.00 is all of it.\n\n| family | workloads | median share | least | of |\n|---|---|---|---|---|\n";
    for (family, rows) in &families {
        let mut shares: Vec<(f64, &str)> =
            rows.iter().filter_map(|row| Some((row.share_of_limit()?, &*row.name))).collect();
        shares.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (name, about, count) = (family.name, family.about, rows.len());
        page += &format!("| [{name}](#{name}): {about} | {count} |");
        page += &match shares.first() {
            Some((least, of)) => {
                format!(" {} | {} | {of} |\n", digits(shares[shares.len() / 2].0), digits(*least))
            }
            None => " | | |\n".into(),
        };
    }
    page += &listed(
        "Slower than another way to do it",
        run.rows.iter().flat_map(|row| {
            let others = row.ratios().filter(|(entry, _)| entry.role == Role::Alternative);
            others.map(|(entry, ratio)| (ratio, format!("{} than {}", row.name, entry.name)))
        }),
        |ratio| ratio < 1.0,
    );
    if let Some(earlier) = earlier {
        page += &changes(run, earlier);
    }
    for (family, rows) in &families {
        page += &format!("\n## {}\n\n{}.\n\n", family.name, family.about);
        page += "| workload | unit | ours | ± | limits (share) | others (times as fast) | cores |\n";
        page += "|---|---|---|---|---|---|---|\n";
        rows.iter().for_each(|row| page += &table_row(row));
    }
    page += "\n## Legend\n\n*ours*: the median of some repetitions after one to warm up. ±: half of the \
             distance between the lowest and the highest, as a share of the median. *share*: ours as a \
             part of the limit. *times as fast*: ours against the other. *cores*: how many were busy on \
             average. Names: family, what is done, size of an element or page, `t` and threads.\n\n\
             | name | what |\n|---|---|\n";
    for (name, meaning) in CONTENDERS {
        if run.rows.iter().any(|row| row.entries.iter().any(|entry| entry.name == name)) {
            page += &format!("| {name} | {meaning} |\n");
        }
    }
    for (unit, words) in UNITS {
        if run.rows.iter().any(|row| row.unit == unit) {
            page += &format!("| {} | {words} |\n", unit.symbol());
        }
    }
    page
}

/// One line of a family's table.
fn table_row(row: &Row) -> String {
    let others = |role: Role| -> String {
        let of_role = row.entries.iter().filter(|entry| entry.role == role);
        let shown = of_role.map(|entry| {
            let (name, median) = (&entry.name, entry.summary.median);
            match row.base() {
                Some(base) => {
                    let ratio = row.unit.speed_ratio(base.summary.median, median);
                    format!("{name} {} ({})", digits(median), digits(ratio))
                }
                None => format!("{name} {}", digits(median)),
            }
        });
        shown.collect::<Vec<_>>().join(", ")
    };
    let (ours, spread) = row.base().map_or_else(Default::default, |base| {
        (digits(base.summary.median), format!("{:.0} %", 50.0 * base.summary.spread()))
    });
    let cores = row.counts.iter().find(|(name, _)| name == "cores");
    let cores = cores.map_or_else(String::new, |(_, cores)| digits(*cores));
    let (limits, alternatives) = (others(Role::Limit), others(Role::Alternative));
    format!(
        "| {} | {} | {ours} | {spread} | {limits} | {alternatives} | {cores} |\n",
        row.name,
        row.unit.symbol()
    )
}

/// Lists rows whose repetitions of both runs do not overlap, with the ratio of the two.
fn changes(run: &Measurements, earlier: &Measurements) -> String {
    let known = |row: &&Row| earlier.rows.iter().any(|old| old.name == row.name && old.base().is_some());
    let count = run.rows.iter().filter(known).count();
    let changed = |is_kind: fn(f64) -> bool| {
        run.rows.iter().filter_map(move |row| {
            let old = earlier.rows.iter().find(|old| old.name == row.name && old.unit == row.unit)?;
            let (new, old) = (row.base()?.summary, old.base()?.summary);
            let is_apart = new.high < old.low || old.high < new.low;
            let ratio = row.unit.speed_ratio(new.median, old.median);
            (is_apart && is_kind(ratio)).then(|| (ratio, row.name.clone()))
        })
    };
    let mut text = format!(
        "\n## Changes\n\nSince {}, commit {}, on {}: {count} workloads of both runs. The list has the workloads \
         whose repetitions do not overlap, with the ratio of the speeds.\n",
        earlier.fact("date"),
        earlier.fact("commit"),
        earlier.fact("devices"),
    );
    text += &listed("Slower", changed(|ratio| ratio < 1.0), |_| true);
    // Sort by the negated ratio, so that the greatest comes first, and negate it again for display.
    let faster = changed(|ratio| ratio > 1.0).map(|(ratio, name)| (-ratio, name));
    text + &listed("Faster", faster, |_| true)
}

/// Formats a list of ratios furthest from 1, least first.
fn listed(
    title: &str,
    values: impl Iterator<Item = (f64, String)>,
    is_listed: impl Fn(f64) -> bool,
) -> String {
    let mut values: Vec<(f64, String)> = values.filter(|(value, _)| is_listed(*value)).collect();
    values.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut text = format!("\n### {title}\n\n");
    if values.is_empty() {
        return text + "None.\n";
    }
    for (value, name) in values.iter().take(LISTED) {
        text += &format!("- {} times: {name}\n", digits(value.abs()));
    }
    if values.len() > LISTED {
        text += &format!("- and {} more\n", values.len() - LISTED);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::measure::Unit;
    use crate::bench::results::row_of;

    #[test]
    fn lines_have_all_contenders() {
        let mut row = row_of("bulk/read", Unit::GigabytesPerSecond, Some(40.0), &[("bus", 50.0)]);
        (row.entries[0].summary.low, row.entries[0].summary.high) = (38.0, 42.0);
        row.count([("cores", 2.5), ("hit_rate", f64::NAN)]);
        let words = line(&row).split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(words, "bulk/read 40.0 GB/s ±5 % bus 50.0 (0.800x) 2.50 cores");
        let limit = row_of("limits/down", Unit::GigabytesPerSecond, None, &[("queued", 50.0)]);
        assert!(line(&limit).ends_with("queued 50.0 GB/s"));
    }

    #[test]
    fn a_page_has_summary_tables_changes_and_legend() {
        let measured = |bulk: f64, find: f64| Measurements {
            about: vec![("date".into(), "2026-01-01T00:00:00Z".into())],
            rows: vec![
                row_of("bulk/read", Unit::GigabytesPerSecond, Some(bulk), &[("bus", 50.0), ("memcpy", 80.0)]),
                row_of("find/u32", Unit::Nanoseconds, Some(find), &[("internal-copy", 1.0)]),
            ],
        };
        let text = serde_json::to_string(&measured(40.0, 4.0)).unwrap();
        let earlier: Measurements = serde_json::from_str(&text).unwrap();
        let page = markdown(&measured(20.0, 2.0), Some(&earlier));
        for wanted in [
            "| date | 2026-01-01T00:00:00Z |",
            "| [bulk](#bulk): Ranges into and out of the caller's buffers | 1 | 0.400 | 0.400 | bulk/read |",
            "| find/u32 | ns | 2.00 | 0 % | internal-copy 1.00 (0.500) |  |  |",
            "### Slower\n\n- 0.500 times: bulk/read\n",
            "### Faster\n\n- 2.00 times: find/u32\n",
            "| bus | long copies between host memory",
            "| GB/s | 10^9 bytes a second |",
        ] {
            assert!(page.contains(wanted), "{wanted:?} is not in:\n{page}");
        }
        assert!(!page.contains("| mmap |"), "a legend has what is there");
        assert!(!markdown(&earlier, None).contains("## Changes"));
    }
}
