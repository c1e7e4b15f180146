// Copies channels-last input and weights to the workspace with zeros behind each pixel's channels and each row, so that
// tensor maps can read them. A thread writes one vector of eight channels.
//
// input_rows, weight_rows        rows of all images; rows of all filters, which follow them in the workspace
// channels, pixel                channels of a pixel in the tensor; in the copy
// width, kernel_w                pixels of a row of an image; of a filter
// left                           pixels of zeros before a row of an image
// input_vectors, weight_vectors  vectors of a row of the copy
// load                           channels loaded at once, 1, 2 or 4: channels and pixels are multiples of them
//
// by_X packs the division by X (divider.cuh). Every argument has eight bytes.

#include "common/divider.cuh"

typedef unsigned short Element;

// A row of the tensor, and where one vector of its copy begins: at pixel x, at a channel.
struct Row {
    const Element* from;
    int width, channels, pixel, x, channel;
};

// A vector of the copy. Loads: a type of as many bytes as are loaded at once.
template <class Loads>
__device__ __forceinline__ uint4 vector_of(const Row& row) {
    constexpr int COUNT = sizeof(Loads) / sizeof(Element), LOADS = 8 / COUNT;
    union {
        Loads loads[LOADS];
        uint4 vector;
    } copy = {};
    int x = row.x, channel = row.channel;
#pragma unroll
    for (int i = 0; i < LOADS; ++i) {
        if ((unsigned)x < (unsigned)row.width && channel < row.channels)
            copy.loads[i] = *reinterpret_cast<const Loads*>(row.from + (int64)x * row.channels + channel);
        if ((channel += COUNT) == row.pixel) channel = 0, ++x;
    }
    return copy.vector;
}

extern "C" __global__ void pad_channels(const Element* __restrict__ input, const Element* __restrict__ weight,
                                        uint4* __restrict__ padded, int64 input_rows, int64 weight_rows, int64 channels,
                                        int64 pixel, int64 by_pixel, int64 width, int64 kernel_w, int64 left,
                                        int64 input_vectors, int64 by_input_vectors, int64 weight_vectors,
                                        int64 by_weight_vectors, int64 load) {
    const unsigned vector = blockIdx.x * blockDim.x + threadIdx.x;
    const int behind = (int)(vector - (unsigned)(input_rows * input_vectors));  // negative: a vector of the input
    const bool is_input = behind < 0;
    unsigned place, channel;
    const unsigned index = is_input ? Divider(input_vectors, by_input_vectors)(vector, place)
                                    : Divider(weight_vectors, by_weight_vectors)(behind, place);
    const int x = (int)Divider(pixel, by_pixel)(place * 8, channel) - (is_input ? (int)left : 0);
#if __CUDA_ARCH__ >= 900
    wait_for_kernel_ahead();
    launch_dependents();
#endif
    if (!is_input && index >= weight_rows) return;
    const int from_width = (int)(is_input ? width : kernel_w);
    const Element* const from = (is_input ? input : weight) + (int64)index * from_width * channels;
    const Row row = {from, from_width, (int)channels, (int)pixel, x, (int)channel};
    padded[vector] = load == 4   ? vector_of<uint2>(row)
                     : load == 2 ? vector_of<unsigned>(row)
                                 : vector_of<Element>(row);
}
