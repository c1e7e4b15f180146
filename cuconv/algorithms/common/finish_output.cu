// Adds a residual to an output and computes its activation, after a convolution whose kernels do not add one.
//
// VECTOR  floats of a load: 4 where all arrays start at a multiple of 16 bytes and have a multiple of 4 elements, or 1
//
// Every argument has eight bytes: a pointer or a long long.

#include "common/activation.cuh"

struct alignas(VECTOR * 4) Elements {
    float values[VECTOR];
};

extern "C" __global__ void finish_output(const float* residual, float* output, int64 elements, int64 activation,
                                         int64 numbers) {
    const int64 first = ((int64)blockIdx.x * blockDim.x + threadIdx.x) * VECTOR;
#if __CUDA_ARCH__ >= 900
    wait_for_kernel_ahead();
    launch_dependents();
#endif
    if (first >= elements) return;
    Elements sum = *reinterpret_cast<Elements*>(output + first);
    const Elements more = *reinterpret_cast<const Elements*>(residual + first);
#pragma unroll
    for (int i = 0; i < VECTOR; ++i) sum.values[i] += more.values[i];
    activate(sum.values, {activation, numbers});
    *reinterpret_cast<Elements*>(output + first) = sum;
}
