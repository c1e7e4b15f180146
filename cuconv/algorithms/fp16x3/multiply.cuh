// Filters as the tensor cores' rows and positions as their columns: fastest where filters fill multiples of 64. A
// warpgroup has 64 filters x 128 positions, of a tile of 64 x 256 or 128 x 128.
#pragma once

#define WGMMA_N 128
#include "common/wgmma.cuh"
#include "fp16x3/tiles.cuh"

static_assert(SUMS == WGMMA_SUMS && BF % 64 == 0 && BP % 128 == 0);
constexpr int STAGING_ROW = 40;                 // floats: 32 positions, and a pad: rows are 8 banks apart
constexpr int WARP_STAGING = 16 * STAGING_ROW;  // floats of a warp
constexpr int STAGING = 4 * WARP_STAGING;       // floats of a warpgroup

// Where a warpgroup's part of the tile begins.
__device__ __forceinline__ int first_filter(int warpgroup) { return BF == 128 ? warpgroup * 64 : 0; }
__device__ __forceinline__ int first_position(int warpgroup) { return BF == 128 ? 0 : warpgroup * 128; }

// chain = the products of one wgmma depth, or chain += where `keep`. Start addresses are in units of 16 bytes.
__device__ __forceinline__ void multiply_step(Chain& chain, unsigned input, unsigned weights, int keep) {
    wgmma_f16(chain, weights, input, keep);
}

#include "common/fp16_rescale.cuh"

// Writes a warpgroup's part of a tile through its warps' staging memory, 32 positions at a time.
__device__ __forceinline__ void write(const Output& out, const Geometry& g, const WorkUnit& tile, const Sums& sums,
                                      float* staging, int warpgroup, int thread) {
    const int lane = thread % 32, first = tile.filter_tile * BF + first_filter(warpgroup) + thread / 32 * 16;
    const float lane_bias = out.bias && lane < min(16, g.p.filters - first) ? out.bias[first + lane] : 0.0f;
    staging += thread / 32 * WARP_STAGING;
    const auto pixel_of = [&](int pass) {
        return g.locate(tile.spatial_tile * BP + first_position(warpgroup) + pass * 32 + lane);
    };
    unsigned not_finite[4] = {};
#pragma unroll
    for (int pass = 0; pass < 4; ++pass) {
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 16; i += 2)
            *reinterpret_cast<float2*>(staging + (lane / 4 + i % 4 / 2 * 8) * STAGING_ROW + i / 4 * 8 + lane % 4 * 2) =
                make_float2(sums[pass * 16 + i], sums[pass * 16 + i + 1]);
        __syncwarp();
        const Pixel at = pixel_of(pass);
        const int filters = out.filters_from(first, at);
        float* to = out.to + out.index(at, first);
#if RESIDUAL
        float more[16];
#pragma unroll
        for (int i = 0; i < 16; ++i) more[i] = out.residual_at(to + (int64)i * g.p.out_pixels, i < filters);
#endif
        float outputs[16];
#pragma unroll
        for (int i = 0; i < 16; ++i) {
            const float value = staging[i * STAGING_ROW + lane];
            outputs[i] = value + __shfl_sync(~0u, lane_bias, i) WITH_RESIDUAL(+more[i]);
            if (!isfinite(value)) not_finite[pass] |= 1u << i;
        }
        activate(outputs, out.activation);
#pragma unroll
        for (int i = 0; i < 16; ++i, to += g.p.out_pixels)
            if (i < filters) *to = outputs[i];
    }
    if (__any_sync(~0u, not_finite[0] | not_finite[1] | not_finite[2] | not_finite[3]))
#pragma unroll
        for (int pass = 0; pass < 4; ++pass) write_plain(out, not_finite[pass], pixel_of(pass), first, 1);
}
