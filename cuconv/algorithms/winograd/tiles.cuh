// What fp16x3_winograd's warpgroups have in common: the points of the transform, tiles of filters and cells, where
// cells lie in shared memory.
#pragma once

// As fp16x3's headers want to know it: a filter has a position of KH rows for each point, in place of KH rows of KW.
#define POINTS (KW + 3)
#define FILTER_ROWS POINTS
#define FILTER_COLUMNS KH
#define BLOCK_SUMS (POINTS * FILTERS * TILE_CELLS)
#define TRANSFORMED
#define PRODUCTS 3
#define WGMMA_N TILE_CELLS

#include "common/wgmma.cuh"
#include "common/fp16_output.cuh"

constexpr int CONSUMERS = 2 * GROUP, THREADS = CONSUMERS + PRODUCERS;
constexpr int OUTPUTS = POINTS + 1 - KW;  // of a cell: four
constexpr int CELLS = TILE_CELLS;         // of a tile: what the registers hold
constexpr int OWN = POINTS / 2;           // positions of a warpgroup
constexpr int PAIRS = OWN - 1;            // of points
static_assert(BF == 64 && ROWS == POINTS && STEPS == KH && CHANNELS == 16 && (KW == 3 || KW == 5));

// Input, transformed and split: [positions][high, low][2][STAGE_CELLS][8] FP16; and behind it its scale's exponent.
constexpr int OCTET_BYTES = STAGE_CELLS * 16;  // eight channels
constexpr int INPUT_PART = 2 * OCTET_BYTES;    // high or low
constexpr int POSITION_BYTES = 2 * INPUT_PART, EXPONENT_PLACE = POINTS * POSITION_BYTES;
constexpr int SENT_BYTES = EXPONENT_PLACE + 16;  // to other blocks: all of it
constexpr int STAGE_BYTES = (SENT_BYTES + 127) / 128 * 128;
// As it comes: [8][RAW_FLOATS], of eight channels; twice.
constexpr int RAW_BYTES = 8 * RAW_FLOATS * 4;
static_assert(RAW_FLOATS % 4 == 0);
// Of weights of a point; between tiles also what is on its way to the output.
constexpr int STAGED_ROW = 36;                         // floats: of what lanes write at once, no bank twice
constexpr int STAGED_FLOATS = GROUP / 2 * STAGED_ROW;  // of a warpgroup
constexpr int WEIGHT_STAGE_BYTES = ROW_BYTES > STAGED_FLOATS * 4 ? ROW_BYTES : STAGED_FLOATS * 4;
constexpr unsigned NOWHERE = 0xffffffffu;

// The points are 0, infinity and pairs x, -x. All that is made of them is exact in FP32 but the filters' divisors.
// Of eight choices of two pairs these have the least error; of three pairs, from all eighths up to 3.
__device__ constexpr float pair_point(int pair) {
    return KW == 3 ? (pair == 0 ? 0.625f : 1.5f) : (pair == 0 ? 0.5f : pair == 1 ? 1.0f : 2.0f);
}
__device__ constexpr float pair_square(int pair) { return pair_point(pair) * pair_point(pair); }
// Their places: 0, x, -x for a warpgroup and infinity, x, -x for the other; or 0, infinity, x, -x and two pairs.
constexpr int INFINITY_PLACE = KW == 3 ? OWN : 1;
__device__ constexpr int pair_place(int pair) { return KW == 3 ? 1 + pair * OWN : 2 + pair * 2; }

// The product, over all pairs but one (or -1: all), of a square less the pair's: coefficients of the square's powers.
struct Polynomial {
    float of[PAIRS + 1];
    __device__ constexpr Polynomial(int without) : of{1.0f} {
        for (int i = 0; i < PAIRS; ++i) {
            if (i == without) continue;
            for (int power = PAIRS; power > 0; --power) of[power] = of[power - 1] - pair_square(i) * of[power];
            of[0] *= -pair_square(i);
        }
    }
};

typedef float Chain[WGMMA_SUMS];
typedef float Sums[OWN][WGMMA_SUMS];  // of a thread

// A cell is OUTPUTS pixels of a row side by side. An image is cut into `strips`, whose rows have `pitch` cells;
// `image_rows` of them, with the zeros between one strip and the next, are a strip.
struct Spot {
    int image, y, x;  // row with its padding; column of the first output
};

struct Geometry {
    Problem p;
    int images, out_h, pitch, strips, image_rows, chunks, filter_tiles, units;
    int share;  // of units, the least of a cluster

    // Where a padded row lies; x of its strip's first output.
    __device__ __forceinline__ Spot row_at(int row) const {
        const int strip = row / image_rows, image = strip / strips;
        return {image, row - strip * image_rows, (strip - image * strips) * pitch * OUTPUTS};
    }
    // The first output of a cell of all, and of how many of its outputs there are any.
    __device__ __forceinline__ Pixel pixel(int cell, int& outputs) const {
        const int row = cell / pitch;
        const Spot at = row_at(row);
        const int x = at.x + (cell - row * pitch) * OUTPUTS;
        outputs = at.image < images && at.y < out_h ? min(OUTPUTS, p.out_w - x) : 0;
        return {outputs > 0 ? at.image : -1, at.y * p.out_w + x};
    }
    // Byte offset of the first channel's element, `offset` elements right of where a padded row begins; or NOWHERE.
    __device__ __forceinline__ unsigned source(int row, int offset) const {
        const Spot at = row_at(row);
        const int y = at.y - p.pad_h, x = at.x + offset - p.pad_w;
        const bool inside = at.image < images && y >= 0 && x >= 0 && x < p.width && offset < pitch * OUTPUTS + KW - 1;
        return inside ? ((unsigned)at.image * p.channels * p.height * p.width + y * p.width + x) * 4u : NOWHERE;
    }
};

// A cluster's share of all units of work, in order. Blocks wait for those with later shares, so these go to those that
// start first: then all end, however few run at a time.
__device__ __forceinline__ int part_of_block() { return gridDim.x / CLUSTER - 1 - blockIdx.x / CLUSTER; }
struct Part {
    int begin, end;
    __device__ __forceinline__ Part(const Geometry& g, int part) {
        const int larger = g.units - g.share * (int)(gridDim.x / CLUSTER);  // so many have one more
        begin = g.share * part + min(part, larger), end = g.share * (part + 1) + min(part + 1, larger);
    }
};

// threadIdx.x read anew, so that what follows from it takes a register only where it is used.
__device__ __forceinline__ int thread_number() {
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

// Likewise the block's place in its cluster.
__device__ __forceinline__ int block_rank() {
    int rank = 0;
    if (CLUSTER > 1) asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// What brings input: a job of a warp is 16 cells, four channels a lane.
constexpr int WARPS = PRODUCERS / 32;
constexpr int JOBS = (STAGE_CELLS + 16 * WARPS - 1) / (16 * WARPS);  // of a warp, for eight channels
constexpr int COPIES = (RAW_FLOATS + PRODUCERS - 1) / PRODUCERS;  // of a thread, for one

// Where a cell's outputs begin for the first filter, in floats, times 8; and how many there are.
struct CellOutputs {
    int64 packed;
    __device__ __forceinline__ int count() const { return (int)packed & 7; }
    __device__ __forceinline__ int64 first() const { return packed >> 3; }
};

struct Shared {
    uint64 full_input[IN_STAGES], empty_input[IN_STAGES];
    uint64 full_weights[2][WEIGHT_STAGES];  // of each warpgroup that multiplies
    // Of the workspace, for those who multiply: read anew once a tile, so that they take no register in between.
    const int* volatile exponents;
    unsigned* volatile flags;
    float4* volatile sums;
    volatile int units;  // of the share: likewise, for those who bring input
    __align__(16) unsigned maxima[2][WARPS];  // of producing warps; a spare set
    __align__(16) float scales[2][8];         // of channels, of what is being copied or converted
    CellOutputs outputs[2][CELLS];            // of a warpgroup's tile that is written
    __align__(16) float bias[FILTERS];        // likewise
    unsigned sources[COPIES][PRODUCERS];  // of producing threads: what they copy
    int windows[JOBS][PRODUCERS];         // and where their cells' inputs lie, in floats
};
