// Two sorted runs become one. Each block writes a tile of the result: where its first and last elements come from is
// found by bisection beforehand, so that blocks know nothing of each other (O. Green, R. McColl, D. Bader, "GPU Merge
// Path: A GPU Merging Algorithm", 2012). Runs may lie in the memory of other cards.
//
// Elements of the result are dealt out to channels by pages, and a launch writes those of one channel: see `DealtShare`.
//
// Of equal keys, those of the first run come first. Keys are ordered as those of onesweep.h.

#include "onesweep.h"

#define METHOD __device__ __attribute__((always_inline))

// As `MERGE_TILE` of ../merge.rs. An odd number for each thread, since threads then read different banks.
const u32 EACH = 17, TILE = THREADS * EACH;

// Elements of one channel, counted from its first slot on: where they are among all that are dealt out.
struct DealtShare {
    u64 first, count;           // which elements of the channel
    u64 page_len;               // elements of a page
    u64 channels, channel;      // page p is that of channel p % channels, slot p / channels
    u64 base;                   // the number, among all, of that which counts as 0

    METHOD u64 number(u64 own) const {
        return (own / page_len * channels + channel) * page_len + own % page_len - base;
    }
};

// A part of a page that a block writes. Tiles do not go across pages: what is beside them is elsewhere.
struct MergeTile {
    u64 first, end;

    METHOD MergeTile(const DealtShare &share, u64 tile) {
        u64 of_page = (share.page_len + TILE - 1) / TILE;
        tile += share.first / share.page_len * of_page + share.first % share.page_len / TILE;
        u64 page = tile / of_page * share.page_len, within = tile % of_page * TILE;
        u64 last = share.first + share.count;
        first = page + within;
        end = page + least(within + TILE, share.page_len);
        first = first < share.first ? share.first : first;
        end = end < last ? end : last;
    }
};

// How many of the first `number` elements of the result are from the first run; `key(run, place)` tells keys.
template <class Key> INLINE u64 from_first(u64 number, u64 of_first, u64 of_second, Key key) {
    u64 low = number > of_second ? number - of_second : 0, high = least(number, of_first);
    while (low < high) {
        u64 middle = (low + high) / 2;
        if (key(0, middle) <= key(1, number - middle - 1))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct Runs {
    u64 first, second;          // addresses of keys
    u64 of_first, of_second;    // how many
    u64 flip, flip_negative;
};

template <u32 V> INLINE void place_values(u64 first, u64 second, u64 to, u32 of_first, u32 count, SHARED u16 *sources) {
    for (u32 j = thread(); j < count; j += THREADS) {
        u32 from = sources[j];
        u64 at = from < of_first ? first + (u64)from * V : second + (u64)(from - of_first) * V;
        store<V>(to + (u64)j * V, load<V>(at));
    }
}

// Values have four bytes or eight.
template <u32 K, bool HAS_VALUES>
INLINE void merge(const Runs &runs, u64 to, const DealtShare &share, u64 splits, u64 values, u64 other_values, u64 values_to,
                  u32 value_bytes) {
    __shared__ word<K> keys_here[TILE];
    __shared__ u16 sources_here[HAS_VALUES ? TILE : 1];
    SHARED word<K> *keys = (SHARED word<K> *)keys_here;
    SHARED u16 *sources = (SHARED u16 *)sources_here;
    u32 t = thread();
    MergeTile tile(share, block());
    u64 first = load<8>(splits + (u64)block() * 16), second = share.number(tile.first) - first;
    u32 count = (u32)(tile.end - tile.first), of_first = (u32)(load<8>(splits + (u64)block() * 16 + 8) - first);
    u64 from = runs.first + first * K, other = runs.second + second * K;
    word<K> read[EACH];
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        u32 j = t + i * THREADS;
        if (j < count)
            read[i] = load<K>(j < of_first ? from + (u64)j * K : other + (u64)(j - of_first) * K);
    }
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        u32 j = t + i * THREADS;
        if (j < count)
            keys[j] = in_order<K>(runs.flip, runs.flip_negative, read[i]);
    }
    barrier();
    u32 number = (u32)least(t * EACH, count);
    u32 one = (u32)from_first(number, of_first, count - of_first,
                              [&](u32 run, u64 place) { return keys[(run ? of_first : 0) + (u32)place]; });
    u32 two = of_first + number - one;
    u16 taken[EACH];
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        if (number + i >= count)
            continue;
        bool is_second = one == of_first || (two < count && keys[two] < keys[one]);
        taken[i] = (u16)(is_second ? two++ : one++);
        read[i] = keys[taken[i]];
    }
    barrier();
#pragma unroll
    for (u32 i = 0; i < EACH; i++) {
        if (number + i < count) {
            keys[number + i] = read[i];
            if constexpr (HAS_VALUES)
                sources[number + i] = taken[i];
        }
    }
    barrier();
    u64 place = tile.first - share.first;
    for (u32 j = t; j < count; j += THREADS)
        store<K>(to + (place + j) * K, as_it_was<K>(runs.flip, runs.flip_negative, keys[j]));
    if constexpr (HAS_VALUES) {
        if (value_bytes == 4)
            place_values<4>(values + first * 4, other_values + second * 4, values_to + place * 4, of_first, count, sources);
        else
            place_values<8>(values + first * 8, other_values + second * 8, values_to + place * 8, of_first, count, sources);
    }
}

#define SHARE DealtShare{own_first, own_count, page_len, channels, channel, base}
#define MERGES(K)                                                                                                    \
    KERNEL merge_keys_of(u64 first, u64 second, u64 splits, u64 to, u64, u64 own_first, u64 own_count, u64 page_len, \
                         u64 channels, u64 channel, u64 base, u64 of_first, u64 of_second, u64 flip,                 \
                         u64 flip_negative) {                                                                        \
        merge<K, false>(Runs{first, second, of_first, of_second, flip, flip_negative}, to, SHARE, splits, 0, 0, 0,   \
                        0);                                                                                          \
    }                                                                                                                \
    KERNEL merge_pairs_of(u64 first, u64 second, u64 splits, u64 to, u64 values, u64 other_values, u64 values_to,    \
                          u64, u64 own_first, u64 own_count, u64 page_len, u64 channels, u64 channel, u64 base,      \
                          u64 of_first, u64 of_second, u64 flip, u64 flip_negative, u64 value_bytes) {               \
        merge<K, true>(Runs{first, second, of_first, of_second, flip, flip_negative}, to, SHARE, splits, values,     \
                       other_values, values_to, (u32)value_bytes);                                                   \
    }
