// Convolutions with one output pixel an image, in plain FP32: fully connected layers, squeeze and excitation.
//
// output[n, m] = sum over k of weight[m, k] * input[n, k]. Weights and images are rows as they lie in memory, of
// DEPTH = C * KH * KW elements. Every weight is read once for IMAGES images, so the time is that of the weights' bytes.
//
//   warp    FILTERS rows of weights, IMAGES images: each lane loads the next VECTOR elements of every row and adds up
//           their products; the lanes' sums are then added by shuffles
//   block   WARPS warps with filters of their own; SPLIT_K times as many share the reduction, through shared memory
//
// FILTERS IMAGES  rows of weights and images of a warp
// WARPS           warps of a block over filters
// SPLIT_K         warps of a block over the reduction
// VECTOR          elements of a load: 4 where rows are 16-byte aligned, or 1
//
// Every argument has eight bytes: a pointer or a long long.

#include "common/activation.cuh"

constexpr int THREADS = 32 * WARPS * SPLIT_K, SUMS = FILTERS * IMAGES;
constexpr int UNROLL = SUMS <= 8 ? 8 / VECTOR * 2 : 2;  // loads of a row that are under way together

struct alignas(VECTOR * 4) Elements {
    float values[VECTOR];
};

// The sum over the warp's lanes, in every lane and always in the same order.
__device__ __forceinline__ float add_lanes(float value) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
    return value;
}

// residual: a tensor like the output that is added before the activation, or null
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    gemv(const float* __restrict__ input, const float* __restrict__ weight, const float* __restrict__ bias,
         float* __restrict__ output, int64 images, int64 depth, int64 filters, int64 activation,
         int64 numbers, const float* __restrict__ residual) {
    __shared__ float shared[SPLIT_K][WARPS][SUMS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % WARPS, part = threadIdx.x / 32 / WARPS;
    const int filter_tiles = (filters + FILTERS * WARPS - 1) / (FILTERS * WARPS);
    const int filter_0 = (blockIdx.x % filter_tiles * WARPS + warp) * FILTERS;
    const int image_0 = blockIdx.x / filter_tiles * IMAGES;

    // Rows beyond the last are read as the last one, and not written.
    const float *rows[FILTERS], *columns[IMAGES];
    int64 first = ((int64)part * 32 + lane) * VECTOR;
#pragma unroll
    for (int f = 0; f < FILTERS; ++f) rows[f] = weight + min((int64)filter_0 + f, filters - 1) * depth;
#pragma unroll
    for (int i = 0; i < IMAGES; ++i) columns[i] = input + min((int64)image_0 + i, images - 1) * depth;
#if __CUDA_ARCH__ >= 900
    wait_for_kernel_ahead();
    launch_dependents();
#endif

    float sums[FILTERS][IMAGES] = {};
#pragma unroll UNROLL
    for (int64 k = first; k < depth; k += 32 * SPLIT_K * VECTOR) {
        Elements w[FILTERS], x[IMAGES];
#pragma unroll
        for (int f = 0; f < FILTERS; ++f) w[f] = *reinterpret_cast<const Elements*>(rows[f] + k);
#pragma unroll
        for (int i = 0; i < IMAGES; ++i) x[i] = *reinterpret_cast<const Elements*>(columns[i] + k);
#pragma unroll
        for (int f = 0; f < FILTERS; ++f)
#pragma unroll
            for (int i = 0; i < IMAGES; ++i)
#pragma unroll
                for (int v = 0; v < VECTOR; ++v) sums[f][i] = fmaf(w[f].values[v], x[i].values[v], sums[f][i]);
    }

    // Sum f * IMAGES + i of the block's warps, by the thread of that number.
#pragma unroll
    for (int s = 0; s < SUMS; ++s) {
        const float sum = add_lanes(sums[s / IMAGES][s % IMAGES]);
        if (lane == s % 32) shared[part][warp][s] = sum;
    }
    __syncthreads();
    for (int at = threadIdx.x; at < WARPS * SUMS; at += THREADS) {
        const int s = at % SUMS, filter = (blockIdx.x % filter_tiles * WARPS + at / SUMS) * FILTERS + s / IMAGES;
        const int image = image_0 + s % IMAGES;
        if (filter >= filters || image >= images) continue;
        float value = 0.0f;
#pragma unroll
        for (int p = 0; p < SPLIT_K; ++p) value += shared[p][at / SUMS][s];
        const int64 to = (int64)image * filters + filter;
        if (bias) value += bias[filter];
        if (residual) value += residual[to];
        output[to] = activated(value, {activation, numbers});
    }
}
