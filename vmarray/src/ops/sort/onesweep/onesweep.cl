// The kernels of sorts in OpenCL C 1.2: those of onesweep.h and look_back.h, for devices of which nothing is
// known but what OpenCL says. Groups have 256 items, use less than 32 KiB of local memory, and know no sub-groups.
//
// Groups wait for those that have begun before them, which OpenCL does not say that devices go on with; all known do.
// What they tell each other is one word, so nothing else has to be seen with it.
//
// Before the text: `KEY`, the unsigned type of a key; `VALUE`, that of a value, if keys have some; `EACH`, how many keys
// an item moves.

#define DIGITS 256
#define BLOCK 256
#define KERNEL __kernel __attribute__((reqd_work_group_size(BLOCK, 1, 1))) void
#define VIEW(NAME) __global uchar *NAME##_memory, ulong NAME##_begin
#define AT(TYPE, NAME) ((__global TYPE *)(NAME##_memory + NAME##_begin))

// What is known of a digit in a tile: how many keys have it, in the tile alone or in all tiles up to it.
#define OF_TILE (1u << 30)
#define OF_ALL (2u << 30)
#define NUMBER (OF_TILE - 1)

// Where in local memory a number is, so that items that take neighbours each seldom meet.
#define APART(j) ((j) + (j) / 32)

// A key as an unsigned number that is ordered as the keys are.
KEY in_order(ulong flip, ulong flip_negative, KEY key) {
    KEY sign = (key >> (8 * sizeof(KEY) - 1)) ? (KEY)~0ul : (KEY)0;
    return key ^ (KEY)flip ^ (sign & (KEY)flip_negative);
}
// The inverse.
KEY as_it_was(ulong flip, ulong flip_negative, KEY key) {
    return in_order(0, flip_negative, key ^ (KEY)flip);
}

// The sum of what the items before this one have. `sums` has two numbers for each item.
uint sum_before(__local uint *sums, uint own) {
    uint t = get_local_id(0), side = 0;
    sums[t] = own;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint step = 1; step < BLOCK; step *= 2) {
        uint sum = sums[side + t];
        if (t >= step)
            sum += sums[side + t - step];
        side ^= BLOCK;
        sums[side + t] = sum;
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    uint sum = sums[side + t];
    barrier(CLK_LOCAL_MEM_FENCE);
    return sum - own;
}

// What the tiles before one have, of which every `stride`th state tells; says to later ones what it has itself.
uint in_tiles_before(__global uint *state, uint stride, uint tile, uint own) {
    uint before = 0;
    if (tile > 0) {
        __global uint *look = state - stride;
        for (;;) {
            uint found = atomic_or(look, 0u);
            if (found == 0)
                continue;
            before += found & NUMBER;
            if (found & OF_ALL)
                break;
            look -= stride;
        }
        atomic_xchg(state, (before + own) | OF_ALL);
    }
    return before;
}

// How many keys have each digit in each place: adds to `numbers[place * 256 + digit]`. Any number of groups.
KERNEL count_digits_of(VIEW(keys), VIEW(numbers), ulong items, ulong count, ulong flip, ulong flip_negative) {
    __local uint counts[sizeof(KEY) * DIGITS];
    uint t = get_local_id(0);
    for (uint place = 0; place < sizeof(KEY); place++)
        counts[place * DIGITS + t] = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (ulong j = get_global_id(0); j < count; j += get_global_size(0)) {
        KEY key = in_order(flip, flip_negative, AT(KEY, keys)[j]);
        for (uint place = 0; place < sizeof(KEY); place++)
            atomic_inc(&counts[place * DIGITS + ((uint)(key >> (8 * place)) & (DIGITS - 1))]);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint place = 0; place < sizeof(KEY); place++) {
        uint own = counts[place * DIGITS + t];
        __global uint *number = AT(uint, numbers) + (place * DIGITS + t) * 2;
        // The higher half of the number has how often the lower one began anew.
        if (own && atomic_add(number, own) + own < own)
            atomic_inc(number + 1);
    }
}

#define TILE (BLOCK * EACH)
// One more after every 16, as `APART`.
#define COUNTER(digit, t) ((digit) * BLOCK + (t) + ((digit) * BLOCK + (t)) / 16 * 2)

// Where an item's keys are among those of the tile once these are in the order of four bits. Equal ones stay in theirs.
void places_by(uint places[EACH], const KEY keys[EACH], uint shift, __local ushort *counters, __local uint *sums) {
    uint t = get_local_id(0);
    for (uint digit = 0; digit < 16; digit++)
        counters[COUNTER(digit, t)] = 0;
    for (uint i = 0; i < EACH; i++)
        places[i] = counters[COUNTER((uint)(keys[i] >> shift) & 15, t)]++;
    barrier(CLK_LOCAL_MEM_FENCE);
    uint sum = 0;
    for (uint j = 0; j < 16; j++)
        sum += counters[t * 18 + j];
    sum = sum_before(sums, sum);
    for (uint j = 0; j < 16; j++) {
        uint own = counters[t * 18 + j];
        counters[t * 18 + j] = (ushort)sum;
        sum += own;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint i = 0; i < EACH; i++)
        places[i] += counters[COUNTER((uint)(keys[i] >> shift) & 15, t)];
}

// Has items of a group exchange elements by their places in the tile. Afterwards nobody reads `tile` any more.
#define EXCHANGE(TYPE, elements, places, from)                                                                         \
    for (uint i = 0; i < EACH; i++)                                                                                    \
        ((__local TYPE *)tile_memory)[APART(places[i])] = elements[i];                                                 \
    barrier(CLK_LOCAL_MEM_FENCE);                                                                                      \
    for (uint i = 0; i < EACH; i++)                                                                                    \
        elements[i] = ((__local TYPE *)tile_memory)[APART(from)];                                                      \
    barrier(CLK_LOCAL_MEM_FENCE);

#ifdef VALUE
#define MOVE move_pairs_of
#define VALUE_VIEWS VIEW(values), VIEW(values_to),
#define LONGEST (sizeof(KEY) > sizeof(VALUE) ? sizeof(KEY) : sizeof(VALUE))
#else
#define MOVE move_keys_of
#define VALUE_VIEWS
#define LONGEST sizeof(KEY)
#endif

// Moves keys by one digit: see onesweep.h. A tile is put in order by the lower half of the digit, then by the higher.
KERNEL MOVE(VIEW(keys), VIEW(to), VIEW(starts), VIEW(ends), VIEW(states), VALUE_VIEWS ulong items, ulong count,
            ulong shift, ulong flip, ulong flip_negative) {
    __local ulong tile_memory[(APART(TILE) * LONGEST + 7) / 8];
    __local ushort counters[COUNTER(16, 0)];
    __local uint sums[2 * BLOCK], of_digit[DIGITS], tile_number;
    __local ulong starts_here[DIGITS]; // of each digit: where its keys go, less their place here
    uint t = get_local_id(0);
    // In the order in which groups begin: those before this one are at work.
    if (t == 0)
        tile_number = atomic_inc(AT(uint, states));
    of_digit[t] = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    uint tile = tile_number;
    ulong first = (ulong)tile * TILE;
    if (first >= count)
        return;
    uint here = (uint)min((ulong)TILE, count - first);
    KEY own_keys[EACH];
    for (uint i = 0; i < EACH; i++) {
        uint j = t + i * BLOCK;
        // What is missing at the end counts as the last of the last digit.
        KEY key = j < here ? in_order(flip, flip_negative, AT(KEY, keys)[first + j]) : (KEY)~0ul;
        atomic_inc(&of_digit[(uint)(key >> shift) & (DIGITS - 1)]);
        ((__local KEY *)tile_memory)[APART(j)] = key;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    // Item t has digit t.
    uint of_tile = of_digit[t], real = t == DIGITS - 1 ? of_tile - (TILE - here) : of_tile;
    __global uint *state = AT(uint, states) + 16 + (ulong)tile * DIGITS + t;
    atomic_xchg(state, real | (tile == 0 ? OF_ALL : OF_TILE));
    uint start = sum_before(sums, of_tile);
    for (uint i = 0; i < EACH; i++)
        own_keys[i] = ((__local KEY *)tile_memory)[APART(t * EACH + i)];
#ifdef VALUE
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint i = 0; i < EACH; i++) {
        uint j = t + i * BLOCK;
        ((__local VALUE *)tile_memory)[APART(j)] = j < here ? AT(VALUE, values)[first + j] : 0;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    VALUE own_values[EACH];
    for (uint i = 0; i < EACH; i++)
        own_values[i] = ((__local VALUE *)tile_memory)[APART(t * EACH + i)];
#endif
    barrier(CLK_LOCAL_MEM_FENCE);
    uint places[EACH];
    places_by(places, own_keys, (uint)shift, counters, sums);
    EXCHANGE(KEY, own_keys, places, t * EACH + i)
#ifdef VALUE
    EXCHANGE(VALUE, own_values, places, t * EACH + i)
#endif
    places_by(places, own_keys, (uint)shift + 4, counters, sums);
    EXCHANGE(KEY, own_keys, places, t + i * BLOCK)
#ifdef VALUE
    EXCHANGE(VALUE, own_values, places, t + i * BLOCK)
#endif
    uint in_others = in_tiles_before(state, DIGITS, tile, real);
    ulong place = AT(ulong, starts)[t] + in_others;
    starts_here[t] = place - start;
    if (first + TILE >= count)
        AT(ulong, ends)[t] = place + real;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint i = 0; i < EACH; i++) {
        uint j = t + i * BLOCK;
        if (j < here) {
            ulong at = starts_here[(uint)(own_keys[i] >> shift) & (DIGITS - 1)] + j;
            AT(KEY, to)[at] = as_it_was(flip, flip_negative, own_keys[i]);
#ifdef VALUE
            AT(VALUE, values_to)[at] = own_values[i];
#endif
        }
    }
}
