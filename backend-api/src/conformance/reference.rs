//! Naive implementations of the effects of kernels, and a device that consists of them.
//!
//! The functions work on ordinary slices and prefer clarity to speed. Tests of a backend's own kernels can
//! compare with them.
//!
//! ```
//! use backend_api::conformance::reference::{fill, gather, scatter, search};
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

use crate::LEFT_OUT;

/// The result of a search.
///
/// ```
/// use backend_api::conformance::reference::{Found, search};
/// let found = search(b"abcabc", 1, 0, b"c", 1);
/// assert_eq!(found, Found { total: 2, indices: vec![2] });
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The number of matching elements.
    pub total: u64,
    /// The indices of the first matches, ascending.
    pub indices: Vec<u64>,
}

/// Repeats a pattern until the target is full; the last repetition may be cut.
///
/// # Panics
/// If the pattern is empty.
pub fn fill(memory: &mut [u8], pattern: &[u8]) {
    for place in memory.chunks_mut(pattern.len()) {
        place.copy_from_slice(&pattern[..place.len()]);
    }
}

/// Finds elements of `stride` bytes whose bytes from `field_offset` on equal `value`; lists at most
/// `limit`.
///
/// # Panics
/// If the field leaves its element, or `stride` is 0.
#[must_use]
pub fn search(elements: &[u8], stride: usize, field_offset: usize, value: &[u8], limit: u64) -> Found {
    let mut found = Found::default();
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

/// Collects elements of `stride` bytes by index; zeroes for entries that are [left out](crate::LEFT_OUT).
/// Returns `None` if an index is outside.
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

/// Distributes elements of `stride` bytes by index, in the order of the indices, up to the first index
/// outside. Returns `None` if an index is outside.
///
/// # Panics
/// If the list has fewer values than indices.
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
