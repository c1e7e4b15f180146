// Copies channels-last input and weights of few or odd channels to the workspace, as tensor maps can read them: with
// zeros behind the channels of each pixel, and behind each row.
//
// Every argument has eight bytes. A row of the input is one of an image, which begins with `left` pixels of zeros; a row
// of the weights is one of a filter. The weights' rows follow those of the input. A pixel has `pixel` channels in the
// copies, and a row so many vectors of eight. by_X packs the division by X (divider.cuh). A thread writes a vector, and
// loads `load` channels at once, 1, 2 or 4: channels and pixels are multiples of them.

#include "common/divider.cuh"

typedef unsigned short Element;

// A row of pixels of `channels` channels, and the place of a vector of its copy, where pixels have `pixel`.
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
    const int behind = (int)(vector - (unsigned)(input_rows * input_vectors));
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
