// The parts of a search that are the same for all programs; see compute.cl.

// Zeroes the counts, if the search may stop early.
KERNEL void search_begin(__global uint *counts, uint chunks, __global uint *state, uint states) {
    for (uint i = get_global_id(0); i < chunks; i += get_global_size(0))
        counts[i] = 0;
    for (uint i = get_global_id(0); i < states; i += get_global_size(0))
        state[i] = 0;
}

// One group. answer[0] becomes the total, answer[1] the number of listed indices.
KERNEL void search_scan(uint chunks, ulong limit, __global const uint *counts, __global ulong *offsets,
                        __global ulong *answer) {
    __local ulong sums[GROUP];
    uint t = get_local_id(0);
    ulong each = ((ulong)chunks + GROUP - 1) / GROUP;
    ulong start = min(t * each, (ulong)chunks), end = min(start + each, (ulong)chunks);
    ulong sum = 0;
    for (ulong c = start; c < end; c++)
        sum += counts[c];
    sums[t] = sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint distance = 1; distance < GROUP; distance *= 2) {
        ulong left = t >= distance ? sums[t - distance] : 0;
        barrier(CLK_LOCAL_MEM_FENCE);
        sums[t] += left;
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    ulong total = sums[GROUP - 1];
    if (t == 0) {
        answer[0] = total;
        answer[1] = min(limit, total);
    }
    if (total == 0 || limit == 0)
        return;
    ulong offset = sums[t] - sum;
    for (ulong c = start; c < end; c++) {
        offsets[c] = offset;
        offset += counts[c];
    }
}
