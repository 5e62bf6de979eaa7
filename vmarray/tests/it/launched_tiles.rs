//! Tests of kernels whose groups are tiles of a result of several dimensions, compared with loops over
//! positions.

use std::sync::Arc;

use vmarray::boundary::Circular;
use vmarray::device;
use vmarray::kernel::{Anywhere, Append, Appended, At, Code, Group, Own, Shared, Window};
use vmarray::nd::NdLayout;
use vmarray::{AnyDevice, ErrorKind, NdArray, prelude::*};

use crate::common::boxes::{assert_padding_is_zero, is_inside, positions, random_box};
use crate::common::{Numbers, as_any, devices, host};

type Devices = Vec<Arc<AnyDevice>>;

fn array<T: Element>(random: &mut Numbers, shape: [usize; 2], values: &[T], on: &Devices) -> NdArray<T, 2> {
    let layout = match random.below(3) {
        0 => NdLayout::Tiled([4, 3]),
        1 => NdLayout::Tiled([1 + random.below(5), 1 + random.below(5)]),
        _ => NdLayout::RowMajor,
    };
    let (page_len, frames) = (1 + random.below(30), 1 + random.below(4));
    let builder = NdArray::builder(shape).devices(on.clone()).layout(layout);
    let array = builder.elements(|of| of.page_len(page_len).frames_per_channel(frames)).build().unwrap();
    array.write_box(.., values).unwrap();
    array
}

/// Items share elements with other items of the group, including neighbours.
#[vmarray::kernel(group = [4, 3])]
fn turned(at: At<2>, by: &Own<u32>, old: &Window<u32, 2>, tile: &Group<u64, 4, 3>, out: &mut Own<u64>) {
    let i = at.in_group();
    let mut own = 5;
    if at.is_inside() {
        own = out.get() + 1000 * by.get() as u64 + old[at.plus([1, -1])] as u64;
    }
    tile.set(i, own);
    barrier();
    out.set(tile[[3 - i[0], 2 - i[1]]]);
}

#[test]
fn tiles_lie_in_results_of_any_layout_and_extents() {
    for seed in 0..backend_api::wrap::random_cases(80).into() {
        let mut random = Numbers::new(seed);
        let shape = [1 + random.below(14), 1 + random.below(14)];
        let of = if random.below(2) == 0 { random_box(&mut random, shape) } else { [0; 2]..shape };
        let extent: [usize; 2] = std::array::from_fn(|axis| of.end[axis] - of.start[axis]);
        let mut values = |count: usize| (0..count).map(|_| random.next() as u32).collect::<Vec<_>>();
        let (by, old) = (values(extent[0] * extent[1]), values(extent[0] * extent[1]));
        let on = devices(1 + random.below(2));
        let out = array(&mut random, shape, &vec![7_u64; shape[0] * shape[1]], &on);
        let others = if random.below(2) == 0 { on } else { devices(1) };
        let (factors, around) =
            (array(&mut random, extent, &by, &others), array(&mut random, extent, &old, &others));
        let window = around.bounded(Circular).window([1, 1]);
        turned::run((&factors, window, out.section_mut(of.clone()).unwrap())).unwrap();
        let own = |[y, x]: [usize; 2]| {
            let beside = (y + 1) % extent[0] * extent[1] + (x + extent[1] - 1) % extent[1];
            7 + 1000 * u64::from(by[y * extent[1] + x]) + u64::from(old[beside])
        };
        for at in positions(&([0; 2]..shape)) {
            let [y, x] = std::array::from_fn(|axis| at[axis].wrapping_sub(of.start[axis]));
            let truth = if is_inside(&of, &at) {
                let other = [y / 4 * 4 + 3 - y % 4, x / 3 * 3 + 2 - x % 3];
                if other[0] < extent[0] && other[1] < extent[1] { own(other) } else { 5 }
            } else {
                7
            };
            assert_eq!(out.get(at).unwrap(), truth, "seed {seed}: {at:?} of {of:?} in {:?}", out.layout());
        }
        assert_padding_is_zero(&out);
    }
}

#[vmarray::kernel(group = [8, 8])]
fn numbered(at: At<2>, from: u64, sum: &Shared<u64>, out: &mut Own<[u64; 64]>, first: &mut Own<u32>) {
    if at.is_inside() {
        sum.add(0, 1);
    }
    out.set([from + (at[0] * at.shape()[1] + at[1]) as u64; 64]);
    first.set(at.group()[0] as u32);
}

#[test]
fn long_results_are_written_a_band_at_a_time() -> vmarray::Result<()> {
    // The array has 19 MB, of which at most 16 MiB are processed at once.
    let shape = [301, 125];
    let on = devices(1);
    let mut out = NdArray::<[u64; 64], 2>::builder(shape).devices(on.clone()).build()?;
    let mut first = NdArray::<u32, 2>::builder(shape).devices(on.clone()).build()?;
    let mut sum = VirtualArray::<u64>::builder(1).devices(devices(1)).build()?;
    numbered::run((7, &mut sum, &mut out, &mut first))?;
    assert_eq!(sum.get(0)?, 301 * 125, "each item has run once");
    for at in [[0, 0], [0, 124], [150, 3], [255, 1], [256, 7], [263, 9], [264, 0], [299, 99], [300, 124]] {
        let number = 7 + (at[0] * 125 + at[1]) as u64;
        assert_eq!((out.get(at)?, first.get(at)?), ([number; 64], at[0] as u32 / 8), "{at:?}");
    }
    Ok(())
}

#[vmarray::kernel(group = [2, 2])]
fn both(_at: At<2>, a: &mut Own<u32>, b: &mut Own<u32>) {
    a.set(6);
    b.set(6);
}

#[test]
fn a_failed_launch_reports_possible_changes() {
    use device::wrap::{Fault, Operation};
    use vmarray_conformance::wrap::Faulty;
    let mut outcomes = [0; 3];
    for (is_late, call) in
        [false, true].into_iter().flat_map(|is_late| (1..5).map(move |call| (is_late, call)))
    {
        let faulty = Arc::new(Faulty::new(host()));
        let build = || {
            let on = vec![as_any(&faulty)];
            let array = NdArray::<u32, 2>::builder([5, 6]).devices(on).build().unwrap();
            array.write_box(.., &[5; 30]).unwrap();
            array
        };
        let (mut a, mut b) = (build(), build());
        let fault = Fault::new(Operation::Launch, device::ErrorKind::Driver).on_call(call);
        faulty.inject(if is_late { fault.reported_later() } else { fault });
        let result = both::run((&mut a, &mut b));
        faulty.clear();
        let found = [a.to_vec(..).unwrap(), b.to_vec(..).unwrap()];
        let outcome = match result.as_ref().map_err(vmarray::Error::kind) {
            Ok(()) => 0,
            Err(ErrorKind::Interrupted { written, unspecified, .. }) => {
                assert!(written.is_empty() && unspecified.iter().cloned().eq(std::iter::once(0..30)));
                1
            }
            Err(_) => 2,
        };
        outcomes[outcome] += 1;
        match outcome {
            0 => assert_eq!(found, [[6; 30]; 2]),
            1 => {}
            _ => assert_eq!(found, [[5; 30]; 2], "{is_late} {call}: {result:?}"),
        }
    }
    assert!(outcomes.iter().all(|times| *times > 0), "{outcomes:?}");
}

#[vmarray::kernel(group = [4, 4])]
fn below(at: At<2>, of: &Anywhere<u32, 2>, out: &mut Own<u32>) -> u32 {
    out.set(of[[at[0] + 1, at[1]]]);
    1
}

#[vmarray::kernel(group = [4, 4])]
fn placed(at: At<2>, out: &mut Own<u32>, found: &Append<u32>) {
    found.push(at[0] as u32);
    out.set(1);
}

#[test]
fn failures_are_reported_for_items_with_an_element() -> vmarray::Result<()> {
    let of = NdArray::<u32, 2>::builder([6, 5]).devices(devices(1)).build()?;
    of.write_box(.., &(0..30).collect::<Vec<_>>())?;
    let mut out = NdArray::<u32, 2>::builder([6, 5]).devices(devices(1)).build()?;
    let error = below::run((&of, &mut out)).unwrap_err();
    let ErrorKind::KernelOutside { index: 6, item, items: 5, .. } = error.kind() else { panic!("{error}") };
    assert!((25..30).contains(item), "{error}");
    assert_eq!(out.to_vec(..)?, (5..30).chain([0; 5]).collect::<Vec<u32>>());
    // SAFETY: the call refuses it.
    let error = below::with_code(unsafe { Code::new("below") }).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::KernelRefused { .. }), "{error}");
    let mut found = Vec::new();
    let error = placed::run((&mut out, Appended::in_order(&mut found, 30))).unwrap_err();
    assert!(error.to_string().contains("use `Appended::to`"), "{error}");
    let error = below::sum((&of, &mut out)).unwrap_err();
    assert!(error.to_string().contains("cannot be reduced if groups are tiles"), "{error}");
    let mut line = VirtualArray::<u32>::builder(6).devices(devices(1)).build()?;
    let error = below::run((&of, &mut line)).unwrap_err();
    assert!(error.to_string().contains("`At<2>`"), "{error}");
    Ok(())
}
