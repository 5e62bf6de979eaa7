// Common functions of the program's kernels. Half-precision floats are converted by integers: without an extension,
// OpenCL supports them only in memory, at aligned addresses.

static inline float half_to_float(ushort bits) {
    uint sign = (uint)(bits & 0x8000u) << 16, exponent = bits >> 10 & 0x1Fu, fraction = bits & 0x3FFu;
    if (exponent == 0x1Fu)
        return as_float(sign | 0x7F800000u | fraction << 13);
    if (exponent != 0u)
        return as_float(sign | (exponent + 112u) << 23 | fraction << 13);
    if (fraction == 0u)
        return as_float(sign);
    // Subnormal: the first bit becomes the implied one.
    uint shift = clz(fraction) - 21u;
    return as_float(sign | (113u - shift) << 23 | (fraction << (shift + 13u) & 0x7FFFFFu));
}

// Rounded to nearest even.
static inline ushort float_to_half(float value) {
    uint bits = as_uint(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7FFFFFFFu;
    if (magnitude > 0x7F800000u)
        return (ushort)(sign | 0x7E00u);
    if (magnitude >= 0x477FF000u)
        return (ushort)(sign | 0x7C00u);
    if (magnitude >= 0x38800000u)
        return (ushort)(sign | (magnitude + 0xFFFu + (magnitude >> 13 & 1u) - 0x38000000u) >> 13);
    // A multiple of 2^-24. Numbers below 2^-25 become zero.
    if (magnitude <= 0x33000000u)
        return (ushort)sign;
    uint significand = (magnitude & 0x7FFFFFu) | 0x800000u, drop = 126u - (magnitude >> 23);
    uint kept = significand >> drop, cut = significand & ((1u << drop) - 1u), middle = 1u << (drop - 1u);
    return (ushort)(sign | (kept + (cut > middle || (cut == middle && (kept & 1u)))));
}

static inline ushort float_to_bfloat(float value) {
    uint bits = as_uint(value);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u)
        return (ushort)(bits >> 16 | 0x40u);
    return (ushort)((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

static inline ulong reversed(ulong x) {
    x = (x >> 1 & 0x5555555555555555ul) | (x & 0x5555555555555555ul) << 1;
    x = (x >> 2 & 0x3333333333333333ul) | (x & 0x3333333333333333ul) << 2;
    x = (x >> 4 & 0x0F0F0F0F0F0F0F0Ful) | (x & 0x0F0F0F0F0F0F0F0Ful) << 4;
    x = (x >> 8 & 0x00FF00FF00FF00FFul) | (x & 0x00FF00FF00FF00FFul) << 8;
    x = (x >> 16 & 0x0000FFFF0000FFFFul) | (x & 0x0000FFFF0000FFFFul) << 16;
    return x >> 32 | x << 32;
}

// Counts a failed item, up to 2^31; the first item writes its failure to the report.
static inline void report_failure(__global volatile uint *report, uint site, ulong detail, ulong item) {
    if (report[0] >= 0x80000000u || atomic_inc(&report[0]) != 0u)
        return;
    report[2] = site;
    report[4] = (uint)detail;
    report[5] = (uint)(detail >> 32);
    report[6] = (uint)item;
    report[7] = (uint)(item >> 32);
}

// True if the item must end: it has run longer than `limit` ticks, or another item has.
static inline uint is_over(
    __global volatile uint *report, __global const volatile uint *ticks, uint limit, uint *since) {
    if (report[2] >> 31)
        return 1u;
    uint now = *ticks;
    if (*since == 0u)
        *since = now;
    return now - *since > limit;
}

// The item has exceeded the time limit in the loop `site`. This failure replaces others.
static inline void report_time_over(__global volatile uint *report, uint site, ulong item) {
    if (report[2] >> 31)
        return;
    atomic_inc(&report[0]);
    report[4] = 0u;
    report[5] = 0u;
    report[6] = (uint)item;
    report[7] = (uint)(item >> 32);
    report[2] = 0x80000000u | site;
}

// A back edge of the loop `at`. The work-item reads the clock at each 65536th.
#define TURN(at, of)                                                                                                \
    if (--left == 0u) {                                                                                             \
        left = 65536u;                                                                                              \
        if (is_over(report, ticks, limit, &since)) {                                                                \
            report_time_over(report, at, of);                                                                       \
            return;                                                                                                 \
        }                                                                                                           \
    }

// The same in function `call` of an expression, for the element `item`. The words of `late`: the element, the loop with
// its top bit, the function.
#define TURN_OF_CALL(at, call)                                                                                      \
    if (--left == 0u) {                                                                                             \
        left = 65536u;                                                                                              \
        if (is_over(late, ticks, limit, &since)) {                                                                  \
            if (atomic_cmpxchg(&late[2], 0u, 0x80000000u | at) == 0u) {                                             \
                late[0] = (uint)item;                                                                               \
                late[1] = (uint)(item >> 32);                                                                       \
                late[3] = call;                                                                                     \
            }                                                                                                       \
            return 0;                                                                                               \
        }                                                                                                           \
    }

// Address of a byte of the item's private memory: words of all items are interleaved.
#define ARENA(at) (arena + (((at) >> 3) * slabs + slab << 3) + ((at) & 7ul))

// The first failure of the item counts.
#define FAIL(at, what)                                                                                              \
    if (!failed) {                                                                                                  \
        failed = 1u;                                                                                                \
        site = at;                                                                                                  \
        detail = what;                                                                                              \
    }
