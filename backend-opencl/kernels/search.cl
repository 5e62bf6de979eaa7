// Search for elements with a value: number of matches, and indices of the first ones in ascending order.
//
// The range is divided into segments, each within one buffer, and these into chunks. Launches, all in one queue:
//   search_begin: zeroes the counts, if the search may stop early,
//   search_count_*: for each segment: counts the matches of each chunk,
//   search_scan: one group: computes the places of each chunk's matches in the answer; writes the answer's header,
//   search_list_*: for each segment: reads the chunks with matches again, and writes their indices.
// No 64-bit atomics: a chunk has fewer than 2^32 elements, and one group computes 64-bit sums.
//
// Chunk c of a segment has the elements [head + c * per_chunk, head + (c + 1) * per_chunk), chunk 0 also the ones
// before `head`. `field` is the first element's field.

#define SEGMENT ConstBytes buffer, ulong field, ulong count, ulong stride, uint head, uint per_chunk, uint chunks
#define SEGMENT_LIST buffer, field, count, stride, head, per_chunk, chunks

static inline ulong chunk_start(SEGMENT, uint chunk) { return chunk ? head + (ulong)chunk * per_chunk : 0; }
static inline ulong chunk_end(SEGMENT, uint chunk) { return min(count, head + ((ulong)chunk + 1) * per_chunk); }

KERNEL void search_begin(__global uint *counts, uint chunks, __global uint *state, uint states) {
    for (uint i = get_global_id(0); i < chunks; i += get_global_size(0))
        counts[i] = 0;
    for (uint i = get_global_id(0); i < states; i += get_global_size(0))
        state[i] = 0;
}

// Number of fields of W bytes in 16 bytes that equal the value, which is repeated to fill 16 bytes.
static inline uint zero_bytes(uint4 x) {
    uint4 z = ~(((x & 0x7f7f7f7fu) + 0x7f7f7f7fu) | x | 0x7f7f7f7fu);
    return popcount(z.x | z.y >> 1 | z.z >> 2 | z.w >> 3);
}
static inline uint zero_halves(uint4 x) {
    uint4 z = ~(((x & 0x7fff7fffu) + 0x7fff7fffu) | x | 0x7fff7fffu);
    return popcount(z.x | z.y >> 1 | z.z >> 2 | z.w >> 3);
}
static inline uint equal_in_1(uint4 v, uint4 value) { return zero_bytes(v ^ value); }
static inline uint equal_in_2(uint4 v, uint4 value) { return zero_halves(v ^ value); }
static inline uint equal_in_4(uint4 v, uint4 value) {
    int4 e = v == value;
    return (uint)-(e.x + e.y + e.z + e.w);
}
static inline uint equal_in_8(uint4 v, uint4 value) {
    int4 e = v == value;
    return (uint)((e.x & e.y & 1) + (e.z & e.w & 1));
}
static inline uint equal_in_16(uint4 v, uint4 value) {
    int4 e = v == value;
    return (uint)(e.x & e.y & e.z & e.w & 1);
}

// Elements that consist of the field, at multiples of their size: 16 bytes at a time.
#define COUNT_PACKED(W, T, FIRST)                                                                                   \
    KERNEL void search_count_packed_##W(SEGMENT, uint4 value, uint stop_at, __global volatile uint *state,          \
                                        uint segment, __global uint *counts, uint chunks_before) {                  \
        __local uint found, shared;                                                                                 \
        uint t = get_local_id(0);                                                                                   \
        if (t == 0)                                                                                                 \
            found = 0;                                                                                              \
        barrier(CLK_LOCAL_MEM_FENCE);                                                                               \
        for (uint chunk = next_chunk(chunks, ~0u, stop_at, state, segment, &shared); chunk < chunks;                \
             chunk = next_chunk(chunks, chunk, stop_at, state, segment, &shared)) {                                 \
            ulong body = head + (ulong)chunk * per_chunk;                                                           \
            ulong end = chunk_end(SEGMENT_LIST, chunk);                                                             \
            uint matches = 0;                                                                                       \
            if (chunk == 0)                                                                                         \
                for (uint i = t; i < head && i < count; i += GROUP) {                                               \
                    T v = ((__global const T *)(buffer + field))[i];                                                \
                    matches += FIRST;                                                                               \
                }                                                                                                   \
            if (body < end) {                                                                                       \
                uint vectors = (uint)((end - body) / (16 / W));                                                     \
                __global const uint4 *from = (__global const uint4 *)(buffer + field + body * W);                   \
                uint i = t;                                                                                         \
                for (; i + 3 * GROUP < vectors; i += 4 * GROUP) {                                                   \
                    uint4 v0 = from[i], v1 = from[i + GROUP], v2 = from[i + 2 * GROUP], v3 = from[i + 3 * GROUP];   \
                    matches += equal_in_##W(v0, value) + equal_in_##W(v1, value) + equal_in_##W(v2, value) +        \
                               equal_in_##W(v3, value);                                                             \
                }                                                                                                   \
                for (; i < vectors; i += GROUP)                                                                     \
                    matches += equal_in_##W(from[i], value);                                                        \
                for (ulong rest = body + (ulong)vectors * (16 / W) + t; rest < end; rest += GROUP) {                \
                    T v = ((__global const T *)(buffer + field))[rest];                                             \
                    matches += FIRST;                                                                               \
                }                                                                                                   \
            }                                                                                                       \
            note(matches, chunks_before + chunk, stop_at, state, counts, &found);                                                   \
        }                                                                                                           \
    }

COUNT_PACKED(1, uchar, v == (uchar)value.x)
COUNT_PACKED(2, ushort, v == (ushort)value.x)
COUNT_PACKED(4, uint, v == value.x)
COUNT_PACKED(8, uint2, v.x == value.x && v.y == value.y)
COUNT_PACKED(16, uint4, equal_in_16(v, value))

// True if the bytes of a field from W on equal the value; `bytes` is a whole number of W, or W is 1.
#define EQUAL_REST(W, T)                                                                                            \
    static inline bool equal_rest_##W(ConstBytes at, ConstBytes value, uint bytes) {                                       \
        for (uint j = W; j < bytes; j += W)                                                                         \
            if (*(__global const T *)(at + j) != *(__global const T *)(value + j))                                  \
                return false;                                                                                       \
        return true;                                                                                                \
    }
EQUAL_REST(1, uchar)
EQUAL_REST(2, ushort)
EQUAL_REST(4, uint)
EQUAL_REST(8, ulong)

// Fields at any place, W bytes at a time, if W divides the place of every field and its length. Of most elements only
// the first W bytes are read.
#define COUNT_SPREAD(W, T)                                                                                          \
    KERNEL void search_count_spread_##W(SEGMENT, ulong first, ConstBytes value, uint bytes, uint stop_at,           \
                                        __global volatile uint *state, uint segment, __global uint *counts,         \
                                        uint chunks_before) {                                                       \
        __local uint found, shared;                                                                                 \
        uint t = get_local_id(0);                                                                                   \
        if (t == 0)                                                                                                 \
            found = 0;                                                                                              \
        barrier(CLK_LOCAL_MEM_FENCE);                                                                               \
        T wanted = (T)first;                                                                                        \
        for (uint chunk = next_chunk(chunks, ~0u, stop_at, state, segment, &shared); chunk < chunks;                \
             chunk = next_chunk(chunks, chunk, stop_at, state, segment, &shared)) {                                 \
            ulong start = chunk_start(SEGMENT_LIST, chunk);                                                         \
            uint elements = (uint)(chunk_end(SEGMENT_LIST, chunk) - start);                                         \
            ConstBytes at = buffer + field + (start + t) * stride;                                                  \
            ulong step = stride * GROUP;                                                                            \
            uint matches = 0, i = t;                                                                                \
            for (; i + 3 * GROUP < elements; i += 4 * GROUP, at += 4 * step) {                                      \
                T v0 = *(__global const T *)at;                                                                     \
                T v1 = *(__global const T *)(at + step);                                                            \
                T v2 = *(__global const T *)(at + 2 * step);                                                        \
                T v3 = *(__global const T *)(at + 3 * step);                                                        \
                if (v0 == wanted && equal_rest_##W(at, value, bytes))                                               \
                    matches++;                                                                                      \
                if (v1 == wanted && equal_rest_##W(at + step, value, bytes))                                        \
                    matches++;                                                                                      \
                if (v2 == wanted && equal_rest_##W(at + 2 * step, value, bytes))                                    \
                    matches++;                                                                                      \
                if (v3 == wanted && equal_rest_##W(at + 3 * step, value, bytes))                                    \
                    matches++;                                                                                      \
            }                                                                                                       \
            for (; i < elements; i += GROUP, at += step)                                                            \
                if (*(__global const T *)at == wanted && equal_rest_##W(at, value, bytes))                          \
                    matches++;                                                                                      \
            note(matches, chunks_before + chunk, stop_at, state, counts, &found);                                                   \
        }                                                                                                           \
    }

// Writes the indices of matches; see LIST_MATCHES.
#define LIST(W, T)                                                                                                  \
    KERNEL void search_list_##W(SEGMENT, ulong first, ConstBytes value, uint bytes, __global const uint *counts,    \
                                __global const ulong *offsets, uint chunks_before, ulong lowest, ulong highest,     \
                                ulong before, __global ulong *list, ulong list_start) {                             \
        T wanted = (T)first;                                                                                        \
        ConstBytes fields = buffer + field;                                                                         \
        LIST_MATCHES(chunk_start(SEGMENT_LIST, chunk), chunk_end(SEGMENT_LIST, chunk),                              \
                     *(__global const T *)(fields + i * stride) == wanted &&                                        \
                         equal_rest_##W(fields + i * stride, value, bytes))                                         \
    }

COUNT_SPREAD(1, uchar)
COUNT_SPREAD(2, ushort)
COUNT_SPREAD(4, uint)
COUNT_SPREAD(8, ulong)
LIST(1, uchar)
LIST(2, ushort)
LIST(4, uint)
LIST(8, ulong)

// One group. answer[0] becomes the total, answer[1] the number of listed indices.
KERNEL void search_scan(uint chunks, ulong limit, __global const uint *counts, __global ulong *offsets,
                        __global ulong *answer) {
    __local ulong sums[GROUP];
    uint t = get_local_id(0);
    ulong each = ((ulong)chunks + GROUP - 1) / GROUP;
    ulong start = min(t * each, (ulong)chunks), end = min(start + each, (ulong)chunks);
    ulong sum = 0;
    for (ulong c = start; c < end; c++)
        sum += counts[c];
    sums[t] = sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint distance = 1; distance < GROUP; distance *= 2) {
        ulong left = t >= distance ? sums[t - distance] : 0;
        barrier(CLK_LOCAL_MEM_FENCE);
        sums[t] += left;
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    ulong total = sums[GROUP - 1];
    if (t == 0) {
        answer[0] = total;
        answer[1] = min(limit, total);
    }
    if (total == 0 || limit == 0)
        return;
    ulong offset = sums[t] - sum;
    for (ulong c = start; c < end; c++) {
        offsets[c] = offset;
        offset += counts[c];
    }
}
