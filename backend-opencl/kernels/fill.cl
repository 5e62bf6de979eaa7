// Fills one buffer with a repeated pattern. The pattern is laid out from the first whole 16 bytes on, so vector i of
// the range takes entry i mod `entries` of a table.

// The first and the last bytes of the range, outside whole vectors. One group.
KERNEL void fill_edges(Bytes to, ulong start, ulong head, ulong tail_start, ulong end, __global const uchar *pattern,
                       ulong bytes, ulong phase) {
    uint t = get_local_id(0);
    for (ulong at = start + t; at < head; at += GROUP)
        to[at] = pattern[(phase + (at - start)) % bytes];
    for (ulong at = tail_start + t; at < end; at += GROUP)
        to[at] = pattern[(phase + (at - start)) % bytes];
}

// Whole vectors of a pattern whose length divides 16 bytes.
KERNEL void fill_same(__global uint4 *to, ulong first, ulong vectors, uint4 pattern) {
    for (ulong i = get_global_id(0); i < vectors; i += get_global_size(0))
        to[first + i] = pattern;
}

// Whole vectors of any other pattern.
KERNEL void fill_table(__global uint4 *to, ulong first, ulong vectors, __global const uint4 *table, uint entries) {
    uint step = (uint)(get_global_size(0) % entries);
    uint entry = (uint)(get_global_id(0) % entries);
    for (ulong i = get_global_id(0); i < vectors; i += get_global_size(0)) {
        to[first + i] = table[entry];
        entry += step;
        if (entry >= entries)
            entry -= entries;
    }
}
