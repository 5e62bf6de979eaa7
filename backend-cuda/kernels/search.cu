// The scan between the kernels of compute_find.cu.

#include "chunks.h"

// One block. Leaves `next` and `total` at zero for the next search in this stream.
KERNEL search_scan(u64 chunks, u64 limit, State *state, const u32 *counts, Hit *hits, u64 *answer) {
    // For each thread, prefix sums: matches, and chunks with matches.
    __shared__ u64 sums[THREADS];
    __shared__ u32 filled[THREADS];
    u32 t = thread();
    u64 handled = least(state->next, chunks), total = state->total, listed = least(limit, total);
    barrier();
    if (t == 0) {
        answer[0] = total;
        answer[1] = listed;
        state->listed = listed;
        state->matching = 0;
        state->next = 0;
        state->total = 0;
    }
    if (listed == 0)
        return;
    // Four counts at a time; the list of counts starts at a multiple of 16 bytes, and has padding for the last read.
    u64 each = (handled + THREADS * 4 - 1) / (THREADS * 4) * 4;
    u64 start = least(t * each, handled), end = least(start + each, handled);
    auto four_at = [&](u64 c) -> u32x4 {
        u32x4 four = load<16>((u64)(counts + c));
        if (c + 1 >= end)
            four.y = 0;
        if (c + 2 >= end)
            four.z = 0;
        if (c + 3 >= end)
            four.w = 0;
        return four;
    };
    u64 sum = 0;
    u32 full = 0;
#pragma unroll 4
    for (u64 c = start; c < end; c += 4) {
        u32x4 four = four_at(c);
        sum += (u64)four.x + four.y + four.z + four.w;
        full += (four.x != 0) + (four.y != 0) + (four.z != 0) + (four.w != 0);
    }
    sums[t] = sum;
    filled[t] = full;
    barrier();
    for (u32 distance = 1; distance < THREADS; distance *= 2) {
        u64 sum_before = t >= distance ? sums[t - distance] : 0;
        u32 full_before = t >= distance ? filled[t - distance] : 0;
        barrier();
        sums[t] += sum_before;
        filled[t] += full_before;
        barrier();
    }
    if (t == THREADS - 1)
        state->matching = filled[t];
    if (full == 0)
        return;
    u64 offset = sums[t] - sum;
    u32 place = filled[t] - full;
#pragma unroll 4
    for (u64 c = start; c < end; c += 4) {
        u32x4 four = four_at(c);
        u32 matches[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            if (matches[j]) {
                hits[place].chunk = c + j;
                hits[place].offset = offset;
                place++;
                offset += matches[j];
            }
        }
    }
}
