// How products are scaled back where filters are the tensor cores' rows: a thread has two filters, 8 apart.
// The including header defines first_filter(warpgroup), the first filter of a warpgroup within its tile.
#pragma once

#include "common/fp16.cuh"

// The scale of a chunk is a power of two for each filter. The first chunk that is not all zero sets the exponent of a
// filter's sums; later chunks are rescaled to it as they are added, and the sums are scaled back at the end.
struct Rescale {
    const int* filter_scales;  // in the workspace, of the next chunk
    int sum_exponents[2], chunk_scales[2];
    float factors[2];  // for the current chunk's products

    // scales: of the tile's first chunk, in the workspace.
    __device__ __forceinline__ Rescale(const int* scales, int warpgroup, int thread)
        : filter_scales(scales + first_filter(warpgroup) + thread / 32 * 16 + thread % 32 / 4),
          sum_exponents{ZERO_EXPONENT, ZERO_EXPONENT} {}

    // Loads the next chunk's scales. One chunk ahead of their use, so that their latency is hidden.
    __device__ __forceinline__ void prefetch() {
        chunk_scales[0] = __ldcg(filter_scales), chunk_scales[1] = __ldcg(filter_scales + 8);
        filter_scales += SCALE_FILTERS;
    }
    // Computes the factors of a chunk from its filters' scales and its input's.
    __device__ __forceinline__ void update(int input_scale) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int exponent = exponent_of(chunk_scales[half]) + exponent_of(input_scale);
            if (sum_exponents[half] == ZERO_EXPONENT && exponent > ZERO_EXPONENT / 2) sum_exponents[half] = exponent;
            factors[half] =
                exponent > ZERO_EXPONENT / 2 ? power_of_two(clamp(exponent - sum_exponents[half], -126, 128)) : 0.0f;
        }
    }
    // The largest exponent of the chunk's products if they are suspect, else NO_DOUBT or less. Called before
    // prefetch().
    __device__ __forceinline__ int doubt(int input_scale) const {
        int found = NO_DOUBT;
#pragma unroll
        for (int half = 0; half < 2; ++half)
            if (PRODUCTS == 3 && is_suspect(chunk_scales[half] | input_scale))
                found = max(found, exponent_of(chunk_scales[half]) + exponent_of(input_scale));
        return found;
    }
    // sums += the current chunk's products.
    template <int COUNT>
    __device__ __forceinline__ void accumulate(float (&sums)[COUNT], const float (&chain)[COUNT]) const {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) sums[i] = fmaf(chain[i], factors[i % 4 / 2], sums[i]);
    }
    // Gives the sums of all chunks what their chains have lost, scales them back, in two steps so that each factor is a
    // normal number, and marks the doubtful.
    template <int COUNT>
    __device__ __forceinline__ void finish(float (&sums)[COUNT], int doubt) const {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int exponent = sum_exponents[half] == ZERO_EXPONENT ? 0 : sum_exponents[half];
#pragma unroll
            for (int i = 0; i < COUNT; ++i)
                if (i % 4 / 2 == half) {
                    if (PRODUCTS == 3) sums[i] = restored(sums[i], STEPS);
                    sums[i] = sums[i] * power_of_two(exponent / 2) * power_of_two(exponent - exponent / 2);
                }
        }
        if (doubt <= NO_DOUBT) return;
        const float least = least_trusted(doubt);
#pragma unroll
        for (int i = 0; i < COUNT; ++i) mark_doubtful(sums[i], least);
    }
};
