// Search by a program: number of matches, and indices of the first ones in ascending order.
//
// Three launches in one stream, without the host in between:
//   compute_count: counts the matches of each chunk of elements; blocks take chunks in ascending order,
//   search_scan in search.cu: one block; lists the chunks with matches and the places of these in the answer; writes
//     its header,
//   compute_list: reads the chunks with matches again, and writes their indices.
//
// Chunk c has the elements [head + c * per_chunk, head + (c + 1) * per_chunk), chunk 0 also the ones before `head`.
// These are a tile of their own, so that all other tiles begin with whole 16 bytes.

#include "chunks.h"
#include "splice.h"

KERNEL compute_count(Space space, Chunks a, u64 stop_at, State *state, u32 *counts) {
    for_each_chunk(a.chunks, stop_at, state, counts, [&](u64 chunk) -> u32 {
        u64 start = chunk_start(a, chunk), end = chunk_end(a, chunk);
        u32 matches = 0;
        u64 stop = start < a.head ? least(a.head, end) : end;
        for (u64 at = start + thread();; at = stop + thread(), stop = end) {
            for (; at < stop; at += a.tile)
                SPLICE_COUNT(matches, at, left_from(at, stop));
            if (stop == end)
                return matches;
        }
    });
}

// A block processes its chunks tile by tile. Most tiles of a chunk have no match, and cost one barrier. Matches are
// first ordered in shared memory, because writes of single numbers are the slowest traffic of a bus.
KERNEL compute_list(Space space, Chunks a, const State *state, const Hit *hits, u64 *indices) {
    __shared__ u32 sums[THREADS];
    __shared__ u16 matching[TILE];
    u64 listed = state->listed, hit_count = state->matching;
    u32 t = thread();
    for (u64 hit = block(); hit < hit_count; hit += blocks()) {
        u64 chunk = hits[hit].chunk, offset = hits[hit].offset;
        if (offset >= listed)
            return;
        u64 end = chunk_end(a, chunk);
        for (u64 tile = chunk_start(a, chunk), next; tile < end && offset < listed; tile = next) {
            next = tile < a.head ? a.head : tile + TILE;
            u64 mine = tile + t * EACH;
            u32 mask;
            SPLICE_FIND(mask, mine, left_from(mine, least(next, end)));
            if (!any(mask))
                continue;
            u32 sum = __builtin_popcount(mask);
            sums[t] = sum;
            barrier();
            for (u32 distance = 1; distance < THREADS; distance *= 2) {
                u32 before = t >= distance ? sums[t - distance] : 0;
                barrier();
                sums[t] += before;
                barrier();
            }
            u32 place = sums[t] - sum, matches = sums[THREADS - 1];
            for (u32 j = 0; j < EACH; j++)
                if (mask >> j & 1)
                    matching[place++] = (u16)(t * EACH + j);
            barrier();
            for (u32 k = t; k < matches && offset + k < listed; k += THREADS)
                indices[offset + k] = tile + matching[k];
            offset += matches;
            barrier();
        }
    }
}
