// How fp16x3_winograd transforms weights: what split_weights takes out of a filter.
#pragma once

// In this order: the first says what the second is to split.
#include "fp16x3_winograd_tiles.cuh"
#include "fp16x3_split.cuh"

// The polynomial of a row's weights at each of the points, over what makes up for the input's transform.
__device__ __forceinline__ void transform_row(const float (&w)[KW], float (&at)[POINTS]) {
    constexpr float near2 = NEAR * NEAR, far2 = FAR * FAR;
    constexpr float of_zero = 1 / (near2 * far2), of_near = 1 / (2 * near2 * (near2 - far2));
    constexpr float of_far = 1 / (2 * far2 * (far2 - near2));
    const auto pair = [&](float point, float square, float over, float& plus, float& minus) {
        float even = w[KW - 1], odd = w[KW - 2];
#pragma unroll
        for (int i = KW - 3; i >= 0; --i)
            if ((KW - 1 - i) % 2 == 0)
                even = fmaf(even, square, w[i]);
            else
                odd = fmaf(odd, square, w[i]);
        // even holds w0 + w2 x^2 + .., odd w1 + w3 x^2 + ..: KW is odd
        even *= over, odd *= over * point;
        plus = even + odd, minus = even - odd;
    };
    at[0] = w[0] * of_zero, at[3] = w[KW - 1];
    pair(NEAR, near2, of_near, at[1], at[2]);
    pair(FAR, far2, of_far, at[4], at[5]);
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
