// Reference for the speed of a search: the simplest read of all bytes, with a comparison so that the compiler removes
// no read. Only measurements use it.

INLINE u32 equal(u32x4 v, u32 value) { return (v.x == value) + (v.y == value) + (v.z == value) + (v.w == value); }

INLINE void report(u32 matches, u64 *result) {
    if (matches)
        __atomic_fetch_add(result, (u64)matches, __ATOMIC_RELAXED);
}

// All threads read the whole range in adjacent pieces of 16 bytes.
KERNEL read_plain(u64 from, u64 vectors, u32 value, u64 *result) {
    u32 matches = 0;
    u64 step = (u64)blocks() * THREADS;
    for (u64 i = (u64)block() * THREADS + thread(); i < vectors; i += step)
        matches += equal(read16(from + i * 16), value);
    report(matches, result);
}

// The same with four reads in flight.
KERNEL read_unrolled(u64 from, u64 vectors, u32 value, u64 *result) {
    u32 matches = 0;
    u64 step = (u64)blocks() * THREADS, i = (u64)block() * THREADS + thread();
    for (; i + 3 * step < vectors; i += 4 * step) {
        u32x4 v0 = read16(from + i * 16), v1 = read16(from + (i + step) * 16);
        u32x4 v2 = read16(from + (i + 2 * step) * 16), v3 = read16(from + (i + 3 * step) * 16);
        matches += equal(v0, value) + equal(v1, value) + equal(v2, value) + equal(v3, value);
    }
    for (; i < vectors; i += step)
        matches += equal(read16(from + i * 16), value);
    report(matches, result);
}

// Each block reads 16 KiB at a time, with four reads of each thread in flight.
KERNEL read_tiles(u64 from, u64 vectors, u32 value, u64 *result) {
    u32 matches = 0;
    for (u64 tile = block(); tile < vectors / (4 * THREADS); tile += blocks()) {
        u64 at = from + (tile * 4 * THREADS + thread()) * 16;
        u32x4 v0 = read16(at), v1 = read16(at + THREADS * 16);
        u32x4 v2 = read16(at + THREADS * 32), v3 = read16(at + THREADS * 48);
        matches += equal(v0, value) + equal(v1, value) + equal(v2, value) + equal(v3, value);
    }
    report(matches, result);
}
