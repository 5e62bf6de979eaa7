//! Benchmark workloads on rows of a table: gathers by lists of 65 536 row indices, as in an embedding layer,
//! and the time of the first call of each kind.

use crate::bench::elements::Payload;
use crate::bench::measure::{Unit, calls};
use crate::bench::raw::{Limit, Way};
use crate::bench::results::Role;
use crate::bench::suite::Bench;
use anyhow::Result;
use bytemuck::{Pod, Zeroable};
use vmarray::VirtualArray;
use vmarray::device::wrap::SplitMix64;
use vmarray::prelude::*;

/// The number of rows in a list.
const LIST: usize = 1 << 16;
/// The number of different lists that a repetition uses one after another.
const LISTS: usize = 8;

/// Defines element types: rows of `words` words.
macro_rules! rows {
    ($($words:literal: $name:literal),*) => {$(
        impl Payload for [u64; $words] {
            const SIZE: &'static str = $name;

            fn of(index: usize) -> Self {
                [index as u64; $words]
            }

            #[inline(always)]
            fn key(&self) -> u32 {
                self[0] as u32
            }
        }
    )*};
}

rows!(64: "512B", 384: "3072B");

pub fn run(bench: &mut Bench) -> Result<()> {
    lists::<[u64; 64]>(bench)?;
    lists::<[u64; 384]>(bench)?;
    first(bench)
}

fn lists<T: Payload>(bench: &mut Bench) -> Result<()> {
    let ways = ["gather", "gather-registered", "scatter", "scatter-registered"];
    if !bench.wants_ways("rows", &ways, T::SIZE) {
        return Ok(());
    }
    let setup = bench.setup.clone();
    let array = setup.filled::<T>(setup.medium_bytes, None, setup.medium_bytes / 100)?;
    let mut random = SplitMix64::new(7);
    let lists: Vec<Vec<usize>> =
        (0..LISTS).map(|_| (0..LIST).map(|_| random.index(array.len())).collect()).collect();
    let mut values: Vec<T> = lists[0].iter().map(|&index| T::of(index)).collect();
    let (turns, amount) = (4 * LISTS, LIST as f64);
    let gather = |bench: &mut Bench, way: &str, values: &mut [T]| {
        bench.row(format!("rows/{way}/{}", T::SIZE), Unit::MegaPerSecond, |bench, row| {
            let mut turn = 0;
            row.ours(&array, || {
                calls(turns, amount, || {
                    turn += 1;
                    array.gather_into(&lists[turn % LISTS], values)?;
                    values[turn].check(lists[turn % LISTS][turn])
                })
            })?;
            row.limit("kernel", bench.raw.get(Limit::Indexed(Way::Down, size_of::<T>())))
        })
    };
    gather(bench, "gather", &mut values)?;
    // Use host memory that the devices can access directly, if the devices support such memory.
    if let Ok(mut known) = array.register(values) {
        gather(bench, "gather-registered", &mut known)?;
        bench.row(format!("rows/scatter-registered/{}", T::SIZE), Unit::MegaPerSecond, |bench, row| {
            let list = &lists[0];
            list.iter().zip(known.iter_mut()).for_each(|(&index, value)| *value = T::of(index));
            row.ours(&array, || calls(turns, amount, || Ok(array.scatter(list, &known)?)))?;
            row.limit("kernel", bench.raw.get(Limit::Indexed(Way::Up, size_of::<T>())))
        })?;
    }
    let values: Vec<Vec<T>> =
        lists.iter().map(|list| list.iter().map(|&index| T::of(index)).collect()).collect();
    bench.row(format!("rows/scatter/{}", T::SIZE), Unit::MegaPerSecond, |bench, row| {
        let mut turn = 0;
        row.ours(&array, || {
            calls(turns, amount, || {
                turn += 1;
                Ok(array.scatter(&lists[turn % LISTS], &values[turn % LISTS])?)
            })
        })?;
        row.limit("kernel", bench.raw.get(Limit::Indexed(Way::Up, size_of::<T>())))
    })
}

/// A row of 512 bytes that begins with a key.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Keyed {
    key: u64,
    rest: [u64; 63],
}

impl Payload for Keyed {
    const SIZE: &'static str = "512B";

    fn of(index: usize) -> Self {
        Self { key: index as u64, rest: [7; 63] }
    }

    fn key(&self) -> u32 {
        self.key as u32
    }
}

const KEY: Field<Keyed, u64> = vmarray::field!(Keyed, key);

/// The number of calls after the first one that are measured for comparison.
const LATER: usize = 5;

type Call<'a, T> = &'a dyn Fn(&VirtualArray<T>) -> Result<()>;

/// Measures the first calls in a process, on rows and on numbers.
fn first(bench: &mut Bench) -> Result<()> {
    if !bench.wants_any("rows/first-") {
        return Ok(());
    }
    let bytes = bench.setup.medium_bytes.min(4 << 30);
    let len = bytes / size_of::<Keyed>();
    let mut random = SplitMix64::new(9);
    let list: Vec<usize> = (0..LIST.min(len)).map(|_| random.index(len)).collect();
    let many = (1 << 30).min(bytes) / size_of::<Keyed>();
    // Use memory that the process has touched before, because first touches of new pages are not a cost of
    // the library.
    let values = std::cell::RefCell::new(vec![Keyed::of(1); list.len()]);
    let gather = |array: &VirtualArray<Keyed>| Ok(array.gather_into(&list, &mut values.borrow_mut())?);
    let scatter = |array: &VirtualArray<Keyed>| Ok(array.scatter(&list, &values.borrow())?);
    let read = |array: &VirtualArray<Keyed>| array.to_vec(..many).map(drop).map_err(Into::into);
    let transform = |array: &VirtualArray<Keyed>| Ok(array.transform(.., KEY.set(KEY + 1))?);
    let kinds: [(&str, Call<'_, Keyed>); 4] =
        [("gather", &gather), ("scatter", &scatter), ("read", &read), ("transform", &transform)];
    for (name, call) in kinds {
        first_call(bench, name, bytes, call)?;
    }
    let count = |array: &VirtualArray<u32>| array.count(.., Field::whole(), &7).map(drop).map_err(Into::into);
    let scan = |array: &VirtualArray<u32>| array.prefix_sum(..).map(drop).map_err(Into::into);
    let sort = |array: &VirtualArray<u32>| Ok(array.sort(..)?);
    let kinds: [(&str, Call<'_, u32>); 3] = [("count", &count), ("scan", &scan), ("sort", &sort)];
    for (name, call) in kinds {
        first_call(bench, name, bytes.min(256 << 20), call)?;
    }
    Ok(())
}

/// Measures the first call on a new filled array, compared with the median of later calls.
fn first_call<T: Payload>(bench: &mut Bench, name: &str, bytes: usize, call: Call<'_, T>) -> Result<()> {
    let setup = bench.setup.clone();
    bench.row(format!("rows/first-{name}"), Unit::Microseconds, |_, row| {
        row.effort = setup.brief;
        let mut later = Vec::new();
        row.measure("ours", Role::Ours, || {
            let array = setup.filled::<T>(bytes, None, bytes / 100)?;
            let sample = calls(1, 1.0, || call(&array))?;
            for _ in 0..if setup.is_in_turns { 0 } else { LATER } {
                later.push(calls(1, 1.0, || call(&array))?);
            }
            Ok(sample)
        })?;
        let mut later = later.into_iter().cycle();
        row.other("later", move || Ok(later.next().expect("the row has measured values")))
    })
}
