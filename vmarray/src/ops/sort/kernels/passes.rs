//! Kernels of one pass of an LSD radix sort: they move keys, with their values, to positions in the order of
//! one digit.
//!
//! Each work-group sorts a tile of keys in its shared memory, and then writes the keys of each digit to
//! consecutive positions. The first position follows from the number of equal digits in earlier tiles. There
//! are two ways to get this number:
//!
//! - On devices with forward progress (a started work-group runs on while others wait for it), a work-group
//!   publishes its own counts, and reads the counts of earlier work-groups (A. Adinets, D. Merrill,
//!   "Onesweep: A Faster Least Significant Digit Radix Sort for GPUs", 2022).
//! - On other devices two more kernels first count the digits of all earlier tiles.
//!
//! The state memory begins with a header, whose first word counts the work-groups that have started. Then
//! follow 256 words for each tile.

use backend_api::kernel::Type;
use vmarray_kernel::{Anywhere, At, ElementMemory, Group, KernelInteger, Shared, group, kernel};

use super::keys::{as_it_was, by_key, in_order};
use super::look_back::take_tile;
use crate::ops::executor::LibraryKernel;

/// Number of work-items in a group.
pub(super) const BLOCK: usize = 384;
const DIGITS: usize = 256;
/// Number of words in the header, before the states of tiles.
const HEADER: usize = 16;
const WARPS: usize = BLOCK / 32;
/// Number of counts in a group: one for each warp and each value of a digit.
const COUNTS: usize = WARPS * DIGITS;
/// Number of keys that a work-item moves, and number of keys in a tile. It depends on the longer of key and
/// value, because a tile has at most 33 KiB of group memory. Tests have short tiles, because devices without
/// compilers interpret the kernels.
const SHORT: (usize, usize) = tile_of(if cfg!(test) { 4 } else { 22 });
const PAIR: (usize, usize) = tile_of(if cfg!(test) { 3 } else { 16 });
const LONG: (usize, usize) = tile_of(if cfg!(test) { 2 } else { 11 });

const fn tile_of(each: usize) -> (usize, usize) {
    (each, each * BLOCK)
}

/// Number of groups that a multiprocessor should hold at once.
const RESIDENT: u32 = 3;

/// Parts of a tile's state word: a flag for the count of one tile, a flag for the count of all tiles up to
/// it, and the count.
const OF_TILE: u32 = 1 << 30;
const OF_ALL: u32 = 2 << 30;
const NUMBER: u32 = OF_TILE - 1;

/// Number of earlier tiles whose states a work-item reads at once.
const AHEAD: usize = 4;

pub(super) fn tile(key: Type, value: Option<Type>) -> usize {
    match (key, value) {
        (Type::U64, _) | (_, Some(Type::U64)) => LONG.1,
        (_, Some(_)) => PAIR.1,
        (_, None) => SHORT.1,
    }
}

/// Returns the kernel that moves keys, and values if they have a type. `waits` requires forward progress.
pub(super) fn of(key: Type, value: Option<Type>, waits: bool) -> LibraryKernel {
    let kernel = if waits { moving::<true>(key, value) } else { moving::<false>(key, value) };
    kernel.with_resident_groups(RESIDENT)
}

fn moving<const WAITS: bool>(key: Type, value: Option<Type>) -> LibraryKernel {
    match (key, value) {
        (Type::U8, None) => LibraryKernel::of::<move_keys<u8, WAITS, { SHORT.0 }, { SHORT.1 }>>(),
        (Type::U16, None) => LibraryKernel::of::<move_keys<u16, WAITS, { SHORT.0 }, { SHORT.1 }>>(),
        (Type::U32, None) => LibraryKernel::of::<move_keys<u32, WAITS, { SHORT.0 }, { SHORT.1 }>>(),
        (_, None) => LibraryKernel::of::<move_keys<u64, WAITS, { LONG.0 }, { LONG.1 }>>(),
        (Type::U8, Some(Type::U32)) => pairs::<u8, u32, u32, WAITS, { PAIR.0 }, { PAIR.1 }>(),
        (Type::U16, Some(Type::U32)) => pairs::<u16, u32, u32, WAITS, { PAIR.0 }, { PAIR.1 }>(),
        (Type::U32, Some(Type::U32)) => pairs::<u32, u32, u32, WAITS, { PAIR.0 }, { PAIR.1 }>(),
        (_, Some(Type::U32)) => pairs::<u64, u32, u64, WAITS, { LONG.0 }, { LONG.1 }>(),
        (key, Some(_)) => {
            by_key!(key, K => move_pairs<K, u64, u64, WAITS, { LONG.0 }, { LONG.1 }>)
        }
    }
}

fn pairs<K, V, W, const WAITS: bool, const E: usize, const N: usize>() -> LibraryKernel
where
    K: KernelInteger + ElementMemory,
    V: KernelInteger + ElementMemory,
    W: KernelInteger + ElementMemory,
{
    LibraryKernel::of::<move_pairs<K, V, W, WAITS, E, N>>()
}

/// Returns the two kernels that run first if groups do not wait. The first counts the digits of each tile, by
/// one group for each tile. The second replaces each count by the sum over all earlier tiles, by one group
/// for each value of a digit.
pub(super) fn counts_of(key: Type, value: Option<Type>) -> [LibraryKernel; 2] {
    let counts = match tile(key, value) {
        tile if tile == SHORT.1 => by_key!(key, K => count_tile<K, { SHORT.1 }>),
        tile if tile == PAIR.1 => by_key!(key, K => count_tile<K, { PAIR.1 }>),
        _ => by_key!(key, K => count_tile<K, { LONG.1 }>),
    };
    [counts, LibraryKernel::of::<add_tiles>()]
}

#[kernel(crate = vmarray_kernel)]
fn digit_of<K: KernelInteger>(key: K, shift: u32) -> u32 {
    (key >> shift) as u32 % DIGITS as u32
}

#[kernel(crate = vmarray_kernel, group = BLOCK)]
fn count_tile<K: KernelInteger + ElementMemory, const N: usize>(
    at: At<1>,
    count: usize,
    shift: u32,
    order: (K, K),
    keys: &Anywhere<K>,
    states: &Shared<u32>,
    here: &Group<u32, DIGITS>,
) {
    let t = at.in_group();
    for i in 0..N / BLOCK {
        let j = at.group() * N + i * BLOCK + t;
        if j < count {
            here.add(digit_of(in_order(keys[j], order), shift) as usize, 1);
        }
    }
    barrier();
    if t < DIGITS {
        states.set(HEADER + at.group() * DIGITS + t, here[t]);
    }
}

#[kernel(crate = vmarray_kernel, group = 256)]
fn add_tiles(at: At<1>, states: &Shared<u32>, parts: &Group<u32, 8>) {
    let tiles = (states.len() - HEADER) / DIGITS;
    let mut before = 0;
    let mut first = 0;
    while first < tiles {
        let tile = first + at.in_group();
        let state = HEADER + tile * DIGITS + at.group();
        let own = if tile < tiles { states[state] } else { 0 };
        let sum = group::scan_sum(at, parts, own);
        if tile < tiles {
            states.set(state, before + sum - own);
        }
        before += group::sum(at, parts, own);
        first += 256;
    }
}

/// Kernel: moves the keys of a tile, and then their values if there are any. `W` is the longer type of both.
#[kernel(crate = vmarray_kernel)]
fn move_tile<
    K: KernelInteger + ElementMemory,
    V: KernelInteger + ElementMemory,
    W: KernelInteger + ElementMemory,
    const WAITS: bool,
    const HAS_VALUES: bool,
    const E: usize,
    const N: usize,
>(
    at: At<1>,
    all: usize,
    shift: u32,
    order: (K, K),
    keys: &Anywhere<K>,
    to: &Shared<K>,
    starts: &Anywhere<u64>,
    ends: &Shared<u64>,
    states: &Shared<u32>,
    values: &Anywhere<V>,
    values_to: &Shared<V>,
    started: &Group<u32, 1>,
    next: &Group<u32, COUNTS>,
    parts: &Group<u32, WARPS>,
    sorted: &Group<W, N>,
    first: &Group<u64, DIGITS>,
) {
    let (t, tile) = (at.in_group(), take_tile::<u32, WAITS>(at, states, started));
    let range = (tile * N, (all - tile * N).min(N) as u32);
    let (base, count) = range;
    let (own, of_warp) = (t / 32 * 32 * E + t % 32, (t / 32 * DIGITS) as u32);
    let mut read = [K::ZERO; E];
    if count == N as u32 {
        for i in 0..E {
            read[i] = keys[base + own + 32 * i];
        }
    } else {
        // Pad an incomplete tile with the greatest key, which the sort moves behind all keys of the tile.
        for i in 0..E {
            read[i] = as_it_was(K::MAX, order);
            if (own + 32 * i) < count as usize {
                read[i] = keys[base + own + 32 * i];
            }
        }
    }
    for i in 0..E {
        read[i] = in_order(read[i], order);
        next.add((of_warp | digit_of(read[i], shift)) as usize, 1);
    }
    barrier();
    let (real, start) = count_digits::<WAITS, N>(at, tile, count, states, next, parts);
    // The counts of a warp begin at a multiple of 256, so `|` adds a digit. Two places share a word.
    let mut places = [0_u32; E];
    // The compiler cannot predict the result of a shuffle. So it computes the digits again, which takes fewer
    // registers than keeping them.
    let again = lanes::shuffle(shift, 0);
    for i in 0..E {
        let place = group::take_places(at, next, 0, of_warp | digit_of(read[i], again), 8);
        sorted.set(place as usize, read[i] as W);
        places[i / 2] |= place << (16 * (i as u32 % 2));
    }
    find_targets::<WAITS>(at, tile, (real, start), base + N >= all, starts, ends, states, first);
    barrier();
    write_tile::<K, V, W, HAS_VALUES, E, N>(
        at, range, shift, order, places, to, values, values_to, sorted, first,
    );
}

/// Kernel function: writes the sorted keys of a tile from group memory to their targets, and then the values.
/// The range is the tile's first key and its number of keys.
#[kernel(crate = vmarray_kernel)]
fn write_tile<
    K: KernelInteger + ElementMemory,
    V: KernelInteger + ElementMemory,
    W: KernelInteger + ElementMemory,
    const HAS_VALUES: bool,
    const E: usize,
    const N: usize,
>(
    at: At<1>,
    range: (usize, u32),
    shift: u32,
    order: (K, K),
    places: [u32; E],
    to: &Shared<K>,
    values: &Anywhere<V>,
    values_to: &Shared<V>,
    sorted: &Group<W, N>,
    first: &Group<u64, DIGITS>,
) {
    let t = at.in_group();
    let mut digits = [0_u32; E];
    if range.1 == N as u32 {
        for i in 0..E {
            let digit = write_key(t, i * BLOCK, shift, order, to, sorted, first);
            digits[i / 4] |= digit << (8 * (i as u32 % 4));
        }
    } else {
        for i in 0..E {
            if ((t + i * BLOCK) as u32) < range.1 {
                let digit = write_key(t, i * BLOCK, shift, order, to, sorted, first);
                digits[i / 4] |= digit << (8 * (i as u32 % 4));
            }
        }
    }
    if HAS_VALUES {
        move_values(at, range, places, digits, values, values_to, sorted, first);
    }
}

/// Kernel function: writes the key at position `t + by` of the sorted tile to its target, and returns its
/// digit.
#[kernel(crate = vmarray_kernel)]
fn write_key<K: KernelInteger + ElementMemory, W: KernelInteger + ElementMemory, const N: usize>(
    t: usize,
    by: usize,
    shift: u32,
    order: (K, K),
    to: &Shared<K>,
    sorted: &Group<W, N>,
    first: &Group<u64, DIGITS>,
) -> u32 {
    let key = sorted[t + by] as K;
    let digit = digit_of(key, shift);
    to.set(first[digit as usize] as usize + t + by, as_it_was(key, order));
    digit
}

/// Kernel function: publishes the number of keys with each digit, and stores in `next` the first position of
/// each warp's keys in the sorted tile. For the first work-items, one for each digit, returns the number of
/// keys with the digit and their first position.
#[kernel(crate = vmarray_kernel)]
fn count_digits<const WAITS: bool, const N: usize>(
    at: At<1>,
    tile: usize,
    count: u32,
    states: &Shared<u32>,
    next: &Group<u32, COUNTS>,
    parts: &Group<u32, WARPS>,
) -> (u32, u32) {
    let t = at.in_group();
    let mut of_tile = 0;
    if t < DIGITS {
        for warp in 0..WARPS {
            of_tile += next[warp * DIGITS + t];
        }
    }
    let real = if t == DIGITS - 1 { of_tile - (N as u32 - count) } else { of_tile };
    if WAITS {
        if t < DIGITS {
            // State and count are in one word, written atomically, so no release ordering is needed.
            let state = real | (if tile == 0 { OF_ALL } else { OF_TILE });
            states.exchange(HEADER + tile * DIGITS + t, state);
        }
    }
    let start = group::scan_sum_once(at, parts, of_tile) - of_tile;
    if t < DIGITS {
        let mut place = start;
        for warp in 0..WARPS {
            let of_digit = next[warp * DIGITS + t];
            next.set(warp * DIGITS + t, place);
            place += of_digit;
        }
    }
    barrier();
    (real, start)
}

/// Kernel function: stores in `first`, for each digit, the target position of its first key, less its
/// position in the tile.
#[kernel(crate = vmarray_kernel)]
fn find_targets<const WAITS: bool>(
    at: At<1>,
    tile: usize,
    counts: (u32, u32),
    is_last: bool,
    starts: &Anywhere<u64>,
    ends: &Shared<u64>,
    states: &Shared<u32>,
    first: &Group<u64, DIGITS>,
) {
    let t = at.in_group();
    if t < DIGITS {
        let before = tiles_before::<WAITS>(tile, HEADER + tile * DIGITS + t, counts.0, states);
        let place = starts[t] + before as u64;
        first.set(t, place - counts.1 as u64);
        if is_last {
            ends.set(t, place + counts.0 as u64);
        }
    }
}

/// Kernel function: moves the values of a tile, whose range is its first key and the number of keys. The
/// values replace the keys in group memory.
#[kernel(crate = vmarray_kernel)]
fn move_values<
    V: KernelInteger + ElementMemory,
    W: KernelInteger + ElementMemory,
    const E: usize,
    const N: usize,
>(
    at: At<1>,
    range: (usize, u32),
    places: [u32; E],
    digits: [u32; E],
    values: &Anywhere<V>,
    values_to: &Shared<V>,
    sorted: &Group<W, N>,
    first: &Group<u64, DIGITS>,
) {
    let t = at.in_group();
    let own = t / 32 * 32 * E + t % 32;
    let mut read = [V::ZERO; E];
    if range.1 == N as u32 {
        for i in 0..E {
            read[i] = values[range.0 + own + 32 * i];
        }
    } else {
        for i in 0..E {
            if (own + 32 * i) < range.1 as usize {
                read[i] = values[range.0 + own + 32 * i];
            }
        }
    }
    barrier();
    for i in 0..E {
        // The values of padding keys move to the end of the tile, as the padding keys did.
        let place = places[i / 2] >> (16 * (i as u32 % 2)) & 0xFFFF;
        sorted.set(place as usize, read[i] as W);
    }
    barrier();
    for i in 0..E {
        let digit = digits[i / 4] >> (8 * (i as u32 % 4)) & 0xFF;
        if range.1 == N as u32 || ((t + i * BLOCK) as u32) < range.1 {
            values_to.set(first[digit as usize] as usize + t + i * BLOCK, sorted[t + i * BLOCK] as V);
        }
    }
}

/// Kernel function: returns the number of keys in earlier tiles with this work-item's digit.
#[kernel(crate = vmarray_kernel)]
fn tiles_before<const WAITS: bool>(tile: usize, state: usize, own: u32, states: &Shared<u32>) -> u32 {
    let mut before = 0;
    if !WAITS {
        before = states[state];
    } else if tile > 0 {
        let (of_first, mut left) = (state - tile * DIGITS, tile);
        while left > 0 {
            // The states of several tiles arrive together. The first tile replaces tiles that do not exist.
            let mut found = [0_u32; AHEAD];
            for i in 0..AHEAD {
                found[i] = states[of_first + (left.max(i + 1) - (i + 1)) * DIGITS];
            }
            // A state has all its information in one word. So only the wait needs a read with an order.
            if found[0] == 0 {
                found[0] = states.acquire(of_first + (left - 1) * DIGITS);
            }
            let mut is_next = true;
            for i in 0..AHEAD {
                is_next = is_next && found[i] != 0;
                if is_next {
                    before += found[i] & NUMBER;
                    is_next = found[i] < OF_ALL;
                    left = if is_next { left - 1 } else { 0 };
                }
            }
        }
        states.exchange(state, (before + own) | OF_ALL);
    }
    before
}

#[kernel(crate = vmarray_kernel, group = BLOCK)]
fn move_keys<K: KernelInteger + ElementMemory, const WAITS: bool, const E: usize, const N: usize>(
    at: At<1>,
    all: usize,
    shift: u32,
    order: (K, K),
    keys: &Anywhere<K>,
    to: &Shared<K>,
    starts: &Anywhere<u64>,
    ends: &Shared<u64>,
    states: &Shared<u32>,
    started: &Group<u32, 1>,
    next: &Group<u32, COUNTS>,
    parts: &Group<u32, WARPS>,
    sorted: &Group<K, N>,
    first: &Group<u64, DIGITS>,
) {
    move_tile::<K, K, K, WAITS, false, E, N>(
        at, all, shift, order, keys, to, starts, ends, states, keys, to, started, next, parts, sorted, first,
    );
}

#[kernel(crate = vmarray_kernel, group = BLOCK)]
fn move_pairs<
    K: KernelInteger + ElementMemory,
    V: KernelInteger + ElementMemory,
    W: KernelInteger + ElementMemory,
    const WAITS: bool,
    const E: usize,
    const N: usize,
>(
    at: At<1>,
    all: usize,
    shift: u32,
    order: (K, K),
    keys: &Anywhere<K>,
    to: &Shared<K>,
    starts: &Anywhere<u64>,
    ends: &Shared<u64>,
    states: &Shared<u32>,
    values: &Anywhere<V>,
    values_to: &Shared<V>,
    started: &Group<u32, 1>,
    next: &Group<u32, COUNTS>,
    parts: &Group<u32, WARPS>,
    sorted: &Group<W, N>,
    first: &Group<u64, DIGITS>,
) {
    move_tile::<K, V, W, WAITS, true, E, N>(
        at, all, shift, order, keys, to, starts, ends, states, values, values_to, started, next, parts,
        sorted, first,
    );
}
