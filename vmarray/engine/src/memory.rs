//! Allocation of vectors in RAM with an error instead of an abort if memory is short, because a range of an
//! array may be longer than RAM. Also large pages and prefetch instructions.

use bytemuck::Zeroable;

use crate::error::{ErrorKind, Result};

/// Returns a vector of `len` zeroed elements. If the system provides zeroed pages, the call writes no zeroes.
///
/// Returns an error if the system refuses. A system that overcommits may still end the program later.
pub fn zeroed_vec<T: Zeroable>(len: usize) -> Result<Vec<T>> {
    bytemuck::allocation::try_zeroed_vec(len)
        .map_err(|()| ErrorKind::NoMemory { bytes: len.saturating_mul(size_of::<T>()) }.into())
}

/// Returns `len` zeroed elements like [`zeroed_vec`], for memory that the caller will write entirely.
/// Requests large pages from the system, so that a page fault occurs once per 2 MiB instead of 4 KiB.
pub fn zeroed_vec_large<T: Zeroable>(len: usize) -> Result<Vec<T>> {
    let values = zeroed_vec::<T>(len)?;
    ask_for_large_pages(values.as_ptr().cast(), size_of_val(values.as_slice()));
    Ok(values)
}

/// Reserves capacity for `more` elements, in large pages if the system has any.
pub fn reserve_large<T>(values: &mut Vec<T>, more: usize) -> Result<()> {
    values
        .try_reserve(more)
        .map_err(|_| ErrorKind::NoMemory { bytes: more.saturating_mul(size_of::<T>()) })?;
    let spare = values.spare_capacity_mut();
    ask_for_large_pages(spare.as_ptr().cast(), size_of_val(spare));
    Ok(())
}

/// Requests large pages for the caller's memory of `bytes` bytes at `at`, which keeps its contents. No effect
/// if `bytes` is too short for large pages.
pub fn ask_for_large_pages(at: *const u8, bytes: usize) {
    #[cfg(all(target_os = "linux", not(miri)))]
    {
        const BYTES_MIN: usize = 4 << 20;
        const PAGE: usize = 4096;
        if bytes >= BYTES_MIN {
            let start = at.addr().next_multiple_of(PAGE);
            let bytes = (bytes - (start - at.addr())) / PAGE * PAGE;
            // SAFETY: the advice changes no contents, at any address. A refusal has no effect.
            unsafe {
                libc::madvise(std::ptr::without_provenance_mut(start), bytes, libc::MADV_HUGEPAGE);
            }
        }
    }
    #[cfg(any(not(target_os = "linux"), miri))]
    let _ = (at, bytes);
}

/// Requests that the system merge the memory of `values` into large pages. A GPU then maps 2 MiB by one table
/// entry instead of 512. The system may ignore the request; otherwise it copies the bytes once.
pub fn merge_into_large_pages<T>(values: &mut [T]) {
    #[cfg(all(target_os = "linux", not(miri)))]
    {
        /// From `linux/mman.h` of Linux 6.1; `libc` defines it for glibc only. Older kernels refuse it.
        const MADV_COLLAPSE: libc::c_int = 25;
        let (start, bytes) = large_pages_of(values);
        if bytes > 0 {
            // SAFETY: the pages are inside the borrowed values. The call changes neither addresses nor
            // contents.
            unsafe { libc::madvise(start.cast(), bytes, MADV_COLLAPSE) };
        }
    }
    #[cfg(any(not(target_os = "linux"), miri))]
    let _ = values;
}

/// Marks the large pages of `numbers` as free until a thread writes to them. Returns false if the system does
/// not support this. Until then the values of a large page may become zero at any time, so write to each page
/// of the system before you read it.
#[must_use]
pub fn free_until_written(numbers: &mut [u64]) -> bool {
    #[cfg(all(target_os = "linux", not(miri)))]
    {
        // Mark only whole large pages as free, because Linux would split a partly free one into small pages.
        let (start, bytes) = large_pages_of(numbers);
        // SAFETY: the pages are inside the numbers, which are borrowed exclusively: their values may change,
        // and all values are valid.
        unsafe { bytes == 0 || libc::madvise(start.cast(), bytes, libc::MADV_FREE) == 0 }
    }
    #[cfg(any(not(target_os = "linux"), miri))]
    {
        let _ = numbers;
        false
    }
}

/// Returns the first large page that is entirely inside of `values`, and the bytes of all such pages.
#[cfg(all(target_os = "linux", not(miri)))]
fn large_pages_of<T>(values: &mut [T]) -> (*mut u8, usize) {
    const PAGE: usize = 2 << 20;
    let start = values.as_mut_ptr().cast::<u8>();
    let skip = start.addr().next_multiple_of(PAGE) - start.addr();
    (start.wrapping_add(skip), size_of_val(values).saturating_sub(skip) / PAGE * PAGE)
}

/// Prefetches the cache line at an address for a write. Any address is allowed.
#[inline(always)]
pub fn prefetch_write<T>(at: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint; it never faults.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_ET0 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Prefetches `bytes` bytes into the processor's caches for a read in the near future. Any address will do.
#[inline(always)]
pub fn prefetch(address: usize, bytes: usize) {
    /// The processor itself prefetches bytes beyond this length.
    const BYTES_MAX: usize = 4096;
    #[cfg(target_arch = "x86_64")]
    for offset in (0..bytes.min(BYTES_MAX)).step_by(64) {
        // SAFETY: a hint; it never faults.
        unsafe {
            // Prefetch to the second-level cache, because a few large elements would fill the first level and
            // evict other data that is in use.
            use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T1>(std::ptr::without_provenance(address.wrapping_add(offset)));
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (address, bytes, BYTES_MAX);
}

/// Prefetches the cache lines of some elements for a read in the near future.
#[inline(always)]
pub fn prefetch_slice<T>(elements: &[T]) {
    const LINE: usize = 64;
    let start = elements.as_ptr().addr();
    let skipped = start % LINE;
    prefetch(start - skipped, size_of_val(elements) + skipped);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_memory_is_zeroed() {
        for len in [0, 5, 1 << 20] {
            let values = zeroed_vec_large::<u64>(len).unwrap();
            assert!(values.len() == len && values.iter().all(|&value| value == 0));
        }
    }

    #[test]
    fn advice_on_memory_keeps_its_values() {
        let mut values = zeroed_vec::<u64>(1 << 20).unwrap();
        values.fill(3);
        merge_into_large_pages(&mut values);
        merge_into_large_pages(&mut values[1..9]);
        assert!(values.iter().all(|&value| value == 3));
        // Too short for a large page.
        let _ = free_until_written(&mut values[..1000]);
        assert!(values.iter().all(|&value| value == 3));
    }

    #[test]
    fn memory_is_zeroed_or_refused() {
        assert_eq!(zeroed_vec::<u64>(3).unwrap(), [0; 3]);
        assert!(zeroed_vec::<u64>(0).unwrap().is_empty());
        let error = zeroed_vec::<u64>(1 << 59).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::NoMemory { bytes: 1 << 62 });
        let error = zeroed_vec::<u64>(usize::MAX).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::NoMemory { bytes: usize::MAX });
    }
}
