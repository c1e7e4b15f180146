// Decomposition of FP32 operands into TF32 parts, for every tf32x3 kernel; docs/tf32x3.md has the reasoning.
//
// PRODUCTS  tensor-core products for one FP32 product: 3 of two parts each, or 1 of the rounded operands (TF32)
#pragma once

#include "common/convolution.cuh"

static_assert(PRODUCTS == 3 || PRODUCTS == 1, "three products of two parts, or one of the rounded operands");
constexpr int PARTS = PRODUCTS == 3 ? 2 : 1;  // of an operand: big and small, or the rounded value alone

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
