// The block of fp16x3_winograd's main kernel: points of the transform, tiles of filters and cells, and what lies in
// shared memory.
#pragma once

// Macros that the fp16x3 headers read. A transformed filter has KH taps for each point, in place of KH rows of KW.
#define POINTS (KW + 3)
#define FILTER_ROWS POINTS
#define FILTER_COLUMNS KH
#define BLOCK_SUMS (POINTS * FILTERS * TILE_CELLS + 256)  // with a number for each consumer thread
#define TRANSFORMS_WEIGHTS
#define PRODUCTS 3
#define WGMMA_N TILE_CELLS

#include "common/wgmma.cuh"
#include "common/fp16_output.cuh"

constexpr int CONSUMERS = 2 * WARPGROUP, THREADS = CONSUMERS + PRODUCERS;
constexpr int OUTPUTS = POINTS + 1 - KW;  // outputs of a cell: four
constexpr int CELLS = TILE_CELLS;         // cells of a tile
constexpr int GROUP_POINTS = POINTS / 2;  // points of a consumer warpgroup
constexpr int PAIRS = GROUP_POINTS - 1;   // pairs of points x and -x
static_assert(CONSUMERS == 256 && BF == 64 && ROWS == POINTS && STEPS == KH && CHANNELS == 16 && (KW == 3 || KW == 5));

// A stage of transformed input: [points][high, low][2][STAGE_CELLS][8] FP16, then its scale.
constexpr int OCTET_BYTES = STAGE_CELLS * 16;  // eight channels
constexpr int INPUT_PART = 2 * OCTET_BYTES;    // high or low parts of a point
constexpr int POINT_BYTES = 2 * INPUT_PART, SCALE_OFFSET = POINTS * POINT_BYTES;
constexpr int SENT_BYTES = SCALE_OFFSET + 16;  // what a block sends to the others of its cluster
constexpr int STAGE_BYTES = (SENT_BYTES + 127) / 128 * 128;
// Input as it comes: [2][8 channels][RAW_FLOATS].
constexpr int RAW_BYTES = 8 * RAW_FLOATS * 4;
static_assert(RAW_FLOATS % 4 == 0);
// A stage of weights holds one point; at a tile's end, the warpgroup's outputs on their way out.
constexpr int STAGING_ROW = 36;                              // floats; a warp's float4 stores meet no bank twice
constexpr int STAGING_FLOATS = WARPGROUP / 2 * STAGING_ROW;  // floats of a warpgroup
constexpr int WEIGHT_STAGE_BYTES = ROW_BYTES > STAGING_FLOATS * 4 ? ROW_BYTES : STAGING_FLOATS * 4;
constexpr unsigned NOWHERE = 0xffffffffu;

// The points are 0, infinity and pairs x, -x. Every constant of the input's transform is exact in FP32. These pairs had
// the least error of eight choices of two pairs, and of all triples of eighths up to 3.
__device__ constexpr float pair_point(int pair) {
    return KW == 3 ? (pair == 0 ? 0.625f : 1.5f) : (pair == 0 ? 0.5f : pair == 1 ? 1.0f : 2.0f);
}
__device__ constexpr float pair_square(int pair) { return pair_point(pair) * pair_point(pair); }
// The order of the points, the first half for consumer warpgroup 0:
// KW 3:  0, x0, -x0 | infinity, x1, -x1         KW 5:  0, infinity, x0, -x0 | x1, -x1, x2, -x2
constexpr int INFINITY_POINT = KW == 3 ? GROUP_POINTS : 1;
__device__ constexpr int first_of_pair(int pair) { return KW == 3 ? 1 + pair * GROUP_POINTS : 2 + pair * 2; }

// The coefficients, by powers of x^2, of the product of (x^2 - x_i^2) over all pairs i but `without`; -1: over all.
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
typedef float Sums[GROUP_POINTS][WGMMA_SUMS];  // a thread's sums

// Where a padded row of a strip lies: its image, its row with the padding, and the column of the strip's first output.
struct RowOrigin {
    int image, y, x;
};

// The problem's sizes, and the flattened images. A cell is OUTPUTS adjacent pixels of a row. An image is cut into
// `strips` of image_rows rows, with the padding between a strip and the next; a row of a strip has `pitch` cells.
struct Geometry {
    Problem p;
    int images, out_h, pitch, strips, image_rows, chunks, filter_tiles, units;
    int share;  // the least units of a cluster

    __device__ __forceinline__ RowOrigin row_origin(int row) const {
        const int strip = row / image_rows, image = strip / strips;
        return {image, row - strip * image_rows, (strip - image * strips) * pitch * OUTPUTS};
    }
    // A cell's first output, and how many of its outputs exist.
    __device__ __forceinline__ Pixel pixel(int cell, int& outputs) const {
        const int row = cell / pitch;
        const RowOrigin at = row_origin(row);
        const int x = at.x + (cell - row * pitch) * OUTPUTS;
        outputs = at.image < images && at.y < out_h ? min(OUTPUTS, p.out_w - x) : 0;
        return {outputs > 0 ? at.image : -1, at.y * p.out_w + x};
    }
    // Byte offset of the first channel's input element, `offset` elements right of where a padded row begins; NOWHERE
    // in the padding.
    __device__ __forceinline__ unsigned source(int row, int offset) const {
        const RowOrigin at = row_origin(row);
        const int y = at.y - p.pad_h, x = at.x + offset - p.pad_w;
        const bool inside = at.image < images && y >= 0 && x >= 0 && x < p.width && offset < pitch * OUTPUTS + KW - 1;
        return inside ? ((unsigned)at.image * p.channels * p.height * p.width + y * p.width + x) * 4u : NOWHERE;
    }
};

// The number of a cluster's share. Clusters wait for those with later shares, so later shares go to clusters that start
// earlier. Then all of them end, however few run at a time.
__device__ __forceinline__ int share_number() { return gridDim.x / CLUSTER - 1 - blockIdx.x / CLUSTER; }

// The consecutive units of work that a cluster takes. The first shares are one unit larger.
struct ClusterShare {
    int begin, end;
    __device__ __forceinline__ ClusterShare(const Geometry& g, int number) {
        const int larger = g.units - g.share * (int)(gridDim.x / CLUSTER);  // shares with one more
        begin = g.share * number + min(number, larger), end = g.share * (number + 1) + min(number + 1, larger);
    }
};

// threadIdx.x, read anew each time, so that what follows from it takes a register only where it is used.
__device__ __forceinline__ int thread_number() {
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

// The block's rank in its cluster, likewise.
__device__ __forceinline__ int block_rank() {
    int rank = 0;
    if (CLUSTER > 1) asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// Producers: in a job a warp converts eight channels of 16 cells, and a lane four channels of one.
constexpr int WARPS = PRODUCERS / 32;
constexpr int JOBS = (STAGE_CELLS + 16 * WARPS - 1) / (16 * WARPS);  // a warp's jobs for eight channels
constexpr int COPIES = (RAW_FLOATS + PRODUCERS - 1) / PRODUCERS;     // a thread's copies for one channel

// Where a cell's outputs begin for the first filter, in floats, and how many there are.
struct CellOutputs {
    int64 packed;  // 8 * first + count
    __device__ __forceinline__ int count() const { return (int)packed & 7; }
    __device__ __forceinline__ int64 first() const { return packed >> 3; }
};

// Static shared memory. The volatile members are read anew once a tile, so that they take no register in between.
struct Shared {
    uint64 full_input[IN_STAGES], empty_input[IN_STAGES];
    uint64 full_weights[2][WEIGHT_STAGES];  // a row for each consumer warpgroup
    const int* volatile filter_scales;      // in the workspace; consumers read it
    unsigned* volatile flags;
    float4* volatile sums;
    volatile int units;                       // chunks of the block's share; producers read it
    __align__(16) unsigned maxima[2][WARPS];  // each producer warp's; the second set is for convert_again
    __align__(16) float scales[2][8];         // channel scales of what is being copied or converted
    CellOutputs outputs[2][CELLS];            // outputs of the tile that a consumer warpgroup writes
    __align__(16) float bias[FILTERS];        // likewise
    unsigned sources[COPIES][PRODUCERS];      // byte offsets of the elements that a producer thread copies
    int windows[JOBS][PRODUCERS];             // where the inputs of its cells lie, in floats
};
