//! Benchmark on the host: joins of index sets (tables of integer tuples), grouping, distinct elements, and
//! sorts. The competitors are rayon and rdst on a `Vec` and, if Python has them, DuckDB and Polars. All
//! competitors process the same numbers alternately and must return equal results. A measurement ends when
//! the result is in memory.
//!
//!     cargo bench -p vmarray --profile release --features host,rayon --bench tables [-- ROW ...]
//!
//! `PYTHON`, `ROUNDS` and the output are as in the benchmark `peers`. Sorts and grouping have 2^`LOG2`
//! elements.

mod in_turns;

use std::fmt::Debug;
use std::hint::black_box;
use std::sync::Arc;

use in_turns::{Python, Work, compare, timed};
use rayon::prelude::*;
use rdst::{RadixKey, RadixSort};
use vmarray::host::HostDevice;
use vmarray::index_set::{Combine, Dimension};
use vmarray::prelude::*;
use vmarray::views::SortKey;
use vmarray::{IndexSet, VirtualArray};

const THREADS: usize = 2;
/// The number of tuples of each index set.
const TUPLES: usize = 1 << 22;

fn main() {
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let log2 = std::env::var("LOG2").ok().and_then(|log2| log2.parse().ok()).unwrap_or(25);
    let rows = 1_usize << log2;
    rayon::ThreadPoolBuilder::new().num_threads(THREADS).build_global().expect("the thread pool starts");
    for row in ROWS {
        if !wanted.is_empty() && !wanted.iter().any(|part| row.contains(part.as_str())) {
            continue;
        }
        let (kind, of) = row.split_once('/').expect("a row is `kind/type`");
        let count = if matches!(kind, "join" | "columns") { TUPLES } else { rows };
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/tables.py");
        let mut python =
            if kind.starts_with("vec") { None } else { Python::start(script, &[&THREADS, &count, &row]) };
        let python = python.as_mut();
        match kind {
            "join" | "columns" => join(row, kind, of, python),
            "vec-u32" => sorts::<u32>(row, of, rows, |bits| (bits >> 32) as u32),
            "vec-u64" => sorts::<u64>(row, of, rows, |bits| bits),
            "vec-f32" => sorts::<f32>(row, of, rows, |bits| (bits >> 40) as f32 / (1 << 23) as f32 - 1.0),
            _ => table(row, kind, of, rows, python),
        }
    }
}

const ROWS: [&str; 28] = [
    "join/uniform",
    "join/skewed",
    "join/unique",
    "columns/uniform",
    "columns/unique",
    "group/few",
    "group/many",
    "unique/few",
    "unique/many",
    "unique/all",
    "sort/keys",
    "sort/pairs",
    "vec-u32/random",
    "vec-u32/equal",
    "vec-u32/few",
    "vec-u32/sorted",
    "vec-u32/reversed",
    "vec-u32/zipf",
    "vec-u64/random",
    "vec-u64/few",
    "vec-u64/sorted",
    "vec-u64/reversed",
    "vec-u64/zipf",
    "vec-f32/random",
    "vec-f32/few",
    "vec-f32/sorted",
    "vec-f32/reversed",
    "vec-f32/zipf",
];

/// Scrambles a number: returns distinct, random-looking bits for each (finalizer of SplitMix64).
fn mixed(number: u64) -> u64 {
    let mut bits = number.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    for (shift, factor) in [(30, 0xBF58_476D_1CE4_E5B9), (27, 0x94D0_49BB_1331_11EB_u64)] {
        bits = (bits ^ (bits >> shift)).wrapping_mul(factor);
    }
    bits ^ (bits >> 31)
}

/// Random bits for one value of a set.
fn bits(seed: u64, tuple: usize, at: usize) -> u64 {
    mixed((4 * tuple + at) as u64 + (seed << 40))
}

fn uniform(seed: u64, tuple: usize, at: usize) -> u64 {
    bits(seed, tuple, at) % 1001
}

/// A random value; small values are frequent.
fn skewed(seed: u64, tuple: usize, at: usize) -> u64 {
    let high = bits(seed, tuple, at) >> 44;
    (((high * high * high) >> 40) * 1001) >> 20
}

/// A permutation of the numbers below [`TUPLES`], so that each value occurs once.
fn unique(mut number: u64, factor: u64) -> u64 {
    for _ in 0..2 {
        number = number.wrapping_mul(factor) & (TUPLES as u64 - 1);
        number ^= number >> (TUPLES.ilog2() / 2);
    }
    number
}

type Columns = Vec<(Dimension, Vec<u64>)>;

fn inputs(of: &str) -> [Columns; 2] {
    let columns = |seed, labels: [Dimension; 4]| -> Columns {
        let column = |at| (0..TUPLES).map(|tuple| uniform(seed, tuple, at)).collect();
        labels.into_iter().enumerate().map(|(at, label)| (label, column(at))).collect()
    };
    let mut a = columns(1, [0, 1, 2, 3]);
    let mut b = columns(2, if of == "unique" { [0, 4, 5, 6] } else { [0, 2, 5, 6] });
    if of == "skewed" {
        for at in [0, 2] {
            a[at].1 = (0..TUPLES).map(|tuple| skewed(1, tuple, at)).collect();
        }
    }
    if of == "unique" {
        a[0].1 = (0..TUPLES as u64).map(|number| unique(number, 0x9E37_79B1)).collect();
        b[0].1 = (0..TUPLES as u64).map(|number| unique(number, 0x85EB_CA6B)).collect();
    }
    [a, b]
}

fn join(row: &str, kind: &str, of: &str, python: Option<&mut Python>) {
    let [a, b] = inputs(of);
    let set_of = |columns: &Columns| -> IndexSet {
        let columns = columns.iter().map(|(label, column)| (*label, column.as_slice()));
        IndexSet::from_columns(columns).expect("all columns have one length")
    };
    let sums = |sums: &mut dyn Iterator<Item = u64>| -> f64 {
        (1..).zip(sums).map(|(at, sum): (u64, u64)| at * sum).sum::<u64>() as f64
    };
    let run: Work<'_> = if kind == "join" {
        let (a, b) = (set_of(&a), set_of(&b));
        Box::new(move || {
            let found = timed(|| {
                Combine::new(&a, &b)
                    .threads(THREADS)
                    .run()
                    .expect("the join succeeds")
                    .to_index_set()
                    .expect("RAM suffices")
            });
            sums(
                &mut found
                    .dimensions()
                    .iter()
                    .map(|label| found.column(*label).expect("the column exists").sum()),
            )
        })
    } else {
        Box::new(|| {
            let columns = timed(|| {
                let (a, b) = (set_of(&a), set_of(&b));
                Combine::new(&a, &b)
                    .threads(THREADS)
                    .run()
                    .expect("the join succeeds")
                    .to_columns()
                    .expect("RAM suffices")
            });
            sums(&mut columns.iter().map(|(_, column)| column.iter().sum()))
        })
    };
    compare(row, vec![("vmarray".to_owned(), run)], python);
}

fn array<T: Element>(values: &[T]) -> VirtualArray<T, HostDevice> {
    // The device also needs memory for results and temporary data, so give it twelve times the input's size.
    let bytes = 12 * values.len().max(1 << 20) as u64 * 8;
    let device = HostDevice::builder().bytes(bytes).threads(THREADS).build().expect("RAM suffices");
    let builder = VirtualArray::<T>::builder(values.len()).devices([Arc::new(device)]);
    let array = builder.build().expect("RAM suffices for the array");
    array.write(0, values).expect("the write must succeed");
    array.flush(..).expect("the flush must succeed");
    array
}

fn table(row: &str, kind: &str, of: &str, rows: usize, python: Option<&mut Python>) {
    let key = |bits: u64| match of {
        "few" => (bits % 1000) as u32,
        "many" => (bits >> 44) as u32,
        _ => bits as u32,
    };
    let unsorted: Vec<u32> = (0..rows as u64).map(|number| key(mixed(number))).collect();
    let others: Vec<u32> = (0..rows as u64).map(|number| (mixed(number) >> 20) as u32).collect();
    let (keys, values) = (array(&unsorted), array(&others));
    let run: Work<'_> = match kind {
        "group" => Box::new(|| {
            let (groups, _counts, sums) = timed(|| {
                let groups = keys.group_by(.., Field::<u32, u32>::whole()).expect("the grouping succeeds");
                let (counts, sums) = (
                    groups.counts().expect("the count succeeds"),
                    groups.sum(&values).expect("the sum succeeds"),
                );
                (groups, counts, sums)
            });
            assert_eq!(groups.len(), sums.len());
            sums.to_vec(..).expect("RAM suffices").iter().map(|sum| sum % 1000).sum::<u64>() as f64
        }),
        "unique" => Box::new(|| {
            let found = timed(|| keys.unique(..).expect("`unique` succeeds"));
            found.to_vec(..).expect("RAM suffices").iter().map(|key| u64::from(*key)).sum::<u64>() as f64
        }),
        _ => Box::new(|| {
            keys.write(0, &unsorted).expect("the write must succeed");
            values.write(0, &others).expect("the write must succeed");
            timed(|| if of == "pairs" { keys.sort_with(.., &values) } else { keys.sort(..) })
                .expect("the sort succeeds");
            f64::from(keys.get(rows / 3).expect("the key is in the array"))
        }),
    };
    compare(row, vec![("vmarray".to_owned(), run)], python);
}

/// Measures sorts of numbers in a `Vec`, and of the same numbers in an array.
fn sorts<T: SortKey + RadixKey + PartialOrd + Debug>(
    row: &str,
    of: &str,
    rows: usize,
    value: impl Fn(u64) -> T,
) {
    let least_first = |one: &T, two: &T| one.partial_cmp(two).expect("no value is NaN");
    let mut unsorted: Vec<T> = (0..rows as u64)
        .map(|number| {
            let bits = mixed(number);
            value(match of {
                "equal" => 5 << 40,
                "few" => mixed(bits % 100),
                // Zipf's distribution, like that of words in a text: half the frequency at twice the rank.
                "zipf" => {
                    mixed(((1_u64 << 32) as f64).powf((bits >> 11) as f64 / (1_u64 << 53) as f64) as u64)
                }
                _ => bits,
            })
        })
        .collect();
    if matches!(of, "sorted" | "reversed") {
        unsorted.par_sort_unstable_by(least_first);
    }
    if of == "reversed" {
        unsorted.reverse();
    }
    let array = array(&unsorted);
    let digest = |values: &[T]| {
        let number =
            |value: T| -> f64 { format!("{value:?}").parse().expect("a printed number can be parsed") };
        (0..100).map(|at| f64::from(at) * number(values[at as usize * (rows - 1) / 99])).sum::<f64>()
    };
    let works: Vec<(String, Work<'_>)> = vec![
        (
            "vmarray".to_owned(),
            Box::new(|| {
                array.write(0, &unsorted).expect("the write must succeed");
                // Write cached pages to the device too, so that only the sort is measured.
                array.flush(..).expect("the flush must succeed");
                timed(|| array.sort(..).expect("the sort succeeds"));
                digest(&array.to_vec(..).expect("RAM suffices"))
            }),
        ),
        (
            "rayon".to_owned(),
            Box::new(|| {
                let mut values = black_box(unsorted.clone());
                timed(|| values.par_sort_unstable_by(least_first));
                digest(&values)
            }),
        ),
        (
            "rdst".to_owned(),
            Box::new(|| {
                let mut values = black_box(unsorted.clone());
                timed(|| values.radix_sort_unstable());
                digest(&values)
            }),
        ),
    ];
    compare(row, works, None);
}
