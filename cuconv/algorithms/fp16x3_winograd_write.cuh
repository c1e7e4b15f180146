// The part of fp16x3_winograd that makes output of sums.
#pragma once

#include "fp16x3_winograd_tiles.cuh"

// A warp and the one with the same filters of the other warpgroup write together: each leaves what its three positions
// make of 32 outputs side by side, for 16 filters, and writes eight filters.
constexpr int PASS_CELLS = 32 / OUTPUTS, PASSES = CELLS / PASS_CELLS;
constexpr int OTHER_GROUP = WEIGHT_STAGES * WEIGHT_STAGE_BYTES / 4;  // floats from what one leaves to the other's
static_assert(CELLS % PASS_CELLS == 0);

__device__ __forceinline__ void consumers_barrier() { asm volatile("bar.sync 8, %0;" ::"n"(CONSUMERS) : "memory"); }
__device__ __forceinline__ void pair_barrier(int warp) { asm volatile("bar.sync %0, 64;" ::"r"(4 + warp) : "memory"); }

// What a warpgroup's sums contribute to the outputs of a cell: of 0 or infinity, of a point and of its opposite.
__device__ __forceinline__ void contribute(int group, float alone, float plus, float minus, float* to) {
    const float point = group ? FAR : NEAR, even = plus + minus, odd = point * (plus - minus), square = point * point;
    to[0] = group ? even : even + alone;
    if (OUTPUTS == 4) to[1] = odd, to[2] = square * even;
    const float last = OUTPUTS == 4 ? square * odd : odd;
    to[OUTPUTS - 1] = group ? last + alone : last;
}

// Of a tile, for its cells; called by the whole warpgroup.
__device__ __forceinline__ void locate(const Geometry& g, int first_cell, CellOutputs* outputs, int group, int thread) {
    group_barrier(group);
    if (thread < CELLS) {
        int count;
        const Pixel at = g.pixel(first_cell + thread, count);
        const int64 first = (int64)at.image * g.p.filters * g.p.out_pixels + at.pixel;
        outputs[thread].packed = count > 0 ? first * 8 + count : 0;
    }
    group_barrier(group);
}

__device__ __forceinline__ float larger_or_nan(float a, float b) {
    float most;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(most) : "f"(a), "f"(b));
    return most;
}

// Of a lane's outputs of a pass, those which are not finite, as plain sums. Rare.
__device__ __noinline__ void write_again(const Output out, const Geometry g, const float* wanted, int cell, int output,
                                         int first) {
    unsigned not_finite = 0;
#pragma unroll 1
    for (int i = 0; i < 8; ++i)
        if (!isfinite(wanted[i * STAGED_ROW] + wanted[OTHER_GROUP + i * STAGED_ROW])) not_finite |= 1u << i;
    int count;
    Pixel at = g.pixel(cell, count);
    if (output >= count) at.image = -1;
    at.pixel += output;
    write_plain(out, not_finite, at, first, 1);
}

// Writes a tile; both warpgroups together. `staging`: the first one's place of weights that it has done with.
__device__ __forceinline__ void write(const Output& out, const Geometry& g, int first_cell, int first_filter,
                                      const Sums& sums, CellOutputs* outputs, float* staging, int group) {
    const int thread = thread_number() % GROUP;
    const int lane = thread % 32, warp = thread / 32, first = first_filter + warp * 16 + group * 8;
    locate(g, first_cell, outputs, group, thread);
    const int filters = g.p.filters - first;
    float bias[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) bias[i] = out.bias && i < filters ? out.bias[first + i] : 0.0f;
    const float least = out.least();
    staging += warp * 16 * STAGED_ROW;
    float* const mine = staging + group * OTHER_GROUP + lane / 4 * STAGED_ROW + lane % 4 * 2 * OUTPUTS;
    const float* const wanted = staging + group * 8 * STAGED_ROW + lane;
    float* const of_first = out.to + (int64)first * g.p.out_pixels + lane % OUTPUTS;
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
        const int cell = pass * PASS_CELLS + lane / OUTPUTS;
        const CellOutputs at = outputs[cell];
        const int limit = lane % OUTPUTS < at.count() ? filters : 0;
        float* to = of_first + at.first();
        pair_barrier(warp);
        float check = 0.0f;  // finite, all of them
#pragma unroll
        for (int i = 0; i < 8; ++i, to += g.p.out_pixels) {
            const float value = wanted[i * STAGED_ROW] + wanted[OTHER_GROUP + i * STAGED_ROW];
            if (i < limit) *to = larger_or_nan(value + bias[i], least);
            check = fmaf(value, 0.0f, check);
        }
        if (__any_sync(~0u, check != 0.0f)) write_again(out, g, wanted, first_cell + cell, lane % OUTPUTS, first);
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    consumers_barrier();  // weights may come there again
}
