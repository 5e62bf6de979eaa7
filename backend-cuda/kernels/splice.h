// Insertion points of a program's code. The statements below leave a comment in the PTX that names registers. Before
// the driver gets the text, the comment is replaced by instructions that evaluate the program
// (src/kernel/compute/codegen.rs) for the EACH elements `first + k * STEP`, k = 0 .. EACH - 1. Elements with k * STEP <
// left exist.

#pragma once

#define EACH 8u
#define TILE (THREADS * EACH)

// The first parameter of each of these kernels, under the name that the inserted code expects. The kernels themselves
// use `count` alone.
struct Space {
    u64 base[8];      // addresses of the sources
    u64 literals[32];
    u64 first;        // see Geometry in the contract
    u64 channel;
    u64 count;        // elements
};

// Number of existing elements from `at` on.
INLINE u32 left_from(u64 at, u64 end) { return at < end ? (u32)least(end - at, 1u << 30) : 0; }

// Bit set of the matching elements.
#define SPLICE_FIND(mask, first, left)                                                                               \
    asm volatile("//splice find 1 %0 %1 %2 ;" : "=r"(mask) : "l"(first), "r"(left))
// Adds the number of matching elements. The code decides how many elements it evaluates: `tile` of Chunks for a block.
#define SPLICE_COUNT(matches, first, left)                                                                           \
    asm volatile("//splice count 256 %0 %1 %2 ;" : "+r"(matches) : "l"(first), "r"(left))
// Adds integers as `low + (high << 32)`, and their count.
#define SPLICE_SUM(low, high, count, first, left)                                                                    \
    asm volatile("//splice sum 256 %0 %1 %2 %3 %4 ;" : "+l"(low), "+l"(high), "+r"(count) : "l"(first), "r"(left))
#define SPLICE_SUM_FLOATS(sum, count, first, left)                                                                   \
    asm volatile("//splice sum_floats 256 %0 %1 %2 %3 ;" : "+d"(sum), "+r"(count) : "l"(first), "r"(left))
// Keys of the least and the greatest so far, and the thread's elements with them; ~0 for none so far.
#define SPLICE_EXTREMES_32(least, least_at, greatest, greatest_at, count, first, left, number)                       \
    asm volatile("//splice extremes 256 %0 %1 %2 %3 %4 %5 %6 %7 ;"                                                   \
                 : "+r"(least), "+r"(least_at), "+r"(greatest), "+r"(greatest_at), "+r"(count)                       \
                 : "l"(first), "r"(left), "r"(number))
#define SPLICE_EXTREMES_64(least, least_at, greatest, greatest_at, count, first, left, number)                       \
    asm volatile("//splice extremes 256 %0 %1 %2 %3 %4 %5 %6 %7 ;"                                                   \
                 : "+l"(least), "+r"(least_at), "+l"(greatest), "+r"(greatest_at), "+r"(count)                       \
                 : "l"(first), "r"(left), "r"(number))
// The number of each element; ~0 for one that is not selected.
#define SPLICE_HISTOGRAM(bin, first, left)                                                                           \
    asm volatile("//splice histogram 256 %0 %1 %2 %3 %4 %5 %6 %7 %8 %9 ;"                                            \
                 : "=r"(bin[0]), "=r"(bin[1]), "=r"(bin[2]), "=r"(bin[3]), "=r"(bin[4]), "=r"(bin[5]),               \
                   "=r"(bin[6]), "=r"(bin[7])                                                                        \
                 : "l"(first), "r"(left))
#define SPLICE_STORE(first, left) asm volatile("//splice store 256 %0 %1 ;" ::"l"(first), "r"(left) : "memory")
