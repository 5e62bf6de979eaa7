// Division of elements into chunks, and their distribution to blocks.

#pragma once

struct State {
    u64 next;     // the next chunk
    u64 total;    // matches in the chunks counted so far
    u64 listed;   // number of indices in the answer
    u64 matching; // number of counted chunks with matches
};

// A chunk with matches.
struct Hit {
    u64 chunk;
    u64 offset;   // place of its first match's index in the answer
};

struct Chunks {
    u64 count;      // elements
    u64 head;       // elements before the first whole 16 bytes, fewer than 16; 0 if that does not matter
    u64 per_chunk;  // elements
    u64 chunks;
    u64 tile;       // elements that a block counts at a time
};

INLINE u64 chunk_start(const Chunks &a, u64 chunk) { return chunk ? a.head + chunk * a.per_chunk : 0; }
INLINE u64 chunk_end(const Chunks &a, u64 chunk) { return least(a.count, a.head + (chunk + 1) * a.per_chunk); }

// Distributes chunks to the calling block until there are none, or, with `stop_at`, until enough matches are known.
//
// Proof of the early stop: a block adds matches to `total` after it took their chunk, and reads the total before it
// takes the next chunk, with fences between. So every match in the total is in a chunk before the first untaken one.
template <class Count> INLINE void for_each_chunk(u64 chunks, u64 stop_at, State *state, u32 *counts, Count count) {
    __shared__ u64 current;
    __shared__ u32 found;
    volatile u64 *total = &state->total;
    bool exhaustive = stop_at == ~0ull;
    u64 mine = chunks;
    if (thread() == 0 && *total < stop_at) {
        fence();
        mine = __atomic_fetch_add(&state->next, 1, __ATOMIC_RELAXED);
    }
    for (;;) {
        if (thread() == 0) {
            current = mine;
            found = 0;
        }
        barrier();
        u64 chunk = current;
        if (chunk >= chunks)
            return;
        if (thread() == 0 && exhaustive)
            mine = __atomic_fetch_add(&state->next, 1, __ATOMIC_RELAXED);
        u32 matches = count(chunk);
        if (matches)
            __atomic_fetch_add(&found, matches, __ATOMIC_RELAXED);
        barrier();
        if (thread() == 0) {
            counts[chunk] = found;
            if (found) {
                fence();
                __atomic_fetch_add(&state->total, (u64)found, __ATOMIC_RELAXED);
            }
            if (!exhaustive) {
                mine = chunks;
                if (*total < stop_at) {
                    fence();
                    mine = __atomic_fetch_add(&state->next, 1, __ATOMIC_RELAXED);
                }
            }
        }
    }
}
