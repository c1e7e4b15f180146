// The block of fp16x3's main kernel: its warpgroups, its tile, and what lies in shared memory.
#pragma once

#include "common/divider.cuh"
#include "common/fp16_output.cuh"

constexpr int CONSUMERS = 2 * WARPGROUP;            // threads that multiply
constexpr int THREADS = CONSUMERS + 2 * WARPGROUP;  // and two warpgroups of producers
static_assert(ROWS == KH && DEPTHS == 1);
constexpr int BP = TILE_POSITIONS;
constexpr int POSITIONS = SLOTS * 128;                  // a tile and its halo, for a chunk in shared memory
constexpr int OCTET_BYTES = POSITIONS * 16;             // eight channels
constexpr int INPUT_PART = CHANNELS / 8 * OCTET_BYTES;  // high or low parts
constexpr int INPUT_STAGE = OPERAND_PARTS * INPUT_PART;
constexpr unsigned NOWHERE = 0xffffffffu;

constexpr int SUMS = BF * BP / CONSUMERS;  // a consumer thread's
typedef float Sums[SUMS];
typedef float Chain[SIDE_BY_SIDE ? 3 * SUMS : SUMS];  // the products of a chain, on their way to the sums

// The problem's sizes, and the flattened images: rows of `pitch` positions, image_rows rows an image. Neighbouring rows
// and images share the padding between them.
//
// PIECES: an image is cut into strips of columns. Each strip is flattened on its own, and shares no padding. Chunks
// of 16 channels are ordered by the pieces of the filter, those of its first piece ahead. The input of a chunk
// is shifted by the place of its piece in the filter. With a dilation each strip has the outputs of one phase
// (common/pieces.cuh).
struct Geometry {
    Problem p;
    int images, out_h, pitch, chunks, filter_tiles, units;
    Divider by_pitch, by_image_rows;
#if PIECES
    int strip_columns, pieces_in_row, channel_chunks;
    Axis rows, columns;
    Divider by_strips, by_row_phases, by_column_phases;
#endif

    // Positions from a tap to the one below it, and to the one on its right.
#if DILATED
    __device__ __forceinline__ int row_step() const { return p.geometry.dilation_h * pitch; }
    __device__ __forceinline__ int column_step() const { return p.geometry.dilation_w; }
#else
    __device__ __forceinline__ int row_step() const { return pitch; }
    __device__ __forceinline__ int column_step() const { return 1; }
#endif

    // A position's row and column within its image or strip, and the image.
    struct Place {
        unsigned image, y, x;
#if PIECES
        unsigned strip, row_phase, column_phase;
#endif
    };
    __device__ __forceinline__ Place place(int position) const {
        Place at;
        at.image = by_image_rows(by_pitch(position, at.x), at.y);
#if PIECES
        at.image = by_strips(by_column_phases(at.image, at.column_phase), at.strip);
        at.image = by_row_phases(at.image, at.row_phase);
#endif
        return at;
    }

    // The piece of the filter that a chunk belongs to, and the chunk's first channel.
    __device__ __forceinline__ int piece_of(int chunk) const {
#if PIECES
        return chunk / channel_chunks;
#else
        return 0;
#endif
    }
    __device__ __forceinline__ int first_channel(int chunk) const {
#if PIECES
        chunk -= piece_of(chunk) * channel_chunks;
#endif
        return chunk * CHANNELS;
    }
    // The row and column of the image that output (0, 0) reads through a piece's first tap; below 0 in the padding.
    struct Shift {
        int y, x;
    };
    __device__ __forceinline__ Shift shift_of(int piece) const {
#if PIECES
        const int y = rows.shift<KH>(piece / pieces_in_row), x = columns.shift<KW>(piece % pieces_in_row);
        return {y - p.pad_h, x - p.pad_w};
#else
        return {-p.pad_h, -p.pad_w};
#endif
    }
    // Byte offset of the first channel's input element at a position, or NOWHERE in the padding.
    __device__ __forceinline__ unsigned source(int position, const Shift& shift) const {
        const Place at = place(position);
#if PIECES
        const int y = rows.input(rows.output(at.y, at.row_phase)) + shift.y;
        const int x = columns.input(columns.output(at.x + at.strip * strip_columns, at.column_phase)) + shift.x;
        const bool inside = at.image < images && (unsigned)y < p.height && (unsigned)x < p.width;
#else
        const int y = at.y + shift.y, x = at.x + shift.x;
        const bool inside = at.image < images && y >= 0 && x >= 0;
#endif
        return inside ? (at.image * p.channels * p.height * p.width + y * p.width + x) * 4u : NOWHERE;
    }
    // The output pixel at a position.
    __device__ __forceinline__ Pixel locate(int position) const {
        const Place at = place(position);
        int y = at.y, x = at.x;
        bool exists = at.image < images;
#if PIECES
        exists = exists && x < strip_columns;
        y = rows.output(y, at.row_phase), x = columns.output(x + at.strip * strip_columns, at.column_phase);
#endif
        exists = exists && y < out_h && x < p.out_w;
        return {exists ? (int)at.image : -1, y * p.out_w + x};
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
    __align__(16) float channel_scales[2][2][CHANNELS];   // times the input's scale: the current chunk's, the next's
    __align__(16) unsigned maxima[2][2][WARPGROUP / 32];  // each warp's, double-buffered
    int scales[IN_STAGES];                                // each stage's input scale, in the format of filter scales
    unsigned sources[2][SLOTS][WARPGROUP];                // byte offsets of the positions that a thread loads
    Geometry geometry;                                    // the block's, for code that is rare
};
