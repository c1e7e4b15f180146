// How fp16x3_winograd transforms weights: what split_weights takes out of a filter.
#pragma once

// In this order: the first says what the second is to split.
#include "winograd/tiles.cuh"
#include "common/weight_packing.cuh"

// One over the product of a point's differences from the others.
__device__ constexpr float over_pair(int pair) {
    float product = 2 * pair_square(pair);
    for (int i = 0; i < PAIRS; ++i) product *= i == pair ? 1.0f : pair_square(pair) - pair_square(i);
    return 1 / product;
}

// The polynomial of a row's weights at each of the points, over what makes up for the input's transform.
__device__ __forceinline__ void transform_row(const float (&w)[KW], float (&at)[POINTS]) {
    constexpr Polynomial all(-1);
    at[0] = w[0] * (1 / all.of[0]), at[INFINITY_PLACE] = w[KW - 1];
#pragma unroll
    for (int pair = 0; pair < PAIRS; ++pair) {
        const float square = pair_square(pair);
        float even = w[KW - 1], odd = w[KW - 2];  // w0 + w2 x^2 + .. and w1 + w3 x^2 + ..: KW is odd
#pragma unroll
        for (int i = KW - 3; i >= 0; --i)
            if ((KW - 1 - i) % 2 == 0)
                even = fmaf(even, square, w[i]);
            else
                odd = fmaf(odd, square, w[i]);
        even *= over_pair(pair), odd *= over_pair(pair) * pair_point(pair);
        at[pair_place(pair)] = even + odd, at[pair_place(pair) + 1] = even - odd;
    }
}

// Eight channels of a row of a filter, the one that is `row`, at all points.
__device__ __forceinline__ void take(float (&values)[TURNS][8], const float* weights, int row) {
    static_assert(TURNS == POINTS);
#pragma unroll
    for (int c = 0; c < 8; ++c) {
        float w[KW], at[POINTS];
#pragma unroll
        for (int kx = 0; kx < KW; ++kx) w[kx] = weights[c * TAPS + row * KW + kx];
        transform_row(w, at);
#pragma unroll
        for (int point = 0; point < POINTS; ++point) values[point][c] = at[point];
    }
}
