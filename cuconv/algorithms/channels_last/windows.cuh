// The common parts of the kernels that multiply windows: tiles of output pixels whose input one copy brings into shared
// memory. Each warpgroup computes 64 pixels of a tile, and all FILTERS filters of the block.
//
// BF16     1 for BF16, 0 for FP16
// FILTERS  filters of a block, a multiple of 16
#pragma once

#if BF16
#define WGMMA_HALF bf16
#else
#define WGMMA_HALF f16
#endif
#define WGMMA_N FILTERS

#include "channels_last/element.cuh"
#include "common/activation.cuh"
#include "common/divider.cuh"
#include "common/tma.cuh"
#include "common/wgmma.cuh"

constexpr int MAX_THREADS = 256, MIN_BLOCKS = FILTERS <= 32 ? 4 : FILTERS <= 64 ? 3 : 2;  // on an SM
constexpr int WARP_PIXELS = 16;
constexpr int STEP = 16;  // elements of the reduction that an instruction adds
// A warp's outputs in shared memory: 16 bytes more, so that the rows of a matrix lie in different banks.
constexpr int OUTPUT_PITCH = FILTERS * sizeof(Element) + 16, OUTPUT_BYTES = WARP_PIXELS * OUTPUT_PITCH;

// A tile of the output: its image, and its first row and column.
struct Tile {
    int image, y, x;
};

// All tiles of the output: those of a row of tiles are neighbours.
struct Tiles {
    Divider along, down;
    int rows, log_columns;  // a tile's

    __device__ __forceinline__ Tile operator[](unsigned index) const {
        unsigned x, y;
        const int image = down(along(index, x), y);
        return {image, (int)y * rows, (int)x << log_columns};
    }
    // The place of a pixel in its tile.
    __device__ __forceinline__ int row(int pixel) const { return pixel >> log_columns; }
    __device__ __forceinline__ int column(int pixel) const { return pixel & ((1 << log_columns) - 1); }
};

// A mask of the elements of a pair.
__device__ __forceinline__ unsigned pair_mask(bool low, bool high) {
    return (low ? 0xffffu : 0) | (high ? 0xffff0000u : 0);
}

// Residual and output of a pixel's filters, from the block's first on. vector: elements of a store, 8, 4, 2 or 1. It
// divides the filters and the output's pixel stride.
struct Outputs {
    const Element* residual;  // null where there is none
    Element* output;
    int64 residual_stride, output_stride;  // elements from one pixel to the next
    int filters;                           // the block's, only those that exist
    int vector;

    // Adds the residual to a thread's sums of a pixel, if there is one: i and i + 1 for every i = first + 4 j. It always
    // loads, and masks what it has loaded: behind a branch a thread would wait for each load.
    __device__ __forceinline__ void add_residual(float (&sums)[WGMMA_SUMS], int first, int64 pixel) const {
        const Element* const of_pixel = pixel >= 0 ? residual + pixel * residual_stride : residual;
        const int end = pixel >= 0 ? filters : 0;
#pragma unroll
        for (int i = first; i < WGMMA_SUMS; i += 4) {
            const int filter = i / 4 * 8 + threadIdx.x % 4 * 2, exist = max(0, min(2, end - filter));
            const Element* const from = of_pixel + (exist ? filter : 0);
            const unsigned pair = (*from | (unsigned)from[exist / 2] << 16) & pair_mask(exist > 0, exist > 1);
            sums[i] += value_of((Element)pair), sums[i + 1] += value_of((Element)(pair >> 16));
        }
    }
    // Writes the outputs of eight filters of a pixel.
    __device__ __forceinline__ void write(const Element* from, int64 pixel, int filter) const {
        Element* const to = output + pixel * output_stride + filter;
        if (vector == 8) {
            if (filter < filters) *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
            return;
        }
#pragma unroll 1
        for (int i = 0; i < min(8, filters - filter); i += vector)
            if (vector == 4)
                *reinterpret_cast<uint2*>(to + i) = *reinterpret_cast<const uint2*>(from + i);
            else if (vector == 2)
                *reinterpret_cast<unsigned*>(to + i) = *reinterpret_cast<const unsigned*>(from + i);
            else
                to[i] = from[i];
    }
};

// Writes a warp's sums, rounded, through its staging memory. pixel_of: the output's pixel of one of the 16 of the warp,
// or -1 where there is none.
template <class PixelOf>
__device__ __forceinline__ void write(const float (&sums)[WGMMA_SUMS], unsigned char* staging, const Outputs& out,
                                      const PixelOf& pixel_of) {
    constexpr int VECTORS = FILTERS / 8;  // a pixel's
    const int lane = threadIdx.x % 32;
    const unsigned row = shared_address(staging) + lane % 16 * OUTPUT_PITCH + lane / 16 * 16;
    __syncwarp();  // the lanes have read the last tile's outputs
#pragma unroll
    for (int i = 0; i < WGMMA_SUMS; i += 8)
        store_matrices(row + i * 4, packed(sums[i], sums[i + 1]), packed(sums[i + 2], sums[i + 3]),
                       packed(sums[i + 4], sums[i + 5]), packed(sums[i + 6], sums[i + 7]));
    __syncwarp();
#pragma unroll 2  // unrolled further, the places of all iterations stay in registers from tile to tile
    for (int i = 0; i < WARP_PIXELS * VECTORS / 32; ++i) {
        const int place = i * 32 + lane, row = place / VECTORS, vector = place % VECTORS;
        const int64 pixel = pixel_of(row);
        if (pixel >= 0)
            out.write(reinterpret_cast<const Element*>(staging + row * OUTPUT_PITCH) + vector * 8, pixel, vector * 8);
    }
}

// A block's tiles, those from `first` on in steps of `step`, and the ring of stages that their windows take in ring.
struct TileRing {
    unsigned first, step, tiles;
    int stages;
    uint64* full;  // a barrier for each stage

    // The leader starts the first copies. copy: the window of a tile into a stage.
    template <class Copy>
    __device__ __forceinline__ void begin(const Copy& copy) const {
#pragma unroll 1
        for (int i = 0; i < stages && first + i * step < tiles; ++i) copy(first + i * step, i);
    }
    // The leader makes the barriers.
    __device__ __forceinline__ void init() const {
#pragma unroll 1
        for (int i = 0; i < stages; ++i) barrier_init(full + i, 1);
    }
};

// Computes a block's tiles. multiply: sets a thread's sums to those of the window in a stage. biases: floats in shared
// memory. staging: the block's memory for outputs.
template <class Copy, class Multiply>
__device__ __forceinline__ void compute(const TileRing& ring, const Tiles& tile_at, const Outputs& out, int out_h,
                                        int out_w, const float* biases, unsigned char* staging,
                                        const Activation& function, const Copy& copy, const Multiply& multiply) {
    const int lane = threadIdx.x % 32, warp = __shfl_sync(~0u, threadIdx.x / 32, 0), warp_pixel = warp * WARP_PIXELS;
    int stage = 0, phase = 0;
    for (unsigned index = ring.first; index < ring.tiles; index += ring.step) {
        const Tile tile = tile_at[index];
        const auto pixel_of = [&](int row) -> int64 {
            const int y = tile.y + tile_at.row(warp_pixel + row), x = tile.x + tile_at.column(warp_pixel + row);
            return y < out_h && x < out_w ? ((int64)tile.image * out_h + y) * out_w + x : -1;
        };
        barrier_wait(ring.full + stage, phase);
        float sums[WGMMA_SUMS];
        multiply(sums, stage);
        fence_async_shared();  // the next copy into the stage must not overtake these loads
        __syncthreads();
        if (is_leader() && index + ring.stages * ring.step < ring.tiles) copy(index + ring.stages * ring.step, stage);
        if (++stage == ring.stages) stage = 0, phase ^= 1;
#pragma unroll
        for (int i = 0; i < WGMMA_SUMS; i += 4) {
            const float2 more = *reinterpret_cast<const float2*>(biases + i * 2 + lane % 4 * 2);
            sums[i] += more.x, sums[i + 1] += more.y, sums[i + 2] += more.x, sums[i + 3] += more.y;
        }
        if (out.residual) {
            out.add_residual(sums, 0, pixel_of(lane / 4));
            out.add_residual(sums, 2, pixel_of(lane / 4 + 8));
        }
        activate(sums, function);
        write(sums, staging + warp * OUTPUT_BYTES, out, pixel_of);
    }
}

// Loads the bias of the block's filters, from the first on, and zeros where there is none.
__device__ __forceinline__ void load_biases(float* biases, const Element* bias, int filters) {
#pragma unroll 1
    for (int i = threadIdx.x; i < FILTERS; i += blockDim.x) biases[i] = bias && i < filters ? value_of(bias[i]) : 0.0f;
}
