// Evaluation of programs. It follows common.cl and chunks.cl, and generated text of the program:
//   SOURCES, SOURCE_LIST   parameters: buffers, places of the first elements, literals, first and channel of the geometry
//   VALUE                  the type of the value, if the task has one
//   evaluate(SOURCE_LIST, i, &value)   true if element i is selected, and its value
//   store(SOURCE_LIST, i)              for TASK_STORE
// and a macro for the task. Elements are in segments, each within one buffer of each source; `before` is the index of a
// segment's first element.

#ifdef TASK_FIND
// Launches, all in one queue:
//   search_begin: zeroes the counts, if the search may stop early,
//   compute_count: for each segment: counts the matches of each chunk,
//   search_scan: one group: computes the places of each chunk's matches in the answer; writes the answer's header,
//   compute_list: for each segment: reads the chunks with matches again, and writes their indices.
// No 64-bit atomics: a chunk has fewer than 2^32 elements, and one group computes 64-bit sums.
//
// Chunk c of a segment has the elements [head + c * per_chunk, head + (c + 1) * per_chunk), chunk 0 also the ones
// before `head`.
static inline ulong chunk_start(uint head, uint per_chunk, uint chunk) {
    return chunk ? head + (ulong)chunk * per_chunk : 0;
}
static inline ulong chunk_end(ulong count, uint head, uint per_chunk, uint chunk) {
    return min(count, head + ((ulong)chunk + 1) * per_chunk);
}

#ifdef PACKED
// Number of values of PACKED bytes in 16 bytes that equal the value, which is repeated to fill 16 bytes.
static inline uint equal_in(uint4 v, uint4 value) {
#if PACKED <= 2
    uint4 below = PACKED == 1 ? 0x7f7f7f7fu : 0x7fff7fffu, x = v ^ value;
    uint4 z = ~(((x & below) + below) | x | below);
    return popcount(z.x | z.y >> 1 | z.z >> 2 | z.w >> 3);
#else
    int4 e = v == value;
#if PACKED == 4
    return (uint)-(e.x + e.y + e.z + e.w);
#elif PACKED == 8
    return (uint)((e.x & e.y & 1) + (e.z & e.w & 1));
#else
    return (uint)(e.x & e.y & e.z & e.w & 1);
#endif
#endif
}
#endif

KERNEL void compute_count(SOURCES, ulong count, uint head, uint per_chunk, uint chunks, uint stop_at,
                          __global volatile uint *state, uint segment, __global uint *counts, uint chunks_before) {
    __local uint found, shared;
    uint t = get_local_id(0);
    if (t == 0)
        found = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint chunk = next_chunk(chunks, ~0u, stop_at, state, segment, &shared); chunk < chunks;
         chunk = next_chunk(chunks, chunk, stop_at, state, segment, &shared)) {
        ulong start = chunk_start(head, per_chunk, chunk), end = chunk_end(count, head, per_chunk, chunk);
        uint matches = 0;
        VALUE value;
#ifdef PACKED
        // Elements that consist of the field: 16 bytes at a time, and one by one before and after them.
        ulong body = min(end, head + (ulong)chunk * per_chunk);
        for (ulong i = start + t; i < body; i += GROUP)
            matches += evaluate(SOURCE_LIST, i, &value);
        uint vectors = (uint)((end - body) / (16 / PACKED)), vector = t;
        __global const uint4 *from = (__global const uint4 *)(PACKED_SOURCE + body * PACKED);
        uint4 wanted = PACKED_VALUE;
        for (; vector + 3 * GROUP < vectors; vector += 4 * GROUP) {
            uint4 v0 = from[vector], v1 = from[vector + GROUP];
            uint4 v2 = from[vector + 2 * GROUP], v3 = from[vector + 3 * GROUP];
            matches += equal_in(v0, wanted) + equal_in(v1, wanted) + equal_in(v2, wanted) + equal_in(v3, wanted);
        }
        for (; vector < vectors; vector += GROUP)
            matches += equal_in(from[vector], wanted);
        start = body + (ulong)vectors * (16 / PACKED);
#endif
        for (ulong i = start + t; i < end; i += GROUP) {
            matches += evaluate(SOURCE_LIST, i, &value);
        }
        note(matches, chunks_before + chunk, stop_at, state, counts, &found);
    }
}

KERNEL void compute_list(SOURCES, ulong count, uint head, uint per_chunk, uint chunks, __global const uint *counts,
                         __global const ulong *offsets, uint chunks_before, ulong lowest, ulong highest, ulong before,
                         __global ulong *list, ulong list_start) {
    VALUE value;
    LIST_MATCHES(chunk_start(head, per_chunk, chunk), chunk_end(count, head, per_chunk, chunk),
                 evaluate(SOURCE_LIST, i, &value))
}
#endif

// Each group writes one partial result of five words; group 0 of the first segment also their number.
#define PARTIAL(partials, partials_before) (partials + 1 + 5 * (ulong)(partials_before + get_group_id(0)))

#ifdef TASK_SUM
// Adds one number of each item, in the order of a tree.
#define ADD_UP(T, mine, shared)                                                                                       \
    do {                                                                                                              \
        barrier(CLK_LOCAL_MEM_FENCE);                                                                                 \
        shared[t] = mine;                                                                                             \
        for (uint half_ = GROUP / 2; half_ > 0; half_ /= 2) {                                                         \
            barrier(CLK_LOCAL_MEM_FENCE);                                                                             \
            if (t < half_)                                                                                            \
                shared[t] += shared[t + half_];                                                                       \
        }                                                                                                             \
        barrier(CLK_LOCAL_MEM_FENCE);                                                                                 \
        mine = shared[0];                                                                                             \
    } while (0)

KERNEL void compute_sum(SOURCES, ulong count, __global ulong *partials, uint partials_before, uint partials_all) {
    __local ulong shared[GROUP];
    uint t = get_local_id(0);
    ulong counted = 0;
    __global ulong *partial = PARTIAL(partials, partials_before);
#ifdef SUM_OF_FLOATS
    __local double sums[GROUP];
    double sum = 0;
    for (ulong i = get_global_id(0); i < count; i += get_global_size(0)) {
        VALUE value;
        if (evaluate(SOURCE_LIST, i, &value)) {
            sum += (double)value;
            counted++;
        }
    }
    ADD_UP(double, sum, sums);
    ADD_UP(ulong, counted, shared);
    if (t == 0) {
        partial[0] = counted;
        partial[1] = as_ulong(sum);
        partial[2] = 0;
    }
#else
    // low + (high << 32); the low part of narrow numbers is signed.
    ulong low = 0, high = 0;
    for (ulong i = get_global_id(0); i < count; i += get_global_size(0)) {
        VALUE value;
        if (evaluate(SOURCE_LIST, i, &value)) {
            counted++;
#ifdef WIDE
            low += (ulong)value & 0xFFFFFFFFul;
            high += (ulong)(value >> 32);
#else
            low += (ulong)(long)value;
#endif
        }
    }
    ADD_UP(ulong, low, shared);
    ADD_UP(ulong, high, shared);
    ADD_UP(ulong, counted, shared);
    if (t == 0) {
        ulong word = low + (high << 32);
        partial[0] = counted;
        partial[1] = word;
        partial[2] = (ulong)((long)high >> 32) + (ulong)((long)low >> 63) + (word < low);
    }
#endif
    if (t == 0 && get_group_id(0) == 0)
        partials[0] = partials_all;
}
#endif

#ifdef TASK_EXTREMES
// Reduces the candidates of the items (key, number; ~0 for none) to the group's: the least key, and among equal keys
// the first element. A macro, because barriers in functions with pointers to an item's variables gave wrong results in
// PoCL.
#define LEAST_OF(key, number)                                                                                         \
    do {                                                                                                              \
        barrier(CLK_LOCAL_MEM_FENCE);                                                                                 \
        keys[t] = key;                                                                                                \
        numbers[t] = number;                                                                                          \
        for (uint half_ = GROUP / 2; half_ > 0; half_ /= 2) {                                                         \
            barrier(CLK_LOCAL_MEM_FENCE);                                                                             \
            if (t < half_) {                                                                                          \
                ulong k_ = keys[t + half_], n_ = numbers[t + half_];                                                  \
                if (n_ != ~0ul &&                                                                                     \
                    (numbers[t] == ~0ul || k_ < keys[t] || (k_ == keys[t] && n_ < numbers[t]))) {                     \
                    keys[t] = k_;                                                                                     \
                    numbers[t] = n_;                                                                                  \
                }                                                                                                     \
            }                                                                                                         \
        }                                                                                                             \
        barrier(CLK_LOCAL_MEM_FENCE);                                                                                 \
        key = keys[0];                                                                                                \
        number = numbers[0];                                                                                          \
    } while (0)

KERNEL void compute_extremes(SOURCES, ulong count, __global ulong *partials, uint partials_before, uint partials_all,
                             ulong before) {
    __local ulong keys[GROUP], numbers[GROUP];
    uint t = get_local_id(0);
    ulong counted = 0, least = ~0ul, least_at = ~0ul, greatest = ~0ul, greatest_at = ~0ul;
    for (ulong i = get_global_id(0); i < count; i += get_global_size(0)) {
        VALUE value;
        if (!evaluate(SOURCE_LIST, i, &value))
            continue;
        ulong key = key_of(value);
        counted++;
        if (least_at == ~0ul || key < least) {
            least = key;
            least_at = i;
        }
        // The greatest key is the least complement.
        if (greatest_at == ~0ul || ~key < greatest) {
            greatest = ~key;
            greatest_at = i;
        }
    }
    LEAST_OF(least, least_at);
    LEAST_OF(greatest, greatest_at);
    barrier(CLK_LOCAL_MEM_FENCE);
    numbers[t] = counted;
    for (uint half_ = GROUP / 2; half_ > 0; half_ /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (t < half_)
            numbers[t] += numbers[t + half_];
    }
    if (t == 0) {
        __global ulong *partial = PARTIAL(partials, partials_before);
        partial[0] = numbers[0];
        partial[1] = least;
        partial[2] = before + least_at;
        partial[3] = ~greatest;
        partial[4] = before + greatest_at;
        if (get_group_id(0) == 0)
            partials[0] = partials_all;
    }
}
#endif

#ifdef TASK_HISTOGRAM
// Each group counts separately; a second launch adds the totals to the totals of other segments.
KERNEL void compute_histogram(SOURCES, ulong count, uint bins, __global uint *counts) {
    __local uint mine[BINS_MAX];
    uint t = get_local_id(0);
    for (uint bin = t; bin < bins; bin += GROUP)
        mine[bin] = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (ulong i = get_global_id(0); i < count; i += get_global_size(0)) {
        VALUE value;
        if (evaluate(SOURCE_LIST, i, &value) && value < bins)
            atomic_inc(&mine[value]);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint bin = t; bin < bins; bin += GROUP)
        counts[(ulong)get_group_id(0) * bins + bin] = mine[bin];
}

KERNEL void compute_histogram_answer(uint bins, __global const uint *counts, uint groups, uint is_first,
                                     __global ulong *totals) {
    for (uint bin = get_global_id(0); bin < bins; bin += get_global_size(0)) {
        ulong sum = is_first ? 0 : totals[bin];
        for (uint group = 0; group < groups; group++)
            sum += counts[(ulong)group * bins + bin];
        totals[bin] = sum;
    }
}
#endif

#ifdef TASK_STORE
KERNEL void compute_store(SOURCES, ulong count) {
    for (ulong i = get_global_id(0); i < count; i += get_global_size(0))
        store(SOURCE_LIST, i);
}
#endif
