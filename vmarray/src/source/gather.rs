//! Lists of indices of a source, page by page.

use std::ops::Range;

use backend_api::Device;

use super::core::Core;
use crate::base::element::Element;
use crate::base::error::Result;
use crate::base::memory::zeroed_vec;
use crate::ops::gather::check_list;

/// So many elements are collected at once.
const BATCH: usize = 1 << 16;

/// The numbers of a list's entries, by ascending index; those of one index in the order of the list.
fn by_index(list: &[usize]) -> Result<Vec<usize>> {
    let mut order = zeroed_vec(list.len())?;
    order.iter_mut().zip(0..).for_each(|(place, number)| *place = number);
    if !list.is_sorted() {
        order.sort_unstable_by_key(|number| (list[*number], *number));
    }
    Ok(order)
}

/// Reads the elements of a list, which count from the start of a range: at home, or on the devices where they
/// are newer.
pub(super) fn gather<T: Element, D: Device>(
    core: &Core<T, D>,
    of: Range<usize>,
    list: &[usize],
    into: &mut [T],
) -> Result<()> {
    check_list(list, of.len())?;
    for numbers in by_index(list)?.chunks(BATCH) {
        let places: Vec<usize> = numbers.iter().map(|number| of.start + list[*number]).collect();
        for (number, value) in numbers.iter().zip(core.collect(&places)?) {
            into[*number] = value;
        }
    }
    Ok(())
}

/// Writes the elements of a list at home; of several for one element the last one wins.
pub(super) fn scatter<T: Element, D: Device>(
    core: &Core<T, D>,
    of: Range<usize>,
    list: &[usize],
    values: &[T],
) -> Result<()> {
    check_list(list, of.len())?;
    by_index(list)?.into_iter().try_for_each(|number| core.set(of.start + list[number], values[number]))
}
