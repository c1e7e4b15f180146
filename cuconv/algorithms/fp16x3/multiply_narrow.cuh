// Positions as the tensor cores' rows and filters as their columns: any multiple of 8, so that a layer of 96 or 48
// filters is not padded to a multiple of 64. Otherwise slower, for two reasons:
// - a thread has many filters, and reads a rescaling factor for each of them from shared memory
// - below 64 filters wgmma waits for shared memory, which delivers 64 positions for each instruction. In a small tile one
//   instruction therefore multiplies the high parts of positions by both parts of the filters, which lie SIDE_BY_SIDE
#pragma once

#define WGMMA_N FILTERS
#if SIDE_BY_SIDE
#define WGMMA_TWICE_8 16
#define WGMMA_TWICE_16 32
#define WGMMA_TWICE_24 48
#define WGMMA_TWICE_32 64
#define WGMMA_TWICE_40 80
#define WGMMA_TWICE_48 96
#define WGMMA_TWICE_56 112
#define WGMMA_2N WGMMA_PASTE(WGMMA_TWICE_, FILTERS)
#endif
#include "common/wgmma.cuh"
#include "fp16x3/tiles.cuh"

constexpr int GROUP_POSITIONS = BP / 2, GROUP_TILES = GROUP_POSITIONS / 64;  // what a warpgroup has
static_assert(SUMS == GROUP_TILES * WGMMA_SUMS && BF % 8 == 0 && SUMS <= 64);
constexpr int EPILOGUE_FILTERS = 32;                     // filters that pass through the staging memory at a time
constexpr int STAGING_ROW = 68;                          // floats: 64 positions, and a pad: rows are 4 banks apart
constexpr int STAGING = EPILOGUE_FILTERS * STAGING_ROW;  // floats of a warpgroup

// Where a warpgroup's part of the tile begins.
__device__ __forceinline__ int first_filter(int) { return 0; }
__device__ __forceinline__ int first_position(int warpgroup) { return warpgroup * GROUP_POSITIONS; }

// chain = the products of one wgmma depth, or chain += where `keep`. Start addresses are in units of 16 bytes.
__device__ __forceinline__ void multiply_step(Chain& chain, unsigned input, unsigned weights, int keep) {
#pragma unroll
    for (int tile = 0; tile < GROUP_TILES; ++tile)
        wgmma_f16(chain + tile * WGMMA_SUMS, input + tile * 64, weights, keep);
}
#if SIDE_BY_SIDE
// The same with both parts of the weights: high * high and high * low, in sums of their own, since an instruction of
// another shape must not add to the sums of one that is under way.
__device__ __forceinline__ void multiply_both(Chain& chain, unsigned input, unsigned weights, int keep) {
#pragma unroll
    for (int tile = 0; tile < GROUP_TILES; ++tile)
        wgmma_f16_2n(chain + SUMS + tile * 2 * WGMMA_SUMS, input + tile * 64, weights, keep);
}
#endif
// A sum of the chain: of all three products.
__device__ __forceinline__ float total(const Chain& chain, int i) {
    if (!SIDE_BY_SIDE) return chain[i];
    const int high = SUMS + i / WGMMA_SUMS * 2 * WGMMA_SUMS + i % WGMMA_SUMS;
    return chain[i] + chain[high + WGMMA_SUMS] + chain[high];
}

// How products are scaled back; common/fp16_rescale.cuh says why. Here a thread computes the factor of one filter for
// all of its warpgroup.
struct Rescale {
    const int* filter_scales;  // in the workspace, of the next chunk
    const int warpgroup, thread;
    int chunk_scale = 0, sum_exponent = ZERO_EXPONENT;
    int buffer = 0;  // the chunk's, 0 or 1

    // scales: of the tile's first chunk, in the workspace.
    __device__ __forceinline__ Rescale(const int* scales, int warpgroup, int thread)
        : filter_scales(scales + thread), warpgroup(warpgroup), thread(thread) {}

    // A buffer of factors. Chunks alternate between two, as the last chunk's are still being read. A tile's end takes two
    // more.
    __device__ __forceinline__ float* shared(int buffer) const {
        __shared__ __align__(16) float factors[4][CONSUMERS / WARPGROUP][(BF + 15) / 16 * 16];
        return factors[buffer][warpgroup];
    }
    // Loads the next chunk's scale. One chunk ahead of its use, so that its latency is hidden.
    __device__ __forceinline__ void prefetch() {
        if (thread < BF) chunk_scale = __ldcg(filter_scales);
        filter_scales += BF;
    }
    // Stores this thread's factor. A thread has two of each eight filters; its factors for 16 filters are adjacent.
    __device__ __forceinline__ void put(int buffer, float factor) const {
        const int place = thread / 16 * 16 + thread % 8 / 2 * 4 + thread / 8 % 2 * 2 + thread % 2;
        if (thread < BF) shared(buffer)[place] = factor;
    }
    // Computes the factors of a chunk from its filters' scales and its input's.
    __device__ __forceinline__ void update(int input_scale) {
        buffer ^= 1;
        const int exponent = exponent_of(chunk_scale) + exponent_of(input_scale);
        const bool zero = exponent < ZERO_EXPONENT / 2;
        if (sum_exponent == ZERO_EXPONENT && !zero) sum_exponent = exponent;
        put(buffer, zero ? 0.0f : power_of_two(clamp(exponent - sum_exponent, -126, 128)));
        warpgroup_barrier(warpgroup);
    }
    // The exponent of the chunk's products, of this thread's filter, if they are suspect, else NO_DOUBT or less.
    __device__ __forceinline__ int doubt(int input_scale) const {
        const bool suspect = PRODUCTS == 3 && is_suspect(chunk_scale | input_scale);
        return suspect ? exponent_of(chunk_scale) + exponent_of(input_scale) : NO_DOUBT;
    }
    // sums += the current chunk's products.
    __device__ __forceinline__ void accumulate(Sums& sums, const Chain& chain) const {
        each(buffer, [&](int i, float factor) { sums[i] = fmaf(total(chain, i), factor, sums[i]); });
    }
    // Calls change(i, factor of the i-th sum) for each of the thread's sums.
    template <class Change>
    __device__ __forceinline__ void each(int buffer, const Change& change) const {
        const float* const mine = shared(buffer) + thread % 4 * 4;
#pragma unroll
        for (int i = 0; i < WGMMA_SUMS; i += 8) {
            const float4 four = *reinterpret_cast<const float4*>(mine + i * 2);
            const float factors[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (int tile = 0; tile < SUMS; tile += WGMMA_SUMS)
#pragma unroll
                for (int j = i; j < min(i + 8, WGMMA_SUMS); ++j) change(tile + j, factors[j % 8 / 4 * 2 + j % 2]);
        }
    }
    // Scales the sums of all chunks back, in two steps so that each factor is a normal number, gives them what their
    // chains have lost, and marks the doubtful.
    __device__ __forceinline__ void finish(Sums& sums, int doubt) {
        const int exponent = sum_exponent == ZERO_EXPONENT ? 0 : sum_exponent, half = exponent / 2;
        const float least = PRODUCTS == 3 && thread < BF && doubt > NO_DOUBT ? least_trusted(doubt) : 0.0f;
        put(2, power_of_two(half));
        put(3, power_of_two(exponent - half));
        buffer ^= 1;
        put(buffer, least);
        const bool doubtful = any_at_barrier<WARPGROUP>(1 + warpgroup, least > 0.0f);
        each(2, [&](int i, float factor) { sums[i] *= factor; });
        each(3, [&](int i, float factor) { sums[i] *= factor; });
        if (PRODUCTS == 1) return;
#pragma unroll
        for (int i = 0; i < SUMS; ++i) sums[i] = restored(sums[i], STEPS);
        if (doubtful) each(buffer, [&](int i, float least) { mark_doubtful(sums[i], least); });
    }
};

// Writes a warpgroup's sums of 64 positions through its staging memory. Thread t has rows t / 32 * 16 + t % 32 / 4 and
// 8 further, and of each eight columns t % 4 * 2 and the next. `pixels` are those of rows t % 32 and 32 further, so
// that a warp writes 128 adjacent bytes.
__device__ __forceinline__ void write_tile(const Output& out, const float* sums, float* staging, int warpgroup,
                                           int thread, int first, const Pixel (&pixels)[2]) {
    const int lane = thread % 32, warp = thread / 32;
    const int warp_first = first + warp;  // a warp writes every fourth filter of a pass
    const float lane_bias = out.bias && warp_first + 4 * lane < out.p.filters ? out.bias[warp_first + 4 * lane] : 0.0f;
    float* to[2] = {out.to + out.index(pixels[0], warp_first), out.to + out.index(pixels[1], warp_first)};
    const int filters[2] = {out.filters_from(warp_first, pixels[0]), out.filters_from(warp_first, pixels[1])};
    const int64 next = 4ll * out.p.out_pixels;
    unsigned not_finite[2] = {};
#pragma unroll
    for (int pass = 0; pass < BF; pass += EPILOGUE_FILTERS) {
        warpgroup_barrier(warpgroup);
#pragma unroll
        for (int i = pass / 2; i < min(BF, pass + EPILOGUE_FILTERS) / 2; ++i)
            staging[(i / 4 * 8 - pass + lane % 4 * 2 + i % 2) * STAGING_ROW + warp * 16 + i % 4 / 2 * 8 + lane / 4] =
                sums[i];
        warpgroup_barrier(warpgroup);
#if RESIDUAL
        float more[EPILOGUE_FILTERS / 4][2];
#pragma unroll
        for (int i = 0; i < EPILOGUE_FILTERS / 4; ++i)
#pragma unroll
            for (int half = 0; half < 2; ++half)
                more[i][half] = out.residual_at(to[half] + i * next, pass + 4 * i < min(BF, filters[half]));
#endif
        float zeros[2] = {};  // NaN where a value of the pass is not finite
        float outputs[(BF < EPILOGUE_FILTERS ? BF : EPILOGUE_FILTERS) / 4][2] = {};  // zeros behind the last filter
#pragma unroll
        for (int filter = pass; filter < min(BF, pass + EPILOGUE_FILTERS); filter += 4) {
            const float bias = __shfl_sync(~0u, lane_bias, filter / 4);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int i = (filter - pass) / 4;
                const float value = staging[(filter - pass + warp) * STAGING_ROW + half * 32 + lane];
                outputs[i][half] = value + bias WITH_RESIDUAL(+more[i][half]);
                zeros[half] = fmaf(value, 0.0f, zeros[half]);
            }
        }
        activate(outputs, out.activation);
#pragma unroll
        for (int filter = pass; filter < min(BF, pass + EPILOGUE_FILTERS); filter += 4)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                if (filter < filters[half]) *to[half] = outputs[(filter - pass) / 4][half];
                to[half] += next;
            }
        if (__any_sync(~0u, isnan(zeros[0] + zeros[1])))
#pragma unroll 1
            for (int filter = pass; filter < min(BF, pass + EPILOGUE_FILTERS); filter += 4)
#pragma unroll
                for (int half = 0; half < 2; ++half)
                    if (!isfinite(staging[(filter - pass + warp) * STAGING_ROW + half * 32 + lane]))
                        not_finite[half] |= 1u << filter / 4;
    }
    if (__any_sync(~0u, not_finite[0] | not_finite[1]))
#pragma unroll
        for (int half = 0; half < 2; ++half) write_plain(out, not_finite[half], pixels[half], warp_first, 4);
}

// Writes a warpgroup's part of a tile, 64 positions at a time.
__device__ __forceinline__ void write(const Output& out, const Geometry& g, const WorkUnit& tile, const Sums& sums,
                                      float* staging, int warpgroup, int thread) {
#pragma unroll
    for (int i = 0; i < GROUP_TILES; ++i) {
        const int position = tile.spatial_tile * BP + first_position(warpgroup) + i * 64 + thread % 32;
        const Pixel pixels[2] = {g.locate(position), g.locate(position + 32)};
        write_tile(out, sums + i * WGMMA_SUMS, staging, warpgroup, thread, tile.filter_tile * BF, pixels);
    }
}
