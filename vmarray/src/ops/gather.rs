//! Many elements at once, by lists of indices.

mod deliver;
mod duplicates;
mod fetch;
mod homes;
mod in_turn;
mod iter;
mod looks;
mod places;
mod segments;
mod stage;

use std::ops::Range;

use crate::array::VirtualArray;
use crate::base::crew::CORES;
use crate::base::element::Element;
use crate::base::error::{ErrorKind, Result};
use crate::base::memory::zeroed_vec;
use crate::engine::guards;
use backend_api::Device;

pub(crate) use fetch::DEPTH;
pub use iter::Gathered;
pub(crate) use places::{Place, Places};
pub(crate) use stage::{Stage, room};

/// Less work than this, in bytes, is not worth a thread.
const BYTES_PER_WORKER: usize = 2 << 20;
/// How many indices a thread checks at once.
const CHECKED_AT_ONCE: usize = 1 << 16;

impl<T: Element, D: Device> VirtualArray<T, D> {
    /// Reads the elements of a list of indices, in the order of the list.
    ///
    /// Elements whose pages are resident are read from RAM, the others are collected by their devices, all at once:
    /// only their bytes are copied, and 8 bytes for each index. The cache is left as it is. Elements of pages that were
    /// never written cost nothing. An index can occur any number of times.
    ///
    /// Sees every write that returned before it began; of writes that happen meanwhile it sees any, element by element.
    /// Blocks until all values are there. Long lists are worked off by several threads, with up to 256 MiB of
    /// page-locked memory between them, half of which the array may keep for the next call. For lists that do not fit
    /// into RAM there is [`gather_iter`](Self::gather_iter).
    ///
    /// # Errors
    /// [`ListedIndexOutside`](ErrorKind::ListedIndexOutside); [`NoMemory`](ErrorKind::NoMemory);
    /// [`WouldDeadlock`](ErrorKind::WouldDeadlock) as for [`get`](Self::get); [`Device`](ErrorKind::Device).
    ///
    /// ```
    /// let array = vmarray::VirtualArray::<u32>::new(1_000_000)?;
    /// array.set(7, 70)?;
    /// array.set(999_999, 71)?;
    /// assert_eq!(array.gather(&[999_999, 7, 8, 7])?, [71, 70, 0, 70]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn gather(&self, indices: &[usize]) -> Result<Vec<T>> {
        self.gather_within(0..self.len(), indices)
    }

    /// As [`gather`](Self::gather), into memory of the caller.
    ///
    /// # Errors
    /// As there, and [`LengthMismatch`](ErrorKind::LengthMismatch), before anything is read. After other errors some of
    /// the values are there, and others what they were.
    ///
    /// ```
    /// let array = vmarray::VirtualArray::<u32>::new(1000)?;
    /// array.set(7, 70)?;
    /// let mut values = [0; 2];
    /// array.gather_into(&[6, 7], &mut values)?;
    /// assert_eq!(values, [0, 70]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn gather_into(&self, indices: &[usize], into: &mut [T]) -> Result<()> {
        self.gather_into_within(0..self.len(), indices, into)
    }

    /// Writes values to the elements of a list of indices. If an index occurs more than once, the last of its values
    /// wins.
    ///
    /// Elements whose pages are resident are written in RAM, the others are distributed by their devices, all at once:
    /// only their bytes are copied, and 8 bytes for each index. No page is given a frame; one that was never written is
    /// filled with zeroes by its device before.
    ///
    /// Each element is written atomically, the list as a whole is not. Blocks until all is written. Threads and memory
    /// are those of [`gather`](Self::gather).
    ///
    /// # Errors
    /// [`ListedIndexOutside`](ErrorKind::ListedIndexOutside) and [`LengthMismatch`](ErrorKind::LengthMismatch), before
    /// anything is written; [`WouldDeadlock`](ErrorKind::WouldDeadlock) as for [`set`](Self::set): then some elements
    /// are written, and others not. What a device fails to write, which leaves it unspecified, is written in frames
    /// after all; if that fails, too, [`Device`](ErrorKind::Device), and listed elements are written, or not, or, where
    /// the device failed, unspecified.
    ///
    /// ```
    /// let array = vmarray::VirtualArray::<u32>::new(1_000_000)?;
    /// array.scatter(&[999_999, 7, 7], &[1, 2, 3])?;
    /// assert_eq!((array.get(999_999)?, array.get(7)?), (1, 3));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn scatter(&self, indices: &[usize], values: &[T]) -> Result<()> {
        self.scatter_within(0..self.len(), indices, values)
    }

    /// [`gather`](Self::gather) with indices that count from the start of a range and are to lie within it.
    pub(crate) fn gather_within(&self, range: Range<usize>, indices: &[usize]) -> Result<Vec<T>> {
        let mut values = zeroed_vec(indices.len())?;
        fetch::gather(self, range, indices, &mut values)?;
        Ok(values)
    }

    /// As [`gather_within`](Self::gather_within), into memory of the caller.
    pub(crate) fn gather_into_within(
        &self,
        range: Range<usize>,
        indices: &[usize],
        into: &mut [T],
    ) -> Result<()> {
        equal_lengths(indices.len(), into.len())?;
        fetch::gather(self, range, indices, into)
    }

    /// [`scatter`](Self::scatter) with indices that count from the start of a range and are to lie within it.
    pub(crate) fn scatter_within(&self, range: Range<usize>, indices: &[usize], values: &[T]) -> Result<()> {
        equal_lengths(indices.len(), values.len())?;
        deliver::scatter(self, range, indices, values)
    }
}

/// Whether all indices of a piece of a list are below a length.
fn all_inside(indices: &[usize], len: usize) -> bool {
    // The greatest one, which needs no branches.
    indices.iter().fold(0, |max, &index| max.max(index)) < len || indices.is_empty()
}

/// Sees to it that all indices are below a length.
pub(crate) fn check_list(indices: &[usize], len: usize) -> Result<()> {
    let pieces = indices.chunks(CHECKED_AT_ONCE).enumerate();
    let outside = pieces.filter(|(_, piece)| !all_inside(piece, len)).find_map(|(number, piece)| {
        let at = piece.iter().position(|&index| index >= len)?;
        Some((number * CHECKED_AT_ONCE + at, piece[at]))
    });
    match outside {
        Some((position, index)) => Err(ErrorKind::ListedIndexOutside { position, index, len }.into()),
        None => Ok(()),
    }
}

/// How many threads share work of so many bytes, and at most `most`.
///
/// A thread that holds guards works alone: others could not know that they must not wait for those.
fn workers(bytes: usize, most: usize) -> usize {
    if guards::held() {
        return 1;
    }
    (bytes / BYTES_PER_WORKER).min(*CORES).min(most).max(1)
}

fn equal_lengths(expected: usize, got: usize) -> Result<()> {
    if expected == got {
        Ok(())
    } else {
        Err(ErrorKind::LengthMismatch { of: "the slice of values", expected, got }.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn little_work_is_done_alone() {
        assert_eq!(workers(BYTES_PER_WORKER, 100), 1);
        assert_eq!(workers(usize::MAX, 1), 1);
    }

    #[test]
    fn the_first_index_outside_is_named() {
        let mut list = vec![6; 3 * CHECKED_AT_ONCE];
        check_list(&list, 7).unwrap();
        check_list(&[], 0).unwrap();
        list[CHECKED_AT_ONCE + 5] = 7;
        list[2 * CHECKED_AT_ONCE] = 9;
        let outside = ErrorKind::ListedIndexOutside { position: CHECKED_AT_ONCE + 5, index: 7, len: 7 };
        assert_eq!(*check_list(&list, 7).unwrap_err().kind(), outside);
    }
}
