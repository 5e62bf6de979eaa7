//! Long stress tests for machines with GPUs: `cargo xtask test-gpu`. Environment variables set the sizes.

use std::sync::atomic::{AtomicU64, Ordering};
use vmarray::expr::{Expr, index};
use vmarray::prelude::*;

use crate::common::{Numbers, devices, together};
use vmarray::{Field, Placement, VirtualArray, device::Device};

/// A number from the environment, else a default for a machine with GPUs.
fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn rig() -> Vec<std::sync::Arc<vmarray::AnyDevice>> {
    let count = setting("VMARRAY_STRESS_DEVICES", 1) as usize;
    let devices = devices(count);
    devices.iter().for_each(|device| println!("on {}", device.info()));
    devices
}

/// Value of an element as a function of its index and its number of writes: each thread owns every n-th
/// element, and keeps the counts.
fn value(index: usize, round: u32) -> u64 {
    (index as u64) << 24 | u64::from(round)
}

#[test]
#[ignore = "takes minutes; for machines with cards"]
fn mixed_operations_of_many_threads() {
    let operations = setting("VMARRAY_STRESS_OPERATIONS", 100_000_000);
    let threads = setting("VMARRAY_STRESS_THREADS", 16) as usize;
    let len = setting("VMARRAY_STRESS_LEN", 64 << 20) as usize;
    let devices = rig();
    let ratios = (0..devices.len()).map(|d| 2 + d as u32 % 3).collect();
    let array = VirtualArray::<u64>::builder(len)
        .placement(Placement::Ratios(ratios))
        .devices(devices)
        .cache_bytes(len)
        .build()
        .unwrap();
    together(threads, |thread| {
        let share = len / threads;
        let first = thread * share;
        let mut rounds = vec![0_u32; share];
        let expect = |at: usize, rounds: &[u32]| match rounds[at] {
            0 => 0,
            round => value(first + at, round),
        };
        let mut numbers = Numbers::new(thread as u64 + 1);
        // Most accesses stay near one place for a while, like accesses of programs.
        let mut near = 0;
        let mut left = operations / threads as u64;
        while left > 0 {
            if numbers.below(1000) == 0 {
                near = numbers.below(share);
            }
            let at = (near + numbers.below(4096)) % share;
            let index = first + at;
            match numbers.below(1000) {
                0 => {
                    let count = numbers.below(20_000).min(share - at);
                    let seen = array.to_vec(index..index + count).unwrap();
                    assert!(seen.iter().zip(at..).all(|(&x, at)| x == expect(at, &rounds)));
                }
                1 => {
                    let count = numbers.below(20_000).min(share - at);
                    rounds[at..at + count].iter_mut().for_each(|round| *round += 1);
                    let values: Vec<u64> = (at..at + count).map(|at| expect(at, &rounds)).collect();
                    array.write(index, &values).unwrap();
                }
                2 => {
                    assert_eq!(array.get_uncached(index).unwrap(), expect(at, &rounds));
                }
                3 => {
                    rounds[at] += 1;
                    array.set_uncached(index, expect(at, &rounds)).unwrap();
                }
                4 => array.prefetch(index..(index + 50_000).min(len)).unwrap(),
                5 if numbers.below(50) == 0 => array.flush(index..(index + 50_000).min(len)).unwrap(),
                6..=500 => {
                    rounds[at] += 1;
                    array.set(index, expect(at, &rounds)).unwrap();
                }
                _ => assert_eq!(array.get(index).unwrap(), expect(at, &rounds)),
            }
            left -= 1;
        }
        for (at, &seen) in array.to_vec(first..first + share).unwrap().iter().enumerate() {
            assert_eq!(seen, expect(at, &rounds));
        }
    });
    println!("{operations} operations: {:?}, hit rate {:?}", array.stats().total(), array.stats().hit_rate());
}

#[test]
#[ignore = "takes as much memory as the card has; for machines with cards"]
fn an_array_as_large_as_the_cards() {
    let bytes = setting("VMARRAY_STRESS_BYTES", 100_000_000_000);
    let len = (bytes / 8) as usize;
    let array = VirtualArray::<u64>::builder(len).devices(rig()).page_len(1 << 17).build().unwrap();
    let page_len = array.page_len();
    // All threads write whole pages, each with different contents.
    let threads = setting("VMARRAY_STRESS_THREADS", 16) as usize;
    let pages = array.page_count();
    let next = AtomicU64::new(0);
    let each = |run: &(dyn Fn(usize) + Sync)| {
        next.store(0, Ordering::Relaxed);
        together(threads, |_| {
            loop {
                let page = next.fetch_add(1, Ordering::Relaxed) as usize;
                if page >= pages {
                    break;
                }
                run(page);
            }
        });
    };
    each(&|page| {
        let range = array.page_range(page);
        let values: Vec<u64> = range.clone().map(|i| i as u64).collect();
        array.write(range.start, &values).unwrap();
    });
    let mut numbers = Numbers::new(5);
    for _ in 0..1000 {
        let i = numbers.below(len);
        assert_eq!(array.get(i).unwrap(), i as u64);
    }
    for i in [0, page_len - 1, page_len, len / 2, len - 1] {
        assert_eq!(array.find(Field::whole(), &(i as u64)).unwrap(), [i]);
    }
    each(&|page| {
        let guard = array.page(page).unwrap();
        let first = guard.range().start as u64;
        assert!(guard.iter().zip(first..).all(|(&x, i)| x == i), "page {page}");
    });
    let total = array.stats().total();
    println!("{bytes} bytes in {pages} pages: {total:?}");
}

/// Fills an array, sorts it, and compares sums and counts of the elements before and after.
macro_rules! check_long_sort {
    ($array:ident, $kind:expr, $T:ty, $values:expr, $count:expr) => {{
        let own = || Field::<$T, $T>::whole();
        $array.transform(.., own().set($values)).unwrap();
        let found = || {
            let rest = own().cast::<u64>() % 1_000_003;
            ($array.sum(.., rest).unwrap(), $array.count_where(.., $count(own())).unwrap())
        };
        let (before, start) = (found(), std::time::Instant::now());
        $array.sort(..).unwrap();
        let plan = $array.explain_sort(.., None).unwrap();
        println!("{} {}: {:?}, {plan}", $array.len(), $kind, start.elapsed());
        assert!($array.is_sorted(..).unwrap(), "{}", $kind);
        assert_eq!(found(), before, "{}", $kind);
    }};
}

#[test]
#[ignore = "takes as much memory as the card has; for machines with cards"]
fn long_sorts_keep_all_elements() {
    let len = setting("VMARRAY_STRESS_KEYS", 1 << 32);
    let bytes = setting("VMARRAY_STRESS_SORT_BYTES", 124 << 30);
    let devices = rig();
    let random = |at: Expr<u32, u64>| (((at + 1) * 0x9E37_79B9_7F4A_7C15_u64) >> 32).cast::<u32>();
    let at = index::<u32>;
    let array = VirtualArray::<u32>::builder(len as usize).devices(devices.clone()).build().unwrap();
    let below = |own: Field<u32, u32>| own.lt(3);
    check_long_sort!(array, "keys of three values", u32, random(at()) % 3, below);
    check_long_sort!(array, "keys in order", u32, at().cast::<u32>(), below);
    check_long_sort!(array, "keys in reverse order", u32, (at() ^ (len - 1)).cast::<u32>(), below);
    check_long_sort!(array, "random keys", u32, random(at()), below);
    drop(array);
    let at = index::<f32>;
    let array = VirtualArray::<f32>::builder(len as usize).devices(devices.clone()).build().unwrap();
    let quotients = (at() % 7).cast::<f32>() / (at() % 5).cast::<f32>();
    check_long_sort!(array, "floats with NaNs", f32, quotients, |own: Field<f32, f32>| own.ne(own));
    drop(array);
    let array = VirtualArray::<u64>::builder((bytes / 8) as usize).devices(devices).build().unwrap();
    let values = (index::<u64>() + 1) * 0x9E37_79B9_7F4A_7C15_u64;
    check_long_sort!(array, "random keys of 8 bytes", u64, values, |own: Field<u64, u64>| own.lt(1 << 50));
}
