//! Tests of threads that wait and queue for held pages.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use backend_api::wrap::{Fault, Operation};
use backend_api::{Device, ErrorKind};
use backend_host::HostDevice;
use vmarray_conformance::wrap::{Counting, Faulty};

use super::{Fetch, PageSaver, Pager};
use crate::array::VirtualArray;
use crate::array::testing::{host, one_channel};
use crate::base::element::Field;
use crate::engine::page::state::{DIRTY, EXCLUSIVE, RESIDENT, WRITER_PENDING, WRITERS, ZEROED};
use crate::engine::page::{Holder, Refusal, unpark};
use crate::prelude::*;
use crate::setup::placement::Placement;

fn array<D: Device>(device: &Arc<D>, pages: usize, page_len: usize, frames: usize) -> VirtualArray<u32, D> {
    one_channel(device, (pages, page_len), frames).build().unwrap()
}

/// A stream of readers of a home slot does not starve a writer.
#[test]
fn readers_of_a_home_queue_behind_a_waiting_writer() {
    let array = array(&Arc::new(host()), 4, 16, 4);
    array.fill(.., 1).unwrap();
    array.evict(..).unwrap();
    let entry = array.pager().entry(0);
    for write in [VirtualArray::set, VirtualArray::set_uncached] {
        assert_eq!(entry.try_share_home(false), Ok(true));
        thread::scope(|scope| {
            let writer = scope.spawn(|| write(&array, 5, 7).unwrap());
            while !entry.state(Ordering::Acquire).any(WRITER_PENDING) {
                thread::yield_now();
            }
            assert!(matches!(entry.try_share_home(false), Err(Refusal::Busy(_))));
            // A thread that holds guards must not wait for a thread that might wait for these guards.
            assert_eq!(entry.try_share_home(true), Ok(true));
            let reader = scope.spawn(|| array.get_uncached(5).unwrap());
            array.pager().unshare(0, Holder::Pin);
            array.pager().unshare(0, Holder::Pin);
            writer.join().unwrap();
            assert!([1, 7].contains(&reader.join().unwrap()));
        });
        assert!(!entry.state(Ordering::Acquire).any(WRITER_PENDING));
        array.fill(.., 1).unwrap();
        array.evict(..).unwrap();
    }
}

#[test]
fn a_page_whose_home_has_as_many_readers_as_can_be_counted_is_not_loaded() {
    let array = array(&Arc::new(host()), 4, 16, 4);
    let entry = array.pager().entry(0);
    let mut readers = 0;
    while entry.try_share_home(true).is_ok() {
        readers += 1;
    }
    assert!(matches!(entry.try_claim_absent(true), Err(Refusal::Busy(_))));
    array.pager().unshare(0, Holder::Pin);
    assert!(entry.try_claim_absent(true).is_ok());
    array.pager().release_unchanged(0);
    (1..readers).for_each(|_| array.pager().unshare(0, Holder::Pin));
    assert_eq!(entry.state(Ordering::Acquire).guards(), 0);
}

/// A hold with stable or exclusive bytes first ends lock-free writes.
#[test]
fn lock_free_writes_end_before_others_look_at_the_bytes_of_a_page() {
    let array = array(&Arc::new(host()), 4, 16, 4);
    let entry = array.pager().entry(0);
    type Use = fn(&VirtualArray<u32, HostDevice>);
    let uses: [(&str, Use); 4] = [
        ("page", |array| drop(array.page(0).unwrap())),
        ("page_mut", |array| drop(array.page_mut(0).unwrap())),
        ("to_vec", |array| drop(array.to_vec(0..16).unwrap())),
        ("write", |array| array.write(0, &[1; 16]).unwrap()),
    ];
    for (name, run) in uses {
        (0..4).for_each(|_| array.set(3, 1).unwrap());
        assert!(entry.state(Ordering::Acquire).any(WRITERS), "{name}");
        run(&array);
        assert!(!entry.state(Ordering::Acquire).any(WRITERS), "{name}");
    }
}

/// A discard invalidates cached knowledge about home slots, whether the page was resident or not.
#[test]
fn devices_find_zeroes_in_a_page_that_was_discarded_since_they_looked() {
    let array = array(&Arc::new(host()), 4, 16, 4);
    for is_resident in [false, true] {
        array.fill(.., 1).unwrap();
        array.evict(..).unwrap();
        let sum = || array.sum(.., Field::<u32, u32>::whole()).unwrap();
        assert_eq!(sum(), 64);
        if is_resident {
            array.get(20).unwrap();
        }
        array.discard(16..32).unwrap();
        assert_eq!(sum(), 48);
    }
}

/// Scatters hold no pages, and would otherwise write to memory that is being sorted.
#[test]
fn scatters_look_again_at_pages_whose_homes_were_claimed() {
    let array = array(&Arc::new(host()), 4, 16, 4);
    array.fill(.., 7).unwrap();
    array.evict(..).unwrap();
    let begun = || array.pager().channels()[0].queues.loads_begun();
    let before = begun();
    let claimed = Pager::claim_homes(&[(array.pager(), 0..4)], &(0..0)).unwrap();
    assert_ne!(begun(), before);
    drop(claimed);
    assert_eq!(array.to_vec(..).unwrap(), [7; 64]);
}

/// Each claim writes a page back once, because no thread can write to it between the write-back and the
/// claim.
#[test]
fn a_page_is_claimed_though_others_go_on_writing_to_it() {
    const CLAIMS: u64 = 200;
    let array = array(&Arc::new(host()), 4, 16, 4);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut last = 0;
            while !is_over.load(Ordering::Relaxed) {
                last += 1;
                array.set(3, last).unwrap();
            }
            last
        });
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    array.set(7, 1).unwrap();
                }
            });
        }
        for _ in 0..CLAIMS {
            while !array.pager().entry(0).state(Ordering::Acquire).any(DIRTY) {
                thread::yield_now();
            }
            array.pager().claim_home(0, Fetch::Contents).unwrap();
            array.pager().release_unchanged(0);
        }
        is_over.store(true, Ordering::Relaxed);
        let last = writer.join().unwrap();
        assert_eq!(array.get(3).unwrap(), last);
        assert_eq!(array.stats().total().write_backs, CLAIMS);
    });
}

#[test]
fn a_claim_whose_write_back_fails_leaves_the_page_dirty_and_free() {
    let device = Arc::new(Faulty::new(host()));
    let array = array(&device, 4, 16, 4);
    for later in [false, true] {
        array.set(3, 7).unwrap();
        let fault = Fault::new(Operation::Submit, ErrorKind::CopyFailed).on_call(1);
        device.inject(if later { fault.reported_later() } else { fault });
        assert!(array.pager().claim_home(0, Fetch::Contents).is_err());
        device.clear();
        let state = array.pager().entry(0).state(Ordering::Acquire);
        assert!(state.has(RESIDENT | DIRTY) && !state.any(EXCLUSIVE) && !state.shared(), "{state:?}");
        array.flush(..).unwrap();
        array.evict(..).unwrap();
        assert_eq!(array.get(3).unwrap(), 7);
    }
}

#[test]
fn resident_pages_are_found_by_the_range_and_by_the_frames() {
    let devices = [host(), host(), host()].map(Arc::new);
    let array = VirtualArray::<u32>::builder(60 * 4)
        .devices(devices)
        .placement(Placement::Ratios(vec![1, 1, 1]))
        .page_len(4)
        .frames_per_channel(5)
        .build()
        .unwrap();
    for page in [0, 7, 8, 22, 31, 59, 58, 33] {
        array.set(page * 4, 1).unwrap();
        array.get((page + 1) % 60 * 4).unwrap();
    }
    let pager = array.pager();
    for (bits, only_dirty) in [(RESIDENT, false), (DIRTY, true)] {
        let is_wanted = |page: &u64| pager.entry(*page).state(Ordering::Acquire).any(bits);
        for range in [0..60, 0..1, 5..9, 20..40, 59..60, 7..7, 0..0, 3..57] {
            let mut found: Vec<u64> = Vec::new();
            for channel in pager.channels() {
                found.extend(channel.resident_pages(pager.table(), &range, only_dirty));
            }
            found.sort_unstable();
            assert_eq!(found, range.clone().filter(is_wanted).collect::<Vec<_>>(), "{range:?}");
        }
    }
}

/// The frame may belong to a guard whose holder may want a page of the next wave.
#[test]
fn nothing_is_held_while_a_failed_wave_waits_for_frames() {
    // A stage has four pages.
    let page_len = 1 << 16;
    let device = Arc::new(Faulty::new(host()));
    let array = array(&device, 16, page_len, 1);
    let guard = array.page(15).unwrap();
    let waits = array.stats().total().waits;
    device.inject(Fault::new(Operation::Submit, ErrorKind::CopyFailed).on_call(1).reported_later());
    let values = vec![7; 8 * page_len];
    thread::scope(|scope| {
        let writer = scope.spawn(|| array.write(0, &values));
        while array.stats().total().waits == waits {
            thread::yield_now();
        }
        let is_held = |page: &u64| array.pager().entry(*page).state(Ordering::Acquire).any(EXCLUSIVE);
        let held: Vec<u64> = (0..15).filter(is_held).collect();
        drop(guard);
        writer.join().unwrap().unwrap();
        assert!(held.is_empty(), "{held:?}");
    });
    assert_eq!(array.to_vec(..8 * page_len).unwrap(), values);
}

/// Slots of pages without contents get their zeroes, adjacent ones in one fill; other slots keep their
/// contents.
#[test]
fn zeroes_are_written_around_pages_that_have_contents() {
    let device = Arc::new(Counting::new(host()));
    let array = array(&device, 8, 16, 8);
    array.write(3 * 16, &[5; 16]).unwrap();
    array.evict(..).unwrap();
    device.reset();
    assert_eq!(array.sum(.., Field::<u32, u32>::whole()).unwrap(), 80);
    let work = device.counts().work;
    assert_eq!((work.fills, work.fill_bytes), (2, 7 * 64));
    assert!(array.pager().try_claim_home(0, Fetch::Contents).unwrap());
    array.pager().release_unchanged(0);
    assert_eq!(array.sum(.., Field::<u32, u32>::whole()).unwrap(), 80);
    device.reset();
    array.fill(.., 1).unwrap();
    assert_eq!(device.counts().work.fills, 1);
}

#[test]
fn zeroes_of_a_claimed_page_are_remembered() {
    let array = array(&Arc::new(host()), 4, 16, 4);
    assert!(array.pager().try_claim_home(0, Fetch::Contents).unwrap());
    array.pager().release_unchanged(0);
    assert!(array.pager().entry(0).state(Ordering::Acquire).any(ZEROED));
}

/// Before it writes zeroes to a slot, the thread waits for exclusive holders, but not for readers.
#[test]
fn readers_of_a_page_do_not_keep_a_device_from_its_slot() {
    let array = array(&Arc::new(host()), 4, 16, 4);
    array.get(0).unwrap();
    let entry = array.pager().entry(0);
    entry.try_exclusive(Holder::Pin).unwrap();
    let waits = array.stats().total().waits;
    thread::scope(|scope| {
        let device = scope.spawn(|| array.pager().settle(&(0..1)).unwrap());
        while array.stats().total().waits == waits {
            thread::yield_now();
        }
        if entry.downgrade(Holder::Pin) {
            unpark(entry);
        }
        device.join().unwrap();
    });
    array.pager().unshare(0, Holder::Pin);
}

#[test]
fn a_prefetch_reports_its_progress_when_frames_run_out() {
    let array = array(&Arc::new(host()), 32, 16, 8);
    array.fill(.., 1).unwrap();
    array.evict(..).unwrap();
    let guards: Vec<_> = (20..26).map(|page| array.page(page).unwrap()).collect();
    assert_eq!(array.pager().prefetch(4..8).unwrap(), 6);
    drop(guards);
}

/// Parts copied before there was a stage are not copied again.
#[test]
fn a_long_read_without_stages_goes_on_in_frames() {
    let array = array(&Arc::new(host()), 64, 16, 4);
    let values: Vec<u32> = (0..64 * 16).collect();
    array.write(0, &values).unwrap();
    array.evict(..).unwrap();
    (0..2).for_each(|page| _ = array.get(page * 16).unwrap());
    let channel = &array.pager().channels()[0];
    let mut stages: Vec<_> = std::iter::from_fn(|| channel.take_stage()).collect();
    let waits = array.stats().total().waits;
    thread::scope(|scope| {
        let reader = scope.spawn(|| array.to_vec(..).unwrap());
        while array.stats().total().waits == waits {
            thread::yield_now();
        }
        stages.drain(..).for_each(|stage| channel.put_stage(stage));
        assert_eq!(reader.join().unwrap(), values);
    });
}

/// A device panics while a thread saves a page: the snapshot lacks the page, and fails.
#[test]
fn a_panic_while_a_page_is_saved_fails_the_snapshot() {
    struct PanickingSaver;
    impl PageSaver for PanickingSaver {
        fn save(&self, _: &Pager, _: u64) -> crate::Result<()> {
            panic!("a device panics")
        }
    }
    let array = array(&Arc::new(host()), 4, 16, 4);
    array.fill(.., 1).unwrap();
    let snapshot = array.pager().snapshot().unwrap();
    snapshot.save_by(Box::new(PanickingSaver));
    let set = std::panic::AssertUnwindSafe(|| array.set(5, 7));
    assert!(std::panic::catch_unwind(set).is_err());
    assert!(snapshot.take(0..4).is_err() && snapshot.finish().is_err());
    array.set(5, 7).unwrap();
}
