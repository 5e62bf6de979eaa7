//! Tests of the kernel interpreter with random kernels.

use backend_api::kernel::{Interpreter, Slices};
use vmarray_conformance::random::Case;

#[test]
#[cfg_attr(miri, ignore = "too long for an interpreter")]
fn vectorized_items_match_single_items() {
    let mut groups = 0;
    for case in (0..3000).map(|seed| Case::new(seed, seed % 2 == 0)) {
        let mut views: Vec<Vec<u8>> = case.views.iter().map(|view| view.bytes.clone()).collect();
        let slices = views.iter_mut().zip(&case.views);
        let slices = slices.map(|(bytes, view)| (&mut bytes[..], view.stride as usize));
        let interpreter = Interpreter {
            params: &case.params,
            table: &case.table,
            budget: case.budget,
            private_heap_bytes: case.private_heap_bytes,
            ..Interpreter::new(&case.kernel, case.items, case.geometry)
        };
        if !interpreter.runs_together() {
            continue;
        }
        groups += 1;
        let mut slices = Slices::new(slices.collect());
        let report = interpreter.run_together(0..interpreter.parts(), &mut slices).unwrap();
        assert_eq!(report, case.expected().unwrap().1, "{}", case.kernel.name());
        case.check(&views, report).unwrap_or_else(|why| panic!("{}: {why}", case.kernel.name()));
    }
    assert!(groups > 700, "{groups}");
}
