//! Kernels of prefix sums. They read and write each element once, or on devices without forward progress
//! twice.
//!
//! Integers may be added in any order: each work-item adds up consecutive elements. Floats have the same
//! bits on all devices, so their order depends only on the positions of elements in their store: see
//! [`prefix_scan`](crate::ops::scan). A block of 1024 elements consists of 32 rows of 32 elements, one for
//! each lane. Rows, and then the sums of rows, are added by the steps of Hillis and Steele, and the sums
//! of blocks in the order of a binary tree.

use backend_api::kernel::Type;
use vmarray_kernel::{
    At, ElementMemory, Float, Group, KernelInteger, KernelNumber, KernelType, Shared, kernel,
};

use super::look_back::{
    BLOCK, EACH, IS_EXCLUSIVE, NODES, RESIDENT, SUMS_ONLY, TILE, TileNode, WARPS, node_before, sum_before,
    take_tile, then,
};
use crate::ops::executor::LibraryKernel;

/// Number of elements in group memory: after every 16 elements one place is unused, so that work-items
/// with 16 consecutive elements do not access the same memory bank.
const PLACES: usize = TILE + TILE / EACH;
/// Number of rows of 32 elements in a tile, of elements in a block, and of blocks in a tile.
const ROWS: usize = TILE / 32;
const BLOCK_LEN: usize = 1024;
const BLOCKS: usize = 4;
/// Rows of elements are at most this long; longer rows are replaced by this length.
const PERIOD_MAX: usize = 1 << 30;

/// Returns the kernel of prefix sums. Its views are the elements, and the states of tiles. Its values are the
/// fields of a [`ScanShare`], and flags.
pub(super) fn of(number: Type, waits: bool, has_rows: bool) -> LibraryKernel {
    let kernel = match (waits, has_rows) {
        (true, true) => scans::<true, true>(number),
        (true, false) => scans::<true, false>(number),
        (false, true) => scans::<false, true>(number),
        (false, false) => scans::<false, false>(number),
    };
    kernel.with_resident_groups(RESIDENT)
}

fn scans<const WAITS: bool, const HAS_ROWS: bool>(number: Type) -> LibraryKernel {
    match number {
        Type::U8 => LibraryKernel::of::<scan_integers<u8, u32, WAITS, HAS_ROWS>>(),
        Type::U16 => LibraryKernel::of::<scan_integers<u16, u32, WAITS, HAS_ROWS>>(),
        Type::U32 => LibraryKernel::of::<scan_integers<u32, u32, WAITS, HAS_ROWS>>(),
        Type::U64 => LibraryKernel::of::<scan_integers<u64, u64, WAITS, HAS_ROWS>>(),
        Type::F32 => LibraryKernel::of::<scan_floats<f32, WAITS>>(),
        _ => LibraryKernel::of::<scan_floats<f64, WAITS>>(),
    }
}

/// The elements of a channel, from its element `first` on. Page p of the store is page p / `channels` of
/// channel p % `channels`. With several channels, a tile is in one page. Rows of length `row` begin at
/// element `base` of the store.
#[derive(Clone, Copy, KernelType)]
#[kernel_type(crate = vmarray_kernel)]
struct ScanShare {
    first: usize,
    count: usize,
    page_len: usize,
    channels: usize,
    channel: usize,
    base: usize,
    row: usize,
}

/// Kernel function: returns a remainder, by a division of 32 bits if possible.
#[kernel(crate = vmarray_kernel)]
fn remainder(a: usize, b: usize) -> usize {
    let mut rest = a;
    if a >= b {
        rest = if (a | b) >> 32 == 0 { (a as u32 % b as u32) as usize } else { a % b };
    }
    rest
}

/// Kernel function: returns the distance of a tile's first element from the begin of its row, and the
/// length of rows. A long row is replaced by a shorter one with the same begins in this tile.
#[kernel(crate = vmarray_kernel)]
fn row_of(share: ScanShare, own: usize) -> (u32, u32) {
    let mut place = own;
    if share.channels > 1 {
        let page = own / share.page_len;
        place = (page * share.channels + share.channel) * share.page_len + (own - page * share.page_len);
    }
    let after = if place >= share.base {
        remainder(place - share.base, share.row)
    } else {
        share.row - remainder(share.base - place, share.row)
    };
    let mut row = (after as u32, share.row as u32);
    if share.row > PERIOD_MAX {
        let rest = share.row - after;
        let distance = if rest <= TILE { PERIOD_MAX - rest } else { after.min(PERIOD_MAX / 2) };
        row = (distance as u32, PERIOD_MAX as u32);
    }
    row
}

/// Kernel function: returns the distance of element `i` of a tile from the begin of its row.
#[kernel(crate = vmarray_kernel)]
fn distance_of(row: (u32, u32), i: u32) -> u32 {
    let mut distance = row.0 + i;
    if distance >= row.1 {
        distance = if row.1 < TILE as u32 { distance % row.1 } else { distance - row.1 };
    }
    distance
}

/// Kernel function: returns the distance of a later element, less than a row away.
#[kernel(crate = vmarray_kernel)]
fn later(distance: u32, by: u32, row: (u32, u32)) -> u32 {
    let sum = distance + by;
    if sum < row.1 { sum } else { sum - row.1 }
}

/// Kernel function: returns the sum of the values of a lane and of at most `reach` lanes before it.
#[kernel(crate = vmarray_kernel)]
fn scanned<N: KernelNumber>(x: N, lane: u32, reach: u32) -> N {
    let mut sum = x;
    for step in 0..5 {
        let other = lanes::shuffle(sum, lane + (32 - (1 << step)));
        let both = other + sum;
        sum = if reach >= 1 << step { both } else { sum };
    }
    sum
}

/// Kernel function: returns a tile's first element, and the first and the end of its elements in the range.
#[kernel(crate = vmarray_kernel)]
fn tile_of(share: ScanShare, tile: usize) -> (usize, u32, u32) {
    let own = (share.first / TILE + tile) * TILE;
    let start = if share.first > own { (share.first - own) as u32 } else { 0 };
    (own, start, (share.first + share.count - own).min(TILE) as u32)
}

/// Kernel function: returns the node of a block of floats.
#[kernel(crate = vmarray_kernel)]
fn block_node<F: Float>(block: usize, row: (u32, u32), of_blocks: &Group<F, ROWS>) -> TileNode {
    let last = distance_of(row, (block * BLOCK_LEN + BLOCK_LEN - 1) as u32);
    let sum = of_blocks[block * 32 + 31] as f64;
    (sum.to_bits(), 0, last < BLOCK_LEN as u32)
}

/// Kernel function: returns the sum of a node of floats. After an overflow, the rounding error is
/// meaningless.
#[kernel(crate = vmarray_kernel)]
fn rounded<F: Float>(node: TileNode) -> F {
    let mut sum = f64::from_bits(node.0);
    if sum.abs() < f64::INFINITY {
        sum += f64::from_bits(node.1);
    }
    sum as F
}

/// Kernel function: returns the sums of rows of 32 elements, one row for each of a work-item's elements.
/// `distance` is that of the first one, `by` that of the next row.
#[kernel(crate = vmarray_kernel)]
fn scan_rows<F: Float>(x: [F; EACH], lane: u32, distance: u32, by: u32, row: (u32, u32)) -> [F; EACH] {
    let mut sums = x;
    let mut distance = distance;
    for i in 0..EACH {
        sums[i] = scanned(sums[i], lane, distance.min(lane));
        distance = later(distance, by, row);
    }
    sums
}

/// Kernel function: returns exclusive sums of rows. The sum of no elements is -0 until another sum is
/// added to it, because -0 changes no bit of a sum.
#[kernel(crate = vmarray_kernel)]
fn shift_rows<F: Float>(x: [F; EACH], lane: u32, distance: u32, by: u32, row: (u32, u32)) -> [F; EACH] {
    let mut sums = x;
    let mut distance = distance;
    for i in 0..EACH {
        let left = lanes::shuffle(sums[i], lane + 31);
        sums[i] = if lane == 0 { -F::ZERO } else { left };
        sums[i] = if distance == 0 { F::ZERO } else { sums[i] };
        distance = later(distance, by, row);
    }
    sums
}

/// Kernel function: stores the sums before the blocks of a tile of floats in `carried`.
#[kernel(crate = vmarray_kernel)]
fn carry_blocks<F: Float, const WAITS: bool>(
    at: At<1>,
    flags: u32,
    tiles: (usize, usize),
    row: (u32, u32),
    of_blocks: &Group<F, ROWS>,
    carried: &Group<F, BLOCKS>,
    states: &Shared<u64>,
    nodes: &Group<u64, NODES>,
) {
    let mut two = (0, 0, false);
    let mut all = (0, 0, false);
    if at.in_group() == 0 {
        two = then(block_node(0, row, of_blocks), block_node(1, row, of_blocks));
        let others = then(block_node(2, row, of_blocks), block_node(3, row, of_blocks));
        all = then(two, others);
    }
    let begins = (distance_of(row, TILE as u32 - 1) < TILE as u32, row.0 == 0);
    let before = node_before::<WAITS>(at, flags, tiles, all, begins, states, nodes);
    if at.in_group() == 0 && flags & SUMS_ONLY == 0 {
        let half = then(before, two);
        carried.set(0, rounded::<F>(before));
        carried.set(1, rounded::<F>(then(before, block_node(0, row, of_blocks))));
        carried.set(2, rounded::<F>(half));
        carried.set(3, rounded::<F>(then(half, block_node(2, row, of_blocks))));
    }
}

/// Kernel: sums of floats, which are equal bit by bit on all devices.
#[kernel(crate = vmarray_kernel, group = BLOCK)]
fn scan_floats<F: Float + ElementMemory, const WAITS: bool>(
    at: At<1>,
    share: ScanShare,
    flags: u32,
    x: &Shared<F>,
    states: &Shared<u64>,
    started: &Group<u32, 1>,
    rows: &Group<F, ROWS>,
    of_blocks: &Group<F, ROWS>,
    carried: &Group<F, BLOCKS>,
    nodes: &Group<u64, NODES>,
) {
    let (t, number) = (at.in_group(), take_tile::<u64, WAITS>(at, states, started));
    let (lane, own) = (t as u32 % 32, t / 32 * 32 * EACH + t % 32);
    let tile = tile_of(share, number);
    let row = row_of(share, tile.0);
    let (distance, by) = (distance_of(row, own as u32), if row.1 > 32 { 32 } else { 32 % row.1 });
    let base = tile.0 - share.first + own;
    let mut sums = [F::ZERO; EACH];
    if tile.1 == 0 && tile.2 == TILE as u32 {
        for i in 0..EACH {
            sums[i] = x[base + 32 * i];
        }
    } else {
        for i in 0..EACH {
            let j = own as u32 + 32 * i as u32;
            if j >= tile.1 && j < tile.2 {
                sums[i] = x[tile.0 + j as usize - share.first];
            }
        }
    }
    sums = scan_rows(sums, lane, distance, by, row);
    if lane == 31 {
        for i in 0..EACH {
            rows.set(t / 32 * EACH + i, sums[i]);
        }
    }
    barrier();
    let last = distance_of(row, (t as u32 * 32 + 31) % TILE as u32);
    let of_block = scanned(rows[t % ROWS], lane, (last / 32).min(lane));
    if t < ROWS {
        of_blocks.set(t, of_block);
    }
    barrier();
    let tiles = (share.first / TILE, number);
    carry_blocks::<F, WAITS>(at, flags, tiles, row, of_blocks, carried, states, nodes);
    if flags & SUMS_ONLY == 0 {
        barrier();
        if flags & IS_EXCLUSIVE > 0 {
            sums = shift_rows(sums, lane, distance, by, row);
        }
        write_floats(at, share.first, tile, (distance, by), row, sums, of_blocks, carried, x);
    }
}

/// Kernel function: adds the sums of earlier rows in the block, and then of earlier blocks, and writes the
/// sums.
#[kernel(crate = vmarray_kernel)]
fn write_floats<F: Float + ElementMemory>(
    at: At<1>,
    first: usize,
    tile: (usize, u32, u32),
    distances: (u32, u32),
    row: (u32, u32),
    x: [F; EACH],
    of_blocks: &Group<F, ROWS>,
    carried: &Group<F, BLOCKS>,
    to: &Shared<F>,
) {
    let mut sums = x;
    let t = at.in_group();
    let (lane, own) = (t as u32 % 32, t / 32 * 32 * EACH + t % 32);
    let (first_row, is_later, of_earlier) = (t / 32 * EACH, t / 32 % 2 > 0, carried[t / 64]);
    let within = own as u32 % BLOCK_LEN as u32;
    let mut distance = distances.0;
    for i in 0..EACH {
        if i > 0 || is_later {
            let of_rows = of_blocks[first_row + i - 1] + sums[i];
            sums[i] = if distance > lane { of_rows } else { sums[i] };
        }
        let of_all = of_earlier + sums[i];
        sums[i] = if distance > within + 32 * i as u32 { of_all } else { sums[i] };
        distance = later(distance, distances.1, row);
    }
    if tile.1 == 0 && tile.2 == TILE as u32 {
        let base = tile.0 - first + own;
        for i in 0..EACH {
            to.set(base + 32 * i, sums[i]);
        }
    } else {
        for i in 0..EACH {
            let j = own as u32 + 32 * i as u32;
            if j >= tile.1 && j < tile.2 {
                to.set(tile.0 + j as usize - first, sums[i]);
            }
        }
    }
}

/// Kernel: sums of integers.
#[kernel(crate = vmarray_kernel, group = BLOCK)]
fn scan_integers<
    X: KernelInteger + ElementMemory,
    N: KernelInteger,
    const WAITS: bool,
    const HAS_ROWS: bool,
>(
    at: At<1>,
    share: ScanShare,
    flags: u32,
    x: &Shared<X>,
    states: &Shared<u64>,
    started: &Group<u32, 1>,
    here: &Group<X, PLACES>,
    warps: &Group<N, WARPS>,
    are_cut: &Group<u32, WARPS>,
    looked: &Group<u64, 2>,
) {
    let (t, number) = (at.in_group(), take_tile::<u64, WAITS>(at, states, started));
    let (lane, tile) = (t as u32 % 32, tile_of(share, number));
    let row = if HAS_ROWS { row_of(share, tile.0) } else { (0, 1) };
    read_integers(at, share.first, tile, x, here);
    barrier();
    let first_distance = if HAS_ROWS { distance_of(row, (t * EACH) as u32) } else { 0 };
    let mut distance = first_distance;
    let mut last = first_distance;
    let mut total = N::ZERO;
    let mut values = [N::ZERO; EACH];
    for i in 0..EACH {
        values[i] = here[t * (EACH + 1) + i] as N;
        total = if HAS_ROWS && distance == 0 { values[i] } else { total + values[i] };
        if HAS_ROWS {
            last = distance;
            distance = later(distance, 1, row);
        }
    }
    // The number of work-items before this one with elements of the first element's row.
    let reach = (first_distance + EACH as u32 - 1) / EACH as u32;
    let up_to_own = if HAS_ROWS {
        scanned(total, lane, if last < EACH as u32 { 0 } else { reach.min(lane) })
    } else {
        lanes::scan_sum(total)
    };
    if lane == 31 {
        warps.set(t / 32, up_to_own);
        if HAS_ROWS {
            are_cut.set(t / 32, (last < 32 * EACH as u32) as u32);
        }
    }
    let mut below = up_to_own - total;
    if HAS_ROWS {
        let left = lanes::shuffle(up_to_own, lane + 31);
        below = if lane > 0 && first_distance > 0 { left } else { N::ZERO };
    }
    barrier();
    let before = before_tile::<N, WAITS, HAS_ROWS>(at, flags, number, row, warps, are_cut, states, looked);
    if flags & SUMS_ONLY == 0 {
        let carry = carried_to::<N, HAS_ROWS>(before, t / 32, warps, are_cut);
        let sum = if !HAS_ROWS || reach > lane { carry + below } else { below };
        let is_exclusive = flags & IS_EXCLUSIVE > 0;
        add_up::<X, N, HAS_ROWS>(at, is_exclusive, first_distance, row, values, sum, here);
        barrier();
        write_integers(at, share.first, tile, here, x);
    }
}

/// Kernel function: copies the elements of a tile to group memory, and zeros for elements outside of the
/// range. Element j has the place j + j / 16.
#[kernel(crate = vmarray_kernel)]
fn read_integers<X: KernelInteger + ElementMemory>(
    at: At<1>,
    first: usize,
    tile: (usize, u32, u32),
    x: &Shared<X>,
    here: &Group<X, PLACES>,
) {
    let own = at.in_group() / 32 * 32 * EACH + at.in_group() % 32;
    let mut read = [X::ZERO; EACH];
    if tile.1 == 0 && tile.2 == TILE as u32 {
        let base = tile.0 - first + own;
        for i in 0..EACH {
            read[i] = x[base + 32 * i];
        }
    } else {
        for i in 0..EACH {
            let j = own as u32 + 32 * i as u32;
            if j >= tile.1 && j < tile.2 {
                read[i] = x[tile.0 + j as usize - first];
            }
        }
    }
    for i in 0..EACH {
        here.set(own + own / EACH + (32 + 32 / EACH) * i, read[i]);
    }
}

/// Kernel function: copies the elements of a tile back, as far as they are in the range.
#[kernel(crate = vmarray_kernel)]
fn write_integers<X: KernelInteger + ElementMemory>(
    at: At<1>,
    first: usize,
    tile: (usize, u32, u32),
    here: &Group<X, PLACES>,
    x: &Shared<X>,
) {
    let own = at.in_group() / 32 * 32 * EACH + at.in_group() % 32;
    let place = own + own / EACH;
    if tile.1 == 0 && tile.2 == TILE as u32 {
        let base = tile.0 - first + own;
        for i in 0..EACH {
            x.set(base + 32 * i, here[place + (32 + 32 / EACH) * i]);
        }
    } else {
        for i in 0..EACH {
            let j = own as u32 + 32 * i as u32;
            if j >= tile.1 && j < tile.2 {
                x.set(tile.0 + j as usize - first, here[place + (32 + 32 / EACH) * i]);
            }
        }
    }
}

/// Kernel function: returns the sum before a tile of integers, from the start of the row on.
#[kernel(crate = vmarray_kernel)]
fn before_tile<N: KernelInteger, const WAITS: bool, const HAS_ROWS: bool>(
    at: At<1>,
    flags: u32,
    tile: usize,
    row: (u32, u32),
    warps: &Group<N, WARPS>,
    are_cut: &Group<u32, WARPS>,
    states: &Shared<u64>,
    looked: &Group<u64, 2>,
) -> N {
    let mut own = N::ZERO;
    if at.in_group() == 0 {
        own = carried_to::<N, HAS_ROWS>(own, WARPS, warps, are_cut);
    }
    let begins = HAS_ROWS && distance_of(row, TILE as u32 - 1) < TILE as u32;
    let rows = (begins, HAS_ROWS && row.0 == 0);
    sum_before::<WAITS>(at, flags, tile, own as u64, rows, states, looked) as N
}

/// Kernel function: returns the sum before a warp, from the start of the row on. `before` is the sum before
/// the tile.
#[kernel(crate = vmarray_kernel)]
fn carried_to<N: KernelInteger, const HAS_ROWS: bool>(
    before: N,
    warp: usize,
    warps: &Group<N, WARPS>,
    are_cut: &Group<u32, WARPS>,
) -> N {
    let mut carry = before;
    for other in 0..warp {
        carry = if HAS_ROWS && are_cut[other] > 0 { warps[other] } else { carry + warps[other] };
    }
    carry
}

/// Kernel function: stores the sums of a work-item's elements in group memory. `sum` is the sum before them.
#[kernel(crate = vmarray_kernel)]
fn add_up<X: KernelInteger, N: KernelInteger, const HAS_ROWS: bool>(
    at: At<1>,
    is_exclusive: bool,
    first_distance: u32,
    row: (u32, u32),
    values: [N; EACH],
    sum: N,
    here: &Group<X, PLACES>,
) {
    let mut sum = sum;
    let mut distance = first_distance;
    for i in 0..EACH {
        if HAS_ROWS {
            sum = if distance == 0 { N::ZERO } else { sum };
            distance = later(distance, 1, row);
        }
        let next = sum + values[i];
        here.set(at.in_group() * (EACH + 1) + i, (if is_exclusive { sum } else { next }) as X);
        sum = next;
    }
}
