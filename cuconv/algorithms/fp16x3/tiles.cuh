// Who works where in fp16x3's main kernel: tiles of filters and positions, and what its warpgroups share.
#pragma once

#include "common/fp16_output.cuh"

constexpr int CONSUMERS = 2 * GROUP, THREADS = CONSUMERS + 2 * GROUP;  // two warpgroups multiply, two produce
static_assert(ROWS == KH && DEPTHS == 1);
constexpr int BP = TILE_POSITIONS;
constexpr int POSITIONS = SLOTS * 128;                  // of a chunk in shared memory
constexpr int GROUP_BYTES = POSITIONS * 16;             // eight channels
constexpr int INPUT_PART = CHANNELS / 8 * GROUP_BYTES;  // high or low
constexpr int INPUT_STAGE = FACTOR_PARTS * INPUT_PART;
constexpr unsigned NOWHERE = 0xffffffffu;

constexpr int SUMS = BF * BP / CONSUMERS;  // of a thread that multiplies
typedef float Sums[SUMS];

// Sizes, and the flattened, padded images: rows of `pitch`, `image_rows` an image; padding is shared by neighbours.
struct Geometry {
    Problem p;
    int images, out_h, pitch, image_rows, chunks, filter_tiles, units;

    // Byte offset of the input element at a padded position, or NOWHERE.
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

struct Shared {
    uint64 full_input[IN_STAGES], empty_input[IN_STAGES], full_weights[WEIGHT_STAGES], empty_weights[WEIGHT_STAGES];
    __align__(16) float channel_scales[2][2][CHANNELS];  // times the input's scale: of a group's chunk and its next
    __align__(16) unsigned maxima[2][2][GROUP / 32];     // of a group's warps
    int exponents[IN_STAGES];                            // of the input's scale
    volatile int rows_fetched;                           // of weights
    unsigned sources[2][SLOTS][GROUP];                   // of a group's threads: where in the input positions lie
};
