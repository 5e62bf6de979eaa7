//! Slices of elements in a source's memory, which other threads may read during a write.

use std::marker::PhantomData;

use backend_api::racy;
use bytemuck::Pod;
use parking_lot::Mutex;

use crate::base::scoped_threads;

/// Number of elements that are computed at a time, and then written.
const BLOCK: usize = 512;

/// Elements that no other code writes. Earlier queries may still read them, with unspecified values as
/// results. Therefore the elements are never written by plain stores, and never have an exclusive reference.
pub(in crate::ops::sort) struct HomeSlice<'a, T> {
    start: *mut T,
    len: usize,
    lent: PhantomData<&'a mut [T]>,
}

// SAFETY: the memory is used like that of a borrowed slice.
unsafe impl<T: Send> Send for HomeSlice<'_, T> {}
// SAFETY: the same.
unsafe impl<T: Sync> Sync for HomeSlice<'_, T> {}

impl<'a, T: Pod> From<&'a mut [T]> for HomeSlice<'a, T> {
    fn from(own: &'a mut [T]) -> Self {
        Self { start: own.as_mut_ptr(), len: own.len(), lent: PhantomData }
    }
}

impl<'a, T: Pod> HomeSlice<'a, T> {
    /// Creates a slice of `len` elements from `start` on.
    ///
    /// # Safety
    /// `len` aligned elements begin at `start`, and live as long as the slice. No other code writes to them;
    /// other code reads them only by the rules of [`racy`].
    pub unsafe fn new(start: *mut T, len: usize) -> Self {
        Self { start, len, lent: PhantomData }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn as_slice(&self) -> &[T] {
        // SAFETY: the creator guarantees it; methods that write take the slice exclusively.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }

    pub fn reborrow(&mut self) -> HomeSlice<'_, T> {
        HomeSlice { start: self.start, len: self.len, lent: PhantomData }
    }

    pub fn split_at(mut self, at: usize) -> (Self, Self) {
        (self.take_first(at), self)
    }

    /// Splits off the first `len` elements.
    fn take_first(&mut self, len: usize) -> Self {
        assert!(len <= self.len, "cannot take more elements than the slice has");
        let first = Self { start: self.start, len, lent: PhantomData };
        (self.start, self.len) = (self.start.wrapping_add(len), self.len - len);
        first
    }

    /// Divides the slice into parts of `len` elements; the last part may have fewer.
    pub fn chunks_mut(&mut self, len: usize) -> impl ExactSizeIterator<Item = HomeSlice<'_, T>> + Send
    where
        T: Send,
    {
        let parts = self.len.div_ceil(len);
        let mut rest = self.reborrow();
        (0..parts).map(move |_| rest.take_first(len.min(rest.len())))
    }

    /// Overwrites all elements with `from`.
    ///
    /// # Panics
    /// Panics if `from` does not have the size of all elements.
    pub fn write_bytes(&mut self, from: &[u8]) {
        assert_eq!(from.len(), self.len * size_of::<T>(), "`from` must have the size of all elements");
        // SAFETY: the slice has this many bytes, and no other code writes to them.
        unsafe { racy::write(self.start.cast(), from) };
    }

    /// Overwrites all elements: element `i` becomes the result of `made` for item `i`.
    pub fn write<F>(&mut self, from: &[F], made: impl Fn(&F) -> T)
    where
        T: Send,
    {
        let mut block = [T::zeroed(); BLOCK];
        for (mut part, from) in self.chunks_mut(BLOCK).zip(from.chunks(BLOCK)) {
            let block = &mut block[..part.len];
            block.iter_mut().zip(from).for_each(|(to, from)| *to = made(from));
            part.write_bytes(bytemuck::cast_slice(block));
        }
    }

    pub fn fill(&mut self, value: T)
    where
        T: Send,
    {
        let block = [value; BLOCK];
        for mut part in self.chunks_mut(BLOCK) {
            part.write_bytes(bytemuck::cast_slice(&block[..part.len]));
        }
    }

    /// Reverses the order of the elements.
    pub fn reverse(&mut self, threads: usize)
    where
        T: Send + Sync,
    {
        /// Number of elements of either half that a thread takes at a time.
        const PART: usize = if cfg!(test) { 70 } else { 64 << 10 };
        let half = self.len / 2;
        let mut rest = self.reborrow();
        let mut parts = Vec::with_capacity(half.div_ceil(PART));
        for at in (0..half).step_by(PART) {
            let len = PART.min(half - at);
            let first = rest.take_first(len);
            let end = rest.len - len;
            let (others, last) = rest.split_at(end);
            parts.push((first, last));
            rest = others;
        }
        let (threads, parts) = (threads.min(parts.len()), Mutex::new(parts));
        scoped_threads::together(threads, || {
            let mut blocks = [[T::zeroed(); BLOCK]; 2];
            loop {
                let Some((mut first, mut last)) = parts.lock().pop() else { break };
                while first.len > 0 {
                    let len = BLOCK.min(first.len);
                    let end = last.len - len;
                    let (others, mut two) = last.split_at(end);
                    let mut one = first.take_first(len);
                    last = others;
                    // Reverse each block.
                    let [of_one, of_two] = blocks.each_mut().map(|block| &mut block[..len]);
                    of_one.copy_from_slice(one.as_slice());
                    of_one.reverse();
                    of_two.iter_mut().zip(two.as_slice().iter().rev()).for_each(|(to, from)| *to = *from);
                    one.write_bytes(bytemuck::cast_slice(of_two));
                    two.write_bytes(bytemuck::cast_slice(of_one));
                }
            }
        });
    }
}
