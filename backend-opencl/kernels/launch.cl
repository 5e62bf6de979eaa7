// What kernels of the program share. Half-precision floats are converted in integers: without an extension OpenCL has
// them in memory only, at addresses that are aligned.

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
    // A multiple of 2^-24. What is below 2^-25 is nothing.
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

// One more item failed; of the first to come here it is said how. More than 2^31 are not counted.
static inline void report_failure(__global volatile uint *report, uint site, ulong detail, ulong item) {
    if (report[0] >= 0x80000000u || atomic_inc(&report[0]) != 0u)
        return;
    report[2] = site;
    report[4] = (uint)detail;
    report[5] = (uint)(detail >> 32);
    report[6] = (uint)item;
    report[7] = (uint)(item >> 32);
}

// Whether the item has to end: it has run longer than `limit` ticks, or another item has.
static inline uint is_over(
    __global volatile uint *report, __global const volatile uint *ticks, uint limit, uint *since) {
    if (report[2] >> 31)
        return 1u;
    uint now = *ticks;
    if (*since == 0u)
        *since = now;
    return now - *since > limit;
}

// The item has exceeded the time limit in the loop `site`. That takes precedence over other failures.
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

// A back edge of the loop `at`. The clock is read at each 65536th of the work-item.
#define TURN(at, of)                                                                                                \
    if (--left == 0u) {                                                                                             \
        left = 65536u;                                                                                              \
        if (is_over(report, ticks, limit, &since)) {                                                                \
            report_time_over(report, at, of);                                                                       \
            return;                                                                                                 \
        }                                                                                                           \
    }

// Where a byte of the item's own memory is: words of all items lie beside one another.
#define ARENA(at) (arena + (((at) >> 3) * slabs + slab << 3) + ((at) & 7ul))

// The first failure of the item counts.
#define FAIL(at, what)                                                                                              \
    if (!failed) {                                                                                                  \
        failed = 1u;                                                                                                \
        site = at;                                                                                                  \
        detail = what;                                                                                              \
    }
