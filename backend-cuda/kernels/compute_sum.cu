// Sums: each block processes tiles at the stride of the grid, and writes one partial result. The elements of a thread
// and their order depend only on the numbers of blocks and elements.

#include "splice.h"

struct Partial {
    u64 count;
    u64 words[4];
};

INLINE u64 block_sum(u64 mine, u64 *shared) {
    u32 t = thread();
    shared[t] = mine;
    barrier();
    for (u32 half = THREADS / 2; half > 0; half /= 2) {
        if (t < half)
            shared[t] += shared[t + half];
        barrier();
    }
    u64 sum = shared[0];
    barrier();
    return sum;
}

KERNEL compute_sum(Space space, u64 *answer) {
    __shared__ u64 shared[THREADS];
    u64 low = 0, high = 0;
    u32 counted = 0;
    u64 all = 0;
    for (u64 tile = (u64)block() * TILE; tile < space.count; tile += (u64)blocks() * TILE) {
        u64 at = tile + thread();
        SPLICE_SUM(low, high, counted, at, left_from(at, space.count));
        all += counted;
        counted = 0;
    }
    low = block_sum(low, shared);
    high = block_sum(high, shared);
    all = block_sum(all, shared);
    if (thread() == 0) {
        // As 128 bits: the low sum has its own sign.
        u64 word = low + (high << 32);
        u64 carry = word < low;
        Partial *partial = (Partial *)(answer + 1) + block();
        partial->count = all;
        partial->words[0] = word;
        partial->words[1] = (u64)((long long)high >> 32) + (u64)((long long)low >> 63) + carry;
        if (block() == 0)
            answer[0] = blocks();
    }
}

KERNEL compute_sum_floats(Space space, u64 *answer) {
    __shared__ u64 shared[THREADS];
    __shared__ double sums[THREADS];
    double sum = 0;
    u32 counted = 0, t = thread();
    u64 all = 0;
    for (u64 tile = (u64)block() * TILE; tile < space.count; tile += (u64)blocks() * TILE) {
        u64 at = tile + t;
        SPLICE_SUM_FLOATS(sum, counted, at, left_from(at, space.count));
        all += counted;
        counted = 0;
    }
    sums[t] = sum;
    all = block_sum(all, shared);
    for (u32 half = THREADS / 2; half > 0; half /= 2) {
        if (t < half)
            sums[t] += sums[t + half];
        barrier();
    }
    if (t == 0) {
        Partial *partial = (Partial *)(answer + 1) + block();
        partial->count = all;
        partial->words[0] = __builtin_bit_cast(u64, sums[0]);
        if (block() == 0)
            answer[0] = blocks();
    }
}
