// Shared by the parts of fp16x3_pointwise: sizes, tiles, and what lies where in shared memory.
#pragma once

#define KH 1
#define KW 1
#include "fp16x3_split.cuh"

constexpr int ALL_THREADS = (TEAMS + 1) * 128;
constexpr int COPIER_REGISTERS = 40, MULTIPLIER_REGISTERS = TEAMS == 2 ? 232 : 152;
constexpr int TEAM_TILE = 64, TILE = JOINT ? TEAM_TILE : TEAMS * TEAM_TILE;  // pixels
constexpr int PITCH = 68;   // floats of a channel in shared memory: fragments are read without bank conflicts
constexpr int WIDTH = VECTOR ? 4 : 1;
constexpr int STAGE_FLOATS = CHANNELS * PITCH;  // of a warpgroup
constexpr int WEIGHT_STAGE = ROW_BYTES + CHANNELS * 4 + BF * 4;  // with the channels' scales and the filters' exponents
constexpr int WRITE_PITCH = 68;  // floats of a filter's pixels in shared memory, on the way to the output
constexpr int SUMS = BF / 2;
constexpr bool SINGLE = RESIDENT && WEIGHT_STAGES == 1;  // all channels in a chunk, whose products are the sums
constexpr int STRIDE = JOINT ? TEAMS : 1;                         // from a team's chunk to its next one
constexpr int TEAM_WEIGHT_STAGES = WEIGHT_STAGES / STRIDE;        // where weights do not stay: for each team its own
constexpr int WEIGHT_USERS = (JOINT ? 1 : TEAMS) * (GROUP / 32);  // warps

__device__ __forceinline__ int first_chunk(int team) { return JOINT ? team : 0; }
__device__ __forceinline__ int first_pixel(int team) { return JOINT ? 0 : team * TEAM_TILE; }  // in the tile

// Read anew each time, so that nothing that follows from it takes a register meanwhile.
__device__ __forceinline__ int own_thread() {
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

// Sizes, by the names that plain_sum wants, and what there is of tiles.
struct Sizes {
    const int channels, height, width, filters, pad_h, pad_w, out_w, out_pixels;
    unsigned images;
    int chunks, stretches, filter_tiles;  // a stretch: the pixels of a tile
    // Offset in the elements of an array with `planes` a image; -1 beyond the last pixel.
    __device__ __forceinline__ int64 locate(unsigned pixel, int planes) const {
        const unsigned image = pixel / (unsigned)out_pixels;
        return image < images ? (int64)image * planes * out_pixels + (pixel - image * out_pixels) : -1;
    }
};

struct SharedState {
    uint64 full_pixels[TEAMS][STAGES], empty_pixels[TEAMS][STAGES];
    uint64 full_weights[WEIGHT_STAGES], empty_weights[WEIGHT_STAGES];
};

// A tile, and where its weights are in shared memory. Tiles of the same filters follow each other where weights stay,
// tiles of the same pixels where they do not.
struct Tile {
    int stretch, filter_tile;
    int loads = 0;  // of other filters' weights, so far

    __device__ __forceinline__ Tile(int tile, const Sizes& s)
        : stretch(RESIDENT ? tile % s.stretches : tile / s.filter_tiles),
          filter_tile(RESIDENT ? tile / s.stretches : tile % s.filter_tiles) {}
    // Whether the next one has other weights.
    __device__ __forceinline__ bool is_last(const Sizes& s) const { return !RESIDENT || stretch + 1 == s.stretches; }
    __device__ __forceinline__ void advance(const Sizes& s) {
        if (++(RESIDENT ? stretch : filter_tile) < (RESIDENT ? s.stretches : s.filter_tiles)) return;
        (RESIDENT ? stretch : filter_tile) = 0, ++(RESIDENT ? filter_tile : stretch), ++loads;
    }
};

// Place of a chunk's weights in shared memory and how often it was filled before; `unit` counts a team's chunks.
__device__ __forceinline__ int weight_slot(int team, int unit, int chunk) {
    return RESIDENT ? chunk : unit % TEAM_WEIGHT_STAGES + (JOINT ? team * TEAM_WEIGHT_STAGES : 0);
}
__device__ __forceinline__ int weight_round(int unit, const Tile& tile) {
    return RESIDENT ? tile.loads : unit / TEAM_WEIGHT_STAGES;
}

struct Pointwise {
    const Sizes& s;
    float* const pixels;   // stages
    char* const weights;   // stages
    SharedState& shared;
    const int first, last;  // tiles

    __device__ __forceinline__ float* stages(int team) const { return pixels + team * STAGES * STAGE_FLOATS; }
};
