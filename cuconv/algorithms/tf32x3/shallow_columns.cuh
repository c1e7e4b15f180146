// The operands of tf32x3_shallow: the elements of the input that a lane loads, the weights in shared memory, and the
// products of both. It uses the kernel's macros.
#pragma once

#include "tf32x3/mma.cuh"

constexpr int THREADS = 32 * WARPS;
constexpr int WINDOW = 3 + KERNEL_W;          // elements of a row that four neighbouring pixels see
constexpr int WINDOWS = ROWS * WINDOW;        // elements of a lane in its rows
constexpr int COUNT = WINDOWS + SINGLES * 4;  // elements of a lane
constexpr int ROW_SLOTS = ROWS * KERNEL_W;    // slots of a lane in its rows
constexpr int SLOTS = ROW_SLOTS + SINGLES;    // slots of a lane
constexpr int STEPS = (SLOTS + 1) / 2;        // mma depths
constexpr int TILES = FILTERS / 8;            // mma tiles of filters at a time
constexpr int LEFT = KERNEL_W / 2;            // columns of padding, where it is VECTOR
constexpr int SM_REGISTERS = 64 * 1024;
#if PRODUCTS == 3
typedef uint4 Fragment;  // a lane's of tile B: two slots' big parts, then their small parts
#else
typedef uint2 Fragment;
#endif
static_assert(PIXELS == 32, "eight rows of a fragment, each with four pixels");
static_assert(ADJACENT || POINTWISE, "only pixels of a 1x1 filter may be apart");

// The row of the input, (c, ky), and the position in X of a lane's slot.
struct Slot {
    int row, kx;

    __device__ __forceinline__ Slot(int slot, int lane) {
        const int single = (slot - ROW_SLOTS) * 4 + lane;
        row = slot < ROW_SLOTS ? slot / KERNEL_W * 4 + lane : ROWS * 4 + single / KERNEL_W;
        kx = slot < ROW_SLOTS ? slot % KERNEL_W : single % KERNEL_W;
    }
};

// The index among a lane's elements of the one that a slot has under a pixel, 0 to 3.
__device__ __forceinline__ constexpr int element(int slot, int pixel) {
    const int in_rows = slot / KERNEL_W * WINDOW + slot % KERNEL_W;
    return pixel + (slot < ROW_SLOTS ? in_rows : WINDOWS + (slot - ROW_SLOTS) * 4);
}

struct Problem {
    int channels, height, width, filters, pad_h, pad_w, out_w, out_pixels;
    int output_planes;  // from one image of the output to the next
};

// A lane's four pixels of a tile.
struct Pixels {
    const float* source[ADJACENT ? 1 : 4];  // the window's first element, or that of each pixel; null without a pixel
    int y, x;                               // row and column of the window's first element, perhaps in the padding
    int64 place;                            // offset of the first output that the lane writes; -1 where there is none

    __device__ __forceinline__ Pixels(unsigned tile, unsigned pixels, const float* input, const Problem& p) {
        const unsigned lane = threadIdx.x % 32, first = tile * PIXELS;
        const int plane = p.height * p.width;
#if ADJACENT
        const unsigned pixel = first + lane / 4 * 4, image = pixel / p.out_pixels;
        const unsigned within = pixel - image * p.out_pixels;
        const unsigned row = POINTWISE ? 0 : within / p.out_w;
        y = (int)row - p.pad_h, x = (int)(within - row * p.out_w) - p.pad_w;
        place = pixel < pixels ? (int64)image * p.output_planes * p.out_pixels + within : -1;
        source[0] = place < 0 ? nullptr : input + (int64)image * p.channels * plane + (int64)y * p.width + x;
#else
        const unsigned image = first / p.out_pixels, within = first - image * p.out_pixels;
        // The offset of a pixel of the tile in images of `planes` planes. A tile meets two images at most.
        const auto where = [&](int offset, int planes) -> int64 {
            const unsigned pixel = within + offset;
            const bool next = pixel >= p.out_pixels;
            return first + offset < pixels ? (int64)(image + next) * planes * plane + pixel - (next ? plane : 0) : -1;
        };
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int64 from = where(i * 8 + lane / 4, p.channels);
            source[i] = from < 0 ? nullptr : input + from;
        }
        place = where(lane % 4 * 8 + lane / 4, p.output_planes);
#endif
    }

    // Whether a row of the reduction exists and meets the input; sets its distance from the source.
    __device__ __forceinline__ bool reaches(int row, const Problem& p, int64& distance) const {
        const int ky = row % KERNEL_H;
        distance = row / KERNEL_H * ((int64)p.height * p.width) + ky * p.width;
        const bool exists = row < p.channels * KERNEL_H;
        return exists && (POINTWISE || (unsigned)(y + ky) < p.height);
    }

    // Loads a lane's elements: a window of each of its rows, then four pixels of each single position.
    __device__ __forceinline__ void load(float (&values)[COUNT], const Problem& p) const {
        int64 distance;
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const bool exists = reaches(r * 4 + threadIdx.x % 4, p, distance);
#if ADJACENT
            const bool inside = exists && source[0];
            const float* const from = source[0] + distance;
            float* const window = values + r * WINDOW;
#if VECTOR
            const float4 middle = inside ? __ldg(reinterpret_cast<const float4*>(from + LEFT)) : float4{};
            window[LEFT] = middle.x, window[LEFT + 1] = middle.y;
            window[LEFT + 2] = middle.z, window[LEFT + 3] = middle.w;
#endif
#pragma unroll
            for (int i = 0; i < WINDOW; ++i)
                if (!VECTOR || i < LEFT || i >= LEFT + 4)
                    window[i] = inside && (unsigned)(x + i) < p.width ? __ldg(from + i) : 0.0f;
#else
#pragma unroll
            for (int i = 0; i < 4; ++i) values[r * 4 + i] = exists && source[i] ? __ldg(source[i] + distance) : 0.0f;
#endif
        }
#pragma unroll
        for (int single = 0; single < SINGLES; ++single) {
            const Slot slot(ROW_SLOTS + single, threadIdx.x % 4);
            const bool inside = reaches(slot.row, p, distance) && source[0];
            const float* const from = source[0] + distance + slot.kx;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const bool meets = inside && (unsigned)(x + slot.kx + i) < p.width;
                values[WINDOWS + single * 4 + i] = meets ? __ldg(from + i) : 0.0f;
            }
        }
    }
};

// A pixel whose sums of several filters together are at least LEAST_TOTAL in magnitude has an input of at least 2^-74 if
// no weight but 0 is outside [LEAST_WEIGHT, 1 / LEAST_WEIGHT]. That input's products are then at least LEAST_RIGHT.
constexpr float LEAST_TOTAL = 0x1p-40f, LEAST_WEIGHT = 0x1p-22f;

// Decomposes the weights of `tiles` times eight filters into fragments of tile B: [tile][step][lane]. Returns whether
// this thread has met one outside of these bounds.
__device__ __forceinline__ bool decompose_weights(Fragment* fragments, const float* weight, int tiles, int filter_0,
                                                  const Problem& p) {
    const int rows = p.channels * KERNEL_H;
    bool unusual = false;
#pragma unroll 4
    for (int i = threadIdx.x; i < tiles * STEPS * 32; i += THREADS) {
        const int lane = i % 32, step = i / 32 % STEPS, filter = filter_0 + i / (32 * STEPS) * 8 + lane / 4;
        unsigned big[2], small[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const Slot slot(step * 2 + half, lane % 4);
            const bool exists = step * 2 + half < SLOTS && slot.row < rows && filter < p.filters;
            const int64 place = ((int64)filter * rows + slot.row) * KERNEL_W + slot.kx;
            const float w = exists ? weight[place] : 0.0f;
            unusual |= w != 0.0f && !(fabsf(w) >= LEAST_WEIGHT && fabsf(w) <= 1 / LEAST_WEIGHT);
            decompose(w, big[half], small[half]);
        }
#if PRODUCTS == 3
        fragments[i] = {big[0], big[1], small[0], small[1]};
#else
        fragments[i] = {big[0], big[1]};
#endif
    }
    return unusual;
}

// A lane's columns in parts, as fragments of tile A.
struct Columns {
    unsigned big[COUNT], small[COUNT];

    __device__ __forceinline__ explicit Columns(const float (&values)[COUNT]) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) decompose(values[i], big[i], small[i]);
    }

    // A fragment of tile A: pixels 2 * half and 2 * half + 1 of each lane, by the two slots of a step.
    __device__ __forceinline__ static void fragment(unsigned (&a)[4], const unsigned (&part)[COUNT], int half,
                                                    int step) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int slot = step * 2 + i / 2;
            a[i] = slot < SLOTS ? part[element(slot, half * 2 + i % 2)] : 0u;
        }
    }

    // sum = columns * weights of FILTERS filters. The small terms come first, while the chain is small itself and
    // truncation by the tensor cores costs least.
    __device__ __forceinline__ void multiply(float (&sum)[2][TILES][4], const Fragment* fragments) const {
#pragma unroll
        for (int j = 0; j < TILES; ++j) {
            Fragment b[STEPS];
#pragma unroll
            for (int step = 0; step < STEPS; ++step) b[step] = fragments[(j * STEPS + step) * 32];
#pragma unroll
            for (int half = 0; half < 2; ++half)
#pragma unroll
                for (int i = 0; i < 4; ++i) sum[half][j][i] = 0.0f;
#if PRODUCTS == 3
#pragma unroll
            for (int step = 0; step < STEPS; ++step)
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    unsigned a_big[4], a_small[4];
                    fragment(a_big, big, half, step), fragment(a_small, small, half, step);
                    mma(sum[half][j], a_small, {b[step].x, b[step].y});
                    mma(sum[half][j], a_big, {b[step].z, b[step].w});
                }
#endif
#pragma unroll
            for (int step = 0; step < STEPS; ++step)
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    unsigned a_big[4];
                    fragment(a_big, big, half, step);
                    mma(sum[half][j], a_big, {b[step].x, b[step].y});
                }
        }
    }
};
