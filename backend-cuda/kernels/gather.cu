// Gathers and scatters: elements by index, from device memory to packed values, and back. The values are usually in
// host memory, whose accesses are slow. So adjacent threads access adjacent words of the values, for any size of
// elements.
//
// The values are divided into tiles of `tile_bytes`. A block reads the indices of a tile once, and keeps the addresses
// of its elements in shared memory. G, a power of two, divides the addresses of all elements, their size, and (from 4
// on) the address of the values.

const u32 BASES_MAX = 64;

struct Indexed {
    u64 count;       // number of elements
    u64 stride;      // bytes of an element
    u64 indices;     // address of the indices
    u64 total;       // bytes of all values
    u64 values;      // address of the values
    u64 tile_bytes;  // a multiple of 128, at most TILE_ELEMENTS * stride
    u64 tiles;
    u64 failure;     // address of two u64: 1 if an index is out of bounds, and its position in the list
    u64 page_len;    // elements of a page: page p is the (p / places)-th at bases[p % places]
    u64 places;
    u64 bases[BASES_MAX];
};

const u32 TILE_ELEMENTS = 512;
const u64 OUTSIDE = ~0ull;  // also in the list of the caller, for an entry to skip

// Place of a byte of a tile: number of the tile's index, and offset in the element.
struct Place {
    u32 index;
    u64 offset;
};
INLINE Place place(u64 stride, u64 bytes) {
    if (stride < 0x40000000) {
        u32 s = (u32)stride, b = (u32)bytes;
        return Place{b / s, b % s};
    }
    // Such an element is longer than a tile, so a tile contains parts of at most two.
    return bytes >= stride ? Place{1, bytes - stride} : Place{0, bytes};
}

// Address of an element; `bases` are the bases of `a`.
INLINE u64 address(const Indexed &a, const u64 *bases, u64 index) {
    if (a.places == 1)
        return a.bases[0] + index * a.stride;
    u64 page, slot;
    if ((index | a.page_len) >> 32) {
        page = index / a.page_len;
        slot = page / a.places;
    } else {
        page = (u32)index / (u32)a.page_len;
        slot = (u32)page / (u32)a.places;
    }
    return bases[page - slot * a.places] + (slot * a.page_len + (index - page * a.page_len)) * a.stride;
}

template <u32 G, bool GATHER> INLINE void indexed(const Indexed &a) {
    const u32 O = G < 4 ? 4 : G;
    const u32 UNROLL = 4;
    __shared__ u64 list[TILE_ELEMENTS + 2];
    __shared__ u64 bases[BASES_MAX];
    u32 t = thread();
    if (a.places > 1) {
        // Parameters can only be indexed by compile-time constants.
#pragma unroll
        for (u32 j = 0; j < BASES_MAX; j++)
            if (t == j)
                bases[j] = a.bases[j];
    }
    // Words of the values start at multiples of O; the `shift` bytes before the values are not accessed.
    u64 shift = a.values & (O - 1);
    u64 base = a.values - shift;
    for (u64 tile = block(); tile < a.tiles; tile += blocks()) {
        u64 start = tile * a.tile_bytes, end = least(start + a.tile_bytes, a.total + shift);
        u64 from = start < shift ? 0 : start - shift, to = end - shift;
        u64 k = from / a.stride;
        u32 listed = (u32)((to - 1) / a.stride - k) + 1;
        barrier();
        for (u32 j = t; j < listed; j += THREADS) {
            u64 index = load_once(a.indices + (k + j) * 8);
            if (index >= a.count && index != OUTSIDE) {
                index = OUTSIDE;
                ((volatile u64 *)a.failure)[1] = k + j;
                ((volatile u64 *)a.failure)[0] = 1;
            }
            list[j] = index == OUTSIDE ? OUTSIDE : address(a, bases, index);
        }
        barrier();
        u64 skew = from - k * a.stride;  // offset of the tile in its first element
        u32 words = (u32)((end - start + O - 1) / O);
        for (u32 w = t; w < words; w += THREADS * UNROLL) {
            if constexpr (G >= 4) {
                u64 at[UNROLL];
                word<G> value[UNROLL];
#pragma unroll
                for (u32 j = 0; j < UNROLL; j++) {
                    u32 x = w + j * THREADS;
                    at[j] = 0;
                    if (x < words) {
                        Place p = place(a.stride, skew + (u64)x * O);
                        u64 element = list[p.index];
                        if (element != OUTSIDE) {
                            at[j] = element + p.offset;
                            value[j] = load<G>(GATHER ? at[j] : base + start + (u64)x * O);
                        }
                    }
                }
#pragma unroll
                for (u32 j = 0; j < UNROLL; j++)
                    if (at[j])
                        store<G>(GATHER ? base + start + (u64)(w + j * THREADS) * O : at[j], value[j]);
            } else {
#pragma unroll
                for (u32 j = 0; j < UNROLL; j++) {
                    u32 x = w + j * THREADS;
                    if (x >= words)
                        break;
                    // Bytes of this word, as offsets in the values; the first and the last word may be partial.
                    u64 word_at = base + start + (u64)x * 4;
                    u64 low = start + (u64)x * 4 < shift ? shift : start + (u64)x * 4;
                    u64 high = least(start + (u64)x * 4 + 4, end);
                    bool whole = high - low == 4;
                    u32 bytes = 0;
                    if (!GATHER && whole)
                        bytes = load<4>(word_at);
                    bool inside = false;  // true if any of its bytes moves
                    for (u64 b = low; b < high;) {
                        Place p = place(a.stride, skew + (b - shift - from));
                        u64 element = list[p.index];
                        u64 at = element + p.offset;
                        u32 bit = (u32)(base + b - word_at) * 8;
                        // Two bytes at once if the alignment of word and element permits.
                        u32 step = G == 2 && (bit & 8) == 0 && high - b >= 2 && (p.offset & 1) == 0 ? 2 : 1;
                        bool moves = element != OUTSIDE;
                        inside |= moves;
                        if (moves && GATHER) {
                            u32 piece = step == 2 ? load<2>(at) : load<1>(at);
                            if (whole)
                                bytes |= piece << bit;
                            else if (step == 2)
                                store<2>(base + b, (u16)piece);
                            else
                                store<1>(base + b, (u8)piece);
                        } else if (moves && step == 2) {
                            store<2>(at, whole ? (u16)(bytes >> bit) : load<2>(base + b));
                        } else if (moves) {
                            store<1>(at, whole ? (u8)(bytes >> bit) : load<1>(base + b));
                        }
                        b += step;
                    }
                    if (GATHER && whole && inside)
                        store<4>(word_at, bytes);
                }
            }
        }
    }
}

#define INDEXED(G)                                                                                                 \
    KERNEL gather_##G(Indexed a) { indexed<G, true>(a); }                                                          \
    KERNEL scatter_##G(Indexed a) { indexed<G, false>(a); }
INDEXED(1)
INDEXED(2)
INDEXED(4)
INDEXED(8)
INDEXED(16)
