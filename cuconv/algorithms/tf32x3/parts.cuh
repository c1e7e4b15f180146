// Decomposition of FP32 operands into TF32 parts, and which sums of their products are right, for every tf32x3 kernel;
// docs/tf32x3.md has the reasoning.
//
// PRODUCTS  tensor-core products for one FP32 product: 3 of two parts each, or 1 of the rounded operands (TF32)
#pragma once

#include "common/convolution.cuh"
#include "common/truncation.cuh"

static_assert(PRODUCTS == 3 || PRODUCTS == 1, "three products of two parts, or one of the rounded operands");
constexpr int PARTS = PRODUCTS == 3 ? 2 : 1;  // parts of an operand: big and small, or one rounded value

// Decomposes x into big + small. big is x rounded to 10 bits of mantissa: the addition carries half a unit of the last
// bit that stays, the mask drops the rest. small = x - big is exact; the tensor cores ignore its low 13 bits. A NaN
// whose bits the addition carries over into a finite number still makes small a NaN. With one product, big is x rounded
// to TF32 and small is not written.
__device__ __forceinline__ void decompose(float x, float& big, float& small) {
#if PRODUCTS == 3
    big = __uint_as_float((__float_as_uint(x) + 0x1000u) & 0xffffe000u);
    small = x - big;
#else
    big = round_to_tf32(x);
#endif
}

// Sums of magnitude below LEAST_RIGHT, other than 0, are not right with three products: the small parts of their
// operands may have lost bits at the end of the exponent range.
constexpr float LEAST_RIGHT = PRODUCTS == 3 ? 0x1p-100f : 0.0f, MOST_RIGHT = 0x1.fffffep127f;

// Whether a sum of products, before bias, residual and activation, is an output's. A sum that is not right is replaced
// by a plain FP32 sum. Inf and NaN have no parts, so a sum that is not finite is not right.
__device__ __forceinline__ bool is_right(float sum) {
    const float most = fabsf(sum);
    return most <= MOST_RIGHT && (PRODUCTS == 1 || most >= LEAST_RIGHT || most == 0.0f);
}

// Whether all of several sums are right, in three instructions a sum. Calls with two values of `chain` in turn make the
// chains of dependent instructions half as long.
struct Judge {
    float zeros[2] = {};             // stay 0 only if every sum times 0 is 0, which Inf and NaN times 0 are not
    unsigned least[2] = {~0u, ~0u};  // least 2 * bits - 1: without a sign, and 0 becomes the largest number

    __device__ __forceinline__ void add(float sum, int chain) {
        zeros[chain] = fmaf(sum, 0.0f, zeros[chain]);
        if (PRODUCTS == 3) least[chain] = min(least[chain], __float_as_uint(sum) * 2 - 1);
    }
    __device__ __forceinline__ bool all_right() const {
        const unsigned bound = __float_as_uint(LEAST_RIGHT) * 2 - 1;
        return zeros[0] + zeros[1] == 0.0f && (PRODUCTS == 1 || min(least[0], least[1]) >= bound);
    }
};

// Whether a sum is replaced in a warp that has one that is not right. With three products a sum of 0 is too: operands
// below 2^-137 have parts of 0, so it may stand for a small number. Where it is right the plain sum is 0 as well.
__device__ __forceinline__ bool is_replaced(float sum) { return !is_right(sum) || PRODUCTS == 3 && sum == 0.0f; }

// A sum, or NaN where it is replaced. The mark outlasts bias, residual and every activation on the way to the output,
// where the plain sum takes its place.
__device__ __forceinline__ float mark_wrong(float sum) { return is_replaced(sum) ? __int_as_float(0x7fffffff) : sum; }
