// The least and the greatest value, each with its first element: as keys that order values as unsigned integers.

#include "splice.h"

struct Partial {
    u64 count;
    u64 words[4];
};

// Reduces the candidates of the threads (key, and number of the element; ~0 for none) to the block's: the least key,
// and among equal keys the first element.
template <class Key> INLINE void block_least(Key &key, u64 &number, Key *keys, u64 *numbers) {
    u32 t = thread();
    keys[t] = key;
    numbers[t] = number;
    barrier();
    for (u32 half = THREADS / 2; half > 0; half /= 2) {
        if (t < half) {
            bool none = numbers[t] == ~0ull, better = keys[t + half] < keys[t],
                 earlier = keys[t + half] == keys[t] && numbers[t + half] < numbers[t];
            if (numbers[t + half] != ~0ull && (none || better || earlier)) {
                keys[t] = keys[t + half];
                numbers[t] = numbers[t + half];
            }
        }
        barrier();
    }
    key = keys[0];
    number = numbers[0];
    barrier();
}

template <class Key, class Splice> INLINE void extremes(const Space &space, u64 *answer, Splice splice) {
    __shared__ Key keys[THREADS];
    __shared__ u64 numbers[THREADS];
    u32 t = thread();
    Key least_key = (Key)~0ull, greatest_key = 0;
    u32 least_at = ~0u, greatest_at = ~0u, number = 0;
    u64 all = 0;
    for (u64 tile = (u64)block() * TILE; tile < space.count; tile += (u64)blocks() * TILE, number += EACH) {
        u64 at = tile + t;
        u32 counted = 0;
        splice(least_key, least_at, greatest_key, greatest_at, counted, at, left_from(at, space.count), number);
        all += counted;
    }
    // The thread's element number `n` is in its tile n / EACH.
    auto element = [&](u32 n) -> u64 {
        return n == ~0u ? ~0ull : ((u64)(n / EACH) * blocks() + block()) * TILE + (n % EACH) * THREADS + t;
    };
    u64 least_number = element(least_at), greatest_number = element(greatest_at);
    block_least<Key>(least_key, least_number, keys, numbers);
    Key flipped = ~greatest_key;
    block_least<Key>(flipped, greatest_number, keys, numbers);
    numbers[t] = all;
    barrier();
    for (u32 half = THREADS / 2; half > 0; half /= 2) {
        if (t < half)
            numbers[t] += numbers[t + half];
        barrier();
    }
    if (t == 0) {
        Partial *partial = (Partial *)(answer + 1) + block();
        partial->count = numbers[0];
        partial->words[0] = least_key;
        partial->words[1] = least_number;
        partial->words[2] = (Key)~flipped;
        partial->words[3] = greatest_number;
        if (block() == 0)
            answer[0] = blocks();
    }
}

KERNEL compute_extremes_32(Space space, u64 *answer) {
    extremes<u32>(space, answer,
                  [](u32 &l, u32 &la, u32 &g, u32 &ga, u32 &c, u64 at, u32 left, u32 number) {
                      SPLICE_EXTREMES_32(l, la, g, ga, c, at, left, number);
                  });
}

KERNEL compute_extremes_64(Space space, u64 *answer) {
    extremes<u64>(space, answer,
                  [](u64 &l, u32 &la, u64 &g, u32 &ga, u32 &c, u64 at, u32 left, u32 number) {
                      SPLICE_EXTREMES_64(l, la, g, ga, c, at, left, number);
                  });
}
