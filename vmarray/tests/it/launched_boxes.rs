//! Tests of kernels over boxes of several dimensions, compared with loops over positions.

use std::sync::Arc;

use vmarray::boundary::{Boundary, Circular, Clamp, Constant, Mirror, Symmetric, Zero};
use vmarray::host::SimulatedDevice;
use vmarray::kernel::{Anywhere, At, Own, Window};
use vmarray::nd::{NdLayout, NdSection};
use vmarray::{AnyDevice, ErrorKind, NdArray, Placement, prelude::*};
use vmarray_conformance::wrap::Counting;

use crate::common::boxes::{assert_padding_is_zero, is_inside, number, positions, random_box};
use crate::common::{Numbers, as_any, devices};

/// An array on some devices, filled row by row.
fn array<T: Element, const N: usize>(
    random: &mut Numbers,
    shape: [usize; N],
    values: &[T],
    on: Vec<Arc<AnyDevice>>,
) -> NdArray<T, N> {
    let layout = match random.below(2) {
        0 => NdLayout::RowMajor,
        _ => NdLayout::Tiled(std::array::from_fn(|_| 1 + random.below(4))),
    };
    let (page_len, frames) = (1 + random.below(30), 1 + random.below(4));
    let elements =
        |elements: vmarray::Builder<T, AnyDevice>| elements.page_len(page_len).frames_per_channel(frames);
    let built = NdArray::builder(shape).devices(on).layout(layout).elements(elements).build().unwrap();
    built.write_box(.., values).unwrap();
    built
}

fn some_devices(random: &mut Numbers) -> Vec<Arc<AnyDevice>> {
    devices(1 + random.below(2))
}

#[vmarray::kernel]
fn placed(at: At<3>, by: &Own<u32>, out: &mut Own<u64>) {
    let number = (at[0] * at.shape()[1] + at[1]) * at.shape()[2] + at[2];
    out.set(out.get() + number as u64 * by.get() as u64);
}

#[test]
fn items_have_positions_in_boxes_of_any_layout() {
    for seed in 0..backend_api::wrap::random_cases(120).into() {
        let mut random = Numbers::new(seed);
        let shape: [usize; 3] = std::array::from_fn(|_| 1 + random.below(9));
        let len = shape.iter().product::<usize>();
        let of = if random.below(2) == 0 { random_box(&mut random, shape) } else { [0; 3]..shape };
        let extent: [usize; 3] = std::array::from_fn(|axis| of.end[axis] - of.start[axis]);
        let by: Vec<u32> = (0..extent.iter().product()).map(|_| random.next() as u32).collect();
        let on = some_devices(&mut random);
        let other = if random.below(2) == 0 { on.clone() } else { some_devices(&mut random) };
        let out = array(&mut random, shape, &vec![7_u64; len], on);
        let factors = array(&mut random, extent, &by, other);
        placed::run((&factors, out.section_mut(of.clone()).unwrap())).unwrap();
        for at in positions(&([0; 3]..shape)) {
            let within: [usize; 3] = std::array::from_fn(|axis| at[axis].wrapping_sub(of.start[axis]));
            let truth = if is_inside(&of, &at) {
                let number = number(extent, within);
                7 + number as u64 * u64::from(by[number])
            } else {
                7
            };
            assert_eq!(out.get(at).unwrap(), truth, "seed {seed}: {at:?} of {of:?} in {:?}", out.layout());
        }
        assert_padding_is_zero(&out);
    }
}

#[vmarray::kernel]
fn star<const R: usize>(at: At<2>, of: &Window<i32, 2>, out: &mut Own<i32>) {
    let mut sum = of[at];
    for k in 0..2 * R + 1 {
        let by = k as isize - R as isize;
        sum = sum * 3 + of[at.plus([by, 0])];
        sum = sum * 5 + of[at.plus([0, by])];
        sum = sum * 7 + of[at.plus([by, -by])];
    }
    out.set(sum);
}

#[vmarray::kernel]
fn star_of(at: At<2>, radius: usize, of: &Window<i32, 2>, out: &mut Own<i32>) {
    let mut sum = of[at];
    for k in 0..2 * radius + 1 {
        let by = k as isize - radius as isize;
        sum = sum * 3 + of[at.plus([by, 0])];
        sum = sum * 5 + of[at.plus([0, by])];
        sum = sum * 7 + of[at.plus([by, -by])];
    }
    out.set(sum);
}

fn star_natively(radius: usize, of: impl Fn([isize; 2]) -> i32, [y, x]: [usize; 2]) -> i32 {
    let (y, x) = (y as isize, x as isize);
    let mut sum = of([y, x]);
    for k in 0..2 * radius as isize + 1 {
        let by = k - radius as isize;
        sum = sum.wrapping_mul(3).wrapping_add(of([y + by, x]));
        sum = sum.wrapping_mul(5).wrapping_add(of([y, x + by]));
        sum = sum.wrapping_mul(7).wrapping_add(of([y + by, x - by]));
    }
    sum
}

fn any_mode<T: Element>(random: &mut Numbers, value: T) -> Box<dyn Boundary<T, 1> + Sync>
where
    Constant<T>: Sync,
{
    match random.below(6) {
        0 => Box::new(Zero),
        1 => Box::new(Constant(value)),
        2 => Box::new(Clamp),
        3 => Box::new(Circular),
        4 => Box::new(Mirror),
        _ => Box::new(Symmetric),
    }
}

#[test]
fn windows_of_images_follow_their_modes() {
    for seed in 0..backend_api::wrap::random_cases(200).into() {
        let mut random = Numbers::new(seed);
        let shape = [1 + random.below(14), 1 + random.below(20)];
        let len = shape[0] * shape[1];
        let values: Vec<i32> = (0..len).map(|_| random.next() as i32 >> 8).collect();
        let on = some_devices(&mut random);
        let other = if random.below(3) > 0 { on.clone() } else { some_devices(&mut random) };
        let image = array(&mut random, shape, &values, on);
        let source = Source::builder(values.clone()).devices(other.clone()).build().unwrap();
        let mut of = random_box(&mut random, shape);
        if (0..2).any(|axis| of.start[axis] == of.end[axis]) || random.below(2) == 0 {
            of = [0; 2]..shape;
        }
        let extent = [of.end[0] - of.start[0], of.end[1] - of.start[1]];
        let out = array(&mut random, extent, &vec![1_i32; extent[0] * extent[1]], other);
        let radius = [1, 4][random.below(2)];
        let halo = [radius + random.below(2), radius];
        let (rows, columns) = (any_mode(&mut random, 11), any_mode(&mut random, 22));
        let modes = (&*rows, &*columns);
        let is_constant = random.below(2) == 0;
        let run = |window, out| match (is_constant, radius) {
            (true, 1) => star::<1>::run((window, out)),
            (true, _) => star::<4>::run((window, out)),
            (false, _) => star_of::run((radius, window, out)),
        };
        let results = out.section_mut(..).unwrap();
        let shown: Vec<i32> = if random.below(4) == 0 {
            let section = NdSection::over(&source, shape).unwrap().section(of.clone()).unwrap();
            let view = section.bounded(modes);
            let window = view.window(halo);
            match (is_constant, radius) {
                (true, 1) => star::<1>::run((window, results)),
                (true, _) => star::<4>::run((window, results)),
                (false, _) => star_of::run((radius, window, results)),
            }
            .unwrap();
            let of = |at| view.get(at).unwrap();
            positions(&([0; 2]..extent)).into_iter().map(|at| star_natively(radius, of, at)).collect()
        } else {
            let view = image.section(of.clone()).unwrap().bounded(modes);
            run(view.window(halo), results).unwrap();
            let of = |at| view.get(at).unwrap();
            positions(&([0; 2]..extent)).into_iter().map(|at| star_natively(radius, of, at)).collect()
        };
        assert_eq!(out.to_vec(..).unwrap(), shown, "seed {seed}");
        assert_padding_is_zero(&out);
    }
}

#[vmarray::kernel]
fn turned(at: At<3>, of: &Window<[u16; 3], 3>, out: &mut Own<[u16; 3]>) {
    let (a, b) = (of[at.plus([-1, 0, 2])], of[at.plus([0, 1, -1])]);
    out.set([a[1], b[2], a[0] ^ b[0]]);
}

#[test]
fn windows_of_volumes_have_elements_of_several_numbers() {
    for seed in 0..backend_api::wrap::random_cases(60).into() {
        let mut random = Numbers::new(seed);
        let shape: [usize; 3] = std::array::from_fn(|_| 1 + random.below(7));
        let len = shape.iter().product::<usize>();
        let values: Vec<[u16; 3]> = (0..len).map(|_| [0; 3].map(|_: u16| random.next() as u16)).collect();
        let on = some_devices(&mut random);
        let of = array(&mut random, shape, &values, on.clone());
        let out = array(&mut random, shape, &vec![[9_u16; 3]; len], on);
        let modes = [(); 3].map(|()| any_mode(&mut random, [5, 6, 7]));
        let view = of.bounded((&*modes[0], &*modes[1], &*modes[2]));
        turned::run((view.window([1, 1, 2]), out.section_mut(..).unwrap())).unwrap();
        for at in positions(&([0; 3]..shape)) {
            let [z, y, x] = at.map(|at| at as isize);
            let (a, b) = (view.get([z - 1, y, x + 2]).unwrap(), view.get([z, y + 1, x - 1]).unwrap());
            assert_eq!(out.get(at).unwrap(), [a[1], b[2], a[0] ^ b[0]], "seed {seed}");
        }
    }
}

#[vmarray::kernel]
fn row<const R: usize>(at: At<1>, of: &Window<i32, 1>, out: &mut Own<i32>) {
    let mut sum = 0;
    for k in 0..2 * R + 1 {
        sum = sum * 3 + of[at.plus(k as isize - R as isize)];
    }
    out.set(sum);
}

#[test]
fn rows_are_read_where_they_lie() {
    for seed in 0..backend_api::wrap::random_cases(100).into() {
        let mut random = Numbers::new(seed);
        let len = 1 + random.below(100);
        let values: Vec<i32> = (0..len).map(|_| random.next() as i32 >> 8).collect();
        let card = devices(1);
        let build = |random: &mut Numbers, len| {
            let pages = 1 + random.below(20);
            let built = VirtualArray::<i32>::builder(len).devices(card.clone()).page_len(pages);
            built.frames_per_channel(3).build().unwrap()
        };
        let (of, out) = (build(&mut random, len), build(&mut random, len));
        of.write(0, &values).unwrap();
        let mut range = random.range(len);
        if range.is_empty() {
            range = 0..len;
        }
        let mode = any_mode(&mut random, -5);
        let view = of.section(range.clone()).unwrap().bounded(&*mode);
        row::<3>::run((view.window(3), out.section_mut(range.clone()).unwrap())).unwrap();
        for i in 0..range.len() {
            let shown = view.to_vec([i as isize - 3], [7]).unwrap();
            let truth = shown.iter().fold(0_i32, |sum, value| sum.wrapping_mul(3).wrapping_add(*value));
            assert_eq!(out.get(range.start + i).unwrap(), truth, "seed {seed}: {i} of {range:?}");
        }
    }
}

#[test]
fn windows_on_the_results_device_are_not_copied() {
    let card = Arc::new(Counting::new(SimulatedDevice::builder(3).build()));
    let build = |channels: u32| {
        let elements = move |elements: vmarray::Builder<i32, AnyDevice>| {
            elements.page_len(16).frames_per_channel(4).placement(Placement::Ratios(vec![channels]))
        };
        let built = NdArray::<i32, 2>::builder([40, 30]).devices([as_any(&card)]).elements(elements);
        built.build().unwrap()
    };
    for channels in [1, 3] {
        let (of, mut out) = (build(channels), build(2));
        of.write_box(.., &(0..1200).collect::<Vec<_>>()).unwrap();
        of.elements().flush(..).unwrap();
        star::<1>::run((of.bounded(Mirror).window([1, 1]), &mut out)).unwrap();
        card.reset();
        star::<1>::run((of.bounded(Mirror).window([1, 1]), &mut out)).unwrap();
        let work = card.reset().work;
        assert_eq!((work.upload_bytes, work.download_bytes), (0, 0));
        let view = of.bounded(Mirror);
        for at in [[0, 0], [39, 29], [0, 29], [20, 0], [17, 13]] {
            assert_eq!(out.get(at).unwrap(), star_natively(1, |at| view.get(at).unwrap(), at));
        }
    }
}

#[vmarray::kernel]
fn product(at: At<2>, a: &Anywhere<i32, 2>, b: &Anywhere<i32, 2>, all: &Anywhere<i32>, out: &mut Own<i32>) {
    let mut sum = all[all.len() - 1];
    for k in 0..a.shape()[1] {
        sum += a[[at[0], k]] * b[[k, at[1]]];
    }
    out.set(sum);
}

#[test]
fn matrices_are_multiplied_wherever_they_lie() {
    for seed in 0..backend_api::wrap::random_cases(60).into() {
        let mut random = Numbers::new(seed);
        let [n, m, k] = [(); 3].map(|()| 1 + random.below(9));
        let a: Vec<i32> = (0..n * k).map(|_| random.next() as i32 >> 8).collect();
        let b: Vec<i32> = (0..k * m).map(|_| random.next() as i32 >> 8).collect();
        let on = some_devices(&mut random);
        let mut other = || if random.below(3) > 0 { on.clone() } else { devices(1) };
        let (of_a, of_b, of_out) = (other(), other(), other());
        let left = array(&mut random, [n, k], &a, of_a);
        let right = array(&mut random, [k, m], &b, of_b);
        let mut out = array(&mut random, [n, m], &vec![1; n * m], of_out);
        product::run((&left, &right, &right, &mut out)).unwrap();
        for [i, j] in positions(&([0; 2]..[n, m])) {
            let sum =
                (0..k).fold(b[k * m - 1], |sum, l| sum.wrapping_add(a[i * k + l].wrapping_mul(b[l * m + j])));
            assert_eq!(out.get([i, j]).unwrap(), sum, "seed {seed}");
        }
    }
}

#[vmarray::kernel]
fn above(at: At<2>, of: &Window<u32, 2>, out: &mut Own<u32>) {
    out.set(of[at.plus([-1, 0])]);
}

#[vmarray::kernel]
fn line(at: At<1>, out: &mut Own<u32>) {
    out.set(at.index() as u32);
}

#[vmarray::kernel]
fn numbered(at: At<2>, out: &mut Own<u64>) {
    out.set(at[0] as u64);
}

#[vmarray::kernel]
fn doubled(out: &mut Own<u32>) {
    out.set(out.get() * 2);
}

#[test]
fn arguments_that_do_not_fit_boxes_are_refused() {
    let mut random = Numbers::new(1);
    let card = devices(1);
    let image = array(&mut random, [4, 6], &[3_u32; 24], card.clone());
    let mut out = array(&mut random, [4, 5], &[1_u32; 20], card.clone());
    let others = array(&mut random, [6, 4, 1], &[1_u32; 24], card.clone());
    let volume = array(&mut random, [6, 4, 1], &[1_u64; 24], card);
    let error = placed::run((&image, volume.section_mut(..).unwrap())).unwrap_err();
    let ErrorKind::KernelShape { argument, expected, got, .. } = error.kind() else { panic!("{error}") };
    assert_eq!((&argument[..], &expected[..], &got[..]), ("by", &[6, 4, 1][..], &[4, 6][..]));
    placed::run((&others, volume.section_mut(..).unwrap())).unwrap();
    let refused = |done: vmarray::Result<()>, word: &str| {
        let error = done.unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::KernelRefused { .. }) && error.to_string().contains(word),
            "{error}"
        );
    };
    refused(line::run((&mut out,)), "use an `At<2>`");
    let plane = volume.project_mut::<2>(2, 0).unwrap();
    refused(numbered::run((plane,)), "fewer axes");
    // A kernel that reads no position runs over any box.
    doubled::run((out.section_mut([1, 1]..[3, 3]).unwrap(),)).unwrap();
    assert!(positions(&([0; 2]..[4, 5])).into_iter().all(|at| {
        let is_doubled = is_inside(&([1, 1]..[3, 3]), &at);
        out.get(at).unwrap() == if is_doubled { 2 } else { 1 }
    }));
    // Errors of accesses out of bounds contain the index that the kernel used.
    let error = above::run((image.section([0, 0]..[4, 5]).unwrap().window([1, 0]), &mut out)).unwrap_err();
    let ErrorKind::KernelOutside { index, items, place, .. } = error.kind() else { panic!("{error}") };
    assert_eq!((*index, *items), (-1, 5));
    assert!(place.contains("launched_boxes.rs:"), "{place}");
    assert_eq!((out.get([0, 2]).unwrap(), out.get([1, 2]).unwrap()), (0, 3));
}
