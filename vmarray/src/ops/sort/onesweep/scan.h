// Prefix sums in an order that depends on nothing but where elements are in their store, so that floats come out the
// same on every device: see `ops/launch/scan`. Blocks of 1024 elements are added up by rows of 32, one to a lane, and
// then the sums of rows, both by the steps of Hillis and Steele. What comes before a block is added up by the binary
// tree of all blocks: a node is the sum of its left half and its right one, and what comes before a right half is what
// comes before the whole, and then the left half (G. Blelloch, "Prefix Sums and Their Applications", 1990).
//
// Elements are read and written once, as in look_back.h, but what a tile looks back to is the nodes of that tree. A tile
// tells the longest node that ends with it. Those that add up to all before it end with it, or are as long as the powers
// of two that its number is made of, so each lane of a warp waits for one.
#include "look_back.h"

const u32 BLOCK_ROWS = 32, BLOCK_LEN = 32 * BLOCK_ROWS, BLOCKS = TILE / BLOCK_LEN;

// What is done, beside whether sums are exclusive, which is bit 0: all at once, where one channel has all elements; or
// what tiles come to is told in their states, and in another launch what comes before each is found there.
const u64 IS_EXCLUSIVE = 1, TELLS = 2, IS_TOLD = 4;

// Integers of W bytes, which are added up as numbers N. Floats have kernels in the kernel language alone.
template <u32 W, class N> struct ScanOf {
    // A node: what its elements come to, as far back as the row of the last one begins, and whether one begins in it.
    struct ScanNode {
        u64 sum;
        bool begins;
    };
    static __device__ ScanNode then(ScanNode a, ScanNode b) {
        if (b.begins)
            return b;
        return ScanNode{a.sum + b.sum, a.begins};
    }
    static __device__ ScanNode from(ScanNode a, u32 which) {
        ScanNode other;
        other.sum = from_lane(a.sum, which);
        other.begins = from_lane(a.begins, which) != 0;
        return other;
    }
    static __device__ void write(u64 state, ScanNode a) {
        write_number(state + 8, a.sum);
        release(state, a.begins ? 3 : 1);
    }
    static __device__ ScanNode read(u64 state) {
        ScanNode a;
        u32 known;
        while ((known = acquire(state)) == 0) {
        }
        a.sum = read_number(state + 8);
        a.begins = known == 3;
        return a;
    }

    static __device__ N number(word<W> bits) {
        if constexpr (W < 4)
            return bits;
        else
            return __builtin_bit_cast(N, bits);
    }
    static __device__ word<W> bits(N number) {
        if constexpr (W < 4)
            return (word<W>)number;
        else
            return __builtin_bit_cast(word<W>, number);
    }
    static __device__ N below(N value, u32 by) {
        if constexpr (sizeof(N) == 8)
            return __builtin_bit_cast(N, from_lane_below(__builtin_bit_cast(u64, value), by));
        else
            return __builtin_bit_cast(N, from_below(__builtin_bit_cast(u32, value), by));
    }
    // The sum of a lane's value and of those of so many lanes before it, or of all.
    static __device__ N scanned(N value, u32 reach) {
#pragma unroll
        for (u32 step = 1; step < 32; step *= 2) {
            N other = below(value, step);
            if (reach >= step)
                value = other + value;
        }
        return value;
    }

    // What comes before a tile, told to all lanes of a warp, which tells later tiles what they wait for.
    static __device__ ScanNode before_tile(u64 states, u64 first_tile, u32 tile, ScanNode own) {
        u64 number = first_tile + tile, state = states + STATES + (u64)tile * STATE;
        u32 l = lane(), level = __builtin_ctzll(~number);
        // Where the node ends that is 2^l tiles long.
        u64 end = number >> l << l, of_end = states + STATES + (end - 1 - first_tile) * STATE;
        bool is_there = (number >> l & 1) && end > first_tile;
        u32 there = lanes_with(is_there);
        // First what its own node is made of: later tiles wait for that, and would else wait for all before it.
        ScanNode node = {};
        if (is_there && l < level)
            node = read(of_end);
        for (u32 j = 0; j < level; j++) {
            if (there >> j & 1)
                own = then(from(node, j), own);
        }
        if (l == 0)
            write(state, own);
        if (is_there && l > level)
            node = read(of_end);
        ScanNode before = {};
        while (there) {
            u32 j = 31 - __builtin_clz(there);
            before = then(before, from(node, j));
            there ^= 1u << j;
        }
        return before;
    }
};

// The elements of a channel, from `first` on: page p of all is page p / `channels` of channel p % `channels`. Tiles do
// not go across pages, unless there is one channel. Rows of a length begin at `base`.
struct ScanParams {
    u64 first, count, page_len, channels, channel, base, row, what;
};

INLINE u64 remainder(u64 a, u64 b) { return a < b ? a : (a | b) >> 32 ? a % b : (u32)a % (u32)b; }

template <u32 W, class N> INLINE void scan(u64 elements, u64 states, const ScanParams &a) {
    typedef ScanOf<W, N> S;
    typedef typename S::ScanNode ScanNode;
    __shared__ N rows[TILE / 32], carried[BLOCKS];
    __shared__ u32 begins[BLOCKS];
    u32 t = thread(), warp = t / 32, l = lane(), tile = next_tile(states);
    u64 own = (a.first / TILE + tile) * TILE;
    if (own >= a.first + a.count)
        return;
    // Which elements of the tile there are.
    u32 start = a.first > own ? (u32)(a.first - own) : 0, end = (u32)least(TILE, a.first + a.count - own);
    u64 place = own;
    if (a.channels > 1)
        place = (own / a.page_len * a.channels + a.channel) * a.page_len + own % a.page_len;
    // How far the tile's first element is from where its row begins; long rows are taken for shorter ones.
    u64 after = place >= a.base ? remainder(place - a.base, a.row) : a.row - remainder(a.base - place, a.row);
    u32 period = 1u << 30, distance;
    if (a.row <= period) {
        period = (u32)a.row;
        distance = (u32)after;
    } else {
        distance = a.row - after <= TILE ? period - (u32)(a.row - after) : (u32)least(after, period / 2);
    }
    auto distance_of = [&](u32 i) {
        u32 sum = distance + i;
        return sum < period ? sum : period < TILE ? sum % period : sum - period;
    };
    u64 at = elements + (own - a.first) * W;
    u32 i0 = warp * 32 * EACH + l, d0 = distance_of(i0), step = period > 32 ? 32 : 32 % period;
    auto next = [&](u32 d) {
        d += step;
        return d < period ? d : d - period;
    };
    N sums[EACH];
    if (start == 0 && end == TILE) {
#pragma unroll
        for (u32 r = 0; r < EACH; r++)
            sums[r] = S::number(load<W>(at + (u64)(i0 + r * 32) * W));
    } else {
#pragma unroll
        for (u32 r = 0; r < EACH; r++) {
            u32 i = i0 + r * 32;
            sums[r] = i >= start && i < end ? S::number(load<W>(at + (u64)i * W)) : 0;
        }
    }
    u32 d = d0;
#pragma unroll
    for (u32 r = 0; r < EACH; r++) {
        sums[r] = S::scanned(sums[r], d < l ? d : l);
        if (l == 31)
            rows[warp * EACH + r] = sums[r];
        d = next(d);
    }
    barrier();
    if (warp < BLOCKS) {
        u32 last = distance_of(warp * BLOCK_LEN + l * 32 + 31), back = last / 32;
        rows[t] = S::scanned(rows[t], back < l ? back : l);
        if (l == 31)
            begins[warp] = last < BLOCK_LEN;
    }
    barrier();
    u64 state = states + STATES + (u64)tile * STATE;
    if (warp == 0) {
        ScanNode blocks[BLOCKS], before;
#pragma unroll
        for (u32 b = 0; b < BLOCKS; b++) {
            N sum = rows[b * BLOCK_ROWS + BLOCK_ROWS - 1];
            blocks[b].sum = sum;
            blocks[b].begins = begins[b];
        }
        ScanNode two = S::then(blocks[0], blocks[1]), all = S::then(two, S::then(blocks[2], blocks[3]));
        if (a.what & TELLS) {
            if (l == 0)
                S::write(state, all);
        } else {
            before = a.what & IS_TOLD ? S::read(state) : S::before_tile(states, a.first / TILE, tile, all);
            if (l == 0) {
                carried[0] = (N)before.sum;
                carried[1] = (N)S::then(before, blocks[0]).sum;
                before = S::then(before, two);
                carried[2] = (N)before.sum;
                carried[3] = (N)S::then(before, blocks[2]).sum;
            }
        }
        if (tile == 0 && l == 0)
            write_number(states + 8, 1);
    }
    if (a.what & TELLS)
        return;
    barrier();
    bool is_exclusive = a.what & IS_EXCLUSIVE;
    d = d0;
#pragma unroll
    for (u32 r = 0; r < EACH; r++) {
        u32 i = i0 + r * 32, within = i % BLOCK_LEN;
        // From the last to the first: own row, other rows of the block, other blocks.
        N value = sums[r];
        bool is_begun = true;
        if (is_exclusive) {
            N left = S::below(value, 1);
            is_begun = l > 0 && d > 0;
            value = is_begun ? left : 0;
        }
        if (within >= 32 && d > l) {
            N others = rows[warp * EACH + r - 1];
            value = is_begun ? others + value : others;
            is_begun = true;
        }
        if (d > within) {
            N before = carried[i / BLOCK_LEN];
            value = is_begun ? before + value : before;
        }
        if (i >= start && i < end)
            store<W>(at + (u64)i * W, S::bits(value));
        d = next(d);
    }
}

#define SCANS(W, N)                                                                                                 \
    SUM_KERNEL scan_of(u64 elements, u64 states, u64, u64 first, u64 count, u64 page_len, u64 channels, u64 channel,    \
                u64 base, u64 row, u64 what) {                                                                      \
        scan<W, N>(elements, states, ScanParams{first, count, page_len, channels, channel, base, row, what});      \
    }
