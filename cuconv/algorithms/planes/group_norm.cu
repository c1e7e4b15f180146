// Group normalisation in plain FP32, then an activation: output = f((input - mean) / sqrt(variance + eps) * weight + bias),
// with the mean and the variance of a group of channels of an image, and a weight and a bias for each channel.
//
// A cluster computes a group of an image, which lies in one piece in memory, and each of its blocks a slice of it:
//
//   1. The slice is copied to shared memory, where it fits.
//   2. Each thread finds the count, the mean and the squared differences of its elements. Those of threads, and then of
//      blocks, are joined two by two (Chan et al., 1979), so that no digits cancel.
//   3. The block normalises its slice. A warp has a channel of it, or a part of one where the slice has few.
//
// BLOCKS  blocks of a cluster
// VECTOR  elements of a load: 4 where planes are a multiple of it, or 1
//
// A group's elements are a multiple of 4. Every argument has eight bytes: a pointer or a long long.

#include "planes/cluster.cuh"
#include "planes/moments.cuh"

#if __CUDA_ARCH__ >= 900
constexpr int WARPS = 16, THREADS = 32 * WARPS;
constexpr int VALUES = 8, LOADS = VALUES / VECTOR;  // a thread finishes as many at a time as activate() computes

// The moments of four elements.
__device__ __forceinline__ Moments moments_of(const float4& x) {
    const float mean = 0.25f * (x.x + x.y + (x.z + x.w));
    const float a = x.x - mean, b = x.y - mean, c = x.z - mean, d = x.w - mean;
    return {4.0f, mean, fmaf(a, a, b * b) + fmaf(c, c, d * d)};
}

struct alignas(VECTOR * 4) Elements {
    float values[VECTOR];
};
#endif

#if BLOCKS > 1
#define CLUSTER __cluster_dims__(BLOCKS, 1, 1)
#else
#define CLUSTER  // clusters of one block start later than blocks
#endif

// slice: elements of a block's slice, a multiple of 4. kept: whether the block copies it to shared memory. epsilon: its
// bits.
extern "C" __global__ void CLUSTER __launch_bounds__(32 * 16)
    group_norm(const float* __restrict__ input, const float* __restrict__ weight, const float* __restrict__ bias,
               float* __restrict__ output, int64 channels, int64 groups, int64 pixels, int64 slice, int64 kept,
               int64 epsilon, int64 activation, int64 numbers) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(16) float shared[];
    __shared__ Moments of_warps[WARPS], of_block;
    __shared__ uint64 slice_there;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, rank = blockIdx.x % BLOCKS;
    const int64 group = blockIdx.x / BLOCKS, group_channels = channels / groups, size = group_channels * pixels;
    const int64 begin = min(size, rank * slice), end = min(size, begin + slice);
    const int elements = (int)(end - begin);
    if (threadIdx.x == 0) {
        barrier_init(&slice_there, 1);
        fence_barrier_init();
    }
    __syncthreads();
    wait_for_kernel_ahead();
    launch_dependents();
    const float* from = input + group * size + begin;
    if (kept && elements) {
        if (threadIdx.x == 0) fetch(shared_address(shared), from, elements * 4, &slice_there);
        from = shared;
        barrier_wait(&slice_there, 0);
    }

    Moments moments = {0.0f, 0.0f, 0.0f};
#pragma unroll 4
    for (int i = threadIdx.x; i < elements / 4; i += THREADS)
        moments.join(moments_of(reinterpret_cast<const float4*>(from)[i]));
    moments.join_lanes();
    if (lane == 0) of_warps[warp] = moments;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < WARPS; ++w) moments.join(of_warps[w]);
        of_block = moments;
    }
#if BLOCKS > 1
    __syncwarp();
    cluster_barrier();
    Moments whole = {0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int block = 0; block < BLOCKS; ++block)
        whole.join({load_remote(block, &of_block.count), load_remote(block, &of_block.mean),
                    load_remote(block, &of_block.squares)});
    cluster_arrive();
#else
    __syncthreads();
    const Moments whole = of_block;
#endif
    const float scale = whole.scale(epsilon);

    // The slice has `channels_of` channels, of which the first begins `before` elements ahead of it. The pixels of a
    // channel are shared by `parts` warps, in whole vectors.
    const int64 first_channel = begin / pixels;
    const int plane = (int)pixels, before = (int)(begin - first_channel * pixels);
    const int channels_of = elements ? (int)((end - 1) / pixels - first_channel) + 1 : 0;
    const int parts = channels_of ? (WARPS + channels_of - 1) / channels_of : 1;
    const int64 first_number = group % groups * group_channels + first_channel;
    float* const to = output + group * size + begin;
    for (int item = warp; item < channels_of * parts; item += WARPS) {
        const int channel = item / parts, part = item % parts;
        const int first = max(0, (int)((int64)channel * plane - before));
        const int after = (int)min((int64)elements, (int64)(channel + 1) * plane - before);
        const int vectors = (after - first) / VECTOR;
        const int start = first + (int)((int64)vectors * part / parts) * VECTOR;
        const int stop = first + (int)((int64)vectors * (part + 1) / parts) * VECTOR;
        const float factor = scale * (weight ? weight[first_number + channel] : 1.0f);
        const float shift = bias ? bias[first_number + channel] : 0.0f;
        for (int i = start + lane * VECTOR; i < stop; i += 32 * VALUES) {
            float values[VALUES] = {};
#pragma unroll
            for (int load = 0; load < LOADS; ++load) {
                const int at = i + load * 32 * VECTOR;
                if (at >= stop) continue;
                const Elements x = *reinterpret_cast<const Elements*>(from + at);
#pragma unroll
                for (int v = 0; v < VECTOR; ++v)
                    values[load * VECTOR + v] = fmaf(x.values[v] - whole.mean, factor, shift);
            }
            activate(values, {activation, numbers});
#pragma unroll
            for (int load = 0; load < LOADS; ++load) {
                const int at = i + load * 32 * VECTOR;
                if (at >= stop) continue;
                Elements y;
#pragma unroll
                for (int v = 0; v < VECTOR; ++v) y.values[v] = values[load * VECTOR + v];
                *reinterpret_cast<Elements*>(to + at) = y;
            }
        }
    }
#if BLOCKS > 1
    __syncwarp();
    cluster_wait();  // no block ends while another one reads its moments
#endif
#endif
}
