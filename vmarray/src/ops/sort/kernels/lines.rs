//! Kernels over lines of elements along an axis: extremes, and cumulative sums and products.
//!
//! The elements are a box of three axes: before the axis, along it, and after it.

use backend_api::kernel::Type;
use vmarray_kernel::{
    Anywhere, At, ElementMemory, Group, KernelInteger, KernelNumber, KernelType, Shared, kernel,
};

use super::keys::{by_key, in_order};
use crate::ops::executor::LibraryKernel;

/// Number of work-items in a group.
const BLOCK: usize = 256;
/// Number of elements that a work-item reads at once.
const EACH: usize = 8;
/// Length in elements of the side of a square that a warp exchanges in group memory, and of its rows there:
/// one place is unused, so that work-items that access a column do not access the same memory bank.
const SIDE: usize = 32;
const SIDE_PLACES: usize = 33;
/// Number of warps in a group that accumulates along rows, and of its work-items.
const ROW_WARPS: usize = 4;
pub(crate) const ROW_BLOCK: usize = 32 * ROW_WARPS;

/// The elements before the axis, along it, and after it, and the parts into which a line is divided.
#[derive(Clone, Copy, KernelType)]
#[kernel_type(crate = vmarray_kernel)]
struct LineBox {
    before: usize,
    along: usize,
    after: usize,
    parts: usize,
    each: usize,
}

/// Returns the kernel that finds the first greatest element of each part of a line, by work-items, or by
/// warps for lines along the last axis. Its views are the elements, and an index in its line for each part.
/// Its values are the fields of a [`LineBox`], and the seven words of a rank.
pub(super) fn firsts_of(key: Type, by_warps: bool) -> LibraryKernel {
    match by_warps {
        true => by_key!(key, K => warp_firsts<K>),
        false => by_key!(key, K => firsts<K>),
    }
}

/// Returns the kernel that finds the greatest element of each line, from the indices for its parts. Its views
/// are the elements, the indices, and the results: indices, or elements. Its values are those of the first
/// kernel.
pub(super) fn whole_of(key: Type, is_index: bool) -> LibraryKernel {
    match is_index {
        true => by_key!(key, K => whole_lines<K, u64, true>),
        false => by_key!(key, K => whole_lines<K, K, false>),
    }
}

/// Returns the kernel of cumulative sums or products in the order of the elements: for lines along the last
/// axis, or for others. Its views are the elements and the results. Its values are the fields of a
/// [`LineBox`].
pub(super) fn accumulation_of(number: Type, is_product: bool, is_last: bool) -> LibraryKernel {
    match (is_product, is_last) {
        (true, true) => accumulations::<true, true>(number),
        (true, false) => accumulations::<true, false>(number),
        (false, true) => accumulations::<false, true>(number),
        (false, false) => accumulations::<false, false>(number),
    }
}

fn accumulations<const IS_PRODUCT: bool, const IS_LAST: bool>(number: Type) -> LibraryKernel {
    match number {
        Type::U8 | Type::I8 => accumulation::<u8, IS_PRODUCT, IS_LAST>(),
        Type::U16 | Type::I16 => accumulation::<u16, IS_PRODUCT, IS_LAST>(),
        Type::U32 | Type::I32 => accumulation::<u32, IS_PRODUCT, IS_LAST>(),
        Type::F32 => accumulation::<f32, IS_PRODUCT, IS_LAST>(),
        Type::F64 => accumulation::<f64, IS_PRODUCT, IS_LAST>(),
        _ => accumulation::<u64, IS_PRODUCT, IS_LAST>(),
    }
}

fn accumulation<T: KernelNumber + ElementMemory, const IS_PRODUCT: bool, const IS_LAST: bool>()
-> LibraryKernel {
    if IS_LAST {
        LibraryKernel::of::<accumulated_rows<T, IS_PRODUCT>>()
    } else {
        LibraryKernel::of::<accumulated<T, IS_PRODUCT>>()
    }
}

/// Kernel function: returns an unsigned number with the order of the elements. The words of `rank` are the
/// two of the order; the least rank of a number and the difference to the greatest one; the rank of a NaN;
/// the rank of one zero, and the number to add to it.
#[kernel(crate = vmarray_kernel)]
fn ranked<K: KernelInteger>(bits: K, rank: [K; 7]) -> K {
    let key = in_order(bits, (rank[0], rank[1]));
    let number = if key == rank[5] { key + rank[6] } else { key };
    if key - rank[2] > rank[3] { rank[4] } else { number }
}

/// Kernel: finds the first greatest element of each part of a line.
#[kernel(crate = vmarray_kernel, group = BLOCK)]
fn firsts<K: KernelInteger + ElementMemory>(
    at: At<1>,
    of: LineBox,
    rank: [K; 7],
    x: &Anywhere<K>,
    found: &Shared<u64>,
) {
    let number = at.index();
    if number < of.before * of.parts * of.after {
        let (i, line) = (number % of.after, number / of.after);
        let from = line % of.parts * of.each;
        let count = (of.along - from).min(of.each);
        let mut place = (line / of.parts * of.along + from) * of.after + i;
        let mut best = K::ZERO;
        let mut at_best = 0_u32;
        let mut k = 0;
        while k + EACH <= count {
            let mut read = [K::ZERO; EACH];
            for j in 0..EACH {
                read[j] = x[place + j * of.after];
            }
            for j in 0..EACH {
                let key = ranked(read[j], rank);
                at_best = if key > best { (k + j) as u32 } else { at_best };
                best = if key > best { key } else { best };
            }
            place += EACH * of.after;
            k += EACH;
        }
        while k < count {
            let key = ranked(x[place], rank);
            at_best = if key > best { k as u32 } else { at_best };
            best = if key > best { key } else { best };
            place += of.after;
            k += 1;
        }
        found.set(number, (from + at_best as usize) as u64);
    }
}

/// Kernel: finds the first greatest element of each part of a line along the last axis. A warp reads a part.
#[kernel(crate = vmarray_kernel, group = BLOCK)]
fn warp_firsts<K: KernelInteger + ElementMemory>(
    at: At<1>,
    of: LineBox,
    rank: [K; 7],
    x: &Anywhere<K>,
    found: &Shared<u64>,
) {
    let (lane, number) = (at.in_group() % 32, at.index() / 32);
    let line = number.min(of.before * of.parts - 1);
    let from = line % of.parts * of.each;
    let count = (of.along - from).min(of.each);
    let base = line / of.parts * of.along + from;
    let mut best = K::ZERO;
    let mut at_best = if lane < count { lane as u32 } else { u32::MAX };
    let mut k = lane;
    while k + 32 * (EACH - 1) < count {
        let mut read = [K::ZERO; EACH];
        for j in 0..EACH {
            read[j] = x[base + k + 32 * j];
        }
        for j in 0..EACH {
            let key = ranked(read[j], rank);
            at_best = if key > best { (k + 32 * j) as u32 } else { at_best };
            best = if key > best { key } else { best };
        }
        k += 32 * EACH;
    }
    while k < count {
        let key = ranked(x[base + k], rank);
        at_best = if key > best { k as u32 } else { at_best };
        best = if key > best { key } else { best };
        k += 32;
    }
    for step in 0..5 {
        let other = lanes::shuffle(best, lane as u32 ^ 1 << step);
        let at_other = lanes::shuffle(at_best, lane as u32 ^ 1 << step);
        let is_other = other > best || other == best && at_other < at_best;
        best = if is_other { other } else { best };
        at_best = if is_other { at_other } else { at_best };
    }
    if lane == 0 && number < of.before * of.parts {
        found.set(number, (from + at_best as usize) as u64);
    }
}

/// Kernel: finds the first greatest element of each line among those found for its parts.
#[kernel(crate = vmarray_kernel, group = BLOCK)]
fn whole_lines<K: KernelInteger + ElementMemory, R: KernelInteger + ElementMemory, const IS_INDEX: bool>(
    at: At<1>,
    of: LineBox,
    rank: [K; 7],
    x: &Anywhere<K>,
    found: &Anywhere<u64>,
    out: &Shared<R>,
) {
    let number = at.index();
    if number < of.before * of.after {
        let (i, line) = (number % of.after, number / of.after);
        let mut bits = K::ZERO;
        let mut best = K::ZERO;
        let mut at_best = 0;
        for part in 0..of.parts {
            let own = found[(line * of.parts + part) * of.after + i];
            let read = x[(line * of.along + own as usize) * of.after + i];
            let key = ranked(read, rank);
            if part == 0 || key > best {
                best = key;
                bits = read;
                at_best = own;
            }
        }
        out.set(number, if IS_INDEX { at_best as R } else { bits as R });
    }
}

/// Kernel function: returns the next cumulative sum or product.
#[kernel(crate = vmarray_kernel)]
fn next<T: KernelNumber, const IS_PRODUCT: bool>(all: T, x: T) -> T {
    if IS_PRODUCT { all * x } else { all + x }
}

/// Kernel: accumulates each line, in the order of its elements.
#[kernel(crate = vmarray_kernel, group = BLOCK)]
fn accumulated<T: KernelNumber + ElementMemory, const IS_PRODUCT: bool>(
    at: At<1>,
    of: LineBox,
    x: &Anywhere<T>,
    out: &Shared<T>,
) {
    let number = at.index();
    if number < of.before * of.after {
        let (i, line) = (number % of.after, number / of.after);
        let mut place = line * of.along * of.after + i;
        let mut all = x[place];
        out.set(place, all);
        place += of.after;
        let mut k = 1;
        while k + EACH <= of.along {
            let mut read = [T::ZERO; EACH];
            for j in 0..EACH {
                read[j] = x[place + j * of.after];
            }
            for j in 0..EACH {
                all = next::<T, IS_PRODUCT>(all, read[j]);
                out.set(place + j * of.after, all);
            }
            place += EACH * of.after;
            k += EACH;
        }
        while k < of.along {
            all = next::<T, IS_PRODUCT>(all, x[place]);
            out.set(place, all);
            place += of.after;
            k += 1;
        }
    }
}

/// Kernel: accumulates each line along the last axis, in the order of its elements. A warp exchanges squares
/// of elements of 32 lines, so that it reads and writes whole rows of them.
#[kernel(crate = vmarray_kernel, group = ROW_BLOCK)]
fn accumulated_rows<T: KernelNumber + ElementMemory, const IS_PRODUCT: bool>(
    at: At<1>,
    of: LineBox,
    x: &Anywhere<T>,
    squares: &Group<T, { ROW_WARPS * SIDE * SIDE_PLACES }>,
    out: &Shared<T>,
) {
    let (t, lane) = (at.in_group(), at.in_group() % SIDE);
    let (first, here) = (at.index() / SIDE * SIDE, t / SIDE * SIDE * SIDE_PLACES);
    let last = of.before - 1;
    let mut all = T::ZERO;
    let mut k = 0;
    while k < of.along {
        let column = (k + lane).min(of.along - 1);
        for step in 0..SIDE / EACH {
            let mut read = [T::ZERO; EACH];
            for j in 0..EACH {
                read[j] = x[(first + step * EACH + j).min(last) * of.along + column];
            }
            for j in 0..EACH {
                squares.set(here + (step * EACH + j) * SIDE_PLACES + lane, read[j]);
            }
        }
        barrier();
        for j in 0..SIDE {
            let value = squares[here + lane * SIDE_PLACES + j];
            all = if k + j == 0 { value } else { next::<T, IS_PRODUCT>(all, value) };
            squares.set(here + lane * SIDE_PLACES + j, all);
        }
        barrier();
        if k + lane < of.along {
            for j in 0..SIDE {
                if first + j <= last {
                    out.set((first + j) * of.along + k + lane, squares[here + j * SIDE_PLACES + lane]);
                }
            }
        }
        barrier();
        k += SIDE;
    }
}
