//! Holds: values that lock one page for a short time, give access to its bytes, and unlock it on drop. A
//! *home slot* is the place of a page in device memory.
//!
//! | hold | the page is | other threads |
//! |---|---|---|
//! | [`SharedHold`] | resident | read it |
//! | [`ExclusiveHold`] | resident | wait |
//! | [`HomeShare`] | absent | read its home slot |
//! | [`HomeClaim`] | absent | wait |
//!
//! A thread that has several holds never waits for holds of other threads. So holds cannot deadlock.

use std::ops::Range;
use std::sync::atomic::Ordering;

use backend_api::racy;
use parking_lot::Mutex;

use super::{Fetch, Held, Pager, Stream};
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::progress::{HoldNote, WorkHold};
use crate::base::scoped_threads;
use crate::engine::guards;
use crate::engine::page::state::{AHEAD, DIRTY, HOME, RESIDENT, ZEROED};
use crate::engine::page::{HazardAccess, Holder, Refusal, State, count_hit, unpark};

/// A shared hold of a resident page. The bytes of the page stay unchanged until its drop.
pub(crate) struct SharedHold<'a> {
    pager: &'a Pager,
    page: u64,
    address: *mut u8,
    /// The page's state before the hold.
    before: State,
}

/// An exclusive hold of a resident page: only this thread accesses its bytes. The drop leaves the page dirty.
pub(crate) struct ExclusiveHold<'a> {
    pager: &'a Pager,
    page: u64,
    address: *mut u8,
    /// The page's state before the hold.
    before: State,
    /// Bits to add to the page's state at the release.
    adds: u64,
}

/// A shared hold of a page, normally an absent one. The page's home slot stays unchanged until its drop.
pub(crate) struct HomeShare<'a> {
    pager: &'a Pager,
    page: u64,
    has_contents: bool,
}

/// An exclusive hold of an absent page and its home slot.
pub(crate) struct HomeClaim<'a> {
    pager: &'a Pager,
    page: u64,
    /// The page's state before the hold.
    before: State,
    /// Bits to add to the page's state at the release.
    adds: u64,
}

/// Exclusive holds of absent pages of several arrays and their home slots.
pub(crate) struct HomesClaimed<'a> {
    pages: Vec<(&'a Pager, Range<u64>)>,
    is_written: bool,
    /// Records of these holds, which the program's functions that run meanwhile must not wait for.
    notes: Vec<HoldNote>,
}

/// A hold of a page that is either resident or absent.
pub(super) enum AsFound<R, H> {
    Resident(R),
    Absent(H),
}

impl Pager {
    /// # Panics
    /// If the bytes are not inside of the page.
    fn expect_inside(&self, offset: usize, bytes: usize) {
        let end = offset.checked_add(bytes);
        assert!(end.is_some_and(|end| end <= self.page_bytes()), "the bytes must end within the page");
    }

    /// Holds a page shared, and waits for the end of its lock-free writes.
    pub(crate) fn hold_shared(&self, page: u64, stream: Stream) -> Result<SharedHold<'_>> {
        let held = self.share_steady(page, Holder::Pin, stream)?;
        Ok(SharedHold { pager: self, page, address: held.address, before: held.before })
    }

    /// Holds a page exclusively, and waits for the end of all lock-free accesses.
    pub(crate) fn hold_exclusive(
        &self,
        page: u64,
        fetch: Fetch,
        stream: Stream,
    ) -> Result<ExclusiveHold<'_>> {
        let held = self.take(page, Holder::Pin, fetch, stream)?;
        Ok(ExclusiveHold { pager: self, page, address: held.address, before: held.before, adds: DIRTY })
    }

    /// Holds a resident page shared, without waiting for other holders. Waits for its lock-free writes.
    pub(crate) fn try_hold_shared(&self, page: u64) -> Result<SharedHold<'_>, Refusal> {
        let entry = self.table.entry(page);
        let before = entry.try_share(Holder::Pin, guards::held())?;
        self.channel(page).fewer_ahead(usize::from(before.any(AHEAD)));
        let hold = SharedHold { pager: self, page, address: entry.address(), before };
        self.channel(page).quiesce(entry, before, HazardAccess::Writes);
        Ok(hold)
    }

    /// Holds a page shared, resident or absent, without waiting for other holders. Otherwise returns the
    /// state that prevents it.
    pub(super) fn try_share_as_found(
        &self,
        page: u64,
    ) -> Result<AsFound<SharedHold<'_>, HomeShare<'_>>, State> {
        loop {
            match self.try_hold_shared(page) {
                Ok(hold) => {
                    count_hit(self.counter);
                    return Ok(AsFound::Resident(hold));
                }
                Err(Refusal::Busy(state)) => return Err(state),
                Err(Refusal::Absent) => {}
            }
            match self.table.entry(page).try_share_home(guards::held()) {
                Ok(has_contents) => {
                    return Ok(AsFound::Absent(HomeShare { pager: self, page, has_contents }));
                }
                Err(Refusal::Busy(state)) if !state.any(RESIDENT) => return Err(state),
                // Another thread has just loaded the page, so try again.
                Err(_) => {}
            }
        }
    }

    /// Holds an absent page shared; returns `None` if this does not succeed at once.
    pub(super) fn try_share_absent(&self, page: u64) -> Option<HomeShare<'_>> {
        let has_contents = self.table.entry(page).try_share_home(guards::held()).ok()?;
        Some(HomeShare { pager: self, page, has_contents })
    }

    /// Holds a page exclusively, resident or absent, without waiting for other holders. Otherwise returns the
    /// state that prevents it.
    pub(super) fn try_own_as_found(
        &self,
        page: u64,
    ) -> Result<AsFound<ExclusiveHold<'_>, HomeClaim<'_>>, State> {
        let entry = self.table.entry(page);
        loop {
            match entry.try_exclusive(Holder::Pin) {
                Ok(before) => {
                    self.channel(page).fewer_ahead(usize::from(before.any(AHEAD)));
                    let address = entry.address();
                    let hold = ExclusiveHold { pager: self, page, address, before, adds: DIRTY };
                    self.channel(page).quiesce(entry, before, HazardAccess::All);
                    return Ok(AsFound::Resident(hold));
                }
                Err(Refusal::Busy(state)) => return Err(state),
                Err(Refusal::Absent) => {}
            }
            match self.try_own_home(page) {
                Ok(claim) => return Ok(AsFound::Absent(claim)),
                Err(state) if !state.any(RESIDENT) => return Err(state),
                // Another thread has just loaded the page, so try again.
                Err(_) => {}
            }
        }
    }

    /// Holds an absent page exclusively, without waiting for other holders. Otherwise returns its state.
    pub(super) fn try_own_home(&self, page: u64) -> Result<HomeClaim<'_>, State> {
        let entry = self.table.entry(page);
        match entry.try_claim_absent(false) {
            Ok(before) => Ok(HomeClaim { pager: self, page, before, adds: 0 }),
            Err(Refusal::Busy(state)) => Err(state),
            Err(Refusal::Absent) => Err(entry.state(Ordering::Acquire)),
        }
    }

    /// Holds an absent page without contents exclusively, so that the caller can zero its slot.
    pub(super) fn try_own_homeless(&self, page: u64) -> Result<HomeClaim<'_>, State> {
        let entry = self.table.entry(page);
        match entry.try_claim_to_zero() {
            Ok(before) => Ok(HomeClaim { pager: self, page, before, adds: 0 }),
            Err(Refusal::Busy(state)) => Err(state),
            Err(Refusal::Absent) => Err(entry.state(Ordering::Acquire)),
        }
    }

    /// Holds a page exclusively, resident or absent, after waiting for other holders. The caller has no page.
    pub(super) fn own_as_found(&self, page: u64) -> Result<AsFound<ExclusiveHold<'_>, HomeClaim<'_>>> {
        self.wanting(page, |wants| {
            loop {
                match self.try_own_as_found(page) {
                    Ok(found) => {
                        // Taking a resident page clears this thread's mark `WRITER_PENDING`; taking an absent
                        // page does not.
                        *wants &= matches!(found, AsFound::Absent(_));
                        return Ok(found);
                    }
                    Err(state) => self.await_wanted(page, state, wants)?,
                }
            }
        })
    }

    /// Holds an absent page with an up-to-date home slot exclusively, for a device that writes to the slot.
    /// Returns false if this does not succeed at once. A thread with several such holds may wait for their
    /// devices, but for nothing else.
    ///
    /// A slot without contents is zeroed, unless the caller overwrites all of it.
    pub(crate) fn try_claim_home(&self, page: u64, fetch: Fetch) -> Result<bool> {
        self.expect_writable()?;
        self.try_own_home(page).map_or(Ok(false), |claim| claim.keep(fetch).map(|()| true))
    }

    /// Holds as [`try_claim_home`](Self::try_claim_home), after waiting for users of the page. Writes its
    /// frame back and frees it. The caller holds no page.
    pub(crate) fn claim_home(&self, page: u64, fetch: Fetch) -> Result<()> {
        self.expect_writable()?;
        match self.own_as_found(page)? {
            AsFound::Absent(claim) => claim.keep(fetch),
            AsFound::Resident(hold) => hold.write_back_and_unmap()?.keep(fetch),
        }
    }

    /// Writes unused pages back, frees their frames, and waits for the end of all work on them. Until their
    /// next use the pages stay absent, with contents in their home slots.
    pub(crate) fn settle_alone(&self, pages: Range<u64>) -> Result<()> {
        self.settle(&pages)?;
        self.evict(&pages)?;
        // Skip a read-only array: its pages need no mark as written, because its devices reject writes.
        for page in if self.is_read_only() { 0..0 } else { pages } {
            self.claim_home(page, Fetch::Contents)?;
            self.release_written(page);
        }
        for channel in self.channels() {
            let all_before = channel.queues.between_all_writes(&[], &[], &mut |queue| queue.submit(&[]))?;
            channel.queues.wait(all_before)?;
        }
        Ok(())
    }

    /// Returns an error if other threads may wait for the calling thread, for example because it holds
    /// guards: the operation may wait for these threads.
    pub(crate) fn expect_no_guards(&self) -> Result<()> {
        if guards::is_waited_for() { Err(self.would_deadlock()) } else { Ok(()) }
    }

    /// Returns the error of a thread that must not wait, with its first guarded page of this array.
    pub(crate) fn would_deadlock(&self) -> Error {
        let page = self.identity.first_held(&(0..self.table.len()), |_| true).unwrap_or(0);
        ErrorKind::WouldDeadlock { page }.into()
    }

    /// Holds all pages in ranges of several arrays, as [`claim_home`](Self::claim_home) does. The thread
    /// waits for users of a page only while it holds none. Several threads acquire many pages. The caller
    /// overwrites the home slots of the pages `overwritten` of the first array, which get no contents.
    pub(crate) fn claim_homes<'a>(
        of: &[(&'a Self, Range<u64>)],
        overwritten: &Range<u64>,
    ) -> Result<HomesClaimed<'a>> {
        let overwritten_of = |number: usize| if number == 0 { overwritten.clone() } else { 0..0 };
        loop {
            for (number, (pager, pages)) in of.iter().enumerate() {
                pager.expect_writable()?;
                let (Range { start, end }, kept) = (overwritten_of(number), pages);
                if start < end {
                    pager.settle(&(kept.start..start))?;
                    pager.settle(&(end..kept.end))?;
                } else {
                    pager.settle(kept)?;
                }
                pager.evict(pages)?;
            }
            let mut claimed = HomesClaimed { pages: Vec::new(), is_written: false, notes: Vec::new() };
            let in_use =
                of.iter().enumerate().try_fold(None, |in_use, (number, (pager, pages))| match in_use {
                    None => pager.try_claim_homes(pages, &overwritten_of(number), &mut claimed.pages),
                    Some(_) => Ok(in_use),
                })?;
            let Some((pager, page)) = in_use else {
                // A scatter (write by index) checks pages but does not hold them, so make running scatters
                // check again.
                let channels = of.iter().flat_map(|(pager, _)| &*pager.channels);
                channels.for_each(|channel| channel.queues.note_change());
                let hold = |(pager, pages): &(&Self, Range<u64>)| {
                    HoldNote::new(WorkHold::Pages { array: pager.identity.number(), pages: pages.clone() })
                };
                claimed.notes = of.iter().map(hold).collect();
                return Ok(claimed);
            };
            // Release all claimed pages before the wait: the page's holder may wait for one of them.
            drop(claimed);
            pager.claim_home(page, Fetch::Contents)?;
            pager.release_unchanged(page);
        }
    }

    /// Holds pages up to the first one that another thread uses, and returns this page. Never waits.
    fn try_claim_homes<'a>(
        &'a self,
        pages: &Range<u64>,
        overwritten: &Range<u64>,
        claimed: &mut Vec<(&'a Self, Range<u64>)>,
    ) -> Result<Option<(&'a Self, u64)>> {
        let (parts, outcomes) = (parts_of(pages), Mutex::new((claimed, Ok(()), None)));
        each_part(&parts, |part| {
            let mut taken = part.start;
            let mut outcome = Ok(true);
            while taken < part.end && matches!(outcome, Ok(true)) {
                let fetch = if overwritten.contains(&taken) { Fetch::Overwrite } else { Fetch::Contents };
                outcome = self.try_claim_as_found(taken, fetch);
                taken += u64::from(matches!(outcome, Ok(true)));
            }
            let mut all = outcomes.lock();
            all.0.push((self, part.start..taken));
            match outcome {
                Ok(true) => {}
                Ok(false) => all.2 = Some((self, taken)),
                Err(error) => all.1 = Err(error),
            }
        });
        let (_, failure, in_use) = outcomes.into_inner();
        failure.map(|()| in_use)
    }

    /// Holds a page as [`claim_home`](Self::claim_home) does; returns false if a thread uses it.
    fn try_claim_as_found(&self, page: u64, fetch: Fetch) -> Result<bool> {
        match self.try_own_as_found(page) {
            Ok(AsFound::Absent(claim)) => claim.keep(fetch)?,
            Ok(AsFound::Resident(hold)) => hold.write_back_and_unmap()?.keep(fetch)?,
            Err(_) => return Ok(false),
        }
        Ok(true)
    }

    /// Releases a page whose home slot the caller has not written.
    pub(crate) fn release_unchanged(&self, page: u64) {
        self.release(page, Holder::Pin, 0);
    }

    /// Releases a page whose home slot the caller has written.
    pub(crate) fn release_written(&self, page: u64) {
        let entry = self.entry(page);
        if entry.release_written() {
            unpark(entry);
        }
    }

    /// Holds a resident page without contents in its home slot shared, so that the caller can zero the slot.
    /// Otherwise returns the earlier state.
    pub(super) fn try_share_homeless(&self, page: u64) -> Result<Result<HomeShare<'_>, State>, Refusal> {
        let before = self.table.entry(page).try_share(Holder::Pin, true)?;
        let share = HomeShare { pager: self, page, has_contents: false };
        Ok(if before.any(HOME | ZEROED | DIRTY) { Err(before) } else { Ok(share) })
    }
}

impl SharedHold<'_> {
    /// See [`Held::is_used_again`].
    pub(crate) fn is_used_again(&self) -> bool {
        Held { address: self.address, before: self.before }.is_used_again()
    }

    pub(crate) fn open_reads(&self) {
        self.pager.table.entry(self.page).open_reads();
    }

    /// Returns the bytes of the page in its frame.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the frame has initialised bytes. The page is shared, and its lock-free writers have ended.
        // So it stays resident and unchanged until the drop of the hold, which is borrowed.
        unsafe { std::slice::from_raw_parts(self.address, self.pager.page_bytes()) }
    }

    /// Copies bytes out of the page, beginning at an offset.
    pub(crate) fn read(&self, offset: usize, into: &mut [u8]) {
        self.pager.expect_inside(offset, into.len());
        // SAFETY: inside the page, as was checked. The page is shared, and its lock-free writers have ended,
        // so it stays resident and unchanged.
        unsafe { racy::read(self.address.add(offset), into) }
    }
}

impl<'a> ExclusiveHold<'a> {
    /// Returns the page's state before the hold.
    pub(super) fn before(&self) -> State {
        self.before
    }

    /// Copies bytes into the page, beginning at an offset.
    pub(crate) fn write(&mut self, offset: usize, from: &[u8]) {
        self.pager.expect_inside(offset, from.len());
        // SAFETY: inside of the page, as was checked, which is this thread's alone.
        unsafe { racy::write(self.address.add(offset), from) }
    }

    /// Returns the bytes of the page in its frame.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: a frame of initialised bytes, which is this thread's alone; borrowed with the hold.
        unsafe { std::slice::from_raw_parts_mut(self.address, self.pager.page_bytes()) }
    }

    /// Frees the frame without a write-back, and releases the page. If `forget`, also discards the contents
    /// of the home slot, so that the page reads as zeroes.
    pub(super) fn release_unmapped(self, forget: bool) {
        let (pager, page) = (self.pager, self.page);
        let (entry, channel) = (pager.table.entry(page), pager.channel(page));
        std::mem::forget(self);
        let frame = channel.policy_remove(entry.address(), page);
        // Remove the frame and mark the page as empty in one step. Otherwise the home slot (in device memory)
        // would briefly appear to hold the contents.
        let is_waited_for = entry.unmap(forget);
        if forget {
            pager.init_tracker.lose();
        }
        if is_waited_for {
            unpark(entry);
        }
        channel.put_back(frame);
    }

    pub(super) fn release_unchanged(mut self) {
        self.adds = 0;
    }

    /// Writes dirty bytes back and frees the frame. The thread still holds the page, which is now absent.
    pub(super) fn write_back_and_unmap(mut self) -> Result<HomeClaim<'a>> {
        let (pager, page) = (self.pager, self.page);
        let (entry, channel) = (pager.table.entry(page), pager.channel(page));
        self.adds = 0;
        // Hold the page during the write-back. Otherwise a thread that writes continually would make the page
        // dirty again each time.
        if self.before.any(DIRTY) {
            channel.write_back_held(&pager.table, page)?;
        }
        std::mem::forget(self);
        let frame = channel.policy_remove(entry.address(), page);
        if entry.unmap_and_keep() {
            unpark(entry);
        }
        channel.put_back(frame);
        Ok(HomeClaim { pager, page, before: entry.state(Ordering::Relaxed), adds: 0 })
    }
}

impl HomeShare<'_> {
    pub(super) fn page(&self) -> u64 {
        self.page
    }

    /// Returns true if the home slot has contents; otherwise the page reads as zeroes.
    pub(super) fn has_contents(&self) -> bool {
        self.has_contents
    }
}

impl HomeClaim<'_> {
    pub(super) fn page(&self) -> u64 {
        self.page
    }

    /// Returns true if the home slot has contents or zeroes, so that a device may read it.
    pub(super) fn is_initialized(&self) -> bool {
        self.before.any(HOME | ZEROED)
    }

    /// Returns true if the home slot has contents; otherwise the page reads as zeroes.
    pub(super) fn has_contents(&self) -> bool {
        self.before.has(HOME)
    }

    /// Zeroes a home slot without contents. The page still counts as without contents.
    pub(super) fn initialize(&self) -> Result<()> {
        if self.is_initialized() {
            return Ok(());
        }
        let slot = self.page / self.pager.channels.len() as u64;
        self.pager.channel(self.page).fill_slots(slot..slot + 1, &[0])
    }

    /// Keeps the page held after the drop of this value, until the thread releases the page by its number.
    /// [Zeroes](Self::initialize) a slot without contents, unless the thread overwrites all of it. After a
    /// failure, releases the page.
    fn keep(self, fetch: Fetch) -> Result<()> {
        if fetch == Fetch::Contents && !self.is_initialized() {
            self.initialize()?;
            self.pager.table.entry(self.page).home_is_zeroed();
        }
        std::mem::forget(self);
        Ok(())
    }

    /// Marks the contents of the home slot as unspecified, before a write to it.
    pub(super) fn begin_write(&self) {
        self.pager.table.entry(self.page).home_is_unknown();
        if self.before.any(ZEROED) {
            self.pager.init_tracker.lose();
        }
    }

    /// Records that the home slot has contents.
    pub(super) fn end_write(&mut self) {
        self.adds |= HOME;
    }

    /// Discards the page's contents, so that it reads as zeroes.
    pub(super) fn forget(self) {
        let (pager, entry) = (self.pager, self.pager.table.entry(self.page));
        std::mem::forget(self);
        if entry.unmap(true) {
            unpark(entry);
        }
        pager.init_tracker.lose();
    }
}

/// Divides pages into parts for several threads, if there are many.
fn parts_of(pages: &Range<u64>) -> Vec<Range<u64>> {
    const PART_PAGES: usize = if cfg!(test) { 8 } else { 4096 };
    let starts = pages.clone().step_by(PART_PAGES);
    starts.map(|start| start..(start + PART_PAGES as u64).min(pages.end)).collect()
}

fn each_part<P: Sync>(parts: &[P], work: impl Fn(&P) + Sync) {
    const THREADS: usize = 8;
    scoped_threads::each(THREADS.min(*scoped_threads::CORES), parts.len(), |part| work(&parts[part]));
}

impl HomesClaimed<'_> {
    /// Records that the home slots have contents, before the writes to them.
    pub(crate) fn begin_write(&mut self) {
        self.is_written = true;
    }
}

impl Drop for HomesClaimed<'_> {
    fn drop(&mut self) {
        each_part(&self.pages, |(pager, part)| {
            for page in part.clone() {
                if self.is_written {
                    pager.release_written(page);
                } else {
                    pager.release_unchanged(page);
                }
            }
        });
    }
}

impl Drop for SharedHold<'_> {
    fn drop(&mut self) {
        self.pager.unshare(self.page, Holder::Pin);
    }
}

impl Drop for ExclusiveHold<'_> {
    fn drop(&mut self) {
        self.pager.release(self.page, Holder::Pin, self.adds);
    }
}

impl Drop for HomeShare<'_> {
    fn drop(&mut self) {
        self.pager.unshare(self.page, Holder::Pin);
    }
}

impl Drop for HomeClaim<'_> {
    fn drop(&mut self) {
        self.pager.release(self.page, Holder::Pin, self.adds);
    }
}
