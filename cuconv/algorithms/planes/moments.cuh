// Counts, means and squared differences of parts of a group, which are joined two by two (Chan et al., 1979), so that no
// digits cancel where the mean is large.
#pragma once

#include "common/convolution.cuh"

// The number of some elements, their mean, and the sum of their squared differences from it.
struct Moments {
    float count, mean, squares;

    // Adds other elements.
    __device__ __forceinline__ void join(const Moments& other) {
        const float both = count + other.count, difference = other.mean - mean;
        const float share = both > 0.0f ? other.count / both : 0.0f;
        squares += other.squares + difference * share * count * difference;  // 0 for a difference that nothing counts
        mean = fmaf(difference, share, mean);
        count = both;
    }
    // Lane 0 adds the elements of all lanes of the warp.
    __device__ __forceinline__ void join_lanes() {
#pragma unroll
        for (int step = 16; step > 0; step /= 2)
            join({__shfl_down_sync(~0u, count, step), __shfl_down_sync(~0u, mean, step),
                  __shfl_down_sync(~0u, squares, step)});
    }
    // 1 / sqrt(variance + epsilon), where an argument of the kernel has epsilon's bits.
    __device__ __forceinline__ float scale(int64 epsilon) const {
        return 1.0f / sqrtf(squares / count + __uint_as_float((unsigned)epsilon));
    }
};
