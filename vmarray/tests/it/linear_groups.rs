//! Tests that groups along one axis do not depend on the number of devices and channels, or on the page
//! length. Groups start at multiples of their length in the view of the launch, and are numbered in this
//! view.

use backend_api::wrap::random_cases;
use std::ops::Range;
use std::sync::Arc;

use vmarray::kernel::{Anywhere, Append, Appended, At, Group, Own, Session, Window};
use vmarray::prelude::*;
use vmarray::{AnyDevice, ErrorKind, Placement};

use crate::common::{Numbers, Shape, devices};

/// The facts that an item knows of its group: number, place, groups, sum up to itself, sum of all.
type Known = [u64; 5];

macro_rules! kernels {
    ($($name:ident $returning:ident $pushing:ident $around:ident $len:literal;)*) => { $(
        #[vmarray::kernel(group = $len)]
        fn $name(at: At<1>, part: &Group<u32, $len>, x: &Own<u32>, out: &mut Own<[u64; 5]>) {
            let i = at.in_group();
            part.set(i, x.get());
            barrier();
            let (mut before, mut all) = (0, 0);
            for k in 0..$len {
                all += part[k] as u64;
                if k <= i {
                    before += part[k] as u64;
                }
            }
            out.set([at.group() as u64, i as u64, at.groups() as u64, before, all]);
        }

        /// The number of the group times the sum of the items in front.
        #[vmarray::kernel(group = $len)]
        fn $returning(at: At<1>, part: &Group<u32, $len>, x: &Own<u32>) -> u64 {
            part.set(at.in_group(), x.get());
            barrier();
            let mut before = 0;
            for k in 0..at.in_group() {
                before += part[k] as u64;
            }
            before * (at.group() + 1) as u64
        }

        #[vmarray::kernel(group = $len)]
        fn $pushing(at: At<1>, of: &Anywhere<u32>, found: &Append<[u64; 4]>) {
            let value = of[at.index() % of.len()] as u64;
            found.push([at.index() as u64, at.group() as u64, at.groups() as u64, value]);
        }

        /// As the first one, of the sums of neighbours.
        #[vmarray::kernel(group = $len)]
        fn $around(at: At<1>, part: &Group<u32, $len>, x: &Window<u32, 1>, out: &mut Own<[u64; 5]>) {
            let i = at.in_group();
            part.set(i, x[at]);
            barrier();
            let (mut before, mut all) = (0, 0);
            for k in 0..$len {
                all += part[k] as u64;
                if k <= i {
                    before += part[k] as u64;
                }
            }
            out.set([at.group() as u64, i as u64, at.groups() as u64, before, all]);
        }

        const _: usize = $len;
    )* };
}
kernels! {
    known_1 sum_1 pushed_1 around_1 1;
    known_3 sum_3 pushed_3 around_3 3;
    known_32 sum_32 pushed_32 around_32 32;
    known_96 sum_96 pushed_96 around_96 96;
}

/// Runs code with the kernels of a length of groups.
macro_rules! with_kernels {
    ($len:expr, $known:ident $sum:ident $pushed:ident $around:ident => $code:expr) => {
        match $len {
            1 => with_kernels!(@ known_1 sum_1 pushed_1 around_1, $known $sum $pushed $around => $code),
            3 => with_kernels!(@ known_3 sum_3 pushed_3 around_3, $known $sum $pushed $around => $code),
            32 => with_kernels!(@ known_32 sum_32 pushed_32 around_32, $known $sum $pushed $around => $code),
            _ => with_kernels!(@ known_96 sum_96 pushed_96 around_96, $known $sum $pushed $around => $code),
        }
    };
    (@ $a:ident $b:ident $c:ident $d:ident, $known:ident $sum:ident $pushed:ident $around:ident => $code:expr) => {{
        #[allow(unused_imports, reason = "each test uses its part")]
        use {$a as $known, $b as $sum, $c as $pushed, $d as $around};
        $code
    }};
}

/// The facts that all items know, by a plain loop.
fn known(values: &[u32], len: usize) -> Vec<Known> {
    let sum = |of: Range<usize>| of.map(|at| u64::from(values[at])).sum::<u64>();
    let item = |at: usize| {
        let (first, groups) = (at / len * len, values.len().div_ceil(len));
        let end = values.len().min(first + len);
        [at / len, at % len, groups]
            .map(|number| number as u64)
            .into_iter()
            .chain([sum(first..at + 1), sum(first..end)])
    };
    let all = (0..values.len()).map(|at| item(at).collect::<Vec<u64>>().try_into().unwrap());
    all.collect()
}

fn weighted(values: &[u32], len: usize) -> i128 {
    let item = |at: usize| {
        let before: u64 = values[at / len * len..at].iter().map(|value| u64::from(*value)).sum();
        i128::from(before * (at / len + 1) as u64)
    };
    (0..values.len()).map(item).sum()
}

const LENS: [usize; 4] = [1, 3, 32, 96];

/// Fewer cases where each translates kernels anew.
fn cases(all: u32) -> Range<u64> {
    0..if std::env::var_os("VMARRAY_TEST_DEVICES").is_some() {
        (all / 6).into()
    } else {
        random_cases(all).into()
    }
}

/// A random length of groups, values, a layout whose pages may or may not have whole groups, and the
/// number of elements before the launch.
fn case(random: &mut Numbers) -> (usize, Vec<u32>, Shape, usize) {
    let len = LENS[random.below(LENS.len())];
    let values: Vec<u32> = (0..1 + random.below(700)).map(|_| random.below(1000) as u32).collect();
    let shape = Shape::any(random, 200, 3);
    let page_len = match random.below(3) {
        0 => len * (1 + random.below(4)),
        1 => 64,
        _ => shape.page_len,
    };
    let before = [0, 0, len, page_len, 1 + random.below(100)][random.below(5)];
    (len, values, Shape { page_len, ..shape }, before)
}

fn filled(shape: &Shape, values: &[u32], before: usize) -> VirtualArray<u32> {
    let array = shape.build::<u32>(before + values.len() + 5);
    array.fill(.., 77).unwrap();
    array.write(before, values).unwrap();
    array
}

fn sources(random: &mut Numbers, shape: &Shape, values: &[u32], before: usize) -> Source<u32> {
    let mut all = vec![77; before];
    all.extend(values);
    let source = Source::builder(all).devices(shape.devices()).page_len(1 + random.below(100));
    source.device_bytes(4096).build().unwrap()
}

#[test]
fn a_launch_has_the_groups_of_a_plain_loop() {
    for seed in cases(120) {
        let mut random = Numbers::new(seed);
        let (len, values, shape, before) = case(&mut random);
        let range = before..before + values.len();
        let other = Shape::any(&mut random, 200, 3);
        let x = filled(if seed % 3 == 0 { &other } else { &shape }, &values, before);
        let of_source = sources(&mut random, &shape, &values, before);
        let out = shape.build::<Known>(before + values.len() + 3);
        with_kernels!(len, kernel sum pushed around => {
            let into = out.section_mut(range.clone()).unwrap();
            match seed % 4 {
                0 => kernel::run((of_source.section(range.clone()).unwrap(), into)).unwrap(),
                1 => around::run((x.section(range.clone()).unwrap().window(0), into)).unwrap(),
                _ => kernel::run((x.section(range.clone()).unwrap(), into)).unwrap(),
            }
            assert_eq!(sum::sum((x.section(range.clone()).unwrap(),)).unwrap(), weighted(&values, len), "seed {seed}");
            let of_section = sum::sum((of_source.section(range.clone()).unwrap(),)).unwrap();
            assert_eq!(of_section, weighted(&values, len), "seed {seed}");
        });
        assert_eq!(out.to_vec(range).unwrap(), known(&values, len), "seed {seed}: {len} {before} {shape:?}");
    }
}

#[test]
fn sources_take_the_writes_of_groups() {
    for seed in cases(60) {
        let mut random = Numbers::new(1000 + seed);
        let (len, values, shape, before) = case(&mut random);
        let range = before..before + values.len();
        let x = filled(&shape, &values, before);
        let all = vec![[9; 5]; before + values.len() + 2];
        let out = Source::builder(all).devices(shape.devices()).page_len(shape.page_len).build().unwrap();
        with_kernels!(len, kernel _sum _pushed _around => {
            kernel::run((x.section(range.clone()).unwrap(), out.section_mut(range.clone()).unwrap())).unwrap();
        });
        assert_eq!(
            out.to_vec(range.clone()).unwrap(),
            known(&values, len),
            "seed {seed}: {len} {before} {shape:?}"
        );
        assert_eq!(out.to_vec(range.end..).unwrap(), [[9; 5]; 2]);
    }
}

#[test]
fn numbers_and_appended_elements_have_the_same_groups() {
    for seed in cases(60) {
        let mut random = Numbers::new(2000 + seed);
        let (len, values, shape, before) = case(&mut random);
        let of = filled(&shape, &values, before);
        let section = of.section(before..before + values.len()).unwrap();
        let (first, items) = (random.below(50), random.below(500));
        let mut found = Vec::new();
        with_kernels!(len, _kernel _sum pushed _around => {
            let launch = pushed::launch().over(first..first + items);
            launch.run((section, Appended::in_order(&mut found, 1000))).unwrap();
        });
        let expected = (0..items).map(|at| {
            let value = values[(first + at) % values.len()];
            [first + at, at / len, items.div_ceil(len), value as usize].map(|number| number as u64)
        });
        assert!(found.iter().copied().eq(expected), "seed {seed}: {len} {shape:?} {found:?}");
    }
}

#[test]
fn futures_and_sessions_have_the_same_groups() {
    let (mut refused, mut done) = (0, 0);
    for seed in cases(80) {
        let mut random = Numbers::new(3000 + seed);
        let (len, values, shape, before) = case(&mut random);
        let shape = Shape { simulated: 0, checksums: false, ..shape };
        let range = before..before + values.len();
        let devices = shape.devices();
        let build = |len| shape.describe::<u32, _>(len, devices.clone()).build().unwrap();
        let mut x = build(before + values.len());
        x.write(before, &values).unwrap();
        let mut out = shape.describe::<Known, _>(before + values.len(), devices.clone()).build().unwrap();
        with_kernels!(len, kernel _sum _pushed _around => {
            let into = out.section_mut(range.clone()).unwrap();
            let launch = kernel::run_async((x.section(range.clone()).unwrap(), into));
            futures::executor::block_on(launch).unwrap();
            assert_eq!(out.to_vec(range.clone()).unwrap(), known(&values, len), "seed {seed}: {len} {shape:?}");
            out.fill(.., [0; 5]).unwrap();
            let mut session = Session::new();
            let (a, b) = (session.hold(&mut x).unwrap(), session.hold(&mut out).unwrap());
            let launched = kernel::run_in(
                &mut session,
                (a.section(range.clone()).unwrap(), b.section(range.clone()).unwrap()),
            );
            session.finish().unwrap();
            match launched {
                Ok(()) => done += 1,
                Err(error) => {
                    let ErrorKind::KernelGroups { group_len, page_len, start, fits, .. } = *error.kind() else {
                        panic!("seed {seed}: {error}");
                    };
                    assert_eq!((group_len, page_len, start), (len, shape.page_len, before));
                    assert!(fits >= page_len && fits % len == 0 && (page_len % len != 0 || before % len != 0));
                    refused += 1;
                    continue;
                }
            }
        });
        assert_eq!(out.to_vec(range).unwrap(), known(&values, len), "seed {seed}: {len} {before} {shape:?}");
    }
    assert!(refused > 0 && done > 0, "{refused} {done}");
}

/// The input of the fault report.
#[test]
fn numbers_of_groups_do_not_depend_on_devices() {
    let on = |count: usize, channels: u32, page_len: usize| {
        let mut out = VirtualArray::<Known>::builder(256)
            .devices(devices(count))
            .placement(Placement::Ratios(vec![channels; count]))
            .page_len(page_len)
            .build()
            .unwrap();
        let x =
            VirtualArray::<u32, AnyDevice>::builder(256).devices(devices(count)).page_len(page_len).build();
        known_96::run((&x.unwrap(), &mut out)).unwrap();
        out.to_vec(..).unwrap().into_iter().map(|item| item[0]).collect::<Vec<_>>()
    };
    let expected: Vec<u64> = (0..256).map(|at| at / 96).collect();
    for (count, channels, page_len) in
        [(1, 1, 64), (2, 1, 64), (1, 2, 64), (4, 1, 1), (3, 2, 100), (2, 2, 96)]
    {
        assert_eq!(on(count, channels, page_len), expected, "{count} {channels} {page_len}");
    }
}

/// Pages that other threads use are waited for, rather than groups cut in front of them.
#[test]
fn groups_are_whole_while_pages_are_in_use() {
    let shape = Shape { page_len: 5, channels: vec![1], frames: 8, ..Shape::default() };
    let values: Vec<u32> = (0..500).collect();
    let x = filled(&shape, &values, 0);
    let out = shape.build::<Known>(500);
    let is_done = Arc::new(std::sync::atomic::AtomicBool::new(false));
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (out, is_done) = (&out, Arc::clone(&is_done));
            scope.spawn(move || {
                let mut random = Numbers::new(thread);
                while !is_done.load(std::sync::atomic::Ordering::Relaxed) {
                    out.get(random.below(500)).unwrap();
                }
            });
        }
        for _ in 0..20 {
            out.fill(.., [0; 5]).unwrap();
            known_32::run((x.section(..500).unwrap(), out.section_mut(..).unwrap())).unwrap();
            assert_eq!(out.to_vec(..).unwrap(), known(&values, 32));
        }
        is_done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}
