// Writes fields of each element.

#include "splice.h"

KERNEL compute_store(Space space) {
    for (u64 tile = (u64)block() * TILE; tile < space.count; tile += (u64)blocks() * TILE) {
        u64 at = tile + thread();
        SPLICE_STORE(at, left_from(at, space.count));
    }
}
