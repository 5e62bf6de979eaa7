// What the kernels of `kernels.rs` do, as one writes it by hand in CUDA C: the same algorithms.

#include <stdint.h>

typedef unsigned long long u64;

#define ITEM (blockIdx.x * (u64)blockDim.x + threadIdx.x)

extern "C" __global__ void axpy_f32(float a, const float *__restrict__ x, float *__restrict__ y, u64 n) {
    u64 i = ITEM * 4;
    if (i + 4 <= n) {
        float4 p = *(const float4 *)(x + i), q = *(float4 *)(y + i);
        q.x = a * p.x + q.x, q.y = a * p.y + q.y, q.z = a * p.z + q.z, q.w = a * p.w + q.w;
        *(float4 *)(y + i) = q;
    } else {
        for (; i < n; i++) y[i] = a * x[i] + y[i];
    }
}

struct Record {
    float values[11];
};

extern "C" __global__ void field(float a, Record *x, u64 n) {
    u64 i = ITEM;
    if (i < n) x[i].values[2] *= a;
}

extern "C" __global__ void five(const float *__restrict__ x, float *__restrict__ out, u64 width, u64 height) {
    u64 i = ITEM;
    if (i >= width * height) return;
    u64 row = i / width, column = i % width;
    u64 left = column == 0 ? 1 : column - 1, right = column + 1 == width ? width - 2 : column + 1;
    u64 above = row == 0 ? 1 : row - 1, below = row + 1 == height ? height - 2 : row + 1;
    float sum = x[row * width + left] + x[row * width + right];
    sum += x[above * width + column] + x[below * width + column];
    out[i] = 0.5f * x[i] + 0.125f * sum;
}

struct Weights {
    float of[17];
};

extern "C" __global__ void taps(const float *__restrict__ x, float *__restrict__ out, u64 n, Weights weights) {
    u64 i = ITEM;
    if (i >= n) return;
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < 17; k++) {
        long long at = (long long)i + k - 8;
        at = at < 0 ? -at : at;
        at = at >= (long long)n ? 2 * ((long long)n - 1) - at : at;
        sum = fmaf(weights.of[k], x[at], sum);
    }
    out[i] = sum;
}

// `c` in blocks of 16 by 16 elements, one after the other.
extern "C" __global__ void product(const float *__restrict__ a, const float *__restrict__ b, float *__restrict__ c,
                                   u64 n) {
    __shared__ float ta[256], tb[256];
    u64 tiles = n / 16, row = blockIdx.x / tiles, column = blockIdx.x % tiles;
    unsigned i = threadIdx.x, y = i / 16, x = i % 16;
    float sum = 0.0f;
    for (u64 t = 0; t < tiles; t++) {
        ta[i] = a[(row * 16 + y) * n + t * 16 + x];
        tb[i] = b[(t * 16 + y) * n + column * 16 + x];
        __syncthreads();
#pragma unroll
        for (int k = 0; k < 16; k++) sum = fmaf(ta[y * 16 + k], tb[k * 16 + x], sum);
        __syncthreads();
    }
    c[ITEM] = sum;
}

extern "C" __global__ void bodies(const float4 *__restrict__ all, float4 *__restrict__ out, u64 n) {
    __shared__ float4 tile[256];
    float4 me = all[ITEM], sum = {0.0f, 0.0f, 0.0f, 0.0f};
    for (u64 t = 0; t < n; t += 256) {
        tile[threadIdx.x] = all[t + threadIdx.x];
        __syncthreads();
#pragma unroll 4
        for (int k = 0; k < 256; k++) {
            float4 other = tile[k];
            float x = other.x - me.x, y = other.y - me.y, z = other.z - me.z;
            float square = fmaf(x, x, fmaf(y, y, fmaf(z, z, 1e-6f)));
            float by = other.w / (square * sqrtf(square));
            sum.x = fmaf(by, x, sum.x), sum.y = fmaf(by, y, sum.y), sum.z = fmaf(by, z, sum.z);
        }
        __syncthreads();
    }
    out[ITEM] = sum;
}

extern "C" __global__ void histogram(const uint8_t *__restrict__ x, unsigned *bins, unsigned *seen, u64 n, u64 items) {
    __shared__ unsigned own[256];
    own[threadIdx.x] = 0;
    __syncthreads();
    unsigned count = 0;
    for (u64 at = ITEM; at < n; at += items) {
        atomicAdd(&own[x[at]], 1);
        count++;
    }
    seen[ITEM] = count;
    __syncthreads();
    atomicAdd(&bins[threadIdx.x], own[threadIdx.x]);
}
