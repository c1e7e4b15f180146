// The transform of weights, which pack_weights applies to each row of a filter before it scales channels.
#pragma once

// tiles.cuh comes first: it defines the filter shape that weight_packing.cuh works on.
#include "winograd/tiles.cuh"
#include "common/weight_packing.cuh"

// One over the product of a point's differences from the other finite points, without its sign.
__device__ constexpr float inverse_differences(int pair) {
    float product = 2 * pair_square(pair);
    for (int i = 0; i < PAIRS; ++i) product *= i == pair ? 1.0f : pair_square(pair) - pair_square(i);
    return 1 / product;
}

// The polynomial of a row's weights at each point, divided by what the input's transform leaves out.
__device__ __forceinline__ void transform_row(const float (&w)[KW], float (&at)[POINTS]) {
    constexpr Polynomial all(-1);
    at[0] = w[0] * (1 / all.of[0]), at[INFINITY_POINT] = w[KW - 1];
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
        even *= inverse_differences(pair), odd *= inverse_differences(pair) * pair_point(pair);
        at[first_of_pair(pair)] = even + odd, at[first_of_pair(pair) + 1] = even - odd;
    }
}

// Transforms a row of a filter, in eight channels, to all points.
__device__ __forceinline__ void transform_weights(float (&values)[WARP_TAPS][8], float (&columns)[KW],
                                                  const float* weights, int row) {
    static_assert(WARP_TAPS == POINTS);
#pragma unroll
    for (int c = 0; c < 8; ++c) {
        float w[KW], at[POINTS];
#pragma unroll
        for (int kx = 0; kx < KW; ++kx) {
            w[kx] = weights[c * TAPS + row * KW + kx];
            columns[kx] = fmaxf(columns[kx], fabsf(w[kx]));
        }
        transform_row(w, at);
#pragma unroll
        for (int point = 0; point < POINTS; ++point) values[point][c] = at[point];
    }
}
