// Activations of values in registers, which come after bias and residual.
//
// The kinds and their two numbers are those of cuconv/core/activation.py. They are equal for all threads, so that the
// branches over the kinds stand outside the loops over values. A NaN stays a NaN, and infinities give what torch's
// formulas give: silu(-inf) is a NaN.
#pragma once

#include "common/convolution.cuh"

enum ActivationKind { IDENTITY, CLAMP, LEAKY, HARD, HARD_GATE, LOGISTIC, LOGISTIC_GATE };

struct Activation {
    int kind;
    float first, second;

    __device__ __forceinline__ Activation(int64 kind, int64 numbers)
        : kind((int)kind),
          first(__uint_as_float((unsigned)numbers)),
          second(__uint_as_float((unsigned)(numbers >> 32))) {}
};

// x, at least `low` and at most `high`.
__device__ __forceinline__ float clamped(float x, float low, float high) {
#if __CUDA_ARCH__ >= 800
    asm("max.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(low));
    asm("min.NaN.f32 %0, %0, %1;" : "+f"(x) : "f"(high));
    return x;
#else
    x = x < low ? low : x;
    return x > high ? high : x;
#endif
}

// 1 / (1 + 2^(linear x + cubic x^3)). The error is 4e-7 of the result and, where x is negative, 1e-7 of the exponent.
// Results below 2^-126 are 0.
__device__ __forceinline__ float logistic(float x, float linear, float cubic) {
    const float square = fminf(x * x, 1e30f);  // finite, so that 0 times it is 0; a NaN comes back with the factor x
    float power, inverse;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * fmaf(cubic, square, linear)));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(1.0f + power));
    return inverse;
}

// x where it is a gate, and 1 elsewhere: without a condition, for which the compiler would make two loops.
struct Factor {
    unsigned kept, set;

    __device__ __forceinline__ Factor(bool gate) : kept(gate ? ~0u : 0u), set(gate ? 0u : 0x3f800000u) {}
    __device__ __forceinline__ float operator()(float x) const {
        return __uint_as_float((__float_as_uint(x) & kept) | set);
    }
};

// Eight values that a call takes and returns in registers.
struct Eight {
    float of[8];
};

// The formulas but IDENTITY and CLAMP. Not inlined: instructions are fetched in order, so that in a small kernel code
// between the products and the stores costs time even where it is skipped. A kernel that has no registers left for a
// call inlines them.
#ifndef COMPUTED
#define COMPUTED __noinline__
#endif
__device__ COMPUTED Eight computed(Eight x, int kind, float first, float second) {
    // Keeps what formulas share behind the branches: ahead of them the compiler would need a second register for each.
#pragma unroll
    for (int i = 0; i < 8; ++i) asm volatile("" : "+f"(x.of[i]));
    const Factor factor(kind == HARD_GATE || kind == LOGISTIC_GATE);
    if (kind == LEAKY) {
#pragma unroll
        for (int i = 0; i < 8; ++i) x.of[i] = x.of[i] < 0.0f ? x.of[i] * first : x.of[i];
    } else if (kind <= HARD_GATE) {
#pragma unroll
        for (int i = 0; i < 8; ++i)
            x.of[i] = factor(x.of[i]) * (clamped(x.of[i] + 3.0f, 0.0f, 6.0f) * (1.0f / 6.0f));
    } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) x.of[i] = factor(x.of[i]) * logistic(x.of[i], first, second);
    }
    return x;
}

// Computes the activation of each value.
template <int COUNT>
__device__ __forceinline__ void activate(float (&values)[COUNT], const Activation& activation) {
    if (activation.kind == CLAMP) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) values[i] = clamped(values[i], activation.first, activation.second);
    }
    if (__builtin_expect(activation.kind <= CLAMP, 1)) return;
#pragma unroll
    for (int start = 0; start < COUNT; start += 8) {
        Eight x;
#pragma unroll
        for (int i = 0; i < 8; ++i) x.of[i] = start + i < COUNT ? values[start + i] : 0.0f;
        x = computed(x, activation.kind, activation.first, activation.second);
#pragma unroll
        for (int i = 0; i < 8; ++i)
            if (start + i < COUNT) values[start + i] = x.of[i];
    }
}
template <int OUTER, int INNER>
__device__ __forceinline__ void activate(float (&values)[OUTER][INNER], const Activation& activation) {
    activate(reinterpret_cast<float(&)[OUTER * INNER]>(values), activation);
}

// The activation of one value.
__device__ __forceinline__ float activated(float value, const Activation& activation) {
    float values[] = {value};
    activate(values, activation);
    return values[0];
}
