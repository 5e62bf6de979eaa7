//! Tests of kernels over arrays, sources and sections, compared with loops over vectors.

use std::ops::Range;
use std::sync::Arc;

use vmarray::boundary::{Circular, Clamp, Constant, Mirror, Symmetric, Zero};
use vmarray::bytemuck::{Pod, Zeroable};
use vmarray::device;
use vmarray::device::wrap::{Fault, Operation};
use vmarray::host::SimulatedDevice;
use vmarray::kernel::{
    Anywhere, Append, Appended, At, Code, Group, KernelType, Own, Rows, Session, Shared, Window,
};
use vmarray::views::SectionMut;
use vmarray::{AnyDevice, ErrorKind, RaggedArray, Result, prelude::*};
use vmarray_conformance::wrap::{Counting, Faulty};

use crate::common::{Numbers, Shape, as_any, changed_ranges, devices, host, hosts};

#[vmarray::kernel]
fn mixed(at: At<1>, by: u32, table: &[u16; 4], x: &Own<u32>, y: &Own<u16>, out: &mut Own<u64>) {
    let i = at.index();
    let product = (x.get() * by) as u64;
    out.set(out.get() + product + (y.get() ^ table[i % 4]) as u64 + i as u64);
}

/// The same as a loop.
fn mixed_natively(by: u32, table: [u16; 4], x: &[u32], y: &[u16], out: &mut [u64]) {
    for (i, out) in out.iter_mut().enumerate() {
        let product = u64::from(x[i].wrapping_mul(by));
        *out += product + u64::from(y[i] ^ table[i % 4]) + i as u64;
    }
}

/// A store of one of three kinds, and a range of it.
enum Held<T: Element> {
    Array(VirtualArray<T>, Range<usize>),
    Source(Source<T>, Range<usize>),
}

impl<T: Element> Held<T> {
    /// Some elements in some store; with `alike`, in the same pages as others.
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
        let other = Shape::any(random, 30, 4);
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

/// Calls a kernel with sections of stores of any kind.
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
fn items_have_elements_of_every_argument_next_to_the_result() {
    for seed in 0..backend_api::wrap::random_cases(150).into() {
        let mut random = Numbers::new(seed);
        let len = random.below(400);
        let x: Vec<u32> = (0..len).map(|_| random.next() as u32).collect();
        let y: Vec<u16> = (0..len).map(|_| random.next() as u16).collect();
        let mut truth: Vec<u64> = (0..len).map(|_| random.next() >> 20).collect();
        let alike = Shape::any(&mut random, 30, 4);
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
    for seed in 0..backend_api::wrap::random_cases(100).into() {
        let mut random = Numbers::new(seed);
        let len = random.below(300);
        let x: Vec<u32> = (0..len).map(|_| random.next() as u32).collect();
        let shape = Shape::any(&mut random, 20, 3);
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
fn mismatched_arguments_are_refused_before_the_start() {
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
    let ErrorKind::KernelOverlap { kernel, place, result, argument } = error.kind() else {
        panic!("{error}")
    };
    assert_eq!([kernel, result, argument], ["shifted", "from", "to"]);
    assert!(place.contains("launches.rs:"), "{error}");
    assert_eq!(out.to_vec(..).unwrap(), [0; 99]);
    // Adjacent ranges do not overlap, and empty ranges overlap with none.
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
        // All other items must have stored their results.
        let truth = (0..100).map(|i| if i % 40 == 39 { 0.0 } else { (i % 5) as f32 + 0.5 });
        assert!(out.values().into_iter().eq(truth));
    }
}

#[vmarray::kernel]
fn doubled(x: &mut Own<u32>) {
    x.set(x.get() * 2);
}

#[test]
fn a_failure_reports_the_written_ranges_and_loses_nothing() {
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
            let (written, unspecified) = done.as_ref().err().map_or_else(all, changed_ranges);
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
        // The launch released its pages.
        array.fill(.., 3).unwrap();
        doubled::run((array.section_mut(5..95).unwrap(),)).unwrap();
        assert_eq!((array.get(4).unwrap(), array.get(5).unwrap()), (3, 6));
    }
}

#[test]
fn a_device_that_cannot_launch_works_in_ram() {
    let able: Arc<AnyDevice> = as_any(&Arc::new(host()));
    let unable = Arc::new(Faulty::new(host()));
    unable.inject(Fault::new(Operation::Launch, device::ErrorKind::Unsupported).from_call(1));
    let shape = Shape { channels: vec![1, 1], page_len: 5, ..Shape::default() };
    let mut array = shape.describe::<u32, _>(100, vec![able, as_any(&unable)]).build().unwrap();
    array.fill(.., 21).unwrap();
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
    // The results are at home, and stay there.
    run();
    card.reset();
    run();
    let work = card.reset().work;
    assert_eq!((work.upload_bytes, work.download_bytes), (0, 0));
    assert_eq!((q.get(999).unwrap(), rest.get(999).unwrap(), n.get(999).unwrap()), (99, 9, 2));
}

#[vmarray::kernel]
fn gathered(at: At<1>, of: &Anywhere<u32>, step: u64, more: &Anywhere<u8>, out: &mut Own<u64>) {
    let i = at.index() as u64 * step;
    let near = of[(i % of.len() as u64) as usize] as u64;
    let far = more[more.len() - 1 - (i % more.len() as u64) as usize];
    out.set(near * 256 + far as u64);
}

#[test]
fn items_read_any_element_of_an_anywhere() {
    for seed in 0..backend_api::wrap::random_cases(60).into() {
        let mut random = Numbers::new(seed);
        let lens = [1 + random.below(300), 1 + random.below(300), random.below(300)];
        let of: Vec<u32> = (0..lens[0]).map(|_| random.next() as u32).collect();
        let more: Vec<u8> = (0..lens[1]).map(|_| random.next() as u8).collect();
        let ofs = Held::random(&mut random, &of, None);
        let mores = Held::random(&mut random, &more, None);
        let out = Held::random(&mut random, &vec![1_u64; lens[2]], None);
        let step = random.next() >> 32;
        with_sections!(of = &ofs, section; more = &mores, section; out = &out, section_mut; =>
            gathered::run((of, step, more, out)).unwrap());
        let truth = (0..lens[2] as u64).map(|i| {
            let at = i * step;
            let far = more[more.len() - 1 - (at % more.len() as u64) as usize];
            u64::from(of[(at % of.len() as u64) as usize]) * 256 + u64::from(far)
        });
        assert!(out.values().into_iter().eq(truth), "seed {seed}");
    }
}

/// Sums of pairs of rows, up to the shorter row.
#[vmarray::kernel]
fn paired(at: At<1>, rows: &Rows<u32>, others: &Rows<u8>, sums: &mut Own<u64>) {
    let other = others.len() - 1 - at.index();
    let mut sum = 0;
    for i in 0..rows.row_len(at.index()).min(others.row_len(other)) {
        sum += rows[[at.index(), i]] as u64 * (others[[other, i]] as u64 + 1);
    }
    sums.set(sum);
}

#[test]
fn items_read_rows_of_an_anywhere() {
    for seed in 0..backend_api::wrap::random_cases(60).into() {
        let mut random = Numbers::new(seed);
        let count = 1 + random.below(100);
        let rows: Vec<Vec<u32>> =
            (0..count).map(|_| (0..random.below(9)).map(|_| random.next() as u32).collect()).collect();
        let others: Vec<Vec<u8>> =
            (0..count).map(|_| (0..random.below(9)).map(|_| random.next() as u8).collect()).collect();
        let ragged = RaggedArray::builder()
            .devices(devices(1 + random.below(2)))
            .elements(|elements| elements.page_len(1 + random.below(40)))
            .offsets(|offsets| offsets.page_len(7));
        let ragged = ragged.from_rows(&rows).unwrap();
        let mut starts = vec![0];
        others.iter().for_each(|row| starts.push(starts[starts.len() - 1] + row.len() as u64));
        let starts = Held::random(&mut random, &starts, None);
        let elements = Held::random(&mut random, &others.concat(), None);
        let sums = Held::random(&mut random, &vec![1_u64; count], None);
        with_sections!(starts = &starts, section; elements = &elements, section; sums = &sums, section_mut; =>
            paired::run((&ragged, (starts, elements), sums)).unwrap());
        let truth = rows.iter().zip(others.iter().rev()).map(|(row, other)| {
            row.iter().zip(other).map(|(a, b)| u64::from(*a) * (u64::from(*b) + 1)).sum::<u64>()
        });
        assert!(sums.values().into_iter().eq(truth), "seed {seed}");
        // The launch has more items than rows.
        let more = Held::random(&mut random, &vec![1_u64; count + 1], None);
        let error = with_sections!(more = &more, section_mut; =>
            paired::run((&ragged, &ragged_of_bytes(&others), more)).unwrap_err());
        assert!(matches!(error.kind(), ErrorKind::KernelOutside { items: 1, .. }), "{error}");
        let session = in_a_session(&ragged, count);
        assert!(session.into_iter().eq(rows.iter().map(|row| row.len() as u64)), "seed {seed}");
    }
}

fn ragged_of_bytes(rows: &[Vec<u8>]) -> RaggedArray<u8> {
    RaggedArray::builder().devices(devices(1)).from_rows(rows).unwrap()
}

#[vmarray::kernel]
fn lengths(at: At<1>, rows: &Rows<u32>, out: &mut Own<u64>) {
    out.set(rows.row_len(at.index()) as u64);
}

fn in_a_session(rows: &RaggedArray<u32>, count: usize) -> Vec<u64> {
    let mut out = VirtualArray::<u64>::builder(count).devices(devices(1)).build().unwrap();
    let mut session = Session::new();
    let of = session.hold(&mut out).unwrap();
    let starts = session.copy(rows.offsets().section(..=count).unwrap()).unwrap();
    let elements = session.copy(rows.items()).unwrap();
    lengths::run_in(&mut session, ((starts, elements), of)).unwrap();
    session.finish().unwrap();
    out.to_vec(..).unwrap()
}

#[vmarray::kernel]
fn around<const R: usize>(at: At<1>, of: &Window<i32, 1>, weights: &[i32; 9], out: &mut Own<i32>) {
    let mut sum = 0;
    for k in 0..2 * R + 1 {
        sum += weights[k] * of[at.plus(k as isize - R as isize)];
    }
    out.set(sum);
}

#[test]
fn a_window_over_nothing_follows_its_mode() {
    for of in
        [Source::new(vec![1; 3]).unwrap(), Source::builder(vec![1; 3]).devices(devices(2)).build().unwrap()]
    {
        let (nothing, mut out) = (of.section(3..).unwrap(), Shape::one(2, 1).build::<i32>(5));
        let weights = &[1, 10, 100, 0, 0, 0, 0, 0, 0];
        around::<1>::run((nothing.bounded(Constant(7)).window(1), weights, &mut out)).unwrap();
        assert_eq!(out.to_vec(..).unwrap(), [777; 5]);
        around::<1>::run((nothing.bounded(Zero).window(1), weights, &mut out)).unwrap();
        assert_eq!(out.to_vec(..).unwrap(), [0; 5]);
    }
    let empty = VirtualArray::<i32>::builder(0).devices(devices(1)).build().unwrap();
    let mut out = Shape::one(2, 1).build::<i32>(5);
    around::<0>::run((empty.bounded(Constant(7)).window(0), &[1; 9], &mut out)).unwrap();
    assert_eq!(out.to_vec(..).unwrap(), [7; 5]);
    // An empty view has no element at the edge.
    assert!(around::<0>::run((empty.bounded(Clamp).window(0), &[1; 9], &mut out)).is_err());
}

/// Dispatches on a boundary mode by number.
macro_rules! with_mode {
    ($number:expr, $mode:ident => $call:expr) => {
        match $number {
            0 => with_mode!(@ Zero, $mode => $call),
            1 => with_mode!(@ Constant(7), $mode => $call),
            2 => with_mode!(@ Clamp, $mode => $call),
            3 => with_mode!(@ Circular, $mode => $call),
            4 => with_mode!(@ Mirror, $mode => $call),
            _ => with_mode!(@ Symmetric, $mode => $call),
        }
    };
    (@ $value:expr, $mode:ident => $call:expr) => {{
        let $mode = $value;
        $call
    }};
}

#[test]
fn windows_follow_their_mode() {
    for seed in 0..backend_api::wrap::random_cases(90).into() {
        let mut random = Numbers::new(seed);
        let len = 1 + random.below(200);
        let of: Vec<i32> = (0..len).map(|_| random.next() as i32 >> 8).collect();
        let ofs = Held::random(&mut random, &of, None);
        let out = Held::random(&mut random, &vec![1_i32; len], None);
        let weights: [i32; 9] = std::array::from_fn(|_| random.next() as i32 >> 20);
        let wide = random.below(2) == 0;
        let radius = if wide { 4 } else { 1 };
        let (halo, mode) = (radius + random.below(3), random.below(6));
        // Expected elements, as the boundary mode reads them at each index.
        let shown: Vec<i32> = with_mode!(mode, mode => with_sections!(of = &ofs, section; =>
            of.bounded(mode).to_vec([-(radius as isize)], [len + 2 * radius]).unwrap()));
        with_mode!(mode, mode => with_sections!(of = &ofs, section; out = &out, section_mut; => {
            let window = of.bounded(mode).window(halo);
            if wide { around::<4>::run((window, &weights, out)) } else { around::<1>::run((window, &weights, out)) }
        }))
        .unwrap();
        let truth = (0..len).map(|i| {
            let terms = shown[i..=i + 2 * radius].iter().zip(weights);
            terms.fold(0_i32, |sum, (value, weight)| sum.wrapping_add(value.wrapping_mul(weight)))
        });
        assert!(out.values().into_iter().eq(truth), "seed {seed}");
    }
}

#[test]
fn a_window_shows_its_halo_and_existing_elements_only() {
    // On its own device, next to the result, the kernel reads the array in place, so more elements are
    // visible.
    let array = Shape::default().describe::<i32, _>(100, hosts::<1>().to_vec()).build().unwrap();
    array.fill(.., 1).unwrap();
    let mut out = Shape { channels: vec![1, 1], ..Shape::default() }.build::<i32>(50);
    let weights = [1; 9];
    // The other argument is longer on both sides.
    around::<4>::run((array.section(0..54).unwrap().window(4), &weights, &mut out)).unwrap_err();
    let outside = |window, out: &mut _| {
        let error = around::<1>::run((window, &weights, out)).unwrap_err();
        let ErrorKind::KernelOutside { index, item, items, .. } = error.kind() else { panic!("{error}") };
        (*index, *item, *items)
    };
    let section = |range: Range<usize>| array.section(range).unwrap();
    assert_eq!(outside(section(0..60).window(1), &mut out), (-1, 0, 1));
    assert_eq!(outside(section(0..50).window(1), &mut out).2, 2);
    // Each item reads before the first readable position, and after the last one.
    assert_eq!(outside(section(0..60).window(0), &mut out).2, 2);
    assert!(out.to_vec(1..49).unwrap().into_iter().all(|sum| sum == 3));
    let error =
        around::<1>::run((out.section(10..).unwrap().window(1), &weights, out.section_mut(..20).unwrap()));
    assert!(matches!(error.unwrap_err().kind(), ErrorKind::KernelOverlap { .. }));
}

#[vmarray::kernel]
fn differences(at: At<1>, of: &Window<[u64; 32], 1>, out: &mut Own<u64>) {
    let (before, here, after) = (of[at.plus(-1)], of[at], of[at.plus(1)]);
    out.set(after[31] - before[0] + here[at.index() % 32]);
}

#[test]
fn long_windows_are_copied_in_parts() {
    // The elements have 17 MiB, of which at most 16 MiB are on the device at once.
    let len = 70_000;
    let card = Arc::new(Counting::new(host()));
    let values: Vec<[u64; 32]> = (0..len).map(|i| std::array::from_fn(|at| i * 100 + at as u64)).collect();
    let source =
        Source::builder(values.clone()).devices([as_any(&card)]).device_bytes(1 << 20).build().unwrap();
    let shape = Shape { page_len: 1000, frames: 9, ..Shape::one(1000, 9) };
    let mut out = shape.describe::<u64, _>(len as usize, vec![as_any(&card)]).build().unwrap();
    card.reset();
    differences::run((source.bounded(Circular).window(1), &mut out)).unwrap();
    let uploaded = card.reset().work.upload_bytes;
    // The launch has two parts, each with a halo on both sides.
    assert_eq!(uploaded, (len + 2 * 2) * 256);
    for i in [0, 1, 65_535, 65_536, len - 1] {
        let [before, after] = [(i + len - 1) % len, (i + 1) % len].map(|i| values[i as usize]);
        let truth = after[31].wrapping_sub(before[0]).wrapping_add(values[i as usize][i as usize % 32]);
        assert_eq!(out.get(i as usize).unwrap(), truth, "item {i}");
    }
}

#[test]
fn copies_that_fail_leave_results_as_they_were() {
    let operations =
        [Operation::Allocate, Operation::AllocateHost, Operation::CreateQueue, Operation::Submit];
    for (operation, on_call) in
        operations.into_iter().flat_map(|operation| (1..4).map(move |call| (operation, call)))
    {
        let faulty = Arc::new(Faulty::new(host()));
        let array = Shape::one(10, 3).describe::<i32, _>(100, vec![faulty.clone()]).build().unwrap();
        array.write(0, &[5; 100]).unwrap();
        array.flush(..).unwrap();
        let other = Shape::one(7, 3).build::<i32>(100);
        other.fill(.., 1).unwrap();
        faulty.inject(Fault::new(operation, device::ErrorKind::OutOfMemory).on_call(on_call));
        let result =
            around::<1>::run((other.bounded(Zero).window(1), &[1; 9], array.section_mut(..).unwrap()));
        faulty.clear();
        let found = array.to_vec(..).unwrap();
        match &result {
            Ok(()) => assert_eq!((found[0], found[50]), (2, 3)),
            Err(error) => {
                let (written, unspecified) = changed_ranges(error);
                let is_old = |i: &usize| !written.iter().chain(&unspecified).any(|range| range.contains(i));
                assert!((0..100).filter(is_old).all(|i| found[i] == 5), "{operation:?} {on_call}: {error}");
            }
        }
        around::<1>::run((other.bounded(Zero).window(1), &[1; 9], array.section_mut(..).unwrap())).unwrap();
        assert_eq!(array.get(99).unwrap(), 2);
    }
}

#[vmarray::kernel]
fn counted(x: &Own<u8>, bins: &Shared<u32>, sums: &Shared<i64>) {
    let bin = x.get() as usize / 64;
    bins.add(bin, 1);
    sums.add(bin, x.get() as i64);
    sums.max(4, x.get() as i64);
}

#[test]
fn items_change_shared_elements_of_one_device() {
    for seed in 0..backend_api::wrap::random_cases(40).into() {
        let mut random = Numbers::new(seed);
        let x: Vec<u8> = (0..random.below(500)).map(|_| random.next() as u8).collect();
        let shape = Shape { channels: vec![2], ..Shape::random(&mut random, 30, &[&[1], &[3]], 4) };
        let device = devices(1);
        let array = shape.describe::<u8, _>(x.len().max(1), device.clone()).build().unwrap();
        array.write(0, &x).unwrap();
        let source = Source::builder(x.clone()).devices(device).page_len(1 + random.below(20));
        let source = source.device_bytes(200).build().unwrap();
        let bins = Held::random(&mut random, &[1_u32; 4], None);
        let sums = Held::random(&mut random, &[-5_i64; 5], None);
        with_sections!(bins = &bins, section_mut; sums = &sums, section_mut; => {
            counted::run((array.section(..x.len()).unwrap(), bins, sums)).unwrap();
            counted::run((&source, bins, sums)).unwrap();
        });
        let (mut counts, mut totals) = ([1_u32; 4], [-5_i64; 5]);
        for x in x.iter().chain(&x) {
            counts[usize::from(*x) / 64] += 1;
            totals[usize::from(*x) / 64] += i64::from(*x);
            totals[4] = totals[4].max((*x).into());
        }
        assert_eq!((bins.values(), sums.values()), (counts.to_vec(), totals.to_vec()), "seed {seed}");
    }
}

#[vmarray::kernel]
fn large(at: At<1>, x: &Own<u32>, limit: u32, found: &Append<[u64; 2]>, seen: &mut Own<u8>) {
    seen.set(1);
    if x.get() >= limit {
        found.push([at.index() as u64, x.get() as u64]);
    }
}

#[test]
fn items_append_on_several_devices() {
    for seed in 0..backend_api::wrap::random_cases(40).into() {
        let mut random = Numbers::new(seed);
        let x: Vec<u32> = (0..1 + random.below(400)).map(|_| random.next() as u32 >> 8).collect();
        let xs = Held::random(&mut random, &x, None);
        let seen = Held::random(&mut random, &vec![0_u8; x.len()], None);
        let limit = random.next() as u32 >> 8;
        let mut found = vec![[7, 7]];
        with_sections!(x = &xs, section; seen = &seen, section_mut; =>
            large::run((x, limit, Appended::to(&mut found, x.len()), seen)).unwrap());
        let (first, rest) = found.split_first_mut().unwrap();
        rest.sort_unstable();
        let truth = (0..).zip(&x).filter(|(_, x)| **x >= limit).map(|(i, x)| [i, u64::from(*x)]);
        assert_eq!((*first, rest.to_vec()), ([7, 7], truth.collect()), "seed {seed}");
        assert_eq!(seen.values(), vec![1; x.len()]);
    }
}

/// Each item appends `x` elements.
#[vmarray::kernel]
fn counting(at: At<1>, x: &Own<u8>, found: &Append<[u16; 3]>, others: &Append<u64>, seen: &mut Own<u8>) {
    for i in 0..x.get() {
        found.push([at.index() as u16, i as u16, 7]);
        if i % 2 == 1 {
            others.push((at.index() * 10) as u64 + i as u64);
        }
    }
    seen.set(1);
}

#[vmarray::kernel(group = 8)]
fn in_groups(at: At<1>, x: &Own<u8>, found: &Append<[u16; 3]>, others: &Append<u64>, seen: &mut Own<u8>) {
    counting(at, x, found, others, seen);
}

#[test]
fn items_append_in_their_order() {
    for seed in 0..backend_api::wrap::random_cases(60).into() {
        let mut random = Numbers::new(seed);
        let x: Vec<u8> = (0..1 + random.below(200)).map(|_| random.below(7) as u8).collect();
        let xs = Held::random(&mut random, &x, None);
        let page_len = if seed % 2 == 0 { 8 * (1 + random.below(4)) } else { 1 + random.below(20) };
        let shape = Shape { page_len, ..Shape::any(&mut random, 30, 3) };
        let seen = shape.build::<u8>(x.len());
        let (mut found, mut others) = (vec![[9; 3]], vec![9]);
        let room = (Appended::in_order(&mut found, 2000), Appended::in_order(&mut others, 2000));
        let seen_by = seen.section_mut(..).unwrap();
        with_sections!(xs = &xs, section; => match seed % 2 {
            0 => in_groups::run((xs, room.0, room.1, seen_by)).unwrap(),
            _ => counting::run((xs, room.0, room.1, seen_by)).unwrap(),
        });
        let pushed = || (0_u16..).zip(&x).flat_map(|(at, x)| (0..u16::from(*x)).map(move |i| (at, i)));
        assert!(found[1..].iter().copied().eq(pushed().map(|(at, i)| [at, i, 7])), "seed {seed}");
        let odd = pushed().filter(|(_, i)| i % 2 == 1).map(|(at, i)| u64::from(at * 10 + i));
        assert!(others[1..].iter().copied().eq(odd), "seed {seed}");
        assert_eq!(seen.to_vec(..).unwrap(), vec![1; x.len()]);
    }
}

#[vmarray::kernel]
fn half_outside(at: At<1>, of: &Anywhere<u32>, found: &Append<u32>) {
    found.push(7);
    found.push(of[at.index()]);
}

#[test]
fn a_failure_of_items_that_append_in_order_names_its_line() {
    let of = Source::new(vec![1_u32, 2]).unwrap();
    let mut found = Vec::new();
    let launch = half_outside::launch().over(0..3);
    let error = launch.run((&of, Appended::in_order(&mut found, 10))).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::KernelOutside { index: 2, item: 2, .. }), "{error}");
    assert!(error.to_string().contains("launches.rs"), "{error}");
    let error = half_outside::launch().over(0..2).run((&of, Appended::in_order(&mut found, 3))).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::KernelAppend { asked: 4, most: 3, .. }), "{error}");
}

#[test]
fn an_overflow_of_room_is_reported() {
    let array = Shape::default().build::<u32>(100);
    array.fill(.., 9).unwrap();
    let seen = Shape::default().build::<u8>(100);
    let mut found = Vec::new();
    let run =
        |found: &mut Vec<_>| large::run((&array, 9, Appended::to(found, 60), seen.section_mut(..).unwrap()));
    let error = run(&mut found).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::KernelAppend { asked: 100, most: 60, .. }), "{error}");
    assert_eq!((found.len(), seen.to_vec(..).unwrap()), (0, vec![1; 100]));
    let halves = Shape { channels: vec![1, 1], ..Shape::default() };
    let halves = halves.describe::<u8, _>(100, vec![Arc::new(host()), Arc::new(host())]).build().unwrap();
    let (bins, sums) = (Shape::default().build::<u32>(4), Shape::default().build::<i64>(5));
    let refused =
        counted::run((&halves, bins.section_mut(..).unwrap(), sums.section_mut(..).unwrap())).unwrap_err();
    assert!(refused.to_string().contains("on several devices"), "{refused}");
    let bins = bins.section_mut(..).unwrap();
    let twice = added::run((bins, bins)).unwrap_err();
    assert!(matches!(twice.kind(), ErrorKind::KernelOverlap { .. }), "{twice}");
}

#[vmarray::kernel]
fn added(bins: &Shared<u32>, x: &Own<u32>) {
    bins.add(0, x.get());
}

#[vmarray::kernel(group = 16)]
fn prefixes(at: At<1>, part: &Group<u32, 16>, x: &Own<u32>, sums: &mut Own<u32>) {
    part.set(at.in_group(), x.get());
    barrier();
    let mut sum = 0;
    for i in 0..at.in_group() + 1 {
        sum += part[i];
    }
    sums.set(sum);
}

#[test]
fn groups_are_made_of_items_that_run_together() {
    let shape = Shape::one(64, 4);
    let build = || shape.describe::<u32, _>(200, devices(1)).build().unwrap();
    let (x, mut sums) = (build(), build());
    x.write(0, &(0..200).collect::<Vec<u32>>()).unwrap();
    prefixes::run((&x, &mut sums)).unwrap();
    for (i, sum) in sums.to_vec(..).unwrap().into_iter().enumerate() {
        assert_eq!(sum, (i as u32 / 16 * 16..=i as u32).sum::<u32>(), "item {i}");
    }
}

#[test]
fn a_failure_leaves_shared_and_appended_elements() {
    let faulty = Arc::new(Faulty::new(host()));
    let x = Shape::one(10, 3).describe::<u8, _>(100, vec![faulty.clone()]).build().unwrap();
    let numbers = Shape::one(10, 3).describe::<u32, _>(100, vec![faulty.clone()]).build().unwrap();
    numbers.fill(.., 9).unwrap();
    let (bins, sums) = (Shape::default().build::<u32>(4), Shape::default().build::<i64>(5));
    let seen = Shape::one(10, 3).describe::<u8, _>(100, vec![faulty.clone()]).build().unwrap();
    for later in [false, true] {
        let fault = || Fault::new(Operation::Launch, device::ErrorKind::KernelFailed).on_call(1);
        let fault = || if later { fault().reported_later() } else { fault() };
        faulty.inject(fault());
        counted::run((&x, bins.section_mut(..).unwrap(), sums.section_mut(..).unwrap())).unwrap_err();
        assert_eq!((bins.to_vec(..).unwrap(), sums.to_vec(..).unwrap()), (vec![0; 4], vec![0; 5]));
        faulty.clear();
        let mut found = vec![[1, 2]];
        let failing = seen.section_mut(..).unwrap();
        faulty.inject(Fault::new(Operation::Submit, device::ErrorKind::CopyFailed).from_call(2));
        large::run((&numbers, 9, Appended::to(&mut found, 100), failing)).unwrap_err();
        assert_eq!(found, [[1, 2]]);
        faulty.clear();
    }
    counted::run((&x, bins.section_mut(..).unwrap(), sums.section_mut(..).unwrap())).unwrap();
    assert_eq!(bins.to_vec(..).unwrap(), [100, 0, 0, 0]);
}

#[test]
fn an_array_on_the_same_device_is_read_where_it_lies() {
    let card = Arc::new(Counting::new(SimulatedDevice::builder(5).build()));
    let of = Shape { channels: vec![3], page_len: 7, frames: 4, ..Shape::default() };
    let of = of.describe::<u32, _>(500, vec![card.clone()]).build().unwrap();
    let more = Shape::one(16, 4).describe::<u8, _>(90, vec![card.clone()]).build().unwrap();
    let out = Shape { channels: vec![2], page_len: 16, frames: 4, ..Shape::default() };
    let mut out = out.describe::<u64, _>(300, vec![card.clone()]).build().unwrap();
    of.write(0, &(0..500).collect::<Vec<u32>>()).unwrap();
    more.write(40, &[200; 50]).unwrap();
    of.flush(..).unwrap();
    let truth = |of: &dyn Fn(u64) -> u64, more: &dyn Fn(u64) -> u64| -> Vec<u64> {
        (0..300).map(|i| of(i * 77 % 500) * 256 + more(89 - i * 77 % 90)).collect()
    };
    let more_of = |at: u64| if at >= 40 { 200 } else { 0 };
    gathered::run((&of, 77, &more, &mut out)).unwrap();
    assert_eq!(out.to_vec(..).unwrap(), truth(&|at| at, &more_of));
    // Newer pages in the cache are written back; there are no other copies.
    out.evict(..).unwrap();
    of.set(3, 1_000_000).unwrap();
    card.reset();
    gathered::run((&of, 77, &more, &mut out)).unwrap();
    assert_eq!(card.reset().work.upload_bytes, 7 * 4);
    assert_eq!(out.to_vec(..).unwrap(), truth(&|at| if at == 3 { 1_000_000 } else { at }, &more_of));
    // One argument is a section from the start, and one is copied.
    gathered::run((of.section(..250).unwrap(), 77, more.section(1..).unwrap(), &mut out)).unwrap();
    let (at, far) = (299 * 77 % 250, 90 - 1 - 299 * 77 % 89);
    assert_eq!(out.get(299).unwrap(), (if at == 3 { 1_000_000 } else { at }) * 256 + more_of(far));
}

#[vmarray::kernel]
fn scaled(at: At<1>, by: f32, x: &Own<f32>, out: &mut Own<f32>) {
    out.set(x.get() * by + at.index() as f32);
}

#[test]
fn code_from_elsewhere_is_run_where_it_fits() {
    let text = "__kernel void scaled(ulong first, ulong items) {}";
    // SAFETY: no device runs it: host devices ignore it, and the others refuse it.
    let code = unsafe { Code::new("scaled") }.opencl_c(text).ptx("nonsense");
    let coded = scaled::with_code(code).unwrap();
    let x = Shape::default().build::<f32>(100);
    x.fill(.., 2.0).unwrap();
    let mut out = Shape::default().build::<f32>(100);
    match coded.run((3.0, &x, &mut out)) {
        Ok(()) => assert!(out.to_vec(..).unwrap().into_iter().eq((0..100).map(|i| 6.0 + i as f32))),
        Err(error) => match error.kind() {
            ErrorKind::Device { .. } => assert_eq!(out.get(99).unwrap(), 0.0),
            // The kernel fails at its translation, before any element changes.
            ErrorKind::Interrupted { .. } => assert!(changed_ranges(&error).0.is_empty(), "{error}"),
            other => panic!("{other:?}"),
        },
    }
}
