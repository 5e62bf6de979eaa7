// Histogram: each block counts in shared memory, and adds its counts in device memory.

#include "splice.h"

#define BINS_MAX 4096

KERNEL compute_histogram(Space space, u32 bins, u64 *totals) {
    __shared__ u32 counts[BINS_MAX];
    u32 t = thread();
    for (u32 bin = t; bin < bins; bin += THREADS)
        counts[bin] = 0;
    barrier();
    for (u64 tile = (u64)block() * TILE; tile < space.count; tile += (u64)blocks() * TILE) {
        u64 at = tile + t;
        u32 bin[EACH];
        SPLICE_HISTOGRAM(bin, at, left_from(at, space.count));
#pragma unroll
        for (u32 k = 0; k < EACH; k++)
            if (bin[k] < bins)
                __atomic_fetch_add(&counts[bin[k]], 1, __ATOMIC_RELAXED);
    }
    barrier();
    for (u32 bin = t; bin < bins; bin += THREADS)
        if (counts[bin])
            __atomic_fetch_add(&totals[bin], (u64)counts[bin], __ATOMIC_RELAXED);
}

KERNEL compute_histogram_answer(u32 bins, const u64 *totals, u64 *answer) {
    for (u32 bin = block() * THREADS + thread(); bin < bins; bin += blocks() * THREADS)
        answer[bin] = totals[bin];
}
