// The part of fp16x3_winograd that makes output of sums.
#pragma once

#include "winograd/tiles.cuh"

// A warp and the one with the same filters of the other warpgroup write together: each leaves what its positions
// make of 32 outputs side by side, for 16 filters, and writes eight filters.
constexpr int PASS_CELLS = 32 / OUTPUTS, PASSES = CELLS / PASS_CELLS;
constexpr int OTHER_GROUP = WEIGHT_STAGES * WEIGHT_STAGE_BYTES / 4;  // floats from what one leaves to the other's
static_assert(CELLS % PASS_CELLS == 0);

__device__ __forceinline__ void consumers_barrier() { asm volatile("bar.sync 8, %0;" ::"n"(CONSUMERS) : "memory"); }
__device__ __forceinline__ void pair_barrier(int warp) { asm volatile("bar.sync %0, 64;" ::"r"(4 + warp) : "memory"); }

// What a warpgroup's sums contribute to the outputs of a cell; `i`: the thread's sum of each position. The last two
// positions are a pair; the first 0 or infinity, or the first two both of these, or the pair 1, -1.
__device__ __forceinline__ void contribute(int group, const Sums& sums, int i, float* to) {
    const float point = group ? pair_point(PAIRS - 1) : pair_point(0), square = point * point;
    const float plus = sums[OWN - 2][i], minus = sums[OWN - 1][i], even = plus + minus, odd = point * (plus - minus);
    if (KW == 3) {
        to[0] = group ? even : even + sums[0][i], to[1] = odd, to[2] = square * even;
        to[3] = group ? fmaf(square, odd, sums[0][i]) : square * odd;
    } else {
        const float first = sums[0][i], second = sums[1][i], ones = first + second, others = first - second;
        to[0] = even + (group ? ones : first), to[1] = odd + (group ? others : 0.0f);
        to[2] = fmaf(square, even, group ? ones : 0.0f), to[3] = fmaf(square, odd, group ? others : second);
    }
}
static_assert(KW == 3 || pair_point(1) == 1.0f);

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

// Of the outputs that a lane wrote of a tile, those which are NaN, as plain sums. Rare; by now the tile's sums have
// left their registers.
__device__ __noinline__ void write_again(const Output out, const Geometry g, int first_cell, int first) {
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int pass = 0; pass < PASSES; ++pass) {
        int count;
        Pixel at = g.pixel(first_cell + pass * PASS_CELLS + lane / OUTPUTS, count);
        if (lane % OUTPUTS >= count) continue;
        at.pixel += lane % OUTPUTS;
        unsigned wanted = 0;
#pragma unroll 1
        for (int i = 0; i < 8 && first + i < g.p.filters; ++i)
            if (isnan(out.to[out.index(at, first + i)])) wanted |= 1u << i;
        write_plain(out, wanted, at, first, 1);
    }
}

// Writes a tile; both warpgroups together. `staging`: the first one's place of weights that it has done with.
__device__ __forceinline__ void write(const Output& out, const Geometry& g, int first_cell, int first_filter,
                                      const Sums& sums, Shared& shared, float* staging, int group) {
    locate(g, first_cell, shared.outputs[group], group, thread_number() % GROUP);
    const float least = out.least();
    float check = 0.0f;  // while all are finite
#pragma unroll
    for (int pass = 0; pass < PASSES; ++pass) {
        // Anew for each pass: while there are sums, registers are few.
        const int thread = thread_number() % GROUP;
        const int lane = thread % 32, warp = thread / 32, of_tile = warp * 16 + group * 8;
        const int first = first_filter + of_tile, filters = g.p.filters - first;
        if (pass == 0 && lane < 8)
            shared.bias[of_tile + lane] = out.bias && lane < filters ? out.bias[first + lane] : 0.0f;
        float* const of_warp = staging + warp * 16 * STAGED_ROW;
        float* const mine = of_warp + group * OTHER_GROUP + lane / 4 * STAGED_ROW + lane % 4 * 2 * OUTPUTS;
        const float* const wanted = of_warp + group * 8 * STAGED_ROW + lane;
        pair_barrier(warp);
#pragma unroll
        for (int i = pass * PASS_CELLS / 2; i < (pass + 1) * PASS_CELLS / 2; i += 2) {  // a filter's two cells
            __align__(16) float made[2 * OUTPUTS];
#pragma unroll
            for (int cell = 0; cell < 2; ++cell)
                contribute(group, sums, i + cell, made + cell * OUTPUTS);
            float* const to = mine + i % 4 / 2 * 8 * STAGED_ROW + (i / 4 * 8 - pass * PASS_CELLS) * OUTPUTS;
#pragma unroll
            for (int j = 0; j < 2 * OUTPUTS; j += 4)
                *reinterpret_cast<float4*>(to + j) = make_float4(made[j], made[j + 1], made[j + 2], made[j + 3]);
        }
        const int cell = pass * PASS_CELLS + lane / OUTPUTS;
        const CellOutputs at = shared.outputs[group][cell];
        const int limit = lane % OUTPUTS < at.count() ? filters : 0;
        float* to = out.to + at.first() + (int64)first * g.p.out_pixels + lane % OUTPUTS;
        pair_barrier(warp);
        float bias[8];  // sixteen bytes at a time
#pragma unroll
        for (int i = 0; i < 8; i += 4) {
            const float4 four = *reinterpret_cast<const float4*>(shared.bias + of_tile + i);
            bias[i] = four.x, bias[i + 1] = four.y, bias[i + 2] = four.z, bias[i + 3] = four.w;
        }
#pragma unroll
        for (int i = 0; i < 8; ++i, to += g.p.out_pixels) {
            const float value = wanted[i * STAGED_ROW] + wanted[OTHER_GROUP + i * STAGED_ROW];
            // NaN for Inf too: so an output shows later that it is to be written again.
            if (i < limit) *to = larger_or_nan(fmaf(value, 0.0f, value + bias[i]), least);
            check = fmaf(value, 0.0f, check);
        }
    }
    if (__any_sync(~0u, check != 0.0f))
        write_again(out, g, first_cell, first_filter + thread_number() % GROUP / 32 * 16 + group * 8);
    fence_async_shared();
    consumers_barrier();  // weights may come there again
}
