// The epilogue of fp16x3_winograd: both consumer warpgroups transform their sums back, add up and write together.
#pragma once

#include "common/at_least.cuh"
#include "winograd/tiles.cuh"

// A pass is 32 adjacent outputs of 16 filters. A warp and the warp of the other warpgroup with the same filters do it
// together: each stores its points' part of all of them to staging memory, and adds and writes eight filters.
constexpr int PASS_CELLS = 32 / OUTPUTS, PASSES = CELLS / PASS_CELLS;
constexpr int OTHER_GROUP = WEIGHT_STAGES * WEIGHT_STAGE_BYTES / 4;  // floats from warpgroup 0's staging to 1's
static_assert(CELLS % PASS_CELLS == 0);

// Barriers 4 to 7 are of warp pairs, 8 of all consumers.
__device__ __forceinline__ void consumers_barrier() { named_barrier<8, CONSUMERS>(); }
__device__ __forceinline__ void pair_barrier(int warp) { named_barrier<64>(4 + warp); }

// The contribution of a warpgroup's points to the outputs of a cell. i: the index of the cell's sum for each point. The
// last two points of a warpgroup are a pair. Before them come 0 or infinity (KW 3), or both of these, or the pair 1,
// -1.
__device__ __forceinline__ void contribute(int warpgroup, const Sums& sums, int i, float* to) {
    const float point = warpgroup ? pair_point(PAIRS - 1) : pair_point(0), square = point * point;
    const float plus = sums[GROUP_POINTS - 2][i], minus = sums[GROUP_POINTS - 1][i];
    const float even = plus + minus, odd = point * (plus - minus);
    if (KW == 3) {
        to[0] = warpgroup ? even : even + sums[0][i], to[1] = odd, to[2] = square * even;
        to[3] = warpgroup ? fmaf(square, odd, sums[0][i]) : square * odd;
    } else {
        const float first = sums[0][i], second = sums[1][i], ones = first + second, others = first - second;
        to[0] = even + (warpgroup ? ones : first), to[1] = odd + (warpgroup ? others : 0.0f);
        to[2] = fmaf(square, even, warpgroup ? ones : 0.0f), to[3] = fmaf(square, odd, warpgroup ? others : second);
    }
}
static_assert(KW == 3 || pair_point(1) == 1.0f);

// Finds where the outputs of a tile's cells lie. Called by the whole warpgroup.
__device__ __forceinline__ void locate(const Geometry& g, int first_cell, CellOutputs* outputs, int warpgroup,
                                       int thread) {
    warpgroup_barrier(warpgroup);
    if (thread < CELLS) {
        int count;
        const Pixel at = g.pixel(first_cell + thread, count);
        const int64 first = (int64)at.image * g.p.output_planes * g.p.out_pixels + at.pixel;
        outputs[thread].packed = count > 0 ? first * 8 + count : 0;
    }
    warpgroup_barrier(warpgroup);
}

// Overwrites outputs of eight filters by plain sums. Bit i of `pixels`: whether those of a lane's pixel in pass i are.
// Not inlined: it is rare, and at this point the tile's sums have left their registers.
__device__ __noinline__ void write_again(const Output out, const Geometry g, int first_cell, int first,
                                         unsigned pixels) {
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int pass = 0; pass < PASSES; ++pass, pixels >>= 1) {
        int count;
        Pixel at = g.pixel(first_cell + pass * PASS_CELLS + lane / OUTPUTS, count);
        at.pixel += lane % OUTPUTS;
        write_plain(out, pixels & 1 ? 0xff : 0, at, first, 1);
    }
}

// Computes the activation of eight filters' outputs that their warp has written without it: for 5x5, whose sums leave no
// registers for it.
__device__ __noinline__ void activate_written(const Output out, const Geometry g, int first_cell, int first) {
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int pass = 0; pass < PASSES; ++pass) {
        int count;
        Pixel at = g.pixel(first_cell + pass * PASS_CELLS + lane / OUTPUTS, count);
        const int limit = lane % OUTPUTS < count ? out.filters_from(first, at) : 0;
        at.pixel += lane % OUTPUTS;
        float* const to = out.to + out.index(at, first);
        float values[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) values[i] = i < limit ? to[(int64)i * g.p.out_pixels] : 0.0f;
        activate(values, out.activation);
#pragma unroll
        for (int i = 0; i < 8; ++i)
            if (i < limit) to[(int64)i * g.p.out_pixels] = values[i];
    }
}

// The largest exponent of a tile's products, of the eight filters that a thread's warp writes, and whether operands are
// suspect; NO_DOUBT where all products are 0. It takes one register, as a scale (common/fp16.cuh).
struct Known {
    int scale = scale_of(NO_DOUBT, false);

    // other: of further chunks.
    __device__ __forceinline__ void include(int other) {
        scale = max(scale, other & ~SUSPECT_BIT) | (scale | other) & SUSPECT_BIT;
    }
    __device__ __forceinline__ void include(const int (&filter_scales)[2], int input_scale, int warpgroup) {
        const int own = warpgroup ? filter_scales[1] : filter_scales[0];
        include((own & ~SUSPECT_BIT) + input_scale | (filter_scales[0] | filter_scales[1]) & SUSPECT_BIT);
    }
};

// A pixel is wrong where eight filters' outputs together are small. They do not all happen to be, so its inputs are:
// - compared with those of its cell: the outputs are what rounding left of numbers that they do not read
// - compared with those of the tile, which share a scale: FP16 has lost bits of them
constexpr float LEAST_OF_CELL = 0x1p-5f;
constexpr int LEAST_OF_TILE = 13;  // times the root of the number of products, and the power of two of a product

// Whether a lane's pixels are wrong or not finite: bit i for pass i. totals: of the magnitudes of their outputs.
// exponent: of the tile's products. products: of an output.
__device__ __forceinline__ unsigned wrong_pixels(const float (&totals)[PASSES], int exponent, int products) {
    const float of_tile = power_of_two(clamp(exponent + LEAST_OF_TILE, -126, 127)) * sqrtf(products);
    const float least = exponent > NO_DOUBT ? of_tile / LEAST_OF_CELL : 0.0f;
    float most[PASSES];
#pragma unroll
    for (int pass = 0; pass < PASSES; ++pass) most[pass] = fmaxf(totals[pass], least);
#pragma unroll
    for (int by = 1; by < OUTPUTS; by *= 2)
#pragma unroll
        for (int pass = 0; pass < PASSES; ++pass)
            most[pass] = fmaxf(most[pass], __shfl_xor_sync(~0u, most[pass], by));
    unsigned wrong = 0;
#pragma unroll
    for (int pass = 0; pass < PASSES; ++pass)  // Inf less Inf is NaN
        if (!(fmaf(most[pass], -LEAST_OF_CELL, totals[pass]) >= 0.0f)) wrong |= 1u << pass;
    return wrong;
}

// Suspect operands may spoil the output of one filter alone. It is then so much smaller than the part of it that
// warpgroup 0 has of some pixel of the warp. That of one pixel may be small by chance.
constexpr float LEAST_LEFT = 0x1p-6f;

// Whether the output of a filter may be wrong, of `count` filters of a lane's pixel, whose parts are in `column`.
// exponent: of the tile's products. Called by the whole warp.
__device__ __forceinline__ bool is_in_doubt(const float* column, int exponent, int count) {
    bool found = false;
#pragma unroll 1
    for (int i = 0; i < min(count, 8); ++i, column += STAGING_ROW) {
        const unsigned most = __reduce_max_sync(~0u, finite_magnitude(column[0]));
        const float least = fmaxf(LEAST_LEFT * __uint_as_float(most), least_trusted(exponent));
        found |= fabsf(column[0] + column[OTHER_GROUP]) < least;
    }
    return found;
}

// Writes a tile. Called by both warpgroups. staging: a stage of warpgroup 0's weights that is no longer in use.
// function: out.activation, or what stands for it.
template <class Function>
__device__ __forceinline__ void write(const Output& out, const Geometry& g, int first_cell, int first_filter,
                                      const Sums& sums, Shared& shared, const Known& known, float* staging,
                                      int warpgroup, const Function& function) {
    locate(g, first_cell, shared.outputs[warpgroup], warpgroup, thread_number() % WARPGROUP);
    // Computed where it is needed: as long as there are sums, registers are scarce.
    const auto exponent = [&] { return exponent_of(__reduce_max_sync(~0u, known.scale)); };
    const bool suspect = __any_sync(~0u, is_suspect(known.scale));
    float totals[PASSES];
    unsigned exist = 0;  // bit i: whether the pixel of pass i does
#pragma unroll
    for (int pass = 0; pass < PASSES; ++pass) {
        const int thread = thread_number() % WARPGROUP;
        const int lane = thread % 32, warp = thread / 32, in_tile = warp * 16 + warpgroup * 8;
        const int first = first_filter + in_tile, filters = g.p.filters - first;
        if (pass == 0 && lane < 8)
            shared.bias[in_tile + lane] = out.bias && lane < filters ? out.bias[first + lane] : 0.0f;
        float* const warp_staging = staging + warp * 16 * STAGING_ROW;
        float* const mine =
            warp_staging + warpgroup * OTHER_GROUP + lane / 4 * STAGING_ROW + lane % 4 * 2 * OUTPUTS;
        const float* const wanted = warp_staging + warpgroup * 8 * STAGING_ROW + lane;
        pair_barrier(warp);
#pragma unroll
        for (int i = pass * PASS_CELLS / 2; i < (pass + 1) * PASS_CELLS / 2; i += 2) {  // a filter's two cells
            __align__(16) float made[2 * OUTPUTS];
#pragma unroll
            for (int cell = 0; cell < 2; ++cell)
                contribute(warpgroup, sums, i + cell, made + cell * OUTPUTS);
            float* const to = mine + i % 4 / 2 * 8 * STAGING_ROW + (i / 4 * 8 - pass * PASS_CELLS) * OUTPUTS;
#pragma unroll
            for (int j = 0; j < 2 * OUTPUTS; j += 4)
                *reinterpret_cast<float4*>(to + j) = make_float4(made[j], made[j + 1], made[j + 2], made[j + 3]);
        }
        const int cell = pass * PASS_CELLS + lane / OUTPUTS;
        const CellOutputs at = shared.outputs[warpgroup][cell];
        const int limit = lane % OUTPUTS < at.count() ? filters : 0;
        float* to = out.to + at.first() + (int64)first * g.p.out_pixels + lane % OUTPUTS;
        pair_barrier(warp);
        float values[8];  // the bias first, sixteen bytes at a time
#pragma unroll
        for (int i = 0; i < 8; i += 4) {
            const float4 four = *reinterpret_cast<const float4*>(shared.bias + in_tile + i);
            values[i] = four.x, values[i + 1] = four.y, values[i + 2] = four.z, values[i + 3] = four.w;
        }
        if (limit > 0) exist |= 1u << pass;
        totals[pass] = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const float value = wanted[i * STAGING_ROW] + wanted[OTHER_GROUP + i * STAGING_ROW];
            values[i] += value;
            totals[pass] += fabsf(value);
        }
        activate(values, function);
#pragma unroll
        for (int i = 0; i < 8; ++i, to += g.p.out_pixels)
            if (i < limit) *to = values[i];
        if (suspect && is_in_doubt(wanted, exponent(), filters)) totals[pass] = __int_as_float(0x7fc00000);
    }
    const unsigned wrong = exist & wrong_pixels(totals, exponent(), g.p.channels * TAPS);
    const int first = first_filter + thread_number() % WARPGROUP / 32 * 16 + warpgroup * 8;
    if (KW == 5 && !AtLeast::is(out.activation)) activate_written(out, g, first_cell, first);
    if (__any_sync(~0u, wrong != 0)) write_again(out, g, first_cell, first, wrong);
    fence_async_shared();
    consumers_barrier();  // from here on weights may be copied to the staging memory again
}
