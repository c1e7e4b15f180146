// 1x1 convolutions of few channels as plain FP32 sums on the CUDA cores.
//
// With few channels a layer moves many bytes for each multiply-add, so that the CUDA cores keep up with memory. A thread
// holds all channels of its positions in registers and takes eight filters at a time; nothing is staged but weights:
//
//     all threads   weights, bias -> shared memory, by channel; one barrier
//     warp          32 x POSITIONS positions, all channels -> registers, loaded before the barrier
//                   [ eight filters: products, bias, residual, activation -> output ][ the next eight ] ...
//
// Positions are counted over all images. A warp's loads and stores are of 32 neighbours. The warps of a block have
// positions or filters of their own; blocks of other filters of the same positions are neighbours in the grid, so that
// they find the input in the L2 cache.
//
// CHANNELS   channels in registers, the layer's or more
// POSITIONS  positions of a thread
//
// Every argument has eight bytes: a pointer or a long long.

#include "common/activation.cuh"
#include "common/async_copies.cuh"
#include "common/convolution.cuh"
#include "common/divider.cuh"

constexpr int WARPS = 4, FILTERS = 8;  // of a block; filters that a warp multiplies at a time
constexpr int PADDING = 4;             // floats behind a row of weights in shared memory
constexpr int THREADS = 32 * WARPS, TILE = 32 * POSITIONS;
// A thread's, as _registers() in plain_pointwise.py; with fewer the compiler spills. Other GPUs have no limit.
constexpr int REGISTERS = (CHANNELS + FILTERS) * POSITIONS * 5 / 4 + 34;
#if __CUDA_ARCH__ == 900
constexpr int RESIDENT = 65536 / REGISTERS / THREADS;
#else
constexpr int RESIDENT = 1;
#endif

typedef float Sums[FILTERS][POSITIONS];

// Starts to copy the weights of `count` filters to rows of channels, and their bias to one more row. Channels and filters
// that do not exist have zeros.
__device__ __forceinline__ void copy_weights(float* rows, int pitch, const float* weight, const float* bias,
                                             int channels, int count) {
    const int filters = pitch - PADDING;
#pragma unroll 1
    for (int i = threadIdx.x; i < filters * CHANNELS; i += THREADS) {
        const int filter = i / CHANNELS, channel = i % CHANNELS;
        const bool exists = filter < count && channel < channels;
        copy_async(shared_address(rows + channel * pitch + filter), weight + (exists ? filter * channels + channel : 0),
                   exists);
    }
#pragma unroll 1
    for (int filter = threadIdx.x; filter < filters; filter += THREADS) {
        const bool exists = bias && filter < count;
        copy_async(shared_address(rows + CHANNELS * pitch + filter), exists ? bias + filter : weight, exists);
    }
    commit_copies();
}

// The sums of eight filters over all channels. weights: theirs in the first channel's row.
__device__ __forceinline__ void multiply(Sums& sums, const float (&x)[CHANNELS][POSITIONS], const float* weights,
                                         int pitch) {
#pragma unroll
    for (int c = 0; c < CHANNELS; ++c)
#pragma unroll
        for (int half = 0; half < FILTERS; half += 4) {
            const float4 four = *reinterpret_cast<const float4*>(weights + c * pitch + half);
            const float w[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (int f = 0; f < 4; ++f)
#pragma unroll
                for (int i = 0; i < POSITIONS; ++i) {
                    float& sum = sums[half + f][i];
                    sum = c == 0 ? x[c][i] * w[f] : fmaf(x[c][i], w[f], sum);
                }
        }
}

// channels, filters: of the layer. output_planes: of an image of the tensor that the output is a slice of.
// filter_groups: groups of eight filters, which a warp takes in turn. filter_warps: warps of a block with the same
// positions. filter_blocks: blocks of the same positions. After plane, the elements of a channel, follows its packed
// multiplier.
extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
    plain_pointwise(const float* __restrict__ input, const float* __restrict__ weight, const float* __restrict__ bias,
                    float* __restrict__ output, const float* __restrict__ residual, int64 images, int64 channels,
                    int64 filters, int64 output_planes, int64 plane, int64 plane_packed, int64 activation,
                    int64 numbers, int64 filter_groups, int64 filter_warps, int64 filter_blocks) {
    extern __shared__ float rows[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int warp_filters = (int)filter_groups * FILTERS, block_filters = (int)filter_warps * warp_filters;
    const int pitch = block_filters + PADDING;  // 16-byte rows, of which neighbours begin in other banks
    const unsigned tile = blockIdx.x / (unsigned)filter_blocks;
    const int block_filter = (int)(blockIdx.x - tile * (unsigned)filter_blocks) * block_filters;
    const int warp_tile = (int)tile * (WARPS / (int)filter_warps) + warp / (int)filter_warps;
    const int first = warp % (int)filter_warps * warp_filters;  // of the block's filters

    // Positions beyond the last are read as the last one, and not written.
    const int position = warp_tile * TILE + lane, positions = (int)(images * plane);
    const Divider by_plane(plane, plane_packed);
    // The place of the thread's position number i in a tensor with `planes` planes an image.
    const auto place = [&](int i, int64 planes) {
        unsigned pixel;
        const int64 image = by_plane((unsigned)min(position + i * 32, positions - 1), pixel);
        return image * planes * plane + pixel;
    };
    const float* from[POSITIONS];
    float* to[POSITIONS];
#pragma unroll
    for (int i = 0; i < POSITIONS; ++i) {
        from[i] = input + place(i, channels);
        to[i] = output + place(i, output_planes) + (block_filter + first) * plane;
    }
#if __CUDA_ARCH__ >= 900
    wait_for_kernel_ahead((uint64)from[POSITIONS - 1] | (uint64)to[POSITIONS - 1]);
    launch_dependents();
#endif

    float x[CHANNELS][POSITIONS];
#pragma unroll
    for (int c = 0; c < CHANNELS; ++c)
#pragma unroll
        for (int i = 0; i < POSITIONS; ++i) {
            x[c][i] = c < (int)channels ? __ldg(from[i]) : 0.0f;
            from[i] += plane;
        }
    copy_weights(rows, pitch, weight + block_filter * channels, bias ? bias + block_filter : nullptr, (int)channels,
                 (int)filters - block_filter);
    wait_for_copies<0>();
    __syncthreads();

#pragma unroll 1
    for (int filter = first; filter < min(first + warp_filters, (int)filters - block_filter); filter += FILTERS) {
        Sums sums;
        multiply(sums, x, rows + filter, pitch);
        const int count = (int)filters - block_filter - filter;
        if (bias) {
#pragma unroll
            for (int f = 0; f < FILTERS; ++f)
#pragma unroll
                for (int i = 0; i < POSITIONS; ++i) sums[f][i] += rows[CHANNELS * pitch + filter + f];
        }
        if (residual) {
#pragma unroll
            for (int i = 0; i < POSITIONS; ++i) {
                const float* const added = residual + place(i, filters) + (block_filter + filter) * plane;
#pragma unroll
                for (int f = 0; f < FILTERS; ++f)
                    if (f < count && position + i * 32 < positions) sums[f][i] += __ldg(added + f * plane);
            }
        }
        activate(sums, {activation, numbers});
#pragma unroll
        for (int f = 0; f < FILTERS; ++f)
#pragma unroll
            for (int i = 0; i < POSITIONS; ++i) {
                if (f < count && position + i * 32 < positions) *to[i] = sums[f][i];
                to[i] += plane;
            }
    }
}
