// Cutting elements into chunks, and handing these out to blocks.

#pragma once

struct State {
    u64 next;     // the chunk to be handed out next
    u64 total;    // matches in the chunks counted so far
    u64 listed;   // how many indices the answer has
    u64 matching; // how many of the chunks that were counted have matches
};

// A chunk that has matches.
struct Hit {
    u64 chunk;
    u64 offset;   // where the index of its first match goes in the answer
};

struct Chunks {
    u64 base;       // address of the first element's field
    u64 count;      // elements
    u64 stride;     // bytes from field to field
    u64 head;       // elements before the first whole 16 bytes; 0 where that does not matter
    u64 per_chunk;  // elements
    u64 chunks;
};

INLINE u64 chunk_start(const Chunks &a, u64 chunk) { return chunk ? a.head + chunk * a.per_chunk : 0; }
INLINE u64 chunk_end(const Chunks &a, u64 chunk) { return least(a.count, a.head + (chunk + 1) * a.per_chunk); }

// Hands out chunks to the calling block until there are none, or, with `stop_at`, until enough matches are known.
//
// Why stopping is right: matches are added to `total` after their chunk was taken, and the total is read before the
// next chunk is taken, with fences between, so every match in the total lies in a chunk before the one not taken.
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
