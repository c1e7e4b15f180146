// Copies channels-last input and weights of few or odd channels to the workspace, as tensor maps can read them: with
// zeros behind the channels of each pixel, and behind each row.
//
// Every argument has eight bytes. A row of the input is one of an image, which begins with `left` pixels of zeros; a row
// of the weights is one of a filter. The weights' rows follow those of the input. A pixel has `pixel` channels in the
// copies, and a row so many vectors of eight. A thread writes a vector.

#include "common/convolution.cuh"

typedef unsigned short Element;

extern "C" __global__ void pad_channels(const Element* __restrict__ input, const Element* __restrict__ weight,
                                        uint4* __restrict__ padded, int64 input_rows, int64 weight_rows, int64 channels,
                                        int64 pixel, int64 width, int64 kernel_w, int64 left, int64 input_vectors,
                                        int64 weight_vectors) {
    const int64 vector = (int64)blockIdx.x * blockDim.x + threadIdx.x, behind = vector - input_rows * input_vectors;
    const bool is_input = behind < 0;
    const int64 row = is_input ? vector / input_vectors : behind / weight_vectors;
    const int place = (int)(is_input ? vector - row * input_vectors : behind - row * weight_vectors) * 8;
    const int from_width = (int)(is_input ? width : kernel_w);
    int x = place / (int)pixel, channel = place - x * (int)pixel;  // where the first element lies
    if (is_input) x -= (int)left;
#if __CUDA_ARCH__ >= 900
    wait_for_kernel_ahead();
    launch_dependents();
#endif
    if (!is_input && row >= weight_rows) return;
    const Element* const from = (is_input ? input : weight) + row * from_width * channels;
    unsigned pairs[4] = {};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        if ((unsigned)x < (unsigned)from_width && channel < channels)
            pairs[i / 2] |= (unsigned)from[x * channels + channel] << i % 2 * 16;
        if (++channel == pixel) channel = 0, ++x;
    }
    padded[vector] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}
