// Distribution of chunks of elements to groups, counts of their matches, and ordered lists of these.

// The chunk that the calling group processes next; `chunks` if there is none.
//
// With stop_at = 0 groups take chunks at the stride of the number of groups. Otherwise they take single chunks in
// ascending order until `stop_at` matches are known. Proof of the early stop: a group adds a chunk's matches to the
// total (state[0]) after it took the chunk, and reads the total before it takes the next one. So all matches in the
// total are in chunks before the first untaken one, and those chunks are counted to their end.
static inline uint next_chunk(uint chunks, uint previous, uint stop_at, __global volatile uint *state, uint segment,
                       __local uint *shared) {
    if (stop_at == 0)
        return previous == ~0u ? (uint)get_group_id(0) : previous + (uint)get_num_groups(0);
    barrier(CLK_LOCAL_MEM_FENCE);
    if (get_local_id(0) == 0)
        *shared = atomic_add(&state[0], 0) >= stop_at ? chunks : atomic_inc(&state[1 + segment]);
    barrier(CLK_LOCAL_MEM_FENCE);
    return *shared;
}

// Adds the group's matches, and records them for the chunk.
static inline void note(uint matches, uint chunk, uint stop_at, __global volatile uint *state, __global uint *counts,
                 __local uint *found) {
    if (matches)
        atomic_add(found, matches);
    barrier(CLK_LOCAL_MEM_FENCE);
    if (get_local_id(0) == 0) {
        uint sum = *found;
        counts[chunk] = sum;
        *found = 0;
        if (stop_at && sum)
            atomic_add(&state[0], sum);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
}

// Number of elements of an item in one tile of a listing.
#define EACH 8

// Body of a kernel that writes the indices of the matches number [lowest, highest) to `list`, from `list_start` on.
// `chunk` is a chunk from START to END, in which element `i` is selected if MATCHES. `counts` and `offsets` contain the
// number of a chunk's matches, and the number before it; `before` is the index of the segment's first element. It is a
// macro, so that its barriers belong to the kernel, which PoCL handles best.
#define LIST_MATCHES(START, END, MATCHES)                                                                           \
    __local uint sums[GROUP];                                                                                       \
    uint t = get_local_id(0);                                                                                       \
    for (uint chunk = get_group_id(0); chunk < chunks; chunk += get_num_groups(0)) {                                \
        uint expected = counts[chunks_before + chunk];                                                              \
        if (expected == 0)                                                                                          \
            continue;                                                                                               \
        ulong rank = offsets[chunks_before + chunk];                                                                \
        if (rank >= highest || rank + expected <= lowest)                                                           \
            continue;                                                                                               \
        ulong end = END;                                                                                            \
        for (ulong tile = START; tile < end && rank < highest; tile += GROUP * EACH) {                              \
            ulong mine = tile + t * EACH;                                                                           \
            uint mask = 0;                                                                                          \
            for (uint j = 0; j < EACH; j++) {                                                                       \
                ulong i = mine + j;                                                                                 \
                if (i < end && (MATCHES))                                                                           \
                    mask |= 1u << j;                                                                                \
            }                                                                                                       \
            uint own = popcount(mask);                                                                              \
            sums[t] = own;                                                                                          \
            barrier(CLK_LOCAL_MEM_FENCE);                                                                           \
            for (uint distance = 1; distance < GROUP; distance *= 2) {                                              \
                uint left = t >= distance ? sums[t - distance] : 0;                                                 \
                barrier(CLK_LOCAL_MEM_FENCE);                                                                       \
                sums[t] += left;                                                                                    \
                barrier(CLK_LOCAL_MEM_FENCE);                                                                       \
            }                                                                                                       \
            ulong at_rank = rank + sums[t] - own;                                                                   \
            for (uint j = 0; j < EACH; j++)                                                                         \
                if (mask >> j & 1) {                                                                                \
                    if (at_rank >= lowest && at_rank < highest)                                                     \
                        list[list_start + at_rank - lowest] = before + mine + j;                                    \
                    at_rank++;                                                                                      \
                }                                                                                                   \
            rank += sums[GROUP - 1];                                                                                \
            barrier(CLK_LOCAL_MEM_FENCE);                                                                           \
        }                                                                                                           \
    }
