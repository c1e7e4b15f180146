// Depthwise convolution of channels-last tensors in FP16 or BF16: plain FP32 sums, rounded once.
//
// A vector is eight channels of a pixel, which are one load of 16 bytes. A thread computes a vector of ROWS x COLUMNS
// neighbouring output pixels, a strip; it reads each row of the strip's window once. Neighbouring threads have
// neighbouring vectors, `vectors` of them, and then the next strip. A block computes strip after strip of the same
// channels, whose weights it has in shared memory as floats: [filter position][half of a vector][vector][4 channels].
//
// BF16                1 for BF16, 0 for FP16
// KERNEL_H, KERNEL_W  the filter's rows and columns, with dilation 1; 0 where all of the geometry is an argument
// STRIDE              of both axes, where the filter is a macro
//
// Every argument has eight bytes. by_X packs the division by X (divider.cuh). strips: of the whole output. positions:
// strips that a block computes at a time. whole: whether output and residual are read and written by vectors.
// weights_early: whether the weights may be read before the kernel ahead ends.

#include "channels_last/element.cuh"
#include "common/activation.cuh"
#include "common/divider.cuh"

constexpr int MAX_THREADS = 256, VECTOR = 8;
constexpr bool GENERAL = KERNEL_W == 0;

// The numbers of a vector; zeros where it is outside of the image.
__device__ __forceinline__ void load(float (&values)[VECTOR], const Element* from, bool inside) {
    uint4 vector = make_uint4(0, 0, 0, 0);
    if (inside) vector = __ldg(reinterpret_cast<const uint4*>(from));
    const unsigned pairs[] = {vector.x, vector.y, vector.z, vector.w};
#pragma unroll
    for (int i = 0; i < VECTOR; ++i) values[i] = value_of((Element)(pairs[i / 2] >> i % 2 * 16));
}

// Sizes of a layer.
struct Layer {
    int height, width, channels, kernel_h, kernel_w, stride_h, stride_w, dilation_h, dilation_w;
};

// A thread's place: its input, from the first pixel of an image on, and where the strip's window starts in the image.
struct Window {
    const Element* image;
    int y, x;

    __device__ __forceinline__ void read(float (&values)[VECTOR], int row, int column, const Layer& layer) const {
        const bool inside = (unsigned)row < (unsigned)layer.height && (unsigned)column < (unsigned)layer.width;
        load(values, image + ((int64)row * layer.width + column) * layer.channels, inside);
    }
};

// The weights of a filter position for a thread's vector.
struct Weights {
    const float4* start;  // the vector's first four channels at filter position 0
    int vectors;

    __device__ __forceinline__ void read(float (&values)[VECTOR], int position) const {
        const float4 low = start[position * 2 * vectors], high = start[(position * 2 + 1) * vectors];
        values[0] = low.x, values[1] = low.y, values[2] = low.z, values[3] = low.w;
        values[4] = high.x, values[5] = high.y, values[6] = high.z, values[7] = high.w;
    }
};

// Adds the products of a strip, in the order of the filter positions.
__device__ __forceinline__ void multiply(float (&sums)[ROWS][COLUMNS][VECTOR], const Window& window,
                                         const Weights& weights, const Layer& layer) {
    float weight[VECTOR];
#if KERNEL_W
    constexpr int WINDOW_ROWS = (ROWS - 1) * STRIDE + KERNEL_H, WINDOW_COLUMNS = (COLUMNS - 1) * STRIDE + KERNEL_W;
#pragma unroll
    for (int row = 0; row < WINDOW_ROWS; ++row) {
        float values[WINDOW_COLUMNS][VECTOR];
#pragma unroll
        for (int column = 0; column < WINDOW_COLUMNS; ++column)
            window.read(values[column], window.y + row, window.x + column, layer);
#pragma unroll
        for (int y = 0; y < ROWS; ++y) {
            const int ky = row - y * STRIDE;
            if (ky < 0 || ky >= KERNEL_H) continue;
#pragma unroll
            for (int kx = 0; kx < KERNEL_W; ++kx) {
                weights.read(weight, ky * KERNEL_W + kx);
#pragma unroll
                for (int x = 0; x < COLUMNS; ++x)
#pragma unroll
                    for (int i = 0; i < VECTOR; ++i)
                        sums[y][x][i] = fmaf(values[x * STRIDE + kx][i], weight[i], sums[y][x][i]);
            }
        }
    }
#else
    for (int ky = 0; ky < layer.kernel_h; ++ky)
#pragma unroll 2
        for (int kx = 0; kx < layer.kernel_w; ++kx) {
            weights.read(weight, ky * layer.kernel_w + kx);
#pragma unroll
            for (int y = 0; y < ROWS; ++y)
#pragma unroll
                for (int x = 0; x < COLUMNS; ++x) {
                    float values[VECTOR];
                    window.read(values, window.y + y * layer.stride_h + ky * layer.dilation_h,
                                window.x + x * layer.stride_w + kx * layer.dilation_w, layer);
#pragma unroll
                    for (int i = 0; i < VECTOR; ++i) sums[y][x][i] = fmaf(values[i], weight[i], sums[y][x][i]);
                }
        }
#endif
}

// Bias, residual and activation of a vector's sums, which are then rounded and written.
__device__ __forceinline__ void finish(float (&sums)[VECTOR], const float (&bias)[VECTOR], const Element* residual,
                                       Element* output, const Activation& activation, bool whole) {
#pragma unroll
    for (int i = 0; i < VECTOR; ++i) sums[i] += bias[i];
    if (residual) {
        float more[VECTOR];
        if (whole) {
            load(more, residual, true);
        } else {
#pragma unroll
            for (int i = 0; i < VECTOR; ++i) more[i] = value_of(residual[i]);
        }
#pragma unroll
        for (int i = 0; i < VECTOR; ++i) sums[i] += more[i];
    }
    activate(sums, activation);
    const uint4 vector = make_uint4(packed(sums[0], sums[1]), packed(sums[2], sums[3]), packed(sums[4], sums[5]),
                                    packed(sums[6], sums[7]));
    if (whole) {
        *reinterpret_cast<uint4*>(output) = vector;
        return;
    }
    const unsigned pairs[] = {vector.x, vector.y, vector.z, vector.w};
#pragma unroll
    for (int i = 0; i < VECTOR; ++i) output[i] = (Element)(pairs[i / 2] >> i % 2 * 16);
}

extern "C" __global__ void __launch_bounds__(MAX_THREADS)
    nhwc_depthwise(const Element* __restrict__ input, const Element* __restrict__ weight, const Element* bias,
                   const Element* residual, Element* output, int64 output_stride, int64 channels, int64 height,
                   int64 width, int64 out_h, int64 out_w, int64 pad_h, int64 pad_w, int64 kernel_h, int64 kernel_w,
                   int64 stride_h, int64 stride_w, int64 dilation_h, int64 dilation_w, int64 strips, int64 strips_down,
                   int64 by_strips_down, int64 strips_along, int64 by_strips_along, int64 vectors, int64 by_vectors,
                   int64 positions, int64 channel_blocks, int64 by_channel_blocks, int64 activation, int64 numbers,
                   int64 whole, int64 weights_early) {
    extern __shared__ __align__(16) float shared[];
    const Layer layer = {(int)height, (int)width, (int)channels, (int)kernel_h, (int)kernel_w, (int)stride_h,
                         (int)stride_w, (int)dilation_h, (int)dilation_w};
    unsigned channel_block, vector;
    const int block = Divider(channel_blocks, by_channel_blocks)(blockIdx.x, channel_block);
    const int position = Divider(vectors, by_vectors)(threadIdx.x, vector);
    const int first_channel = channel_block * (int)vectors * VECTOR, channel = first_channel + vector * VECTOR;
    const int taps = GENERAL ? (int)(kernel_h * kernel_w) : KERNEL_H * KERNEL_W;
    const int elements = min((int)vectors * VECTOR, (int)channels - first_channel) * taps;
#if __CUDA_ARCH__ >= 900
    if (!weights_early) wait_for_kernel_ahead();
#endif
#pragma unroll 2
    for (int i = threadIdx.x * VECTOR; i < elements; i += blockDim.x * VECTOR) {
        float values[VECTOR];
        load(values, weight + (int64)first_channel * taps + i, true);
#pragma unroll
        for (int j = 0; j < VECTOR; ++j) {
            const int filter = (i + j) / taps, tap = i + j - filter * taps;
            shared[((tap * 2 + filter / 4 % 2) * (int)vectors + filter / VECTOR) * 4 + filter % 4] = values[j];
        }
    }
    __syncthreads();
#if __CUDA_ARCH__ >= 900
    if (weights_early) wait_for_kernel_ahead();
    launch_dependents();
#endif
    if (position >= positions || channel >= channels) return;
    const Weights weights = {reinterpret_cast<const float4*>(shared) + vector, (int)vectors};
    float biases[VECTOR];
#pragma unroll
    for (int i = 0; i < VECTOR; ++i) biases[i] = bias ? value_of(bias[channel + i]) : 0.0f;

    const Divider along(strips_along, by_strips_along), down(strips_down, by_strips_down);
    const int step = gridDim.x / (unsigned)channel_blocks * (unsigned)positions;
    for (unsigned strip = block * (unsigned)positions + position; strip < strips; strip += step) {
        unsigned strip_x, strip_y;
        const int64 image = down(along(strip, strip_x), strip_y);
        const int x = strip_x * COLUMNS, y = strip_y * ROWS;
        const Window window = {input + image * height * width * channels + channel,
                               y * (GENERAL ? (int)stride_h : STRIDE) - (int)pad_h,
                               x * (GENERAL ? (int)stride_w : STRIDE) - (int)pad_w};
        float sums[ROWS][COLUMNS][VECTOR] = {};
        multiply(sums, window, weights, layer);
#pragma unroll
        for (int i = 0; i < ROWS; ++i)
#pragma unroll
            for (int j = 0; j < COLUMNS; ++j) {
                if (y + i >= out_h || x + j >= out_w) continue;
                const int64 pixel = (image * out_h + y + i) * out_w + x + j;
                finish(sums[i][j], biases, residual ? residual + pixel * channels + channel : nullptr,
                       output + pixel * output_stride + channel, {activation, numbers}, whole != 0);
            }
    }
}
