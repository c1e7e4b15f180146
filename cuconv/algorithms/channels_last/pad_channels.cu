// Copies channels-last input and weights whose channels are no multiple of 8 to the workspace, with zeros behind the last
// channel: tensor maps need rows of whole 16 bytes.
//
// Every argument has eight bytes. A row is a pixel of the input, or a filter position of the weights; the weights' rows
// follow those of the input. A thread writes eight channels of a row.

#include "common/convolution.cuh"

typedef unsigned short Element;

extern "C" __global__ void pad_channels(const Element* __restrict__ input, const Element* __restrict__ weight,
                                        uint4* __restrict__ padded, int64 input_rows, int64 weight_rows, int64 channels,
                                        int64 row_vectors) {
    const int64 vector = (int64)blockIdx.x * blockDim.x + threadIdx.x;
    int64 row = vector / row_vectors;
    const int first = (int)(vector - row * row_vectors) * 8;
#if __CUDA_ARCH__ >= 900
    wait_for_kernel_ahead();
    launch_dependents();
#endif
    if (row >= input_rows + weight_rows) return;
    const bool is_input = row < input_rows;
    const Element* const from = is_input ? input + row * channels : weight + (row - input_rows) * channels;
    unsigned pairs[4] = {};
#pragma unroll
    for (int i = 0; i < 8; ++i)
        if (first + i < channels) pairs[i / 2] |= (unsigned)from[first + i] << i % 2 * 16;
    padded[vector] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}
