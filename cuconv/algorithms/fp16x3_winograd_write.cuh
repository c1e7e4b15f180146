// The part of fp16x3_winograd that makes output of sums.
#pragma once

#include "fp16x3_winograd_tiles.cuh"

// A warp and the one with the same filters of the other warpgroup write together: each leaves what its three positions
// make of 32 outputs side by side, for 16 filters, and writes eight filters.
constexpr int PASS_CELLS = 32 / OUTPUTS, PASSES = CELLS / PASS_CELLS;
constexpr int STAGED_ROW = OUTPUTS == 4 ? 36 : 48;             // floats: of what lanes write at once, no bank twice
constexpr int PAIR_STAGING = 2 * 16 * STAGED_ROW;              // floats
constexpr int STAGING_BYTES = GROUP / 32 * PAIR_STAGING * 4;
static_assert(CELLS % PASS_CELLS == 0);

__device__ __forceinline__ void pair_barrier(int warp) { asm volatile("bar.sync %0, 64;" ::"r"(4 + warp) : "memory"); }

// What a warpgroup's sums contribute to the outputs of a cell: of 0 or infinity, of a point and of its opposite.
__device__ __forceinline__ void contribute(int group, float alone, float plus, float minus, float* to) {
    const float point = group ? FAR : NEAR, even = plus + minus, odd = point * (plus - minus), square = point * point;
    to[0] = group ? even : even + alone;
    if (OUTPUTS == 4) to[1] = odd, to[2] = square * even;
    const float last = OUTPUTS == 4 ? square * odd : odd;
    to[OUTPUTS - 1] = group ? last + alone : last;
}

// Goes through a tile's cells.
struct Walk {
    const Geometry& g;
    int in_row, y, strip, image;

    __device__ __forceinline__ Walk(const Geometry& g, int cell) : g(g) {
        const int row = cell / g.pitch, of_strip = row / g.image_rows;
        in_row = cell - row * g.pitch, y = row - of_strip * g.image_rows;
        image = of_strip / g.strips, strip = of_strip - image * g.strips;
    }
    __device__ __forceinline__ void advance(int cells) {
        for (in_row += cells; in_row >= g.pitch; in_row -= g.pitch)
            if (++y == g.image_rows) {
                y = 0;
                if (++strip == g.strips) strip = 0, ++image;
            }
    }
    // The pixel of one of the cell's outputs.
    __device__ __forceinline__ Pixel pixel(int output) const {
        const int x = (strip * g.pitch + in_row) * OUTPUTS + output;
        return {image < g.images && y < g.out_h && x < g.p.out_w ? image : -1, y * g.p.out_w + x};
    }
};

// Writes a tile; both warpgroups together. `staging`: of the pair of warps.
__device__ __forceinline__ void write(const Output& out, const Geometry& g, int first_cell, int first_filter,
                                      const Sums& sums, float* staging, int group, int thread) {
    const int lane = thread % 32, warp = thread / 32;
    const int first = first_filter + warp * 16 + group * 8;
    const float lane_bias = out.bias && lane < min(8, g.p.filters - first) ? out.bias[first + lane] : 0.0f;
    const float least = out.least();
    float* const mine = staging + (group * 16 + lane / 4) * STAGED_ROW + lane % 4 * 2 * OUTPUTS;
    const float* const wanted = staging + group * 8 * STAGED_ROW + lane;
    Walk walk(g, first_cell + lane / OUTPUTS);
#pragma unroll
    for (int pass = 0; pass < PASSES; ++pass) {
        pair_barrier(warp);
#pragma unroll
        for (int i = pass * PASS_CELLS / 2; i < (pass + 1) * PASS_CELLS / 2; i += 2) {  // a filter's two cells
            __align__(16) float made[2 * OUTPUTS];
#pragma unroll
            for (int cell = 0; cell < 2; ++cell)
                contribute(group, sums[0][i + cell], sums[1][i + cell], sums[2][i + cell], made + cell * OUTPUTS);
            float* const to = mine + i % 4 / 2 * 8 * STAGED_ROW + (i / 4 * 8 - pass * PASS_CELLS) * OUTPUTS;
#pragma unroll
            for (int j = 0; j < 2 * OUTPUTS; j += 4)
                *reinterpret_cast<float4*>(to + j) = make_float4(made[j], made[j + 1], made[j + 2], made[j + 3]);
        }
        pair_barrier(warp);
        const Pixel at = walk.pixel(lane % OUTPUTS);
        const int filters = out.filters_from(first, at);
        float* to = out.to + out.index(at, first);
        unsigned not_finite = 0;
#pragma unroll
        for (int i = 0; i < 8; ++i, to += g.p.out_pixels) {
            const float value = wanted[i * STAGED_ROW] + wanted[(16 + i) * STAGED_ROW];
            const float biased = value + __shfl_sync(~0u, lane_bias, i);
            if (i < filters) *to = biased < least ? least : biased;  // a NaN stays
            if (!isfinite(value)) not_finite |= 1u << i;
        }
        if (__any_sync(~0u, not_finite)) write_plain(out, not_finite, at, first, 1);
        walk.advance(PASS_CELLS);
    }
}
