// Batches of copies in one launch, between device memory and mapped host memory in both directions; and fills.

struct Piece {
    u64 to;
    u64 from;
    u64 bytes;
};

// Number of pieces in a launch's parameters, which the GPU reads without an access to the host.
const u32 FEW = 128;
struct Few {
    Piece piece[FEW];
};

template <u32 W> INLINE void copy_words(u64 to, u64 from, u64 words) {
    u64 i = thread();
    for (; i + 3 * THREADS < words; i += 4 * THREADS) {
        word<W> v0 = load<W>(from + i * W);
        word<W> v1 = load<W>(from + (i + THREADS) * W);
        word<W> v2 = load<W>(from + (i + 2 * THREADS) * W);
        word<W> v3 = load<W>(from + (i + 3 * THREADS) * W);
        store<W>(to + i * W, v0);
        store<W>(to + (i + THREADS) * W, v1);
        store<W>(to + (i + 2 * THREADS) * W, v2);
        store<W>(to + (i + 3 * THREADS) * W, v3);
    }
    for (; i < words; i += THREADS)
        store<W>(to + i * W, load<W>(from + i * W));
}

// The whole block copies one piece.
INLINE void copy_piece(u64 to, u64 from, u64 bytes) {
    u64 apart = to ^ from;
    u64 unit = (apart & 15) == 0 ? 16 : 4;
    // Single bytes up to the first whole word of the target, and after the last.
    u64 head = least((unit - (to & (unit - 1))) & (unit - 1), bytes);
    u64 words = (bytes - head) / unit, tail = bytes - head - words * unit;
    // Unequal alignment: a word of the target is combined from two of the source, both inside it.
    bool skewed = (apart & 3) != 0;
    u32 skew = (u32)(from + head) & 3;
    if (skewed) {
        while (words && head + words * 4 + 4 - skew > bytes) {
            words--;
            tail += 4;
        }
        if (words && skew > head) {
            head += 4;
            words--;
        }
    }
    u32 t = thread();
    for (u32 i = t; i < head; i += THREADS)
        store<1>(to + i, load<1>(from + i));
    if (unit == 16) {
        copy_words<16>(to + head, from + head, words);
    } else if (!skewed) {
        copy_words<4>(to + head, from + head, words);
    } else {
        u64 source = from + head - skew;
        for (u64 i = t; i < words; i += THREADS) {
            u32 low = load<4>(source + i * 4), high = load<4>(source + i * 4 + 4);
            store<4>(to + head + i * 4, low >> (8 * skew) | high << (32 - 8 * skew));
        }
    }
    u64 done = head + words * unit;
    for (u32 i = t; i < tail; i += THREADS)
        store<1>(to + done + i, load<1>(from + done + i));
}

KERNEL copy_few(Few few, u32 count) {
    for (u32 i = block(); i < count; i += blocks())
        copy_piece(few.piece[i].to, few.piece[i].from, few.piece[i].bytes);
}

// The list is in host memory, so each block reads a piece's entry once, while it copies the piece before.
KERNEL copy_list(u64 list, u32 count) {
    __shared__ u64 pieces[2][3];
    u32 t = thread(), i = block(), side = 0;
    if (t < 3 && i < count)
        pieces[0][t] = load<8>(list + (u64)i * 24 + t * 8);
    for (; i < count; i += blocks(), side ^= 1) {
        barrier();
        u64 next = 0;
        bool prefetches = t < 3 && i + blocks() < count;
        if (prefetches)
            next = load<8>(list + (u64)(i + blocks()) * 24 + t * 8);
        copy_piece(pieces[side][0], pieces[side][1], pieces[side][2]);
        // All threads read the other buffer before the barrier.
        if (prefetches)
            pieces[side ^ 1][t] = next;
    }
}

// Writes a pattern that was repeated to `period` times 16 bytes, and rotated to fit the first multiple of 16 at or
// after `to`.
KERNEL fill(u64 to, u64 bytes, u64 pattern, u32 period) {
    u64 head = least((16 - (to & 15)) & 15, bytes);
    u64 vectors = (bytes - head) / 16, tail = bytes - head - vectors * 16;
    u64 whole = (u64)period * 16;
    u64 first = (u64)block() * THREADS + thread(), threads = (u64)blocks() * THREADS;
    u32 phase = (u32)(first % period), step = (u32)(threads % period);
    for (u64 i = first; i < vectors; i += threads) {
        store<16>(to + head + i * 16, load<16>(pattern + (u64)phase * 16));
        phase += step;
        if (phase >= period)
            phase -= period;
    }
    if (first < head)
        store<1>(to + first, load<1>(pattern + whole - head + first));
    if (first < tail)
        store<1>(to + head + vectors * 16 + first, load<1>(pattern + vectors % period * 16 + first));
}
