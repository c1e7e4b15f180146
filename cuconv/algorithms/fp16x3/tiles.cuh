// The block of fp16x3's main kernel: its warpgroups, its tile, and what lies in shared memory.
#pragma once

#include "common/fp16_output.cuh"

constexpr int CONSUMERS = 2 * WARPGROUP;            // threads that multiply
constexpr int THREADS = CONSUMERS + 2 * WARPGROUP;  // and two warpgroups of producers
static_assert(ROWS == KH && DEPTHS == 1);
constexpr int BP = TILE_POSITIONS;
constexpr int POSITIONS = SLOTS * 128;                  // of a chunk in shared memory: a tile and its halo
constexpr int OCTET_BYTES = POSITIONS * 16;             // eight channels
constexpr int INPUT_PART = CHANNELS / 8 * OCTET_BYTES;  // high or low parts
constexpr int INPUT_STAGE = OPERAND_PARTS * INPUT_PART;
constexpr unsigned NOWHERE = 0xffffffffu;

constexpr int SUMS = BF * BP / CONSUMERS;  // of a consumer thread
typedef float Sums[SUMS];
typedef float Chain[SIDE_BY_SIDE ? 3 * SUMS : SUMS];  // the products of a chain, on their way to the sums

// The problem's sizes, and the flattened images: rows of `pitch` positions, image_rows rows an image. Neighbouring rows
// and images share the padding between them.
struct Geometry {
    Problem p;
    int images, out_h, pitch, image_rows, chunks, filter_tiles, units;

    // Byte offset of the first channel's input element at a position, or NOWHERE in the padding.
    __device__ __forceinline__ unsigned source(int position) const {
        const int row = position / pitch, x = position - row * pitch - p.pad_w;
        const int image = row / image_rows, y = row - image * image_rows - p.pad_h;
        const bool inside = image < images && y >= 0 && x >= 0;
        return inside ? ((unsigned)image * p.channels * p.height * p.width + y * p.width + x) * 4u : NOWHERE;
    }
    // The output pixel at a position.
    __device__ __forceinline__ Pixel locate(int position) const {
        const int row = position / pitch, x = position - row * pitch;
        const int image = row / image_rows, y = row - image * image_rows;
        return {image < images && y < out_h && x < p.out_w ? image : -1, y * p.out_w + x};
    }
};

// The weight rows of the layer where all of them stay in shared memory, else 0.
__device__ __forceinline__ int resident_rows(const Geometry& g) {
    const int rows = g.filter_tiles * g.chunks * ROWS;
    return rows <= WEIGHT_STAGES ? rows : 0;
}

// Static shared memory. The first index of channel_scales, maxima and sources is a producer warpgroup.
struct Shared {
    uint64 full_input[IN_STAGES], empty_input[IN_STAGES], full_weights[WEIGHT_STAGES], empty_weights[WEIGHT_STAGES];
    volatile int rows_fetched;  // weight rows of the block's share whose copies have started
    __align__(16) float channel_scales[2][2][CHANNELS];   // of the current and the next chunk, times the input's scale
    __align__(16) unsigned maxima[2][2][WARPGROUP / 32];  // of warps, double-buffered
    int scales[IN_STAGES];                                // of the input in each stage, as filters have them
    unsigned sources[2][SLOTS][WARPGROUP];                // byte offsets of the positions that a thread loads
};
