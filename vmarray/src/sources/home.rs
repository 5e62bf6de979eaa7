//! Memory of the program as the home of a source.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::base::element::Element;

/// Memory of the program for a [`Source`](crate::Source): slices, vectors, mapped files.
///
/// ```
/// fn length<T: vmarray::Element>(mut home: impl vmarray::source::Home<T>) -> usize {
///     home.memory().len()
/// }
/// assert_eq!(length(vec![1_u32, 2, 3]), 3);
/// assert_eq!(length::<u8>(&[1_u8, 2][..]), 2);
/// ```
///
/// # Safety
/// [`memory`](Self::memory) must return the same initialised elements at the same address in each call, also
/// after a move of the home. From the first call until the drop of the home, the elements must stay
/// allocated, and no other code may write to them. If [`OWNED`](Self::OWNED) is true, they must stay
/// allocated even if the home is leaked.
pub unsafe trait Home<T: Element>: Send {
    /// True if the memory stays allocated when the home is leaked instead of dropped. The program may free
    /// borrowed memory then, so a source never registers such memory with a driver.
    const OWNED: bool;

    /// Returns the elements. If their address is not aligned for their type,
    /// [`SourceBuilder::build`](crate::source::SourceBuilder::build) fails.
    fn memory(&mut self) -> NonNull<[T]>;
}

/// Memory that a [`Source`](crate::Source) may also write to.
///
/// ```
/// fn takes(_: impl vmarray::source::HomeMut<u32>) {}
/// takes(vec![1, 2, 3]);
/// takes(&mut [1, 2, 3][..]);
/// ```
///
/// # Safety
/// The requirements of [`Home`]. In addition, no other code may read the elements, and the pointer of
/// [`memory`](Home::memory) must allow writes.
pub unsafe trait HomeMut<T: Element>: Home<T> {}

// SAFETY: a vector owns its elements, which do not move while no code accesses the vector.
unsafe impl<T: Element> Home<T> for Vec<T> {
    const OWNED: bool = true;

    fn memory(&mut self) -> NonNull<[T]> {
        NonNull::from(self.as_mut_slice())
    }
}

// SAFETY: as above; the pointer comes from an exclusive borrow.
unsafe impl<T: Element> HomeMut<T> for Vec<T> {}

// SAFETY: as for vectors.
unsafe impl<T: Element> Home<T> for Box<[T]> {
    const OWNED: bool = true;

    fn memory(&mut self) -> NonNull<[T]> {
        NonNull::from(&mut **self)
    }
}

// SAFETY: as above; the pointer comes from an exclusive borrow.
unsafe impl<T: Element> HomeMut<T> for Box<[T]> {}

// SAFETY: shared memory has no writers, and lives as long as any owner.
unsafe impl<T: Element> Home<T> for Arc<[T]> {
    const OWNED: bool = true;

    fn memory(&mut self) -> NonNull<[T]> {
        NonNull::from(&**self)
    }
}

// SAFETY: borrowed memory has no writers.
unsafe impl<T: Element> Home<T> for &[T] {
    const OWNED: bool = false;

    fn memory(&mut self) -> NonNull<[T]> {
        NonNull::from(&**self)
    }
}

// SAFETY: no other code accesses exclusively borrowed memory.
unsafe impl<T: Element> Home<T> for &mut [T] {
    const OWNED: bool = false;

    fn memory(&mut self) -> NonNull<[T]> {
        NonNull::from(&mut **self)
    }
}

// SAFETY: as above; the pointer comes from an exclusive borrow.
unsafe impl<T: Element> HomeMut<T> for &mut [T] {}

/// Returns the whole elements of a mapping, which may start within a page of the operating system.
#[cfg(feature = "memmap2")]
fn elements<T: Element>(address: *const u8, bytes: usize) -> NonNull<[T]> {
    let first = NonNull::new(address.cast_mut().cast::<T>()).expect("the address of a mapping is never null");
    NonNull::slice_from_raw_parts(first, bytes / size_of::<T>())
}

/// The elements are the bytes of the file; an incomplete last element does not count.
///
/// The mapping's creator has promised that no other program changes or truncates the file meanwhile.
// SAFETY: a mapping does not move until it is dropped; the creator promised the rest to `memmap2`.
#[cfg(feature = "memmap2")]
unsafe impl<T: Element> Home<T> for memmap2::MmapMut {
    const OWNED: bool = true;

    fn memory(&mut self) -> NonNull<[T]> {
        elements(self.as_mut_ptr(), self.len())
    }
}

// SAFETY: as above; the mapping is writable.
#[cfg(feature = "memmap2")]
unsafe impl<T: Element> HomeMut<T> for memmap2::MmapMut {}

/// The elements are the bytes of the file; an incomplete last element does not count.
///
/// The mapping's creator has promised that no other program changes or truncates the file meanwhile.
// SAFETY: a mapping does not move until it is dropped; the creator promised the rest to `memmap2`.
#[cfg(feature = "memmap2")]
unsafe impl<T: Element> Home<T> for memmap2::Mmap {
    const OWNED: bool = true;

    fn memory(&mut self) -> NonNull<[T]> {
        elements(self.as_ptr(), self.len())
    }
}
