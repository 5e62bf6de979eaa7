//! Operations of a whole group of items (a thread block of GPU threads): sums, prefix sums, and ranks of
//! equal digits. The operations are kernel functions. All items of the group call them together, like
//! `barrier()`.
//!
//! The group's length must be a multiple of 32 items. `parts` is group (shared) memory for the call, with one
//! element for every 32 items; a kernel can use this memory again after the call. Items beyond the end of the
//! result array also contribute their values. The results of [`sum`], [`min`], [`max`] and [`broadcast`] are
//! uniform (equal for all items), so loops and branches that depend on them may contain barriers.
//!
//! ```
//! use vmarray_kernel::{At, Group, Own, group, kernel, run_on_host};
//!
//! #[kernel(crate = vmarray_kernel, group = 64)]
//! fn sums(at: At<1>, parts: &Group<u32, 2>, x: &mut Own<u32>) {
//!     let all = group::sum(at, parts, x.get());
//!     let up_to_this = group::scan_sum(at, parts, x.get());
//!     x.set(100 * all + up_to_this);
//! }
//! let mut x = [1; 64];
//! run_on_host::<sums>(0..64, ((), (), &mut x))?;
//! assert_eq!((x[0], x[40], x[63]), (6401, 6441, 6464));
//! # Ok::<_, vmarray_kernel::OutOfBounds>(())
//! ```

use crate::{At, Group, KernelNumber};
use vmarray_macros::kernel;

macro_rules! reductions {
    ($($name:ident, $both:ident, $what:literal;)*) => { $(
        #[doc = concat!("Returns ", $what, " of the values of all items of the group.")]
        #[kernel(crate = crate)]
        pub fn $name<T: KernelNumber, const W: usize>(at: At<1>, parts: &Group<T, W>, x: T) -> T {
            let own = lanes::$name(x);
            if at.in_group() % 32 == 0 {
                parts.set(at.in_group() / 32, own);
            }
            barrier();
            let mut all = parts[0];
            for warp in 1..parts.len() {
                all = $both(all, parts[warp]);
            }
            barrier();
            all
        }
    )* };
}
reductions! {
    sum, sum_of, "the sum";
    min, min_of, "the smallest";
    max, max_of, "the largest";
}

#[kernel(crate = crate)]
fn sum_of<T: KernelNumber>(a: T, b: T) -> T {
    a + b
}

#[kernel(crate = crate)]
fn min_of<T: KernelNumber>(a: T, b: T) -> T {
    a.min(b)
}

#[kernel(crate = crate)]
fn max_of<T: KernelNumber>(a: T, b: T) -> T {
    a.max(b)
}

/// Returns the value of `x` of the item `from` of the group. `parts` needs only one element.
///
/// ```
/// use vmarray_kernel::{At, Group, Own, group, kernel, run_on_host};
///
/// #[kernel(crate = vmarray_kernel, group = 32)]
/// fn third(at: At<1>, parts: &Group<u32, 1>, x: &mut Own<u32>) {
///     x.set(group::broadcast(at, parts, x.get(), 2));
/// }
/// let mut x: Vec<u32> = (0..32).collect();
/// run_on_host::<third>(0..32, ((), (), &mut x))?;
/// assert_eq!(x, [2; 32]);
/// # Ok::<_, vmarray_kernel::OutOfBounds>(())
/// ```
#[kernel(crate = crate)]
pub fn broadcast<T: KernelNumber, const W: usize>(at: At<1>, parts: &Group<T, W>, x: T, from: usize) -> T {
    if at.in_group() == from {
        parts.set(0, x);
    }
    barrier();
    let value = parts[0];
    barrier();
    value
}

/// Returns the sum of `x` over the group's threads up to and including this one; `parts` is scratch memory.
#[kernel(crate = crate)]
pub fn scan_sum<T: KernelNumber, const W: usize>(at: At<1>, parts: &Group<T, W>, x: T) -> T {
    let sum = scan_sum_once(at, parts, x);
    barrier();
    sum
}

/// Returns the same sum as [`scan_sum`], with one barrier less: the kernel may write to `parts` only after
/// another barrier.
///
/// ```
/// use vmarray_kernel::{At, Group, Own, group, kernel, run_on_host};
///
/// #[kernel(crate = vmarray_kernel, group = 64)]
/// fn sums(at: At<1>, parts: &Group<u32, 2>, x: &mut Own<u32>) {
///     x.set(group::scan_sum_once(at, parts, x.get()));
/// }
/// let mut x = [2; 64];
/// run_on_host::<sums>(0..64, ((), (), &mut x))?;
/// assert_eq!((x[0], x[40], x[63]), (2, 82, 128));
/// # Ok::<_, vmarray_kernel::OutOfBounds>(())
/// ```
#[kernel(crate = crate)]
pub fn scan_sum_once<T: KernelNumber, const W: usize>(at: At<1>, parts: &Group<T, W>, x: T) -> T {
    let warp = at.in_group() as u32 / 32;
    let mut sum = lanes::scan_sum(x);
    if at.in_group() % 32 == 31 {
        parts.set(warp as usize, sum);
    }
    barrier();
    let mut before = T::ZERO;
    for other in 0..W {
        if (other as u32) < warp {
            before = before + parts[other];
        }
    }
    if warp > 0 {
        sum = before + sum;
    }
    sum
}

/// One step of a radix sort: returns the position to which this item (GPU thread) moves. `digit` is the
/// item's digit, of `bits` bits. Before the call, `next[first + digit]` is the first free position for this
/// digit. The items of a warp (32 items) with equal digits get consecutive positions in their order, and the
/// call advances `next`. Each warp has its own part of `next`, which begins at `first`.
///
/// ```
/// use vmarray_kernel::{At, Group, Own, group, kernel, run_on_host};
///
/// /// The places of numbers below 4 in the sorted order of 32 numbers.
/// #[kernel(crate = vmarray_kernel, group = 32)]
/// fn places(at: At<1>, next: &Group<u32, 4>, x: &mut Own<u32>) {
///     if at.in_group() < 4 {
///         next.set(at.in_group(), 8 * at.in_group() as u32); // there are 8 of each
///     }
///     barrier();
///     x.set(group::take_places(at, next, 0, x.get(), 2));
/// }
/// let mut x: Vec<u32> = (0..32).map(|i| i % 4).collect();
/// run_on_host::<places>(0..32, ((), (), &mut x))?;
/// assert_eq!(x[..6], [0, 8, 16, 24, 1, 9]);
/// # Ok::<_, vmarray_kernel::OutOfBounds>(())
/// ```
#[kernel(crate = crate)]
pub fn take_places<const N: usize>(
    at: At<1>,
    next: &Group<u32, N>,
    first: usize,
    digit: u32,
    bits: u32,
) -> u32 {
    let alike = lanes::alike(digit, bits);
    let before = (alike & ((1 << (at.in_group() as u32 % 32)) - 1)).count_ones();
    let place = lanes::sync(next[first + digit as usize]);
    if before == 0 {
        next.set(first + digit as usize, place + alike.count_ones());
    }
    lanes::sync(place + before)
}
