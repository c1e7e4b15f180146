// How fp16x3 multiplies with positions as the tensor cores' rows and filters as their columns: any multiple of 8, so
// that a layer of 96 or 48 filters need not be rounded up to 64. Slower otherwise: there are factors for each of a
// thread's many filters to be read, and below 64 filters the instruction waits for shared memory, which brings it 64
// positions.
#pragma once

#define WGMMA_N FILTERS
#include "common/wgmma.cuh"
#include "fp16x3/tiles.cuh"

constexpr int GROUP_POSITIONS = BP / 2, GROUP_TILES = GROUP_POSITIONS / 64;
static_assert(SUMS == GROUP_TILES * WGMMA_SUMS && BF % 8 == 0 && SUMS <= 64);
constexpr int STAGED = 32;                    // filters that pass through the staging memory at a time
constexpr int STAGED_ROW = 68;                // floats: 64 positions, rows 4 banks apart
constexpr int STAGING = STAGED * STAGED_ROW;  // of a warpgroup

// Where a warpgroup's part of a tile begins.
__device__ __forceinline__ int first_filter(int) { return 0; }
__device__ __forceinline__ int first_position(int group) { return group * GROUP_POSITIONS; }

// chain = the products of one depth, or += where `keep`; start addresses in units of 16 bytes.
__device__ __forceinline__ void multiply_step(Sums& chain, unsigned input, unsigned weights, int keep) {
#pragma unroll
    for (int tile = 0; tile < GROUP_TILES; ++tile) wgmma_f16(chain + tile * WGMMA_SUMS, input + tile * 64, weights, keep);
}

// What products are to be multiplied by: a thread computes a filter's factor for all of its warpgroup.
struct Factors {
    const int* of_filters;  // exponents, of the chunk to come
    const int group, thread;
    int found = 0, of_sums = EMPTY, turn = 0;  // exponents: of the chunk, and what the sums keep until all is added

    // `exponents`: of the tile's first chunk.
    __device__ __forceinline__ Factors(const int* exponents, int group, int thread)
        : of_filters(exponents + thread), group(group), thread(thread) {}

    // Of a chunk; those of the one before are still in use. Between tiles there are barriers.
    __device__ __forceinline__ float* shared() const {
        __shared__ __align__(16) float factors[2][CONSUMERS / GROUP][(BF + 15) / 16 * 16];
        return factors[turn][group];
    }
    // A chunk ahead: the compiler wants them when the chunk's input has come, before the first products.
    __device__ __forceinline__ void fetch() {
        if (thread < BF) found = __ldcg(of_filters);
        of_filters += BF;
    }
    // A thread's factors for 16 filters are to lie side by side: it has two of each eight.
    __device__ __forceinline__ void put(float factor) const {
        const int place = thread / 16 * 16 + thread % 8 / 2 * 4 + thread / 8 % 2 * 2 + thread % 2;
        if (thread < BF) shared()[place] = factor;
    }
    // With the exponent of the chunk's input.
    __device__ __forceinline__ void meet(int of_input) {
        turn ^= 1;
        const int exponent = found + of_input;
        const bool zero = exponent < EMPTY / 2;
        if (of_sums == EMPTY && !zero) of_sums = exponent;
        put(zero ? 0.0f : power_of_two(clamp(exponent - of_sums, -126, 127)));
        group_barrier(group);
    }
    __device__ __forceinline__ void add(Sums& sums, const Sums& chain) const {
        each([&](int i, float factor) { sums[i] = fmaf(chain[i], factor, sums[i]); });
    }
    template <class Change>
    __device__ __forceinline__ void each(const Change& change) const {
        const float* const mine = shared() + thread % 4 * 4;
#pragma unroll
        for (int i = 0; i < WGMMA_SUMS; i += 8) {
            const float4 four = *reinterpret_cast<const float4*>(mine + i * 2);
            const float of_filter[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (int tile = 0; tile < SUMS; tile += WGMMA_SUMS)
#pragma unroll
                for (int j = i; j < min(i + 8, WGMMA_SUMS); ++j) change(tile + j, of_filter[j % 8 / 4 * 2 + j % 2]);
        }
    }
    // In two steps: each factor is in range, and the product overflows or vanishes as it should.
    __device__ __forceinline__ void finish(Sums& sums) {
        const int all = of_sums == EMPTY ? 0 : of_sums, half = all / 2;
#pragma unroll
        for (int step = 0; step < 2; ++step) {
            turn ^= 1;
            put(power_of_two(step ? all - half : half));
            group_barrier(group);
            each([&](int i, float factor) { sums[i] *= factor; });
        }
    }
};

// Writes a warpgroup's sums of 64 positions through its staging memory. Thread t has rows t / 32 * 16 + t % 32 / 4 and
// 8 further, and of each eight columns t % 4 * 2 and the next. `pixels` are those of rows t % 32 and 32 further: lanes
// write 128 bytes side by side.
__device__ __forceinline__ void write_tile(const Output& out, const float* sums, float* staging, int group, int thread,
                                           int first, const Pixel (&pixels)[2]) {
    const int lane = thread % 32, warp = thread / 32, mine = first + warp;  // of a pass, every fourth filter
    const float lane_bias = out.bias && mine + 4 * lane < out.p.filters ? out.bias[mine + 4 * lane] : 0.0f;
    const float least = out.least();
    float* to[2] = {out.to + out.index(pixels[0], mine), out.to + out.index(pixels[1], mine)};
    const int filters[2] = {out.filters_from(mine, pixels[0]), out.filters_from(mine, pixels[1])};
    const int64 next = 4ll * out.p.out_pixels;
    unsigned not_finite[2] = {};
#pragma unroll
    for (int pass = 0; pass < BF; pass += STAGED) {
        group_barrier(group);
#pragma unroll
        for (int i = pass / 2; i < min(BF, pass + STAGED) / 2; ++i)
            staging[(i / 4 * 8 - pass + lane % 4 * 2 + i % 2) * STAGED_ROW + warp * 16 + i % 4 / 2 * 8 + lane / 4] =
                sums[i];
        group_barrier(group);
#pragma unroll
        for (int filter = pass; filter < min(BF, pass + STAGED); filter += 4) {
            const float of_filter = __shfl_sync(~0u, lane_bias, filter / 4);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const float value = staging[(filter - pass + warp) * STAGED_ROW + half * 32 + lane];
                const float biased = value + of_filter;
                if (filter < filters[half]) *to[half] = biased < least ? least : biased;  // a NaN stays
                to[half] += next;
                if (!isfinite(value)) not_finite[half] |= 1u << filter / 4;
            }
        }
    }
    if (__any_sync(~0u, not_finite[0] | not_finite[1]))
#pragma unroll
        for (int half = 0; half < 2; ++half) write_plain(out, not_finite[half], pixels[half], mine, 4);
}

__device__ __forceinline__ void write(const Output& out, const Geometry& g, const Place& tile, const Sums& sums,
                                      float* staging, int group, int thread) {
#pragma unroll
    for (int i = 0; i < GROUP_TILES; ++i) {
        const int position = tile.stretch * BP + first_position(group) + i * 64 + thread % 32;
        const Pixel pixels[2] = {g.locate(position), g.locate(position + 32)};
        write_tile(out, sums + i * WGMMA_SUMS, staging, group, thread, tile.filter_tile * BF, pixels);
    }
}
