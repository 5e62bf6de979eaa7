//! Growth of an array: allocation of device memory for more pages.

use std::sync::Arc;

use super::Pager;
use crate::base::error::{Error, Result};
use crate::engine::page::LockScope;
use crate::engine::page::state::ZEROED;

/// Divisors of the present size that give the spare memory of successive attempts. The first attempt doubles
/// the array, so that a growing array seldom calls the devices.
const SPARE_PARTS: [u64; 4] = [1, 4, 16, u64::MAX];
/// Minimum bytes of growth per channel, because drivers allocate memory in units of this size.
const STEP_BYTES: u64 = 2 << 20;

/// The amount of spare memory to allocate beyond the present need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spare {
    Some,
    None,
}

impl Pager {
    /// Returns the number of a channel's pages among the first `pages` pages.
    pub(crate) fn slots_in(channel: u64, channels: u64, pages: u64) -> u64 {
        (pages + channels - 1 - channel) / channels
    }

    /// Extends the array's device memory to this number of pages. Present pages stay in place.
    ///
    /// # Errors
    /// Device errors. The number of pages with a home slot is then unchanged.
    pub(crate) fn extend(&self, pages: u64, spare: Spare) -> Result<()> {
        if pages <= self.table.len() {
            return Ok(());
        }
        // Declared first, so that Rust ends the scope after the lock is released: devices may wake tasks in
        // any call, and these must run without the lock.
        let _scope = LockScope::begin();
        let _alone = self.extending.lock();
        let (present, most) = (self.table.len(), self.table.most());
        debug_assert!(pages <= most, "callers check that the new length is at most the array's limit");
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

    /// Returns true if the devices report enough memory for this number of pages.
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

    /// Extends the device memory to this number of pages. If a device refuses, other devices may have
    /// allocated more memory than is used; the next growth uses this memory.
    fn extend_to(&self, pages: u64) -> Result<()> {
        for (number, channel) in (0..).zip(&self.channels) {
            channel.extend_slots(Self::slots_in(number, self.channels.len() as u64, pages))?;
        }
        if self.keeps_contents() {
            // A file has zeroes after its former end, because opening the file cleared all other contents.
            (self.table.len()..pages).for_each(|page| self.table.entry(page).begin_with(ZEROED));
        }
        self.table.lengthen(pages);
        Ok(())
    }
}

fn is_out_of_memory(error: &Error) -> bool {
    error.device_error().is_some_and(|error| error.kind() == backend_api::ErrorKind::OutOfMemory)
}
