// Search for elements with a value: number of matches, and indices of the first ones in ascending order.
//
// Three launches in one stream, without the host in between:
//   search_count_*: counts the matches of each chunk of elements; blocks take chunks in ascending order,
//   search_scan: one block; lists the chunks with matches and the places of these in the answer; writes its header,
//   search_list_*: reads the chunks with matches again, and writes their indices.
//
// Chunk c has the elements [head + c * per_chunk, head + (c + 1) * per_chunk), chunk 0 also the ones before `head`.

#include "chunks.h"

// Sets the top bit of each byte, or each two bytes, that are zero.
INLINE u32 zero_bytes(u32 x) { return ~(((x & 0x7f7f7f7fu) + 0x7f7f7f7fu) | x | 0x7f7f7f7fu); }
INLINE u32 zero_halves(u32 x) { return ~(((x & 0x7fff7fffu) + 0x7fff7fffu) | x | 0x7fff7fffu); }

// Number of values of W bytes in 16 bytes that equal the value (repeated to fill 8 bytes; `second` is the other half of
// a value of 16).
template <u32 W> INLINE u32 equal_in(u32x4 v, u64 first, u64 second) {
    u32 low = (u32)first, high = (u32)(first >> 32);
    if constexpr (W == 1)
        return __builtin_popcount(zero_bytes(v.x ^ low) | zero_bytes(v.y ^ low) >> 1 |
                                  zero_bytes(v.z ^ low) >> 2 | zero_bytes(v.w ^ low) >> 3);
    else if constexpr (W == 2)
        return __builtin_popcount(zero_halves(v.x ^ low) | zero_halves(v.y ^ low) >> 1 |
                                  zero_halves(v.z ^ low) >> 2 | zero_halves(v.w ^ low) >> 3);
    else if constexpr (W == 4)
        return (v.x == low) + (v.y == low) + (v.z == low) + (v.w == low);
    else if constexpr (W == 8)
        return (v.x == low && v.y == high) + (v.z == low && v.w == high);
    else
        return v.x == low && v.y == high && v.z == (u32)second && v.w == (u32)(second >> 32);
}

template <u32 W> INLINE bool equal_one(u64 at, u64 first, u64 second) {
    if constexpr (W == 16)
        return load<8>(at) == first && load<8>(at + 8) == second;
    else
        return load<W>(at) == (word<W>)first;
}

// Elements that consist of the field: 16 bytes at a time.
template <u32 W>
INLINE void count_packed(const Chunks &a, u64 first, u64 second, u64 stop_at, State *state, u32 *counts) {
    for_each_chunk(a.chunks, stop_at, state, counts, [&](u64 chunk) -> u32 {
        u32 t = thread(), matches = 0;
        u64 body = a.head + chunk * a.per_chunk, end = chunk_end(a, chunk);
        if (chunk == 0 && t < a.head && t < a.count)
            matches += equal_one<W>(a.base + t * W, first, second);
        if (body >= end)
            return matches;
        u32 vectors = (u32)((end - body) * W / 16);
        u64 at = a.base + body * W;
        u32 i = t;
        for (; i + 3 * THREADS < vectors; i += 4 * THREADS) {
            u32x4 v0 = read16(at + (u64)i * 16);
            u32x4 v1 = read16(at + (u64)i * 16 + THREADS * 16);
            u32x4 v2 = read16(at + (u64)i * 16 + THREADS * 32);
            u32x4 v3 = read16(at + (u64)i * 16 + THREADS * 48);
            matches += equal_in<W>(v0, first, second) + equal_in<W>(v1, first, second) +
                       equal_in<W>(v2, first, second) + equal_in<W>(v3, first, second);
        }
        for (; i < vectors; i += THREADS)
            matches += equal_in<W>(read16(at + (u64)i * 16), first, second);
        u64 rest = body + (u64)vectors * (16 / W) + t;
        if (rest < end)
            matches += equal_one<W>(a.base + rest * W, first, second);
        return matches;
    });
}

// True if the rest of a field, from byte `W` on, equals the value.
template <u32 W> INLINE bool equal_rest(u64 at, u64 value, u32 bytes) {
    u32 j = W;
    for (; j + W <= bytes; j += W)
        if (load<W>(at + j) != load<W>(value + j))
            return false;
    for (; j < bytes; j++)
        if (load<1>(at + j) != load<1>(value + j))
            return false;
    return true;
}

// Fields at any place: W bytes at a time, if W divides the address of every field; of most elements only the first W.
template <u32 W>
INLINE void count_spread(const Chunks &a, u64 first, u64 value, u32 bytes, u64 stop_at, State *state, u32 *counts) {
    for_each_chunk(a.chunks, stop_at, state, counts, [&](u64 chunk) -> u32 {
        u32 matches = 0;
        u64 start = chunk_start(a, chunk), end = chunk_end(a, chunk);
        u32 elements = (u32)(end - start);
        u64 at = a.base + start * a.stride;
        u64 step = a.stride * THREADS;
        u64 p = at + thread() * a.stride;
        u32 i = thread();
        auto check = [&](u64 q, word<W> w) {
            if (w == (word<W>)first && (bytes == W || equal_rest<W>(q, value, bytes)))
                matches++;
        };
        for (; i + 3 * THREADS < elements; i += 4 * THREADS, p += 4 * step) {
            word<W> w0 = load<W>(p), w1 = load<W>(p + step), w2 = load<W>(p + 2 * step), w3 = load<W>(p + 3 * step);
            check(p, w0);
            check(p + step, w1);
            check(p + 2 * step, w2);
            check(p + 3 * step, w3);
        }
        for (; i < elements; i += THREADS, p += step)
            check(p, load<W>(p));
        return matches;
    });
}

// A block processes its chunks tile by tile. Most tiles of a chunk have no match, and cost one barrier. Matches are
// first ordered in shared memory, because writes of single numbers are the slowest traffic of a bus.
template <u32 W>
INLINE void list(const Chunks &a, u64 first, u64 value, u32 bytes, const State *state, const Hit *hits, u64 *indices) {
    const u32 EACH = 8;
    __shared__ u32 sums[THREADS];
    __shared__ u16 matching[THREADS * EACH];
    u64 listed = state->listed, hit_count = state->matching;
    u32 t = thread();
    for (u64 hit = block(); hit < hit_count; hit += blocks()) {
        u64 chunk = hits[hit].chunk, offset = hits[hit].offset;
        if (offset >= listed)
            return;
        u64 end = chunk_end(a, chunk);
        for (u64 tile = chunk_start(a, chunk); tile < end && offset < listed; tile += THREADS * EACH) {
            u64 mine = tile + t * EACH;
            u32 mask = 0;
            for (u32 j = 0; j < EACH; j++) {
                u64 at = a.base + (mine + j) * a.stride;
                if (mine + j < end && load<W>(at) == (word<W>)first &&
                    (bytes == W || equal_rest<W>(at, value, bytes)))
                    mask |= 1u << j;
            }
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

#define PACKED(W)                                                                                                  \
    KERNEL search_count_packed_##W(Chunks a, u64 first, u64 second, u64 stop_at, State *state, u32 *counts) {      \
        count_packed<W>(a, first, second, stop_at, state, counts);                                                 \
    }
PACKED(1)
PACKED(2)
PACKED(4)
PACKED(8)
PACKED(16)

#define SPREAD(W)                                                                                                  \
    KERNEL search_count_spread_##W(Chunks a, u64 first, u64 value, u32 bytes, u64 stop_at, State *state,           \
                                   u32 *counts) {                                                                  \
        count_spread<W>(a, first, value, bytes, stop_at, state, counts);                                           \
    }                                                                                                              \
    KERNEL search_list_##W(Chunks a, u64 first, u64 value, u32 bytes, const State *state, const Hit *hits,         \
                           u64 *indices) {                                                                         \
        list<W>(a, first, value, bytes, state, hits, indices);                                                     \
    }
SPREAD(1)
SPREAD(2)
SPREAD(4)
SPREAD(8)

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
