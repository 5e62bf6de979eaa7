//! Prints benchmark results on the terminal, one line for each row. (`page.rs` generates BENCHMARKS.md.)

use super::record::digits;
use super::results::{Role, Row};
use std::fmt::Write;

/// The name and the description of each contender: the array, other software, and limits.
pub const CONTENDERS: [(&str, &str); 29] = [
    ("ours", "the array, or the source"),
    ("bus", "long copies between host memory and all devices, without an array"),
    ("batched", "copies of that length between scattered places, 256 a call"),
    ("single", "one copy of the page or element and a wait, again and again, by as many threads"),
    ("raw", "the devices alone, without an array"),
    ("internal-copy", "copies within the devices: bytes read and written both count"),
    ("link", "long copies from device to device, without an array: each byte counts once"),
    ("kernel", "elements at random places collected or distributed by long kernels, without an array"),
    ("memcpy", "copies of plain memory into buffers of a few MiB, as bulk reads do"),
    ("copy", "copies of plain memory by all threads"),
    ("vec", "the same loop over a `Vec`"),
    ("in-ram", "the same of what is in RAM, by all threads"),
    ("plain", "the same devices without mirrors"),
    ("file", "the file alone, without a tier"),
    ("pread", "the file alone, read by system calls, without a cache"),
    ("free-hits", "the file alone, had it not been read where cards had the page"),
    ("later", "later calls of the same kind"),
    ("rayon", "`par_sort_unstable` of rayon"),
    ("rdst", "`radix_sort_unstable` of the crate `rdst`"),
    ("mmap", "a mapped file of the same size"),
    ("pread", "plain reads and writes of a file of the same size, by as many threads"),
    ("fdatasync", "plain writes to a file, each followed by the system's call that makes them stay"),
    (
        "ahead",
        "plain writes by as many threads to a file that has room, which the system begins to store at once",
    ),
    ("nvcc", "the same kernel, written by hand in CUDA C"),
    ("own-kernel", "the crate's kernel, in place of cuBLAS"),
    ("managed", "CUDA's managed memory"),
    ("peer", "the program that `--peer` names"),
    ("advised", "settings as the devices' profiles advise"),
    ("best", "the best settings found by hand"),
];
/// Returns the description of a contender (the array, other software or a limit).
pub fn meaning(contender: &str) -> Option<&'static str> {
    CONTENDERS.iter().find(|(name, _)| *name == contender).map(|(_, meaning)| *meaning)
}

/// Formats the results of a workload as text: its name, the array's result with its spread, and each other
/// result with the factor by which the array is faster.
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
    for (name, times) in &row.counts {
        if let Some(other) = name.strip_prefix("processor_time_to_") {
            let _ = write!(line, "   {} of the processor time of {other}", digits(*times));
        }
    }
    line
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
        let limit = row_of("copies/down", Unit::GigabytesPerSecond, None, &[("single", 50.0)]);
        assert!(line(&limit).ends_with("single 50.0 GB/s"));
    }
}
