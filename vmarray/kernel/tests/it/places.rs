//! Tests of positions in several dimensions, and of reads at positions.

use crate::harness::{random, same};
use backend_api::kernel::{Interpreter, Op, Slices};
use vmarray_kernel::launch::{DomainAxis, LaunchVariant, Mode, lower_for};
use vmarray_kernel::{
    Anywhere, At, Own, ScalarSource, StencilPart, Window, boundary, interpret, kernel, lower, run_on_host,
};

#[kernel(crate = vmarray_kernel)]
fn numbered(at: At<3>, out: &mut Own<u64>) {
    let (a, b, c) = (at[0], at[1], at[2]);
    out.set((a * 10_000 + b * 100 + c + 1_000_000 * at.shape()[2]) as u64);
}

#[test]
fn items_have_an_index_for_each_axis() {
    for shape in [[1, 1, 1], [2, 3, 4], [5, 1, 7], [3, 8, 1], [1, 9, 9]] {
        let len = shape.iter().product();
        let (mut host, mut lowered) = (vec![0; len], vec![0; len]);
        run_on_host::<numbered>(0..len, (shape, &mut host)).unwrap();
        interpret::<numbered>(0..len, (shape, &mut lowered)).unwrap();
        let mut truth = Vec::new();
        for a in 0..shape[0] {
            for b in 0..shape[1] {
                truth.extend((0..shape[2]).map(|c| (a * 10_000 + b * 100 + c + 1_000_000 * shape[2]) as u64));
            }
        }
        assert_eq!(host, truth);
        assert_eq!(lowered, truth);
    }
}

#[kernel(crate = vmarray_kernel)]
fn only_axis(at: At<1>, out: &mut Own<u64>) {
    out.set(at[0] as u64);
}

#[test]
fn the_only_axis_has_an_index_too() {
    let mut lowered = [0; 3];
    interpret::<only_axis>(0..3, ((), &mut lowered)).unwrap();
    let mut host = [0; 3];
    run_on_host::<only_axis>(0..3, ((), &mut host)).unwrap();
    assert_eq!((lowered, host), ([0, 1, 2], [0, 1, 2]));
}

#[kernel(crate = vmarray_kernel)]
fn neighbour(at: At<2>, by: [isize; 2]) -> usize {
    let there = at.plus(by);
    there[0] + there[1]
}

#[kernel(crate = vmarray_kernel)]
fn walked(at: At<2>, steps: u32, of: &Window<i32, 2>, all: &Anywhere<i32, 2>, out: &mut Own<i32>) {
    let mut here = at;
    let mut sum = of[at];
    for step in 0..steps {
        here = if step % 2 == 0 { here.plus([1, 0]) } else { here.plus([-1, 1]) };
        sum = sum * 3 + of[here];
    }
    let (rows, columns) = (all.shape()[0], all.shape()[1]);
    let mut total = 0;
    for row in 0..rows {
        total += all[[row, at[1] % columns]];
    }
    sum += total + neighbour(at, [1, 2]) as i32;
    out.set(sum);
}

#[test]
fn windows_are_read_by_places_that_change() {
    let (shape, first, extents) = ([7, 9], [-1, -1], [9, 13]);
    let of: Vec<i32> = random(3, 9 * 13);
    let all: Vec<i32> = random(4, 5 * 4);
    let (mut host, mut lowered) = (vec![0; 63], vec![0; 63]);
    let given = || (first, extents, &of[..]);
    run_on_host::<walked>(0..63, (shape, 5, given(), ([5, 4], &all), &mut host)).unwrap();
    let report = interpret::<walked>(0..63, (shape, 5, given(), ([5, 4], &all), &mut lowered)).unwrap();
    assert_eq!(report.failures, 0);
    same(&host, &lowered);
    let at = |y: usize, x: usize| of[(y + 1) * 13 + x + 1];
    for (i, found) in host.into_iter().enumerate() {
        let (y, x) = (i / 9, i % 9);
        let mut sum = at(y, x);
        for (y, x) in [(y + 1, x), (y, x + 1), (y + 1, x + 1), (y, x + 2), (y + 1, x + 2)] {
            sum = sum.wrapping_mul(3).wrapping_add(at(y, x));
        }
        for row in 0..5 {
            sum = sum.wrapping_add(all[row * 4 + x % 4]);
        }
        assert_eq!(found, sum.wrapping_add((y + x + 3) as i32), "item {i}");
    }
}

#[kernel(crate = vmarray_kernel)]
fn beside(at: At<2>, of: &Window<u8, 2>, out: &mut Own<u8>) {
    out.set(of[at.plus([-1, 1])]);
}

#[kernel(crate = vmarray_kernel)]
fn far(of: &Anywhere<u8, 2>, at: At<2>, out: &mut Own<u8>) {
    out.set(of[[at[0], at[1] + 1]]);
}

#[test]
fn an_outside_index_is_reported_as_computed() {
    let mut out = [0; 6];
    let given = ([0, 0], [2, 3], &[1, 2, 3, 4, 5, 6][..]);
    let outside = run_on_host::<beside>(0..6, ([2, 3], given, &mut out)).unwrap_err();
    assert_eq!((outside.count, outside.index as i64, out), (4, -1, [0, 0, 0, 2, 3, 0]));
    let report = interpret::<beside>(0..6, ([2, 3], given, &mut out)).unwrap();
    assert_eq!((report.failures, report.detail as i64, out), (4, -1, [0, 0, 0, 2, 3, 0]));
    let given = || ([2, 3], &[1, 2, 3, 4, 5, 6][..]);
    let outside = run_on_host::<far>(0..6, (given(), [2, 3], &mut out)).unwrap_err();
    assert_eq!((outside.count, outside.index, out), (2, 3, [2, 3, 0, 5, 6, 0]));
    let report = interpret::<far>(0..6, (given(), [2, 3], &mut out)).unwrap();
    assert_eq!((report.failures, report.detail), (2, 3));
}

#[test]
fn constant_distances_need_no_branches() {
    let mut branches = 0;
    lower::<beside>().unwrap().body.operations(|_, op| {
        branches += usize::from(matches!(op, Op::If { .. } | Op::Loop { .. }));
    });
    assert_eq!(branches, 0);
}

#[kernel(crate = vmarray_kernel)]
fn crossed(at: At<2>, far: isize, of: &Window<i32, 2>, out: &mut Own<i32>) {
    let mut sum = of[at.plus([far, -far])];
    for k in 0..5 {
        sum = sum * 3 + of[at.plus([k - 2, 0])];
        sum = sum * 5 + of[at.plus([1, 3 - k])];
    }
    out.set(sum);
}

/// Index shown by a boundary mode; `None` for its value.
fn shown(mode: Mode, at: isize, len: usize) -> Option<usize> {
    let last = len as isize - 1;
    let steps = |mut at: isize, before: isize, after: isize| {
        while !(0..=last).contains(&at) {
            at = if at < 0 { before - at } else { after - at };
        }
        at
    };
    Some(match mode {
        _ if (0..=last).contains(&at) => at as usize,
        Mode::Clamp => at.clamp(0, last) as usize,
        Mode::Circular => at.rem_euclid(len as isize) as usize,
        Mode::Mirror if last == 0 => 0,
        Mode::Mirror => steps(at, 0, 2 * last) as usize,
        Mode::Symmetric => steps(at, -1, 2 * last + 1) as usize,
        Mode::Value | Mode::Checked => return None,
    })
}

#[test]
fn modes_show_the_same_with_32_and_64_bits() {
    let modes = [Mode::Value, Mode::Clamp, Mode::Circular, Mode::Mirror, Mode::Symmetric];
    for (number, mode) in modes.into_iter().enumerate() {
        let other = modes[(number * 2 + 1) % 5];
        for (shape, far) in [([4, 7], 1), ([1, 3], -2), ([3, 1], 9), ([5, 5], -40)] {
            let len: usize = shape.iter().product();
            let values: Vec<i32> = random(number as u64, len);
            let of = |[y, x]: [isize; 2]| match (shown(mode, y, shape[0]), shown(other, x, shape[1])) {
                (None, _) => 77,
                (_, None) => 88,
                (Some(y), Some(x)) => values[y * shape[1] + x],
            };
            let truth = (0..len).map(|i| {
                let (y, x) = ((i / shape[1]) as isize, (i % shape[1]) as isize);
                (0..5).fold(of([y + far, x - far]), |sum, k| {
                    let sum = sum.wrapping_mul(3).wrapping_add(of([y + k - 2, x]));
                    sum.wrapping_mul(5).wrapping_add(of([y + 1, x + 3 - k]))
                })
            });
            let truth: Vec<i32> = truth.collect();
            for is_short in [false, true] {
                let form = LaunchVariant {
                    modes: vec![(2, 0, mode), (2, 1, other)],
                    is_short,
                    ..LaunchVariant::default()
                };
                let lowered = lower_for::<crossed>(&form).unwrap();
                let scalar = |source: &ScalarSource| match *source {
                    ScalarSource::Value { .. } => far as u64,
                    ScalarSource::Axis { axis, part } => {
                        DomainAxis::whole(shape[axis]).scalar(part, is_short)
                    }
                    ScalarSource::Stencil { part: StencilPart::Extent(axis), .. } => shape[axis] as u64,
                    ScalarSource::Stencil { part: StencilPart::Stride(0), .. } => shape[1] as u64,
                    ScalarSource::Stencil { part: StencilPart::Value(axis, _), .. } => [77, 88][axis],
                    _ => 0,
                };
                let params: Vec<u64> = lowered.scalars.iter().map(scalar).collect();
                let kernel = backend_api::kernel::VerifiedKernel::new(lowered.body.clone()).unwrap();
                let (mut given, mut out) = (values.clone(), vec![0; len]);
                let slices = [&mut given, &mut out].map(|of| (bytemuck::cast_slice_mut(of), 4));
                let launch = Interpreter {
                    params: &params,
                    ..Interpreter::new(&kernel, len as u64, backend_api::expr::Geometry::plain(0))
                };
                let report = launch.run(&mut Slices::new(slices.into())).unwrap();
                assert_eq!(report.failures, 0);
                assert_eq!(out, truth, "{mode:?}, {other:?} of {shape:?}, short: {is_short}");
            }
        }
    }
}

#[kernel(crate = vmarray_kernel)]
fn far_outside(at: At<2>, by: usize, of: &Anywhere<u32, 2>, out: &mut Own<u32>) {
    out.set(of[[at[0] + by, at[1]]]);
}

#[test]
fn nothing_is_there_however_far_outside() {
    let of = [7; 6];
    for by in [2, 1 << 61, 1 << 62, 1 << 63, 3 << 62, usize::MAX - 1] {
        let (mut out, mut other) = ([1; 6], [1; 6]);
        run_on_host::<far_outside>(0..6, ([2, 3], by, ([2, 3], &of), &mut out)).unwrap_err();
        let report = interpret::<far_outside>(0..6, ([2, 3], by, ([2, 3], &of), &mut other)).unwrap();
        assert_eq!((report.failures, out, other), (6, [0; 6], [0; 6]), "{by}");
    }
}

const FAR: isize = 1 << 62;

#[kernel(crate = vmarray_kernel)]
fn far_beside(at: At<2>, by: isize, of: &Window<u32, 2>, out: &mut Own<u32>) {
    out.set(of[at.plus([by, 0])] + of[at.plus([0, FAR])] + of[at.plus([FAR, 0])] + of[at.plus([0, by])]);
}

#[kernel(crate = vmarray_kernel)]
fn far_along(at: At<1>, by: isize, of: &Window<u32, 1>, out: &mut Own<u32>) {
    out.set(of[at.plus(by)] + of[at.plus(FAR)] + of[at.plus(-FAR)]);
}

#[test]
fn windows_end_however_far_outside() {
    let of = [7; 6];
    for by in [9, 1 << 61, 1 << 62, isize::MIN, 3 << 61, -1 << 62, isize::MAX - 1, -9] {
        for is_whole in [true, false] {
            let first = if is_whole { [0, 0] } else { [-1, 1] };
            let (mut out, mut other) = ([1; 6], [1; 6]);
            let given = || ([2, 3], by, (first, [2, 3], &of[..]));
            let (shape, by, window) = given();
            run_on_host::<far_beside>(0..6, (shape, by, window, &mut out)).unwrap_err();
            let report = interpret::<far_beside>(0..6, (shape, by, window, &mut other)).unwrap();
            assert_eq!((report.failures, out, other), (6, [0; 6], [0; 6]), "{by}");
        }
        let (mut out, mut other) = ([1; 6], [1; 6]);
        let window = || ([0], [6], &of[..]);
        run_on_host::<far_along>(0..6, ((), by, window(), &mut out)).unwrap_err();
        let report = interpret::<far_along>(0..6, ((), by, window(), &mut other)).unwrap();
        assert_eq!((report.failures, out, other), (6, [0; 6], [0; 6]), "{by}");
    }
}

#[kernel(crate = vmarray_kernel)]
fn by_functions(i: &Own<isize>, x: &Anywhere<u32>, out: &mut Own<[u32; 4]>) {
    let (i, n) = (i.get(), x.len());
    out.set([
        x[boundary::clamp(i, n)],
        x[boundary::circular(i, n)],
        x[boundary::mirror(i, n)],
        x[boundary::symmetric(i, n)],
    ]);
}

#[test]
fn boundary_modes_show_elements_at_any_distance() {
    let indices: Vec<isize> = random(3, 500);
    for extent in [1, 2, 7] {
        let x: Vec<u32> = (1..=extent).collect();
        let mut out = [vec![[0; 4]; 500], vec![[0; 4]; 500]];
        run_on_host::<by_functions>(0..500, (&indices, &x, &mut out[0])).unwrap();
        assert_eq!(interpret::<by_functions>(0..500, (&indices, &x, &mut out[1])).unwrap().failures, 0);
        assert_eq!(out[0], out[1]);
        for (i, [_, circular, ..]) in indices.iter().zip(&out[0]) {
            assert_eq!(*circular, i.rem_euclid(extent as isize) as u32 + 1, "{i} of {extent}");
        }
    }
}
