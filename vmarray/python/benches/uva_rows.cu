// The peer of `rows.py`: a kernel that reads rows at their addresses in RAM or on the GPU, one warp for each row.

#include <cuda_runtime.h>

static __global__ void gather(uint4 *out, const uint4 *table, const long long *ids, long long count, int words) {
    long long row = (blockIdx.x * (long long)blockDim.x + threadIdx.x) / 32;
    if (row < count) {
        const uint4 *from = table + ids[row] * words;
        for (int word = threadIdx.x % 32; word < words; word += 32) {
            out[row * words + word] = from[word];
        }
    }
}

extern "C" int uva_gather(void *out, const void *table, const void *ids, long long count, int words, void *stream) {
    gather<<<(unsigned)((count + 7) / 8), 256, 0, (cudaStream_t)stream>>>(
        (uint4 *)out, (const uint4 *)table, (const long long *)ids, count, words);
    return cudaGetLastError();
}
