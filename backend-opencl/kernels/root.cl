// Square root of a 32-bit float by integers, rounded to nearest even, for devices whose own is not: see `divide.cl`,
// which precedes this.
static inline float root(float value) {
    uint bits = as_uint(value);
    if ((bits & 0x7FFFFFFFu) == 0u || bits == 0x7F800000u)
        return value;
    if (bits > 0x7F800000u)
        return as_float(0x7FC00000u);
    int biased;
    ulong radicand = significand_of(bits, &biased);
    // The value is `radicand` times two to an exponent, which is made even. 26 more bits give the root 25 or 26 bits.
    int power = biased - 150;
    if (power & 1) {
        radicand <<= 1;
        power--;
    }
    radicand <<= 26;
    power -= 26;
    uint found = 0u;
    for (uint bit = 1u << 25; bit != 0u; bit >>= 1) {
        ulong next = found | bit;
        if (next * next <= radicand)
            found = (uint)next;
    }
    bool left = (ulong)found * found != radicand;
    // 24 bits are kept. The root of the least subnormal number is a normal one.
    uint drop = found >> 25 ? 2u : 1u;
    uint kept = found >> drop, cut = found & ((1u << drop) - 1u), middle = 1u << (drop - 1u);
    bool up = cut > middle || (cut == middle && (left || (kept & 1u)));
    uint scale = (uint)(power / 2 + (int)drop + 149) << 23;
    return as_float(scale + kept + up);
}
