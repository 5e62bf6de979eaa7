//! Kernels that merge two sorted runs, and a kernel that gathers elements striped (page by page) over
//! channels (shares of devices).
//!
//! Each work-group writes a tile of the result. A first kernel finds by bisection the elements of both runs
//! that belong to each tile (O. Green, R. McColl, D. Bader, "GPU Merge Path: A GPU Merging Algorithm", 2012).
//! Of equal keys, the keys of the first run come first. The runs may be in the memory of other devices.

use backend_api::kernel::Type;
use vmarray_kernel::{Anywhere, At, ElementMemory, Group, KernelInteger, Own, Shared, kernel};

use super::super::merge::{MERGE_TILE, MERGING_BLOCK, StripedRange};
use super::keys::{as_it_was, by_key, in_order};
use crate::ops::executor::LibraryKernel;

const BLOCK: usize = MERGING_BLOCK as usize;
const TILE: usize = MERGE_TILE as usize;
/// Number of elements that a work-item merges.
const EACH: usize = TILE / BLOCK;

/// Returns the kernel that finds the tiles' splits, for a type of keys.
pub(super) fn splits_of(key: Type) -> LibraryKernel {
    by_key!(key, K => find_splits<K>)
}

/// Returns the kernel that merges keys, and values if they have a type.
pub(super) fn of(key: Type, value: Option<Type>) -> LibraryKernel {
    match value {
        None => by_key!(key, K => merge_keys<K>),
        Some(Type::U32) => by_key!(key, K => merge_pairs<K, u32>),
        Some(_) => by_key!(key, K => merge_pairs<K, u64>),
    }
}

/// Returns the kernel that gathers striped elements of a type.
pub(super) fn gather_of(of: Type) -> LibraryKernel {
    by_key!(of, K => gather_share<K>)
}

/// Kernel function: returns the position, among all elements, of a channel's element.
#[kernel(crate = vmarray_kernel)]
fn position_of(own: u64, share: StripedRange) -> u64 {
    let (page, within) = (own / share.page_len, own % share.page_len);
    (page * share.channels + share.channel) * share.page_len + within - share.base
}

/// Kernel function: returns the first element and the end of a tile, which is a part of a page.
#[kernel(crate = vmarray_kernel)]
fn tile_of(tile: u64, share: StripedRange) -> (u64, u64) {
    let of_page = (share.page_len + TILE as u64 - 1) / TILE as u64;
    let (page, within) = (share.first / share.page_len, share.first % share.page_len);
    let number = tile + page * of_page + within / TILE as u64;
    let (start, begin) = (number / of_page * share.page_len, number % of_page * TILE as u64);
    let end = start + (begin + TILE as u64).min(share.page_len);
    ((start + begin).max(share.first), end.min(share.first + share.count))
}

/// Kernel: finds for each tile the number of elements of the first run before the tile and before its end.
#[kernel(crate = vmarray_kernel)]
fn find_splits<K: KernelInteger + ElementMemory>(
    at: At<1>,
    share: StripedRange,
    lengths: (u64, u64),
    order: (K, K),
    first: &Anywhere<K>,
    second: &Anywhere<K>,
    splits: &mut Own<[u64; 2]>,
) {
    let (start, end) = tile_of(at.index() as u64, share);
    let mut split = [0; 2];
    for side in 0..2 {
        let number = position_of(start, share) + side as u64 * (end - start);
        let mut low = if number > lengths.1 { number - lengths.1 } else { 0 };
        let mut high = number.min(lengths.0);
        while low < high {
            let middle = (low + high) / 2;
            let one = in_order(first[middle as usize], order);
            if one <= in_order(second[(number - middle - 1) as usize], order) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        split[side] = low;
    }
    splits.set(split);
}

/// Kernel function: returns the number of keys from the first run among the first `number` of the tile.
#[kernel(crate = vmarray_kernel)]
fn from_first<K: KernelInteger + ElementMemory>(
    number: u32,
    from_one: u32,
    count: u32,
    keys: &Group<K, TILE>,
) -> u32 {
    let from_two = count - from_one;
    let mut low = if number > from_two { number - from_two } else { 0 };
    let mut high = number.min(from_one);
    while low < high {
        let middle = (low + high) / 2;
        let other = from_one + (number - middle - 1);
        if keys[middle as usize] <= keys[other as usize] {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

/// Kernel function: merges the keys of a tile. Returns the number of its keys from the first run and, from
/// bit 32 on, of all its keys; and their starts in both runs and in the target. If `N` is the length of a
/// tile, `origins` receives for each key its number in the tile before the merge. The keys of the first run
/// have the first numbers.
#[kernel(crate = vmarray_kernel)]
fn merge_tile<K: KernelInteger + ElementMemory, const N: usize>(
    at: At<1>,
    share: StripedRange,
    order: (K, K),
    first: &Anywhere<K>,
    second: &Anywhere<K>,
    splits: &Anywhere<[u64; 2]>,
    to: &Shared<K>,
    keys: &Group<K, TILE>,
    origins: &Group<u16, N>,
) -> (u64, usize, usize, usize) {
    let t = at.in_group();
    let (start, end) = tile_of(at.group() as u64, share);
    let split = splits[at.group()];
    let one_start = split[0] as usize;
    let two_start = (position_of(start, share) - split[0]) as usize;
    let (from_one, count) = ((split[1] - split[0]) as u32, (end - start) as u32);
    let mut merged = [K::ZERO; EACH];
    for i in 0..EACH {
        let j = (t + i * BLOCK) as u32;
        if j < from_one {
            merged[i] = first[one_start + j as usize];
        } else if j < count {
            merged[i] = second[two_start + (j - from_one) as usize];
        }
    }
    for i in 0..EACH {
        keys.set(t + i * BLOCK, in_order(merged[i], order));
    }
    barrier();
    let number = (t as u32 * EACH as u32).min(count);
    let low = from_first(number, from_one, count, keys);
    let (mut one, mut two) = (low, from_one + number - low);
    let mut key_of_one = keys[one.min(TILE as u32 - 1) as usize];
    let mut key_of_two = keys[two.min(TILE as u32 - 1) as usize];
    let mut taken = [0_u32; EACH];
    for i in 0..EACH {
        let is_two = one >= from_one || two < count && key_of_two < key_of_one;
        taken[i] = if is_two { two } else { one };
        merged[i] = if is_two { key_of_two } else { key_of_one };
        let next = taken[i] + 1;
        let key = keys[next.min(TILE as u32 - 1) as usize];
        one = if is_two { one } else { next };
        two = if is_two { next } else { two };
        key_of_one = if is_two { key_of_one } else { key };
        key_of_two = if is_two { key } else { key_of_two };
    }
    barrier();
    for i in 0..EACH {
        if number + (i as u32) < count {
            keys.set(number as usize + i, merged[i]);
            if N == TILE {
                origins.set(number as usize + i, taken[i] as u16);
            }
        }
    }
    barrier();
    let place = (start - share.first) as usize;
    for i in 0..EACH {
        let j = t + i * BLOCK;
        if (j as u32) < count {
            to.set(place + j, as_it_was(keys[j], order));
        }
    }
    (from_one as u64 + ((count as u64) << 32), one_start, two_start, place)
}

#[kernel(crate = vmarray_kernel, group = BLOCK)]
fn merge_keys<K: KernelInteger + ElementMemory>(
    at: At<1>,
    share: StripedRange,
    _lengths: (u64, u64),
    order: (K, K),
    first: &Anywhere<K>,
    second: &Anywhere<K>,
    splits: &Anywhere<[u64; 2]>,
    to: &Shared<K>,
    keys: &Group<K, TILE>,
    origins: &Group<u16, 1>,
) {
    merge_tile(at, share, order, first, second, splits, to, keys, origins);
}

#[kernel(crate = vmarray_kernel, group = BLOCK)]
fn merge_pairs<K: KernelInteger + ElementMemory, V: KernelInteger + ElementMemory>(
    at: At<1>,
    share: StripedRange,
    _lengths: (u64, u64),
    order: (K, K),
    first: &Anywhere<K>,
    second: &Anywhere<K>,
    splits: &Anywhere<[u64; 2]>,
    to: &Shared<K>,
    values: &Anywhere<V>,
    other_values: &Anywhere<V>,
    values_to: &Shared<V>,
    keys: &Group<K, TILE>,
    origins: &Group<u16, TILE>,
) {
    let (counts, one_start, two_start, place) =
        merge_tile(at, share, order, first, second, splits, to, keys, origins);
    let (from_one, count, t) = (counts as u32, (counts >> 32) as u32, at.in_group());
    for i in 0..EACH {
        let j = t + i * BLOCK;
        if (j as u32) < count {
            let origin = origins[j] as u32;
            if origin < from_one {
                values_to.set(place + j, values[one_start + origin as usize]);
            } else {
                values_to.set(place + j, other_values[two_start + (origin - from_one) as usize]);
            }
        }
    }
}

/// Kernel: copies each element of a channel to its position among all elements.
#[kernel(crate = vmarray_kernel)]
fn gather_share<K: KernelInteger + ElementMemory>(
    at: At<1>,
    share: StripedRange,
    from: &Anywhere<K>,
    to: &Shared<K>,
) {
    let own = at.index();
    to.set(position_of(share.first + own as u64, share) as usize, from[own]);
}
