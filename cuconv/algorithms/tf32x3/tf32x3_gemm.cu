// Implicit GEMM on the tensor cores with the accuracy of FP32, or of TF32, the reduction split over warps and over a
// cluster.
//
// output[m, p] = sum over k of weight[m, k] * columns[k, p], with k = (c, ky, kx) as the weights lie and p a pixel
// of any image; the columns are never formed, their elements are fetched from the input (im2col on the way into
// shared memory). Each FP32 factor is split into two TF32 numbers, big + small, and three products are added:
// small*big + big*small + big*big. What is dropped is of the order 2^-22. The tensor cores truncate when they
// accumulate, so chains are short: a depth of 8, the small terms first, then added to FP32 registers. Of one product,
// that of the rounded factors, is the accuracy of TF32.
//
// PRODUCTS 3, or 1 for TF32
// BM BN    tile of a block: filters x pixels
// WM WN WK warps of a block over filters, pixels and the reduction
// BK       depth of a stage; each of the WK warps takes an equal part of it
// STAGES   stages in flight
// SPLIT    blocks of a cluster that share a tile, each with a part of the reduction; 1 below compute capability 9.0
// POINTWISE 1 for a 1x1 filter without padding
// VECTOR   1 where rows of weights are 16-byte aligned
//
// Every argument is eight bytes, a pointer or a long long.

#include "tf32x3/mma.cuh"

constexpr int THREADS = 32 * WM * WN * WK;
constexpr int MT = BM / WM / 16, NT = BN / WN / 8;  // mma tiles of a warp
constexpr int STEPS = BK / WK / 8;                  // mma depths of a warp in a stage
// Leading dimensions that put the fragments of a warp in 32 different banks.
constexpr int A_LD = BK + 4, B_LD = BN + 8;
constexpr int A_FLOATS = BM * A_LD, STAGE_FLOATS = A_FLOATS + BK * B_LD;
constexpr int ROW_STEP = THREADS / BN;  // rows of columns that the block fetches at a time, one pixel a thread
constexpr int NO_TAP = 63;              // a bit of the tap mask that is never set

static_assert(THREADS % BN == 0 && BK % ROW_STEP == 0 && BK % (8 * WK) == 0, "a block covers a stage evenly");
static_assert(BM % SPLIT == 0, "a cluster shares the rows of a tile evenly");

struct Problem {
    int channels, height, width, filters, kernel_h, kernel_w, pad_h, pad_w, out_w, out_pixels;
};

// Asynchronous copies; zeros where `exists` is false, and then the source is not read.
__device__ __forceinline__ void copy4(float* target, const float* source, bool exists) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(target)), "l"(source),
                 "r"(exists ? 4 : 0));
}
__device__ __forceinline__ void copy16(float* target, const float* source, bool exists) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(target)), "l"(source),
                 "r"(exists ? 16 : 0));
}

// One warp's part of a stage, added to `sum`.
__device__ __forceinline__ void multiply_stage(float (&sum)[MT][NT][4], const float* a_tile, const float* b_tile) {
    const int group = threadIdx.x % 32 / 4, lane = threadIdx.x % 4;
#pragma unroll 1  // unrolled, the fragments of several steps would not fit the registers
    for (int step = 0; step < STEPS; ++step) {
        unsigned a_big[MT][4], a_small[MT][4], b_big[NT][2], b_small[NT][2];
#pragma unroll
        for (int i = 0; i < MT; ++i)
#pragma unroll
            for (int r = 0; r < 4; ++r)
                split(a_tile[(i * 16 + group + r % 2 * 8) * A_LD + step * 8 + lane + r / 2 * 4], a_big[i][r],
                      a_small[i][r]);
#pragma unroll
        for (int j = 0; j < NT; ++j)
#pragma unroll
            for (int r = 0; r < 2; ++r)
                split(b_tile[(step * 8 + lane + r * 4) * B_LD + j * 8 + group], b_big[j][r], b_small[j][r]);
#if PRODUCTS == 3
        float chain[MT][NT][4] = {};
#pragma unroll
        for (int i = 0; i < MT; ++i)
#pragma unroll
            for (int j = 0; j < NT; ++j) mma(chain[i][j], a_small[i], b_big[j]);
#pragma unroll
        for (int i = 0; i < MT; ++i)
#pragma unroll
            for (int j = 0; j < NT; ++j) mma(chain[i][j], a_big[i], b_small[j]);
#pragma unroll
        for (int i = 0; i < MT; ++i)
#pragma unroll
            for (int j = 0; j < NT; ++j) mma(chain[i][j], a_big[i], b_big[j]);
#pragma unroll
        for (int i = 0; i < MT; ++i)
#pragma unroll
            for (int j = 0; j < NT; ++j)
#pragma unroll
                for (int r = 0; r < 4; ++r) sum[i][j][r] += chain[i][j][r];
#else
#pragma unroll
        for (int i = 0; i < MT; ++i)
#pragma unroll
            for (int j = 0; j < NT; ++j) mma(sum[i][j], a_big[i], b_big[j]);  // truncation costs less than rounding has
#endif
    }
}

__device__ __forceinline__ void cluster_barrier() {
#if SPLIT > 1
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
    __syncthreads();
#endif
}

// A float in the shared memory of block `rank` of the cluster, where this block has `p`.
__device__ __forceinline__ float load_from_block(const float* p, int rank) {
#if SPLIT > 1
    unsigned address;
    float value;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(p)), "r"(rank));
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
    return value;
#else
    return *p;
#endif
}

#if SPLIT > 1
#define CLUSTER __cluster_dims__(SPLIT, 1, 1)
#else
#define CLUSTER
#endif

extern "C" __global__ void CLUSTER __launch_bounds__(THREADS, 1)
    tf32x3_gemm(const float* __restrict__ input, const float* __restrict__ weight, const float* __restrict__ bias,
                float* __restrict__ output, int64 images, int64 channels, int64 height, int64 width, int64 filters,
                int64 kernel_h, int64 kernel_w, int64 pad_h, int64 pad_w, int64 out_h, int64 out_w, int64 relu) {
    extern __shared__ __align__(16) float shared[];  // [STAGES][STAGE_FLOATS], taps; then the sums
    const Problem p = {(int)channels, (int)height,   (int)width, (int)filters, (int)kernel_h,
                       (int)kernel_w, (int)pad_h, (int)pad_w, (int)out_w, (int)(out_h * out_w)};
    const int area = p.kernel_h * p.kernel_w;
    const int depth = p.channels * area;
    const int plane = p.height * p.width;
    const int pixels = (int)images * p.out_pixels;

    const int rank = blockIdx.x % SPLIT, tile = blockIdx.x / SPLIT;
    const int filter_tiles = (p.filters + BM - 1) / BM;
    const int filter_0 = tile % filter_tiles * BM, pixel_0 = tile / filter_tiles * BN;
    const int stages = (depth + BK - 1) / BK;
    const int first = stages * rank / SPLIT, last = stages * (rank + 1) / SPLIT;

    // This thread's pixel, for fetching columns and for writing the output.
    const int column = threadIdx.x % BN, row_0 = threadIdx.x / BN;
    const bool exists = pixel_0 + column < pixels;
    const int image = exists ? (pixel_0 + column) / p.out_pixels : 0;
    const int pixel = exists ? (pixel_0 + column) % p.out_pixels : 0;
    const int y = pixel / p.out_w, x = pixel % p.out_w;
    const float* source = input + (int64)image * p.channels * plane;
#if POINTWISE
    source += pixel;
#else
    source += (int64)(y - p.pad_h) * p.width + (x - p.pad_w);
    uint64 inside = 0;  // a bit for each filter position that meets the input here
    for (int tap = 0, ky = 0; ky < p.kernel_h; ++ky)
        for (int kx = 0; kx < p.kernel_w; ++kx, ++tap) {
            const int iy = y + ky - p.pad_h, ix = x + kx - p.pad_w;
            inside |= (uint64)(exists && iy >= 0 && iy < p.height && ix >= 0 && ix < p.width) << tap;
        }
    // For each k of this block: distance from `source`, times 64, plus the filter position.
    int* taps = reinterpret_cast<int*>(shared + STAGES * STAGE_FLOATS);
    for (int i = threadIdx.x; i < (last - first) * BK; i += THREADS) {
        const int k = first * BK + i, c = k / area, tap = k % area;
        taps[i] = k < depth ? (c * plane + tap / p.kernel_w * p.width + tap % p.kernel_w) * 64 + tap : NO_TAP;
    }
    __syncthreads();
#endif

    constexpr int WIDTH = VECTOR ? 4 : 1;                 // floats of a copy of weights
    constexpr int A_STEP = THREADS * WIDTH / BK;          // rows of weights that the block fetches at a time
    static_assert(BM % A_STEP == 0 && THREADS * WIDTH % BK == 0, "a block covers a stage evenly");
    const int a_row = threadIdx.x / (BK / WIDTH), a_column = threadIdx.x % (BK / WIDTH) * WIDTH;
    const float* const a_source = weight + (int64)(filter_0 + a_row) * depth + a_column;

    const auto fetch_stage = [&](int stage) {
        float* a_tile = shared + stage % STAGES * STAGE_FLOATS;
        float* b_tile = a_tile + A_FLOATS;
        const bool a_exists = stage * BK + a_column < depth;
#pragma unroll
        for (int i = 0; i < BM; i += A_STEP) {
            const float* from = a_source + (int64)i * depth + stage * BK;
            const bool row_exists = a_exists && filter_0 + a_row + i < p.filters;
            if (WIDTH == 4)
                copy16(a_tile + (a_row + i) * A_LD + a_column, from, row_exists);
            else
                copy4(a_tile + (a_row + i) * A_LD + a_column, from, row_exists);
        }
#pragma unroll
        for (int row = row_0, i = 0; i < BK / ROW_STEP; row += ROW_STEP, ++i) {
#if POINTWISE
            const int k = stage * BK + row;
            copy4(b_tile + row * B_LD + column, source + (int64)k * plane, exists && k < depth);
#else
            const int tap = taps[(stage - first) * BK + row];
            copy4(b_tile + row * B_LD + column, source + (tap >> 6), inside >> (tap & 63) & 1);
#endif
        }
    };

    const int warp = threadIdx.x / 32;
    const int warp_k = warp / (WM * WN), warp_m = warp % WM * (BM / WM), warp_n = warp / WM % WN * (BN / WN);
    float sum[MT][NT][4] = {};
#pragma unroll
    for (int i = 0; i < STAGES - 1; ++i) {
        if (first + i < last) fetch_stage(first + i);
        asm volatile("cp.async.commit_group;");
    }
    for (int stage = first; stage < last; ++stage) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2));
        __syncthreads();
        if (stage + STAGES - 1 < last) fetch_stage(stage + STAGES - 1);
        asm volatile("cp.async.commit_group;");
        const float* a_tile = shared + stage % STAGES * STAGE_FLOATS;
        multiply_stage(sum, a_tile + warp_m * A_LD + warp_k * STEPS * 8,
                       a_tile + A_FLOATS + warp_k * STEPS * 8 * B_LD + warp_n);
    }

    // Every warp's sums to shared memory, then each block of the cluster adds up its share of the rows, in fixed order.
    __syncthreads();
    const int group = threadIdx.x % 32 / 4, lane = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < MT; ++i)
#pragma unroll
        for (int j = 0; j < NT; ++j)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int row = warp_k * BM + warp_m + i * 16 + group + half * 8;
                *reinterpret_cast<float2*>(shared + row * B_LD + warp_n + j * 8 + lane * 2) =
                    make_float2(sum[i][j][half * 2], sum[i][j][half * 2 + 1]);
            }
    cluster_barrier();
    for (int row = rank * (BM / SPLIT) + row_0; row < (rank + 1) * (BM / SPLIT); row += ROW_STEP) {
        const int filter = filter_0 + row;
        float value = 0.0f;
#pragma unroll
        for (int block = 0; block < SPLIT; ++block)
#pragma unroll
            for (int k = 0; k < WK; ++k) value += load_from_block(shared + (k * BM + row) * B_LD + column, block);
        if (!exists || filter >= p.filters) continue;
        if (!isfinite(value)) value = plain_sum(input, weight, p, p.kernel_h, p.kernel_w, image, filter, y, x);
        if (bias) value += bias[filter];
        if (relu && value < 0.0f) value = 0.0f;  // a NaN stays
        output[((int64)image * p.filters + filter) * p.out_pixels + pixel] = value;
    }
    cluster_barrier();  // nobody leaves while its sums are read
}
