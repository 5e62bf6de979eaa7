//! Counts of out-of-bounds accesses, for kernels that run on the host.

use crate::KernelType;
use std::cell::Cell;

thread_local! {
    static OUTSIDE: Cell<Option<OutOfBounds>> = const { Cell::new(None) };
}

/// The error that [`run_on_host`](crate::run_on_host) returns if the kernel accessed elements out of bounds.
/// Each access out of bounds reads zero or writes nothing.
///
/// ```
/// use vmarray_kernel::{kernel, Anywhere, At, Own, run_on_host};
///
/// #[kernel(crate = vmarray_kernel)]
/// fn next(at: At<1>, of: &Anywhere<u8>, out: &mut Own<u8>) {
///     out.set(of[at.index() + 1]);
/// }
/// let mut out = [9; 3];
/// let outside = run_on_host::<next>(0..3, ((), &[1, 2, 3], &mut out)).unwrap_err();
/// assert_eq!((out, outside.count, outside.index), ([2, 3, 0], 1, 3));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfBounds {
    /// Number of accesses out of bounds.
    pub count: u64,
    /// Index of the first access out of bounds, as the kernel computed it.
    pub index: u64,
}

impl std::fmt::Display for OutOfBounds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} accesses outside of an array or a view, the first at index {}", self.count, self.index)
    }
}

impl std::error::Error for OutOfBounds {}

thread_local! {
    /// Number of bytes of the private heap that the item on this thread can still allocate.
    static LEFT: Cell<u64> = const { Cell::new(0) };
}

/// Starts an item on this thread, with a private heap of this size in bytes.
#[inline(always)]
pub(crate) fn begin(private_heap_bytes: u64) {
    LEFT.set(private_heap_bytes);
}

/// Allocates bytes from the item's private heap; returns false if too few are left.
pub(crate) fn take_bytes(bytes: u64) -> bool {
    let left = bytes.checked_next_multiple_of(8).and_then(|bytes| LEFT.get().checked_sub(bytes));
    match left {
        Some(left) => LEFT.set(left),
        None => note(bytes as usize),
    }
    left.is_some()
}

/// Counts an access out of bounds on this thread.
#[cold]
pub(crate) fn note(index: usize) {
    let index = index as u64;
    let next = match OUTSIDE.get() {
        Some(before) => OutOfBounds { count: before.count + 1, ..before },
        None => OutOfBounds { count: 1, index },
    };
    OUTSIDE.set(Some(next));
}

/// Counts a read out of bounds, and returns its value, zero.
#[cold]
pub(crate) fn read<T: KernelType>(index: usize) -> T {
    note(index);
    T::ZERO
}

/// Returns the out-of-bounds accesses on this thread since the last call, and resets the count.
pub(crate) fn take() -> Option<OutOfBounds> {
    OUTSIDE.take()
}
