//! Tests of combined loads by several threads: the next submission contains all loads that were queued during
//! a submission.

use std::collections::HashSet;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use backend_api::wrap::{Fault, Operation};
use backend_api::{Device, ErrorKind};
use backend_host::SimulatedDevice;
use vmarray_conformance::wrap::{Counting, Faulty};

use super::transfers::Wakes;
use super::waiting::spin_while;
use super::{Ask, Blocking, Channel, NO_PAGE, PageRequest, RequestAnswer, Victim, WriteBackFor};
use crate::array::VirtualArray;
use crate::array::builder::Builder;
use crate::array::page_guard::Visit;
use crate::array::testing::{host, one_channel};
use crate::engine::combiner::ASKED;
use crate::engine::evict::EvictionPolicy;
use crate::engine::page::PageTable;
use crate::engine::page::state::{IN_FLIGHT, WRITER_PENDING};
use crate::engine::pager::Fetch;
use crate::prelude::*;

type Array<D> = VirtualArray<u32, D>;

const PAGE_LEN: usize = 16;

/// New pages in a channel.
fn new<D: Device>(device: &Arc<D>, pages: usize, frames: usize) -> Builder<u32, D> {
    one_channel(device, (pages, PAGE_LEN), frames)
}

/// 64 pages, written and evicted, in one channel of 32 frames.
fn array<D: Device>(device: &Arc<D>) -> Array<D> {
    let array = new(device, 64, 32).build().unwrap();
    let contents: Vec<u32> = (0..array.len() as u32).collect();
    array.write(0, &contents).unwrap();
    array.evict(..).unwrap();
    array.reset_stats();
    array
}

/// Runs `miss` on threads, one for each page, while the channel appears to have a combiner. Releases them
/// when all have queued their loads, and returns their results.
fn together<D: Device, R: Send>(
    array: &Array<D>,
    pages: &[usize],
    miss: impl Fn(usize) -> R + Sync,
) -> Vec<R> {
    let channel = &array.pager().channels()[0];
    let lead = |on: bool| {
        let mut shard = channel.shard.lock();
        shard.work.has_combiner = on;
        channel.note_combiner(&shard);
    };
    lead(true);
    std::thread::scope(|scope| {
        let miss = &miss;
        let threads: Vec<_> = pages.iter().map(|&page| scope.spawn(move || miss(page))).collect();
        let queued = || {
            let shard = channel.shard.lock();
            shard.work.queued.len() + shard.work.queued_reads.len()
        };
        while queued() < pages.len() {
            std::thread::yield_now();
        }
        lead(false);
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn misses_of_many_threads_are_one_submission() {
    let device = Arc::new(Counting::new(host()));
    let array = array(&device);
    let pages = [40, 3, 17, 4, 60, 5, 25, 41];
    let before = device.counts().work;
    let values = together(&array, &pages, |page| array.get(page * PAGE_LEN).unwrap());
    assert_eq!(values, pages.map(|page| (page * PAGE_LEN) as u32));
    let total = array.stats().total();
    assert_eq!((total.misses, total.submissions), (8, 1));
    let work = device.counts().work;
    assert_eq!(work.submits - before.submits, 1);
    assert_eq!(work.download_bytes - before.download_bytes, 8 * 64);
    // One thread waits in the driver for all threads.
    assert_eq!(work.waits - before.waits, 1);
}

#[test]
fn readers_and_writers_are_loaded_together() {
    let device = Arc::new(Counting::new(host()));
    let array = array(&device);
    together(&array, &[1, 2, 3, 4], |page| match page {
        1 => array.set(PAGE_LEN, 7).unwrap(),
        2 => array.page_mut(2).unwrap()[0] = 8,
        3 => assert_eq!(array.page(3).unwrap()[0], 3 * PAGE_LEN as u32),
        _ => assert_eq!(array.update(4 * PAGE_LEN, |x| x + 1).unwrap(), 4 * PAGE_LEN as u32),
    });
    assert_eq!(array.stats().total().submissions, 1);
    assert_eq!(array.get(PAGE_LEN).unwrap(), 7);
    assert_eq!(array.get(2 * PAGE_LEN).unwrap(), 8);
    assert_eq!(array.get(4 * PAGE_LEN).unwrap(), 4 * PAGE_LEN as u32 + 1);
}

#[test]
fn uncached_reads_go_with_the_misses_of_others() {
    let device = Arc::new(Counting::new(host()));
    let array = array(&device);
    let before = device.counts().work;
    let values = together(&array, &[10, 11, 12, 13], |page| match page {
        10 => array.get(page * PAGE_LEN).unwrap(),
        _ => array.get_uncached(page * PAGE_LEN).unwrap(),
    });
    assert_eq!(values, [10, 11, 12, 13].map(|page| page * PAGE_LEN as u32));
    let work = device.counts().work;
    assert_eq!((work.submits - before.submits, work.downloads - before.downloads), (1, 4));
    assert_eq!(work.download_bytes - before.download_bytes, 64 + 3 * 4);
    assert_eq!(array.stats().total().misses, 1);
}

#[test]
fn short_submissions_are_held_back_while_others_are_under_way() {
    let device = Arc::new(SimulatedDevice::builder(5).build());
    let array = array(&device);
    let threads = 8;
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let array = &array;
            scope.spawn(move || {
                for round in 0..200 {
                    let page = (thread * 29 + round * 13) % 64;
                    assert_eq!(array.get(page * PAGE_LEN).unwrap(), (page * PAGE_LEN) as u32);
                }
            });
        }
    });
    let total = array.stats().total();
    assert!(total.submissions <= total.misses, "{total:?}");
    let shard = array.pager().channels()[0].shard.lock();
    assert!(shard.work.queued.is_empty() && shard.work.fetches.is_empty() && !shard.work.has_combiner);
}

#[test]
fn loads_that_failed_together_are_tried_again_alone() {
    let device = Arc::new(Faulty::new(host()));
    let array = array(&device);
    let pages = [2, 3, 4];
    for later in [false, true] {
        for failures in 1..=2 {
            for call in 1..=failures {
                let fault = Fault::new(Operation::Submit, ErrorKind::CopyFailed).on_call(call);
                device.inject(if later { fault.reported_later() } else { fault });
            }
            let values = together(&array, &pages, |page| array.get(page * PAGE_LEN));
            device.clear();
            // First the batch fails, and then the page that is retried first.
            let failed = values.iter().filter(|value| value.is_err()).count();
            assert_eq!(failed as u64, failures - 1);
            for (page, value) in pages.iter().zip(values) {
                match value {
                    Ok(value) => assert_eq!(value, (page * PAGE_LEN) as u32),
                    Err(error) => {
                        assert_eq!(error.device_error().unwrap().kind(), ErrorKind::CopyFailed);
                        assert_eq!(array.get(page * PAGE_LEN).unwrap(), (page * PAGE_LEN) as u32);
                    }
                }
            }
            assert_eq!(array.pager().channels()[0].loads.unreported_errors.load(Ordering::Relaxed), 0);
            array.evict(..).unwrap();
        }
    }
}

#[test]
fn one_thread_submits_and_waits_once_a_miss() {
    let device = Arc::new(Counting::new(host()));
    let array = array(&device);
    let before = device.counts().work;
    for page in [9, 30, 2, 50, 7] {
        array.get(page * PAGE_LEN).unwrap();
    }
    let work = device.counts().work;
    assert_eq!((work.submits - before.submits, work.waits - before.waits), (5, 5));
    assert_eq!(work.polls, before.polls);
}

/// A transfer may end, and another one of the same page begin, between a thread's check and its sleep.
#[test]
fn no_thread_sleeps_for_an_unwatched_transfer() {
    let array = array(&Arc::new(host()));
    array.set(0, 7).unwrap();
    let (table, channel) = (array.pager().table(), &array.pager().channels()[0]);
    let entry = table.entry(0);
    let before = entry.try_write_back().unwrap();
    let victim = Victim { page: 0, frame: channel.frame_at(entry.address()), before };
    let ticket = channel.write_back(table, &[victim], WriteBackFor::Evict).unwrap().unwrap();
    // No thread finishes the transfer, so its end would wake no thread. The call must return nevertheless.
    channel.sleep_in_flight(table, 0, |state| state.any(IN_FLIGHT));
    assert!(entry.state(Ordering::Acquire).any(IN_FLIGHT));
    // The call must also return after the end of a transfer.
    assert!(channel.lock().work.watch(ticket));
    assert!(!channel.lock().work.watch(ticket), "one thread waits for it");
    channel.finish(table, ticket).unwrap();
    channel.sleep_in_flight(table, 0, |_| true);
    assert_eq!(array.get(0).unwrap(), 7);
}

/// The end of a transfer may free room for prefetched pages, which no thread awaits.
#[test]
fn an_evicting_thread_leads_despite_contention() {
    let array = array(&Arc::new(host()));
    let (table, channel) = (array.pager().table(), &array.pager().channels()[0]);
    let (is_over, began) = (AtomicBool::new(false), std::sync::Barrier::new(2));
    let left = std::thread::scope(|scope| {
        scope.spawn(|| {
            began.wait();
            while !is_over.load(Ordering::Relaxed) {
                drop(channel.shard.try_lock());
            }
        });
        began.wait();
        let mut left = 0;
        for round in 0..5000 {
            let page = round % 32;
            if page == 0 {
                array.evict(..).unwrap();
            }
            let done = channel.queues.fetches.first().submit(&[]).unwrap();
            channel.shard.lock().work.has_combiner = true;
            array.prefetch(page * PAGE_LEN..(page + 1) * PAGE_LEN).unwrap();
            // Set up the state at the end of a transfer that had delayed other loads.
            channel.shard.lock().work.has_combiner = false;
            channel.finish(table, done).unwrap();
            left += channel.shard.lock().work.queued.len();
            channel.combine_if_needed(table);
        }
        is_over.store(true, Ordering::Relaxed);
        left
    });
    assert_eq!(left, 0);
}

/// With many unawaited fetches, the end of one polls at most one pending ticket in each queue.
#[test]
fn the_end_of_a_fetch_polls_one_pending_ticket_per_queue() {
    let device = SimulatedDevice::builder(7).latency(Duration::from_millis(1)).jitter(0.0);
    let device = Arc::new(device.poll_step(Duration::from_micros(1)).build());
    let array = array(&device);
    let (table, channel) = (array.pager().table(), &array.pager().channels()[0]);
    for page in 0..16 {
        array.prefetch(page * PAGE_LEN..(page + 1) * PAGE_LEN).unwrap();
    }
    let fetches =
        || channel.shard.lock().work.fetches.iter().map(|fetch| fetch.submission.ticket).collect::<Vec<_>>();
    let under_way = fetches();
    let queues: HashSet<_> = under_way.iter().map(|ticket| ticket.queue).collect();
    assert_eq!((under_way.len(), queues.len()), (16, 4));
    let last_done = under_way[queues.len() - 1];
    device.wait(last_done).unwrap();
    let before = device.now();
    channel.finish(table, under_way[0]).unwrap();
    // All fetches that were submitted at the same time to empty queues are done. A poll of a pending one
    // advances the time.
    assert_eq!(fetches().len(), 12);
    assert!(device.now() - before < Duration::from_micros(queues.len() as u64));
}

/// The thread that is woken for a stage may not use it; then the others must be woken.
#[test]
fn a_returned_stage_is_offered_to_all_waiting_threads() {
    let array = array(&Arc::new(host()));
    let channel = &array.pager().channels()[0];
    let mut stages: Vec<_> = std::iter::from_fn(|| channel.take_stage()).collect();
    let waits = || array.stats().total().waits;
    let (before, returned) = (waits(), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                assert!(channel.await_stage());
                returned.fetch_add(1, Ordering::SeqCst);
            });
        }
        while waits() < before + 3 {
            std::thread::yield_now();
        }
        // Spin long enough for the threads to fall asleep.
        (0..50).for_each(|_| assert!(!spin_while(|| true)));
        channel.put_stage(stages.pop().unwrap());
        while returned.load(Ordering::SeqCst) < 3 {
            std::thread::yield_now();
        }
    });
    stages.into_iter().for_each(|stage| channel.put_stage(stage));
}

/// Threads in the queue behind the mark may hold the frame.
#[test]
fn a_thread_without_a_frame_blocks_no_page() {
    let array = new(&Arc::new(host()), 4, 1).build().unwrap();
    let (entry, channel) = (array.pager().entry(0), &array.pager().channels()[0]);
    let guard = array.page(3).unwrap();
    assert!(array.pager().try_claim_home(0, Fetch::Contents).unwrap());
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| array.set(5, 7).unwrap());
        while !entry.state(Ordering::Acquire).any(WRITER_PENDING) {
            std::thread::yield_now();
        }
        array.pager().release_unchanged(0);
        while channel.events.sleepers() == 0 {
            std::thread::yield_now();
        }
        let is_wanted = entry.state(Ordering::Acquire).any(WRITER_PENDING);
        drop(guard);
        writer.join().unwrap();
        assert!(!is_wanted);
    });
    assert_eq!(array.get(5).unwrap(), 7);
}

/// A waker that panics affects neither other waiting tasks nor the threads that wake it.
#[test]
fn a_panicking_waker_leaves_the_others_woken() {
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("expected by this test");
        }
    }
    #[derive(Default)]
    struct Count(AtomicUsize);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let array = array(&Arc::new(host()));
    let channel = &array.pager().channels()[0];
    let guard = array.page_mut(3).unwrap();
    let woken = Arc::new(Count::default());
    std::thread::scope(|scope| {
        let tasks = scope.spawn(|| {
            let poll = |waker: Waker| {
                let mut future = Box::pin(array.get_async(3 * PAGE_LEN));
                assert!(future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
                future
            };
            (poll(Arc::new(Panics).into()), poll(woken.clone().into()))
        });
        let tasks = tasks.join().unwrap();
        drop(guard);
        assert_eq!((woken.0.load(Ordering::SeqCst), channel.guards.count.load(Ordering::SeqCst)), (1, 0));
        drop(tasks);
    });
}

/// A write-back that fails during a search leaves unspecified bytes in a slot that the search may have read.
#[test]
fn a_read_during_a_failed_write_back_is_repeated() {
    let array = array(&Arc::new(host()));
    let counters = &array.pager().channels()[0].counters;
    let mut failures = [2, 0, 1, 0].into_iter();
    for expected in [2, 2] {
        let mut times = 0;
        let read = array.pager().read_settled(&(0..4), || {
            times += 1;
            counters.failed_write_backs.add(failures.next().unwrap_or_default());
            Ok(times)
        });
        assert_eq!(read.unwrap(), expected);
    }
}

/// A scan fills a frame and leaves it during another thread's search: the policy must not receive a late
/// report about it.
#[test]
fn a_page_skipped_by_a_victim_search_is_not_reported_later() {
    let array = new(&Arc::new(host()), 64, 32).build().unwrap();
    let (channel, table) = (&array.pager().channels()[0], array.pager().table());
    let victims = {
        let mut shard = channel.lock();
        std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    drop(array.visit_mut(array.cut(&(0..array.len()), 5).unwrap(), Visit::Pass).unwrap())
                })
                .join()
                .unwrap();
        });
        channel.choose_victims(&mut shard, table, Blocking::Try)
    };
    let [victim] = victims.clean.as_slice() else { panic!("one page is resident: {:?}", victims.clean) };
    assert_eq!(victim.page, 5);
    assert_eq!(channel.lock().frames.pages[victim.frame.index as usize], NO_PAGE);
    let mut wakes = Wakes::default();
    let frame = channel.free_clean(table, &victims.clean, &mut wakes).unwrap();
    channel.wake(table, wakes);
    channel.put_back(frame);
    assert_eq!(array.get(5 * PAGE_LEN).unwrap(), 0);
    assert_eq!(channel.lock().frames.pages.iter().filter(|page| **page == 5).count(), 1);
}

#[test]
fn a_working_set_stays_in_a_large_cache_after_evictions() {
    let array = new(&Arc::new(host()), 256, 256).build().unwrap();
    array.write(0, &vec![7; array.len()]).unwrap();
    array.flush(..).unwrap();
    let (channel, table) = (&array.pager().channels()[0], array.pager().table());
    // Act like a thread whose page was loaded by another thread meanwhile.
    let frame = channel.take_frame(table, Blocking::Wait).unwrap().unwrap();
    channel.put_back(frame);
    assert!(array.stats().total().evictions > 0);
    (0..256).for_each(|page| assert_eq!(array.get(page * PAGE_LEN).unwrap(), 7));
    array.reset_stats();
    (0..256).for_each(|page| assert_eq!(array.get(page * PAGE_LEN).unwrap(), 7));
    assert_eq!(array.stats().total().misses, 0);
}

#[test]
fn a_large_cache_grows_also_when_pages_had_to_go_while_it_did() {
    // A chunk of memory has 256 frames.
    const LONG: usize = 1 << 14;
    let array = one_channel::<u32, _>(&Arc::new(host()), (576, LONG), 512).build().unwrap();
    array.fill(.., 7).unwrap();
    let channel = &array.pager().channels()[0];
    assert_eq!(channel.shard.lock().frames.list.len(), 256);
    let read = |page: usize| assert_eq!(array.get(page * LONG).unwrap(), 7);
    // Set the flag of a thread that is allocating memory.
    channel.shard.lock().frames.growing = true;
    channel.grow().unwrap();
    assert_eq!(channel.shard.lock().frames.list.len(), 256);
    (0..257).for_each(read);
    channel.shard.lock().frames.growing = false;
    assert!(array.stats().total().evictions > 0);
    (257..576).for_each(read);
    channel.grow().unwrap();
    assert_eq!(channel.shard.lock().frames.list.len(), 512);
}

#[test]
fn a_cache_that_gets_no_more_memory_has_fewer_guards() {
    // A chunk of memory has 256 frames.
    const LONG: usize = 1 << 14;
    let device = Arc::new(Faulty::new(host()));
    let array = one_channel::<u32, _>(&device, (576, LONG), 512).build().unwrap();
    device.inject(Fault::new(Operation::AllocateHost, ErrorKind::OutOfMemory).from_call(1));
    (0..257).for_each(|page| assert_eq!(array.get(page * LONG).unwrap(), 0));
    let channel = &array.pager().channels()[0];
    assert_eq!(channel.shard.lock().frames.list.len(), 256);
    assert_eq!(channel.guards.max.load(Ordering::Relaxed), 255);
}

/// Leaves requests of tasks for the first element of pages, and serves all of them at once.
fn ask_together<D: Device>(array: &Array<D>, pages: &[u64]) -> Vec<Arc<PageRequest>> {
    let (table, channel) = (array.pager().table(), &array.pager().channels()[0]);
    let ask = |page: &u64| {
        let ask = Ask::Read { offset: 0, len: 4 };
        let request = Arc::new(PageRequest::new(*page, ask, Waker::noop().clone()));
        assert!(channel.tasks.requests.ask(Arc::clone(&request)));
        request
    };
    let requests = pages.iter().map(ask).collect();
    channel.drive(table, ASKED);
    requests
}

/// The read value; `None` after a failure.
fn answer(request: &PageRequest) -> Option<u32> {
    loop {
        match request.poll(&Context::from_waker(Waker::noop())) {
            Poll::Pending => std::thread::yield_now(),
            Poll::Ready(RequestAnswer::Read(bytes)) => return Some(bytemuck::pod_read_unaligned(&bytes)),
            Poll::Ready(RequestAnswer::Failed(_)) => return None,
            Poll::Ready(other) => panic!("{other:?}"),
        }
    }
}

#[test]
fn frames_that_tasks_do_not_need_after_all_are_free_again() {
    let array = array(&Arc::new(host()));
    // The third request needs no frame, but the channel does not know that in advance.
    let requests = ask_together(&array, &[3, 5, 3]);
    assert_eq!(requests.iter().map(|request| answer(request)).collect::<Vec<_>>(), [48, 80, 48].map(Some));
    assert_eq!(array.pager().channels()[0].supply.free.len(), 32 - 2);
    // A resident page is read at once, without a reserved frame.
    assert_eq!(array.get(3 * PAGE_LEN).unwrap(), 48);
    assert_eq!(answer(&ask_together(&array, &[3])[0]), Some(48));
}

#[test]
fn loads_of_tasks_that_failed_together_are_tried_again_alone() {
    let device = Arc::new(Faulty::new(host()));
    let array = array(&device);
    for call in [1, 2] {
        device.inject(Fault::new(Operation::Submit, ErrorKind::CopyFailed).on_call(call));
    }
    let requests = ask_together(&array, &[3, 5]);
    assert_eq!(requests.iter().map(|request| answer(request)).collect::<Vec<_>>(), [None, Some(80)]);
}

#[test]
fn a_flush_reports_failed_write_backs_of_tasks() {
    let device = Arc::new(Faulty::new(host()));
    let array = new(&device, 64, 8).build().unwrap();
    array.write(0, &vec![7; array.len()]).unwrap();
    array.evict(..).unwrap();
    // Use all frames but one.
    (0..7).for_each(|page| array.set(page * PAGE_LEN, 8).unwrap());
    device.inject(Fault::new(Operation::Submit, ErrorKind::CopyFailed).on_call(1));
    let requests = ask_together(&array, &[20, 40]);
    assert_eq!(requests.iter().map(|request| answer(request)).collect::<Vec<_>>(), [Some(7); 2]);
    let error = array.flush(..).unwrap_err();
    assert_eq!(error.device_error().unwrap().kind(), ErrorKind::CopyFailed);
    array.flush(..).unwrap();
}

/// One round of eviction: the evicted clean pages, in order, and the dirty pages that it writes back.
fn round(channel: &Channel, table: &PageTable) -> (Vec<u64>, Vec<u64>) {
    let victims = channel.choose_victims(&mut channel.lock(), table, Blocking::Try);
    assert!(!victims.unfinished);
    let mut wakes = Wakes::default();
    let frame = channel.free_clean(table, &victims.clean, &mut wakes);
    channel.wake(table, wakes);
    frame.into_iter().for_each(|frame| channel.put_back(frame));
    if let Some(ticket) = channel.write_back(table, &victims.dirty, WriteBackFor::Evict).unwrap() {
        channel.finish(table, ticket).unwrap();
    }
    let pages = |victims: &[Victim]| victims.iter().map(|victim| victim.page).collect();
    (pages(&victims.clean), pages(&victims.dirty))
}

#[test]
fn a_round_takes_clean_pages_and_sends_dirty_ones_home() {
    let array = new(&Arc::new(host()), 64, 32).build().unwrap();
    let (channel, table) = (&array.pager().channels()[0], array.pager().table());
    let of = |pages: std::ops::Range<u64>| pages.collect::<Vec<_>>();
    (0..20).for_each(|page| array.set(page * PAGE_LEN, 1).unwrap());
    let read = |pages: std::ops::Range<usize>| pages.for_each(|page| _ = array.get(page * PAGE_LEN).unwrap());
    read(20..32);
    // Clean pages are found behind dirty ones, although they were used.
    assert_eq!(round(channel, table), (of(20..24), of(0..4)));
    // Pages that are clean now leave first, while the other pages are used again. The target is a quarter of
    // the frames.
    read(24..32);
    assert_eq!(round(channel, table), (of(0..4), of(4..12)));
    // The first round frees half of the target, and the next round frees the rest.
    assert_eq!(round(channel, table).0, of(4..8));
}

#[test]
fn a_round_evicts_only_pages_behind_the_scan() {
    let array = new(&Arc::new(host()), 64, 32).build().unwrap();
    let (channel, table) = (&array.pager().channels()[0], array.pager().table());
    for page in 0..20 {
        let visit = if page < 6 { Visit::Pass } else { Visit::Stay };
        drop(array.visit_mut(array.cut(&(0..array.len()), page).unwrap(), visit).unwrap());
    }
    assert_eq!(round(channel, table), ((0..4).collect(), vec![]));
}

#[test]
fn pages_that_were_fetched_ahead_and_go_unused_are_counted_and_make_room() {
    let array = array(&Arc::new(host()));
    let (channel, table) = (&array.pager().channels()[0], array.pager().table());
    array.prefetch(..4 * PAGE_LEN).unwrap();
    channel.help_while(table, 0, None, |state| state.any(IN_FLIGHT));
    assert_eq!(channel.ahead_room(table), 12);
    assert_eq!(round(channel, table).0.len(), 4);
    assert_eq!(array.stats().total().prefetches_unused, 4);
    assert_eq!(channel.ahead_room(table), 16);
}

#[test]
fn an_exact_order_is_kept_though_others_have_been_written_back() {
    let array = new(&Arc::new(host()), 64, 8).eviction(EvictionPolicy::Lru).build().unwrap();
    let (channel, table) = (&array.pager().channels()[0], array.pager().table());
    let oldest = array.page(0).unwrap();
    array.set(PAGE_LEN, 1).unwrap();
    assert_eq!(round(channel, table), (vec![], vec![1]));
    drop(oldest);
    assert_eq!(round(channel, table), (vec![0], vec![]));
}
