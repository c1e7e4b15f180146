// Shared by the parts of fp16x3: the split into FP16 numbers, and the workspace, where weights lie split.
//
// PRODUCTS  of FP16 numbers for one of FP32: 3, or 1 for the accuracy of TF32, which has as many bits; the high parts
//           of factors are then all there is of them
#pragma once

#include "common/hopper.cuh"

// Of a filter as it is multiplied: those of the weights, where no header before this one says otherwise.
#ifndef FILTER_ROWS
#define FILTER_ROWS KH
#define FILTER_COLUMNS KW
#endif
// What a block may leave to another one: the sums of a tile, and as many flags as warpgroups say that theirs are there.
#ifndef BLOCK_SUMS
#define BLOCK_SUMS (128 * 128)
#endif
#ifndef BLOCK_FLAGS
#define BLOCK_FLAGS 2
#endif
#ifndef CLUSTER
#define CLUSTER 1  // tiles of filters for which the input is scaled alike
#endif

constexpr int GROUP = 128;           // threads of a warpgroup
constexpr int BF = FILTERS;          // of a tile
constexpr int ALIKE = CLUSTER * BF;   // filters
constexpr int MAX_SUMS = BLOCK_SUMS;  // of a tile
constexpr int TAPS = KH * KW;
// A row: what one chain of products takes (of three), a row of the filter for 16 channels, or a whole chunk where it is
// 1x1.
constexpr int ROW_CHANNELS = TAPS == 1 ? CHANNELS : 16;
constexpr int ROWS = CHANNELS / ROW_CHANNELS * FILTER_ROWS;  // of a chunk, those of the same channels together
constexpr int DEPTHS = ROW_CHANNELS / 16;           // wgmma depths of one filter position
constexpr int STEPS = FILTER_COLUMNS * DEPTHS;
constexpr int WEIGHT_PART = STEPS * 2 * BF * 16;  // high or low
constexpr int FACTOR_PARTS = PRODUCTS == 3 ? 2 : 1;
constexpr int ROW_BYTES = FACTOR_PARTS * WEIGHT_PART;
// Exponent of the least maximum of a chunk of input that needs no other scale. With low parts what FP16 loses below
// 2^-14 does not matter; without them all 11 bits are to be there down to 2^-20 of the maximum.
constexpr int LEAST_EXPONENT = PRODUCTS == 3 ? 4 : 6;
static_assert(PRODUCTS == 3 || PRODUCTS == 1, "three products of two parts, or one of one");
constexpr int EMPTY = -4096;  // exponent of what is all zeros
constexpr unsigned MAX_FINITE = 0x7f7fffffu;

__device__ __forceinline__ float power_of_two(int exponent) { return __int_as_float(exponent + 127 << 23); }
__device__ __forceinline__ int clamp(int x, int least, int most) { return max(least, min(x, most)); }
__device__ __forceinline__ unsigned magnitude(float x) { return __float_as_uint(x) & 0x7fffffffu; }
__device__ __forceinline__ unsigned finite_magnitude(float x) { return magnitude(x) > MAX_FINITE ? 0u : magnitude(x); }

// Two floats as pairs of FP16, high + low; the first in the lower half. Where there is one product, high is all.
__device__ __forceinline__ void split(float a, float b, unsigned& high, unsigned& low) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(high) : "f"(b), "f"(a));
#if PRODUCTS == 3
    float high_a, high_b;
    asm("{.reg .f16 x, y; mov.b32 {x, y}, %2; cvt.f32.f16 %0, x; cvt.f32.f16 %1, y;}"
        : "=f"(high_a), "=f"(high_b)
        : "r"(high));
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(low) : "f"(b - high_b), "f"(a - high_a));
#endif
}
__device__ __forceinline__ void split(const float (&x)[8], uint4& high, uint4& low) {
    split(x[0], x[1], high.x, low.x);
    split(x[2], x[3], high.y, low.y);
    split(x[4], x[5], high.z, low.z);
    split(x[6], x[7], high.w, low.w);
}

// A filter's weights are their FP16 numbers times this power of two, or times two to this.
#ifdef FACTORS
typedef float FilterScale;
#else
typedef int FilterScale;
#endif

// What split_weights makes, and where blocks leave sums for each other.
struct Workspace {
    const char* rows;                  // [ALIKE tiles][chunks][CLUSTER][ROWS][FACTOR_PARTS][STEPS][2][BF][8] FP16
    const FilterScale* filter_scales;  // [ALIKE tiles][chunks][ALIKE]
    const float* channel_scales;       // [ALIKE tiles][chunks][CHANNELS]: the input is to be multiplied by this
    unsigned* flags;                   // [blocks][BLOCK_FLAGS]
    float4* sums;                      // [blocks][MAX_SUMS / 4]

    __device__ __forceinline__ Workspace(void* start, int64 tile_chunks, int blocks) {
        char* at = static_cast<char*>(start);
        rows = at, at += tile_chunks * CLUSTER * ROWS * ROW_BYTES;
        sums = reinterpret_cast<float4*>(at), at += (int64)blocks * MAX_SUMS * 4;
        filter_scales = reinterpret_cast<FilterScale*>(at), at += tile_chunks * ALIKE * 4;
        channel_scales = reinterpret_cast<float*>(at), at += tile_chunks * CHANNELS * 4;
        flags = reinterpret_cast<unsigned*>(at);
    }
};

// A block's share of all units of work, in order.
struct Share {
    int begin, end;
    // units * block / blocks, whose product may need more than 32 bits: a division of 64 would be a call.
    __device__ __forceinline__ Share(int units, int block, int blocks)
        : begin(units / blocks * block + units % blocks * block / blocks),
          end(units / blocks * (block + 1) + units % blocks * (block + 1) / blocks) {}
};

// Where in the order of a Share a warpgroup is; filter tiles of the same positions follow each other.
struct Place {
    int stretch, filter_tile, chunk;  // of positions, of filters, of channels

    template <class Geometry>
    __device__ __forceinline__ Place(int unit, const Geometry& g) {
        const int tile = unit / g.chunks;
        chunk = unit - tile * g.chunks, stretch = tile / g.filter_tiles, filter_tile = tile - stretch * g.filter_tiles;
    }
    template <class Geometry>
    __device__ __forceinline__ void advance(const Geometry& g) {
        if (++chunk < g.chunks) return;
        chunk = 0;
        if (++filter_tile < g.filter_tiles) return;
        filter_tile = 0, ++stretch;
    }
    // Of the weights.
    template <class Geometry>
    __device__ __forceinline__ int64 tile_chunk(const Geometry& g) const {
        return (int64)filter_tile * g.chunks + chunk;
    }
};

// Before a thread touches the workspace or the output. split_weights lets the main kernel start when all that came
// before the two has ended, so the input may be read ahead of this.
__device__ __forceinline__ void wait_for_weights() { wait_for_kernel_ahead(); }

// A barrier of a warpgroup's threads; `group` counts all of the block.
__device__ __forceinline__ void group_barrier(int group) {
    named_barrier<GROUP>(1 + group);
}
