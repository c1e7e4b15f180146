// Squeeze and excitation in plain FP32: each plane of an image times a gate, which follows from the means of all planes.
//
// gate = second(weight_2 * first(weight_1 * means + bias_1) + bias_2), and output[n, c] = input[n, c] * gate[n, c].
//
// A cluster computes an image, and each of its blocks the planes of some channels. In order:
//
//   1. The block's planes and weights are copied to shared memory. Planes that do not fit stay where they are.
//   2. Warps add up the planes, each plane by `parts` warps.
//   3. The block multiplies its means by its columns of weight_1: its part of every hidden value.
//   4. Every block adds up the parts of all blocks, and so has all hidden values.
//   5. The block computes the gates of its channels, and multiplies its planes by them.
//
// All sums are added in the same order at each call.
//
// BLOCKS  blocks of a cluster
//
// Channels are a multiple of 4, so that a block's planes and weights start at multiples of 16 bytes. Every argument has
// eight bytes: a pointer or a long long.

#include "planes/cluster.cuh"

#if __CUDA_ARCH__ >= 900
constexpr int WARPS = 16, THREADS = 32 * WARPS;
constexpr int GATE_LANES = 8;  // lanes that share the sum of a gate

// cp.async.bulk.prefetch.L2: reads bytes into the L2 cache, which a kernel ahead may still write.
__device__ __forceinline__ void prefetch_bulk(const void* source, int bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(source), "r"(bytes));
}
#endif

// weights: of one image's sums, weight_1 transposed and weight_2, each (channels, hidden)
// biases: bias_1 (hidden), then bias_2 (channels)
// kept: whether the block's planes fit into shared memory
extern "C" __global__ void __cluster_dims__(BLOCKS, 1, 1) __launch_bounds__(32 * 16)
    squeeze_excite(const float* __restrict__ input, const float* __restrict__ weights,
                   const float* __restrict__ biases, float* __restrict__ output, int64 channels, int64 pixels,
                   int64 hidden, int64 block_channels, int64 parts, int64 kept, int64 first, int64 first_numbers,
                   int64 second, int64 second_numbers) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(16) float shared[];
    const int rank = blockIdx.x % BLOCKS, image = blockIdx.x / BLOCKS, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int plane = (int)pixels, units = (int)hidden, channel_0 = rank * (int)block_channels;
    const int count = max(0, min((int)block_channels, (int)channels - channel_0));  // channels of the block
    float* const squeezing = shared + (kept ? (int)block_channels * plane : 0);  // the block's columns of weight_1
    float* const exciting = squeezing + (int)block_channels * units;             // its rows of weight_2
    float* const sums = exciting + (int)block_channels * units;                  // the warps' sums of planes
    float* const gates = sums + (int)block_channels * (int)parts;
    float* const of_warps = gates + (int)block_channels;  // the warps' parts of the hidden values
    float* const of_block = of_warps + WARPS * units;     // the block's
    float* const values = of_block + units;               // the hidden values
    __shared__ uint64 weights_there, planes_there;

    const int64 from = ((int64)image * channels + channel_0) * plane, first_weight = (int64)channel_0 * units;
    const int weight_bytes = count * units * 4;
    const float* const second_weights = weights + channels * hidden;
    if (threadIdx.x == 0) {
        barrier_init(&weights_there, 1), barrier_init(&planes_there, 1);
        fence_barrier_init();
        if (count) {
            prefetch_bulk(weights + first_weight, weight_bytes), prefetch_bulk(second_weights + first_weight, weight_bytes);
        }
    }
    __syncthreads();
    wait_for_kernel_ahead();
    launch_dependents();
    if (threadIdx.x == 0 && count) {
        if (kept) fetch(shared_address(shared), input + from, count * plane * 4, &planes_there);
        barrier_expect(&weights_there, 2 * weight_bytes);
        copy_bulk(shared_address(squeezing), weights + first_weight, weight_bytes, &weights_there);
        copy_bulk(shared_address(exciting), second_weights + first_weight, weight_bytes, &weights_there);
    }
    const float* const planes = kept ? shared : input + from;
    if (kept && count) barrier_wait(&planes_there, 0);

    // Pixels of part `i % parts` of plane `i / parts`
    const auto begin = [&](int i) { return (int)((int64)plane * (i % (int)parts) / (int)parts); };
    const auto end = [&](int i) { return (int)((int64)plane * (i % (int)parts + 1) / (int)parts); };
    for (int i = warp; i < count * (int)parts; i += WARPS) {
        const float* const from_plane = planes + (int64)(i / (int)parts) * plane;
        float sum = 0.0f;
#pragma unroll 8
        for (int p = begin(i) + lane; p < end(i); p += 32) sum += from_plane[p];
        sum = add_lanes<32>(sum);
        if (lane == 0) sums[i] = sum;
    }
    __syncthreads();
    if (count) barrier_wait(&weights_there, 0);

    for (int unit = lane; unit < units; unit += 32) {
        float sum = 0.0f;
        for (int c = warp; c < count; c += WARPS) {
            float whole = 0.0f;
            for (int part = 0; part < (int)parts; ++part) whole += sums[c * (int)parts + part];
            sum = fmaf(whole / (float)plane, squeezing[c * units + unit], sum);
        }
        of_warps[warp * units + unit] = sum;
    }
    __syncthreads();
    for (int unit = threadIdx.x; unit < units; unit += THREADS) {
        float sum = 0.0f;
        for (int w = 0; w < WARPS; ++w) sum += of_warps[w * units + unit];
        of_block[unit] = sum;
    }
    __syncwarp();
    cluster_barrier();
    for (int unit = threadIdx.x; unit < units; unit += THREADS) {
        float sum = 0.0f;
#pragma unroll
        for (int block = 0; block < BLOCKS; ++block) sum += load_remote(block, of_block + unit);
        values[unit] = activated(sum + biases[unit], {first, first_numbers});
    }
    __syncwarp();
    cluster_arrive();
    __syncthreads();

    for (int i = threadIdx.x; i < count * GATE_LANES; i += THREADS) {  // whole warps: channels are a multiple of 4
        const int c = i / GATE_LANES;
        float sum = 0.0f;
        for (int unit = i % GATE_LANES; unit < units; unit += GATE_LANES)
            sum = fmaf(exciting[c * units + unit], values[unit], sum);
        sum = add_lanes<GATE_LANES>(sum) + biases[units + channel_0 + c];
        if (i % GATE_LANES == 0) gates[c] = activated(sum, {second, second_numbers});
    }
    __syncthreads();
    for (int i = warp; i < count * (int)parts; i += WARPS) {
        const int c = i / (int)parts;
        const float gate = gates[c];
        const float* const from_plane = planes + (int64)c * plane;
        float* const to = output + from + (int64)c * plane;
#pragma unroll 4
        for (int p = begin(i) + lane; p < end(i); p += 32) to[p] = from_plane[p] * gate;
    }
    __syncwarp();
    cluster_wait();
#endif
}
