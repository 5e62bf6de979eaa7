//! Whether a single element has to be loaded, judged by those that the calling thread's futures got lately.
//!
//! A guess, which decides when a page is looked at, and nothing else.

use std::cell::Cell;

use backend_api::Device;

use crate::pager::Pager;

/// So many misses, less [`HIT`] for each hit among them, make the next element one that is to be loaded.
const ABSENT: u32 = 32;
/// No more than these are remembered.
const MOST: u32 = 64;
/// How many misses a hit outweighs: a miss is found out somewhat cheaper where it is expected, a hit much later.
const HIT: u32 = 16;

thread_local! {
    /// The array that was asked last, by address, and its misses.
    static LATELY: Cell<(usize, u32)> = const { Cell::new((0, 0)) };
}

fn misses<D: Device>(pager: &Pager<D>) -> u32 {
    let (array, misses) = LATELY.get();
    if array == name(pager) { misses } else { 0 }
}

/// An array that comes to lie where another one was is taken for that at first.
fn name<D: Device>(pager: &Pager<D>) -> usize {
    std::ptr::from_ref(pager).addr()
}

/// Whether the next element has to be loaded, nearly for certain.
#[inline]
pub(super) fn is_absent<D: Device>(pager: &Pager<D>) -> bool {
    misses(pager) >= ABSENT
}

/// Notes whether an element had to be loaded. Not so if nobody waited for it to the end: else somebody who polls each
/// future once would not find what is there.
#[inline]
pub(super) fn note<D: Device>(pager: &Pager<D>, was_loaded: bool) {
    let before = misses(pager);
    let now = if was_loaded { (before + 1).min(MOST) } else { before.saturating_sub(HIT) };
    LATELY.set((name(pager), now));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_hits_are_enough_to_expect_more() {
        let arrays = [0, 1].map(|_| crate::VirtualArray::<u32>::new(10).unwrap());
        let [one, other] = [0, 1].map(|i| arrays[i].pager());
        (1..ABSENT).for_each(|_| note(one, true));
        assert!(!is_absent(one));
        note(one, true);
        assert!(is_absent(one) && !is_absent(other));
        note(one, false);
        assert!(!is_absent(one));
        (0..1000).for_each(|_| note(one, true));
        (0..MOST / HIT / 2).for_each(|_| note(one, false));
        assert!(is_absent(one));
        note(one, false);
        assert!(!is_absent(one));
        note(other, true);
        assert!(!is_absent(one), "forgotten");
    }
}
