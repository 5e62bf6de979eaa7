//! Tests of operations by expressions, compared with a `Vec` and plain Rust.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use vmarray::prelude::*;

use crate::common::counted::{LEN, PAGE, counted, described, moved};
use crate::common::{Numbers, Shape, as_any, changed_ranges, host};
use bytemuck::{Pod, Zeroable};
use vmarray::device::wrap::{Fault, Operation};
use vmarray::expr::index;
use vmarray::host::HostDevice;
use vmarray::{ErrorKind, Field, VirtualArray, field};
use vmarray_conformance::wrap::{Counting, Faulty};

#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(C)]
struct Record {
    key: u32,
    weight: f32,
    wide: u64,
    small: [i16; 2],
    rest: [u8; 28],
}

/// Queries and writes of one element type are in `views`.
#[test]
fn fields_of_all_types_are_asked_about_and_written_together() {
    let (key, wide) = (field!(Record, key), field!(Record, wide));
    let (weight, second) = (field!(Record, weight), field!(Record, small).nth::<1>());
    let mut numbers = Numbers::new(1);
    let mut truth: Vec<Record> = (0..500)
        .map(|_| Record {
            key: numbers.below(50) as u32,
            weight: numbers.below(1000) as f32 / 4.0 - 100.0,
            wide: numbers.next() << numbers.below(17),
            small: [numbers.next() as i16, numbers.next() as i16],
            rest: [numbers.next() as u8; 28],
        })
        .collect();
    let array = Shape { page_len: 7, channels: vec![2, 1], ..Shape::default() }.build::<Record>(500);
    array.write(0, &truth).unwrap();
    for round in 0..20 {
        let (range, least) = (numbers.range(500), numbers.below(50) as u32);
        let condition = || key.ge(least) & (weight * 2.0).lt(100.0) | second.gt(30_000);
        let holds = |r: &Record| r.key >= least && r.weight * 2.0 < 100.0 || r.small[1] > 30_000;
        let found: Vec<&Record> = truth[range.clone()].iter().filter(|r| holds(r)).collect();
        assert_eq!(array.count_where(range.clone(), condition()).unwrap(), found.len(), "{round}");
        let sum: i128 = found.iter().map(|r| i128::from(r.wide)).sum();
        assert_eq!(array.sum(range.clone(), wide.only_where(condition())).unwrap(), sum, "{round}");
        // Sums of quarters are exact.
        let weights: f64 = found.iter().map(|r| f64::from(r.weight)).sum();
        assert_eq!(array.sum(range.clone(), weight.only_where(condition())).unwrap(), weights, "{round}");
        let lowest = found.iter().map(|r| r.weight).min_by(f32::total_cmp);
        assert_eq!(array.min(range.clone(), weight.only_where(condition())).unwrap(), lowest, "{round}");

        let assignments = [
            key.set(wide.cast::<u32>() % 50),
            weight.set(key.cast::<f32>() + 0.5),
            wide.set(index()),
            second.set(second + 3),
        ];
        array.assign_where(range.clone(), condition(), assignments).unwrap();
        for (i, r) in range.clone().zip(&mut truth[range]).filter(|(_, r)| holds(r)) {
            (r.key, r.weight, r.wide) = (r.wide as u32 % 50, r.key as f32 + 0.5, i as u64);
            r.small[1] = r.small[1].wrapping_add(3);
        }
    }
    assert_eq!(array.to_vec(..).unwrap(), truth);
}

#[test]
fn accesses_to_other_pages_go_on_while_elements_are_written() {
    let array =
        Shape { page_len: 16, channels: vec![2, 2], frames: 3, ..Shape::default() }.build::<u64>(4096);
    let stop = AtomicBool::new(false);
    std::thread::scope(|threads| {
        for thread in 0..3_usize {
            let (array, stop) = (&array, &stop);
            threads.spawn(move || {
                let mut numbers = Numbers::new(thread as u64);
                // Only this thread writes its elements of the first half, which are every third element.
                let mut truth = vec![0; 2048];
                while !stop.load(Ordering::Relaxed) {
                    let i = numbers.below(2048 / 3) * 3 + thread;
                    if i < 2048 {
                        assert_eq!(array.get(i).unwrap(), truth[i]);
                        truth[i] += 1;
                        array.set(i, truth[i]).unwrap();
                    }
                    // The update below adds 1 to all elements of the second half.
                    let _ = array.get(2048 + i).unwrap();
                }
            });
        }
        let value = Field::whole();
        for round in 1..200 {
            array.transform(2048.., value.set(value + 1)).unwrap();
            assert_eq!(array.min_max(2048.., value).unwrap(), Some((round, round)));
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn elements_on_devices_are_not_moved() {
    let device = Arc::new(Counting::new(host()));
    let shape = Shape { page_len: 64, channels: vec![2], frames: 4, ..Shape::default() };
    let array: VirtualArray<u32, _> = shape.describe(64 * 20, vec![Arc::clone(&device)]).build().unwrap();
    array.write(0, &(0..64 * 20).collect::<Vec<u32>>()).unwrap();
    let value = Field::whole();
    assert_eq!(array.count_where(.., value.lt(100)).unwrap(), 100);
    assert_eq!(array.max(.., value).unwrap(), Some(64 * 20 - 1));
    array.transform(.., value.set(value)).unwrap();
    device.reset();
    for _ in 0..5 {
        assert_eq!(array.count_where(.., value.lt(100)).unwrap(), 100);
        assert_eq!(array.max(.., value).unwrap(), Some(64 * 20 - 1));
        array.transform(.., value.set(value + 1)).unwrap();
        array.transform(.., value.set(value - 1)).unwrap();
    }
    let work = device.counts().work;
    assert_eq!((work.upload_bytes, work.download_bytes, work.internal_bytes, work.fills), (0, 0, 0, 0));
    assert_eq!(device.counts().host_allocations, 0, "room for answers is used again");
    // The update writes back one page and fetches one page, and makes no other copies.
    array.set(70, 5).unwrap();
    let fetched = device.counts().work.download_bytes;
    assert_eq!(array.count_where(.., value.eq(5)).unwrap(), 2);
    let work = device.counts().work;
    assert_eq!((work.upload_bytes, work.download_bytes - fetched), (256, 0));
    // A device's write to a part of the array keeps frames of other parts.
    assert_eq!(array.get(70).unwrap(), 5);
    let fetched = device.counts().work.download_bytes;
    array.transform(640.., value.set(0)).unwrap();
    assert_eq!(array.get(71).unwrap(), 71);
    assert_eq!(device.counts().work.download_bytes, fetched);
}

/// Errors use the indices of the section.
#[test]
fn failures_in_the_middle_report_the_written_ranges() {
    let device = Arc::new(Faulty::new(host()));
    let shape = Shape { page_len: 8, channels: vec![2], frames: 4, ..Shape::default() };
    let array: VirtualArray<u32, _> = shape.describe(64, vec![Arc::clone(&device)]).build().unwrap();
    let (section, value) = (array.section_mut(4..60).unwrap(), Field::whole());
    let kind = vmarray::device::ErrorKind::KernelFailed;
    // The second channel's work is refused after the first channel's began.
    device.inject(Fault::new(Operation::Compute, kind).on_call(2));
    let error = section.transform(.., value.set(1)).unwrap_err();
    let ErrorKind::Interrupted { written, unspecified, cause } = error.kind() else { panic!("{error}") };
    assert_eq!(*written, [0..4, 12..20, 28..36, 44..52]);
    // A failed submission may have done a part of the work.
    assert_eq!(*unspecified, [4..12, 20..28, 36..44, 52..56]);
    assert_eq!(cause.kind(), kind, "{error}");
    let truth: Vec<u32> = (0..64).map(|i| u32::from((4..60).contains(&i) && i / 8 % 2 == 0)).collect();
    assert_eq!(array.to_vec(..).unwrap(), truth);
    // The device does not support the first channel's work, so the array does it in RAM.
    let unsupported = vmarray::device::ErrorKind::Unsupported;
    device.inject(Fault::new(Operation::Compute, unsupported).on_call(1));
    section.transform(.., value.set(2)).unwrap();
    let truth: Vec<u32> = (0..64).map(|i| 2 * u32::from((4..60).contains(&i))).collect();
    assert_eq!(array.to_vec(..).unwrap(), truth);
    // The work fails after it was accepted.
    device.inject(Fault::new(Operation::Compute, kind).on_call(1).reported_later());
    let error = section.assign_where(.., value.ge(0), value.set(2)).unwrap_err();
    assert_eq!(changed_ranges(&error).1, [0..4, 12..20, 28..36, 44..52]);
    array.transform(.., value.set(3)).unwrap();
    assert_eq!(array.sum(.., value).unwrap(), 3 * 64);
}

#[test]
fn pages_that_cannot_be_prepared_are_released_with_the_earlier_ones() {
    let device = Arc::new(Faulty::new(host()));
    let shape = Shape { page_len: 8, channels: vec![1], frames: 4, ..Shape::default() };
    let array: VirtualArray<u32, _> = shape.describe(8 * 300, vec![Arc::clone(&device)]).build().unwrap();
    let value = Field::whole();
    // If a page loses its contents before the operation reaches it, the operation fills its slot with zeroes.
    // Make this fill fail sometimes.
    let fills = Fault::new(Operation::Fill, vmarray::device::ErrorKind::KernelFailed);
    device.inject(fills.with_chance(0.3, 3));
    let done = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            for i in 0..backend_api::wrap::random_cases(20_000) {
                let _ = array.transform(.., value.set(i));
            }
            done.store(true, Ordering::Relaxed);
        });
        while !done.load(Ordering::Relaxed) {
            let _ = array.discard(8 * 250..8 * 251);
        }
    });
    device.clear();
    array.transform(.., value.set(7)).unwrap();
    assert_eq!(array.sum(.., value).unwrap(), 7 * 8 * 300);
}

#[test]
fn work_that_nothing_can_be_ordered_after_is_waited_for() {
    let device = Arc::new(Faulty::new(host()));
    let shape = Shape { page_len: 8, channels: vec![1], frames: 4, ..Shape::default() };
    let array = || shape.describe::<u32, _>(64, vec![Arc::clone(&device)]).build().unwrap();
    let (a, b) = (array(), array());
    a.fill(.., 1).unwrap();
    b.fill(.., 2).unwrap();
    let joined = a.join((&b,)).unwrap();
    let (x, y) = joined.rows();
    let sum = || x.set(Field::whole(), x.get(Field::whole()) + y.get(Field::whole()));
    for calls in 1..8 {
        let before: Vec<u32> = a.to_vec(..).unwrap();
        device.inject(Fault::new(Operation::OrderAfter, vmarray::device::ErrorKind::Driver).from_call(calls));
        let result = joined.transform(.., sum());
        device.clear();
        // The operation is either refused before it begins, or done. It never continues after a refusal.
        let more = if result.is_ok() { 2 } else { 0 };
        assert_eq!(a.to_vec(..).unwrap(), before.iter().map(|x| x + more).collect::<Vec<_>>(), "{calls}");
    }
}

#[test]
fn elements_of_others_are_staged_in_bounded_memory() {
    let device = |bytes| vec![Arc::new(HostDevice::builder().bytes(bytes).threads(2).build().unwrap())];
    let shape = Shape { page_len: 64, channels: vec![1], frames: 4, ..Shape::default() };
    // 8 KiB of bytes have 32 MiB of records. At most half of the records are staged at once.
    let small: VirtualArray<u8, _> = shape.describe(8 << 10, device(20 << 20)).build().unwrap();
    let large: VirtualArray<[u32; 1024], _> = shape.describe(8 << 10, device(64 << 20)).build().unwrap();
    let mut record = [0; 1024];
    for i in [0, 1000, 8000] {
        record[1023] = i as u32;
        large.set(i, record).unwrap();
    }
    let joined = small.join((&large,)).unwrap();
    let (to, from) = joined.rows();
    let last = from.get(Field::<[u32; 1024], [u32; 1024]>::whole().nth::<1023>());
    joined.transform(.., to.set(Field::whole(), (last / 100).cast::<u8>())).unwrap();
    assert_eq!((small.get(1000).unwrap(), small.get(8000).unwrap()), (10, 80));
    assert_eq!(small.sum(.., Field::whole()).unwrap(), 90);
}

#[test]
fn copies_that_fail_beside_the_work_are_no_success() {
    for call in 1..20 {
        let device = Arc::new(Faulty::new(host()));
        let shape = Shape { page_len: 8, channels: vec![2], frames: 4, ..Shape::default() };
        let x: VirtualArray<u32, _> = shape.describe(64, vec![Arc::clone(&device)]).build().unwrap();
        let others = Shape { page_len: 13, ..shape };
        let y: VirtualArray<u32, _> =
            others.describe(64, vec![Arc::new(Faulty::new(host()))]).build().unwrap();
        y.write(0, &[3; 64]).unwrap();
        let joined = x.join((&y,)).unwrap();
        let (to, from) = joined.rows();
        let sum = to.set(Field::whole(), to.get(Field::whole()) + from.get(Field::whole()) + 1);
        let fault = Fault::new(Operation::Submit, vmarray::device::ErrorKind::CopyFailed);
        device.inject(fault.on_call(call).reported_later());
        let result = joined.transform(.., sum);
        device.clear();
        let all = 0..x.len();
        let (written, unspecified) = result.as_ref().map_or_else(changed_ranges, |()| (vec![all], vec![]));
        for (i, value) in x.to_vec(..).unwrap().into_iter().enumerate() {
            let lies_in = |ranges: &[std::ops::Range<usize>]| ranges.iter().any(|range| range.contains(&i));
            let truth = if lies_in(&written) { 4 } else { 0 };
            assert!(value == truth || lies_in(&unspecified), "call {call}: element {i} is {value}");
        }
    }
}

/// Adds on devices and in the program's memory at once.
fn add<'a>(view: impl ViewMut<'a, Element = u32, Index = usize> + Sync + Send) {
    let (len, value) = (view.len(), Field::<u32, u32>::whole());
    std::thread::scope(|threads| {
        for seed in 0..2 {
            threads.spawn(move || {
                let mut numbers = Numbers::new(seed);
                (0..2000).for_each(|_| _ = view.update(numbers.below(len), |x| x + 1).unwrap());
            });
            threads.spawn(move || (0..60).for_each(|_| view.transform(.., value.set(value + 1)).unwrap()));
        }
        threads.spawn(move || (0..60).for_each(|_| assert!(view.any(.., value.ge(0)).unwrap())));
    });
    assert_eq!(view.sum(.., value).unwrap(), 2 * 2000 + 2 * 60 * len as i128);
}

#[test]
fn adding_in_all_places_at_once_loses_nothing() {
    add(&Shape { page_len: 8, channels: vec![2], frames: 2, ..Shape::default() }.build::<u32>(64));
    add(&described(vec![0_u32; LEN], &Arc::new(host())).device_bytes(3 * PAGE).build().unwrap());
}

/// Checks that invalid queries fail before any work, and that they succeed for empty ranges.
fn refuse<'a>(view: impl ViewMut<'a, Element = u32, Index = usize>, is_untouched: impl Fn() -> bool) {
    let value = Field::<u32, u32>::whole();
    let long = (0..300).fold(value + 1, |long, i| long * i);
    assert_eq!(*view.sum(.., &long).unwrap_err().kind(), ErrorKind::ExpressionTooLong { most: 256 });
    assert!(view.transform(.., value.set(long)).is_err());
    for bins in [0, 4097] {
        let error = view.histogram(.., value, bins).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::BinCount { bins, most: 4096 });
    }
    let error = view.transform(.., Vec::new()).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::AssignmentCount { assignments: 0, most: 8 });
    assert!(is_untouched());
    // Two assignments to one field.
    let error = view.transform(.., [value.set(1), value.set(2)]).unwrap_err();
    let cause = error.device_error().expect("a device refuses it").kind();
    assert_eq!(cause, vmarray::device::ErrorKind::InvalidArgument);
    assert_eq!(view.sum(.., value).unwrap(), 0);
    assert_eq!(view.min(0..0, value).unwrap(), None);
    assert_eq!(view.sum(9..9, value.cast::<f32>()).unwrap(), 0.0);
    assert_eq!(view.histogram(..0, value, 2).unwrap(), [0, 0]);
    assert!(view.all(..0, value.eq(1)).unwrap());
    view.transform(5..5, value.set(1)).unwrap();
    assert_eq!(view.to_vec(..).unwrap(), vec![0; view.len()]);
}

#[test]
fn impossible_queries_are_refused() {
    let (source, device) = counted(vec![0; LEN]);
    refuse(&source, || moved(&device) == (0, 0));
    let array = Shape::default().build::<u32>(64);
    refuse(&array, || array.stats().total().submissions == 0);
    let one = described(vec![0; LEN + 1], &device).build().unwrap();
    let error = source.join((&source, &one)).unwrap_err();
    let mismatch =
        ErrorKind::LengthMismatch { of: "the other view of the join", expected: LEN, got: LEN + 1 };
    assert_eq!(*error.kind(), mismatch);
}

/// Slots of pages without contents get zeroes once, and again after pages have lost their contents.
#[test]
fn pages_that_lose_their_contents_are_zeroed_again() {
    let device = Arc::new(Counting::new(HostDevice::new(1 << 20).unwrap()));
    let builder = VirtualArray::<u32>::builder(1000).devices([as_any(&device)]);
    let array = builder.page_len(10).frames_per_channel(4).build().unwrap();
    let sum = || array.sum(.., Field::whole()).unwrap();
    let fills = || device.counts().work.fills;
    assert_eq!(sum(), 0);
    let once = fills();
    assert!(once > 0, "pages without contents");
    assert_eq!((sum(), fills()), (0, once), "known");
    array.fill(.., 3).unwrap();
    assert_eq!(sum(), 3000);
    let filled = fills();
    array.discard(100..300).unwrap();
    assert_eq!(sum(), 2400);
    assert!(fills() > filled, "discarded pages");
    array.set_uncached(100, 7).unwrap();
    array.set(205, 5).unwrap();
    assert_eq!(sum(), 2412);
    array.discard(200..210).unwrap();
    assert_eq!((sum(), array.sum(200..210, Field::whole()).unwrap()), (2407, 0));
}

/// In each channel more matches than the result's capacity, with few matches first.
#[test]
fn long_lists_of_matches_are_asked_for_in_parts() {
    const LEN: usize = 6 << 20;
    let values: Vec<u8> =
        (0..LEN).map(|i| u8::from(if i < LEN / 4 { i % 50 == 0 } else { i % 4 > 0 })).collect();
    let shape = Shape { page_len: 1 << 16, channels: vec![2, 1], ..Shape::default() };
    let array = shape.build::<u8>(LEN);
    array.write(0, &values).unwrap();
    let ranges = [70_001..LEN - 3, 0..LEN];
    for range in ranges.into_iter().take(backend_api::wrap::random_cases(2) as usize) {
        let expected: Vec<usize> =
            (0..range.len()).filter(|index| values[range.start + index] == 1).collect();
        let view = array.section(range).unwrap();
        for limit in [usize::MAX, 7 << 19, 1000] {
            let holds = Field::<u8, u8>::whole().eq(1);
            let found = view.find_where(.., holds, limit).unwrap();
            assert_eq!(found.total, expected.len(), "{limit}");
            assert!(found.indices == expected[..limit.min(expected.len())], "{limit}");
            let same = view.find_first(.., Field::whole(), &1, limit).unwrap();
            assert!(same == found, "{limit}");
        }
    }
}

/// Elements of one channel are contiguous, for any page length and any start of a range.
#[test]
fn elements_read_within_the_channel_of_one_device_are_not_copied() {
    let mut random = Numbers::new(9);
    for round in 0..60 {
        let device = Arc::new(Counting::new(host()));
        let mut shape = || Shape {
            page_len: 1 + random.below(90),
            channels: vec![1],
            frames: 2 + random.below(4),
            ..Shape::default()
        };
        let x: VirtualArray<u64, _> = shape().describe(700, vec![Arc::clone(&device)]).build().unwrap();
        let y: VirtualArray<u16, _> = shape().describe(900, vec![Arc::clone(&device)]).build().unwrap();
        let values: Vec<u16> = (0..900).map(|_| random.next() as u16).collect();
        y.write(0, &values).unwrap();
        let len = 1 + random.below(300);
        let (to, from) = (random.below(400), random.below(600));
        let (own, other) = (x.section_mut(to..to + len).unwrap(), y.section(from..from + len).unwrap());
        // Data that is only in the cache is written home. There are no other copies.
        y.flush(..).unwrap();
        device.reset();
        let joined = own.join((other,)).unwrap();
        let (one, two) = joined.rows();
        joined
            .transform(.., one.set(Field::whole(), two.get(Field::whole()).cast::<u64>() + index()))
            .unwrap();
        let sum = joined.sum(.., two.get(Field::whole()).cast::<u64>() + one.get(Field::whole())).unwrap();
        let work = device.counts().work;
        assert_eq!((work.uploads, work.internals), (0, 0), "round {round}");
        let expected: Vec<u64> =
            values[from..from + len].iter().zip(0..).map(|(value, at)| u64::from(*value) + at).collect();
        assert_eq!(x.to_vec(to..to + len).unwrap(), expected, "round {round}");
        let read = values[from..from + len].iter().map(|value| i128::from(*value));
        assert_eq!(sum, read.chain(expected.iter().map(|value| i128::from(*value))).sum::<i128>());
        // The same array at another offset is read with its old values.
        let by = 1 + random.below(5);
        let before = x.to_vec(..).unwrap();
        let joined = x.section_mut(by..).unwrap().join((x.section(..700 - by).unwrap(),)).unwrap();
        let (one, two) = joined.rows();
        joined.transform(.., one.set(Field::whole(), two.get(Field::whole()))).unwrap();
        assert_eq!(x.to_vec(by..).unwrap(), before[..700 - by]);
    }
}
