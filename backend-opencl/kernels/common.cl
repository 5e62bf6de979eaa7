// Built with -D GROUP=<items of a group, a power of two>. Plain OpenCL C 1.2, without extensions.

#define KERNEL __kernel __attribute__((reqd_work_group_size(GROUP, 1, 1)))

typedef __global uchar *Bytes;
typedef __global const uchar *ConstBytes;

// Up to eight consecutive buffers of one address space: piece i begins at byte i << shift.
#define PIECES Bytes p0, Bytes p1, Bytes p2, Bytes p3, Bytes p4, Bytes p5, Bytes p6, Bytes p7, uint shift
#define PIECE_LIST p0, p1, p2, p3, p4, p5, p6, p7, shift

// Address of a byte of the address space.
static inline Bytes place(PIECES, ulong at) {
    uint i = (uint)(at >> shift);
    Bytes piece = p0;
    if (i == 1)
        piece = p1;
    else if (i == 2)
        piece = p2;
    else if (i == 3)
        piece = p3;
    else if (i == 4)
        piece = p4;
    else if (i == 5)
        piece = p5;
    else if (i == 6)
        piece = p6;
    else if (i == 7)
        piece = p7;
    return piece + (at & (((ulong)1 << shift) - 1));
}
