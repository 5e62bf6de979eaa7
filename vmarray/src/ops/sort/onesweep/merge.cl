// Two sorted runs become one, tile by tile, and elements of channels are gathered: see merge.h.

#define MERGE_TILE (BLOCK * MERGED)
#define SHARE ulong own_first, ulong own_count, ulong page_len, ulong channels, ulong channel, ulong base

// The number, among all, of an element of a channel.
#define NUMBER_OF(own) (((own) / page_len * channels + channel) * page_len + (own) % page_len - base)

// The part of a page that tile `tile` is: from `tile_first` on to `tile_end`.
#define MERGE_TILE_BOUNDS(tile)                                                                                        \
    ulong of_page = (page_len + MERGE_TILE - 1) / MERGE_TILE;                                                          \
    ulong number_of_tile = (tile) + own_first / page_len * of_page + own_first % page_len / MERGE_TILE;                \
    ulong page = number_of_tile / of_page * page_len, within = number_of_tile % of_page * MERGE_TILE;                  \
    ulong tile_first = max(page + within, own_first);                                                                  \
    ulong tile_end = min(page + min(within + MERGE_TILE, page_len), own_first + own_count);

// How many of the first `number` elements of the result are from the first run.
#define FROM_FIRST(NAME, SPACE, KEY_OF)                                                                                \
    ulong NAME(ulong number, ulong of_first, ulong of_second, SPACE const KEY *first, SPACE const KEY *second,         \
               ulong flip, ulong flip_negative) {                                                                      \
        ulong low = number > of_second ? number - of_second : 0, high = min(number, of_first);                         \
        while (low < high) {                                                                                           \
            ulong middle = (low + high) / 2;                                                                           \
            if (KEY_OF(first[middle]) <= KEY_OF(second[number - middle - 1]))                                          \
                low = middle + 1;                                                                                      \
            else                                                                                                       \
                high = middle;                                                                                         \
        }                                                                                                              \
        return low;                                                                                                    \
    }
#define IN_ORDER(key) in_order(flip, flip_negative, key)
#define AS_IT_IS(key) (key)
FROM_FIRST(from_first, __global, IN_ORDER)
FROM_FIRST(from_first_here, __local, AS_IT_IS)

// For each tile, how many elements before it, and before its end, are from the first run.
KERNEL find_splits_of(VIEW(first), VIEW(second), VIEW(splits), ulong items, SHARE, ulong of_first, ulong of_second,
                      ulong flip, ulong flip_negative) {
    ulong t = get_global_id(0);
    if (t >= items)
        return;
    MERGE_TILE_BOUNDS(t)
    ulong number = NUMBER_OF(tile_first);
    __global ulong *split = AT(ulong, splits) + t * 2;
    split[0] = from_first(number, of_first, of_second, AT(KEY, first), AT(KEY, second), flip, flip_negative);
    number += tile_end - tile_first;
    split[1] = from_first(number, of_first, of_second, AT(KEY, first), AT(KEY, second), flip, flip_negative);
}

#ifdef VALUE
#define MERGE merge_pairs_of
#define MERGED_VALUES VIEW(values), VIEW(other_values), VIEW(values_to),
#define LAST_PARAM , ulong value_bytes
#else
#define MERGE merge_keys_of
#define MERGED_VALUES
#define LAST_PARAM
#endif

KERNEL MERGE(VIEW(first), VIEW(second), VIEW(splits), VIEW(to), MERGED_VALUES ulong items, SHARE, ulong of_first,
             ulong of_second, ulong flip, ulong flip_negative LAST_PARAM) {
    __local KEY keys[MERGE_TILE];
#ifdef VALUE
    __local ushort sources_here[MERGE_TILE];
#endif
    uint t = get_local_id(0);
    MERGE_TILE_BOUNDS(get_group_id(0))
    ulong start = AT(ulong, splits)[get_group_id(0) * 2];
    ulong other_start = NUMBER_OF(tile_first) - start;
    uint count = (uint)(tile_end - tile_first);
    uint from_one = (uint)(AT(ulong, splits)[get_group_id(0) * 2 + 1] - start);
    for (uint j = t; j < count; j += BLOCK) {
        KEY key = j < from_one ? AT(KEY, first)[start + j] : AT(KEY, second)[other_start + j - from_one];
        keys[j] = in_order(flip, flip_negative, key);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    uint number = min(t * MERGED, count);
    uint one = (uint)from_first_here(number, from_one, count - from_one, keys, keys + from_one, 0, 0);
    uint two = from_one + number - one;
    ulong place = tile_first - own_first;
    KEY merged[MERGED];
    ushort sources[MERGED];
    for (uint i = 0; i < MERGED; i++) {
        if (number + i < count) {
            bool is_second = one == from_one || (two < count && keys[two] < keys[one]);
            sources[i] = (ushort)(is_second ? two++ : one++);
            merged[i] = keys[sources[i]];
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint i = 0; i < MERGED; i++) {
        if (number + i < count) {
            keys[number + i] = merged[i];
#ifdef VALUE
            sources_here[number + i] = sources[i];
#endif
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint j = t; j < count; j += BLOCK)
        AT(KEY, to)[place + j] = as_it_was(flip, flip_negative, keys[j]);
#ifdef VALUE
    for (uint j = t; j < count; j += BLOCK) {
        uint from = sources_here[j];
        VALUE value = from < from_one ? AT(VALUE, values)[start + from] : AT(VALUE, other_values)[other_start + from - from_one];
        AT(VALUE, values_to)[place + j] = value;
    }
#endif
}

// Elements of a channel go to where they are among all: `to` has those from `base` on.
KERNEL gather_share_of(VIEW(from), VIEW(to), ulong items, SHARE) {
    for (ulong j = get_global_id(0); j < own_count; j += get_global_size(0))
        AT(KEY, to)[NUMBER_OF(own_first + j)] = AT(KEY, from)[j];
}
