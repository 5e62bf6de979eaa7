// Runs of equal elements, in one reading and one writing: see look_back.h. Numbers are less than 2^30.

#define RUN_EACH 16
#define RUN_TILE (BLOCK * RUN_EACH)

// `WRITE` says what is written of a run that begins at an element, to the next place in the list.
#define LIST_RUNS(NAME, TYPE, WRITE, AND_END)                                                                          \
    KERNEL NAME(VIEW(elements), VIEW(list), VIEW(states), ulong items, ulong count, ulong room) {                      \
        __local KEY here[APART(RUN_TILE) + 1];                                                                         \
        __local uint sums[2 * BLOCK], tile_number, before_tile;                                                        \
        uint t = get_local_id(0);                                                                                      \
        if (t == 0)                                                                                                    \
            tile_number = atomic_inc(AT(uint, states));                                                                \
        barrier(CLK_LOCAL_MEM_FENCE);                                                                                  \
        uint tile = tile_number;                                                                                       \
        ulong first = (ulong)tile * RUN_TILE;                                                                          \
        if (first >= count)                                                                                            \
            return;                                                                                                    \
        for (uint i = 0; i < RUN_EACH; i++) {                                                                          \
            uint j = t + i * BLOCK;                                                                                    \
            here[APART(j)] = first + j < count ? AT(KEY, elements)[first + j] : (KEY)0;                                \
        }                                                                                                              \
        KEY before = t == 0 && tile > 0 ? AT(KEY, elements)[first - 1] : (KEY)0;                                       \
        barrier(CLK_LOCAL_MEM_FENCE);                                                                                  \
        if (t > 0)                                                                                                     \
            before = here[APART(t * RUN_EACH - 1)];                                                                    \
        uint begins = 0;                                                                                               \
        for (uint i = 0; i < RUN_EACH; i++) {                                                                          \
            KEY element = here[APART(t * RUN_EACH + i)];                                                               \
            ulong j = first + t * RUN_EACH + i;                                                                        \
            if (j < count && (j == 0 || element != before))                                                            \
                begins |= 1u << i;                                                                                     \
            before = element;                                                                                          \
        }                                                                                                              \
        uint own = popcount(begins);                                                                                   \
        uint place = sum_before(sums, own);                                                                            \
        if (t == BLOCK - 1) {                                                                                          \
            uint of_tile = place + own;                                                                                \
            __global uint *state = AT(uint, states) + 16 + (ulong)tile * 8;                                            \
            atomic_xchg(state, of_tile | (tile == 0 ? OF_ALL : OF_TILE));                                              \
            before_tile = in_tiles_before(state, 8, tile, of_tile);                                                    \
            if (first + RUN_TILE >= count) {                                                                           \
                ulong runs = before_tile + of_tile;                                                                    \
                AT(ulong, states)[1] = runs;                                                                           \
                AND_END                                                                                                \
            }                                                                                                          \
        }                                                                                                              \
        barrier(CLK_LOCAL_MEM_FENCE);                                                                                  \
        place += before_tile;                                                                                          \
        for (uint i = 0; i < RUN_EACH; i++) {                                                                          \
            if (begins >> i & 1 && place < room)                                                                       \
                AT(TYPE, list)[place] = WRITE;                                                                         \
            place += begins >> i & 1;                                                                                  \
        }                                                                                                              \
    }

#define AND_WHERE_THEY_END                                                                                             \
    if (runs < room)                                                                                                   \
        AT(ulong, list)[runs] = count;
LIST_RUNS(list_starts_of, ulong, first + t * RUN_EACH + i, AND_WHERE_THEY_END)
LIST_RUNS(list_distinct_of, KEY, here[APART(t * RUN_EACH + i)], )
