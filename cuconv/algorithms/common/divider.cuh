// Division by a divisor that is constant for a launch, as a multiplication.
#pragma once

#include "common/convolution.cuh"

// For dividends below 2^31, whose sum with the upper half of the product stays below 2^32 (Granlund and Montgomery 1994).
// The host packs a multiplier and a shift (divider.py).
struct Divider {
    unsigned divisor, multiplier, shift;

    Divider() = default;
    __device__ __forceinline__ Divider(int64 divisor, int64 packed)
        : divisor(divisor), multiplier(packed), shift(packed >> 32) {}
    __device__ __forceinline__ unsigned operator()(unsigned n, unsigned& remainder) const {
        const unsigned quotient = (__umulhi(n, multiplier) + n) >> shift;
        remainder = n - quotient * divisor;
        return quotient;
    }
};
