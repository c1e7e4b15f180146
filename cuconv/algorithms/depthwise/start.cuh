// The start of a depthwise kernel.
#pragma once

#include "common/convolution.cuh"

constexpr int MAX_THREADS = 256;  // the most of a block

// Before the first access to global memory: waits for the kernel ahead, then lets the next one start. `place` depends
// on the index arithmetic, which comes first.
__device__ __forceinline__ void start(const float* input, unsigned place) {
#if __CUDA_ARCH__ >= 900
    wait_for_kernel_ahead((uint64)input | place);
    launch_dependents();
#endif
}
