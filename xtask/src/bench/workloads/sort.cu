// Sorts by CUB, to be compared with the family `sort` on the same card:
//     nvcc -O3 -std=c++17 -arch=native sort.cu -o sort && ./sort
#include <cub/cub.cuh>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

typedef unsigned long long u64;

#define CHECK(call)                                                            \
    do {                                                                       \
        cudaError_t error = (call);                                            \
        if (error != cudaSuccess) {                                            \
            printf("%s: %s\n", #call, cudaGetErrorString(error));              \
            exit(1);                                                           \
        }                                                                      \
    } while (0)

// As `mixed` of the family makes them.
template <class K> __global__ void fill(K *keys, u64 count) {
    for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < count; i += (u64)gridDim.x * blockDim.x) {
        u64 bits = (i + 1) * 0x9E3779B97F4A7C15ull;
        bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9ull;
        bits = (bits ^ bits >> 27) * 0x94D049BB133111EBull;
        bits ^= bits >> 31;
        keys[i] = (K)(bits >> (64 - 8 * sizeof(K)));
    }
}

template <class K> void run(u64 count) {
    K *keys, *beside;
    void *scratch;
    size_t scratch_bytes = 0;
    CHECK(cudaMalloc(&keys, count * sizeof(K)));
    CHECK(cudaMalloc(&beside, count * sizeof(K)));
    cub::DoubleBuffer<K> none(keys, beside);
    CHECK(cub::DeviceRadixSort::SortKeys(nullptr, scratch_bytes, none, count));
    CHECK(cudaMalloc(&scratch, scratch_bytes));
    cudaEvent_t start, end;
    CHECK(cudaEventCreate(&start));
    CHECK(cudaEventCreate(&end));
    float times[5];
    for (int turn = 0; turn < 6; turn++) {
        cub::DoubleBuffer<K> buffers(keys, beside);
        fill<<<2048, 256>>>(keys, count);
        CHECK(cudaEventRecord(start));
        CHECK(cub::DeviceRadixSort::SortKeys(scratch, scratch_bytes, buffers, count));
        CHECK(cudaEventRecord(end));
        CHECK(cudaEventSynchronize(end));
        // The first one is for the driver.
        if (turn > 0)
            CHECK(cudaEventElapsedTime(&times[turn - 1], start, end));
    }
    std::sort(times, times + 5);
    printf("u%d, %llu keys: %.2f ms, %.0f M/s\n", (int)sizeof(K) * 8, count, times[2], count / times[2] / 1e3);
    CHECK(cudaFree(keys));
    CHECK(cudaFree(beside));
    CHECK(cudaFree(scratch));
}

// The same of keys with values that are as long.
template <class K> void run_pairs(u64 count) {
    K *keys, *beside, *values, *values_beside;
    void *scratch;
    size_t scratch_bytes = 0;
    for (K **memory : {&keys, &beside, &values, &values_beside})
        CHECK(cudaMalloc(memory, count * sizeof(K)));
    cub::DoubleBuffer<K> none(keys, beside), no_values(values, values_beside);
    CHECK(cub::DeviceRadixSort::SortPairs(nullptr, scratch_bytes, none, no_values, count));
    CHECK(cudaMalloc(&scratch, scratch_bytes));
    cudaEvent_t start, end;
    CHECK(cudaEventCreate(&start));
    CHECK(cudaEventCreate(&end));
    float times[5];
    for (int turn = 0; turn < 6; turn++) {
        cub::DoubleBuffer<K> buffers(keys, beside), value_buffers(values, values_beside);
        fill<<<2048, 256>>>(keys, count);
        CHECK(cudaEventRecord(start));
        CHECK(cub::DeviceRadixSort::SortPairs(scratch, scratch_bytes, buffers, value_buffers, count));
        CHECK(cudaEventRecord(end));
        CHECK(cudaEventSynchronize(end));
        if (turn > 0)
            CHECK(cudaEventElapsedTime(&times[turn - 1], start, end));
    }
    std::sort(times, times + 5);
    printf("pairs u%d, %llu keys: %.2f ms, %.0f M/s\n", (int)sizeof(K) * 8, count, times[2],
           count / times[2] / 1e3);
    for (K *memory : {keys, beside, values, values_beside})
        CHECK(cudaFree(memory));
    CHECK(cudaFree(scratch));
}

int main() {
    run_pairs<unsigned>(1ull << 28);
    run_pairs<u64>(1ull << 27);
    run_pairs<unsigned>(1ull << 32);
    run_pairs<u64>(1ull << 31);
    run<unsigned>(1ull << 26);
    run<u64>(1ull << 25);
    run<unsigned>(1ull << 32);
    run<u64>(1ull << 31);
    run<u64>(1ull << 33);
}
