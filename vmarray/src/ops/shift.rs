//! Operations that change the length of an array: insertion, removal, and concatenation with other views.

use std::ops::{Range, RangeBounds};

use backend_api::Device;

use crate::array::VirtualArray;
use crate::array::range::checked;
use crate::base::element::Element;
#[cfg(doc)]
use crate::base::error::ErrorKind;
use crate::base::error::{Error, Result, interrupted};
use crate::base::memory::zeroed_vec;
use crate::engine::pager::Spare;
use crate::ops::executor::copies_within;
use crate::ops::view::{Linear, View, ViewMut as _};

/// The number of bytes copied to RAM at a time, if elements pass through the host.
const THROUGH_HOST_BYTES: usize = 8 << 20;
/// The most device memory, and the least useful, to copy elements that move by less than their length.
const SCRATCH_BYTES: usize = 64 << 20;
const SCRATCH_BYTES_MIN: usize = 1 << 20;
/// If elements move by at least this distance, the devices copy them directly in such pieces if possible.
const APART_BYTES_MIN: usize = 512 << 10;

impl<T: Element, D: Device> VirtualArray<T, D> {
    /// Inserts `values` before the element at `at`, or at the end. Later elements move up.
    ///
    /// The devices move the later elements if there is only one device, if all devices can access each other,
    /// or if the distance is a multiple of the page length times the number of channels (shares of devices).
    /// Otherwise the elements pass through RAM, 8 MiB at a time. If the distance is less than a few MiB, the
    /// elements are copied twice: through up to 64 MiB of device memory behind the array if its [greatest
    /// length](Self::max_len) leaves that much, and otherwise through RAM.
    ///
    /// # Errors
    /// [`RangeOutside`](ErrorKind::RangeOutside), and the errors of [`reserve`](Self::reserve). After an
    /// error of a device, the array is unchanged if the moved elements could be moved back. Otherwise the
    /// error is [`Interrupted`](ErrorKind::Interrupted), which lists the elements with unspecified contents.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let mut array = VirtualArray::<u32>::builder(0).max_len(10).build()?;
    /// array.extend_from_slice(&[1, 2, 5])?;
    /// array.insert(2, &[3, 4])?;
    /// array.insert(5, &[6])?;
    /// assert_eq!(array.to_vec(..)?, [1, 2, 3, 4, 5, 6]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn insert(&mut self, at: usize, values: &[T]) -> Result<()> {
        let (len, count) = (self.len(), values.len());
        let range = checked(at..at, len)?;
        let longer = len.saturating_add(count);
        self.reserve_for(longer)?;
        let scratch = self.scratch(longer, len - at, count);
        self.at_length(scratch.end.max(longer), |array| {
            let shift = Shift { array, scratch };
            let written = shift.run(&(range.start..len), at + count).and_then(|()| {
                let written = array.write_range(at, values);
                written.map_err(|error| Stopped { moved: len - at, lost: 0..0, error })
            });
            let Err(Stopped { moved, lost, error }) = written else {
                array.forget(longer);
                return (longer, Ok(()));
            };
            match shift.run(&(longer - moved..longer), len - moved) {
                Ok(()) if lost.is_empty() => (len, Err(error)),
                Ok(()) => (len, Err(interrupted(error, 0..0, lost))),
                Err(_) => (longer, Err(interrupted(error, 0..0, at..longer))),
            }
        })
    }

    /// Removes the elements of a range, and moves later elements down, with the cost of
    /// [`insert`](Self::insert).
    ///
    /// # Errors
    /// [`RangeOutside`](ErrorKind::RangeOutside) and [`RangeReversed`](ErrorKind::RangeReversed). An error of
    /// a device becomes [`Interrupted`](ErrorKind::Interrupted), and the array keeps its old length. In the
    /// error, moved ranges count as written. Elements after the error's unspecified ranges have not moved.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let mut array = VirtualArray::try_from(&[1_u32, 2, 3, 4, 5][..])?;
    /// array.remove(1..3)?;
    /// assert_eq!(array.to_vec(..)?, [1, 4, 5]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn remove(&mut self, range: impl RangeBounds<usize>) -> Result<()> {
        let len = self.len();
        let range = checked(range, len)?;
        if !range.is_empty() {
            self.pager().expect_writable()?;
        }
        let shorter = len - range.len();
        let scratch = self.scratch(len, len - range.end, range.len());
        self.at_length(scratch.end.max(len), |array| {
            let shift = Shift { array, scratch };
            let (start, end) = (range.start, range.end);
            match shift.run(&(end..len), start) {
                Ok(()) => {
                    array.forget(shorter);
                    (shorter, Ok(()))
                }
                Err(Stopped { moved, lost, error }) => {
                    let unspecified = start + moved..lost.end.max(end + moved);
                    (len, Err(interrupted(error, start..start + moved, unspecified)))
                }
            }
        })
    }

    /// Appends copies of the elements of another view. Devices that can access each other copy directly, as
    /// for [`copy_from`](crate::views::ViewMut::copy_from).
    ///
    /// # Errors
    /// The errors of [`reserve`](Self::reserve) and [`copy_from`](crate::views::ViewMut::copy_from). After
    /// an error, the array is unchanged.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let mut array = VirtualArray::<u32>::builder(2).max_len(10).build()?;
    /// let other = VirtualArray::try_from(&[1_u32, 2, 3][..])?;
    /// array.append(&other)?;
    /// array.append(other.section(1..2)?)?;
    /// array.append(&vmarray::Source::new(vec![7])?)?;
    /// assert_eq!(array.to_vec(..)?, [0, 0, 1, 2, 3, 2, 7]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn append<'s>(&mut self, from: impl View<'s, Element = T, Shape = Linear>) -> Result<()> {
        self.lengthen(from.len(), |array, added| (&*array).copy_from(added.start, from))
    }

    /// Returns free elements after the first `behind` elements, as scratch memory for the move of `count`
    /// elements. The range is empty if the move needs no scratch memory, or if none is free.
    fn scratch(&self, behind: usize, count: usize, distance: usize) -> Range<usize> {
        let bytes = size_of::<T>();
        let none = behind..behind;
        let (page_len, most) = (self.page_len(), (SCRATCH_BYTES / bytes).min(count));
        let start = behind.next_multiple_of(page_len);
        let room = self.max_len().saturating_sub(start).min(most.next_multiple_of(page_len));
        let end = start + room / page_len * page_len;
        let is_worth_it = (end - start) * bytes >= SCRATCH_BYTES_MIN && distance < 4 * most;
        if !is_worth_it || !copies_within(self.pager(), None) {
            return none;
        }
        match self.pager().extend((end / page_len) as u64, Spare::None) {
            Ok(()) => start..end,
            Err(_) => none,
        }
    }

    /// Discards the contents of all pages after the first `len` elements. If a leaked guard holds a page, the
    /// page keeps its contents.
    fn forget(&self, len: usize) {
        let pages = len.div_ceil(self.page_len())..self.page_count();
        let _ = self.pager().discard(pages.start as u64..pages.end as u64);
    }
}

/// A failed move, with the number of elements moved before.
struct Stopped {
    moved: usize,
    /// Elements that have not moved, and of which some were overwritten.
    lost: Range<usize>,
    error: Error,
}

struct Shift<'a, T: Element, D: Device> {
    array: &'a VirtualArray<T, D>,
    /// Free elements of the array that the move can overwrite.
    scratch: Range<usize>,
}

impl<T: Element, D: Device> Shift<'_, T, D> {
    /// Moves a range, one piece after the other, so that its first element is at `to`. Copies each element
    /// before overwriting it.
    fn run(&self, from: &Range<usize>, to: usize) -> std::result::Result<(), Stopped> {
        let distance = from.start.abs_diff(to);
        if distance == 0 {
            return Ok(());
        }
        let (page_len, bytes) = (self.array.page_len(), size_of::<T>());
        // A piece of at most this length needs no scratch memory, because the piece and its target have no
        // page in common.
        let apart = distance.saturating_sub(page_len);
        let pages = distance.is_multiple_of(page_len).then(|| distance / page_len);
        let through_scratch = self.scratch.len() > apart / 4;
        let is_apart = apart * bytes >= APART_BYTES_MIN && copies_within(self.array.pager(), pages);
        let piece = match (through_scratch, is_apart) {
            (true, _) => self.scratch.len(),
            (false, true) => apart,
            (false, false) => (THROUGH_HOST_BYTES / bytes).max(1),
        };
        let goes_up = to > from.start;
        let mut moved = 0;
        while moved < from.len() {
            let count = piece.min(from.len() - moved);
            let first = if goes_up { from.end - moved - count } else { from.start + moved };
            let of = first..first + count;
            let target = if goes_up { first + distance } else { first - distance };
            let (outcome, is_restored) = match (through_scratch, is_apart) {
                (true, _) => self.through_scratch(&of, target),
                (false, true) => (self.copy(&of, target), true),
                (false, false) => self.through_host(&of, target),
            };
            let lost = if is_restored { 0..0 } else { of };
            outcome.map_err(|error| Stopped { moved, lost, error })?;
            moved += count;
        }
        Ok(())
    }

    fn copy(&self, of: &Range<usize>, to: usize) -> Result<()> {
        self.array.copy_from(to, self.array.section(of.clone())?)
    }

    /// Copies a piece through scratch memory. After a failure, the bool is true if the overwritten elements
    /// have their old contents again.
    fn through_scratch(&self, of: &Range<usize>, to: usize) -> (Result<()>, bool) {
        let between = self.scratch.start..self.scratch.start + of.len();
        if let Err(error) = self.copy(of, between.start) {
            return (Err(error), true);
        }
        let outcome = self.copy(&between, to);
        let is_restored = outcome.is_ok() || self.copy(&between, of.start).is_ok();
        (outcome, is_restored)
    }

    /// Like [`through_scratch`](Self::through_scratch), with scratch in RAM.
    fn through_host(&self, of: &Range<usize>, to: usize) -> (Result<()>, bool) {
        let read = zeroed_vec::<T>(of.len()).and_then(|mut values| {
            self.array.read_range(of.start, &mut values)?;
            Ok(values)
        });
        let values = match read {
            Ok(values) => values,
            Err(error) => return (Err(error), true),
        };
        let outcome = self.array.write_range(to, &values);
        let is_restored = outcome.is_ok() || self.array.write_range(of.start, &values).is_ok();
        (outcome, is_restored)
    }
}
