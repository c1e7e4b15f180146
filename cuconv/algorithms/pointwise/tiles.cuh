// Sizes of fp16x3_pointwise, its tiles and their order, and the state that the warps of a block share.
//
//   output tile      BF filters x the pixels of WARPGROUP_TILES warpgroup tiles
//   warpgroup tile   the pixels of one consumer, at most 64: next to each other in all images (plain), in one image
//                    (SHIFTED), or a whole image (PLANE)
//   chunk            CHANNELS channels of the reduction
#pragma once

#define KH 1
#define KW 1
#define FLOAT_FILTER_SCALES
#define BLOCK_SUMS (CONSUMERS * 64 * FILTERS)
#define BLOCK_FLAGS CONSUMERS
#include "common/weight_packing.cuh"

constexpr int THREADS = (CONSUMERS + 1) * WARPGROUP;
constexpr bool LARGE_PRODUCERS = SHIFTED || TAIL_SPLIT_K > 1 && PLANE && !PREPARED;
constexpr int PRODUCER_REGISTERS = CONSUMERS == 3 ? PLANE ? 32 : 56 : LARGE_PRODUCERS ? 56 : 40;
constexpr int CONSUMER_REGISTERS = CONSUMERS == 3 ? PLANE ? 160 : 152 : LARGE_PRODUCERS ? 224 : 232;
constexpr int WARPGROUP_PIXELS = 64;                                // pixels of a warpgroup tile: the rows of wgmma
constexpr int WARPGROUP_TILES = WARPGROUP_SPLIT_K ? 1 : CONSUMERS;  // warpgroup tiles of an output tile
constexpr int GRAIN = SHIFTED ? SHIFTED : 1;
constexpr int TILE_STEP = WARPGROUP_PIXELS - (GRAIN - 1);  // pixels from a warpgroup tile to the next, where SHIFTED
constexpr int PIXEL_STAGE_FLOATS = CHANNELS * PITCH;       // a consumer's
constexpr int WEIGHT_STAGE_BYTES = ROW_BYTES + CHANNELS * 4 + BF * 4;  // weights, channel scales, filter scales
constexpr int SUMS = BF / 2;                                           // sums of a consumer's thread
constexpr bool SINGLE_CHUNK = WEIGHTS_RESIDENT && WEIGHT_STAGES == 1;  // whose products are the sums
constexpr int CHUNK_STEP = WARPGROUP_SPLIT_K ? CONSUMERS : 1;          // from a consumer's chunk to its next one
constexpr int CONSUMER_WEIGHT_STAGES = WEIGHT_STAGES / CHUNK_STEP;     // where weights are not resident
// racecheck follows an arrival's order for the arriving thread alone, not by __syncwarp for its warp. `make sanitize`
// therefore compiles kernels in which every lane of a warp arrives.
#ifndef ALL_LANES_ARRIVE
#define ALL_LANES_ARRIVE 0
#endif
constexpr int RELEASES = WARPGROUP / 32 * (ALL_LANES_ARRIVE ? 32 : 1);  // arrivals of a consumer that has read a stage
constexpr int WEIGHT_RELEASES = WARPGROUP_TILES * RELEASES;             // the same of all that read a stage of weights

static_assert(SHIFTED == 0 || SHIFTED % 4 == 0 && 32 % SHIFTED == 0, "16 bytes are written at once");
static_assert(WEIGHTS_RESIDENT || GRID_STRIDE, "tiles with the same pixels are neighbours unless weights are resident");
static_assert(TAIL_SPLIT_K == 1 || !WEIGHTS_RESIDENT && !WARPGROUP_SPLIT_K,
              "a consumer goes through all chunks of a part, and weights come with each chunk");
static_assert(WEIGHTS_RESIDENT || CONSUMER_WEIGHT_STAGES == PIXEL_STAGES, "a chunk's pixels and weights share a stage");

// The first chunk of a consumer in a tile that the block does not share.
__device__ __forceinline__ int first_chunk(int consumer) { return WARPGROUP_SPLIT_K ? consumer : 0; }

// The first of a thread's two pixels within its warpgroup tile; the second is SECOND_PIXEL further on. Plain pixels are
// neighbours, which one load reads. Others are further apart, so that a warp's reads lie in all banks: with an odd
// PLANE, the channels of four lanes are an odd multiple of two banks apart, and pixels are in two banks of each eight.
__device__ __forceinline__ int first_pixel(int thread) {
    const int warp = thread / 32, row = thread % 32 / 4;
    return PLANE ? warp * 2 + row / 2 * 8 + row % 2 : warp * 16 + row * (SHIFTED ? 1 : 2);
}
constexpr int SECOND_PIXEL = PLANE ? 32 : SHIFTED ? 8 : 1;
static_assert(PLANE == 0 || PLANE > 32 && PLANE <= WARPGROUP_PIXELS, "only a thread's second pixel may be missing");
__device__ __forceinline__ bool has_second(int first) { return PLANE == 0 || first + SECOND_PIXEL < PLANE; }

// threadIdx.x, read again at each call: a value that is kept, and all that follows from it, would take registers.
__device__ __forceinline__ unsigned thread_index() {
    unsigned thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

// For a block that packs its weights: no kernel of this call has waited for the kernels ahead, so each thread that
// reads operands does. `known` is as in wait_for_kernel_ahead. The next kernel must not start before.
__device__ __forceinline__ void wait_then_launch_dependents(uint64 known) {
    wait_for_kernel_ahead(known);
    launch_dependents();
}

// Floats from the last multiple of 128 bytes to an element.
__device__ __forceinline__ unsigned misalignment(const float* element) { return (unsigned)(uint64)element / 4 % 32; }

// The sizes of a problem, by the names that plain_sum needs, and of its tiles.
struct Sizes {
    const int channels, height, width, filters, pad_h, pad_w, out_w, out_pixels;
    unsigned images;
    int chunks, pixel_tiles, filter_tiles;
    unsigned image_tiles;  // warpgroup tiles of an image, where SHIFTED
    int output_planes;     // from one image of the output to the next
};

struct Shared {
    uint64 full_pixels[CONSUMERS][PIXEL_STAGES], empty_pixels[CONSUMERS][PIXEL_STAGES];
    uint64 full_weights[WEIGHT_STAGES], empty_weights[WEIGHT_STAGES];
    // Volatile, so that they are read again each time and take no register in between.
    volatile int tiles;  // the block's tiles
    // TAIL_SPLIT_K: which of the block's tiles it has a part of, and the chunks of that part.
    volatile int split_tile, begin_chunk, end_chunk;
    volatile unsigned reciprocal;  // 2^32 / divisor, for Block::divide
};

// An output tile. With a grid stride, tiles with the same pixels follow each other and a block takes every gridDim.x-th
// tile: what all blocks read and write at a time lies together in memory. Otherwise tiles with the same filters follow
// each other, and a block takes consecutive ones.
struct Tile {
    int pixel_tile, filter_tile;
    int loads = 0;  // times that resident weights were replaced so far
    int count = 0;  // tiles of the block before this one

    __device__ __forceinline__ Tile(int tile, const Sizes& s)
        : pixel_tile(GRID_STRIDE ? tile / s.filter_tiles : tile % s.pixel_tiles),
          filter_tile(GRID_STRIDE ? tile % s.filter_tiles : tile / s.pixel_tiles) {}
    __device__ __forceinline__ void move_to(int tile, const Sizes& s) {
        const Tile there(tile, s);
        pixel_tile = there.pixel_tile, filter_tile = there.filter_tile;
    }
    // Whether the block's next tile waits for weights: these are not resident, or its filters are others.
    __device__ __forceinline__ bool ends_use_of_weights(const Sizes& s) const {
        return !WEIGHTS_RESIDENT || !GRID_STRIDE && pixel_tile + 1 == s.pixel_tiles;
    }
    __device__ __forceinline__ void advance(const Sizes& s) {
        ++count;
        if (GRID_STRIDE) {
            move_to(pixel_tile * s.filter_tiles + filter_tile + gridDim.x, s);
        } else if (++pixel_tile == s.pixel_tiles) {
            pixel_tile = 0, ++filter_tile, ++loads;
        }
    }
    // The consumer's warpgroup tile, counted over all images.
    __device__ __forceinline__ unsigned warpgroup_tile(int consumer) const {
        return pixel_tile * WARPGROUP_TILES + (WARPGROUP_SPLIT_K ? 0 : consumer);
    }
};

// Tail split-K. The last wave has fewer tiles than the grid has blocks, so TAIL_SPLIT_K blocks share each of its tiles
// by chunks. A block with later chunks computes them before its whole tiles, the block with the first chunks after
// them: the partial sums are there when they are needed.
//
//   block 2i      [ whole tile ............... ][ first chunks of a last tile ][ accumulate ][ write ]
//   block 2i + 1  [ its other chunks ][ publish ][ whole tile ............... ][ write ]
struct LastWave {
    const int waves, part;  // whole tiles of a block; the block's part of a last tile
    const bool takes_part;

    __device__ __forceinline__ explicit LastWave(const Sizes& s)
        : waves(s.pixel_tiles * s.filter_tiles / (int)gridDim.x), part(blockIdx.x % TAIL_SPLIT_K),
          takes_part(waves * gridDim.x + blockIdx.x / TAIL_SPLIT_K < s.pixel_tiles * s.filter_tiles) {}
    // The number, among the block's tiles, of the tile that it shares with other blocks; -1 for none.
    __device__ __forceinline__ int split_tile() const { return !takes_part ? -1 : part > 0 ? 0 : waves; }
    // The tile that is the block's `count`-th.
    __device__ __forceinline__ int tile_of(int count, int split_tile) const {
        return count == split_tile ? waves * gridDim.x + blockIdx.x / TAIL_SPLIT_K
                                   : (count - (split_tile == 0 && part > 0)) * gridDim.x + blockIdx.x;
    }
    __device__ __forceinline__ int begin_chunk(int part, const Sizes& s) const {
        return s.chunks * part / TAIL_SPLIT_K;
    }
};

// The state that all warps of a block share: sizes, where its stages are, and which tiles it computes.
struct Block {
    const Sizes& s;
    const float* const input;
    float* const pixels;  // stages
    char* const weights;  // stages
    Shared& shared;
    const int first;  // tile of the block

    __device__ __forceinline__ Tile first_tile() const { return Tile(first, s); }
    __device__ __forceinline__ void advance(Tile& tile) const {
        tile.advance(s);
        if (TAIL_SPLIT_K > 1) tile.move_to(LastWave(s).tile_of(tile.count, shared.split_tile), s);
    }
    // Whether the tile's weights are not those of the block's tile before.
    __device__ __forceinline__ bool begins_weights(const Tile& tile) const {
        return tile.count == 0 || !GRID_STRIDE && tile.pixel_tile == 0;
    }
    // The chunks of a tile that the block computes; a consumer has each CHUNK_STEP-th.
    __device__ __forceinline__ int begin_chunk(const Tile& tile, int consumer) const {
        return TAIL_SPLIT_K > 1 && tile.count == shared.split_tile ? shared.begin_chunk : first_chunk(consumer);
    }
    __device__ __forceinline__ int end_chunk(const Tile& tile) const {
        return TAIL_SPLIT_K > 1 && tile.count == shared.split_tile ? shared.end_chunk : s.chunks;
    }

    // A pixel: its image, and its place there.
    struct Place {
        unsigned image, pixel;
        // The offset in an array with `planes` planes for each image; -1 beyond the last image.
        __device__ __forceinline__ int64 offset(const Sizes& s, int planes) const {
            return image < s.images ? (int64)image * planes * s.out_pixels + pixel : -1;
        }
    };
    // A pixel of a plain warpgroup tile or of a whole image; the image may not have it.
    __device__ __forceinline__ Place locate(const Tile& tile, int consumer, int pixel) const {
        if (PLANE) return {tile.warpgroup_tile(consumer), (unsigned)pixel};
        return divide(tile.warpgroup_tile(consumer) * WARPGROUP_PIXELS + pixel, s.out_pixels);
    }
    // The first pixel of a shifted warpgroup tile: every TILE_STEP-th of an image. The last tile of an image has its
    // last 64 pixels.
    __device__ __forceinline__ Place locate_shifted(const Tile& tile, int consumer) const {
        const Place there = divide(tile.warpgroup_tile(consumer), s.image_tiles);
        return {there.image,
                there.pixel + 1 < s.image_tiles ? there.pixel * TILE_STEP : s.out_pixels - WARPGROUP_PIXELS};
    }
    // Quotient and remainder, by a multiplication. `by` is the number whose reciprocal is in shared memory.
    __device__ __forceinline__ Place divide(unsigned x, unsigned by) const {
        const unsigned quotient = __umulhi(x, shared.reciprocal), rest = x - quotient * by;  // or one more
        return rest < by ? Place{quotient, rest} : Place{quotient + 1, rest - by};
    }

    __device__ __forceinline__ float* pixel_stages(int consumer) const {
        return pixels + consumer * PIXEL_STAGES * PIXEL_STAGE_FLOATS;
    }
    __device__ __forceinline__ char* weight_stage(int stage) const { return weights + stage * WEIGHT_STAGE_BYTES; }
};
