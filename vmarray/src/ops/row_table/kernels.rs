//! Kernels of row tables. A work-item (GPU thread) moves words of one row: as many neighbouring items as
//! `1 << shift` share a row, and a group moves several rows at once.
//!
//! Rows consist of *chunks*: of `N` words in the table and `M` words in the result. Chunks of rows that are
//! converted have four elements. Rows whose length is not a multiple of a chunk are moved element by element.

use vmarray_kernel::{Anywhere, At, ElementMemory, Group, KernelInteger, Shared, group, kernel};

use super::formats::{RAW, decoded, element_of, encoded, half_of};

/// Number of work-items in a group.
pub(super) const BLOCK: usize = 256;
/// Number of buckets into which a list of ids is distributed, so that neighbouring groups read neighbouring
/// rows.
pub(super) const BUCKETS: usize = 4096;
const WARPS: usize = BLOCK / 32;
/// The tag of a slot whose row a warp changes. Other tags are 0, or the number of the row plus 1.
const LOCKED: u32 = u32::MAX;
/// The most uses of a row that the choice of a slot distinguishes.
const USES_MAX: u32 = (1 << 26) - 1;

/// Kernel function: the id with number `i`, of `words` words; or `i` itself for lists without ids.
#[kernel(crate = vmarray_kernel)]
fn id_at(ids: &Anywhere<u32>, i: usize, words: u32) -> usize {
    let mut id = i;
    if words == 1 {
        id = ids[i] as i32 as usize;
    }
    if words == 2 {
        id = (ids[2 * i] as u64 | (ids[2 * i + 1] as u64) << 32) as usize;
    }
    id
}

/// Kernel function: the number in the list and the id of a place in the order; `rows` is the id of places
/// after the end of the list.
#[kernel(crate = vmarray_kernel)]
fn listed(
    place: usize,
    count: usize,
    rows: usize,
    id_words: u32,
    ids: &Anywhere<u32>,
    order: &Anywhere<u32>,
) -> (usize, usize) {
    let (mut i, mut id) = (place, rows);
    if place < count {
        if order.len() > 0 {
            i = order[place] as usize;
        }
        id = id_at(ids, i, id_words);
    }
    (i, id)
}

/// Kernel function: records an id that is outside of the table, for the next call of the program.
#[kernel(crate = vmarray_kernel)]
fn report(status: &Shared<u64>, id: usize) {
    if status.len() > 0 {
        status.set(1, id as u64);
        status.set(0, 1);
    }
}

/// Kernel function: the scale of a row.
#[kernel(crate = vmarray_kernel)]
fn scale_of(scales: &Anywhere<f32>, id: usize) -> f32 {
    let mut scale = 1.0;
    if scales.len() > 0 {
        scale = scales[id];
    }
    scale
}

/// Kernel function: a chunk of the result.
#[kernel(crate = vmarray_kernel)]
fn converted<const N: usize, const M: usize>(words: [u32; N], formats: (u32, u32), scale: f32) -> [u32; M] {
    let mut result = [0; M];
    if formats.0 == RAW {
        for j in 0..M {
            result[j] = words[j % N];
        }
    } else {
        let mut numbers = [0.0; 4];
        for j in 0..4 {
            numbers[j] = element_of(words, j, formats.0) * scale;
        }
        result = encoded::<M>(numbers, formats.1);
    }
    result
}

/// Kernel function: writes zeros to the result's row `i`.
#[kernel(crate = vmarray_kernel)]
fn clear_row<const M: usize>(out: &Shared<[u32; M]>, i: usize, chunks: usize, lane: usize, lanes: usize) {
    let mut c = lane;
    while c < chunks {
        out.set(i * chunks + c, [0; M]);
        c += lanes;
    }
}

/// Kernel function: copies or converts a row, from chunk `start` of the table on, to row `i` of the result.
#[kernel(crate = vmarray_kernel)]
fn move_row<const N: usize, const M: usize>(
    table: &Anywhere<[u32; N]>,
    start: usize,
    out: &Shared<[u32; M]>,
    i: usize,
    chunks: usize,
    formats: (u32, u32),
    scale: f32,
    lanes: (usize, usize),
) {
    let mut c = lanes.0;
    while c < chunks {
        out.set(i * chunks + c, converted::<N, M>(table[start + c], formats, scale));
        c += lanes.1;
    }
}

/// Copies or converts the rows of a list of ids: row `i` of the result is the row `ids[i]` of the table, or
/// zeros if the id is outside. `first` is the first chunk of the rows in `table`. `order` is empty, or the
/// order in which to move the rows.
#[kernel(crate = vmarray_kernel, group = BLOCK)]
pub(super) fn gather_rows<const N: usize, const M: usize>(
    at: At<1>,
    count: usize,
    rows: usize,
    chunks: usize,
    first: usize,
    shift: u32,
    formats: (u32, u32),
    id_words: u32,
    ids: &Anywhere<u32>,
    order: &Anywhere<u32>,
    table: &Anywhere<[u32; N]>,
    scales: &Anywhere<f32>,
    out: &Shared<[u32; M]>,
    status: &Shared<u64>,
) {
    let (lanes, at_once) = (1_usize << shift, BLOCK >> shift);
    let lane = at.in_group() % lanes;
    let mut place = at.group() * at_once + (at.in_group() >> shift);
    while place < count {
        let (i, id) = listed(place, count, rows, id_words, ids, order);
        if id < rows {
            let scale = scale_of(scales, id);
            move_row::<N, M>(table, first + id * chunks, out, i, chunks, formats, scale, (lane, lanes));
        } else {
            clear_row::<M>(out, i, chunks, lane, lanes);
            if lane == 0 {
                report(status, id);
            }
        }
        place += at.groups() * at_once;
    }
}

/// The same, element by element, for rows of any length. `A` and `B` have the length of the elements.
#[kernel(crate = vmarray_kernel, group = BLOCK)]
pub(super) fn gather_elements<A: KernelInteger + ElementMemory, B: KernelInteger + ElementMemory>(
    at: At<1>,
    count: usize,
    rows: usize,
    chunks: usize,
    first: usize,
    shift: u32,
    formats: (u32, u32),
    id_words: u32,
    ids: &Anywhere<u32>,
    order: &Anywhere<u32>,
    table: &Anywhere<A>,
    scales: &Anywhere<f32>,
    out: &Shared<B>,
    status: &Shared<u64>,
) {
    let (lanes, at_once) = (1_usize << shift, BLOCK >> shift);
    let lane = at.in_group() % lanes;
    let mut place = at.group() * at_once + (at.in_group() >> shift);
    while place < count {
        let (i, id) = listed(place, count, rows, id_words, ids, order);
        let mut c = lane;
        while c < chunks {
            let mut bits = 0;
            if id < rows {
                bits = table[first + id * chunks + c] as u32;
                if formats.0 != RAW {
                    let number = decoded(bits, formats.0) * scale_of(scales, id);
                    bits = if B::BITS == 32 { number.to_bits() } else { half_of(number, formats.1) };
                }
            }
            out.set(i * chunks + c, bits as B);
            c += lanes;
        }
        if id >= rows && lane == 0 {
            report(status, id);
        }
        place += at.groups() * at_once;
    }
}

/// Kernel function: finds a row in its set of the cache. Returns the slot that has the row, or a slot that
/// the warp has locked to admit the row; a number that is 1 if a slot has the row, 2 if one is locked, and
/// else 0; and the uses of the slot. The unused `_states` makes this a function of groups, which lanes need.
#[kernel(crate = vmarray_kernel)]
fn find_slot(
    at: At<1>,
    id: usize,
    is_inside: bool,
    sets: usize,
    tags: &Shared<u32>,
    uses: &Shared<u32>,
    reads: &Shared<u32>,
    _states: &Group<u32, WARPS>,
) -> (usize, u32, u32) {
    let (lane, hash) = (at.in_group() as u32 % 32, id as u32 * 0x9e37_79b1);
    let set = (hash as u64 * sets as u64 >> 32) as usize * 32;
    let tag = tags.acquire(set + lane as usize);
    let used = uses[set + lane as usize];
    let holders = lanes::ballot(is_inside && tag == id as u32 + 1);
    let coldest = lanes::min(if tag == LOCKED { u32::MAX } else { used.min(USES_MAX) << 5 | lane });
    let mut times = 0;
    if lane == 0 && holders == 0 && is_inside {
        times = reads.add((hash ^ hash >> 15) as usize & (reads.len() - 1), 1) + 1;
    }
    times = lanes::max(times);
    let way = if holders > 0 { holders.trailing_zeros() } else { coldest & 31 };
    let (slot, victim) = (set + way as usize, lanes::shuffle(tag, way));
    let uses_of_slot = lanes::shuffle(used, way);
    let mut state = if holders > 0 { 1 } else { 0 };
    if lane == 0 && times > 1 && times & (times - 1) == 0 && times > coldest >> 5 && victim != LOCKED {
        if tags.compare_exchange(slot, victim, LOCKED) == victim {
            state = 2;
        }
    }
    (slot, lanes::max(state), if holders > 0 { uses_of_slot + 1 } else { times })
}

/// Copies or converts rows as [`gather_rows`] does, by one warp for each row, and keeps rows that are read
/// often in a cache in the memory of the GPU: sets of 32 slots, one for each lane.
///
/// A row is admitted if it was read more often than the least read row of its set (G. Einziger, R. Friedman,
/// B. Manes, "TinyLFU: A Highly Efficient Cache Admission Policy", 2017), and only at its 2nd, 4th, 8th, ...
/// read, so that few warps compete for slots with one row. Warps of any number of kernels use the cache at
/// the same time: a warp locks a slot before it changes the row, and a reader compares the tag before and
/// after it has read the row. Without a result, the kernel only admits rows.
#[kernel(crate = vmarray_kernel, group = BLOCK)]
pub(super) fn gather_cached<const N: usize, const M: usize>(
    at: At<1>,
    count: usize,
    rows: usize,
    chunks: usize,
    first: usize,
    sets: usize,
    formats: (u32, u32),
    id_words: u32,
    ids: &Anywhere<u32>,
    order: &Anywhere<u32>,
    table: &Anywhere<[u32; N]>,
    scales: &Anywhere<f32>,
    out: &Shared<[u32; M]>,
    status: &Shared<u64>,
    tags: &Shared<u32>,
    uses: &Shared<u32>,
    reads: &Shared<u32>,
    cached: &Shared<[u32; N]>,
    hits: &Shared<u64>,
    states: &Group<u32, WARPS>,
) {
    let (lane, warp, keeps) = (at.in_group() % 32, at.in_group() / 32, out.len() > 0);
    let (mut place, mut found, mut all) = (at.group() * WARPS, 0, 0);
    while place < count {
        let is_listed = place + warp < count;
        let (i, id) = listed(place + warp, count, rows, id_words, ids, order);
        all += if is_listed { 1 } else { 0 };
        let is_inside = id < rows;
        let (slot, state, used) = find_slot(at, id, is_inside, sets, tags, uses, reads, states);
        let scale = scale_of(scales, if is_inside { id } else { 0 });
        let mut c = if state == 1 && keeps { lane } else { chunks };
        while c < chunks {
            out.set(i * chunks + c, converted::<N, M>(cached[slot * chunks + c], formats, scale));
            c += 32;
        }
        if state > 0 {
            // The release orders the loads of the row before the next load of the tag, and the lock of a slot
            // before the stores of the row.
            uses.release(slot, used);
        }
        let is_hit = state == 1 && tags.acquire(slot) == id as u32 + 1;
        found += if is_hit { 1 } else { 0 };
        c = if is_inside && !is_hit { lane } else { chunks };
        while c < chunks {
            let words = table[first + id * chunks + c];
            if state == 2 {
                cached.set(slot * chunks + c, words);
            }
            if keeps {
                out.set(i * chunks + c, converted::<N, M>(words, formats, scale));
            }
            c += 32;
        }
        if is_listed && !is_inside && keeps {
            clear_row::<M>(out, i, chunks, lane, 32);
            if lane == 0 {
                report(status, id);
            }
        }
        if lanes::sync(state) == 2 && lane == 0 {
            tags.release(slot, id as u32 + 1);
        }
        place += at.groups() * WARPS;
    }
    if lane == 0 && all > 0 {
        hits.add(0, found);
        hits.add(1, all);
    }
}

/// Halves counts, so that a cache forgets rows that are not read any more.
#[kernel(crate = vmarray_kernel, group = BLOCK)]
pub(super) fn halve(at: At<1>, count: usize, words: &Shared<u32>) {
    let i = at.group() * BLOCK + at.in_group();
    if i < count {
        words.set(i, words[i] / 2);
    }
}

/// Copies rows into the table: the row `ids[i]` of the table becomes row `i` of `values`. Of two rows with
/// the same id, the table gets one, or a mixture of their words.
#[kernel(crate = vmarray_kernel, group = BLOCK)]
pub(super) fn scatter_rows<W: KernelInteger + ElementMemory>(
    at: At<1>,
    count: usize,
    rows: usize,
    chunks: usize,
    first: usize,
    shift: u32,
    id_words: u32,
    ids: &Anywhere<u32>,
    values: &Anywhere<W>,
    table: &Shared<W>,
    status: &Shared<u64>,
) {
    let (lanes, at_once) = (1_usize << shift, BLOCK >> shift);
    let lane = at.in_group() % lanes;
    let i = at.group() * at_once + (at.in_group() >> shift);
    if i < count {
        let id = id_at(ids, i, id_words);
        if id < rows {
            let mut c = lane;
            while c < chunks {
                table.set(first + id * chunks + c, values[i * chunks + c]);
                c += lanes;
            }
        } else if lane == 0 {
            report(status, id);
        }
    }
}

/// Adds up the rows of each bag (range of the list): row `b` of the result is the sum of the rows with the
/// ids from `offsets[b]` up to the next offset, or up to the end of the list, each times its weight. Sums are
/// `f32`, in the order of the list.
#[kernel(crate = vmarray_kernel, group = BLOCK)]
pub(super) fn sum_rows<const N: usize, const M: usize>(
    at: At<1>,
    count: usize,
    rows: usize,
    chunks: usize,
    first: usize,
    shift: u32,
    formats: (u32, u32),
    id_words: u32,
    bags: usize,
    offset_words: u32,
    offset_count: usize,
    ids: &Anywhere<u32>,
    offsets: &Anywhere<u32>,
    weights: &Anywhere<f32>,
    table: &Anywhere<[u32; N]>,
    scales: &Anywhere<f32>,
    out: &Shared<[u32; M]>,
    status: &Shared<u64>,
) {
    let (lanes, at_once) = (1_usize << shift, BLOCK >> shift);
    let lane = at.in_group() % lanes;
    let bag = at.group() * at_once + (at.in_group() >> shift);
    if bag < bags {
        let begin = id_at(offsets, bag, offset_words);
        let mut end = count;
        if bag + 1 < offset_count {
            end = id_at(offsets, bag + 1, offset_words).min(count);
        }
        let mut c = lane;
        while c < chunks {
            let mut sums = [0.0; 4];
            let mut i = begin;
            while i < end {
                let id = id_at(ids, i, id_words);
                if id < rows {
                    let words = table[first + id * chunks + c];
                    let mut factor = scale_of(scales, id);
                    if weights.len() > 0 {
                        factor *= weights[i];
                    }
                    for j in 0..4 {
                        sums[j] += element_of(words, j, formats.0) * factor;
                    }
                } else if c == 0 {
                    report(status, id);
                }
                i += 1;
            }
            out.set(bag * chunks + c, encoded::<M>(sums, formats.1));
            c += lanes;
        }
    }
}

/// Writes ids as words of 64 bits, for the host.
#[kernel(crate = vmarray_kernel, group = BLOCK)]
pub(super) fn list_ids(at: At<1>, count: usize, id_words: u32, ids: &Anywhere<u32>, listed: &Shared<u64>) {
    let i = at.group() * BLOCK + at.in_group();
    if i < count {
        listed.set(i, id_at(ids, i, id_words) as u64);
    }
}

/// Counts the ids of each bucket: the rows with the same upper bits.
#[kernel(crate = vmarray_kernel, group = BLOCK)]
pub(super) fn count_ids(
    at: At<1>,
    count: usize,
    rows: usize,
    bits: u32,
    id_words: u32,
    ids: &Anywhere<u32>,
    counts: &Shared<u32>,
) {
    let i = at.group() * BLOCK + at.in_group();
    if i < count {
        counts.add(id_at(ids, i, id_words).min(rows - 1) >> bits, 1);
    }
}

/// Replaces the count of each bucket by the sum of the counts before it; one group.
#[kernel(crate = vmarray_kernel, group = BLOCK)]
pub(super) fn start_buckets(at: At<1>, counts: &Shared<u32>, parts: &Group<u32, WARPS>) {
    let first = at.in_group() * (BUCKETS / BLOCK);
    let mut own = 0;
    for j in 0..BUCKETS / BLOCK {
        own += counts[first + j];
    }
    let mut before = group::scan_sum(at, parts, own) - own;
    for j in 0..BUCKETS / BLOCK {
        let count = counts[first + j];
        counts.set(first + j, before);
        before += count;
    }
}

/// Writes the numbers of a list in the order of the buckets of their ids.
#[kernel(crate = vmarray_kernel, group = BLOCK)]
pub(super) fn place_ids(
    at: At<1>,
    count: usize,
    rows: usize,
    bits: u32,
    id_words: u32,
    ids: &Anywhere<u32>,
    starts: &Shared<u32>,
    order: &Shared<u32>,
) {
    let i = at.group() * BLOCK + at.in_group();
    if i < count {
        let place = starts.add(id_at(ids, i, id_words).min(rows - 1) >> bits, 1);
        order.set(place as usize, i as u32);
    }
}

/// Sets all words to zero.
#[kernel(crate = vmarray_kernel, group = BLOCK)]
pub(super) fn clear(at: At<1>, count: usize, words: &Shared<u32>) {
    let i = at.group() * BLOCK + at.in_group();
    if i < count {
        words.set(i, 0);
    }
}
