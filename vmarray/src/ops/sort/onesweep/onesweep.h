// A pass of a radix sort: keys are moved to where the pass wants them in one reading and one writing, since each
// block learns from those before it where its own keys go (A. Adinets, D. Merrill, "Onesweep: A Faster Least
// Significant Digit Radix Sort for GPUs", 2022; the look-back is that of D. Merrill, M. Garland, "Single-pass
// Parallel Prefix Scan with Decoupled Look-back", 2016).
//
// A block takes a *tile* of keys, each warp neighbours of it. It counts the digits of the tile, says so to later
// blocks, gives each key its place among those of the tile, and puts the tile in order in shared memory, from where
// runs of one digit go out together. Keys with equal digits stay in their order.
//
// Keys may have values, which move with them.
//
// Keys are compared as unsigned numbers once `flip` and `flip_negative` are applied: see `SortKey`.

#define SHARED __attribute__((address_space(3)))

const u32 DIGITS = 256;
// What is known of a digit in a tile: how many keys have it, in the tile alone or in all tiles up to it.
const u32 OF_TILE = 1u << 30, OF_ALL = 2u << 30, NUMBER = OF_TILE - 1;
const u32 EVERY_LANE = 0xffffffff;

// A key as an unsigned number that is ordered as the keys are.
template <u32 K> INLINE word<K> in_order(u64 flip, u64 flip_negative, word<K> key) {
    if constexpr (K == 8)
        return key ^ flip ^ ((u64)((long long)key >> 63) & flip_negative);
    else
        return (word<K>)((u32)key ^ (u32)flip ^ ((u32)((int)((u32)key << (32 - 8 * K)) >> 31) & (u32)flip_negative));
}
// The inverse.
template <u32 K> INLINE word<K> as_it_was(u64 flip, u64 flip_negative, word<K> key) {
    return in_order<K>(0, flip_negative, (word<K>)(key ^ (word<K>)flip));
}

INLINE u32 lane() { return thread() & 31; }
INLINE u32 lanes_below() {
    u32 mask;
    asm("mov.u32 %0, %%lanemask_lt;" : "=r"(mask));
    return mask;
}
INLINE void warp_barrier() { asm volatile("bar.warp.sync 0xffffffff;" ::: "memory"); }
INLINE u32 from_below(u32 value, u32 by) {
    u32 other;
    asm volatile("shfl.sync.up.b32 %0, %1, %2, 0, 0xffffffff;" : "=r"(other) : "r"(value), "r"(by));
    return other;
}
// The sum of a value and of those of all lanes before.
INLINE u32 sum_up_to(u32 value) {
#pragma unroll
    for (u32 step = 1; step < 32; step *= 2) {
        u32 other = from_below(value, step);
        if (lane() >= step)
            value += other;
    }
    return value;
}
// The lanes whose digit is the same.
INLINE u32 lanes_alike(u32 digit) {
    u32 alike = EVERY_LANE;
#pragma unroll
    for (u32 bit = 1; bit < DIGITS; bit *= 2) {
        u32 lanes;
        asm volatile("{ .reg .pred has; .reg .b32 own; and.b32 own, %1, %2; setp.ne.u32 has, own, 0;"
                     "  vote.sync.ballot.b32 %0, has, 0xffffffff; @!has not.b32 %0, %0; }"
                     : "=r"(lanes)
                     : "r"(digit), "r"(bit));
        alike &= lanes;
    }
    return alike;
}
INLINE u32 read_state(u64 at) {
    u32 state;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(state) : "l"(at) : "memory");
    return state;
}
// A state is one word, which says both what is known and the number: nothing else has to be seen with it.
INLINE void write_state(u64 at, u32 state) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(at), "r"(state) : "memory");
}
INLINE u32 next_number(u64 at) {
    u32 number;
    asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], 1;" : "=r"(number) : "l"(at) : "memory");
    return number;
}
INLINE void add_in_block(SHARED u32 *at, u32 by) {
    asm volatile("red.relaxed.cta.shared.add.u32 [%0], %1;" ::"r"((u32)(u64)at), "r"(by) : "memory");
}

struct Pass {
    u64 keys, to;        // addresses: of the first key that is read, and of where all of them go
    u64 values, values_to;  // the same of values
    u64 starts, ends;    // of 256 numbers: where the next key of each digit goes, before and after these keys
    u64 states;          // of 16 numbers of 32 bits, of which the first counts tiles, and 256 for each tile; all zero
    u32 count;           // how many keys are read, less than 2^30
    u32 shift;           // of the digit
    u64 flip, flip_negative;
};

// Of K bytes, with values of V bytes; by blocks of BLOCK threads, each of which takes EACH keys.
template <u32 K, u32 V, u32 BLOCK, u32 EACH> INLINE void move_keys(const Pass &a) {
    const u32 WARPS = BLOCK / 32, TILE = BLOCK * EACH;
    extern __shared__ u64 dynamic[];
    SHARED u64 *starts = (SHARED u64 *)dynamic;             // of each digit: where its keys go, less their place here
    SHARED u32 *sums = (SHARED u32 *)(dynamic + DIGITS);    // of each of the eight warps that have digits
    SHARED u32 *numbers = sums + 16;                        // of each warp and digit
    SHARED word<V ? V : K> *values_sorted = (SHARED word<V ? V : K> *)(numbers + WARPS * DIGITS);
    SHARED word<K> *sorted = (SHARED word<K> *)(values_sorted + (V ? TILE : 0));
    u32 t = thread(), warp = t / 32, l = lane();
    if (t == 0)
        sums[8] = next_number(a.states);
    for (u32 j = t; j < WARPS * DIGITS; j += BLOCK)
        numbers[j] = 0;
    barrier();
    // In the order in which blocks begin: those before this one are at work.
    u32 tile = sums[8];
    u64 first = (u64)tile * TILE;
    if (first >= a.count)
        return;
    u32 here = (u32)least(TILE, a.count - first);
    u32 own = warp * 32 * EACH + l;
    word<K> keys[EACH];
    u64 at = a.keys + (first + own) * K;
    if (here == TILE) {
#pragma unroll
        for (u32 i = 0; i < EACH; i++)
            keys[i] = load<K>(at + i * 32 * K);
    } else {
        // What is missing at the end counts as the last of the last digit.
        word<K> last = as_it_was<K>(a.flip, a.flip_negative, (word<K>)~0ull);
#pragma unroll
        for (u32 i = 0; i < EACH; i++)
            keys[i] = own + i * 32 < here ? load<K>(at + i * 32 * K) : last;
    }
    // Not where they are loaded: that would take more registers.
#pragma unroll
    for (u32 i = 0; i < EACH; i++)
        keys[i] = in_order<K>(a.flip, a.flip_negative, keys[i]);
    SHARED u32 *of_warp = numbers + warp * DIGITS;
#pragma unroll
    for (u32 i = 0; i < EACH; i++)
        add_in_block(of_warp + ((u32)(keys[i] >> a.shift) & (DIGITS - 1)), 1);
    word<V ? V : K> values[V ? EACH : 1];
    if constexpr (V != 0) {
        u64 from = a.values + (first + own) * V;
#pragma unroll
        for (u32 i = 0; i < EACH; i++)
            values[i] = here == TILE || own + i * 32 < here ? load<V>(from + i * 32 * V) : 0;
    }
    barrier();
    // From here on thread t < 256 has digit t.
    u32 of_tile = 0, real = 0, start = 0;
    u64 state = a.states + 64 + ((u64)tile * DIGITS + t) * 4;
    if (t < DIGITS) {
#pragma unroll
        for (u32 w = 0; w < WARPS; w++)
            of_tile += numbers[w * DIGITS + t];
        real = t == DIGITS - 1 ? of_tile - (TILE - here) : of_tile;
        write_state(state, real | (tile == 0 ? OF_ALL : OF_TILE));
        u32 sum = sum_up_to(of_tile);
        if (l == 31)
            sums[warp] = sum;
        start = sum - of_tile;
    }
    barrier();
    if (t < DIGITS) {
        for (u32 w = 0; w < warp; w++)
            start += sums[w];
        u32 next = start;
#pragma unroll
        for (u32 w = 0; w < WARPS; w++) {
            u32 number = numbers[w * DIGITS + t];
            numbers[w * DIGITS + t] = next;
            next += number;
        }
    }
    barrier();
    u32 below = lanes_below(), shift = a.shift;
    SHARED volatile u32 *next = of_warp;
    // So that the compiler keeps no digits from above: they are sooner made than kept, by so many registers.
    asm volatile("" : "+r"(shift));
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        u32 digit = (u32)(keys[i] >> shift) & (DIGITS - 1);
        u32 alike = lanes_alike(digit), before = __builtin_popcount(alike & below);
        u32 place = next[digit];
        warp_barrier();
        if (before == 0)
            next[digit] = place + __builtin_popcount(alike);
        warp_barrier();
        sorted[place + before] = keys[i];
        if constexpr (V != 0)
            values_sorted[place + before] = values[i];
    }
    if (t < DIGITS) {
        u32 in_others = 0;
        if (tile > 0) {
            for (u64 look = state - DIGITS * 4;;) {
                u32 found = read_state(look);
                if (found == 0)
                    continue;
                in_others += found & NUMBER;
                if (found & OF_ALL)
                    break;
                look -= DIGITS * 4;
            }
            write_state(state, (in_others + real) | OF_ALL);
        }
        u64 to = load<8>(a.starts + t * 8) + in_others;
        starts[t] = to - start;
        if (first + TILE >= a.count)
            store<8>(a.ends + t * 8, to + real);
    }
    barrier();
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        u32 j = t + i * BLOCK;
        if (here == TILE || j < here) {
            word<K> key = sorted[j];
            u64 to = starts[(u32)(key >> a.shift) & (DIGITS - 1)] + j;
            store<K>(a.to + to * K, as_it_was<K>(a.flip, a.flip_negative, key));
            if constexpr (V != 0)
                store<V>(a.values_to + to * V, values_sorted[j]);
        }
    }
}

// BLOCKS of these fill a multiprocessor. `SORT_KERNELS` of onesweep.rs has the same numbers.
#define SORT_KEYS(K, BLOCK, EACH, BLOCKS)                                                                           \
    extern "C" __global__ __attribute__((launch_bounds(BLOCK, BLOCKS))) void move_keys_of(                          \
        u64 keys, u64 to, u64 starts, u64 ends, u64 states, u64, u64 count, u64 shift, u64 flip,                    \
        u64 flip_negative) {                                                                                        \
        move_keys<K, 0, BLOCK, EACH>(                                                                               \
            Pass{keys, to, 0, 0, starts, ends, states, (u32)count, (u32)shift, flip, flip_negative});               \
    }
#define SORT_PAIRS(K, V, BLOCK, EACH, BLOCKS)                                                                       \
    extern "C" __global__ __attribute__((launch_bounds(BLOCK, BLOCKS))) void move_pairs_of(                         \
        u64 keys, u64 to, u64 starts, u64 ends, u64 states, u64 values, u64 values_to, u64, u64 count, u64 shift,   \
        u64 flip, u64 flip_negative) {                                                                              \
        move_keys<K, V, BLOCK, EACH>(Pass{keys, to, values, values_to, starts, ends, states, (u32)count,            \
                                          (u32)shift, flip, flip_negative});                                        \
    }
