//! Reservation of cache frames for pages that tasks requested for a guard or long read, until the next poll.
//!
//! The page that a task requested for a guard may arrive before the task's next poll. Its frame is then
//! reserved: other threads can use, write or hold the page, but cannot evict it. Meanwhile the future counts
//! as a guard. So the limit on guards applies, and other threads still find frames. A thread that needs a
//! guard or a frame waits for the future or gets an error, as it would for a guard.
//!
//! A long read reserves a frame only while less than a quarter of the frames is reserved and no thread waits
//! for a frame. Otherwise the thread that completes the load copies the bytes [at
//! once](Channel::serve_long_reads).

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Waker;

use super::async_requests::{RequestAnswer, TakenRequest};
use super::{Channel, FrameTable, NO_PAGE, PageRequest};
use crate::engine::page::state::RESIDENT;
use crate::engine::page::{self, HazardAccess, PageTable};

/// Minimum number of recorded long reads before finished ones are removed from the list.
const READS_MIN: usize = 64;

/// Number of long reads of each reserved frame. Tasks decrement it without a lock.
#[derive(Debug)]
pub(super) struct KeptForReads {
    /// Allocated at the first reservation.
    frames: OnceLock<Box<[AtomicU32]>>,
    frames_max: u32,
    count: AtomicU32,
}

impl KeptForReads {
    fn add(&self, frame: u32) {
        let new = || (0..self.frames_max).map(|_| AtomicU32::new(0)).collect();
        self.frames.get_or_init(new)[frame as usize].fetch_add(1, Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends a read. A release, so that the next user of the frame acts after the read.
    fn remove(&self, frame: u32) {
        if let Some(frames) = self.frames.get() {
            frames[frame as usize].fetch_sub(1, Ordering::Release);
        }
        self.count.fetch_sub(1, Ordering::Release);
    }

    fn has(&self, frame: u32) -> bool {
        self.frames.get().is_some_and(|frames| frames[frame as usize].load(Ordering::Acquire) > 0)
    }

    fn count(&self) -> usize {
        self.count.load(Ordering::Acquire) as usize
    }
}

/// The reserved frames.
#[derive(Debug)]
pub(super) struct ReservedFrames {
    /// Frames reserved for guards, each with the number of guards.
    guards: HashMap<u32, u32>,
    /// Long reads with a frame; some may have finished.
    reads: Vec<(u32, Arc<PageRequest>)>,
    for_reads: Arc<KeptForReads>,
}

impl ReservedFrames {
    pub(super) fn new(frames_max: u32) -> Self {
        let for_reads =
            Arc::new(KeptForReads { frames: OnceLock::new(), frames_max, count: AtomicU32::new(0) });
        Self { guards: HashMap::new(), reads: Vec::new(), for_reads }
    }

    pub(super) fn for_reads(&self) -> &Arc<KeptForReads> {
        &self.for_reads
    }

    /// Returns the number of reserved frames. A frame for several long reads counts several times.
    pub(super) fn count(&self) -> usize {
        self.guards.len() + self.for_reads.count()
    }

    pub(super) fn has(&self, frame: u32) -> bool {
        self.for_reads.has(frame) || !self.guards.is_empty() && self.guards.contains_key(&frame)
    }

    /// Reserves a frame for a task, and answers the request; returns the waker if the task still waits.
    pub(super) fn add(&mut self, frame: u32, request: &Arc<PageRequest>) -> Option<Waker> {
        if request.is_for_guard() {
            *self.guards.entry(frame).or_default() += 1;
        } else {
            // Add the frame first, because the task may release the frame right after the answer.
            self.for_reads.add(frame);
        }
        let waker = request.answer(RequestAnswer::Reserved(frame));
        match (waker.is_some(), request.is_for_guard()) {
            (true, true) => {}
            (true, false) => {
                if self.reads.len() >= READS_MIN.max(2 * self.for_reads.count()) {
                    self.reads.retain(|(_, request)| request.has_kept());
                }
                self.reads.push((frame, Arc::clone(request)));
            }
            (false, true) => self.remove_guard(frame),
            (false, false) => self.for_reads.remove(frame),
        }
        waker
    }

    /// Ends one reservation of a frame for a guard.
    fn remove_guard(&mut self, frame: u32) {
        let Some(guards) = self.guards.get_mut(&frame) else { return };
        *guards -= 1;
        if *guards == 0 {
            self.guards.remove(&frame);
        }
    }
}

impl Channel {
    /// Ends a frame's reservation, and wakes threads that wait for frames.
    pub(crate) fn unreserve(&self, frame: u32, request: &PageRequest) {
        if request.is_for_guard() {
            self.lock().frames.reserved.remove_guard(frame);
        } else if request.let_go() {
            self.tasks.kept_for_reads.remove(frame);
        } else {
            // Another thread has taken the frame from the task, so do nothing.
            return;
        }
        self.announce_reservation();
    }

    /// Wakes threads that wait for frames, because a waiting task has a reserved frame that they may take.
    pub(crate) fn announce_reservation(&self) {
        self.events.advance();
        self.announce();
    }

    /// Executes long reads with reserved frames, and ends these. Returns true if there were any.
    pub(super) fn serve_long_reads(&self, table: &PageTable) -> bool {
        let reads = std::mem::take(&mut self.lock().frames.reserved.reads);
        let mut later = Vec::new();
        let mut any = false;
        for (frame, request) in reads {
            let entry = table.entry(request.page);
            let taken = match entry.try_share(page::Holder::Pin, true) {
                Ok(before) => {
                    self.quiesce(entry, before, HazardAccess::Writes);
                    // This thread holds the page shared, and its gates are shut (no lock-free access). So the
                    // page stays, without writers.
                    let taken = request.take_kept(Some(self.held_bytes(entry)));
                    if entry.unshare(page::Holder::Pin) {
                        page::unpark(entry);
                    }
                    taken
                }
                // Another thread holds the page exclusively and releases it soon, so try again later.
                Err(_) if entry.state(Ordering::Acquire).any(RESIDENT) => {
                    later.push((frame, request));
                    continue;
                }
                // The program evicted the page, so the task requests it again.
                Err(_) => request.take_kept(None),
            };
            match taken {
                TakenRequest::Yes(waker) => {
                    self.tasks.kept_for_reads.remove(frame);
                    any = true;
                    waker.into_iter().for_each(page::wake);
                }
                TakenRequest::NotYet => later.push((frame, request)),
                TakenRequest::Over => {}
            }
        }
        self.lock().frames.reserved.reads.extend(later);
        if any {
            self.events.advance();
            self.announce();
        }
        any
    }
}

impl FrameTable {
    pub(super) fn is_reserved_at(&self, address: *mut u8) -> bool {
        self.reserved.count() > 0 && self.reserved.has(self.frame_at(address).index)
    }

    /// Returns true if a page is in a reserved frame. Only an eviction by the program moves such a page.
    pub(super) fn keeps(&self, table: &PageTable, page: u64) -> bool {
        let entry = table.entry(page);
        self.reserved.count() > 0
            && entry.state(Ordering::Acquire).any(RESIDENT)
            && self.is_reserved_at(entry.address())
    }

    /// Returns true if each frame has a page that the program may keep for any time.
    pub(super) fn are_all_kept(&self, table: &PageTable) -> bool {
        self.pages.iter().zip(0..).all(|(&page, frame)| {
            let is_guarded = || table.entry(page).state(Ordering::Acquire).guards() > 0;
            page != NO_PAGE && (self.reserved.has(frame) || is_guarded())
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::task::{Context, Poll, Wake};

    use super::super::frames::Blocking;
    use super::super::transfers::Wakes;
    use super::super::{Ask, Bytes};
    use super::*;
    use crate::array::testing::{host, one_channel};

    const LONG: usize = 1000;

    #[derive(Default)]
    struct Woken(AtomicBool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    fn request(ask: Ask) -> Arc<PageRequest> {
        Arc::new(PageRequest::new(0, ask, Waker::noop().clone()))
    }

    fn poll(request: &PageRequest) -> Poll<RequestAnswer> {
        request.poll(&Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_page_stays_until_no_task_is_to_have_its_frame() {
        for ask in [|| Ask::Reserve, || Ask::Read { offset: 0, len: LONG }] {
            let array = one_channel::<u32, _>(&Arc::new(host()), (4, LONG), 1).build().unwrap();
            array.get(0).unwrap();
            let (channel, table) = (&array.pager().channels()[0], array.pager().table());
            table.entry(0).forget_use();
            let choose = || {
                let mut shard = channel.lock();
                // Set up the state after a write-back for an eviction.
                shard.frames.cleaned.push(0);
                channel.choose_victims(&mut shard, table, Blocking::Try).clean
            };
            let requests = [request(ask()), request(ask())];
            for request in &requests {
                assert!(channel.lock().frames.reserved.add(0, request).is_some());
                assert!(matches!(poll(request), Poll::Ready(RequestAnswer::Reserved(0))));
            }
            for request in &requests {
                assert!(choose().is_empty());
                channel.unreserve(0, request);
            }
            let victims = choose();
            assert_eq!(victims.iter().map(|victim| victim.page).collect::<Vec<_>>(), [0]);
            let frame = channel.free_clean(table, &victims, &mut Wakes::default()).unwrap();
            channel.put_back(frame);
        }
    }

    #[test]
    fn a_task_is_woken_whose_read_is_done_for_it() {
        let array = one_channel::<u32, _>(&Arc::new(host()), (4, LONG), 1).build().unwrap();
        array.set(1, 7).unwrap();
        let (channel, table) = (&array.pager().channels()[0], array.pager().table());
        let request = request(Ask::Read { offset: 4, len: LONG });
        channel.lock().frames.reserved.add(0, &request).unwrap();
        assert!(matches!(poll(&request), Poll::Ready(RequestAnswer::Reserved(0))));
        assert!(!channel.serve_long_reads(table), "the task is at the page");
        let woken = Arc::new(Woken::default());
        request.wait_kept(&Waker::from(woken.clone()));
        assert!(channel.serve_long_reads(table));
        assert!(woken.0.load(Ordering::SeqCst));
        let mut expected = Bytes::from_slice(&7_u32.to_ne_bytes());
        expected.resize(LONG, 0);
        assert!(matches!(poll(&request), Poll::Ready(RequestAnswer::Read(bytes)) if bytes == expected));
        assert_eq!(channel.lock().frames.reserved.count(), 0);
    }

    #[test]
    fn long_reads_that_are_over_are_forgotten() {
        let mut reserved = ReservedFrames::new(1);
        for _ in 0..10 * READS_MIN {
            let request = request(Ask::Read { offset: 0, len: LONG });
            reserved.add(0, &request).unwrap();
            assert!(matches!(poll(&request), Poll::Ready(RequestAnswer::Reserved(0))));
            assert!(request.let_go());
            reserved.for_reads.remove(0);
        }
        assert!(reserved.reads.len() <= READS_MIN, "{}", reserved.reads.len());
    }
}
