//! Slices of memory that several threads and devices access at the same time without locks.
//!
//! | slice | writes | reads of other code |
//! |---|---|---|
//! | [`RacySlice`] | of all threads, at any place | see unspecified values during a write |
//! | [`HomeSlice`] | of its owner alone | see unspecified values during a write |
//!
//! Both access the memory by racy copies, so that races have unspecified values and no undefined behaviour.

use std::marker::PhantomData;
use std::ptr::NonNull;

use backend_api::{AddressSpace, Device, DeviceSpan, racy};
use bytemuck::Pod;

use super::element::{self, Element, ElementLayout};

/// A borrowed slice that several threads read and write by value at the same time. Each thread that writes
/// different elements sees its own writes.
#[derive(Debug)]
pub(crate) struct RacySlice<'a, T> {
    start: *mut T,
    len: usize,
    borrowed: PhantomData<&'a mut [T]>,
}

// SAFETY: the slice is borrowed exclusively, and methods access its plain elements by racy copies alone.
unsafe impl<T: Element> Send for RacySlice<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Element> Sync for RacySlice<'_, T> {}

impl<'a, T: Element> From<&'a mut [T]> for RacySlice<'a, T> {
    fn from(own: &'a mut [T]) -> Self {
        Self { start: own.as_mut_ptr(), len: own.len(), borrowed: PhantomData }
    }
}

impl<'a> From<ExclusiveMemory<'a>> for RacySlice<'a, u8> {
    fn from(memory: ExclusiveMemory<'a>) -> Self {
        Self { start: memory.start().as_ptr(), len: memory.len(), borrowed: PhantomData }
    }
}

impl<T: Element> RacySlice<'_, T> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    /// Returns the address of the first element, and exposes its provenance, so that devices to which the
    /// memory was registered may access the elements by it.
    pub(crate) fn expose(&self) -> usize {
        self.start.expose_provenance()
    }

    /// Returns the address of `len` elements, beginning at index `at`.
    ///
    /// # Panics
    /// If the elements are not inside of the slice.
    #[inline(always)]
    pub(crate) fn address(&self, at: usize, len: usize) -> *mut T {
        assert!(len <= self.len && at <= self.len - len, "the elements must end within the slice");
        self.start.wrapping_add(at)
    }

    /// Writes an element.
    ///
    /// # Panics
    /// If the index is outside of the slice.
    #[inline(always)]
    pub(crate) fn set(&self, at: usize, value: &T) {
        assert!(at < self.len, "the element's index must be below the slice's length");
        let place = self.start.wrapping_add(at);
        // SAFETY: inside of the slice, as was checked. All accesses are atomic or racy.
        unsafe {
            if const { ElementLayout::<T>::SINGLE_WORD && align_of::<T>() == size_of::<T>() } {
                element::store(place, *value);
            } else {
                racy::write(place.cast(), bytemuck::bytes_of(value));
            }
        }
    }

    /// Copies elements out of the slice, beginning at index `at`.
    ///
    /// # Panics
    /// If the elements are not inside of the slice.
    pub(crate) fn read(&self, at: usize, into: &mut [T]) {
        let from = self.address(at, into.len());
        // SAFETY: inside of the slice, which is borrowed, so that `into` is other memory.
        unsafe { racy::read(from.cast(), bytemuck::cast_slice_mut(into)) }
    }

    /// Copies elements into the slice, beginning at index `at`.
    ///
    /// # Panics
    /// If the elements are not inside of the slice.
    pub(crate) fn write(&self, at: usize, from: &[T]) {
        let to = self.address(at, from.len());
        // SAFETY: as in `read`.
        unsafe { racy::write(to.cast(), bytemuck::cast_slice(from)) }
    }

    /// Copies `len` elements to index `at` of this or another slice.
    ///
    /// # Panics
    /// If one of the ranges is not inside of its slice, or both overlap.
    pub(crate) fn copy(&self, from: usize, (to, at): (&Self, usize), len: usize) {
        let (from, to) = (self.address(from, len), to.address(at, len));
        let bytes = len * size_of::<T>();
        assert!(from.addr().abs_diff(to.addr()) >= bytes, "source and destination must not overlap");
        // SAFETY: both are inside of their slices, and do not overlap, as was checked.
        unsafe { racy::copy(from.cast(), to.cast(), bytes) }
    }
}

/// Elements that no other code writes. Earlier queries may still read them, with unspecified results.
/// Therefore they are never written by plain stores, and no exclusive reference to them exists.
pub(crate) struct HomeSlice<'a, T> {
    start: *mut T,
    len: usize,
    lent: PhantomData<&'a mut [T]>,
}

// SAFETY: the memory is used like that of a borrowed slice.
unsafe impl<T: Send> Send for HomeSlice<'_, T> {}
// SAFETY: the same.
unsafe impl<T: Sync> Sync for HomeSlice<'_, T> {}

impl HomeSlice<'_, ()> {
    /// Returns `len` elements of a type without bytes.
    pub(crate) fn empty(len: usize) -> Self {
        Self { start: std::ptr::dangling_mut(), len, lent: PhantomData }
    }
}

impl<'a, T: Pod> From<&'a mut [T]> for HomeSlice<'a, T> {
    fn from(own: &'a mut [T]) -> Self {
        Self { start: own.as_mut_ptr(), len: own.len(), lent: PhantomData }
    }
}

impl<'a, T: Pod> HomeSlice<'a, T> {
    /// Returns `len` elements in memory of a device that threads can access. Returns `None` if the device has
    /// no addresses, or the elements are not aligned.
    ///
    /// # Errors
    /// The errors of [`Addresses::address`](backend_api::Addresses::address).
    ///
    /// # Safety
    /// The elements are initialised, and no other code writes to them while the slice exists.
    pub(crate) unsafe fn on_device(
        device: &'a dyn Device,
        start: DeviceSpan<'a>,
        len: u64,
    ) -> backend_api::Result<Option<Self>> {
        let Some(addresses) = device.addresses().filter(|of| of.space() == AddressSpace::Host) else {
            return Ok(None);
        };
        let start = addresses.address(start, len * size_of::<T>() as u64)? as usize;
        let start = std::ptr::with_exposed_provenance_mut::<T>(start);
        let is_usable = !start.is_null() && start.is_aligned();
        Ok(is_usable.then_some(Self { start, len: len as usize, lent: PhantomData }))
    }

    /// Returns the same memory as elements of another type; no elements if `T` or `U` has no bytes.
    ///
    /// # Panics
    /// If the memory is not aligned for `U`, or ends within an element.
    pub(crate) fn cast<U: Pod>(self) -> HomeSlice<'a, U> {
        let (start, bytes) = (self.start.cast::<U>(), self.len * size_of::<T>());
        let len = bytes.checked_div(size_of::<U>()).unwrap_or(0);
        assert!(start.is_aligned() && len * size_of::<U>() == bytes, "the bytes must be elements of type U");
        HomeSlice { start, len, lent: PhantomData }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn as_slice(&self) -> &[T] {
        // SAFETY: the memory has this length, as its owner or its device has confirmed; methods that write
        // take the slice exclusively.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }

    pub(crate) fn reborrow(&mut self) -> HomeSlice<'_, T> {
        HomeSlice { start: self.start, len: self.len, lent: PhantomData }
    }

    pub(crate) fn split_at(mut self, at: usize) -> (Self, Self) {
        (self.take_first(at), self)
    }

    /// Splits off the first `len` elements.
    pub(crate) fn take_first(&mut self, len: usize) -> Self {
        assert!(len <= self.len, "cannot take more elements than the slice has left");
        let first = Self { start: self.start, len, lent: PhantomData };
        (self.start, self.len) = (self.start.wrapping_add(len), self.len - len);
        first
    }

    /// Overwrites all elements with `from`.
    ///
    /// # Panics
    /// If `from` does not have the size of all elements.
    pub(crate) fn write_bytes(&mut self, from: &[u8]) {
        assert_eq!(from.len(), self.len * size_of::<T>(), "`from` must have the size of all elements");
        // SAFETY: the slice has this many bytes, and no other code writes to them.
        unsafe { racy::write(self.start.cast(), from) };
    }
}

/// Memory of the program that one operation uses exclusively.
#[derive(Debug)]
pub(crate) struct ExclusiveMemory<'a> {
    start: NonNull<u8>,
    len: usize,
    lent: PhantomData<&'a mut [u8]>,
}

impl ExclusiveMemory<'_> {
    /// Creates a value for exclusive access to `len` bytes.
    ///
    /// # Safety
    /// The bytes are writable, and no other code accesses them as long as the value exists.
    pub(crate) unsafe fn new(start: NonNull<u8>, len: usize) -> Self {
        Self { start, len, lent: PhantomData }
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_write_elements_of_one_slice() {
        fn fill<T: Element + PartialEq + std::fmt::Debug>(value: impl Fn(usize) -> T + Sync) {
            let mut own = vec![T::zeroed(); 40];
            let slice = RacySlice::from(&mut own[..]);
            crate::base::scoped_threads::together(3, || {
                for at in 0..20 {
                    slice.set(at, &value(at));
                }
                slice.write(20, &[value(20), value(21)]);
            });
            slice.copy(0, (&slice, 22), 18);
            let mut read = vec![T::zeroed(); 40];
            slice.read(0, &mut read);
            let expected: Vec<_> = (0..22).chain(0..18).map(value).collect();
            assert_eq!((read, own), (expected.clone(), expected));
        }
        fill(|at| at as u32);
        fill(|at| [at as u8; 3]);
        fill(|at| [at as u16; 4]);
        fill(|at| [at as u64; 5]);
    }

    #[test]
    fn places_outside_of_a_slice_are_refused() {
        let panics = |access: &dyn Fn(&RacySlice<'_, u16>)| {
            let mut own = [7_u16; 4];
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                access(&RacySlice::from(&mut own[..]));
            }));
            assert_eq!(own, [7; 4]);
            outcome.is_err()
        };
        assert!(panics(&|slice| slice.set(4, &1)));
        assert!(panics(&|slice| slice.set(usize::MAX, &1)));
        assert!(panics(&|slice| slice.write(3, &[1, 2])));
        assert!(panics(&|slice| slice.write(usize::MAX, &[1, 2])));
        assert!(panics(&|slice| slice.read(0, &mut [0; 5])));
        assert!(panics(&|slice| slice.copy(0, (slice, 1), 2)));
        assert!(panics(&|slice| slice.copy(0, (slice, 2), 3)));
        assert!(!panics(&|slice| slice.copy(0, (slice, 2), 2)));
    }

    #[test]
    fn parts_of_a_home_slice_are_written_and_read() {
        let mut own = [1_u32, 2, 3, 4, 5];
        let slice = HomeSlice::from(&mut own[..]);
        let (mut first, mut last) = slice.split_at(2);
        assert_eq!((first.as_slice(), last.as_slice()), (&[1, 2][..], &[3, 4, 5][..]));
        first.write_bytes(bytemuck::bytes_of(&[7_u32, 8]));
        last.reborrow().take_first(1).write_bytes(bytemuck::bytes_of(&9_u32));
        assert_eq!((first.len(), last.as_slice()), (2, &[9, 4, 5][..]));
        assert_eq!(own, [7, 8, 9, 4, 5]);
    }
}
