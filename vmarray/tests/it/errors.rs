//! Tests that invalid input causes a typed error that names the values.

use std::sync::Arc;
use vmarray::prelude::*;

use crate::common::executor::block_on;
use crate::common::{as_any, hosts};
use vmarray::device::ErrorKind as DeviceErrorKind;
use vmarray::host::HostDevice;
use vmarray::{AnyDevice, Builder, ErrorKind, Placement, VirtualArray, device::HostMemory};

fn describe(len: usize) -> Builder<u32, AnyDevice> {
    VirtualArray::<u32>::builder(len).devices(hosts::<1>())
}

fn refusal(builder: Builder<u32, AnyDevice>) -> ErrorKind {
    builder.build().unwrap_err().kind().clone()
}

/// Index errors are tested in `model` and `views`.
#[test]
fn ranges_that_cannot_be_counted_or_are_reversed() {
    let array = describe(10).build().unwrap();
    let outside = |start, end| ErrorKind::RangeOutside { start, end, len: 10 };
    assert!(matches!(array.get(usize::MAX).unwrap_err().kind(), ErrorKind::IndexOutside { .. }));
    assert_eq!(*array.to_vec(..=usize::MAX).unwrap_err().kind(), outside(0, usize::MAX));
    assert!(block_on(array.read_async(usize::MAX, &mut [0; 2])).is_err());
    assert!(block_on(array.prefetch_async(5..11)).is_err());
    assert_eq!(*array.write(usize::MAX, &[0; 2]).unwrap_err().kind(), outside(usize::MAX, usize::MAX));
    assert_eq!(*array.fill(11.., 1).unwrap_err().kind(), outside(11, 11));
    #[expect(clippy::reversed_empty_ranges, reason = "what is tested")]
    let reversed = array.discard(5..2).unwrap_err();
    assert_eq!(*reversed.kind(), ErrorKind::RangeReversed { start: 5, end: 2 });
    assert!(array.to_vec(10..10).unwrap().is_empty());
    assert!(array.write(10, &[]).is_ok());
}

#[test]
fn sizes_that_overflow() {
    let huge = describe(usize::MAX).page_len(1);
    assert_eq!(refusal(huge), ErrorKind::TooLong { elements: u64::MAX, element_bytes: 4 });
    let page = describe(10).page_len(usize::MAX);
    assert_eq!(refusal(page), ErrorKind::PageTooLong { page_len: usize::MAX, element_bytes: 4 });
    assert_eq!(refusal(describe(10).page_len(0)), ErrorKind::ZeroPageLength);
    assert_eq!(refusal(describe(usize::MAX)), ErrorKind::TooLong { elements: u64::MAX, element_bytes: 4 });
    let bytes = VirtualArray::<u8>::builder(usize::MAX).devices(hosts::<1>()).build().unwrap_err();
    assert_eq!(*bytes.kind(), ErrorKind::TooLong { elements: u64::MAX, element_bytes: 1 });
    let text = ErrorKind::TooLong { elements: 5, element_bytes: 4 }.to_string();
    assert!(text.contains('5') && text.contains('4'), "{text}");
}

#[test]
fn devices_that_are_not_there() {
    let none = VirtualArray::<u32>::builder(10).devices(Vec::<Arc<AnyDevice>>::new());
    assert_eq!(refusal(none), ErrorKind::NoDevices);
    let off = describe(10).placement(Placement::Ratios(vec![0]));
    assert_eq!(refusal(off), ErrorKind::NoChannels { devices: 1 });
    let shares = describe(10).placement(Placement::Ratios(vec![1, 1]));
    assert_eq!(refusal(shares), ErrorKind::SharesMismatch { shares: 2, devices: 1 });
}

#[test]
fn more_than_a_device_has() {
    let device = Arc::new(HostDevice::new(1 << 20).unwrap());
    let error = VirtualArray::<u32>::builder(1 << 20).devices([as_any(&device)]).build().unwrap_err();
    let ErrorKind::DoesNotFit { asked_bytes, usable_bytes, device: name, .. } = error.kind() else {
        panic!("{error}")
    };
    assert_eq!((*asked_bytes, *usable_bytes), (4 << 20, 1 << 20));
    assert!(!name.is_empty());
    // The refused array left no allocation: a smaller one still fits.
    assert!(VirtualArray::<u32>::builder(1 << 18).devices([as_any(&device)]).build().is_ok());
}

#[test]
fn memory_next_to_the_cache_is_not_counted_as_cache() {
    let array = describe(1 << 16).page_len(256).cache_bytes(16 << 10).build().unwrap();
    let before = array.footprint();
    assert_eq!((before.cache_max_bytes, before.staging_bytes), (16 << 10, 0));
    array.write(0, &vec![7; 1 << 16]).unwrap();
    assert_eq!(array.count(.., Field::whole(), &7).unwrap(), 1 << 16);
    let after = array.footprint();
    assert_eq!(after.cache_max_bytes, 16 << 10);
    assert!(after.cache_bytes <= 16 << 10 && after.staging_bytes > 0, "{after:?}");
}

#[test]
fn a_cache_larger_than_the_array_is_clamped() {
    let array = describe(100).page_len(10).cache_bytes(1 << 30).build().unwrap();
    assert!(array.footprint().cache_max_bytes <= 20 * 64);
    let array = describe(100).page_len(10).frames_per_channel(0).build().unwrap();
    assert!((0..100).all(|i| array.get(i).unwrap() == 0), "one frame is the least");
}

#[test]
fn refused_page_locking_falls_back_or_is_an_error() {
    let device = || Arc::new(HostDevice::builder().bytes(1 << 20).pinned_max_bytes(0).build().unwrap());
    let array = VirtualArray::<u32>::builder(100).devices([as_any(&device())]).build().unwrap();
    array.set(1, 1).unwrap();
    assert!(!array.footprint().is_pinned);
    let error =
        VirtualArray::<u32>::builder(100).devices([as_any(&device())]).require_pinned().build().unwrap_err();
    assert_eq!(error.device_error().unwrap().kind(), DeviceErrorKind::PinRefused);
    // Test the same if only a later piece of the cache is refused: no array becomes slower than at its
    // creation.
    let device_with_some =
        || Arc::new(HostDevice::builder().bytes(64 << 20).pinned_max_bytes(20 << 20).build().unwrap());
    let long = |device: Arc<HostDevice>| {
        VirtualArray::<u32>::builder(12 << 20).devices([as_any(&device)]).cache_bytes(40 << 20)
    };
    let error = long(device_with_some()).require_pinned().build().unwrap_err();
    assert_eq!(error.device_error().unwrap().kind(), DeviceErrorKind::PinRefused);
    let array = long(device_with_some()).build().unwrap();
    assert!(array.footprint().is_pinned);
    (0..array.len()).step_by(array.page_len()).for_each(|index| array.set(index, 1).unwrap());
    assert!(!array.footprint().is_pinned);
    let enough = Arc::new(HostDevice::new(64 << 20).unwrap());
    let footprint = long(enough).require_pinned().build().unwrap().footprint();
    assert!(footprint.is_pinned && footprint.cache_bytes == footprint.cache_max_bytes, "{footprint:?}");
    let pageable =
        VirtualArray::<u32>::builder(100).devices([as_any(&device())]).host_memory(HostMemory::Pageable);
    assert!(!pageable.build().unwrap().footprint().is_pinned);
}

#[test]
fn an_array_gives_its_device_memory_back() {
    use vmarray::device::Device;
    let device = Arc::new(HostDevice::new(1 << 20).unwrap());
    for _ in 0..20 {
        let array = VirtualArray::<u32>::builder(200_000).devices([as_any(&device)]).build().unwrap();
        array.set(199_999, 1).unwrap();
    }
    assert_eq!(device.memory().unwrap().usable_bytes, 1 << 20);
}

#[test]
fn borrowed_buffers_that_are_too_short() {
    let array = describe(10).build().unwrap();
    let mut short = [0; 3];
    let buffer = vmarray::access::MapBuffer::Borrowed(&mut short);
    let error = array.map_in(0..4, vmarray::access::MapMode::Read, buffer, |_| ()).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::LengthMismatch { of: "the caller's buffer", expected: 4, got: 3 });
}

#[test]
fn errors_are_small_and_name_the_cause() {
    assert_eq!(size_of::<vmarray::Result<u32>>(), 16);
    let array = describe(10).build().unwrap();
    let error = array.get(99).unwrap_err();
    assert_eq!(error.to_string(), "index 99 is outside of an array of 10 elements; use an index below 10");
    fn is_error<E: std::error::Error + Send + Sync + 'static>(_: E) {}
    is_error(error);
}
