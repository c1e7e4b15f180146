// The paper's convolution (section 3): dot products of filter rows, then a sum over filter positions.
//
// A filter row is the C weights of one filter at one position (ky, kx). Stage one, scalar_prods, gives each block ROWS
// filter rows of one position, which it keeps in shared memory. Each thread has DOTS output pixels and forms their dot
// products with the rows along the channels. Neighbouring threads have neighbouring pixels of a row, so that reads of
// the NCHW input are coalesced. Stage two, sum_planes, adds the kh*kw temporary planes of each output plane. The last
// stage, which is stage one for a 1x1 filter, also adds the bias, unless its pointer is null, and computes the
// activation.
//
// ROWS   filter rows of a block: consecutive filters at one position
// DOTS   output pixels of a thread
// LOADS  input elements that a thread requests before it uses the first. They hide the latency of memory, which few
//        resident threads cannot do at batch 1.
//
// Every argument has eight bytes: a pointer or a long long.

#include "common/activation.cuh"

constexpr int GROUP = LOADS / DOTS;  // channels whose elements are in flight together
constexpr int QUAD = 4;              // channels whose weights are read together, as vectors

// Adds one group of channels to the dot products. `rows` points to the group's weights, [GROUP][ROWS]. Unless `whole`,
// only the first `count` channels of the group exist.
template <bool whole>
__device__ __forceinline__ void add_group(float (&sum)[DOTS][ROWS], const float* (&source)[DOTS],
                                          const bool (&inside)[DOTS], const float* rows, int64 input_plane, int count) {
    float value[GROUP][DOTS];
#pragma unroll
    for (int c = 0; c < GROUP; ++c)
#pragma unroll
        for (int d = 0; d < DOTS; ++d) {
            // Padding is multiplied as zeros, so that a NaN or Inf weight gives NaN there, as in a padded sum.
            const bool exists = whole || c < count;
            value[c][d] = inside[d] && exists ? *source[d] : 0.0f;
            source[d] += exists ? input_plane : 0;
        }
#pragma unroll
    for (int quad = 0; quad < GROUP; quad += QUAD) {
        float weight[QUAD * ROWS];
#pragma unroll
        for (int i = 0; i < QUAD * ROWS; i += 4)
            *reinterpret_cast<float4*>(weight + i) = *reinterpret_cast<const float4*>(rows + quad * ROWS + i);
#pragma unroll
        for (int c = 0; c < QUAD; ++c)
#pragma unroll
            for (int d = 0; d < DOTS; ++d)
#pragma unroll
                for (int r = 0; r < ROWS; ++r)
                    sum[d][r] = fmaf(value[quad + c][d], weight[c * ROWS + r], sum[d][r]);
    }
}

// planes: [kh*kw][images][m][out_h*out_w]; for a 1x1 filter, the output itself.
// Grid: one dimension, over groups of filters (fastest), positions and groups of pixels. Blocks that run together thus
// read the same input.
extern "C" __global__ void scalar_prods(const float* __restrict__ input, const float* __restrict__ weight,
                                        float* __restrict__ planes, int64 images, int64 channels, int64 height,
                                        int64 width, int64 filters, int64 kernel_h, int64 kernel_w, int64 pad_h,
                                        int64 pad_w, int64 out_h, int64 out_w, int64 channels_per_pass,
                                        const float* __restrict__ bias, int64 activation, int64 numbers) {
    extern __shared__ __align__(16) float rows[];  // [channels_per_pass][ROWS], a whole number of groups

    const int filter_groups = (filters + ROWS - 1) / ROWS;
    const int positions = kernel_h * kernel_w;
    const int filter = (blockIdx.x % filter_groups) * ROWS;
    const int position = (blockIdx.x / filter_groups) % positions;
    const int pixel_block = blockIdx.x / (filter_groups * positions);
    const int shift_y = position / (int)kernel_w - (int)pad_h;
    const int shift_x = position % (int)kernel_w - (int)pad_w;

    const int out_pixels = out_h * out_w;
    const int dots = images * out_pixels;
    const int64 input_plane = height * width;

    const float* source[DOTS];
    int64 target[DOTS];
    bool inside[DOTS], stored[DOTS];
#pragma unroll
    for (int d = 0; d < DOTS; ++d) {
        const int64 dot = ((int64)pixel_block * DOTS + d) * blockDim.x + threadIdx.x;
        stored[d] = dot < dots;
        const int image = stored[d] ? (int)dot / out_pixels : 0;
        const int pixel = stored[d] ? (int)dot % out_pixels : 0;
        const int y = pixel / (int)out_w + shift_y;
        const int x = pixel % (int)out_w + shift_x;
        inside[d] = stored[d] && y >= 0 && y < height && x >= 0 && x < width;
        source[d] = input + image * channels * input_plane + (inside[d] ? y * width + x : 0);
        target[d] = (position * images + image) * filters * out_pixels + pixel;
    }

    float sum[DOTS][ROWS] = {};
    for (int first = 0; first < channels; first += channels_per_pass) {
        const int count = min((int)channels_per_pass, (int)channels - first);
        const int padded = (count + GROUP - 1) / GROUP * GROUP;
        __syncthreads();
        for (int i = threadIdx.x; i < padded * ROWS; i += blockDim.x) {
            const int r = i / padded, c = i % padded;
            const int64 row = (filter + r) * channels + first + c;
            rows[c * ROWS + r] = c < count && filter + r < filters ? weight[row * positions + position] : 0.0f;
        }
        __syncthreads();

        int c = 0;
        for (; c + GROUP <= count; c += GROUP)
            add_group<true>(sum, source, inside, rows + c * ROWS, input_plane, GROUP);
        if (c < count) add_group<false>(sum, source, inside, rows + c * ROWS, input_plane, count - c);
    }

#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        if (filter + r >= filters) break;
        const float shift = bias ? bias[filter + r] : 0.0f;
        float outputs[DOTS];
#pragma unroll
        for (int d = 0; d < DOTS; ++d) outputs[d] = sum[d][r] + shift;
        activate(outputs, {activation, numbers});
#pragma unroll
        for (int d = 0; d < DOTS; ++d)
            if (stored[d]) planes[target[d] + (int64)(filter + r) * out_pixels] = outputs[d];
    }
}

// output[i] = sum over the filter positions of planes[position][i], for i < size = images*filters*out_pixels. Each
// thread computes one element.
extern "C" __global__ void sum_planes(const float* __restrict__ planes, float* __restrict__ output, int64 size,
                                      int64 positions, int64 filters, int64 out_pixels, const float* __restrict__ bias,
                                      int64 activation, int64 numbers) {
    const int64 i = (int64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= size) return;
    const float shift = bias ? bias[i / out_pixels % filters] : 0.0f;  // requested first: arrives with the planes
    float sum = 0.0f;
#pragma unroll 9
    for (int p = 0; p < (int)positions; ++p) sum += planes[p * size + i];
    output[i] = activated(sum + shift, {activation, numbers});
}
