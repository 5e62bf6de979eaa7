//! Memory for more pages.

use std::sync::Arc;

use super::Pager;
use crate::base::error::{Error, Result};
use crate::engine::page::LockScope;
use crate::engine::page::state::ZEROED;

/// How much more than there is a first attempt asks for, and the next ones, as parts of what there is: twice
/// as much if the devices have room, so that an array that grows seldom asks them.
const SPARE_PARTS: [u64; 4] = [1, 4, 16, u64::MAX];
/// At least so much more is asked for on each channel, if there is room: drivers give memory in pieces of
/// this.
const STEP_BYTES: u64 = 2 << 20;

/// Whether more is asked for than is needed now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spare {
    Some,
    None,
}

impl Pager {
    /// How many pages a channel has of so many.
    pub(crate) fn slots_in(channel: u64, channels: u64, pages: u64) -> u64 {
        (pages + channels - 1 - channel) / channels
    }

    /// Sees to it that so many pages have a home, with some to spare or without: of what there is nothing
    /// moves.
    ///
    /// # Errors
    /// What a device reports; as many pages have a home as before then.
    pub(crate) fn extend(&self, pages: u64, spare: Spare) -> Result<()> {
        if pages <= self.table.len() {
            return Ok(());
        }
        // Declared first, dropped last: devices may wake tasks in any call, which run without the lock then.
        let _scope = LockScope::begin();
        let _alone = self.extending.lock();
        let (present, most) = (self.table.len(), self.table.most());
        debug_assert!(pages <= most, "callers have compared it with the length limit");
        let least = present + (STEP_BYTES / self.page_bytes.max(1) as u64) * self.channels.len() as u64;
        let mut outcome = Ok(());
        let mut before = u64::MAX;
        for part in SPARE_PARTS {
            let is_last = part == u64::MAX;
            if spare == Spare::None && !is_last {
                continue;
            }
            let mut wanted = pages.max(if is_last { 0 } else { present.saturating_add(present / part) });
            if part == SPARE_PARTS[0] {
                wanted = wanted.max(least);
            }
            let wanted = wanted.min(most);
            if wanted <= present || wanted == before || (!is_last && !self.has_room(wanted)?) {
                continue;
            }
            before = wanted;
            outcome = self.extend_to(wanted);
            match &outcome {
                Err(error) if is_out_of_memory(error) => {}
                _ => break,
            }
        }
        outcome
    }

    /// Whether the devices say that they have memory for so many pages.
    fn has_room(&self, pages: u64) -> Result<bool> {
        for channel in &self.channels {
            let device = channel.device();
            let on_it = (0..).zip(&self.channels).filter(|(_, other)| Arc::ptr_eq(other.device(), device));
            let more = on_it.map(|(number, other)| {
                let slots = Self::slots_in(number, self.channels.len() as u64, pages);
                slots.saturating_mul(self.page_bytes as u64).saturating_sub(other.slot_bytes())
            });
            if more.fold(0, u64::saturating_add) > device.memory()?.usable_bytes {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// If a device refuses, others may have given more than is used; it is there for the next time.
    fn extend_to(&self, pages: u64) -> Result<()> {
        for (number, channel) in (0..).zip(&self.channels) {
            channel.extend_slots(Self::slots_in(number, self.channels.len() as u64, pages))?;
        }
        if self.keeps_contents() {
            // Files have zeroes behind what there was: whatever else was there was cleared when they were
            // opened.
            (self.table.len()..pages).for_each(|page| self.table.entry(page).begin_with(ZEROED));
        }
        self.table.lengthen(pages);
        Ok(())
    }
}

fn is_out_of_memory(error: &Error) -> bool {
    error.device_error().is_some_and(|error| error.kind() == backend_api::ErrorKind::OutOfMemory)
}
