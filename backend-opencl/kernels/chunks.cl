// Handing out chunks of elements to groups, and noting how many matches each has.

// The chunk that the calling group handles next; `chunks` if there is none.
//
// With stop_at = 0 groups take every so many-th chunk. Else chunks are handed out one by one, in ascending order,
// until `stop_at` matches are known. Why stopping is right: a chunk's matches enter the total (state[0]) after the
// chunk was taken, and the total is read before the next one is taken; so the matches in the total all lie in chunks
// before the first one that nobody took, and those are all counted to their end.
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

// Adds up the group's matches and notes them for the chunk.
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
