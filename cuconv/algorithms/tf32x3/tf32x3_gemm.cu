// Implicit GEMM with mma.sync, for compute capability 8.0 and up, with the accuracy of FP32 or of TF32.
//
// output[m, p] = sum over k of weight[m, k] * columns[k, p], where k = (c, ky, kx) counts the weights of a filter as
// they lie in memory, and p counts the pixels of all images. The columns are never stored: each element is copied from
// the input on the way into shared memory (im2col). tf32x3/parts.cuh decomposes the operands into TF32 parts.
//
// Pipeline of a block, which computes a tile of filters x pixels:
//   cp.async    weights and columns of a stage, global -> shared memory; STAGES - 1 stages ahead
//   decompose   fragments, shared memory -> registers
//   mma.sync    chains of depth 8 that start at zero
//   add         each chain to FP32 registers, because the tensor cores truncate when they accumulate
// After the last stage the sums of all warps, and of all blocks of a cluster, are added in fixed order and written.
//
// PRODUCTS          3 for FP32, 1 for TF32
// FILTERS PIXELS    tile of a block
// FILTER_WARPS      warps of a block over its filters
// PIXEL_WARPS       warps of a block over its pixels
// WARP_SPLIT_K      warps of a block over the reduction; each takes an equal part of every stage
// STAGE_DEPTH       depth of a stage
// STAGES            stages of the pipeline
// WEIGHT_PADDING    floats that follow a row of weights in shared memory
// COLUMN_PADDING    floats that follow a row of columns or of sums in shared memory
// TAP_BYTES         bytes of an entry of the tap table: 4, or 8 for filters of more than 63 positions
// SPLIT_K           blocks of a cluster that share a tile, each with a part of the reduction; 1 below capability 9.0
// POINTWISE         1 for a 1x1 filter without padding
//
// Stride, dilation and groups are arguments, so one variant computes layers of every geometry. Every argument has eight
// bytes: a pointer or a long long.

#include "common/activation.cuh"
#include "common/hopper.cuh"
#include "tf32x3/mma.cuh"

constexpr int THREADS = 32 * FILTER_WARPS * PIXEL_WARPS * WARP_SPLIT_K;
constexpr int WARP_FILTERS = FILTERS / FILTER_WARPS, WARP_PIXELS = PIXELS / PIXEL_WARPS;
constexpr int M_TILES = WARP_FILTERS / 16, N_TILES = WARP_PIXELS / 8;  // mma tiles of a warp
constexpr int WARP_DEPTH = STAGE_DEPTH / WARP_SPLIT_K;                 // depth of a stage that a warp multiplies
constexpr int STEPS = WARP_DEPTH / 8;                                  // mma depths of a warp in a stage
// Rows in shared memory, in floats. The padding puts the fragments of a warp in 32 different banks.
constexpr int WEIGHT_ROW = STAGE_DEPTH + WEIGHT_PADDING, COLUMN_ROW = PIXELS + COLUMN_PADDING;
constexpr int WEIGHT_FLOATS = FILTERS * WEIGHT_ROW, STAGE_FLOATS = WEIGHT_FLOATS + STAGE_DEPTH * COLUMN_ROW;
constexpr int ROW_STEP = THREADS / PIXELS;        // rows of columns that the block copies at a time, one pixel a thread
constexpr int BLOCK_FILTERS = FILTERS / SPLIT_K;  // filters that a block of the cluster adds up and writes

static_assert(THREADS % PIXELS == 0 && STAGE_DEPTH % ROW_STEP == 0 && STAGE_DEPTH % (8 * WARP_SPLIT_K) == 0,
              "a block covers a stage evenly");
static_assert(FILTERS % SPLIT_K == 0, "a cluster shares the filters of a tile evenly");
static_assert(PIXELS % 32 == 0, "a warp copies, adds up and writes rows together");

// A mask with a bit for each filter position that meets the input at a pixel. A large filter has a bit for each row in
// the low half, and for each column in the high half.
//
// An entry of the tap table, for one k of the reduction: the distance in floats from a pixel's source to its element,
// and the filter position, packed into one integer unless the filter is large. For a k beyond the
// reduction, the position is one that no mask contains: 63, or row 31.
#if TAP_BYTES == 4
struct Tap {
    int packed;

    __device__ __forceinline__ int distance() const { return packed >> 6; }
    __device__ __forceinline__ bool in(uint64 mask) const { return mask >> (packed & 63) & 1; }
};
__device__ __forceinline__ Tap make_tap(int distance, int ky, int kx, int kernel_w) {
    return {distance * 64 + ky * kernel_w + kx};
}
__device__ __forceinline__ Tap no_tap() { return {63}; }
#else
struct Tap {
    int offset;
    unsigned char row, column, unused[2];

    __device__ __forceinline__ int distance() const { return offset; }
    __device__ __forceinline__ bool in(uint64 mask) const { return mask >> row & mask >> column & 1; }
};
__device__ __forceinline__ Tap make_tap(int distance, int ky, int kx, int) {
    return {distance, (unsigned char)ky, (unsigned char)(kx + 32)};
}
__device__ __forceinline__ Tap no_tap() { return {0, 31, 31}; }
#endif
static_assert(sizeof(Tap) == TAP_BYTES, "the host makes room for the table");

struct Problem {
    int channels, height, width, filters, kernel_h, kernel_w, pad_h, pad_w, out_w, out_pixels;
    int output_planes;  // from one image of the output to the next
    ArgumentGeometry geometry;
};

// cp.async of 4 or 16 bytes. Where `exists` is false the target becomes zeros, and the source is not read.
__device__ __forceinline__ void copy4(float* target, const float* source, bool exists) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(target)), "l"(source),
                 "r"(exists ? 4 : 0));
}
__device__ __forceinline__ void copy16(float* target, const float* source, bool exists) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(target)), "l"(source),
                 "r"(exists ? 16 : 0));
}
// Copies the FILTERS rows of weights of a stage, WIDTH floats at a time. `row` and `column` are the thread's first
// place in the stage, and `source` is what belongs there. Rows from `rows` on become zeros, as does everything where
// `exists` is false.
template <int WIDTH>
__device__ __forceinline__ void copy_weights(float* stage, const float* source, int row, int column, int depth,
                                             int rows, bool exists) {
    constexpr int STEP = THREADS * WIDTH / STAGE_DEPTH;  // rows that the block copies at a time
    static_assert(FILTERS % STEP == 0 && THREADS * WIDTH % STAGE_DEPTH == 0, "a block covers a stage evenly");
#pragma unroll
    for (int i = 0; i < FILTERS; i += STEP) {
        float* const to = stage + (row + i) * WEIGHT_ROW + column;
        if (WIDTH == 4)
            copy16(to, source + (int64)i * depth, exists && row + i < rows);
        else
            copy4(to, source + (int64)i * depth, exists && row + i < rows);
    }
}
// cp.async.commit_group closes a group of copies; cp.async.wait_group waits until at most PENDING groups are under way.
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;"); }
template <int PENDING>
__device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING));
}

// Adds a warp's part of a stage to `sum`. The small terms of a chain come first, while it is small itself and
// truncation costs least.
__device__ __forceinline__ void multiply_stage(float (&sum)[M_TILES][N_TILES][4], const float* weights,
                                               const float* columns) {
    const int row = threadIdx.x % 32 / 4, lane = threadIdx.x % 4;
#pragma unroll 1  // unrolled, the fragments of several steps would not fit the registers
    for (int step = 0; step < STEPS; ++step) {
        unsigned a_big[M_TILES][4], a_small[M_TILES][4], b_big[N_TILES][2], b_small[N_TILES][2];
#pragma unroll
        for (int i = 0; i < M_TILES; ++i)
#pragma unroll
            for (int r = 0; r < 4; ++r)
                decompose(weights[(i * 16 + row + r % 2 * 8) * WEIGHT_ROW + step * 8 + lane + r / 2 * 4], a_big[i][r],
                          a_small[i][r]);
#pragma unroll
        for (int j = 0; j < N_TILES; ++j)
#pragma unroll
            for (int r = 0; r < 2; ++r)
                decompose(columns[(step * 8 + lane + r * 4) * COLUMN_ROW + j * 8 + row], b_big[j][r], b_small[j][r]);
#if PRODUCTS == 3
        float chain[M_TILES][N_TILES][4] = {};
#pragma unroll
        for (int i = 0; i < M_TILES; ++i)
#pragma unroll
            for (int j = 0; j < N_TILES; ++j) mma(chain[i][j], a_small[i], b_big[j]);
#pragma unroll
        for (int i = 0; i < M_TILES; ++i)
#pragma unroll
            for (int j = 0; j < N_TILES; ++j) mma(chain[i][j], a_big[i], b_small[j]);
#pragma unroll
        for (int i = 0; i < M_TILES; ++i)
#pragma unroll
            for (int j = 0; j < N_TILES; ++j) mma(chain[i][j], a_big[i], b_big[j]);
#pragma unroll
        for (int i = 0; i < M_TILES; ++i)
#pragma unroll
            for (int j = 0; j < N_TILES; ++j)
#pragma unroll
                for (int r = 0; r < 4; ++r) sum[i][j][r] += chain[i][j][r];
#else
        // No chain: over the whole reduction truncation costs less accuracy than the rounding of the operands.
#pragma unroll
        for (int i = 0; i < M_TILES; ++i)
#pragma unroll
            for (int j = 0; j < N_TILES; ++j) mma(sum[i][j], a_big[i], b_big[j]);
#endif
    }
}

// A barrier of all blocks that share the tile.
__device__ __forceinline__ void tile_barrier() {
#if SPLIT_K > 1
    cluster_barrier();
#else
    __syncthreads();
#endif
}

// The float in the shared memory of block `rank` of the cluster at the place that `p` has in this block.
__device__ __forceinline__ float load_from_block(const float* p, int rank) {
#if SPLIT_K > 1
    const unsigned address = address_in(shared_address(p), rank);
    float value;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
    return value;
#else
    return *p;
#endif
}

#if SPLIT_K > 1
#define CLUSTER_DIMS __cluster_dims__(SPLIT_K, 1, 1)
#else
#define CLUSTER_DIMS
#endif

// channels, filters: those of a group. Pointers stay as they come, in constant memory, which takes no registers.
// vector:   1 where rows of weights are 16-byte aligned
// residual: a tensor like the output that is added before the activation, or null
// The bound keeps a thread within 128 registers: 512 threads then fit an SM.
extern "C" __global__ void CLUSTER_DIMS __launch_bounds__(THREADS, 512 / THREADS)
    tf32x3_gemm(const float* __restrict__ input, const float* __restrict__ weight, const float* __restrict__ bias,
                float* __restrict__ output, int64 images, int64 channels, int64 height, int64 width, int64 filters,
                int64 kernel_h, int64 kernel_w, int64 pad_h, int64 pad_w, int64 out_h, int64 out_w,
                int64 activation, int64 numbers, int64 output_planes, int64 stride_h, int64 stride_w,
                int64 dilation_h, int64 dilation_w, int64 groups, int64 vector, const float* __restrict__ residual) {
    extern __shared__ __align__(16) float shared[];  // [STAGES][STAGE_FLOATS] and the tap table; after them, the sums
    const ArgumentGeometry g = {(int)stride_h, (int)stride_w, (int)dilation_h, (int)dilation_w, (int)groups};
    const Problem p = {(int)channels, (int)height, (int)width, (int)filters, (int)kernel_h, (int)kernel_w, (int)pad_h,
                       (int)pad_w, (int)out_w, (int)(out_h * out_w), (int)output_planes, g};
    const int area = p.kernel_h * p.kernel_w;
    const int depth = p.channels * area;
    const int plane = p.height * p.width;
    const int pixels = (int)images * p.out_pixels;

    // The block's tile, and its stages of the reduction: [first, last).
    const int rank = blockIdx.x % SPLIT_K;
    int tile = blockIdx.x / SPLIT_K;
    const int filter_tiles = (p.filters + FILTERS - 1) / FILTERS;
    int group = 0;
    if (g.groups > 1) {
        const int group_tiles = filter_tiles * ((pixels + PIXELS - 1) / PIXELS);
        group = tile / group_tiles;
        tile -= group * group_tiles;
    }
    const int filter_0 = tile % filter_tiles * FILTERS, pixel_0 = tile / filter_tiles * PIXELS;
    const int stages = (depth + STAGE_DEPTH - 1) / STAGE_DEPTH;
    const int first = stages * rank / SPLIT_K, last = stages * (rank + 1) / SPLIT_K;

    // The thread's pixel: it copies the columns of this pixel, and writes outputs of it.
    const int column = threadIdx.x % PIXELS, row_0 = threadIdx.x / PIXELS;
    const bool exists = pixel_0 + column < pixels;
    const int image = exists ? (pixel_0 + column) / p.out_pixels : 0;
    const int pixel = exists ? (pixel_0 + column) % p.out_pixels : 0;
    const int y = pixel / p.out_w, x = pixel % p.out_w;
    const float* source = input + ((int64)image * g.groups + group) * p.channels * plane;
#if POINTWISE
    source += (int64)y * g.stride_h * p.width + x * g.stride_w;
#else
    const int top = y * g.stride_h - p.pad_h, left = x * g.stride_w - p.pad_w;
    source += (int64)top * p.width + left;
    const auto in_row = [&](int ky) { return exists && (unsigned)(top + ky * g.dilation_h) < p.height; };
    const auto in_column = [&](int kx) { return (unsigned)(left + kx * g.dilation_w) < p.width; };
    uint64 inside = 0;
#if TAP_BYTES == 4
    for (int tap = 0, ky = 0; ky < p.kernel_h; ++ky)
        for (int kx = 0; kx < p.kernel_w; ++kx, ++tap) inside |= (uint64)(in_row(ky) && in_column(kx)) << tap;
#else
    for (int ky = 0; ky < p.kernel_h; ++ky) inside |= (uint64)in_row(ky) << ky;
    for (int kx = 0; kx < p.kernel_w; ++kx) inside |= (uint64)in_column(kx) << kx + 32;
#endif
    Tap* taps = reinterpret_cast<Tap*>(shared + STAGES * STAGE_FLOATS);
    for (int i = threadIdx.x; i < (last - first) * STAGE_DEPTH; i += THREADS) {
        const int k = first * STAGE_DEPTH + i, c = k / area, ky = k % area / p.kernel_w, kx = k % area % p.kernel_w;
        const int distance = c * plane + ky * g.dilation_h * p.width + kx * g.dilation_w;
        taps[i] = k < depth ? make_tap(distance, ky, kx, p.kernel_w) : no_tap();
    }
    __syncthreads();
#endif

    const int weight_row = vector ? threadIdx.x / (STAGE_DEPTH / 4) : threadIdx.x / STAGE_DEPTH;
    const int weight_column = vector ? threadIdx.x % (STAGE_DEPTH / 4) * 4 : threadIdx.x % STAGE_DEPTH;
    const float* const weight_source =
        weight + ((int64)group * p.filters + filter_0 + weight_row) * depth + weight_column;

    const auto copy_stage = [&](int stage) {
        float* const weights = shared + stage % STAGES * STAGE_FLOATS;
        float* const columns = weights + WEIGHT_FLOATS;
        const bool k_exists = stage * STAGE_DEPTH + weight_column < depth;
        const float* const from = weight_source + stage * STAGE_DEPTH;
        if (vector)
            copy_weights<4>(weights, from, weight_row, weight_column, depth, p.filters - filter_0, k_exists);
        else
            copy_weights<1>(weights, from, weight_row, weight_column, depth, p.filters - filter_0, k_exists);
#pragma unroll
        for (int row = row_0, i = 0; i < STAGE_DEPTH / ROW_STEP; row += ROW_STEP, ++i) {
            float* const to = columns + row * COLUMN_ROW + column;
#if POINTWISE
            const int k = stage * STAGE_DEPTH + row;
            copy4(to, source + (int64)k * plane, exists && k < depth);
#else
            const Tap tap = taps[(stage - first) * STAGE_DEPTH + row];
            copy4(to, source + tap.distance(), tap.in(inside));
#endif
        }
    };

    // Main loop. An empty group is committed where no stage is left to copy, so that the wait counts groups evenly.
    const int warp = threadIdx.x / 32;
    const int warp_k = warp / (FILTER_WARPS * PIXEL_WARPS);
    const int warp_filter = warp % FILTER_WARPS * WARP_FILTERS;
    const int warp_pixel = warp / FILTER_WARPS % PIXEL_WARPS * WARP_PIXELS;
    float sum[M_TILES][N_TILES][4] = {};
#pragma unroll
    for (int i = 0; i < STAGES - 1; ++i) {
        if (first + i < last) copy_stage(first + i);
        commit_copies();
    }
    for (int stage = first; stage < last; ++stage) {
        wait_for_copies<STAGES - 2>();
        __syncthreads();  // this stage is there for all threads, and all have left the one that is overwritten next
        if (stage + STAGES - 1 < last) copy_stage(stage + STAGES - 1);
        commit_copies();
        const float* const weights = shared + stage % STAGES * STAGE_FLOATS;
        multiply_stage(sum, weights + warp_filter * WEIGHT_ROW + warp_k * WARP_DEPTH,
                       weights + WEIGHT_FLOATS + warp_k * WARP_DEPTH * COLUMN_ROW + warp_pixel);
    }

    // Every warp stores its sums into shared memory: [WARP_SPLIT_K][FILTERS][COLUMN_ROW].
    __syncthreads();
    const int row = threadIdx.x % 32 / 4, lane = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < M_TILES; ++i)
#pragma unroll
        for (int j = 0; j < N_TILES; ++j)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int filter = warp_k * FILTERS + warp_filter + i * 16 + row + half * 8;
                *reinterpret_cast<float2*>(shared + filter * COLUMN_ROW + warp_pixel + j * 8 + lane * 2) =
                    make_float2(sum[i][j][half * 2], sum[i][j][half * 2 + 1]);
            }

    // Each block of the cluster adds up the sums of its share of the filters, in fixed order, and writes the outputs.
    tile_barrier();
    for (int row = rank * BLOCK_FILTERS + row_0; row < (rank + 1) * BLOCK_FILTERS; row += ROW_STEP) {
        const int filter = filter_0 + row;
        float value = 0.0f;
#pragma unroll
        for (int block = 0; block < SPLIT_K; ++block)
#pragma unroll
            for (int k = 0; k < WARP_SPLIT_K; ++k)
                value += load_from_block(shared + (k * FILTERS + row) * COLUMN_ROW + column, block);
        if (PRODUCTS == 3) value = restored(value, 1);
        const bool written = exists && filter < p.filters;
        if (__any_sync(~0u, written && !is_right(value))) {
            const bool replaced = written && is_replaced(value);
            const float* const channels_of_group = input + (int64)group * p.channels * plane;
            const float plain = plain_sum_where(replaced, channels_of_group, weight, p, p.kernel_h, p.kernel_w, image,
                                                group * p.filters + filter, y, x);
            if (replaced) value = plain;
        }
        if (!written) continue;
        const int layer_filter = group * p.filters + filter;
        const int64 at = ((int64)image * p.output_planes + layer_filter) * p.out_pixels + pixel;
        if (bias) value += bias[layer_filter];
        if (residual) value += residual[at];
        output[at] = activated(value, {activation, numbers});
    }
    tile_barrier();  // no block ends while another reads its sums
}
