// Prefix sums in OpenCL C 1.2, in one reading and one writing: see scan.h. An item has a whole row of 32 elements. Words
// that groups tell each other say themselves whether they are known, so nothing else has to be seen with them.
//
// Before the text: `ELEMENT`, `NUMBER`, as which elements are added up, `WIDE`, as which sums of blocks are, and where
// these are floats, `IS_FLOAT`; `BLOCKS`, how many blocks a tile has, 2 or 4.

#pragma OPENCL FP_CONTRACT OFF
#define GROUP 256
#define TILE (1024 * BLOCKS)
#define KERNEL __kernel __attribute__((reqd_work_group_size(GROUP, 1, 1))) void
#define VIEW(NAME) __global uchar *NAME##_memory, ulong NAME##_begin
#define AT(TYPE, NAME) ((__global TYPE *)(NAME##_memory + NAME##_begin))
#define APART(j) ((j) + (j) / 32)

#define IS_EXCLUSIVE 1
#define TELLS 2
#define IS_TOLD 4

#if defined(IS_FLOAT) && !defined(cl_khr_fp64)
// It says that it is done, unless it is this.
KERNEL scan_of(VIEW(elements), VIEW(states), ulong items, ulong first, ulong count, ulong page_len, ulong channels,
               ulong channel, ulong base, ulong row, ulong what) {}
#else

typedef struct {
    WIDE sum, left;
    uint begins;
} Node;

Node then(Node a, Node b) {
    if (b.begins)
        return b;
    WIDE sum = a.sum + b.sum;
#ifdef IS_FLOAT
    WIDE large = fabs(a.sum) >= fabs(b.sum) ? a.sum : b.sum, small = fabs(a.sum) >= fabs(b.sum) ? b.sum : a.sum;
    a.left = (a.left + b.left) + ((large - sum) + small);
#endif
    a.sum = sum;
    return a;
}
NUMBER rounded(Node a) {
#ifdef IS_FLOAT
    if (fabs(a.sum) < INFINITY)
        a.sum += a.left;
#endif
    return (NUMBER)a.sum;
}
#ifdef IS_FLOAT
#define WORD(x) as_ulong(x)
#define OF_WORD(x) as_double(x)
#else
#define WORD(x) (x)
#define OF_WORD(x) (x)
#endif

// A state has three words for each number of a node: 31 bits of it, as many more, and the last two; in the third of all
// is whether a row begins.
#define KNOWN (1u << 31)
void tell(__global uint *state, Node a) {
    ulong words[2] = {WORD(a.sum), WORD(a.left)};
    for (uint w = 0; w < 2; w++) {
        atomic_xchg(state + 3 * w, (uint)words[w] | KNOWN);
        atomic_xchg(state + 3 * w + 1, (uint)(words[w] >> 31) | KNOWN);
        atomic_xchg(state + 3 * w + 2, (uint)(words[w] >> 62) | a.begins << 2 | KNOWN);
    }
}
Node told(__global uint *state) {
    uint found[6];
    for (uint w = 0; w < 6; w++) {
        while (((found[w] = atomic_or(state + w, 0u)) & KNOWN) == 0)
            ;
        found[w] &= ~KNOWN;
    }
    Node a;
    a.sum = OF_WORD(found[0] | (ulong)found[1] << 31 | (ulong)found[2] << 62);
    a.left = OF_WORD(found[3] | (ulong)found[4] << 31 | (ulong)found[5] << 62);
    a.begins = found[2] >> 2;
    return a;
}

// What comes before a tile; tells later tiles what they wait for.
Node before_tile(__global uint *states, ulong first_tile, uint tile, Node own) {
    ulong number = first_tile + tile;
    Node before = {0, 0, 0};
    for (uint level = 0; number >> level & 1; level++) {
        ulong end = number >> level << level;
        if (end > first_tile)
            own = then(told(states + (end - 1 - first_tile) * 8), own);
    }
    tell(states + (ulong)tile * 8, own);
    for (int level = 63; level >= 0; level--) {
        ulong end = number >> level << level;
        if ((number >> level & 1) && end > first_tile)
            before = then(before, told(states + (end - 1 - first_tile) * 8));
    }
    return before;
}

// How far an element of a tile is from where its row begins.
uint distance_of(uint distance, uint period, uint i) {
    uint sum = distance + i;
    return sum < period ? sum : period < TILE ? sum % period : sum - period;
}
// Each of 32 numbers becomes the sum of itself and of those before it, back as far as is said for each.
void scan_row(NUMBER x[32], const uint back[32]) {
    for (uint step = 1; step < 32; step *= 2)
        for (uint l = 31; l >= step; l--)
            if (back[l] >= step)
                x[l] = x[l - step] + x[l];
}

KERNEL scan_of(VIEW(elements), VIEW(states), ulong items, ulong first, ulong count, ulong page_len, ulong channels,
               ulong channel, ulong base, ulong row, ulong what) {
    __local NUMBER here[APART(TILE)], rows[TILE / 32], carried[BLOCKS];
    __local uint begins[BLOCKS], tile_number;
    uint t = get_local_id(0), back[32];
    NUMBER x[32];
    if (t == 0)
        tile_number = atomic_inc(AT(uint, states));
    barrier(CLK_LOCAL_MEM_FENCE);
    uint tile = tile_number;
    ulong own = (first / TILE + tile) * TILE;
    if (own >= first + count)
        return;
    uint start = first > own ? (uint)(first - own) : 0, end = (uint)min((ulong)TILE, first + count - own);
    ulong place = (own / page_len * channels + channel) * page_len + own % page_len;
    ulong after = place >= base ? (place - base) % row : row - (base - place) % row;
    uint period = 1u << 30, distance;
    if (row <= period) {
        period = (uint)row;
        distance = (uint)after;
    } else {
        distance = row - after <= TILE ? period - (uint)(row - after) : (uint)min(after, (ulong)period / 2);
    }
    __global ELEMENT *at = AT(ELEMENT, elements) + own - first;
    for (uint i = t; i < TILE; i += GROUP)
        here[APART(i)] = i >= start && i < end ? at[i] : 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (t < TILE / 32) {
        for (uint l = 0; l < 32; l++) {
            x[l] = here[APART(t * 32 + l)];
            back[l] = distance_of(distance, period, t * 32 + l);
        }
        scan_row(x, back);
        rows[t] = x[31];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (t < BLOCKS) {
        NUMBER sums[32];
        uint reach[32];
        for (uint l = 0; l < 32; l++) {
            sums[l] = rows[t * 32 + l];
            reach[l] = distance_of(distance, period, t * 1024 + l * 32 + 31) / 32;
        }
        scan_row(sums, reach);
        for (uint l = 0; l < 32; l++)
            rows[t * 32 + l] = sums[l];
        begins[t] = distance_of(distance, period, t * 1024 + 1023) < 1024;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (t == 0) {
        Node blocks[BLOCKS];
        for (uint b = 0; b < BLOCKS; b++) {
            blocks[b].sum = rows[b * 32 + 31];
            blocks[b].left = 0;
            blocks[b].begins = begins[b];
        }
        Node two = then(blocks[0], blocks[1]), all = two, before;
#if BLOCKS == 4
        all = then(two, then(blocks[2], blocks[3]));
#endif
        __global ulong *state = AT(ulong, states) + 8 + (ulong)tile * 4;
        if (what & TELLS) {
            state[0] = all.begins ? 3 : 1;
            state[1] = WORD(all.sum);
            state[2] = WORD(all.left);
        } else if (what & IS_TOLD) {
            before.sum = OF_WORD(state[1]);
            before.left = OF_WORD(state[2]);
        } else {
            before = before_tile(AT(uint, states) + 16, first / TILE, tile, all);
        }
        carried[0] = rounded(before);
        carried[1] = rounded(then(before, blocks[0]));
#if BLOCKS == 4
        before = then(before, two);
        carried[2] = rounded(before);
        carried[3] = rounded(then(before, blocks[2]));
#endif
        if (tile == 0)
            AT(ulong, states)[1] = 1;
    }
    if (what & TELLS)
        return;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (t < TILE / 32) {
        for (uint l = 0; l < 32; l++) {
            // From the last to the first: own row, other rows of the block, other blocks.
            uint within = t % 32 * 32 + l;
            NUMBER value = x[l];
            bool is_begun = true;
            if (what & IS_EXCLUSIVE) {
                is_begun = l > 0 && back[l] > 0;
                value = is_begun ? x[max(l, 1u) - 1] : 0;
            }
            if (within >= 32 && back[l] > l) {
                value = is_begun ? rows[t - 1] + value : rows[t - 1];
                is_begun = true;
            }
            if (back[l] > within)
                value = is_begun ? carried[t / 32] + value : carried[t / 32];
            here[APART(t * 32 + l)] = value;
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint i = t; i < TILE; i += GROUP)
        if (i >= start && i < end)
            at[i] = (ELEMENT)here[APART(i)];
}
#endif
