//! Tests of error texts at run time: an error names the failed value, and then a remedy for the cause.

use std::sync::Arc;

use vmarray::host::HostDevice;
use vmarray::index_set::Combine;
use vmarray::kernel::{Anywhere, At, Own, Shared};
use vmarray::prelude::*;
use vmarray::{AnyDevice, IndexSet, Placement, Source};

fn devices(count: usize) -> Vec<Arc<AnyDevice>> {
    (0..count).map(|_| Arc::new(HostDevice::new(8 << 20).unwrap().into())).collect()
}

fn array(len: usize) -> VirtualArray<u32> {
    VirtualArray::builder(len).devices(devices(1)).page_len(16).build().unwrap()
}

/// The text of an error.
fn text<T>(result: vmarray::Result<T>) -> String {
    let error = result.err().expect("it is refused");
    let text = error.to_string();
    assert!(text.ends_with(&format!("; {}", error.kind().advice())), "{text}");
    for word in [" wanted", " wish", " told", "nobody", "somebody", " anew", " beside ", "asked for"] {
        assert!(!text.contains(word), "{text}");
    }
    text
}

#[test]
fn indices_ranges_and_pages() {
    let (small, one) = (array(10), array(1));
    assert_eq!(text(one.get(9)), "index 9 is outside of an array of 1 element; use an index below 1");
    assert_eq!(text(one.page(9)), "page 9 is outside of 1 page; use a page below 1");
    assert_eq!(text(array(40).page(3)), "page 3 is outside of 3 pages; use a page below 3");
    assert_eq!(
        text(small.section(..).unwrap().section(3..20)),
        "range 3..20 is outside of an array of 10 elements; end the range at 10 at most"
    );
    assert_eq!(
        text(small.section(5..).unwrap().get(5)),
        "index 5 is outside of an array of 5 elements; use an index below 5"
    );
    let (start, end) = (5, 2);
    assert!(
        text(small.section(start..end)).starts_with("range 5..2 is reversed; give the smaller number first")
    );
    assert_eq!(
        text(array(0).get(0)),
        "index 0 is outside of an array of 0 elements; it is empty: add elements first"
    );
    assert!(text(small.gather(&[1, 2, 77])).starts_with("index 77 at position 2 of the list is outside"));
    assert!(text(small.scatter(&[1, 2], &[0; 3])).contains("its length must be"));
}

#[test]
fn shapes_and_axes() {
    let image = NdArray::<u32, 2>::builder([4, 5]).devices(devices(1)).build().unwrap();
    assert!(
        text(image.get([4, 0]))
            .starts_with("index 4 of axis 0 is outside of an extent of 4 elements; use indices")
    );
    assert!(
        text(image.section([0, 0]..[4, 6]))
            .contains("range 0..6 of axis 1 is outside of an extent of 5 elements")
    );
    let inner = image.section([1, 1]..[3, 3]).unwrap();
    assert!(
        text(inner.section([0, 0]..[3, 1]))
            .contains("range 0..3 of axis 0 is outside of an extent of 2 elements")
    );
    assert!(
        text(image.project::<1>(2, 0))
            .starts_with("axis 2 does not exist: the shape has 2 axes; count axes from 0")
    );
}

#[test]
fn builders() {
    let build = |devices_count: usize, placement: Placement| {
        VirtualArray::<u32>::builder(100).devices(devices(devices_count)).placement(placement)
    };
    assert_eq!(
        text(build(1, Placement::Mirrored).build()),
        "pages are not mirrored: there is one device; name two devices or more"
    );
    let fixed = build(1, Placement::Equal).build().unwrap();
    assert!(text(fixed.rebalance(devices(1))).ends_with("; build it with `Builder::movable`"));
    assert!(
        text(build(1, Placement::Ratios(vec![1, 2])).build()).contains("2 shares were given for 1 devices")
    );
    assert!(
        text(build(0, Placement::Equal).build())
            .ends_with("; name at least one, or leave `devices` out to use the devices of the machine")
    );
    let mirrored = Source::builder(vec![0_u32; 10]).devices(devices(2)).placement(Placement::Mirrored);
    assert!(text(mirrored.build()).ends_with("; leave the placement out"));
    assert!(
        text(vmarray::Discovery::new().select("cuda,,host").map(drop)).starts_with("invalid device filter")
    );
}

#[test]
fn index_sets() {
    assert!(
        text(IndexSet::new([1, 1]))
            .ends_with("dimension 1 labels more than one column; give each column a label of its own")
    );
    let (a, b) = (IndexSet::new([0, 1]).unwrap(), IndexSet::new([2, 3]).unwrap());
    assert!(text(Combine::new(&a, &b).run()).contains("in common; use `Combine::product` for all pairs"));
    let (mut c, ragged) =
        (IndexSet::new([0, 1]).unwrap(), IndexSet::from_columns([(0, vec![1, 2]), (1, vec![3])]));
    assert!(text(ragged).ends_with("; give all columns the same length"));
    assert!(
        text(c.push(&[1, 2, 3]))
            .contains("has 3 values, but there are 2 dimensions; give each tuple 2 values")
    );
}

#[vmarray::kernel]
fn without_result(x: &Own<u32>) {
    let _ = x.get();
}

#[vmarray::kernel]
fn met() {
    barrier();
}

#[vmarray::kernel]
fn meets(y: &mut Own<u32>) {
    met();
    y.set(1);
}

#[vmarray::kernel]
fn endless(n: u64) -> u64 {
    if n == 0 { 1 } else { n * endless(n - 1) }
}

#[vmarray::kernel]
fn recursive(at: At<1>, y: &mut Own<u64>) {
    y.set(endless(at.index() as u64));
}

#[vmarray::kernel]
fn beyond(at: At<1>, x: &Anywhere<u32>, y: &mut Own<u32>) {
    y.set(x[at.index() + 1]);
}

#[vmarray::kernel]
fn counted(bins: &Shared<u32>) {
    bins.add(0, 1);
}

#[vmarray::kernel]
fn copied(x: &Own<u32>, y: &mut Own<u32>) {
    y.set(x.get());
}

#[test]
fn launches_name_the_kernel_and_its_place() {
    let (mut y, mut wide) =
        (array(10), VirtualArray::<u64>::builder(10).devices(devices(1)).build().unwrap());
    let x = array(10);
    let placed = |text: String, kernel: &str, rest: &str| {
        assert!(text.contains(&format!("`{kernel}`")) && text.contains(rest), "{text}");
        assert!(text.contains("error_texts.rs:") && !text.contains(".rs:0"), "{text}");
    };
    placed(text(without_result::run((&x,))), "without_result", "it has no result: use a `&mut Own<T>`");
    placed(text(meets::run((&mut y,))), "met", "set their length at the kernel, `#[kernel(group = 64)]`");
    placed(text(recursive::run((&mut wide,))), "endless", "use a loop");
    placed(text(beyond::run((&x, &mut y))), "beyond", "item 9 used index 10");
    let mut bins = array(1);
    placed(
        text(counted::run((&mut bins,))),
        "counted",
        "no argument sets the number of work-items: use an `Own<T>` \
            parameter",
    );
    let short = array(9);
    let other_length = text(copied::run((&short, &mut y)));
    assert!(other_length.contains('9') && other_length.contains("10"), "{other_length}");
}
