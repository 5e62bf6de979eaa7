//! Looks at the pages of many elements.

use std::sync::atomic::{Ordering, fence};

use super::places::Places;
use crate::engine::page::state::{EXCLUSIVE, HOME, RESIDENT};
use crate::engine::pager::Pager;

/// How many pages are looked at before anything is done about them: looks at random entries of the page table
/// are cache misses, which overlap if there is little between them.
pub(super) const AT_ONCE: usize = 64;

/// Which of some elements, [`AT_ONCE`] at most, live in home slots and nowhere else at this moment: a bit for
/// each, from the lowest on. Indices count from `start`.
#[inline]
pub(super) fn at_home(pager: &Pager, places: Places, start: usize, indices: &[usize]) -> u64 {
    assert!(indices.len() <= AT_ONCE);
    let mut at_home = 0;
    for (number, index) in indices.iter().enumerate() {
        let state = pager.entry(places.page(start + index)).state(Ordering::Relaxed);
        let is_at_home = state.has(HOME) & !state.any(RESIDENT | EXCLUSIVE);
        at_home |= u64::from(is_at_home) << number;
    }
    fence(Ordering::Acquire);
    at_home
}
