// Gathers and scatters, between device memory and packed values. Words of G bytes: G divides the place and the size of
// every element. Adjacent items process adjacent words of the values.
//
// The elements are in `bytes` bytes of pieces, which begin `window` bytes into the elements' buffer; another launch
// moves words outside them.
//
// `volatile`, so that an index is read once: the program may change it between the check and the use.

// Mark of the caller for an entry to skip.
#define LEFT_OUT 0xfffffffffffffffful

// Records that entry `position` of the whole list is out of bounds. Calls of one queue have different tags.
static inline void outside(__global volatile uint *status, uint tag, ulong position) {
    if (atomic_xchg(status, tag) != tag) {
        status[1] = (uint)position;
        status[2] = (uint)(position >> 32);
    }
}

#define INDEXED_PARAMETERS(T)                                                                                       \
    PIECES, ulong window, ulong bytes, ulong start, ulong count, ulong stride, ulong each,                          \
        __global const volatile ulong *list, ulong skew, uint words, ulong position, __global T *values,            \
        __global volatile uint *status, uint tag

// Runs `move` for each word `w` of the values, with `at` as its place, and `fail` if its index is out of bounds.
//   each: words of an element; skew: words of the first listed element that belong to an earlier launch.
#define FOR_EACH_WORD(G, move, fail)                                                                                \
    for (uint w = get_global_id(0); w < words; w += get_global_size(0)) {                                           \
        ulong x = skew + w, part;                                                                                   \
        uint k;                                                                                                     \
        if (each < 0x80000000ul) {                                                                                  \
            k = (uint)x / (uint)each;                                                                               \
            part = (uint)x - k * (uint)each;                                                                        \
        } else {                                                                                                    \
            k = x >= each;                                                                                          \
            part = k ? x - each : x;                                                                                \
        }                                                                                                           \
        ulong index = list[k];                                                                                      \
        if (index >= count) {                                                                                       \
            if (index != LEFT_OUT) {                                                                                \
                outside(status, tag, position + k);                                                                 \
                fail;                                                                                               \
            }                                                                                                       \
            continue;                                                                                               \
        }                                                                                                           \
        ulong at = start + index * stride + part * G - window;                                                      \
        if (at < bytes) {                                                                                           \
            move;                                                                                                   \
        }                                                                                                           \
    }

#define INDEXED(G, T)                                                                                               \
    KERNEL void gather_##G(INDEXED_PARAMETERS(T)) {                                                                 \
        FOR_EACH_WORD(G, values[w] = *(__global const T *)place(PIECE_LIST, at), values[w] = 0)                     \
    }                                                                                                               \
    KERNEL void scatter_##G(INDEXED_PARAMETERS(T)) {                                                                \
        FOR_EACH_WORD(G, *(__global T *)place(PIECE_LIST, at) = values[w], )                                        \
    }

INDEXED(1, uchar)
INDEXED(2, ushort)
INDEXED(4, uint)
INDEXED(8, ulong)
INDEXED(16, uint4)
