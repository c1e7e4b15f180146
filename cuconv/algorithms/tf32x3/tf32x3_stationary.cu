// 1x1 convolution on Hopper's warpgroup tensor cores with the accuracy of FP32, or of TF32: many pixels, and weights
// that fit into an SM.
//
// As tf32x3_wgmma, but weight-stationary: a block splits all weights of its filters once, into shared memory, where
// they stay. Its warpgroups then go from tile to tile of pixels, each at its own pace, since nothing is left that they
// would have to wait for each other for. Pixels are loaded two stages ahead, also from one tile into the next.
//
// PRODUCTS 3, or 1 for TF32
// BF     filters of a block's tile: 16, 32, 48 or 64
// WARPGROUPS of a block, each with tiles of 64 pixels
// RESIDENT  blocks that an SM's registers are to hold
// VECTOR    1 where rows of weights are 16-byte aligned
// LINEAR    1 for one image: pixels lie side by side
// WHOLE     1 for a reduction of whole stages
// PAIRED    1 for pixels in pairs that lie side by side in input and output, aligned to eight bytes
// EVICT_FIRST  the share of the input that leaves the L2 cache first (eviction.cuh)
//
// gridDim.x is a multiple of the tiles of the same pixels. Every argument is eight bytes, a pointer or a long long.

#define POINTWISE 1
#define KERNEL_H 1
#define KERNEL_W 1
#define LARGE_FILTER 0
#define SPLIT 1
#include "tf32x3/sums.cuh"

constexpr int THREADS = 128 * WARPGROUPS;
constexpr int GROUP_PIXELS = 64;
constexpr int STAGE_FLOATS = PARTS * TILE_FLOATS;
constexpr int AT_ONCE = 4;  // float4 of weights that a thread asks for

// Four weights, of which `left` exist.
__device__ __forceinline__ float4 load_weights(const float* from, int left) {
    float4 v = {};
#if VECTOR
    if (left > 0) v = __ldg(reinterpret_cast<const float4*>(from));
#else
    if (left > 0) v.x = __ldg(from);
    if (left > 1) v.y = __ldg(from + 1);
    if (left > 2) v.z = __ldg(from + 2);
    if (left > 3) v.w = __ldg(from + 3);
#endif
    return v;
}

// All weights of a tile's filters into shared memory: [stages][PARTS][BF][BK], rows swizzled as wgmma reads them; zeros
// beyond the weights.
__device__ __forceinline__ void split_weights(float* to, const float* weight, int filters, int depth, int stages) {
    const int all = stages * (BF * BK / 4);
#pragma unroll 1
    for (int first = threadIdx.x; first < all; first += AT_ONCE * THREADS) {
        float4 values[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const int at = first + i * THREADS, chunk = at % (BK / 4), row = at / (BK / 4) % BF;
            const int k = at / (BF * BK / 4) * BK + chunk * 4;
            values[i] = load_weights(weight + ((int64)row * depth + k), row < filters ? depth - k : 0);
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; ++i) {
            const int at = first + i * THREADS, chunk = at % (BK / 4), row = at / (BK / 4) % BF;
            if (at >= all) break;
            float4 big, small;
            split(values[i].x, big.x, small.x);
            split(values[i].y, big.y, small.y);
            split(values[i].z, big.z, small.z);
            split(values[i].w, big.w, small.w);
            float* const target = to + at / (BF * BK / 4) * STAGE_FLOATS + row * BK + (chunk ^ row % 8) * 4;
            *reinterpret_cast<float4*>(target) = big;
            if (PARTS == 2) *reinterpret_cast<float4*>(target + TILE_FLOATS) = small;
        }
    }
    fence_async_shared();
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    tf32x3_stationary(const float* __restrict__ input, const float* __restrict__ weight, const float* __restrict__ bias,
                      float* __restrict__ output, int64 images, int64 channels, int64 height, int64 width,
                      int64 filters, int64 kernel_h, int64 kernel_w, int64 pad_h, int64 pad_w, int64 out_h,
                      int64 out_w, int64 relu) {
    extern __shared__ __align__(1024) float shared[];  // the weights
    const Problem p(channels, height, width, filters, 0, 0, out_h, out_w);
    const int depth = p.channels, stages = (depth + BK - 1) / BK, plane = p.out_pixels;
    const int pixels = (int)images * plane, tiles = (pixels + GROUP_PIXELS - 1) / GROUP_PIXELS;

    const unsigned filter_tiles = (p.filters + BF - 1) / BF;
    const int filter_0 = blockIdx.x % filter_tiles * BF;
    const int blocks = gridDim.x / filter_tiles;  // with these filters: they work side by side
    const int group = __shfl_sync(~0u, threadIdx.x / 128, 0), lane = threadIdx.x % 4;
    const int row = first_pixel(threadIdx.x % 128 / 4);
    int tile = group * blocks + blockIdx.x / filter_tiles;
    const auto pixel_of = [&](int tile, int further) {
        return Pixel(tile * GROUP_PIXELS + row + further, pixels, input, p);
    };

    // What is loaded next: a tile, and what is left of its reduction from this lane's first k on.
    int next_tile = tile, left = depth - lane;
    Pixel pixel_a = pixel_of(tile, 0), pixel_b = pixel_of(tile, OTHER_PIXEL);
    pixel_a.source += (int64)lane * plane;
    pixel_b.source += (int64)lane * plane;
    float sum[BF / 2] = {}, values[STEPS][4], next[STEPS][4] = {};
    const auto load = [&] {
        load_columns(next, pixel_a, pixel_b, left, plane, nullptr);
        pixel_a.source += (int64)BK * plane;
        pixel_b.source += (int64)BK * plane;
        left -= BK;
        if (left + lane > 0) return;
        next_tile += blocks * WARPGROUPS;
        left = depth - lane;
        pixel_a = pixel_of(next_tile, 0), pixel_b = pixel_of(next_tile, OTHER_PIXEL);
        pixel_a.source += (int64)lane * plane;
        pixel_b.source += (int64)lane * plane;
    };
    const auto take = [&] {  // what was loaded
        for (int step = 0; step < STEPS; ++step)
            for (int r = 0; r < 4; ++r) values[step][r] = next[step][r];
    };
    // Before the first access to global memory.
    wait_for_kernel_ahead((uint64)pixel_a.source | (LINEAR || PAIRED ? 0 : (uint64)pixel_b.source));
    launch_dependents();  // only now, as in tf32x3_wgmma
    load();
    take();
    load();
    split_weights(shared, weight + (int64)filter_0 * depth, p.filters - filter_0, depth, stages);
    __syncthreads();

    const Output out = {input, weight, bias, output, relu != 0};
    const uint64 first_weights = swizzled_descriptor(shared);
    uint64 weights = first_weights;
    for (int turn = 1; tile < tiles; ++turn) {
        float big[STEPS][4], small[STEPS][4], chain[BF / 2];
        split_columns(values, big, small);
        start_products(chain, sum, big, small, weights);
        // While the tensor cores work: the stage after this one has arrived, the one after that sets off.
        take();
        load();
        weights += STAGE_FLOATS / 4;
        finish_products(chain, sum);
        if (turn < stages) continue;
        float kept[KEPT<1>][4];
        add_groups<1, THREADS>(kept, sum, shared, 0);
        write_accumulators<1>(kept, out, p, pixel_of(tile, 0).place, pixel_of(tile, OTHER_PIXEL).place, filter_0, 0);
        for (int i = 0; i < BF / 2; ++i) sum[i] = 0.0f;
        tile += blocks * WARPGROUPS;
        weights = first_weights;
        turn = 0;
    }
}
