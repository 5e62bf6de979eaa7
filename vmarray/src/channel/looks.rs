//! Looks at the pages of many tasks together.

use std::sync::atomic::Ordering;

use backend_api::Device;

use super::Channel;
use super::awaited::Closed;
use super::batch::Fate;
use super::combine::{Load, Then};
use super::frames::{Frame, Patience};
use super::transfers::Wakes;
use crate::page::PageTable;
use crate::page::state::{EXCLUSIVE, HOME, RESIDENT, WAITED};

/// So many pages ahead of the one that is looked at, an entry is asked for: the time that memory takes, in looks.
const LOOK_AHEAD: usize = 16;

/// What is to be done after looks at many pages, once nothing is claimed any more that is not on record.
pub(super) struct Looks {
    /// Pages whose sleepers are to be woken.
    wakes: Wakes,
    /// Whether frames were taken in vain, which are free again.
    has_freed: bool,
    /// Places that were taken in vain.
    room: usize,
}

impl<D: Device> Channel<D> {
    /// Looks at the pages that a batch has not seen yet. Those that are absent, and have contents, get a frame and
    /// become loads of the batch, as far as there are frames and [places](super::Admission) for them. The batch is
    /// closed, so nobody else changes it.
    ///
    /// Runs wakers, but none of them after the first claim. The caller submits the loads, and then
    /// [ends](Self::end_looks) the looks.
    pub(super) fn look_together(&self, table: &PageTable, closed: &mut Closed) -> Option<Looks> {
        let Closed { loads, unseen, places, .. } = closed;
        if unseen.is_empty() {
            return None;
        }
        // The frames first, holding nothing.
        let mut absent = Vec::with_capacity(unseen.len());
        unseen.iter().take(LOOK_AHEAD).for_each(|place| table.prefetch(places[*place].page));
        for (at, &place) in unseen.iter().enumerate() {
            if let Some(later) = unseen.get(at + LOOK_AHEAD) {
                table.prefetch(places[*later].page);
            }
            let state = table.entry(places[place].page).state(Ordering::Relaxed);
            if state.has(HOME) && !state.any(RESIDENT) {
                absent.push(place);
            }
        }
        // Many who ask for one page do so one after another, as a rule.
        let pages = absent.chunk_by(|one, next| places[*one].page == places[*next].page).count();
        let mut room = self.admission.enter_together(pages);
        let mut spare = self.take_frames_for_looks(table, room);
        // Taken from the end.
        spare.reverse();
        let mut wakes = Wakes::default();
        let mut shared = Vec::new();
        for place in absent {
            let wanted = &mut places[place];
            let (page, entry) = (wanted.page, table.entry(wanted.page));
            let state = entry.state(Ordering::Relaxed);
            if state.any(EXCLUSIVE) {
                // On its way already, maybe as a load of this batch.
                shared.push(place);
                continue;
            }
            let Some(&frame) = spare.last() else { continue };
            let Ok(before) = entry.claim_to_load_home() else { continue };
            spare.pop();
            room -= 1;
            // Whoever is blocked by the load can help then.
            wakes.add(page, before.any(WAITED));
            loads.push(Load { page, frame, then: Then::Leave, id: 0 });
            wanted.element.address += frame.address.addr();
            wanted.fate = Fate::Loads;
        }
        if !shared.is_empty() {
            loads.sort_unstable_by_key(|load| load.page);
            for place in shared {
                let wanted = &mut places[place];
                if let Ok(at) = loads.binary_search_by_key(&wanted.page, |load| load.page) {
                    wanted.element.address += loads[at].frame.address.addr();
                    wanted.fate = Fate::Shares;
                }
            }
        }
        // Before code of others runs, which may need them.
        self.free_all(&spare);
        if !spare.is_empty() {
            self.note_news();
        }
        Some(Looks { wakes, has_freed: !spare.is_empty(), room })
    }

    /// As many frames as can be had without waiting, up to a number, in the order in which they come. Why there are not
    /// more is found out by those who look for themselves then.
    fn take_frames_for_looks(&self, table: &PageTable, most: usize) -> Vec<Frame> {
        let mut taken = Vec::with_capacity(most);
        while taken.len() < most {
            match self.take_frame(table, Patience::Try) {
                Ok(Some(frame)) => taken.push(frame),
                Ok(None) => break,
                Err(error) => {
                    // Nobody is told here: whoever needs a frame and fails again is, or the next flush.
                    if let Some(error) = error.device_error() {
                        self.lock().write_error.get_or_insert_with(|| error.clone());
                    }
                    break;
                }
            }
        }
        taken
    }

    /// Gives back what looks have taken in vain, and wakes whoever can help with what they have found.
    pub(super) fn end_looks(&self, table: &PageTable, Looks { wakes, has_freed, room }: Looks) {
        self.wake(table, wakes);
        if has_freed {
            self.announce();
        }
        if room > 0 {
            self.admission.leave(room);
        }
    }
}
