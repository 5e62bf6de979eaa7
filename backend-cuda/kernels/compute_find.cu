// Search by a program: number of matches, and indices of the first ones in ascending order. Launched like the kernels
// of a search, with search_scan between the two.

#include "chunks.h"
#include "splice.h"

KERNEL compute_count(Space space, Chunks a, u64 stop_at, State *state, u32 *counts) {
    for_each_chunk(a.chunks, stop_at, state, counts, [&](u64 chunk) -> u32 {
        u64 start = chunk_start(a, chunk), end = chunk_end(a, chunk);
        u32 matches = 0;
        for (u64 at = start + thread(); at < end; at += TILE) {
            u32 mask;
            SPLICE_FIND("256", mask, at, left_from(at, end));
            matches += __builtin_popcount(mask);
        }
        return matches;
    });
}

// As search_list_* in search.cu.
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
        for (u64 tile = chunk_start(a, chunk); tile < end && offset < listed; tile += TILE) {
            u64 mine = tile + t * EACH;
            u32 mask;
            SPLICE_FIND("1", mask, mine, left_from(mine, end));
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
