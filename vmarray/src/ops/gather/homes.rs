//! Zero-fills home slots (places of pages in device memory) that were never written, before a scatter writes
//! single elements there.

use crate::base::error::Result;
use crate::engine::page::Holder;
use crate::engine::page::state::{HOME, ZEROED};
use crate::engine::pager::Pager;

/// The longest gap (in slots) between pages that is zero-filled, because one long fill is cheaper than two.
const GAP_MAX: u64 = 64;
/// The most bytes in one fill.
const RUN_BYTES: u64 = 64 << 20;

/// A claimed page that is not in RAM and was never written.
struct Claimed {
    page: u64,
    /// True if the page is marked as initialized. A page in a gap is not, although its slot is zero-filled.
    is_listed: bool,
}

/// Zero-fills the home slots of the listed pages that were never written and are not in RAM. Skips other
/// pages. The list is ascending.
pub(super) fn ensure_initialized(pager: &Pager, pages: &[u64]) -> Result<()> {
    let channels = pager.channels().len() as u64;
    for channel in 0..channels {
        let mut run: Vec<Claimed> = Vec::new();
        for &page in pages.iter().filter(|page| *page % channels == channel) {
            if !reaches(pager, &mut run, page, channels) {
                fill(pager, &mut run)?;
            }
            match claim(pager, page) {
                Some(false) => run.push(Claimed { page, is_listed: true }),
                // The home slot (the page's place in device memory) contains zeros already. Only mark the
                // page as initialized and no longer zero, because the scatter writes there.
                Some(true) => {
                    pager.entry(page).home_is_unknown();
                    pager.release(page, Holder::Pin, HOME);
                }
                None => {}
            }
        }
        fill(pager, &mut run)?;
    }
    Ok(())
}

/// Claims a page without waiting, if it is not in the cache and was never written. Returns true if its slot
/// is already zero, and `None` if the page was not claimed.
fn claim(pager: &Pager, page: u64) -> Option<bool> {
    let before = pager.entry(page).try_claim_absent(false).ok()?;
    if before.has(HOME) {
        pager.release(page, Holder::Pin, 0);
        return None;
    }
    Some(before.has(ZEROED))
}

/// Returns true if a page can extend a run of claimed pages. Claims the unused pages in between.
fn reaches(pager: &Pager, run: &mut Vec<Claimed>, page: u64, channels: u64) -> bool {
    let (Some(first), Some(last)) = (run.first(), run.last()) else { return true };
    let slots = (page - first.page) / channels;
    if (page - last.page) / channels > GAP_MAX || (slots + 1) * pager.page_bytes() as u64 > RUN_BYTES {
        return false;
    }
    let mut between = last.page + channels;
    while between < page {
        match claim(pager, between) {
            Some(false) => run.push(Claimed { page: between, is_listed: false }),
            Some(true) => {
                pager.release(between, Holder::Pin, 0);
                return false;
            }
            None => return false,
        }
        between += channels;
    }
    true
}

/// Zero-fills the contiguous slots of claimed pages of a channel, and releases the pages.
fn fill(pager: &Pager, run: &mut Vec<Claimed>) -> Result<()> {
    let (Some(first), Some(last)) = (run.first(), run.last()) else { return Ok(()) };
    let channels = pager.channels().len() as u64;
    let slots = first.page / channels..last.page / channels + 1;
    let result = pager.channel(first.page).fill_slots(slots, &[0]);
    for claimed in run.drain(..) {
        let add = match (&result, claimed.is_listed) {
            (Ok(()), true) => HOME,
            (Ok(()), false) => ZEROED,
            (Err(_), _) => 0,
        };
        pager.release(claimed.page, Holder::Pin, add);
    }
    result
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use vmarray_conformance::wrap::Counting;

    use super::*;
    use crate::array::testing::{host, one_channel};
    use crate::prelude::*;

    #[test]
    fn gaps_are_filled_that_are_no_longer_than_the_longest() {
        for (gap, fills) in [(GAP_MAX, 1), (GAP_MAX + 1, 2)] {
            let device = Arc::new(Counting::new(host()));
            let array = one_channel::<u32, _>(&device, (100, 16), 4).build().unwrap();
            // The list names a page twice, as a list of elements can.
            ensure_initialized(array.pager(), &[3, 3, 3 + gap]).unwrap();
            assert_eq!(device.counts().work.fills, fills);
            assert_eq!(array.gather(&[50, 1500]).unwrap(), [0; 2]);
        }
    }
}
