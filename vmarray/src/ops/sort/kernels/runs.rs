//! Kernels that list the runs of equal elements: the first position of each run, or one element of it.

use backend_api::kernel::Type;
use vmarray_kernel::{Anywhere, At, ElementMemory, Group, KernelInteger, Shared, kernel};

use super::keys::by_key;
use super::look_back::{BLOCK, EACH, SUMS_ONLY, TILE, WARPS, set_result, sum_before, take_tile};
use crate::ops::executor::LibraryKernel;

/// Number of groups that a multiprocessor should hold at once.
const RESIDENT: u32 = 4;

/// Returns the kernel that lists the first position of each run, and then the end of the last run.
pub(super) fn starts_of(key: Type, waits: bool) -> LibraryKernel {
    let kernel = match waits {
        true => by_key!(key, K => list_runs<K, u64, true, true>),
        false => by_key!(key, K => list_runs<K, u64, false, true>),
    };
    kernel.with_resident_groups(RESIDENT)
}

/// Returns the kernel that lists one element of each run.
pub(super) fn distinct_of(key: Type, waits: bool) -> LibraryKernel {
    let kernel = match waits {
        true => by_key!(key, K => list_runs<K, K, true, false>),
        false => by_key!(key, K => list_runs<K, K, false, false>),
    };
    kernel.with_resident_groups(RESIDENT)
}

/// Kernel: lists the runs that begin in a tile, by their first positions or by one element of each.
#[kernel(crate = vmarray_kernel, group = BLOCK)]
fn list_runs<
    K: KernelInteger + ElementMemory,
    L: KernelInteger + ElementMemory,
    const WAITS: bool,
    const IS_STARTS: bool,
>(
    at: At<1>,
    count: usize,
    room: usize,
    flags: u32,
    keys: &Anywhere<K>,
    list: &Shared<L>,
    states: &Shared<u64>,
    started: &Group<u32, 1>,
    warps: &Group<u32, WARPS>,
    looked: &Group<u64, 2>,
) {
    let (t, tile) = (at.in_group(), take_tile::<u64, WAITS>(at, states, started));
    let (base, here) = (tile * TILE, (count - tile * TILE).min(TILE) as u32);
    let (lane, own) = (t as u32 % 32, t / 32 * 32 * EACH + t % 32);
    let mut read = [K::ZERO; EACH];
    if here == TILE as u32 {
        for i in 0..EACH {
            read[i] = keys[base + own + 32 * i];
        }
    } else {
        // Pad an incomplete tile with copies of the last element, which begin no run.
        for i in 0..EACH {
            read[i] = keys[base + (own + 32 * i).min(here as usize - 1)];
        }
    }
    let mut begins = [0_u32; EACH];
    let mut of_warp = 0;
    if WAITS {
        let mut last = !read[0];
        if lane == 0 && base + own > 0 {
            last = keys[(base + own).min(count) - 1];
        }
        begins = begins_of(read, last, lane);
        for i in 0..EACH {
            of_warp += begins[i].count_ones();
        }
    } else {
        // Devices that run two launches read the preceding elements again, because their shuffles are slow.
        let differ = differing(base + own, count, read, keys);
        of_warp = lanes::sum(differ.count_ones());
        if flags & SUMS_ONLY == 0 {
            for i in 0..EACH {
                begins[i] = lanes::ballot(differ >> i as u32 & 1 > 0);
            }
        }
    }
    if lane == 0 {
        warps.set(t / 32, of_warp);
    }
    barrier();
    let runs = if t == 0 { sum_up_to(WARPS, warps) as u64 } else { 0 };
    let before = sum_before::<WAITS>(at, flags, tile, runs, (false, false), states, looked);
    if t == 0 && base + TILE >= count {
        let all = before + runs;
        set_result(states, all);
        if IS_STARTS && flags & SUMS_ONLY == 0 && all < room as u64 {
            list.set(all as usize, count as L);
        }
    }
    if flags & SUMS_ONLY == 0 {
        write_runs::<K, L, IS_STARTS>(at, base + own, room, before, begins, read, list, warps);
    }
}

/// Kernel function: for each of a work-item's elements, returns the lanes at whose elements a run begins. The
/// first lane's first element follows `last`.
#[kernel(crate = vmarray_kernel)]
fn begins_of<K: KernelInteger>(read: [K; EACH], last: K, lane: u32) -> [u32; EACH] {
    let mut begins = [0_u32; EACH];
    let mut last = last;
    for i in 0..EACH {
        // The first lane receives the last lane's element, which precedes the first lane's next element.
        let below = lanes::shuffle(read[i], lane + 31);
        begins[i] = lanes::ballot(read[i] != if lane == 0 { last } else { below });
        last = below;
    }
    begins
}

/// Kernel function: returns a bit for each of a work-item's elements that differs from the preceding element.
#[kernel(crate = vmarray_kernel)]
fn differing<K: KernelInteger + ElementMemory>(
    own: usize,
    count: usize,
    read: [K; EACH],
    keys: &Anywhere<K>,
) -> u32 {
    let mut last = !read[0];
    if own > 0 {
        last = keys[own.min(count) - 1];
    }
    let mut differ = (read[0] != last) as u32;
    for i in 1..EACH {
        let before = keys[(own + 32 * i).min(count) - 1];
        differ |= ((read[i] != before) as u32) << i as u32;
    }
    differ
}

/// Kernel function: returns the number of runs that begin in the first warps.
#[kernel(crate = vmarray_kernel)]
fn sum_up_to(warp: usize, warps: &Group<u32, WARPS>) -> u32 {
    let mut sum = 0;
    for other in 0..warp {
        sum += warps[other];
    }
    sum
}

/// Kernel function: writes the runs that begin at a work-item's elements, of which `own` is the first one.
/// `before` is the number of runs before the tile.
#[kernel(crate = vmarray_kernel)]
fn write_runs<K: KernelInteger + ElementMemory, L: KernelInteger + ElementMemory, const IS_STARTS: bool>(
    at: At<1>,
    own: usize,
    room: usize,
    before: u64,
    begins: [u32; EACH],
    read: [K; EACH],
    list: &Shared<L>,
    warps: &Group<u32, WARPS>,
) {
    let (warp, lane) = (at.in_group() as u32 / 32, at.in_group() as u32 % 32);
    let mut from = sum_up_to(warp as usize, warps);
    let lower = (1 << lane) - 1_u32;
    for i in 0..EACH {
        if begins[i] >> lane & 1 > 0 {
            let to = before + (from + (begins[i] & lower).count_ones()) as u64;
            if to < room as u64 {
                list.set(to as usize, if IS_STARTS { (own + 32 * i) as L } else { read[i] as L });
            }
        }
        from += begins[i].count_ones();
    }
}
