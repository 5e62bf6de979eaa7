//! Many elements at once, by lists of indices.

mod crew;
mod deliver;
mod duplicates;
mod fetch;
mod homes;
mod iter;
mod places;
mod stage;

use std::ops::Range;

use backend_api::Device;
use parking_lot::Mutex;

use crate::array::VirtualArray;
use crate::element::Element;
use crate::error::{ErrorKind, Result};
use crate::memory::zeroed_vec;

pub(crate) use fetch::DEPTH;
pub use iter::Gathered;
pub(crate) use places::{Place, Places};
pub(crate) use stage::{Stage, room_to_gather};

/// Lists from this length on are checked by several threads.
const CHECK_LEN: usize = 1 << 20;

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
    /// [`ListedIndexOutside`](ErrorKind::ListedIndexOutside), before anything is read;
    /// [`NoMemory`](ErrorKind::NoMemory); [`WouldDeadlock`](ErrorKind::WouldDeadlock) as for [`get`](Self::get);
    /// [`Device`](ErrorKind::Device).
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
    /// As there, and [`LengthMismatch`](ErrorKind::LengthMismatch). After an error of a device some of the values are
    /// there, and others what they were.
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
        check_list(indices, range.len())?;
        let mut values = zeroed_vec(indices.len())?;
        fetch::gather(self, range.start, indices, &mut values)?;
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
        check_list(indices, range.len())?;
        fetch::gather(self, range.start, indices, into)
    }

    /// [`scatter`](Self::scatter) with indices that count from the start of a range and are to lie within it.
    pub(crate) fn scatter_within(&self, range: Range<usize>, indices: &[usize], values: &[T]) -> Result<()> {
        equal_lengths(indices.len(), values.len())?;
        check_list(indices, range.len())?;
        deliver::scatter(self, range.start, indices, values)
    }
}

/// Sees to it that all indices are below a length.
pub(crate) fn check_list(indices: &[usize], len: usize) -> Result<()> {
    // The greatest one of a block, which needs no branches, and only then where it is.
    const BLOCK: usize = 4096;
    let outside = |indices: &[usize]| {
        let first = indices.chunks(BLOCK).position(|block| block.iter().fold(0, |max, &i| max.max(i)) >= len);
        first.and_then(|block| {
            let start = block * BLOCK;
            indices[start..].iter().position(|&index| index >= len).map(|at| start + at)
        })
    };
    let first = if indices.len() < CHECK_LEN {
        outside(indices)
    } else {
        let parts = Mutex::new(indices.chunks(CHECK_LEN).enumerate());
        let first = Mutex::new(None::<usize>);
        crew::together(crew::workers(size_of_val(indices), usize::MAX), || {
            loop {
                let Some((part, indices)) = parts.lock().next() else { break };
                if let Some(at) = outside(indices) {
                    let mut first = first.lock();
                    let position = part * CHECK_LEN + at;
                    *first = Some(first.map_or(position, |known| known.min(position)));
                    break;
                }
            }
        });
        first.into_inner()
    };
    match first {
        Some(position) => {
            Err(ErrorKind::ListedIndexOutside { position, index: indices[position], len }.into())
        }
        None => Ok(()),
    }
}

fn equal_lengths(expected: usize, got: usize) -> Result<()> {
    if expected == got { Ok(()) } else { Err(ErrorKind::LengthMismatch { expected, got }.into()) }
}
