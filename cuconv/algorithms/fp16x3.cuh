// Shared by the parts of fp16x3: sizes, the split into FP16 numbers, and who works where.
#pragma once

#include "hopper.cuh"

constexpr int BF = 64 * WF, WP = 2 / WF, BP = 128 * WP;
constexpr int CONSUMERS = 256, GROUP = 128, THREADS = CONSUMERS + 2 * GROUP;  // two warpgroups multiply, two produce
constexpr int TAPS = KH * KW;
// A row: what one chain of products takes, a row of the filter for some of a chunk's channels.
constexpr int ROW_CHANNELS = POINTWISE ? CHANNELS : 16;
constexpr int ROWS = CHANNELS / ROW_CHANNELS * KH;  // of a chunk, those of the same channels together
constexpr int DEPTHS = ROW_CHANNELS / 16;                       // wgmma depths of one filter position
constexpr int STEPS = KW * DEPTHS;
constexpr int POSITIONS = SLOTS * 128;
constexpr int GROUP_BYTES = POSITIONS * 16;              // eight channels
constexpr int INPUT_PART = CHANNELS / 8 * GROUP_BYTES;   // high or low
constexpr int WEIGHT_PART = STEPS * 2 * BF * 16;
constexpr int ROW_BYTES = 2 * WEIGHT_PART;
constexpr int EMPTY = -4096;  // exponent of what is all zeros
constexpr unsigned NOWHERE = 0xffffffffu;
constexpr unsigned MAX_FINITE = 0x7f7fffffu;

__device__ __forceinline__ float power_of_two(int exponent) { return __int_as_float(exponent + 127 << 23); }
__device__ __forceinline__ int clamp(int x, int least, int most) { return max(least, min(x, most)); }
__device__ __forceinline__ unsigned magnitude(float x) { return __float_as_uint(x) & 0x7fffffffu; }
__device__ __forceinline__ unsigned finite_magnitude(float x) { return magnitude(x) > MAX_FINITE ? 0u : magnitude(x); }

// Two floats as pairs of FP16, high + low; the first in the lower half.
__device__ __forceinline__ void split(float a, float b, unsigned& high, unsigned& low) {
    float high_a, high_b;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(high) : "f"(b), "f"(a));
    asm("{.reg .f16 x, y; mov.b32 {x, y}, %2; cvt.f32.f16 %0, x; cvt.f32.f16 %1, y;}"
        : "=f"(high_a), "=f"(high_b)
        : "r"(high));
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(low) : "f"(b - high_b), "f"(a - high_a));
}
__device__ __forceinline__ void split(const float (&x)[8], uint4& high, uint4& low) {
    split(x[0], x[1], high.x, low.x);
    split(x[2], x[3], high.y, low.y);
    split(x[4], x[5], high.z, low.z);
    split(x[6], x[7], high.w, low.w);
}

// What split_weights makes, and where blocks leave sums for each other.
struct Workspace {
    const char* rows;            // [filter tiles][chunks][ROWS][high, low][STEPS][2][BF][8] FP16
    const int* exponents;        // [filter tiles][chunks][BF]: a filter's weights are their FP16 times 2 to this
    const float* channel_scales;  // [filter tiles][chunks][CHANNELS]: and the input is to be multiplied by this
    unsigned* flags;             // [blocks][2]
    float4* sums;                // [blocks][2][16][128]

    __device__ __forceinline__ Workspace(void* start, int64 tile_chunks, int blocks) {
        char* at = static_cast<char*>(start);
        rows = at, at += tile_chunks * ROWS * ROW_BYTES;
        sums = reinterpret_cast<float4*>(at), at += (int64)blocks * CONSUMERS * 64 * 4;
        exponents = reinterpret_cast<int*>(at), at += tile_chunks * BF * 4;
        channel_scales = reinterpret_cast<float*>(at), at += tile_chunks * CHANNELS * 4;
        flags = reinterpret_cast<unsigned*>(at);
    }
};

struct Problem {
    int channels, height, width, filters, pad_h, pad_w, out_w, out_pixels;
};

// Sizes, and the flattened, padded images: rows of `pitch`, `image_rows` an image; padding is shared by neighbours.
struct Geometry {
    Problem p;
    int images, out_h, pitch, image_rows, chunks, filter_tiles;

    // Byte offset of the input element at a padded position, or NOWHERE.
    __device__ __forceinline__ unsigned source(int position) const {
        const int row = position / pitch, x = position - row * pitch - p.pad_w;
        const int image = row / image_rows, y = row - image * image_rows - p.pad_h;
        const bool inside = image < images && y >= 0 && x >= 0;
        return inside ? ((unsigned)image * p.channels * p.height * p.width + y * p.width + x) * 4u : NOWHERE;
    }
};

// A share of the (tile, chunk) pairs, in order; filter tiles of the same positions follow each other.
struct Share {
    int begin, end;
    // units * block / blocks, whose product may need more than 32 bits: a division of 64 would be a call.
    __device__ __forceinline__ Share(int units, int block, int blocks)
        : begin(units / blocks * block + units % blocks * block / blocks),
          end(units / blocks * (block + 1) + units % blocks * (block + 1) / blocks) {}
};

// Where in that order a warpgroup is.
struct Place {
    int stretch, filter_tile, chunk;  // of positions, of filters, of channels

    __device__ __forceinline__ Place(int unit, const Geometry& g) {
        const int tile = unit / g.chunks;
        chunk = unit - tile * g.chunks, stretch = tile / g.filter_tiles, filter_tile = tile - stretch * g.filter_tiles;
    }
    __device__ __forceinline__ void advance(const Geometry& g) {
        if (++chunk < g.chunks) return;
        chunk = 0;
        if (++filter_tile < g.filter_tiles) return;
        filter_tile = 0, ++stretch;
    }
    // Of the weights.
    __device__ __forceinline__ int64 tile_chunk(const Geometry& g) const { return (int64)filter_tile * g.chunks + chunk; }
};

struct Shared {
    uint64 full_input[IN_STAGES], empty_input[IN_STAGES], full_weights[WEIGHT_STAGES], empty_weights[WEIGHT_STAGES];
    __align__(16) float channel_scales[2][2][CHANNELS];  // times the input's scale: of a group's chunk and its next
    __align__(16) unsigned maxima[2][2][GROUP / 32];     // of a group's warps
    int exponents[IN_STAGES];                            // of the input's scale
    volatile int rows_fetched;                           // of weights
    unsigned sources[2][SLOTS][GROUP];                   // of a group's threads: where in the input positions lie
};

// Before a thread touches the workspace or the output. split_weights lets the main kernel start when all that came
// before the two has ended, so the input may be read ahead of this.
__device__ __forceinline__ void wait_for_weights() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// A barrier of a warpgroup's threads; `group` counts all of the block.
__device__ __forceinline__ void group_barrier(int group) {
    asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "n"(GROUP) : "memory");
}
