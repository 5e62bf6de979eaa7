//! Tests of sources: copied bytes in given scenarios, data larger than device memory, threads, failures,
//! homes.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use vmarray::prelude::*;

use crate::common::counted::{BLOCK, LEN, PAGE, counted, described, moved};
use crate::common::{Numbers, as_any, host};
use vmarray::device::ErrorKind as DeviceErrorKind;
use vmarray::device::wrap::{Fault, Operation};
use vmarray::host::{HostDevice, SimulatedDevice};
use vmarray::{ErrorKind, Field, Placement, Source, device::HostMemory, source::Home};
use vmarray_conformance::wrap::{Counting, Faulty};

fn count<H: Home<u32>>(source: &Source<u32, H>, value: u32) -> usize {
    source.count(.., Field::whole(), &value).unwrap()
}

#[test]
fn every_placement_serves_data_larger_than_the_devices() {
    for placement in
        [Placement::Equal, Placement::Capacity, Placement::Ratios(vec![1, 3]), Placement::Ratios(vec![0, 1])]
    {
        let devices = [64, 32].map(|pages| as_any(&Arc::new(HostDevice::new(pages * PAGE).unwrap())));
        let source = Source::builder((0..20_000).collect::<Vec<u32>>())
            .devices(devices)
            .placement(placement.clone())
            .page_len(128)
            .build()
            .unwrap();
        assert!(source.device_bytes() <= 72 * PAGE, "{placement:?}");
        assert_eq!(source.find(Field::whole(), &17_777).unwrap(), [17_777], "{placement:?}");
        source.fill(1.., 9).unwrap();
        assert_eq!(source.count(.., Field::whole(), &9).unwrap(), 19_999, "{placement:?}");
    }
}

#[test]
fn memory_is_imported_once_a_device() {
    let device = Arc::new(Counting::new(host()));
    let source = described(vec![1_u32; LEN], &device).import(HostMemory::Pageable).build().unwrap();
    assert_eq!(count(&source, 1), LEN);
    source.fill(.., 2).unwrap();
    assert_eq!(source.into_home().unwrap(), [2; LEN]);
    let counts = device.counts();
    assert_eq!((counts.imports, counts.host_held_bytes, counts.held_bytes), (1, 0, 0));
}

#[test]
fn threads_work_on_overlapping_sections() {
    const THREADS: usize = 4;
    let device = Arc::new(host());
    for import in [false, true] {
        let mut builder = described(vec![0_u32; LEN], &device).device_bytes(4 * PAGE);
        if import {
            builder = builder.import(HostMemory::Pageable);
        }
        let source = builder.build().unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let source = &source;
                    scope.spawn(move || {
                        let mut numbers = Numbers::new(thread as u64 + 1);
                        let mut mine = [0_u32; LEN / THREADS];
                        for round in 1..300_u32 {
                            match numbers.below(3) {
                                // A device writes to this thread's elements, in blocks that it shares with
                                // other threads.
                                0 => {
                                    let at = numbers.below(mine.len());
                                    let index = at * THREADS + thread;
                                    source.fill(index..=index, round).unwrap();
                                    mine[at] = round;
                                }
                                1 => {
                                    let at = numbers.below(mine.len());
                                    let old = source.update(at * THREADS + thread, |x| x + 1).unwrap();
                                    assert_eq!(old, mine[at]);
                                    mine[at] += 1;
                                }
                                _ => {
                                    let at = numbers.below(mine.len());
                                    assert_eq!(source.get(at * THREADS + thread).unwrap(), mine[at]);
                                }
                            }
                        }
                        for (at, &expected) in mine.iter().enumerate() {
                            assert_eq!(source.get(at * THREADS + thread).unwrap(), expected);
                        }
                    })
                })
                .collect();
            scope.spawn(|| {
                let mut numbers = Numbers::new(99);
                let mut context = Context::from_waker(Waker::noop());
                while !stop.load(Ordering::Relaxed) {
                    let start = numbers.below(LEN);
                    let range = start..start + numbers.below(LEN - start);
                    match numbers.below(5) {
                        0 => drop(source.count(range, Field::whole(), &1).unwrap()),
                        1 => source.flush(range).unwrap(),
                        2 => source.evict(range).unwrap(),
                        3 => source.prefetch(range).unwrap(),
                        _ => {
                            // Drop the future at a random point.
                            let mut future = pin!(source.flush_async(range));
                            for _ in 0..numbers.below(20) {
                                if let Poll::Ready(done) = future.as_mut().poll(&mut context) {
                                    done.unwrap();
                                    break;
                                }
                            }
                        }
                    }
                }
            });
            let outcomes: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
            stop.store(true, Ordering::Relaxed);
            outcomes.into_iter().for_each(|outcome| outcome.unwrap());
        });
        assert_eq!(source.verify(..).unwrap(), None);
    }
}

#[test]
fn a_home_that_cannot_be_completed_is_not_given_back() {
    let device = Arc::new(Faulty::new(host()));
    let source = described(vec![0; LEN], &device).build().unwrap();
    source.fill(.., 1).unwrap();
    device.inject(Fault::new(Operation::Submit, DeviceErrorKind::Driver));
    assert!(source.get(5).is_err());
    assert!(source.set(5, 2).is_err(), "the other element of the block would be lost");
    assert!(source.write(0, &[2; 128]).is_ok(), "nothing of this page is needed");
    let unfinished = source.into_home().unwrap_err();
    assert!(matches!(unfinished.error.kind(), ErrorKind::Device(_)));
    assert_eq!(unfinished.source.page_state(1).unwrap().newer, 128);
    device.clear();
    let home = unfinished.source.into_home().unwrap();
    assert_eq!((home[127], home[128]), (2, 1));
}

#[test]
fn dropping_a_source_brings_everything_home() {
    let device = Arc::new(Counting::new(host()));
    let mut elements = vec![1; LEN];
    let source = described(&mut elements[..], &device).build().unwrap();
    source.fill(5..1000, 2).unwrap();
    device.reset();
    drop(source);
    assert_eq!(device.counts().held_bytes + device.counts().host_held_bytes, 0);
    assert_eq!(device.counts().work.download_bytes, 996 * 4);
    assert!(elements.iter().enumerate().all(|(i, &x)| x == if (5..1000).contains(&i) { 2 } else { 1 }));
}

#[test]
fn a_dropped_future_leaves_nothing_behind() {
    let (source, device) = counted(vec![1; LEN]);
    source.fill(.., 2).unwrap();
    let mut context = Context::from_waker(Waker::noop());
    for polls in 0..4 {
        let mut future = Box::pin(source.flush_async(..));
        for _ in 0..polls {
            if future.as_mut().poll(&mut context).is_ready() {
                break;
            }
        }
    }
    assert_eq!(source.verify(..).unwrap(), None);
    assert_eq!(source.to_vec(..).unwrap(), [2; LEN]);
    drop(source);
    assert_eq!(device.counts().held_bytes + device.counts().host_held_bytes, 0);
}

#[test]
fn pages_that_change_while_they_are_copied_are_copied_once_more() {
    let delayed =
        SimulatedDevice::builder(5).latency(Duration::from_millis(1)).jitter(0.0).manual_wakes(true);
    for change in 0..4 {
        let device = Arc::new(Counting::new(delayed.clone().build()));
        let source = described(vec![1; LEN], &device).device_bytes(2 * PAGE).build().unwrap();
        source.fill(..128, 2).unwrap();
        let mut expected = vec![1; LEN];
        expected[..128].fill(2);
        let mut context = Context::from_waker(Waker::noop());
        let mut future = pin!(source.flush_async(..));
        assert!(future.as_mut().poll(&mut context).is_pending());
        match change {
            // The program overwrites the page at home.
            0 => {
                source.write(0, &[3; 128]).unwrap();
                expected[..128].fill(3);
            }
            // A device changes the page again.
            1 => {
                source.fill(10..20, 4).unwrap();
                expected[10..20].fill(4);
            }
            // Other pages take the slot of this page, and are newer there. Then the program overwrites this
            // page.
            2 => {
                source.fill(128..640, 5).unwrap();
                source.write(0, &[3; 128]).unwrap();
                expected[128..640].fill(5);
                expected[..128].fill(3);
            }
            // The program changes the page at home, which copies it home first; then the device changes it
            // again.
            _ => {
                source.set(5, 6).unwrap();
                source.fill(64..128, 7).unwrap();
                expected[5] = 6;
                expected[64..128].fill(7);
            }
        }
        loop {
            device.inner().advance(Duration::from_millis(10));
            if let Poll::Ready(done) = future.as_mut().poll(&mut context) {
                done.unwrap();
                break;
            }
        }
        assert_eq!(source.to_vec(..).unwrap(), expected, "change {change}");
        assert_eq!(source.page_state(0).unwrap().newer, 0, "change {change}");
        assert_eq!(source.verify(..).unwrap(), None);
    }
}

#[test]
fn slices_lie_in_the_memory_of_the_program() {
    let elements: Vec<u32> = vec![1; LEN];
    let address = elements.as_ptr();
    let (mut source, device) = counted(elements);
    source.fill(.., 2).unwrap();
    assert_eq!(source.slice(5..7).unwrap().as_ptr(), address.wrapping_add(5));
    assert_eq!(moved(&device), (0, 2 * BLOCK));
    source.discard(128..256).unwrap();
    source.slice_mut(128..256).unwrap().fill(9);
    assert_eq!(moved(&device), (0, 0));
    assert_eq!(count(&source, 9), 128);
    assert_eq!(moved(&device), (PAGE, 0));
    let home = source.into_home().unwrap();
    assert_eq!(home.as_ptr(), address);
}

#[test]
fn homes_of_all_kinds_are_searched() {
    let mut elements = [1_u16, 2, 3, 2];
    assert_eq!(Source::new(&elements[..]).unwrap().find(Field::whole(), &2).unwrap(), [1, 3]);
    assert_eq!(
        Source::new(Arc::<[u16]>::from(&elements[..])).unwrap().find(Field::whole(), &2).unwrap(),
        [1, 3]
    );
    let boxed = Source::new(Box::<[u16]>::from(&elements[..])).unwrap();
    boxed.set(0, 2).unwrap();
    assert_eq!(boxed.count(.., Field::whole(), &2).unwrap(), 3);
    Source::new(&mut elements[..]).unwrap().fill(1.., 7).unwrap();
    assert_eq!(elements, [1, 7, 7, 7]);
}

#[cfg(feature = "memmap2")]
#[test]
fn a_mapped_file_is_searched_and_changed_in_place() {
    let path = std::env::temp_dir().join(format!("vmarray-source-{}", std::process::id()));
    std::fs::write(&path, [1; 4 * LEN + 3]).unwrap();
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    // SAFETY: only this test uses the file.
    let map = unsafe { memmap2::MmapMut::map_mut(&file) }.unwrap();
    let device = Arc::new(host());
    let source = described(map, &device).device_bytes(3 * PAGE).build().unwrap();
    assert_eq!(source.len(), LEN, "the rest is no element");
    assert_eq!(count(&source, 0x0101_0101), LEN);
    source.fill(1.., 0).unwrap();
    source.into_home().unwrap().flush().unwrap();
    let bytes = std::fs::read(&path).unwrap();
    assert!(bytes[..4].iter().chain(&bytes[4 * LEN..]).all(|&byte| byte == 1));
    assert!(bytes[4..4 * LEN].iter().all(|&byte| byte == 0));
    // SAFETY: only this test uses the file.
    let map = unsafe { memmap2::Mmap::map(&file) }.unwrap();
    let source = described(map, &device).import(HostMemory::Pageable).build().unwrap();
    assert_eq!(count(&source, 0), LEN - 1);
    // From the middle of an element on, all elements are misaligned.
    // SAFETY: only this test uses the file.
    let map = unsafe { memmap2::MmapOptions::new().offset(2).map(&file) }.unwrap();
    let error = described(map, &device).build().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Misaligned { align: 4, .. }), "{error:?}");
    // SAFETY: only this test uses the file.
    let map = unsafe { memmap2::MmapOptions::new().offset(4).map(&file) }.unwrap();
    assert_eq!(count(&described(map, &device).build().unwrap(), 0), LEN - 1);
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_source_is_for_any_thread() {
    fn is_shared<V: Send + Sync>() {}
    is_shared::<Source<u32>>();
    is_shared::<Source<u32, &'static mut [u32], HostDevice>>();
    is_shared::<vmarray::views::Section<'static, Source<u32>>>();
    is_shared::<vmarray::futures::SourceFlushAsync<'static, u32>>();
}

#[test]
fn bad_input_is_refused() {
    let device = Arc::new(HostDevice::new(1 << 10).unwrap());
    let build = |bytes: u64| described(vec![0; LEN], &device).device_bytes(bytes).build();
    assert!(matches!(build(1 << 12).unwrap_err().kind(), ErrorKind::DoesNotFit { usable_bytes: 1024, .. }));
    let source = build(1 << 10).unwrap();
    let section = source.section_mut(100..200).unwrap();
    let error = section.fill(50..101, 1).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::RangeOutside { start: 50, end: 101, len: 100 });
    let (start, end) = (70, 60);
    let error = section.count(start..end, Field::whole(), &0).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::RangeReversed { start: 70, end: 60 });
    assert_eq!(source.to_vec(..).unwrap(), [0; LEN]);
}
