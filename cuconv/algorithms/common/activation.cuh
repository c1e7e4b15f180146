// Activations of values in registers, which come after bias and residual.
//
// The kinds and their two numbers are those of cuconv/core/activation.py. They are equal for all threads, so that the
// branches over the kinds stand outside the loops over values. A NaN stays a NaN, and infinities give what torch's
// formulas give: silu(-inf) is a NaN.
#pragma once

#include "common/convolution.cuh"

enum ActivationKind { IDENTITY, CLAMP, LEAKY, HARD, HARD_GATE, LOGISTIC, LOGISTIC_GATE, ELU, TANH, GELU };

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

// 2^x; results below 2^-126 are 0.
__device__ __forceinline__ float two_to_the(float x) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
}

// 1 / x; results below 2^-126 are 0.
__device__ __forceinline__ float inverse_of(float x) {
    float inverse;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(x));
    return inverse;
}

// 1 / (1 + 2^(linear x + cubic x^3)). The error is 4e-7 of the result and, where x is negative, 1e-7 of the exponent.
// Results below 2^-126 are 0.
__device__ __forceinline__ float logistic(float x, float linear, float cubic) {
    const float square = fminf(x * x, 1e30f);  // finite, so that 0 times it is 0; a NaN comes back with the factor x
    return inverse_of(1.0f + two_to_the(x * fmaf(cubic, square, linear)));
}

// The sum of coefficient i times x^i.
template <int COUNT>
__device__ __forceinline__ float polynomial(float x, const float (&coefficients)[COUNT]) {
    float sum = coefficients[COUNT - 1];
#pragma unroll
    for (int i = COUNT - 2; i >= 0; --i) sum = fmaf(sum, x, coefficients[i]);
    return sum;
}

// e^x - 1 for x <= 0, with its sign also at 0. The error is 3e-7 of the result. The polynomials here and in `normal` are
// those of the least relative error.
__device__ __forceinline__ float exponential_less_1(float x) {
    const float near = x * polynomial(x, {1.0f, 0.4999986887f, 0.1666438878f, 0.0415365249f, 0.0080026174f,
                                          0.0009934528f});
    return x > -0.8f ? near : two_to_the(x * 1.4426950409f) - 1.0f;
}

// The hyperbolic tangent. The error is 5e-7 of the result.
__device__ __forceinline__ float tangent(float x) {
    const float less = exponential_less_1(-2.0f * fabsf(x));
    return copysignf(less * inverse_of(less + 2.0f), x);
}

// (1 + erf(x / sqrt(2))) / 2, the share of the normal distribution below x. The error is 1e-7 and, where x is negative,
// 3e-7 of the result and 1e-7 of the exponent x^2: the sum of torch's formula would cancel there.
__device__ __forceinline__ float normal(float x) {
    const float square = x * x;
    const float near = fmaf(x, polynomial(square, {0.3989422619f, -0.0664898753f, 0.0099705933f, -0.0011808468f,
                                                   0.0001088952f, -6.2732584e-6f}), 0.5f);
    // The other tail. Its factor t keeps the sign of 0 where x is large.
    const float t = inverse_of(fmaf(fabsf(x), 0.41f, 1.0f));
    const float tail = two_to_the(square * -0.7213475204f) * t *
                       polynomial(t, {0.1635815948f, 0.1631749421f, 0.1402485371f, 0.0570429638f, 0.0924614891f,
                                      -0.1920875758f, 0.0762179866f});
    return fabsf(x) < 1.4f ? near : x < 0.0f ? tail : 1.0f - tail;
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
    } else if (kind <= LOGISTIC_GATE) {
#pragma unroll
        for (int i = 0; i < 8; ++i) x.of[i] = factor(x.of[i]) * logistic(x.of[i], first, second);
    } else {
        // Long formulas, PAIR values at a time: for all at once the compiler would take more registers than callers have,
        // and where this is inlined the code would be long.
        constexpr int PAIR = 2;
#pragma unroll 1
        for (int done = 0; done < 8; done += PAIR) {
            if (kind == ELU) {
#pragma unroll
                for (int i = 0; i < PAIR; ++i)
                    x.of[i] = x.of[i] > 0.0f ? x.of[i] : first * exponential_less_1(x.of[i]);
            } else if (kind == TANH) {
#pragma unroll
                for (int i = 0; i < PAIR; ++i) x.of[i] = tangent(x.of[i]);
            } else {
#pragma unroll
                for (int i = 0; i < PAIR; ++i) x.of[i] *= normal(x.of[i]);
            }
            Eight turned;  // so that the loop finds the next ones in the same registers
#pragma unroll
            for (int i = 0; i < 8; ++i) turned.of[i] = x.of[(i + PAIR) % 8];
            x = turned;
        }
    }
    return x;
}

// Computes the activation of each value. All values are set: the compiler may take a branch over one that is not as it
// likes, and leave the lanes of a warp apart behind it.
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
