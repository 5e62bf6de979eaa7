//! Pages that a thread holds for a short time: what is done with their bytes, and that they are let go.
//!
//! | hold | the page is | others meanwhile |
//! |---|---|---|
//! | [`SharedHold`] | resident | read it |
//! | [`ExclusiveHold`] | resident | wait |
//! | [`HomeShare`] | absent | read its home slot |
//! | [`HomeClaim`] | absent | wait |
//!
//! A thread that holds several pages waits for nothing but copies.

use std::ops::Range;
use std::sync::atomic::Ordering;

use backend_api::racy;
use parking_lot::Mutex;

use super::{Fetch, Held, Pager, Stream};
use crate::base::error::{ErrorKind, Result};
use crate::base::scoped_threads;
use crate::engine::guards;
use crate::engine::page::state::{AHEAD, DIRTY, HOME, RESIDENT, ZEROED};
use crate::engine::page::{Access, Holder, Refusal, State, count_hit, unpark};

/// A resident page whose bytes stay as they are until the thread drops this.
pub(crate) struct SharedHold<'a> {
    pager: &'a Pager,
    page: u64,
    address: *mut u8,
    /// The state before.
    before: State,
}

/// A resident page whose bytes the thread alone reads and writes until it drops this. The page is dirty then.
pub(crate) struct ExclusiveHold<'a> {
    pager: &'a Pager,
    page: u64,
    address: *mut u8,
    /// The state before.
    before: State,
    /// What is added to the state in the end.
    adds: u64,
}

/// A page whose home slot stays as it is until the thread drops this: an absent one, as a rule.
pub(crate) struct HomeShare<'a> {
    pager: &'a Pager,
    page: u64,
    has_contents: bool,
}

/// An absent page whose home slot is the thread's alone until it drops this.
pub(crate) struct HomeClaim<'a> {
    pager: &'a Pager,
    page: u64,
    /// The state before.
    before: State,
    /// What is added to the state in the end.
    adds: u64,
}

/// Absent pages of arrays, whose home slots are the thread's alone until it drops this.
pub(crate) struct HomesClaimed<'a> {
    pages: Vec<(&'a Pager, Range<u64>)>,
    is_written: bool,
}

/// A page that is held as it was found.
pub(super) enum AsFound<R, H> {
    Resident(R),
    Absent(H),
}

impl Pager {
    /// Holds a page, shared, and waits for writers without a lock to leave it.
    pub(crate) fn hold_shared(&self, page: u64, stream: Stream) -> Result<SharedHold<'_>> {
        let held = self.share_steady(page, Holder::Pin, stream)?;
        Ok(SharedHold { pager: self, page, address: held.address, before: held.before })
    }

    /// Holds a page, exclusively, and waits for all accesses without a lock to end.
    pub(crate) fn hold_exclusive(
        &self,
        page: u64,
        fetch: Fetch,
        stream: Stream,
    ) -> Result<ExclusiveHold<'_>> {
        let held = self.take(page, Holder::Pin, fetch, stream)?;
        Ok(ExclusiveHold { pager: self, page, address: held.address, before: held.before, adds: DIRTY })
    }

    /// Shares a resident page, without a wait for others, and waits for writers without a lock to leave it.
    pub(crate) fn try_hold_shared(&self, page: u64) -> Result<SharedHold<'_>, Refusal> {
        let entry = self.table.entry(page);
        let before = entry.try_share(Holder::Pin, guards::held())?;
        self.channel(page).fewer_ahead(usize::from(before.any(AHEAD)));
        let hold = SharedHold { pager: self, page, address: entry.address(), before };
        self.channel(page).quiesce(entry, before, Access::Writes);
        Ok(hold)
    }

    /// Shares a page as it is, without a wait for others; else the state that is in the way.
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
                // It has become resident just now.
                Err(_) => {}
            }
        }
    }

    /// Shares an absent page, if that can be had at once.
    pub(super) fn try_share_absent(&self, page: u64) -> Option<HomeShare<'_>> {
        let has_contents = self.table.entry(page).try_share_home(guards::held()).ok()?;
        Some(HomeShare { pager: self, page, has_contents })
    }

    /// Takes a page as it is, without a wait for others; else the state that is in the way.
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
                    self.channel(page).quiesce(entry, before, Access::All);
                    return Ok(AsFound::Resident(hold));
                }
                Err(Refusal::Busy(state)) => return Err(state),
                Err(Refusal::Absent) => {}
            }
            match self.try_own_home(page) {
                Ok(claim) => return Ok(AsFound::Absent(claim)),
                Err(state) if !state.any(RESIDENT) => return Err(state),
                // It has become resident just now.
                Err(_) => {}
            }
        }
    }

    /// Takes an absent page, without a wait for others; else the state that is in the way.
    pub(super) fn try_own_home(&self, page: u64) -> Result<HomeClaim<'_>, State> {
        let entry = self.table.entry(page);
        match entry.try_claim_absent(false) {
            Ok(before) => Ok(HomeClaim { pager: self, page, before, adds: 0 }),
            Err(Refusal::Busy(state)) => Err(state),
            Err(Refusal::Absent) => Err(entry.state(Ordering::Acquire)),
        }
    }

    /// As [`try_own_home`](Self::try_own_home), of a page without contents, for its slot to get zeroes.
    pub(super) fn try_own_homeless(&self, page: u64) -> Result<HomeClaim<'_>, State> {
        let entry = self.table.entry(page);
        match entry.try_claim_to_zero() {
            Ok(before) => Ok(HomeClaim { pager: self, page, before, adds: 0 }),
            Err(Refusal::Busy(state)) => Err(state),
            Err(Refusal::Absent) => Err(entry.state(Ordering::Acquire)),
        }
    }

    /// Takes a page as it is, after threads that use it. The caller holds no page.
    pub(super) fn own_as_found(&self, page: u64) -> Result<AsFound<ExclusiveHold<'_>, HomeClaim<'_>>> {
        self.wanting(page, |wants| {
            loop {
                match self.try_own_as_found(page) {
                    Ok(found) => {
                        // To get the page takes the mark away, unless it is absent.
                        *wants &= matches!(found, AsFound::Absent(_));
                        return Ok(found);
                    }
                    Err(state) => self.await_wanted(page, state, wants)?,
                }
            }
        })
    }

    /// Holds an absent page whose home slot is up to date, for a device to write to it, if that can be had at
    /// once. A thread that holds several may wait for their devices, and for nothing else.
    ///
    /// A slot without contents gets zeroes, unless all of it is to be overwritten.
    pub(crate) fn try_claim_home(&self, page: u64, fetch: Fetch) -> Result<bool> {
        self.expect_writable()?;
        self.try_own_home(page).map_or(Ok(false), |claim| claim.keep(fetch).map(|()| true))
    }

    /// Holds a page as [`try_claim_home`](Self::try_claim_home) does, waiting for threads that use it, and
    /// having its frame written back and dropped. The caller holds no page.
    pub(crate) fn claim_home(&self, page: u64, fetch: Fetch) -> Result<()> {
        self.expect_writable()?;
        match self.own_as_found(page)? {
            AsFound::Absent(claim) => claim.keep(fetch),
            AsFound::Resident(hold) => hold.write_back_and_unmap()?.keep(fetch),
        }
    }

    /// Brings pages home that nobody else uses, and waits until no work on them is under way. They stay so
    /// until somebody uses them: absent, with contents at home.
    pub(crate) fn settle_alone(&self, pages: Range<u64>) -> Result<()> {
        self.settle(&pages)?;
        self.evict(&pages)?;
        // Of an array that is for reading alone they are so without that, and devices refuse to write.
        for page in if self.is_read_only() { 0..0 } else { pages } {
            self.claim_home(page, Fetch::Contents)?;
            self.release_written(page);
        }
        for channel in self.channels() {
            let all_before = channel.queues.between_all_writes(&[], &[], |queue| queue.submit(&[]))?;
            channel.queues.wait(all_before)?;
        }
        Ok(())
    }

    /// Says that a thread which holds guards cannot do what it wants to, which may wait for threads that wait
    /// for these.
    pub(crate) fn expect_no_guards(&self) -> Result<()> {
        if !guards::held_or_expected() {
            return Ok(());
        }
        let page = self.identity.first_held(&(0..self.table.len()), |_| true).unwrap_or(0);
        Err(ErrorKind::WouldDeadlock { page }.into())
    }

    /// Holds all pages of ranges of different arrays as [`claim_home`](Self::claim_home) does, waiting for
    /// threads that use one of them while it holds none. Several threads take many pages.
    pub(crate) fn claim_homes<'a>(of: &[(&'a Self, Range<u64>)]) -> Result<HomesClaimed<'a>> {
        loop {
            for (pager, pages) in of {
                pager.expect_writable()?;
                pager.settle(pages)?;
                pager.evict(pages)?;
            }
            let mut claimed = HomesClaimed { pages: Vec::new(), is_written: false };
            let in_use = of.iter().try_fold(None, |in_use, (pager, pages)| match in_use {
                None => pager.try_claim_homes(pages, &mut claimed.pages),
                Some(_) => Ok(in_use),
            })?;
            let Some((pager, page)) = in_use else {
                // Scatters hold nothing: those that have looked at these pages look at them again.
                let channels = of.iter().flat_map(|(pager, _)| &*pager.channels);
                channels.for_each(|channel| channel.queues.note_change());
                return Ok(claimed);
            };
            // The thread that has the page may wait for another one of them.
            drop(claimed);
            pager.claim_home(page, Fetch::Contents)?;
            pager.release_unchanged(page);
        }
    }

    /// Claims pages until one is in use, which it says. It waits for nobody.
    fn try_claim_homes<'a>(
        &'a self,
        pages: &Range<u64>,
        claimed: &mut Vec<(&'a Self, Range<u64>)>,
    ) -> Result<Option<(&'a Self, u64)>> {
        let (parts, outcomes) = (parts_of(pages), Mutex::new((claimed, Ok(()), None)));
        each_part(&parts, |part| {
            let mut taken = part.start;
            let mut outcome = Ok(true);
            while taken < part.end && matches!(outcome, Ok(true)) {
                outcome = self.try_claim_as_found(taken);
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

    /// Holds a page as [`claim_home`](Self::claim_home) does, unless a thread uses it.
    fn try_claim_as_found(&self, page: u64) -> Result<bool> {
        match self.try_own_as_found(page) {
            Ok(AsFound::Absent(claim)) => claim.keep(Fetch::Contents)?,
            Ok(AsFound::Resident(hold)) => hold.write_back_and_unmap()?.keep(Fetch::Contents)?,
            Err(_) => return Ok(false),
        }
        Ok(true)
    }

    /// Lets a page go whose slot was not written to.
    pub(crate) fn release_unchanged(&self, page: u64) {
        self.release(page, Holder::Pin, 0);
    }

    /// Lets a page go whose slot now has contents.
    pub(crate) fn release_written(&self, page: u64) {
        let entry = self.entry(page);
        if entry.release_written() {
            unpark(entry);
        }
    }

    /// Shares a resident page without contents at home, so that zeroes can be written there; else the state
    /// before.
    pub(super) fn try_share_homeless(&self, page: u64) -> Result<Result<HomeShare<'_>, State>, Refusal> {
        let before = self.table.entry(page).try_share(Holder::Pin, true)?;
        let share = HomeShare { pager: self, page, has_contents: false };
        Ok(if before.any(HOME | ZEROED | DIRTY) { Err(before) } else { Ok(share) })
    }
}

impl SharedHold<'_> {
    /// As [`Held::is_used_again`].
    pub(crate) fn is_used_again(&self) -> bool {
        Held { address: self.address, before: self.before }.is_used_again()
    }

    /// Opens the page to reads without a lock.
    pub(crate) fn open_reads(&self) {
        self.pager.table.entry(self.page).open_reads();
    }

    /// The page's bytes in place.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: a frame of initialised bytes; the page is shared and writers without a lock were waited
        // for, so it stays resident and nobody writes until the hold, which is borrowed, is dropped.
        unsafe { std::slice::from_raw_parts(self.address, self.pager.page_bytes()) }
    }

    /// Copies bytes of the page from an offset on.
    pub(crate) fn read(&self, offset: usize, into: &mut [u8]) {
        assert!(offset + into.len() <= self.pager.page_bytes(), "the part is inside of the page");
        // SAFETY: inside of the page, as was checked; it is shared and was waited for, so it stays resident
        // and nobody writes.
        unsafe { racy::read(self.address.add(offset), into) }
    }
}

impl<'a> ExclusiveHold<'a> {
    /// The state before the thread had the page.
    pub(super) fn before(&self) -> State {
        self.before
    }

    /// Copies bytes to the page from an offset on.
    pub(crate) fn write(&mut self, offset: usize, from: &[u8]) {
        assert!(offset + from.len() <= self.pager.page_bytes(), "the part is inside of the page");
        // SAFETY: inside of the page, as was checked, which is this thread's alone.
        unsafe { racy::write(self.address.add(offset), from) }
    }

    /// The page's bytes in place.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: a frame of initialised bytes, which is this thread's alone; borrowed with the hold.
        unsafe { std::slice::from_raw_parts_mut(self.address, self.pager.page_bytes()) }
    }

    /// Takes the frame away from the page, whose dirty bytes are lost, and lets it go. `forget` also declares
    /// the page void: it reads as zeroes.
    pub(super) fn release_unmapped(self, forget: bool) {
        let (pager, page) = (self.pager, self.page);
        let (entry, channel) = (pager.table.entry(page), pager.channel(page));
        std::mem::forget(self);
        let frame = channel.policy_remove(entry.address(), page);
        // In one step: in between the page would look as if its home slot had its contents.
        let is_waited_for = entry.unmap(forget);
        if forget {
            pager.init_tracker.lose();
        }
        if is_waited_for {
            unpark(entry);
        }
        channel.put_back(frame);
    }

    /// Lets the page go, to which nothing was written.
    pub(super) fn release_unchanged(mut self) {
        self.adds = 0;
    }

    /// Takes the frame away from the page; what is dirty is written back before. The page stays the thread's.
    pub(super) fn write_back_and_unmap(mut self) -> Result<HomeClaim<'a>> {
        let (pager, page) = (self.pager, self.page);
        let (entry, channel) = (pager.table.entry(page), pager.channel(page));
        self.adds = 0;
        // Without letting go: a thread that goes on writing would have it dirty again each time.
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

    /// Whether the home slot has contents; else the page reads as zeroes.
    pub(super) fn has_contents(&self) -> bool {
        self.has_contents
    }
}

impl HomeClaim<'_> {
    pub(super) fn page(&self) -> u64 {
        self.page
    }

    /// Whether the home slot has contents, or zeroes in their place.
    pub(super) fn is_initialized(&self) -> bool {
        self.before.any(HOME | ZEROED)
    }

    /// Whether the home slot has contents that were written to it.
    pub(super) fn has_contents(&self) -> bool {
        self.before.has(HOME)
    }

    /// Writes zeroes to the home slot if it has no contents. Nobody else is told of them.
    pub(super) fn initialize(&self) -> Result<()> {
        if self.is_initialized() {
            return Ok(());
        }
        let slot = self.page / self.pager.channels.len() as u64;
        self.pager.channel(self.page).fill_slots(slot..slot + 1, &[0])
    }

    /// Leaves the page held, with its slot [initialized](Self::initialize) unless all of it is to be
    /// overwritten, for the thread to let go of by its number. Lets it go if that fails.
    fn keep(self, fetch: Fetch) -> Result<()> {
        if fetch == Fetch::Contents && !self.is_initialized() {
            self.initialize()?;
            self.pager.table.entry(self.page).home_is_zeroed();
        }
        std::mem::forget(self);
        Ok(())
    }

    /// Declares what is in the home slot unknown, which is written to next.
    pub(super) fn begin_write(&self) {
        self.pager.table.entry(self.page).home_is_unknown();
        if self.before.any(ZEROED) {
            self.pager.init_tracker.lose();
        }
    }

    /// Notes that the home slot has contents now.
    pub(super) fn end_write(&mut self) {
        self.adds |= HOME;
    }

    /// Declares the page void: it reads as zeroes.
    pub(super) fn forget(self) {
        let (pager, entry) = (self.pager, self.pager.table.entry(self.page));
        std::mem::forget(self);
        if entry.unmap(true) {
            unpark(entry);
        }
        pager.init_tracker.lose();
    }
}

/// Pages in parts, for several threads if there are many.
fn parts_of(pages: &Range<u64>) -> Vec<Range<u64>> {
    const PART_PAGES: usize = if cfg!(test) { 8 } else { 4096 };
    let starts = pages.clone().step_by(PART_PAGES);
    starts.map(|start| start..(start + PART_PAGES as u64).min(pages.end)).collect()
}

/// Has parts worked on by several threads.
fn each_part<P: Sync>(parts: &[P], work: impl Fn(&P) + Sync) {
    const THREADS: usize = 8;
    scoped_threads::each(THREADS.min(*scoped_threads::CORES), parts.len(), |part| work(&parts[part]));
}

impl HomesClaimed<'_> {
    /// Notes that the home slots have contents, from before they are written to.
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
