//! Tests of lowered kernels: their operations and their results.

use backend_api::kernel::{Body, Op};
use vmarray_kernel::{Anywhere, At, Own, kernel, lower};

/// Counts the operations of a body that satisfy a predicate.
fn count(body: &Body, is: fn(&Op) -> bool) -> usize {
    let mut count = 0;
    body.operations(|_, op| count += usize::from(is(op)));
    count
}

#[kernel(crate = vmarray_kernel)]
fn window<const R: usize>(at: At<1>, image: &Anywhere<f32>, out: &mut Own<f32>) {
    let mut taps = [0.0; 9];
    for k in 0..2 * R + 1 {
        taps[k] = image[at.index() + k];
    }
    let mut sum = 0.0;
    for k in 0..2 * R + 1 {
        sum += taps[k] * (k + 1) as f32;
    }
    out.set(sum);
}

#[test]
fn short_loops_and_their_arrays_become_straight_code() {
    let body = lower::<window<2>>().unwrap().body;
    assert!(body.arrays.is_empty(), "{:?}", body.arrays);
    assert_eq!(count(&body, |op| matches!(op, Op::Loop { .. } | Op::Block { .. } | Op::If { .. })), 0);
    assert_eq!(count(&body, |op| matches!(op, Op::Load { .. })), 5);
}

#[kernel(crate = vmarray_kernel)]
fn long(at: At<1>, out: &mut Own<u64>) {
    let mut sum = 0;
    for k in 0..33 {
        sum += k * at.index() as u64;
    }
    out.set(sum);
}

#[test]
fn long_loops_stay_loops() {
    let body = lower::<long>().unwrap().body;
    assert_eq!(count(&body, |op| matches!(op, Op::Loop { .. })), 1);
    assert!(body.operations_count() < 20, "{body:?}");
}

trait OperationsCount {
    fn operations_count(&self) -> usize;
}

impl OperationsCount for Body {
    fn operations_count(&self) -> usize {
        count(self, |_| true)
    }
}

#[kernel(crate = vmarray_kernel)]
fn choose<const FAST: bool>(x: &Own<f32>, out: &mut Own<f32>) {
    let y = x.get();
    let unused = (y * 3.0).sqrt();
    let z = if FAST { y } else { y.sqrt() };
    let _ = unused;
    out.set(if z > 1.0 { 1.0 } else { z });
}

#[test]
fn constant_branches_are_folded_and_unused_code_removed() {
    let roots = |body: &Body| count(body, |op| matches!(op, Op::Unary { .. }));
    let (fast, slow) = (lower::<choose<true>>().unwrap().body, lower::<choose<false>>().unwrap().body);
    assert_eq!((roots(&fast), roots(&slow)), (0, 1));
    // The kernel has a load, a comparison, a selection, a store, and three literals, one of them the index in
    // the tile.
    assert!(fast.operations_count() <= 8, "{fast:?}");
    assert_eq!(count(&fast, |op| matches!(op, Op::If { .. })), 0);
}

#[kernel(crate = vmarray_kernel)]
fn only_one_field(at: At<1>, of: &Anywhere<[u32; 16]>, out: &mut Own<u32>) {
    out.set(of[at.index()][3]);
}

#[test]
fn only_used_elements_are_loaded() {
    let body = lower::<only_one_field>().unwrap().body;
    assert_eq!(body.views[0].fields.len(), 1);
    assert_eq!(body.views[0].fields[0].0, 12);
}
