// Common to the fp16x3 kernels: how a number is decomposed into FP16 parts, the workspace with the packed weights, and
// the share of the work that a block takes.
//
// PRODUCTS  tensor-core products for one FP32 product: 3 of two FP16 parts each, or 1 of the high parts alone, whose 11
//           bits are those of TF32
#pragma once

#include "common/hopper.cuh"
#include "common/truncation.cuh"

// 1 where a filter is multiplied in pieces of KH x KW, 0 where it is whole.
#ifndef PIECES
#define PIECES 0
#endif
// The shape of a filter as it is multiplied. A kernel that transforms its weights defines another one.
#ifndef FILTER_ROWS
#define FILTER_ROWS KH
#define FILTER_COLUMNS KW
#endif
// Partial sums that a block publishes for another block: the sums of a tile, and a flag for each warpgroup.
#ifndef BLOCK_SUMS
#define BLOCK_SUMS (128 * 128)
#endif
#ifndef BLOCK_FLAGS
#define BLOCK_FLAGS 2
#endif
#ifndef CLUSTER
#define CLUSTER 1  // blocks, each with its own filter tile, that multiply the same scaled input
#endif

constexpr int WARPGROUP = 128;               // threads
constexpr int BF = FILTERS;                  // filters of a block's tile
constexpr int SCALE_FILTERS = CLUSTER * BF;  // filters with common channel scales
constexpr int MAX_SUMS = BLOCK_SUMS;         // sums of a tile
constexpr int TAPS = KH * KW;

// A weight row is what one chain of wgmma instructions takes: a row of the filter for 16 channels, or all channels of a
// chunk where the filter is 1x1.
constexpr int ROW_CHANNELS = TAPS == 1 ? CHANNELS : 16;
constexpr int ROWS = CHANNELS / ROW_CHANNELS * FILTER_ROWS;  // rows of a chunk; those of the same channels are adjacent
constexpr int DEPTHS = ROW_CHANNELS / 16;                    // wgmma depths for one column of the filter
constexpr int STEPS = FILTER_COLUMNS * DEPTHS;               // wgmma depths of a weight row
constexpr int WEIGHT_PART = STEPS * 2 * BF * 16;             // bytes of the high or the low parts of a weight row
constexpr int OPERAND_PARTS = PRODUCTS == 3 ? 2 : 1;
constexpr int ROW_BYTES = OPERAND_PARTS * WEIGHT_PART;
// The low parts of a weight row follow all of its high parts. SIDE_BY_SIDE: those of eight channels
// follow the high parts of the same channels, for a kernel that multiplies by both with one instruction.
#ifndef SIDE_BY_SIDE
#define SIDE_BY_SIDE 0
#endif
constexpr int OCTET_FILTERS = SIDE_BY_SIDE ? 2 * BF : BF;           // rows of 16 bytes for eight channels
constexpr int LOW_WEIGHTS = SIDE_BY_SIDE ? BF * 16 : WEIGHT_PART;  // bytes from a high part to its low part
static_assert(PRODUCTS == 3 || PRODUCTS == 1, "three products of two parts, or one of one");

// A scaled value has an error of up to 2^-23 of itself and 2^-25, because its low part is rounded to a multiple of
// 2^-24. Eight channels are suspect where their largest value is below LEAST_EXACT, and not 0.
constexpr float LEAST_EXACT = 0x1p-8f;
constexpr int ZERO_EXPONENT = -4096;  // stands for the exponent of values that are all zero
constexpr unsigned MAX_FINITE = 0x7f7fffffu;

__device__ __forceinline__ float power_of_two(int exponent) { return __int_as_float(exponent + 127 << 23); }
__device__ __forceinline__ int clamp(int x, int least, int most) { return max(least, min(x, most)); }
__device__ __forceinline__ unsigned magnitude(float x) { return __float_as_uint(x) & 0x7fffffffu; }
__device__ __forceinline__ unsigned finite_magnitude(float x) { return magnitude(x) > MAX_FINITE ? 0u : magnitude(x); }

// Decomposes two floats into pairs of FP16, high + low; a is in the lower half. With one product there is no low part.
__device__ __forceinline__ void decompose(float a, float b, unsigned& high, unsigned& low) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(high) : "f"(b), "f"(a));
#if PRODUCTS == 3
    float high_a, high_b;
    asm("{.reg .f16 x, y; mov.b32 {x, y}, %2; cvt.f32.f16 %0, x; cvt.f32.f16 %1, y;}"
        : "=f"(high_a), "=f"(high_b)
        : "r"(high));
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(low) : "f"(b - high_b), "f"(a - high_a));
#endif
}
__device__ __forceinline__ void decompose(const float (&x)[8], uint4& high, uint4& low) {
    decompose(x[0], x[1], high.x, low.x);
    decompose(x[2], x[3], high.y, low.y);
    decompose(x[4], x[5], high.z, low.z);
    decompose(x[6], x[7], high.w, low.w);
}

// The largest magnitude of eight values. A number wins over a NaN.
__device__ __forceinline__ float largest(const float (&x)[8]) {
    return fmaxf(fmaxf(fmaxf(fabsf(x[0]), fabsf(x[1])), fmaxf(fabsf(x[2]), fabsf(x[3]))),
                 fmaxf(fmaxf(fabsf(x[4]), fabsf(x[5])), fmaxf(fabsf(x[6]), fabsf(x[7]))));
}

// The larger magnitudes of two pairs of FP16. A number wins over a NaN.
__device__ __forceinline__ unsigned larger_magnitudes(unsigned x, unsigned y) {
    unsigned most;
    asm("{.reg .b32 a, b; abs.f16x2 a, %1; abs.f16x2 b, %2; max.f16x2 %0, a, b;}" : "=r"(most) : "r"(x), "r"(y));
    return most;
}

// A filter's weights are its packed FP16 numbers times a power of two: stored as that power, or as its exponent and a
// bit that says whether the weights of the chunk are suspect (weight_packing.cuh).
#ifdef FLOAT_FILTER_SCALES
typedef float FilterScale;
#else
typedef int FilterScale;
#endif
constexpr int SUSPECT_BIT = 1;

__device__ __forceinline__ int exponent_of(int scale) { return scale >> 1; }
__device__ __forceinline__ bool is_suspect(int scale) { return scale & SUSPECT_BIT; }
__device__ __forceinline__ int scale_of(int exponent, bool suspect) { return exponent * 2 + suspect; }

// Products of suspect chunks, whose exponent is at most `doubt`, have an absolute error that may be large for a small
// sum of theirs. A sum below least_trusted(doubt) becomes NaN, which makes its output a plain FP32 sum.
constexpr int NO_DOUBT = ZERO_EXPONENT / 2;  // below every exponent of a chunk that is not all zero
__device__ __forceinline__ float least_trusted(int doubt) { return power_of_two(clamp(doubt + 11, -126, 128)); }
__device__ __forceinline__ void mark_doubtful(float& sum, float least) {
    if (fabsf(sum) < least) sum = __int_as_float(0x7fc00000);
}

// The memory that a call is given: a workspace, and with PREPARED the packed weights and the flags.
struct Memory {
    void* workspace;
    WITH_PREPARED(void* packed; unsigned* flags;)
};

// Its parts: the packed weights with their scales, then the partial sums of blocks and their flags.
struct Workspace {
    const char* rows;                  // [scale tiles][chunks][CLUSTER][ROWS][OPERAND_PARTS][STEPS][2][BF][8] FP16;
                                       // SIDE_BY_SIDE: ... [ROWS][STEPS][2][OPERAND_PARTS][BF][8]
    const FilterScale* filter_scales;  // [scale tiles][chunks][SCALE_FILTERS]
    const float* channel_scales;       // [scale tiles][chunks][CHANNELS]: factors of the input's channels
    unsigned* flags;                   // [blocks][BLOCK_FLAGS]
    float4* sums;                      // [blocks][MAX_SUMS / 4]

    // tile_chunks: pairs of a scale tile (SCALE_FILTERS filters) and a chunk of channels.
    __device__ __forceinline__ Workspace(void* start, int64 tile_chunks, int blocks) {
        char* at = static_cast<char*>(start);
        rows = at, at += tile_chunks * CLUSTER * ROWS * ROW_BYTES;
        sums = reinterpret_cast<float4*>(at), at += (int64)blocks * MAX_SUMS * 4;
        filter_scales = reinterpret_cast<FilterScale*>(at), at += tile_chunks * SCALE_FILTERS * 4;
        channel_scales = reinterpret_cast<float*>(at), at += tile_chunks * CHANNELS * 4;
        flags = reinterpret_cast<unsigned*>(at);
    }
    __device__ __forceinline__ Workspace(const Memory& memory, int64 tile_chunks, int blocks)
#if PREPARED
        : Workspace(memory.packed, tile_chunks, 0) {
        sums = static_cast<float4*>(memory.workspace), flags = memory.flags;
    }
#else
        : Workspace(memory.workspace, tile_chunks, blocks) {
    }
#endif
};

// Waits for a flag that another block sets; no other block waits for it. With prepared weights no packing kernel clears
// the flags, so this function clears it.
__device__ __forceinline__ void take_flag(unsigned* flag) {
    wait_for_flag(flag);
    if (PREPARED) *flag = 0;
}

// The consecutive units of work that a block takes (stream-K). A unit is a pair of an output tile and a chunk.
struct Share {
    int begin, end;
    // units * block / blocks, without the product, which may overflow: a 64-bit division would be a function call.
    __device__ __forceinline__ Share(int units, int block, int blocks)
        : begin(units / blocks * block + units % blocks * block / blocks),
          end(units / blocks * (block + 1) + units % blocks * (block + 1) / blocks) {}
};

// A unit of work by its coordinates. Chunks of a tile are consecutive, then filter tiles of the same outputs.
struct WorkUnit {
    int spatial_tile, filter_tile, chunk;

    template <class Geometry>
    __device__ __forceinline__ WorkUnit(int unit, const Geometry& g) {
        const int tile = unit / g.chunks;
        chunk = unit - tile * g.chunks, spatial_tile = tile / g.filter_tiles;
        filter_tile = tile - spatial_tile * g.filter_tiles;
    }
    template <class Geometry>
    __device__ __forceinline__ void advance(const Geometry& g) {
        if (++chunk < g.chunks) return;
        chunk = 0;
        if (++filter_tile < g.filter_tiles) return;
        filter_tile = 0, ++spatial_tile;
    }
    // The index of the unit's weights in the workspace.
    template <class Geometry>
    __device__ __forceinline__ int64 tile_chunk(const Geometry& g) const {
        return (int64)filter_tile * g.chunks + chunk;
    }
};

// A stage of a ring of COUNT stages in shared memory, and the parity of its current use. It steps instead of dividing:
// a remainder would take ten instructions.
template <int COUNT>
struct PipelineState {
    int stage = 0, parity = 0;

    PipelineState() = default;
    // The state after `units` units of work, each of which uses `uses` stages.
    __device__ __forceinline__ PipelineState(unsigned units, unsigned uses) {
        if (uses % COUNT == 0)
            stage = 0, parity = units * (uses / COUNT) & 1;
        else
            stage = units * uses % COUNT, parity = units * uses / COUNT & 1;
    }
    __device__ __forceinline__ void advance() {
        stage = stage + 1 < COUNT ? stage + 1 : 0;
        parity ^= stage == 0;
    }
    __device__ __forceinline__ int previous_stage() const { return stage > 0 ? stage - 1 : COUNT - 1; }
};

// A thread calls this before it touches the workspace or the output. pack_weights lets the main kernel start only after
// every kernel ahead of the two has ended, so the input may be read before this wait. With PREPARED it is the other way
// round: the packed weights may be read before this wait, and the input only after it.
__device__ __forceinline__ void wait_for_weights() { wait_for_kernel_ahead(); }

// A barrier of a warpgroup's threads; `warpgroup` is its number in the block.
__device__ __forceinline__ void warpgroup_barrier(int warpgroup) { named_barrier<WARPGROUP>(1 + warpgroup); }
// A named barrier of COUNT threads; whether `found` is true in any of them.
template <int COUNT>
__device__ __forceinline__ bool any_at_barrier(int id, bool found) {
    int any;
    asm volatile("{.reg .pred p; setp.ne.s32 p, %1, 0; barrier.cta.red.or.pred p, %2, %3, p; selp.s32 %0, 1, 0, p;}"
                 : "=r"(any)
                 : "r"((int)found), "r"(id), "n"(COUNT)
                 : "memory");
    return any;
}
