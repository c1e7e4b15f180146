// Shared by the parts of fp16x3_pointwise: sizes, tiles, and what lies where in shared memory.
#pragma once

#define KH 1
#define KW 1
#define FACTORS  // of filters, not their exponents
#define BLOCK_SUMS (TEAMS * 64 * FILTERS)
#define BLOCK_FLAGS TEAMS
#include "common/weight_packing.cuh"

constexpr int ALL_THREADS = (TEAMS + 1) * 128;
constexpr int COPIER_REGISTERS = TEAMS == 3 ? PLANE ? 32 : 56 : SHIFTED || SPLIT_LAST > 1 && PLANE ? 56 : 40;
constexpr int MULTIPLIER_REGISTERS = TEAMS == 3 ? PLANE ? 160 : 152 : SHIFTED || SPLIT_LAST > 1 && PLANE ? 224 : 232;
constexpr int TEAM_TILE = 64;                   // pixels of a team
constexpr int TILE_TEAMS = JOINT ? 1 : TEAMS;  // with pixels of their own
constexpr int GRAIN = SHIFTED ? SHIFTED : 1;
static_assert(SHIFTED == 0 || SHIFTED % 4 == 0 && 32 % SHIFTED == 0, "sixteen bytes are written at once");
constexpr int OWN_PIXELS = TEAM_TILE - (GRAIN - 1);  // from a team's pixels to the next one's, where SHIFTED
// Floats of a channel in shared memory, and of a filter's sums on the way to the output: fragments are read without
// bank conflicts. Images lie as in global memory.
constexpr int PITCH = PLANE ? PLANE : 68;
constexpr int STAGE_FLOATS = CHANNELS * PITCH;  // of a warpgroup
constexpr int WEIGHT_STAGE = ROW_BYTES + CHANNELS * 4 + BF * 4;  // with the channels' scales and the filters' factors
constexpr int SUMS = BF / 2;
constexpr bool SINGLE = RESIDENT && WEIGHT_STAGES == 1;  // all channels in a chunk, whose products are the sums
constexpr int STRIDE = JOINT ? TEAMS : 1;                         // from a team's chunk to its next one
constexpr int TEAM_WEIGHT_STAGES = WEIGHT_STAGES / STRIDE;        // where weights do not stay: for each team its own
constexpr int WEIGHT_USERS = (JOINT ? 1 : TEAMS) * (GROUP / 32);  // warps

// Of a tile that a block begins.
__device__ __forceinline__ int first_chunk(int team) { return JOINT ? team : 0; }

// Of a thread that multiplies: the first of its two pixels in its team's 64, and how far on the other one is. Side by
// side where both are read at once, else so that a warp's lie in all banks: where PLANE is odd, four lanes' channels
// are an odd multiple of two banks apart, and rows begin in two banks of each eight.
__device__ __forceinline__ int first_pixel_of(int thread) {
    const int warp = thread / 32, row = thread % 32 / 4;
    return PLANE ? warp * 2 + row / 2 * 8 + row % 2 : warp * 16 + row * (SHIFTED ? 1 : 2);
}
constexpr int OTHER_PIXEL = PLANE ? 32 : SHIFTED ? 8 : 1;
static_assert(PLANE == 0 || PLANE > 32 && PLANE <= TEAM_TILE, "a thread's other pixel alone may be missing");
// Whether there is the other one.
__device__ __forceinline__ bool has_other(int first_pixel) { return PLANE == 0 || first_pixel + OTHER_PIXEL < PLANE; }

// Read anew each time, so that nothing that follows from it takes a register meanwhile.
__device__ __forceinline__ unsigned own_thread() {
    unsigned thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

// Of a block that splits its own weights: no kernel ahead has waited for the input, and so each thread does, when
// `known` is, which is not 0. Not sooner may the next kernel begin.
__device__ __forceinline__ void wait_and_let_next_follow(uint64 known) {
    wait_for_kernel_ahead(known);
    launch_dependents();
}

// How many floats an element is off where 128 bytes begin.
__device__ __forceinline__ unsigned offset_of(const float* element) { return (unsigned)(uint64)element / 4 % 32; }

// Sizes, by the names that plain_sum wants, and what there is of tiles.
struct Sizes {
    const int channels, height, width, filters, pad_h, pad_w, out_w, out_pixels;
    unsigned images;
    int chunks, stretches, filter_tiles;  // a stretch: the pixels of a tile
    unsigned rows;                        // of an image, each a team's pixels, where SHIFTED
};

static_assert(RESIDENT || STRIDED, "tiles of the same pixels follow each other where weights do not stay");
static_assert(SPLIT_LAST == 1 || !RESIDENT && !JOINT, "teams go through all of a part's chunks, with weights for each");
static_assert(RESIDENT || TEAM_WEIGHT_STAGES == STAGES, "a chunk's pixels and weights have the same turn");

// The turn of a team's chunk among the places in shared memory, counted on: a remainder would take ten instructions.
struct Turn {
    int slot = 0, parity = 0;  // parity: of how often all of them have been used

    __device__ __forceinline__ void advance() {
        slot = slot + 1 < STAGES ? slot + 1 : 0;
        parity ^= slot == 0;
    }
};

struct SharedState {
    uint64 full_pixels[TEAMS][STAGES], empty_pixels[TEAMS][STAGES];
    uint64 full_weights[WEIGHT_STAGES], empty_weights[WEIGHT_STAGES];
    // Read anew each time, as nothing here may take a register for long.
    volatile int tiles;            // of the block
    // Where SPLIT_LAST: which of the block's tiles it has a part of, and that part's chunks.
    volatile int partial, begin, end;
    volatile unsigned reciprocal;  // times 2^32, of the pixels of an image, or its rows where SHIFTED
};

// A tile, and where its weights are in shared memory. Where STRIDED, tiles of the same pixels follow each other and all
// blocks work side by side: what they read and write at a time lies together in memory. Else tiles of the same filters
// do, of which a block has a stretch of its own.
struct Tile {
    int stretch, filter_tile;
    int loads = 0;  // of other filters' weights, so far, where these stay
    int count = 0;  // of the block's tiles before

    __device__ __forceinline__ Tile(int tile, const Sizes& s)
        : stretch(STRIDED ? tile / s.filter_tiles : tile % s.stretches),
          filter_tile(STRIDED ? tile % s.filter_tiles : tile / s.stretches) {}
    __device__ __forceinline__ void move_to(int tile, const Sizes& s) {
        const Tile there(tile, s);
        stretch = there.stretch, filter_tile = there.filter_tile;
    }
    // Whether the next one has other weights.
    __device__ __forceinline__ bool is_last(const Sizes& s) const {
        return !RESIDENT || !STRIDED && stretch + 1 == s.stretches;
    }
    __device__ __forceinline__ void advance(const Sizes& s) {
        ++count;
        if (STRIDED) {
            move_to(stretch * s.filter_tiles + filter_tile + gridDim.x, s);
        } else if (++stretch == s.stretches) {
            stretch = 0, ++filter_tile, ++loads;
        }
    }
    // Which of all teams' pixels a team's are.
    __device__ __forceinline__ unsigned row(int team) const { return stretch * TILE_TEAMS + (JOINT ? 0 : team); }
};

// Place of a chunk's weights in shared memory and how often it was filled before; `unit` counts a team's chunks.
__device__ __forceinline__ int weight_slot(int team, int unit, int chunk) {
    return RESIDENT ? chunk : unit % TEAM_WEIGHT_STAGES + (JOINT ? team * TEAM_WEIGHT_STAGES : 0);
}
__device__ __forceinline__ int weight_round(int unit, const Tile& tile) {
    return RESIDENT ? tile.loads : unit / TEAM_WEIGHT_STAGES;
}

// Tiles of the last round, which leaves blocks idle, are split by chunks: SPLIT_LAST blocks have a part each of one.
// Who has its first chunks computes them after all else, and adds what the others have computed before all else.
struct LastRound {
    const int rounds, part;  // whole tiles of a block before; the block's part
    const bool takes_part;

    __device__ __forceinline__ explicit LastRound(const Sizes& s)
        : rounds(s.stretches * s.filter_tiles / (int)gridDim.x), part(blockIdx.x % SPLIT_LAST),
          takes_part(rounds * gridDim.x + blockIdx.x / SPLIT_LAST < s.stretches * s.filter_tiles) {}
    // Which of the block's tiles it has a part of.
    __device__ __forceinline__ int partial() const { return !takes_part ? -1 : part > 0 ? 0 : rounds; }
    // The block's tile of that number.
    __device__ __forceinline__ int tile_of(int count, int partial) const {
        return count == partial ? rounds * gridDim.x + blockIdx.x / SPLIT_LAST
                                : (count - (partial == 0 && part > 0)) * gridDim.x + blockIdx.x;
    }
    __device__ __forceinline__ int chunk_of(int part, const Sizes& s) const { return s.chunks * part / SPLIT_LAST; }
};

struct Pointwise {
    const Sizes& s;
    const float* const input;
    float* const pixels;   // stages
    char* const weights;   // stages
    SharedState& shared;
    const int first;  // of the block's tiles

    __device__ __forceinline__ Tile first_tile() const { return Tile(first, s); }
    __device__ __forceinline__ void advance(Tile& tile) const {
        tile.advance(s);
        if (SPLIT_LAST > 1) tile.move_to(LastRound(s).tile_of(tile.count, shared.partial), s);
    }
    // Of a tile, those that the block and team compute; each STRIDE-th.
    __device__ __forceinline__ int begin_chunk(const Tile& tile, int team) const {
        return SPLIT_LAST > 1 && tile.count == shared.partial ? shared.begin : first_chunk(team);
    }
    __device__ __forceinline__ int end_chunk(const Tile& tile) const {
        return SPLIT_LAST > 1 && tile.count == shared.partial ? shared.end : s.chunks;
    }

    // The image of a pixel, and its place there.
    struct Place {
        unsigned image, pixel;
        // Offset in the elements of an array with `planes` an image; -1 beyond the last pixel.
        __device__ __forceinline__ int64 offset(const Sizes& s, int planes) const {
            return image < s.images ? (int64)image * planes * s.out_pixels + pixel : -1;
        }
    };
    // Of a team's pixel; of an image there may be none.
    __device__ __forceinline__ Place locate(const Tile& tile, int team, int pixel) const {
        if (PLANE) return {tile.row(team), (unsigned)pixel};
        return divide(tile.row(team) * TEAM_TILE + pixel, s.out_pixels);
    }
    // Of the first of a team's pixels where SHIFTED: every OWN_PIXELS-th of an image, and for the last ones of an
    // image the first of its last TEAM_TILE pixels.
    __device__ __forceinline__ Place locate_row(const Tile& tile, int team) const {
        const Place row = divide(tile.row(team), s.rows);
        return {row.image, row.pixel + 1 < s.rows ? row.pixel * OWN_PIXELS : s.out_pixels - TEAM_TILE};
    }
    // By what `reciprocal` is of.
    __device__ __forceinline__ Place divide(unsigned x, unsigned by) const {
        const unsigned quotient = __umulhi(x, shared.reciprocal), rest = x - quotient * by;  // or one more
        return rest < by ? Place{quotient, rest} : Place{quotient + 1, rest - by};
    }

    __device__ __forceinline__ float* stages(int team) const { return pixels + team * STAGES * STAGE_FLOATS; }
};
