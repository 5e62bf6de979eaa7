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

// Says how long a sort of keys takes that are filled anew for each turn.
template <class K, class Sort> void measure(const char *what, K *keys, u64 count, Sort sort) {
    cudaEvent_t start, end;
    CHECK(cudaEventCreate(&start));
    CHECK(cudaEventCreate(&end));
    float times[5];
    for (int turn = 0; turn < 6; turn++) {
        fill<<<2048, 256>>>(keys, count);
        CHECK(cudaEventRecord(start));
        CHECK(sort());
        CHECK(cudaEventRecord(end));
        CHECK(cudaEventSynchronize(end));
        // The first one is for the driver.
        if (turn > 0)
            CHECK(cudaEventElapsedTime(&times[turn - 1], start, end));
    }
    std::sort(times, times + 5);
    printf("%s u%d, %llu keys: %.2f ms, %.0f M/s\n", what, (int)sizeof(K) * 8, count, times[2],
           count / times[2] / 1e3);
}

// Sorts keys, or keys with values that are as long.
template <class K> void run(u64 count, bool with_values) {
    K *keys, *beside, *values = nullptr, *values_beside = nullptr;
    CHECK(cudaMalloc(&keys, count * sizeof(K)));
    CHECK(cudaMalloc(&beside, count * sizeof(K)));
    if (with_values) {
        CHECK(cudaMalloc(&values, count * sizeof(K)));
        CHECK(cudaMalloc(&values_beside, count * sizeof(K)));
    }
    void *scratch = nullptr;
    size_t scratch_bytes = 0;
    auto sort = [&] {
        cub::DoubleBuffer<K> of_keys(keys, beside), of_values(values, values_beside);
        return with_values ? cub::DeviceRadixSort::SortPairs(scratch, scratch_bytes, of_keys, of_values, count)
                           : cub::DeviceRadixSort::SortKeys(scratch, scratch_bytes, of_keys, count);
    };
    // Without memory it says how much it takes.
    CHECK(sort());
    CHECK(cudaMalloc(&scratch, scratch_bytes));
    measure(with_values ? "pairs" : "keys", keys, count, sort);
    for (void *memory : {(void *)keys, (void *)beside, (void *)values, (void *)values_beside, scratch})
        CHECK(cudaFree(memory));
}

int main() {
    for (bool with_values : {true, false}) {
        run<unsigned>(1ull << 28, with_values);
        run<u64>(1ull << 27, with_values);
        run<unsigned>(1ull << 32, with_values);
        run<u64>(1ull << 31, with_values);
    }
    run<u64>(1ull << 33, false);
}
