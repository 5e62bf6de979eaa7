//! Kernel functions of scans over tiles: each group processes a tile, and needs the sum of all earlier tiles.
//!
//! There are two ways to get this sum, as in [`passes`](super::passes). On devices with forward progress, a
//! group waits for sums that earlier groups publish (D. Merrill, M. Garland, "Single-pass Parallel Prefix
//! Scan with Decoupled Look-back", 2016). On other devices, a first launch with the flag [`SUMS_ONLY`]
//! stores the sum of each tile, the host adds them up, and a second launch with the flag [`HAS_CARRIES`]
//! reads the sums.
//!
//! Sums of floats are added in the order of a binary tree over all tiles, as in [`tree`](crate::ops::scan).
//! A tile publishes the longest node that ends with it. The nodes before a tile are as long as the powers of
//! two in the tile's number, so each lane of a warp waits for one node. Integers may be added in any order: a
//! tile publishes its own sum, and then the sum up to its end, and the first warp looks at 32 earlier tiles
//! at once.
//!
//! The state memory begins with a header, whose first word counts the groups that have started, and whose
//! second word is the result. Then follow four words for each tile: 0 until a sum is known, and the sums.

use vmarray_kernel::{At, Atomic, Group, KernelInteger, Shared, kernel};

/// Number of work-items in a group.
pub(super) const BLOCK: usize = 256;
pub(crate) const LOOK_BACK_BLOCK: u64 = BLOCK as u64;
/// Number of elements of a work-item, and of a tile.
pub(super) const EACH: usize = 16;
pub(super) const TILE: usize = EACH * BLOCK;
pub(crate) const LOOK_BACK_TILE: u64 = TILE as u64;
/// Number of groups that a multiprocessor should hold at once. On an H200, sums of 4 and 8 bytes took 0.84
/// and 0.74 of the time of fewer groups; with four groups or more they took longer.
pub(super) const RESIDENT: u32 = 3;
/// Number of warps in a group.
pub(super) const WARPS: usize = BLOCK / 32;
/// Number of words in the header, and in a tile's state.
const HEADER: usize = 8;
const STATE: usize = 4;
/// Number of words of the nodes for which a tile waits.
pub(super) const NODES: usize = 96;

/// Flags of a launch: exclusive sums; only store the sums of tiles; read the sums before each tile.
pub(crate) const IS_EXCLUSIVE: u32 = 1;
pub(crate) const SUMS_ONLY: u32 = 2;
pub(crate) const HAS_CARRIES: u32 = 4;

/// A node of the tree: the bits of the sum of its elements, from the start of the last element's row on, the
/// bits of the sum's rounding error, and true if a row begins in the node, so that sums before it do not
/// reach later nodes.
pub(super) type TileNode = (u64, u64, bool);

/// Kernel function: returns the node of a node and the next node.
#[kernel(crate = vmarray_kernel)]
pub(super) fn then(a: TileNode, b: TileNode) -> TileNode {
    let mut both = b;
    if !b.2 {
        // The addition of `Compensated`.
        let (x, y) = (f64::from_bits(a.0), f64::from_bits(b.0));
        let sum = x + y;
        let is_larger = x.abs() >= y.abs();
        let (large, small) = (if is_larger { x } else { y }, if is_larger { y } else { x });
        let error = (f64::from_bits(a.1) + f64::from_bits(b.1)) + ((large - sum) + small);
        both = (sum.to_bits(), error.to_bits(), a.2);
    }
    both
}

/// Kernel function: returns the number of the group's tile. If groups wait, all lower tiles have started.
#[kernel(crate = vmarray_kernel)]
pub(super) fn take_tile<S: KernelInteger + Atomic, const WAITS: bool>(
    at: At<1>,
    states: &Shared<S>,
    started: &Group<u32, 1>,
) -> usize {
    if WAITS {
        if at.in_group() == 0 {
            started.set(0, states.add(0, S::ONE) as u32);
        }
        barrier();
    }
    if WAITS { started[0] as usize } else { at.group() }
}

/// Kernel function: publishes the node that ends with a tile.
#[kernel(crate = vmarray_kernel)]
fn publish(tile: usize, node: TileNode, states: &Shared<u64>) {
    let state = HEADER + tile * STATE;
    states.set(state + 1, node.0);
    states.set(state + 2, node.1);
    states.release(state, if node.2 { 3 } else { 1 });
}

/// Kernel function: waits until the node that ends with a tile is known, and stores it for the group.
#[kernel(crate = vmarray_kernel)]
fn wait_for(tile: usize, lane: usize, states: &Shared<u64>, nodes: &Group<u64, NODES>) {
    let state = HEADER + tile * STATE;
    let mut known = 0;
    while known == 0 {
        known = states.acquire(state);
    }
    nodes.set(lane, known);
    nodes.set(lane + 32, states[state + 1]);
    nodes.set(lane + 64, states[state + 2]);
}

/// Kernel function: returns a node that [`wait_for`] stored.
#[kernel(crate = vmarray_kernel)]
fn stored(lane: u32, nodes: &Group<u64, NODES>) -> TileNode {
    (nodes[lane as usize + 32], nodes[lane as usize + 64], nodes[lane as usize] == 3)
}

/// Kernel function: returns the node of all earlier tiles, for the group's first work-item only. `first` is
/// the number of the first tile, and `tile` the number from there. `own` is the node of the tile in the first
/// work-item. `rows` are true if a row begins in the tile, and if one begins at its first element.
#[kernel(crate = vmarray_kernel)]
pub(super) fn node_before<const WAITS: bool>(
    at: At<1>,
    flags: u32,
    tiles: (usize, usize),
    own: TileNode,
    rows: (bool, bool),
    states: &Shared<u64>,
    nodes: &Group<u64, NODES>,
) -> TileNode {
    let (first, tile) = tiles;
    let (t, lane) = (at.in_group(), at.in_group() as u32 % 32);
    let mut before = (0, 0, false);
    if flags & SUMS_ONLY > 0 {
        if t == 0 {
            publish(tile, own, states);
        }
    } else if !WAITS || flags & HAS_CARRIES > 0 {
        if t == 0 {
            let state = HEADER + tile * STATE;
            before = (states[state + 1], states[state + 2], false);
        }
    } else {
        let number = first + tile;
        let level = (!number).trailing_zeros();
        let end = number >> lane << lane;
        let is_there = t < 32 && number >> lane & 1 > 0 && end > first;
        // First wait for the parts of the tile's own node, because later tiles wait for the node.
        if is_there && lane < level && !rows.0 {
            wait_for(end - 1 - first, t, states, nodes);
        }
        let there = lanes::ballot(is_there);
        if t == 0 {
            let mut node = own;
            if !rows.0 {
                for j in 0..level {
                    if there >> j & 1 > 0 {
                        node = then(stored(j, nodes), node);
                    }
                }
            }
            publish(tile, node, states);
        }
        let is_awaited = is_there && !rows.1 && (lane > level || rows.0);
        if is_awaited {
            wait_for(end - 1 - first, t, states, nodes);
        }
        let mut rest = lanes::ballot(is_there && !rows.1);
        if t == 0 {
            while rest > 0 {
                let j = 31 - rest.leading_zeros();
                before = then(before, stored(j, nodes));
                rest ^= 1 << j;
            }
        }
    }
    before
}

/// Kernel function: returns the sum of all earlier tiles of integers. `own` is the sum of the tile in the
/// first work-item. `rows` are as for [`node_before`].
#[kernel(crate = vmarray_kernel)]
pub(super) fn sum_before<const WAITS: bool>(
    at: At<1>,
    flags: u32,
    tile: usize,
    own: u64,
    rows: (bool, bool),
    states: &Shared<u64>,
    looked: &Group<u64, 2>,
) -> u64 {
    let (t, state) = (at.in_group(), HEADER + tile * STATE);
    let mut before = 0;
    if flags & SUMS_ONLY > 0 {
        if t == 0 {
            states.set(state + 1, own);
            states.release(state, if rows.0 { 3 } else { 1 });
        }
    } else if !WAITS || flags & HAS_CARRIES > 0 {
        before = states[state + 1];
    } else {
        // The sum of a tile in which a row begins does not depend on earlier tiles.
        let is_complete = rows.0 || tile == 0;
        if t == 0 {
            let known = if is_complete { 2 } else { 1 };
            states.set(state + known, own);
            states.release(state, known as u64);
        }
        before = look_back(t, if rows.1 { 0 } else { tile }, states, looked);
        if t == 0 && !is_complete {
            states.set(state + 2, before + own);
            states.release(state, 2);
        }
    }
    before
}

/// Kernel function: returns the sum of the tiles before `end`, from the last tile on whose state is 2.
#[kernel(crate = vmarray_kernel)]
fn look_back(t: usize, end: usize, states: &Shared<u64>, looked: &Group<u64, 2>) -> u64 {
    let (mut before, mut end, mut is_found) = (0, end, 0);
    while is_found == 0 {
        let (mut known, mut sum) = (2, 0);
        if t < end.min(32) {
            let look = HEADER + (end - 1 - t) * STATE;
            known = states.acquire(look);
            while known == 0 {
                known = states.acquire(look);
            }
            sum = states[look + known as usize];
        }
        let complete = lanes::ballot(known == 2);
        before += lanes::sum(if t as u32 > complete.trailing_zeros() { 0 } else { sum });
        if t == 0 {
            looked.set(0, complete as u64);
            looked.set(1, before);
        }
        // Loads between two barriers are uniform, so the loop may contain barriers.
        barrier();
        is_found = looked[0];
        before = looked[1];
        barrier();
        end -= end.min(32);
    }
    before
}

/// Kernel function: publishes the result of a launch.
#[kernel(crate = vmarray_kernel)]
pub(super) fn set_result(states: &Shared<u64>, result: u64) {
    states.set(1, result);
}
