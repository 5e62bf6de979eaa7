//! Batched page lookups for gathers and scatters: one call reads the states of the pages of many elements.

use std::sync::atomic::{Ordering, fence};

use super::places::Places;
use crate::engine::page::state::{EXCLUSIVE, HOME, RESIDENT};
use crate::engine::pager::Pager;

/// The number of page states that are read before any is used. Random reads of the page table are cache
/// misses, which overlap if they are close together in the code.
pub(super) const AT_ONCE: usize = 64;

/// Probes the pages of at most [`AT_ONCE`] elements. Returns one bit for each, from the lowest bit on. The
/// bit is set if the element is at present only in its home slot, and its page has none of the flags `but`.
/// Indices count from `start`.
#[inline]
pub(super) fn at_home(pager: &Pager, places: Places, start: usize, indices: &[usize], but: u64) -> u64 {
    assert!(indices.len() <= AT_ONCE);
    let mut at_home = 0;
    for (number, index) in indices.iter().enumerate() {
        let state = pager.entry(places.page(start + index)).state(Ordering::Relaxed);
        let is_at_home = state.has(HOME) & !state.any(RESIDENT | EXCLUSIVE | but);
        at_home |= u64::from(is_at_home) << number;
    }
    fence(Ordering::Acquire);
    at_home
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::array::testing::{host, one_channel};
    use crate::prelude::*;

    #[test]
    fn elements_are_at_home_whose_pages_have_contents_and_no_frame() {
        let array = one_channel::<u32, _>(&Arc::new(host()), (4, 16), 4).build().unwrap();
        array.write(0, &[1; 3 * 16]).unwrap();
        array.evict(..).unwrap();
        array.get(16).unwrap();
        let pager = array.pager();
        pager.entry(2).try_claim_absent(false).unwrap();
        let probe = || at_home(pager, Places::new(array.len(), 16, 1), 3, &[0, 16, 32, 48, 5], 0);
        assert_eq!(probe(), 0b10001);
        pager.release_unchanged(2);
        assert_eq!(probe(), 0b10101);
    }
}
