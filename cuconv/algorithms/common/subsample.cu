// Copies the pixels that a 1x1 convolution with a stride reads, every stride_h-th row and every stride_w-th column, into
// a tensor without gaps, on which the convolution has stride 1.
//
// ELEMENTS  elements that a thread copies, a block's width apart: their loads are under way together
//
// Every argument has eight bytes: a pointer or a long long.

#include "common/convolution.cuh"

extern "C" __global__ void subsample(const float* __restrict__ input, float* __restrict__ dense, int64 elements,
                                     int64 height, int64 width, int64 out_h, int64 out_w,
                                     int64 stride_h, int64 stride_w) {
    const unsigned first = blockIdx.x * (blockDim.x * ELEMENTS) + threadIdx.x;
    const unsigned columns = out_w, rows = out_h, count = elements;
    int64 sources[ELEMENTS];
#pragma unroll
    for (int i = 0; i < ELEMENTS; ++i) {
        const unsigned at = first + i * blockDim.x, row = at / columns, plane = row / rows;
        const unsigned y = row - plane * rows, x = at - row * columns;
        sources[i] = ((int64)plane * height + y * stride_h) * width + x * stride_w;
    }
#if __CUDA_ARCH__ >= 900
    wait_for_kernel_ahead();
    launch_dependents();
#endif
    float values[ELEMENTS];
#pragma unroll
    for (int i = 0; i < ELEMENTS; ++i)
        if (first + i * blockDim.x < count) values[i] = __ldg(input + sources[i]);
#pragma unroll
    for (int i = 0; i < ELEMENTS; ++i)
        if (first + i * blockDim.x < count) dense[first + i * blockDim.x] = values[i];
}
