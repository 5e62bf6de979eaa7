//! Memory that the program owns, as the home of a source.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::base::element::Element;

/// Memory that the program owns and lends to a [`Source`](crate::Source): slices, vectors, mapped files.
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
/// [`memory`](Self::memory) gives the same initialised elements at the same place each time, also after the
/// home was moved. From then on until the home is dropped, they stay allocated and nobody else writes to
/// them. With [`OWNED`](Self::OWNED), they stay allocated even if the home is leaked.
pub unsafe trait Home<T: Element>: Send {
    /// Whether the memory stays allocated when the home is forgotten instead of dropped. What is only
    /// borrowed may be freed then, so it is never made known to a driver.
    const OWNED: bool;

    /// The elements. If they are not aligned, there will be no source.
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
/// As [`Home`]; and nobody else reads the elements either, and they can be written to through the pointer
/// that [`memory`](Home::memory) gives.
pub unsafe trait HomeMut<T: Element>: Home<T> {}

// SAFETY: a vector's elements stay where they are while nobody touches the vector, and belong to it.
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

// SAFETY: nobody writes to what is shared, and it lives as long as any owner.
unsafe impl<T: Element> Home<T> for Arc<[T]> {
    const OWNED: bool = true;

    fn memory(&mut self) -> NonNull<[T]> {
        NonNull::from(&**self)
    }
}

// SAFETY: nobody writes to what is borrowed.
unsafe impl<T: Element> Home<T> for &[T] {
    const OWNED: bool = false;

    fn memory(&mut self) -> NonNull<[T]> {
        NonNull::from(&**self)
    }
}

// SAFETY: nobody else touches what is borrowed exclusively.
unsafe impl<T: Element> Home<T> for &mut [T] {
    const OWNED: bool = false;

    fn memory(&mut self) -> NonNull<[T]> {
        NonNull::from(&mut **self)
    }
}

// SAFETY: as above; the pointer comes from an exclusive borrow.
unsafe impl<T: Element> HomeMut<T> for &mut [T] {}

/// As many elements as fit into a mapping, which may start in the middle of a page of the system.
#[cfg(feature = "memmap2")]
fn elements<T: Element>(address: *const u8, bytes: usize) -> NonNull<[T]> {
    let first = NonNull::new(address.cast_mut().cast::<T>()).expect("mappings have addresses");
    NonNull::slice_from_raw_parts(first, bytes / size_of::<T>())
}

/// The file's bytes as elements; a rest that is shorter than an element is left alone.
///
/// That the file is not changed or cut short by others meanwhile is the promise that was given when it was
/// mapped.
// SAFETY: a mapping stays where it is until it is dropped; the rest was promised to `memmap2`.
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

/// The file's bytes as elements; a rest that is shorter than an element is left alone.
///
/// That the file is not changed or cut short by others meanwhile is the promise that was given when it was
/// mapped.
// SAFETY: a mapping stays where it is until it is dropped; the rest was promised to `memmap2`.
#[cfg(feature = "memmap2")]
unsafe impl<T: Element> Home<T> for memmap2::Mmap {
    const OWNED: bool = true;

    fn memory(&mut self) -> NonNull<[T]> {
        elements(self.as_ptr(), self.len())
    }
}
