//! [`Home`]: the types of program memory over which a source can be built, and accesses to this memory.

use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use backend_api::{Device, HostMemory};

use super::directory::{Cuts, DirectoryEntry, ExclusivePage, SharedPage};
use crate::base::element::Element;
use crate::base::racy_slice::ExclusiveMemory;
use crate::base::registered_memory::RegisteredMemory;
use crate::engine::channel::PinnedPiece;

/// Memory of the program over which a [`Source`](crate::Source) can be built: slices, vectors, mapped files.
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
/// allocated, and no other code may write to them. If [`OWNED`](Self::OWNED) is true, the elements must stay
/// allocated even if the home is leaked.
pub unsafe trait Home<T: Element>: Send + Sync {
    /// True if the memory stays allocated when the home is leaked instead of dropped. A source registers only
    /// such memory with a driver, because the program may free borrowed memory after a leak.
    const OWNED: bool;

    /// Returns the elements. If their address is not aligned for their type,
    /// [`SourceBuilder::build`](crate::source::SourceBuilder::build) fails.
    fn memory(&mut self) -> NonNull<[T]>;
}

/// Memory of the program over which a writable [`Source`](crate::Source) can be built.
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

/// Returns the complete elements of a mapping, which may start within a page of the operating system.
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

/// The elements of a home, divided into pages. Page locks of the directory decide on accesses.
///
/// The source keeps the home until it has dropped this value, the channels, and all work on the elements.
#[derive(Debug)]
pub(super) struct HomeMemory<T> {
    bytes: HomeBytes,
    marker: PhantomData<fn(T) -> T>,
}

/// The bytes of a home, for copies of pages that the calling thread holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct HomeBytes {
    first: NonNull<u8>,
    pub(super) element_bytes: usize,
    pub(super) cuts: Cuts,
}

// SAFETY: elements are `Send + Sync` plain data, and all accesses take the locks of the directory.
unsafe impl Send for HomeBytes {}
// SAFETY: as above.
unsafe impl Sync for HomeBytes {}

impl<T: Element> HomeMemory<T> {
    /// Divides the elements of a home into pages of `page_len` elements.
    ///
    /// # Panics
    /// If the elements are not aligned.
    pub(super) fn of(home: &mut impl Home<T>, page_len: usize) -> Self {
        let memory = home.memory();
        let (first, cuts) = (memory.cast::<T>(), Cuts::new(memory.len(), page_len));
        assert!(first.is_aligned(), "the elements of a home must be aligned");
        let bytes = HomeBytes { first: first.cast(), element_bytes: size_of::<T>(), cuts };
        Self { bytes, marker: PhantomData }
    }

    pub(super) fn bytes(&self) -> HomeBytes {
        self.bytes
    }

    pub(super) fn cuts(&self) -> Cuts {
        self.bytes.cuts
    }

    /// Registers the whole home with a device. The home must own its memory.
    pub(super) fn import(
        &self,
        device: &Arc<dyn Device>,
        kind: HostMemory,
    ) -> backend_api::Result<RegisteredMemory> {
        let HomeBytes { first, element_bytes, cuts } = self.bytes;
        // SAFETY: the home owns its memory, so it stays allocated until the home is dropped, after the
        // channels. No device writes to read-only memory, because none of its blocks becomes dirty.
        unsafe { RegisteredMemory::new(device, first, cuts.len * element_bytes, kind) }
    }

    /// Returns the address of a range of elements.
    ///
    /// # Panics
    /// If the range is out of bounds.
    fn first_of(&self, range: &Range<usize>) -> NonNull<T> {
        assert!(range.start <= range.end && range.end <= self.bytes.cuts.len);
        // SAFETY: within the home's memory, which does not move while the source exists.
        unsafe { self.bytes.first.cast::<T>().add(range.start) }
    }

    /// Returns the indices in the home of a part of a page.
    fn indices_of(&self, page: usize, within: &Range<usize>) -> Range<usize> {
        let page_len = self.bytes.cuts.page_len;
        assert!(within.start <= within.end && within.end <= page_len);
        page * page_len + within.start..page * page_len + within.end
    }

    /// Returns the elements of a part of a page.
    ///
    /// # Panics
    /// If `held` is the lock of another page.
    pub(super) fn elements<'g>(
        &self,
        (entries, held): (&[DirectoryEntry], &'g SharedPage<'_>),
        page: usize,
        within: &Range<usize>,
    ) -> &'g [T] {
        assert!(held.is_of(&entries[page]));
        let first = self.first_of(&self.indices_of(page, within));
        // SAFETY: initialised, and within bounds; writers need the page exclusively, and it is shared while
        // the slice lives.
        unsafe { std::slice::from_raw_parts(first.as_ptr(), within.len()) }
    }

    /// Returns the mutable elements of a part of a page. The home must be writable; elements of a read-only
    /// home are never newer on a device.
    ///
    /// # Panics
    /// If `held` is the lock of another page.
    pub(super) fn elements_mut<'g>(
        &self,
        (entries, held): (&[DirectoryEntry], &'g mut ExclusivePage<'_>),
        page: usize,
        within: &Range<usize>,
    ) -> &'g mut [T] {
        assert!(held.is_of(&entries[page]));
        let first = self.first_of(&self.indices_of(page, within));
        // SAFETY: initialised, and within bounds; threads and copies that access the elements hold the page,
        // and only the caller holds it while the slice lives.
        unsafe { std::slice::from_raw_parts_mut(first.as_ptr(), within.len()) }
    }

    /// Returns elements for exclusive use, while the caller holds all their pages. The home must be writable.
    ///
    /// # Panics
    /// If `held` are locks of other pages.
    pub(super) fn exclusive<'g>(
        &self,
        (entries, held): (&[DirectoryEntry], &'g mut [ExclusivePage<'_>]),
        range: &Range<usize>,
    ) -> ExclusiveMemory<'g> {
        let pages = &entries[self.bytes.cuts.touched_pages(range)];
        assert!(held.len() == pages.len() && held.iter().zip(pages).all(|(held, page)| held.is_of(page)));
        // SAFETY: within bounds; the pages are borrowed exclusively with the result, so no other code
        // accesses the elements.
        unsafe { ExclusiveMemory::new(self.first_of(range).cast(), range.len() * size_of::<T>()) }
    }

    /// Returns elements, for a caller with exclusive access to the source.
    pub(super) fn slice(&mut self, range: &Range<usize>) -> &[T] {
        // SAFETY: initialised, and within bounds. The source is borrowed exclusively, so no operation runs,
        // and devices have finished the work of earlier operations on this memory.
        unsafe { std::slice::from_raw_parts(self.first_of(range).as_ptr(), range.len()) }
    }

    /// Returns mutable elements, for a caller with exclusive access to the source. The home must be writable.
    pub(super) fn slice_mut(&mut self, range: &Range<usize>) -> &mut [T] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.first_of(range).as_ptr(), range.len()) }
    }
}

impl HomeBytes {
    /// # Panics
    /// If the bytes are out of bounds.
    fn at(&self, offset: usize, len: usize) -> *mut u8 {
        let end = offset.checked_add(len);
        assert!(end.is_some_and(|end| end <= self.cuts.len * self.element_bytes));
        self.first.as_ptr().wrapping_add(offset)
    }

    /// Copies bytes of the home to pinned memory. The calling thread holds their pages.
    pub(super) fn read(&self, offset: usize, len: usize, (into, at): (&PinnedPiece, usize)) {
        // SAFETY: initialised, and within bounds; no thread writes to them while the pages are held, and no
        // device writes to a home that it does not import. This call alone uses the reference.
        into.write(at, unsafe { std::slice::from_raw_parts(self.at(offset, len), len) });
    }

    /// Copies bytes from pinned memory to the home, which must be writable. The calling thread holds their
    /// pages exclusively.
    pub(super) fn write(&self, offset: usize, len: usize, (from, at): (&PinnedPiece, usize)) {
        // SAFETY: as above; no other thread accesses them while the pages are held exclusively.
        from.read(at, unsafe { std::slice::from_raw_parts_mut(self.at(offset, len), len) });
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use backend_host::HostDevice;

    use super::*;
    use crate::engine::channel::PinnedPool;

    fn panics<R>(run: impl FnOnce() -> R) -> bool {
        catch_unwind(AssertUnwindSafe(run)).is_err()
    }

    #[test]
    fn elements_are_accessed_under_the_lock_of_their_page() {
        let mut home = (0..10_u32).collect::<Vec<_>>();
        let mut memory = HomeMemory::of(&mut home, 4);
        let entries = [(); 3].map(|()| DirectoryEntry::new());
        let shared = entries[1].share();
        assert_eq!(memory.elements((&entries, &shared), 1, &(1..4)), [5, 6, 7]);
        assert!(panics(|| memory.elements((&entries, &shared), 0, &(1..4)).len()));
        assert!(panics(|| memory.elements((&entries, &shared), 1, &(1..5)).len()));
        let mut last = entries[2].take();
        memory.elements_mut((&entries, &mut last), 2, &(1..2))[0] = 90;
        assert!(panics(|| memory.elements_mut((&entries, &mut last), 2, &(1..3)).len()));
        drop((shared, last));
        let mut held = [entries[0].take(), entries[1].take()];
        assert_eq!(memory.exclusive((&entries, &mut held), &(3..5)).len(), 8);
        assert!(panics(|| memory.exclusive((&entries, &mut held), &(3..9)).len()));
        let bytes = memory.bytes();
        let device: Arc<dyn Device> = Arc::new(HostDevice::new(1 << 20).unwrap());
        let piece = PinnedPool::separate(&device, HostMemory::Pageable, true).take(100).unwrap();
        piece.write(8, &70_u32.to_ne_bytes());
        bytes.write(4, 4, (&piece, 8));
        bytes.read(4, 8, (&piece, 50));
        let mut read = [0_u32; 2];
        piece.read(50, bytemuck::cast_slice_mut(&mut read));
        assert_eq!(read, [70, 2]);
        assert!(
            panics(|| bytes.read(37, 4, (&piece, 0))) && panics(|| bytes.write(usize::MAX, 4, (&piece, 0)))
        );
        memory.slice_mut(&(0..1))[0] = 6;
        assert_eq!(memory.slice(&(0..10)), [6, 70, 2, 3, 4, 5, 6, 7, 8, 90]);
    }
}
