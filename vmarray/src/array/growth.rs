//! Methods that change the length of an array in place: reserve, push, extend, pop, truncate, resize.

use std::ops::Range;

use backend_api::Device;

use crate::array::VirtualArray;
use crate::base::element::Element;
use crate::base::error::{Error, ErrorKind, Result};
use crate::engine::page::state::DIRTY;
use crate::engine::pager::Spare;

/// Bytes of an iterator's elements that are collected before they are added to the array.
const CHUNK_BYTES: usize = 64 << 10;

/// # Growth
///
/// An array built with a [greatest length](crate::Builder::max_len) beyond its own can grow up to it. The
/// devices extend their memory in place, up to about double at a time, or exactly as needed if there is no
/// more room. The page table is reserved from the beginning. So no element moves, and accesses cost the same
/// as in any other array.
///
/// Any number of threads may call [`push`](Self::push) and [`reserve`](Self::reserve) at once; other methods
/// that change the length borrow the array exclusively. All elements below [`len`](Self::len) are written.
/// Views keep the length of their creation: sections, guards, cursors, iterators, boxes and futures do not
/// show later elements. A thread that pushes waits for holders of the last page, by the rules of
/// [locks](Self#locks).
///
/// If memory is exhausted, or at the greatest length, growth returns an error and does not change the array.
/// An array that becomes shorter keeps its memory.
///
/// Arrays [in files](crate::Builder::create) grow too, without a given greatest length.
/// [`sync`](Self::sync) stores the length at the time of the call, with all elements below it.
impl<T: Element, D: Device> VirtualArray<T, D> {
    /// Returns the greatest length to which the array can grow, in elements.
    /// [`Builder::max_len`](crate::Builder::max_len) sets it, and the capacity of the devices limits it.
    /// Without this setting, an array in files has a default limit, and any other array cannot grow.
    #[must_use]
    pub fn max_len(&self) -> usize {
        self.max_len
    }

    /// Returns the number of elements for which device memory is allocated: whole pages, and at least
    /// [`len`](Self::len).
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let array = VirtualArray::<u32>::builder(10).page_len(8).max_len(1000).build()?;
    /// assert_eq!((array.len(), array.capacity()), (10, 16));
    /// array.reserve(100)?;
    /// assert!(array.capacity() >= 110 && array.len() == 10);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    #[must_use]
    pub fn capacity(&self) -> usize {
        (self.pager().table().len() as usize).saturating_mul(self.page_len()).min(self.max_len)
    }

    /// Allocates device memory for `additional` more elements, without a copy of existing ones, and blocks.
    ///
    /// # Errors
    /// [`LengthLimit`](ErrorKind::LengthLimit), and [`Device`](ErrorKind::Device) if a device has too little
    /// memory, with the requested and available bytes. The array is then unchanged.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let array = VirtualArray::<u32>::builder(10).max_len(1000).build()?;
    /// array.reserve(990)?;
    /// assert_eq!((array.capacity(), array.reserve(991).is_err()), (1000, true));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn reserve(&self, additional: usize) -> Result<()> {
        self.reserve_for(self.len().saturating_add(additional))
    }

    /// Allocates device memory for a length in elements, and for some more if available.
    pub(crate) fn reserve_for(&self, len: usize) -> Result<()> {
        self.extend_memory(len, Spare::Some)
    }

    /// Allocates device memory for exactly this length in elements.
    pub(crate) fn reserve_exactly_for(&self, len: usize) -> Result<()> {
        self.extend_memory(len, Spare::None)
    }

    fn extend_memory(&self, len: usize, spare: Spare) -> Result<()> {
        self.pager().expect_writable()?;
        if len > self.max_len {
            return Err(ErrorKind::LengthLimit { asked: len, max_len: self.max_len }.into());
        }
        self.pager().extend(len.div_ceil(self.page_len()) as u64, spare)
    }

    /// Adds an element at the end, and returns its index. After the call, all threads can read the element.
    ///
    /// Threads may push concurrently; each push gets its own index. Blocks like [`set`](Self::set), and like
    /// [`reserve`](Self::reserve) when the array has reached its [`capacity`](Self::capacity).
    ///
    /// # Errors
    /// The errors of [`reserve`](Self::reserve) and [`set`](Self::set), which leave the array unchanged.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let array = VirtualArray::<u64>::builder(0).max_len(1000).build()?;
    /// std::thread::scope(|threads| {
    ///     for thread in 0..4 {
    ///         let array = &array;
    ///         threads.spawn(move || {
    ///             for i in 0..250 {
    ///                 let index = array.push(thread * 1000 + i).unwrap();
    ///                 assert_eq!(array.get(index).unwrap(), thread * 1000 + i);
    ///             }
    ///         });
    ///     }
    /// });
    /// assert_eq!((array.len(), array.sum(.., Field::<u64, u64>::whole())?), (1000, 1_624_500));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn push(&self, value: T) -> Result<usize> {
        loop {
            let len = self.len();
            // More capacity is needed. This fails at the array's maximum length, or without memory.
            if len >= self.capacity() {
                self.reserve_for(len.saturating_add(1))?;
            }
            if let Some(index) = self.push_to(len / self.page_len(), &value)? {
                return Ok(index);
            }
        }
    }

    /// Adds an element, if the next one is on `page` and its memory exists. The thread holds this page
    /// meanwhile, so no other thread can add an element.
    fn push_to(&self, page: usize, value: &T) -> Result<Option<usize>> {
        let mut pushed = None;
        self.latched(page, |held| {
            let index = self.len();
            if index / self.page_len() != page || index >= self.capacity() {
                return 0;
            }
            // Store the element by an atomic or locked write, because other threads may access adjacent
            // elements. No thread reads this element before `publish_len`, which is a release.
            held.element(index % self.page_len()).store(value);
            self.publish_len(index + 1);
            pushed = Some(index);
            DIRTY
        })?;
        Ok(pushed)
    }

    /// Adds the elements of a slice at the end. Long slices bypass the cache.
    ///
    /// # Errors
    /// The errors of [`reserve`](Self::reserve) and [`write`](crate::views::ViewMut::write); after an error
    /// the array is unchanged.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let mut array = VirtualArray::<u32>::builder(0).max_len(10).build()?;
    /// array.extend_from_slice(&[1, 2, 3])?;
    /// assert!(array.extend_from_slice(&[0; 8]).is_err());
    /// assert_eq!(array.to_vec(..)?, [1, 2, 3]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn extend_from_slice(&mut self, values: &[T]) -> Result<()> {
        self.lengthen(values.len(), |array, added| array.write_range(added.start, values))
    }

    /// Adds all elements of an iterator at the end, in batches of some thousands.
    ///
    /// # Errors
    /// The errors of [`extend_from_slice`](Self::extend_from_slice). The elements before the failed batch are
    /// in the array, as [`len`](Self::len) shows; all later elements of the iterator are lost.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let mut array = VirtualArray::<u32>::builder(0).max_len(1000).build()?;
    /// array.try_extend((0..1000).map(|i| i * i))?;
    /// assert_eq!(array.get(31)?, 961);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn try_extend(&mut self, values: impl IntoIterator<Item = T>) -> Result<()> {
        let mut values = values.into_iter();
        let most = (CHUNK_BYTES / size_of::<T>()).max(1);
        let mut chunk = Vec::with_capacity(values.size_hint().0.min(most));
        loop {
            chunk.extend(values.by_ref().take(most));
            if chunk.is_empty() {
                return Ok(());
            }
            self.extend_from_slice(&chunk)?;
            chunk.clear();
        }
    }

    /// Removes the last element and returns it; `None` for an empty array.
    ///
    /// # Errors
    /// The errors of [`get`](Self::get); after an error the array is unchanged.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let mut array = VirtualArray::try_from(&[1_u32, 2][..])?;
    /// assert_eq!([array.pop()?, array.pop()?, array.pop()?], [Some(2), Some(1), None]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn pop(&mut self) -> Result<Option<T>> {
        let Some(last) = self.len().checked_sub(1) else { return Ok(None) };
        let value = self.get(last)?;
        self.truncate(last)?;
        Ok(Some(value))
    }

    /// Removes all elements except the first `len`. Does nothing if the array has at most `len` elements.
    /// Removed pages leave the cache without a write-back, and their device memory stays allocated. Files
    /// keep their length. They reuse the space of removed pages at once if no [`sync`](Self::sync) has stored
    /// the pages, otherwise after the next `sync`.
    ///
    /// # Errors
    /// The errors of [`discard`](crate::views::ViewMut::discard), for pages held by leaked guards; the array
    /// is then unchanged, except that pages behind `len` may be zeroed.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let mut array = VirtualArray::try_from(&[1_u32, 2, 3][..])?;
    /// array.truncate(1)?;
    /// array.truncate(2)?;
    /// assert_eq!((array.len(), array.get(1).is_err()), (1, true));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn truncate(&mut self, len: usize) -> Result<()> {
        if len < self.len() {
            self.pager().expect_writable()?;
            let left_out = len.div_ceil(self.page_len())..self.page_count();
            self.pager().discard(left_out.start as u64..left_out.end as u64)?;
            self.set_len(len);
            self.pager().give_back(left_out.start as u64..left_out.end as u64);
        }
        Ok(())
    }

    /// Changes the length to `len` elements, by adding copies of `value` or by [`truncate`](Self::truncate).
    ///
    /// # Errors
    /// The errors of [`truncate`](Self::truncate), and of [`reserve`](Self::reserve) and
    /// [`fill`](crate::views::ViewMut::fill); the array is then unchanged.
    ///
    /// ```
    /// use vmarray::prelude::*;
    /// let mut array = VirtualArray::<u32>::builder(2).max_len(10).build()?;
    /// array.resize(4, 7)?;
    /// array.resize(3, 8)?;
    /// assert_eq!(array.to_vec(..)?, [0, 0, 7]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn resize(&mut self, len: usize, value: T) -> Result<()> {
        match len.checked_sub(self.len()) {
            Some(more) => self.lengthen(more, |array, added| array.fill_range(&added, value)),
            None => self.truncate(len),
        }
    }

    /// Adds `more` elements, which `write` writes. After a failure the array is unchanged.
    pub(crate) fn lengthen(
        &mut self,
        more: usize,
        write: impl FnOnce(&mut Self, Range<usize>) -> Result<()>,
    ) -> Result<()> {
        let before = self.len();
        let len = before.saturating_add(more);
        self.reserve_for(len)?;
        self.at_length(len, |array| {
            let outcome = write(array, before..len);
            (if outcome.is_ok() { len } else { before }, outcome)
        })
    }

    /// Runs a function while the array has a greater length, whose memory exists; it returns the final one.
    pub(crate) fn at_length<R>(&mut self, len: usize, run: impl FnOnce(&mut Self) -> (usize, R)) -> R {
        let before = self.len();
        self.set_len(len);
        let back = Shortened { len: before, array: self };
        let (after, result) = run(back.array);
        back.array.set_len(after);
        std::mem::forget(back);
        result
    }
}

/// Borrows an array, and restores its old length on drop, also if code panics.
struct Shortened<'a, T: Element, D: Device> {
    array: &'a mut VirtualArray<T, D>,
    len: usize,
}

impl<T: Element, D: Device> Drop for Shortened<'_, T, D> {
    fn drop(&mut self) {
        self.array.set_len(self.len);
    }
}

/// Adds elements as [`try_extend`](VirtualArray::try_extend), for generic code over collections.
///
/// # Panics
/// On an error.
///
/// ```
/// use vmarray::prelude::*;
/// let mut array = VirtualArray::<u32>::builder(0).max_len(1000).build()?;
/// array.extend(0..500);
/// array.extend(&[7, 8]);
/// assert_eq!((array.len(), array.get(501)?), (502, 8));
/// # Ok::<(), vmarray::Error>(())
/// ```
impl<T: Element, D: Device> Extend<T> for VirtualArray<T, D> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, values: I) {
        self.try_extend(values).expect("`try_extend` returns this as an error");
    }
}

/// Adds copies of elements.
impl<'a, T: Element, D: Device> Extend<&'a T> for VirtualArray<T, D> {
    fn extend<I: IntoIterator<Item = &'a T>>(&mut self, values: I) {
        self.extend(values.into_iter().copied());
    }
}

/// Collects elements into an array on the [devices of the machine](crate::devices) that can grow up to their
/// memory. If the devices do not support growth, collects them in RAM first.
///
/// # Panics
/// Without a device, or without enough memory. Build an array and call
/// [`try_extend`](VirtualArray::try_extend) to get an error instead.
///
/// ```
/// use vmarray::prelude::*;
/// let squares: VirtualArray<u64> = (0..1000).map(|i| i * i).collect();
/// assert_eq!((squares.len(), squares.get(999)?), (1000, 998_001));
/// # Ok::<(), vmarray::Error>(())
/// ```
impl<T: Element> FromIterator<T> for VirtualArray<T> {
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Self {
        const ADVICE: &str = "cannot collect; `Builder::build` and `try_extend` return the error";
        match Self::builder(0).growing().build() {
            Ok(mut array) => {
                array.try_extend(values).expect(ADVICE);
                array
            }
            Err(error) if is_unsupported(&error) => {
                let values: Vec<T> = values.into_iter().collect();
                let array = Self::new(values.len()).expect(ADVICE);
                array.write_range(0, &values).expect(ADVICE);
                array
            }
            Err(error) => panic!("{ADVICE}: {error}"),
        }
    }
}

/// Returns true for the error of a device whose memory cannot grow.
pub(crate) fn is_unsupported(error: &Error) -> bool {
    error.device_error().is_some_and(|error| error.kind() == backend_api::ErrorKind::Unsupported)
}
