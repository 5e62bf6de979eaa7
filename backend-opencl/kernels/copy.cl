// Batches of small copies in one launch, between device memory and host-visible memory or a packed buffer. Words of G
// bytes: G divides all places and lengths.

struct Copy {
    ulong device;  // place in the pieces
    ulong other;   // place in the other memory
    ulong bytes;
};

// One group for a copy, or `split` groups for each long one.
#define COPY(G, T)                                                                                                  \
    KERNEL void copy_##G(PIECES, Bytes other, __global const struct Copy *copies, uint count, uint split,           \
                         uint to_device) {                                                                          \
        for (uint g = get_group_id(0); g < count * split; g += get_num_groups(0)) {                                 \
            struct Copy c = copies[g / split];                                                                      \
            ulong words = c.bytes / G;                                                                              \
            for (ulong w = (g % split) * GROUP + get_local_id(0); w < words; w += (ulong)split * GROUP) {           \
                __global T *here = (__global T *)place(PIECE_LIST, c.device + w * G);                               \
                __global T *there = (__global T *)(other + c.other + w * G);                                        \
                if (to_device)                                                                                      \
                    *here = *there;                                                                                 \
                else                                                                                                \
                    *there = *here;                                                                                 \
            }                                                                                                       \
        }                                                                                                           \
    }

COPY(1, uchar)
COPY(4, uint)
COPY(16, uint4)
