// What fp16x3's sums have in common where filters are the tensor cores' rows: the factors of a thread's two filters.
// first_filter(group), of a warpgroup in its tile, is the including header's.
#pragma once

#include "common/fp16.cuh"

// What products are to be multiplied by: a thread has two filters, 8 apart, whose sums each have an exponent until all
// is added.
struct Factors {
    const int* of_filters;  // exponents, of the chunk to come
    int of_sums[2], found[2];
    float factors[2];

    // `exponents`: of the tile's first chunk.
    __device__ __forceinline__ Factors(const int* exponents, int group, int thread)
        : of_filters(exponents + first_filter(group) + thread / 32 * 16 + thread % 32 / 4), of_sums{EMPTY, EMPTY} {}

    // A chunk ahead: the compiler wants them when the chunk's input has come, before the first products.
    __device__ __forceinline__ void fetch() {
        found[0] = __ldcg(of_filters), found[1] = __ldcg(of_filters + 8);
        of_filters += ALIKE;
    }
    // With the exponent of the chunk's input.
    __device__ __forceinline__ void meet(int of_input) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int exponent = found[half] + of_input;
            if (of_sums[half] == EMPTY && exponent > EMPTY / 2) of_sums[half] = exponent;
            factors[half] = exponent > EMPTY / 2 ? power_of_two(clamp(exponent - of_sums[half], -126, 127)) : 0.0f;
        }
    }
    template <int COUNT>
    __device__ __forceinline__ void add(float (&sums)[COUNT], const float (&chain)[COUNT]) const {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) sums[i] = fmaf(chain[i], factors[i % 4 / 2], sums[i]);
    }
    template <int COUNT>
    __device__ __forceinline__ void finish(float (&sums)[COUNT]) const {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int all = of_sums[half] == EMPTY ? 0 : of_sums[half];
#pragma unroll
            for (int i = 0; i < COUNT; ++i)
                if (i % 4 / 2 == half) sums[i] = sums[i] * power_of_two(all / 2) * power_of_two(all - all / 2);
        }
    }
};
