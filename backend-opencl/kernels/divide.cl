// The quotient of two 32-bit floats in integers: rounded to nearest even whatever the device does with floats.
//
// For devices whose own division is not rounded correctly (OpenCL allows 2.5 units in the last place). To divide in 64
// bits and round once more would be right as well, but compilers turn that back into a division of 32 bits (LLVM's
// InstCombine does, NVIDIA's compiler did), which is the one to be avoided.
//
// Long division of the significands: 25 bits of the quotient, three times eight of them below the first, and whether
// anything is left, which decide how to round (see e.g. Muller et al., Handbook of Floating-Point Arithmetic, on
// division in integers).

// The significand of a number that is neither zero nor infinite, its first bit at 23, and its exponent.
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
    // From here on the quotient is at least 1 and below 2. Nothing leaves 32 bits: `rest` stays below `by`.
    rest -= by;
    uint bits = 1u;
    for (int step = 0; step < 3; step++) {
        rest <<= 8;
        bits = bits << 8 | rest / by;
        rest %= by;
    }
    if (exponent >= 255)
        return as_float(sign | infinite);
    // One bit is below the last place; of subnormal numbers more are. With 25 of them nothing but zero is left.
    uint more = exponent > 0 ? 0u : min((uint)(1 - exponent), 25u);
    uint kept = bits >> (more + 1u), cut = bits & ((2u << more) - 1u), middle = 1u << more;
    bool up = cut > middle || (cut == middle && (rest != 0u || (kept & 1u)));
    // The first bit of the significand counts as one in the exponent, and so does what rounding carries into it.
    uint scale = exponent > 0 ? (uint)(exponent - 1) << 23 : 0u;
    return as_float(sign | (scale + kept + up));
}
