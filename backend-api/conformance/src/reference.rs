//! Naive implementations of a device's operations, and [`ReferenceDevice`], which executes requests with
//! them.
//!
//! The functions work on slices of bytes, and are simple rather than fast. A backend can compare its own
//! kernels with them.
//!
//! ```
//! use vmarray_conformance::reference::{fill, gather, scatter, search};
//! let mut memory = *b"aabbcc";
//! assert_eq!(gather(&memory, 2, &[2, 0, 2]).unwrap(), b"ccaacc");
//! assert_eq!(gather(&memory, 2, &[3]), None);
//! scatter(&mut memory, 2, &[2, 0], b"xxyy").unwrap();
//! assert_eq!(&memory, b"yybbxx");
//! fill(&mut memory, &[1, 2, 9, 2]);
//! assert_eq!(memory, [1, 2, 9, 2, 1, 2]);
//! let found = search(&memory, 2, 1, &[2], 2);
//! assert_eq!((found.total, found.indices), (3, vec![0, 1]));
//! ```

mod compute;
mod device;

pub use compute::compute;
pub use device::ReferenceDevice;

use backend_api::LEFT_OUT;

/// The result of [`search`]: the number of matches, and the first indices.
///
/// ```
/// use vmarray_conformance::reference::{SearchResult, search};
/// let found = search(b"abcabc", 1, 0, b"c", 1);
/// assert_eq!(found, SearchResult { total: 2, indices: vec![2] });
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SearchResult {
    /// The number of all matching elements.
    pub total: u64,
    /// The indices of the first matching elements, ascending.
    pub indices: Vec<u64>,
}

/// Writes repetitions of `pattern` to all bytes of `memory`. The last repetition may be incomplete.
///
/// # Panics
/// Panics if the pattern is empty.
pub fn fill(memory: &mut [u8], pattern: &[u8]) {
    for place in memory.chunks_mut(pattern.len()) {
        place.copy_from_slice(&pattern[..place.len()]);
    }
}

/// Finds elements of `stride` bytes that contain `value` at the offset `field_offset` (in bytes). Counts all
/// matching elements, and returns the indices of the first `limit` matches.
///
/// # Panics
/// Panics if the field exceeds its element, or if `stride` is 0.
#[must_use]
pub fn search(elements: &[u8], stride: usize, field_offset: usize, value: &[u8], limit: u64) -> SearchResult {
    let mut found = SearchResult::default();
    for (index, element) in elements.chunks_exact(stride).enumerate() {
        if element[field_offset..field_offset + value.len()] == *value {
            if found.total < limit {
                found.indices.push(index as u64);
            }
            found.total += 1;
        }
    }
    found
}

/// Returns the elements of `stride` bytes at the given indices, in the order of `indices`. For an entry
/// [`LEFT_OUT`], the result has zeros. Returns `None` if an index is out of bounds.
#[must_use]
pub fn gather(elements: &[u8], stride: usize, indices: &[u64]) -> Option<Vec<u8>> {
    let mut values = Vec::with_capacity(indices.len() * stride);
    for &index in indices {
        match index {
            LEFT_OUT => values.resize(values.len() + stride, 0),
            index => values.extend_from_slice(&elements[place(elements, stride, index)?]),
        }
    }
    Some(values)
}

/// Writes values of `stride` bytes each to the elements at the given indices, in the order of `indices`.
/// Skips entries [`LEFT_OUT`]. Stops at the first index that is out of bounds, and returns `None`.
///
/// # Panics
/// Panics if `values` has fewer elements than `indices`.
#[must_use]
pub fn scatter(elements: &mut [u8], stride: usize, indices: &[u64], values: &[u8]) -> Option<()> {
    for (k, &index) in indices.iter().enumerate().filter(|(_, index)| **index != LEFT_OUT) {
        let place = place(elements, stride, index)?;
        elements[place].copy_from_slice(&values[k * stride..(k + 1) * stride]);
    }
    Some(())
}

fn place(elements: &[u8], stride: usize, index: u64) -> Option<std::ops::Range<usize>> {
    let start = usize::try_from(index).ok()?.checked_mul(stride)?;
    let end = start.checked_add(stride)?;
    (end <= elements.len()).then_some(start..end)
}
