// Division by a number that stays, and the start of a kernel.
#pragma once

#include "common/convolution.cuh"

constexpr int MAX_THREADS = 256;  // of a block

// Division by a number that stays, as a multiplication, for dividends below 2^31 (Granlund and Montgomery 1994). The
// host packs a multiplier and a shift.
struct Divider {
    unsigned divisor, multiplier, shift;

    __device__ __forceinline__ Divider(int64 divisor, int64 packed)
        : divisor(divisor), multiplier(packed), shift(packed >> 32) {}
    __device__ __forceinline__ unsigned operator()(unsigned n, unsigned& remainder) const {
        const unsigned quotient = (__umulhi(n, multiplier) + n) >> shift;
        remainder = n - quotient * divisor;
        return quotient;
    }
};

// Before the first access to global memory: waits for the kernel ahead, then lets the next one start. `place` depends
// on the index arithmetic, which comes first.
__device__ __forceinline__ void start(const float* input, unsigned place) {
#if __CUDA_ARCH__ >= 900
    wait_for_kernel_ahead((uint64)input | place);
    launch_dependents();
#endif
}
