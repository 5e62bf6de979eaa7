// Quotient of two 32-bit floats by integers: rounded to nearest even, independent of the device's floats.
//
// For devices whose own division is not rounded correctly (OpenCL allows 2.5 units in the last place). A 64-bit
// division with a second rounding would be correct too, but compilers turn it back into a division of 32 bits (LLVM's
// InstCombine does, NVIDIA's compiler did), the operation to avoid.
//
// Long division of the significands: 25 bits of the quotient, three times eight of them below the first. A nonzero
// remainder decides the rounding (see e.g. Muller et al., Handbook of Floating-Point Arithmetic, on division in
// integers).

// Significand of a finite nonzero number, with its first bit at 23, and its exponent.
static inline uint significand_of(uint magnitude, int *exponent) {
    uint fraction = magnitude & 0x7FFFFFu;
    int biased = (int)(magnitude >> 23);
    if (biased != 0) {
        *exponent = biased;
        return fraction | 0x800000u;
    }
    uint shift = clz(fraction) - 8u;
    *exponent = 1 - (int)shift;
    return fraction << shift;
}

static inline float quotient(float dividend, float divisor) {
    uint a = as_uint(dividend), b = as_uint(divisor);
    uint sign = (a ^ b) & 0x80000000u;
    a &= 0x7FFFFFFFu;
    b &= 0x7FFFFFFFu;
    const uint infinite = 0x7F800000u, nan = 0x7FC00000u;
    if (a > infinite || b > infinite || (a == b && (a == 0u || a == infinite)))
        return as_float(nan);
    if (a == infinite || b == 0u)
        return as_float(sign | infinite);
    if (a == 0u || b == infinite)
        return as_float(sign);
    int above, below;
    uint rest = significand_of(a, &above), by = significand_of(b, &below);
    int exponent = above - below + 127;
    if (rest < by) {
        rest <<= 1;
        exponent--;
    }
    // From here on the quotient is at least 1 and below 2. No value exceeds 32 bits, because `rest` stays below `by`.
    rest -= by;
    uint bits = 1u;
    for (int step = 0; step < 3; step++) {
        rest <<= 8;
        bits = bits << 8 | rest / by;
        rest %= by;
    }
    if (exponent >= 255)
        return as_float(sign | infinite);
    // One bit is below the last place; more for subnormal numbers. With 25 of them only zero remains.
    uint more = exponent > 0 ? 0u : min((uint)(1 - exponent), 25u);
    uint kept = bits >> (more + 1u), cut = bits & ((2u << more) - 1u), middle = 1u << more;
    bool up = cut > middle || (cut == middle && (rest != 0u || (kept & 1u)));
    // The first bit of the significand adds one to the exponent, and so does a carry of the rounding.
    uint scale = exponent > 0 ? (uint)(exponent - 1) << 23 : 0u;
    return as_float(sign | (scale + kept + up));
}
