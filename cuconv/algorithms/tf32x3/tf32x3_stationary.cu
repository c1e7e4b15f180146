// 1x1 convolution with wgmma, for Hopper, with the accuracy of FP32: many pixels, and weights that fit into an SM.
//
// A weight-stationary variation of tf32x3_wgmma: both find, multiply and write columns by the same headers. A block
// decomposes all weights of its filters once, into shared memory, where they stay. Its warpgroups then go from tile to
// tile of pixels, each at its own pace: no barrier is left in the loop.
//
// Pipeline of a warpgroup, by stage of the reduction:
//   load       columns, global memory -> registers; two stages ahead, also from one tile into the next
//   decompose  columns, in registers
//   wgmma      a chain over the stage that starts at zero
//   add        the chain to FP32 registers
//   write      after the last stage of a tile
//
// FILTERS            filters of a block's tile: 16, 32, 48 or 64
// WARPGROUPS         warpgroups of a block, each with tiles of 64 pixels
// STAGE_DEPTH        depth of a stage
// VECTOR             1 where rows of weights are 16-byte aligned
// LINEAR             1 for one image: pixels are neighbours as their sources are
// WHOLE              1 for a reduction of whole stages
// PAIRED             1 for pixels in pairs that are neighbours in input and output, 8-byte aligned
// EVICT_FIRST        eighths of the input that L2 evicts first (common/eviction.cuh)
// MIN_BLOCKS_PER_SM  bounds the registers of a thread
//
// gridDim.x is a multiple of the number of filter tiles. Every argument has eight bytes: a pointer or a long long.

// The headers' macros that are fixed in this kernel.
#define PRODUCTS 3
#define POINTWISE 1
#define KERNEL_H 1
#define KERNEL_W 1
#define LARGE_FILTER 0
#define SPLIT_K 1
#include "tf32x3/sums.cuh"

constexpr int THREADS = 128 * WARPGROUPS;
constexpr int WARPGROUP_PIXELS = 64;
constexpr int STAGE_FLOATS = PARTS * TILE_FLOATS;
constexpr int ROW_CHUNKS = STAGE_DEPTH / 4;  // of 16 bytes in a row of weights
constexpr int IN_FLIGHT = 4;                 // chunks of weights that a thread loads at a time

// Loads four weights, of which `left` exist; zeros stand for the others.
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

// Decomposes all weights of a tile's filters into shared memory: [stages][PARTS][FILTERS][STAGE_DEPTH], rows with the
// 128-byte swizzle (16-byte chunk c of row r lies at chunk c ^ r % 8), zeros beyond the weights.
__device__ __forceinline__ void decompose_weights(float* to, const float* weight, int filters, int depth, int stages) {
    const int chunks = stages * (FILTERS * ROW_CHUNKS);
#pragma unroll 1
    for (int first = threadIdx.x; first < chunks; first += IN_FLIGHT * THREADS) {
        float4 values[IN_FLIGHT];
#pragma unroll
        for (int i = 0; i < IN_FLIGHT; ++i) {
            const int at = first + i * THREADS, chunk = at % ROW_CHUNKS, row = at / ROW_CHUNKS % FILTERS;
            const int k = at / (FILTERS * ROW_CHUNKS) * STAGE_DEPTH + chunk * 4;
            values[i] = load_weights(weight + ((int64)row * depth + k), row < filters ? depth - k : 0);
        }
#pragma unroll
        for (int i = 0; i < IN_FLIGHT; ++i) {
            const int at = first + i * THREADS, chunk = at % ROW_CHUNKS, row = at / ROW_CHUNKS % FILTERS;
            if (at >= chunks) break;
            float4 big, small;
            decompose(values[i], big, small);
            const int stage = at / (FILTERS * ROW_CHUNKS);
            float* const target = to + stage * STAGE_FLOATS + row * STAGE_DEPTH + (chunk ^ row % 8) * 4;
            *reinterpret_cast<float4*>(target) = big;
            *reinterpret_cast<float4*>(target + TILE_FLOATS) = small;
        }
    }
    fence_async_shared();
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS_PER_SM)
    tf32x3_stationary(const float* __restrict__ input, const float* __restrict__ weight, const float* __restrict__ bias,
                      float* __restrict__ output, int64 images, int64 channels, int64 height, int64 width,
                      int64 filters, int64 kernel_h, int64 kernel_w, int64 pad_h, int64 pad_w, int64 out_h,
                      int64 out_w, int64 relu RESIDUAL_ARGUMENT) {
    extern __shared__ __align__(1024) float shared[];  // the weights
    const Problem p(channels, height, width, filters, 0, 0, out_h, out_w);
    const int depth = p.channels, stages = (depth + STAGE_DEPTH - 1) / STAGE_DEPTH, plane = p.out_pixels;
    const int pixels = (int)images * plane, tiles = (pixels + WARPGROUP_PIXELS - 1) / WARPGROUP_PIXELS;

    // Blocks of the same pixels and different filters are neighbours in the grid. The tiles of pixels go round first
    // among the blocks that have the same filters, then among the warpgroups of a block.
    const unsigned filter_tiles = (p.filters + FILTERS - 1) / FILTERS;
    const int filter_0 = blockIdx.x % filter_tiles * FILTERS;
    const int blocks = gridDim.x / filter_tiles;  // with the same filters
    const int group = __shfl_sync(~0u, threadIdx.x / 128, 0), lane = threadIdx.x % 4;
    const int row = first_pixel(threadIdx.x % 128 / 4);
    int tile = group * blocks + blockIdx.x / filter_tiles;
    const auto pixel_of = [&](int tile, int offset) {
        return Pixel(tile * WARPGROUP_PIXELS + row + offset, pixels, input, p);
    };

    // The next load: the pixels of a tile, from this lane's next k on, of which `left` are there.
    int next_tile = tile, left = depth - lane;
    Pixel pixel_a = pixel_of(tile, 0), pixel_b = pixel_of(tile, OTHER_PIXEL);
    pixel_a.source += (int64)lane * plane;
    pixel_b.source += (int64)lane * plane;
    float sum[FILTERS / 2] = {}, values[STEPS][4], next[STEPS][4] = {};
    const auto load = [&] {
        load_columns(next, pixel_a, pixel_b, left, plane, nullptr);
        pixel_a.source += (int64)STAGE_DEPTH * plane;
        pixel_b.source += (int64)STAGE_DEPTH * plane;
        left -= STAGE_DEPTH;
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

    // Wait for the kernel ahead before the first access to global memory. The next launch is called only now, as in
    // tf32x3_wgmma.
    wait_for_kernel_ahead((uint64)pixel_a.source | (LINEAR || PAIRED ? 0 : (uint64)pixel_b.source));
    launch_dependents();

    // Fill the pipeline, and meanwhile decompose the weights.
    load();
    take();
    load();
    decompose_weights(shared, weight + (int64)filter_0 * depth, p.filters - filter_0, depth, stages);
    __syncthreads();

    // Main loop. While the tensor cores work on a stage, the columns of the next one are taken over, and the loads of
    // the one after it start.
    const Output out = {input, weight, bias, output, relu != 0 WITH_RESIDUAL(, residual)};
    const uint64 first_weights = swizzled_descriptor(shared);
    uint64 weights = first_weights;
    for (int stage = 1; tile < tiles; ++stage) {
        float big[STEPS][4], small[STEPS][4], chain[FILTERS / 2];
        decompose_columns(values, big, small);
        start_products(chain, sum, big, small, weights);
        take();
        load();
        weights += STAGE_FLOATS / 4;  // descriptors count in 16 bytes
        finish_products(chain, sum);
        if (stage < stages) continue;

        // The tile's last stage: write it, and begin the next one.
        float kept[KEPT<1>][4];
        add_warpgroups<1, THREADS>(kept, sum, shared, 0);
        write_accumulators<1>(kept, out, p, pixel_of(tile, 0).place, pixel_of(tile, OTHER_PIXEL).place, filter_0, 0);
        for (int i = 0; i < FILTERS / 2; ++i) sum[i] = 0.0f;
        tile += blocks * WARPGROUPS;
        weights = first_weights;
        stage = 0;
    }
}
