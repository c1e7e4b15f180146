// The identity, and clamps without an upper bound such as ReLU, without a branch: the larger of a value and a bound.
//
// `activate` branches over the kinds of activations. Where it stands between the steps of an unrolled loop, the compiler
// cannot overlap these steps. So such loops are compiled for an AtLeast, too.
#pragma once

#include "common/activation.cuh"

struct AtLeast {
    float least;

    __device__ __forceinline__ explicit AtLeast(const Activation& activation)
        : least(activation.kind == CLAMP ? activation.first : __int_as_float(0xff800000)) {}
    // Whether it stands for an activation.
    static __device__ __forceinline__ bool is(const Activation& activation) {
        return activation.kind == IDENTITY ||
               (activation.kind == CLAMP && activation.second == __int_as_float(0x7f800000));
    }
};

template <int COUNT>
__device__ __forceinline__ void activate(float (&values)[COUNT], const AtLeast& bound) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) asm("max.NaN.f32 %0, %0, %1;" : "+f"(values[i]) : "f"(bound.least));
}
template <int OUTER, int INNER>
__device__ __forceinline__ void activate(float (&values)[OUTER][INNER], const AtLeast& bound) {
    activate(reinterpret_cast<float(&)[OUTER * INNER]>(values), bound);
}
