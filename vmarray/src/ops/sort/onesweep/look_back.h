// Prefix sums, and runs of equal keys, in one reading and one writing: each block learns from those before it what
// their elements come to (D. Merrill, M. Garland, "Single-pass Parallel Prefix Scan with Decoupled Look-back", 2016).
#include "onesweep.h"

// A block takes a tile of elements that follow one another.
const u32 EACH = 16, TILE = THREADS * EACH, WARPS = THREADS / 32;
// States are all zero before. The first 64 bytes have the number of the next tile, 4 bytes, and at 8 what all elements
// come to. Then 32 bytes for each tile: what is known of it, at 8 its own sum, at 16 that of all tiles up to it.
const u32 STATES = 64, STATE = 32;
const u32 OWN_IS_KNOWN = 1, ALL_IS_KNOWN = 2;
// Three blocks of a multiprocessor wait in turns, though a few registers are spilled: on an H200 sums of 4 and 8 bytes
// take 0.84 and 0.74 of the time of as few as there are without, those of floats 0.77 and 0.53; four or more take longer.
#define SUM_KERNEL extern "C" __global__ __attribute__((launch_bounds(THREADS, 3))) void

INLINE u32 lanes_with(bool condition) {
    u32 lanes;
    asm volatile("{ .reg .pred has; setp.ne.u32 has, %1, 0; vote.sync.ballot.b32 %0, has, 0xffffffff; }"
                 : "=r"(lanes)
                 : "r"((u32)condition));
    return lanes;
}
// 64 bits from another lane, in two halves.
#define FROM_OTHER(NAME, MODE)                                                                                      \
    INLINE u64 NAME(u64 value, u32 which) {                                                                         \
        u32 low, high;                                                                                              \
        asm volatile("shfl.sync." MODE ".b32 %0, %2, %4, 31, 0xffffffff; shfl.sync." MODE                           \
                     ".b32 %1, %3, %4, 31, 0xffffffff;"                                                             \
                     : "=&r"(low), "=r"(high)                                                                       \
                     : "r"((u32)value), "r"((u32)(value >> 32)), "r"(which));                                       \
        return (u64)high << 32 | low;                                                                               \
    }
FROM_OTHER(from_other, "bfly")
FROM_OTHER(from_lane, "idx")
INLINE u64 from_lane_below(u64 value, u32 by) {
    return (u64)from_below((u32)(value >> 32), by) << 32 | from_below((u32)value, by);
}
INLINE u64 read_number(u64 at) {
    u64 number;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(number) : "l"(at) : "memory");
    return number;
}
INLINE void write_number(u64 at, u64 number) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(at), "l"(number) : "memory");
}
INLINE u32 acquire(u64 at) {
    u32 known;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(known) : "l"(at) : "memory");
    return known;
}
INLINE void release(u64 at, u32 known) {
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(at), "r"(known) : "memory");
}

// The number of a block's tile, in the order in which blocks begin: those before it are at work.
INLINE u32 next_tile(u64 states) {
    __shared__ u32 number;
    if (thread() == 0)
        number = next_number(states);
    barrier();
    return number;
}

// What all tiles before one come to, told to all lanes of a warp, which tells later tiles what its own does.
INLINE u64 sum_before(u64 states, u32 tile, u64 own) {
    u64 state = states + STATES + (u64)tile * STATE, before = 0;
    u32 l = lane();
    if (tile > 0) {
        if (l == 0) {
            write_number(state + 8, own);
            release(state, OWN_IS_KNOWN);
        }
        for (u32 end = tile;; end -= 32) {
            // Of 32 tiles before `end`, the nearest first.
            u32 known = ALL_IS_KNOWN;
            u64 sum = 0;
            if (l < end) {
                u64 look = states + STATES + (u64)(end - 1 - l) * STATE;
                while ((known = acquire(look)) == 0) {
                }
                sum = read_number(look + 8 * known);
            }
            u32 last = lanes_with(known == ALL_IS_KNOWN);
            if (last && l > (u32)__builtin_ctz(last))
                sum = 0;
#pragma unroll
            for (u32 mask = 1; mask < 32; mask *= 2)
                sum += from_other(sum, mask);
            before += sum;
            if (last)
                break;
        }
    }
    if (l == 0) {
        write_number(state + 16, before + own);
        release(state, ALL_IS_KNOWN);
    }
    return before;
}

// What all tiles before this one come to, and in `own` of each thread what the threads before it do. Afterwards
// `whole` has what comes to with this tile.
INLINE u64 sum_before_thread(u64 states, u32 tile, u64 own, u64 &whole) {
    __shared__ u64 sums[WARPS + 2];
    u32 warp = thread() / 32, l = lane();
    u64 sum = own;
#pragma unroll
    for (u32 step = 1; step < 32; step *= 2) {
        u64 other = from_lane_below(sum, step);
        if (l >= step)
            sum += other;
    }
    if (l == 31)
        sums[warp] = sum;
    barrier();
    if (warp == 0) {
        u64 of_tile = 0;
        for (u32 w = 0; w < WARPS; w++)
            of_tile += sums[w];
        u64 before = sum_before(states, tile, of_tile);
        if (l == 0) {
            sums[WARPS] = before;
            sums[WARPS + 1] = before + of_tile;
        }
    }
    barrier();
    u64 before = sums[WARPS] + sum - own;
    for (u32 w = 0; w < warp; w++)
        before += sums[w];
    whole = sums[WARPS + 1];
    return before;
}

// Each element becomes the sum of all up to it, or of all before it.
template <u32 W> INLINE void sum_up(u64 elements, u64 states, u64 count, bool is_exclusive) {
    // One place is left out after every 16, so that threads that take 16 each do not meet.
    __shared__ word<W> tile_elements[TILE + TILE / EACH];
    u32 t = thread(), tile = next_tile(states);
    u64 first = (u64)tile * TILE;
    if (first >= count)
        return;
    u32 here = (u32)least(TILE, count - first);
    u64 at = elements + first * W;
    word<W> read[EACH];
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        u32 j = t + i * THREADS;
        read[i] = j < here ? load<W>(at + (u64)j * W) : 0;
    }
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        u32 j = t + i * THREADS;
        tile_elements[j + j / EACH] = read[i];
    }
    barrier();
    u64 own = 0;
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        read[i] = tile_elements[t * (EACH + 1) + i];
        own += read[i];
    }
    u64 whole, sum = sum_before_thread(states, tile, own, whole);
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        u64 before = sum;
        sum += read[i];
        tile_elements[t * (EACH + 1) + i] = (word<W>)(is_exclusive ? before : sum);
    }
    barrier();
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        u32 j = t + i * THREADS;
        if (j < here)
            store<W>(at + (u64)j * W, tile_elements[j + j / EACH]);
    }
    if (t == 0 && first + TILE >= count)
        write_number(states + 8, whole);
}

// Where runs of equal elements begin: the numbers of their first elements, and behind all of them that of the last
// element plus one; or the elements themselves. So many as there is room for.
template <u32 W, bool IS_STARTS> INLINE void list_runs(u64 elements, u64 list, u64 states, u64 count, u64 room) {
    u32 t = thread(), warp = t / 32, l = lane(), tile = next_tile(states);
    u64 first = (u64)tile * TILE;
    if (first >= count)
        return;
    u64 own = first + warp * 32 * EACH + l;
    word<W> read[EACH], before_warp = 0;
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        u64 j = own + i * 32;
        read[i] = j < count ? load<W>(elements + j * W) : 0;
    }
    if (l == 0 && own > 0 && own < count)
        before_warp = load<W>(elements + (own - 1) * W);
    u32 begins[EACH], of_warp = 0;
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        u64 j = own + i * 32;
        word<W> below;
        if constexpr (W == 8)
            below = from_lane_below(read[i], 1);
        else
            below = (word<W>)from_below(read[i], 1);
        // The last lane's element of the row before.
        if (l == 0)
            below = before_warp;
        before_warp = (word<W>)from_lane(read[i], 31);
        begins[i] = lanes_with(j < count && (j == 0 || read[i] != below));
        of_warp += __builtin_popcount(begins[i]);
    }
    // Its first lane stands for the warp.
    u64 whole, place = sum_before_thread(states, tile, l == 0 ? of_warp : 0, whole);
    place = from_lane(place, 0);
    u32 lanes_before = lanes_below();
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        u64 to = place + __builtin_popcount(begins[i] & lanes_before);
        if (begins[i] >> l & 1 && to < room) {
            if constexpr (IS_STARTS)
                store<8>(list + to * 8, own + i * 32);
            else
                store<W>(list + to * W, read[i]);
        }
        place += __builtin_popcount(begins[i]);
    }
    if (t == 0 && first + TILE >= count) {
        write_number(states + 8, whole);
        if (IS_STARTS && whole < room)
            store<8>(list + whole * 8, count);
    }
}

#define LOOKS_BACK(W)                                                                                               \
    SUM_KERNEL sum_up_of(u64 elements, u64 states, u64, u64 count, u64 is_exclusive) {                              \
        sum_up<W>(elements, states, count, is_exclusive != 0);                                                      \
    }                                                                                                               \
    KERNEL list_starts_of(u64 elements, u64 starts, u64 states, u64, u64 count, u64 room) {                         \
        list_runs<W, true>(elements, starts, states, count, room);                                                  \
    }                                                                                                               \
    KERNEL list_distinct_of(u64 elements, u64 distinct, u64 states, u64, u64 count, u64 room) {                     \
        list_runs<W, false>(elements, distinct, states, count, room);                                               \
    }
