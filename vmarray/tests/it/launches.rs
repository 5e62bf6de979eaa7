//! Kernels of the program, run over arrays, sources and sections, against loops over vectors.

use std::ops::Range;
use std::sync::Arc;

use vmarray::bytemuck::{Pod, Zeroable};
use vmarray::device;
use vmarray::device::wrap::{Counting, Fault, Faulty, Operation};
use vmarray::host::SimulatedDevice;
use vmarray::kernel::{At, KernelType, Own};
use vmarray::views::SectionMut;
use vmarray::{AnyDevice, ErrorKind, Result, prelude::*};

use crate::common::{Numbers, Shape, as_any, devices, host, told};

#[vmarray::kernel]
fn mixed(at: At<1>, by: u32, table: &[u16; 4], x: &Own<u32>, y: &Own<u16>, out: &mut Own<u64>) {
    let i = at.index();
    let product = (x.get() * by) as u64;
    out.set(out.get() + product + (y.get() ^ table[i % 4]) as u64 + i as u64);
}

/// The same, as a loop.
fn mixed_natively(by: u32, table: [u16; 4], x: &[u32], y: &[u16], out: &mut [u64]) {
    for (i, out) in out.iter_mut().enumerate() {
        let product = u64::from(x[i].wrapping_mul(by));
        *out += product + u64::from(y[i] ^ table[i % 4]) + i as u64;
    }
}

/// A store of one of three sorts, and a range of it.
enum Held<T: Element> {
    Array(VirtualArray<T>, Range<usize>),
    Source(Source<T>, Range<usize>),
}

impl<T: Element> Held<T> {
    /// Some elements somewhere; beside those of others of the same `shape`, if that is wanted.
    fn random(random: &mut Numbers, values: &[T], alike: Option<&Shape>) -> Self {
        let before = if alike.is_some() { 0 } else { random.below(20) };
        let (len, range) = (before + values.len() + random.below(9), before..before + values.len());
        if alike.is_none() && random.below(3) == 0 {
            let mut all = vec![T::zeroed(); len.max(1)];
            all[range.clone()].copy_from_slice(values);
            let pages = 1 + random.below(30);
            let source = Source::builder(all).devices(devices(1 + random.below(2))).page_len(pages);
            let bytes = size_of::<T>() * pages * (2 + random.below(4)) * 2;
            return Self::Source(source.device_bytes(bytes as u64).build().unwrap(), range);
        }
        let other = Shape::random(random, 30, &[&[1], &[2], &[1, 2]], 4);
        let array = alike.unwrap_or(&other).build(len.max(1));
        array.write(before, values).unwrap();
        Self::Array(array, range)
    }

    fn values(&self) -> Vec<T> {
        match self {
            Self::Array(array, range) => array.to_vec(range.clone()).unwrap(),
            Self::Source(source, range) => source.to_vec(range.clone()).unwrap(),
        }
    }
}

/// Calls a kernel with sections of stores of whichever sort.
macro_rules! with_sections {
    ($($name:ident = $held:expr, $section:ident;)* => $call:expr) => {
        with_sections!(@ [$($name $held, $section;)*] $call)
    };
    (@ [] $call:expr) => { $call };
    (@ [$name:ident $held:expr, $section:ident; $($rest:tt)*] $call:expr) => {
        match $held {
            Held::Array(array, range) => {
                let $name = array.$section(range.clone()).unwrap();
                with_sections!(@ [$($rest)*] $call)
            }
            Held::Source(source, range) => {
                let $name = source.$section(range.clone()).unwrap();
                with_sections!(@ [$($rest)*] $call)
            }
        }
    };
}

#[test]
fn items_have_elements_of_whatever_stands_beside_the_result() {
    for seed in 0..150 {
        let mut random = Numbers::new(seed);
        let len = random.below(400);
        let x: Vec<u32> = (0..len).map(|_| random.next() as u32).collect();
        let y: Vec<u16> = (0..len).map(|_| random.next() as u16).collect();
        let mut truth: Vec<u64> = (0..len).map(|_| random.next() >> 20).collect();
        let alike = Shape::random(&mut random, 30, &[&[1], &[2], &[1, 2]], 4);
        let mut shape = || Some(&alike).filter(|_| random.below(2) == 0);
        let shapes = [shape(), shape(), shape()];
        let xs = Held::random(&mut random, &x, shapes[0]);
        let ys = Held::random(&mut random, &y, shapes[1]);
        let out = Held::random(&mut random, &truth, shapes[2]);
        let (by, table) = (random.next() as u32, [0; 4].map(|_: u16| random.next() as u16));
        with_sections!(x = &xs, section; y = &ys, section; out = &out, section_mut; =>
            mixed::run((by, &table, x, y, out)).unwrap());
        mixed_natively(by, table, &x, &y, &mut truth);
        assert_eq!(out.values(), truth, "seed {seed}");
        assert_eq!((xs.values(), ys.values()), (x, y));
    }
}

#[vmarray::kernel]
fn divided(x: &Own<u32>, by: u32, quotient: &mut Own<u64>, rest: &mut Own<u8>, count: &mut Own<i16>) {
    quotient.set((x.get() / by) as u64);
    rest.set((x.get() % by) as u8);
    count.set(count.get() + 1);
}

#[test]
fn a_kernel_has_several_results_wherever_they_lie() {
    for seed in 0..100 {
        let mut random = Numbers::new(seed);
        let len = random.below(300);
        let x: Vec<u32> = (0..len).map(|_| random.next() as u32).collect();
        let shape = Shape::random(&mut random, 20, &[&[1], &[2], &[1, 2]], 3);
        let mut alike = || Some(&shape).filter(|_| random.below(2) == 0);
        let alike = [alike(), alike(), alike(), alike()];
        let xs = Held::random(&mut random, &x, alike[0]);
        let quotient = Held::random(&mut random, &vec![7_u64; len], alike[1]);
        let rest = Held::random(&mut random, &vec![7_u8; len], alike[2]);
        let count = Held::random(&mut random, &vec![-1_i16; len], alike[3]);
        let by = 1 + random.below(255) as u32;
        for _ in 0..2 {
            with_sections!(
                x = &xs, section; q = &quotient, section_mut; r = &rest, section_mut; n = &count, section_mut; =>
                divided::run((x, by, q, r, n)).unwrap()
            );
        }
        assert!(quotient.values().into_iter().eq(x.iter().map(|x| u64::from(x / by))), "seed {seed}");
        assert!(rest.values().into_iter().eq(x.iter().map(|x| (x % by) as u8)), "seed {seed}");
        assert!(count.values().into_iter().eq(x.iter().map(|_| 1)), "seed {seed}");
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable, KernelType)]
#[bytemuck(crate = "vmarray::bytemuck")]
#[repr(C)]
struct Body {
    place: [f32; 3],
    mass: f32,
    number: u64,
}

#[vmarray::kernel]
fn lifted<const N: usize>(by: (f32, [f64; 2]), like: Body, table: &[Body; N], body: &mut Own<Body>) {
    let mut new = body.get();
    let other = table[new.number as usize % N];
    new.place[2] = new.place[2] + by.0 + other.mass;
    new.mass = (new.mass as f64 * by.1[0] + by.1[1]) as f32;
    if new.number == like.number {
        new.place = like.place;
    }
    body.set(new);
}

#[test]
fn structs_are_elements_values_and_tables() {
    let body = |number: u64| Body { place: [number as f32, 2.0, 0.5], mass: number as f32 / 4.0, number };
    let mut array = Shape { page_len: 7, ..Shape::default() }.build::<Body>(100);
    array.write(0, &(0..100).map(body).collect::<Vec<_>>()).unwrap();
    let (table, like) = ([body(8), body(9), body(10)], body(42));
    lifted::<3>::run(((0.25, [3.0, 1.0]), Body { place: [-1.0; 3], ..like }, &table, &mut array)).unwrap();
    for (i, found) in array.to_vec(..).unwrap().into_iter().enumerate() {
        let mut truth = body(i as u64);
        truth.place[2] += 0.25 + table[i % 3].mass;
        truth.mass = truth.mass * 3.0 + 1.0;
        truth.place = if i == 42 { [-1.0; 3] } else { truth.place };
        assert_eq!(found, truth, "element {i}");
    }
}

#[test]
fn what_does_not_fit_is_refused_before_anything_begins() {
    let (x, y) = (Shape::default().build::<u32>(100), Shape::default().build::<u16>(100));
    let mut out = Shape::default().build::<u64>(99);
    let table = [1, 2, 3, 4];
    let error = mixed::run((3, &table, &x, &y, &mut out)).unwrap_err();
    let ErrorKind::LengthMismatch { of, expected, got } = error.kind() else { panic!("{error}") };
    assert_eq!((*of, *expected, *got), ("x", 99, 100));
    let section =
        |range: Range<usize>| -> SectionMut<'_, VirtualArray<u64>> { out.section_mut(range).unwrap() };
    let of_both = |from, to| shifted::run((section(from), section(to)));
    let error = of_both(0..50, 49..99).unwrap_err();
    let ErrorKind::KernelOverlap { kernel, result, argument } = error.kind() else { panic!("{error}") };
    assert_eq!([kernel, result, argument], ["shifted", "from", "to"]);
    assert_eq!(out.to_vec(..).unwrap(), [0; 99]);
    // Neighbours do not overlap, and nothing overlaps with nothing.
    of_both(0..49, 49..98).unwrap();
    of_both(5..5, 0..0).unwrap();
    assert!((0..99).map(|i| u64::from(i < 49)).eq(out.to_vec(..).unwrap()));
}

#[vmarray::kernel]
fn shifted(from: &mut Own<u64>, to: &mut Own<u64>) {
    let old = from.get();
    from.set(old + 1);
    to.set(old);
}

#[vmarray::kernel]
fn picked(table: &[f32; 5], at: &Own<u8>, out: &mut Own<f32>) {
    let at = at.get() as usize;
    out.set(table[at]);
}

#[test]
fn an_access_outside_names_item_index_and_line() {
    for stores in 0..2 {
        let places: Vec<u8> = (0..100).map(|i| if i % 40 == 39 { 200 } else { i % 5 }).collect();
        let mut random = Numbers::new(stores);
        let places = Held::random(&mut random, &places, None);
        let out = Held::random(&mut random, &[9.0; 100], None);
        let table = [0.5, 1.5, 2.5, 3.5, 4.5];
        let error = with_sections!(places = &places, section; out = &out, section_mut; =>
            picked::run((&table, places, out)).unwrap_err());
        let ErrorKind::KernelOutside { kernel, place, index, item, items } = error.kind() else {
            panic!("{error}")
        };
        assert_eq!((&kernel[..], *index, *items), ("picked", 200, 2));
        assert!([39, 79].contains(item), "{error}");
        let line: u32 = place.rsplit(':').next().unwrap().parse().unwrap();
        let text = include_str!("launches.rs").lines().nth(line as usize - 1).unwrap();
        assert!(place.contains("launches.rs:") && text.contains("out.set(table[at]);"), "{place}: {text}");
        // All others are done.
        let truth = (0..100).map(|i| if i % 40 == 39 { 0.0 } else { (i % 5) as f32 + 0.5 });
        assert!(out.values().into_iter().eq(truth));
    }
}

#[vmarray::kernel]
fn doubled(x: &mut Own<u32>) {
    x.set(x.get() * 2);
}

#[test]
fn a_failure_says_what_is_written_and_loses_nothing() {
    for (after, kind) in (0..6)
        .flat_map(|after| [(after, device::ErrorKind::KernelFailed), (after, device::ErrorKind::Driver)])
    {
        let faulty = Arc::new(Faulty::new(host()));
        let array = Shape::one(10, 3).describe::<u32, _>(100, vec![faulty.clone()]).build().unwrap();
        let values: Vec<u32> = (0..100).collect();
        array.write(0, &values).unwrap();
        let source =
            Source::builder(values.clone()).devices([as_any(&faulty)]).page_len(10).device_bytes(200);
        let source = source.build().unwrap();
        faulty.inject(Fault::new(Operation::Launch, kind).on_call(after));
        let check = |done: Result<()>, found: Vec<u32>| {
            let all = || (std::iter::once(0..100).collect(), Vec::new());
            let (written, unspecified) = done.as_ref().err().map_or_else(all, told);
            for (i, found) in
                found.into_iter().enumerate().filter(|(i, _)| !unspecified.iter().any(|r| r.contains(i)))
            {
                let is_written = written.iter().any(|range| range.contains(&i));
                assert_eq!(found, (if is_written { 2 } else { 1 }) * i as u32, "{done:?}");
            }
        };
        check(doubled::run((source.section_mut(..).unwrap(),)), source.to_vec(..).unwrap());
        check(doubled::run((array.section_mut(..).unwrap(),)), array.to_vec(..).unwrap());
        faulty.clear();
        // Pages were let go.
        array.fill(.., 3).unwrap();
        doubled::run((array.section_mut(5..95).unwrap(),)).unwrap();
        assert_eq!((array.get(4).unwrap(), array.get(5).unwrap()), (3, 6));
    }
}

#[test]
fn a_device_that_cannot_refuses_before_anything_is_written() {
    let able: Arc<AnyDevice> = as_any(&Arc::new(host()));
    let unable = Arc::new(Faulty::new(host()));
    unable.inject(Fault::new(Operation::Launch, device::ErrorKind::Unsupported).from_call(1));
    let shape = Shape { channels: vec![1, 1], page_len: 5, ..Shape::default() };
    let mut array = shape.describe::<u32, _>(100, vec![able, as_any(&unable)]).build().unwrap();
    array.fill(.., 21).unwrap();
    let error = doubled::run((&mut array,)).unwrap_err();
    assert_eq!(error.device_error().unwrap().kind(), device::ErrorKind::Unsupported);
    assert!(matches!(error.kind(), ErrorKind::Device(_)), "{error}");
    assert_eq!(array.to_vec(..).unwrap(), [21; 100]);
    unable.clear();
    doubled::run((&mut array,)).unwrap();
    assert_eq!(array.to_vec(..).unwrap(), [42; 100]);
}

#[test]
fn elements_beside_the_result_are_not_copied() {
    let card = Arc::new(Counting::new(SimulatedDevice::builder(3).build()));
    let shape = Shape { channels: vec![2], page_len: 16, frames: 4, ..Shape::default() };
    let describe = || vec![as_any(&card)];
    let x = shape.describe::<u32, _>(1000, describe()).build().unwrap();
    let q = shape.describe::<u64, _>(1000, describe()).build().unwrap();
    let rest = shape.describe::<u8, _>(1000, describe()).build().unwrap();
    let n = shape.describe::<i16, _>(1000, describe()).build().unwrap();
    x.write(0, &(0..1000).collect::<Vec<u32>>()).unwrap();
    x.flush(..).unwrap();
    let run = || {
        let results = (q.section_mut(..).unwrap(), rest.section_mut(..).unwrap(), n.section_mut(..).unwrap());
        divided::run((&x, 10, results.0, results.1, results.2)).unwrap();
    };
    // Results are at home, and stay there.
    run();
    card.reset();
    run();
    let work = card.reset().work;
    assert_eq!((work.upload_bytes, work.download_bytes), (0, 0));
    assert_eq!((q.get(999).unwrap(), rest.get(999).unwrap(), n.get(999).unwrap()), (99, 9, 2));
}
