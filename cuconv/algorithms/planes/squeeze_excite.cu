// Squeeze and excitation in plain FP32: each plane of an image times a gate, which follows from the means of all planes.
//
// output[n, c] = input[n, c] * gate[n, c], with the gates of excitation.cuh.
//
// A cluster computes an image, and each of its blocks the planes of some channels. In order:
//
//   1. The block's planes and weights are copied to shared memory. Planes that do not fit stay where they are.
//   2. Warps add up the planes, each plane by `parts` warps.
//   3. The cluster computes the gates, and the block multiplies its planes by them.
//
// All sums are added in the same order at each call.
//
// BLOCKS  blocks of a cluster
//
// Channels are a multiple of 4, so that a block's planes and weights start at multiples of 16 bytes. Every argument has
// eight bytes: a pointer or a long long.

#include "planes/excitation.cuh"

// weights: of one image's sums, weight_1 transposed and weight_2, each (channels, hidden)
// biases: bias_1 (hidden), then bias_2 (channels)
// kept: whether the block's planes fit into shared memory
extern "C" __global__ void __cluster_dims__(BLOCKS, 1, 1) __launch_bounds__(THREADS)
    squeeze_excite(const float* __restrict__ input, const float* __restrict__ weights,
                   const float* __restrict__ biases, float* __restrict__ output, int64 channels, int64 pixels,
                   int64 hidden, int64 block_channels, int64 parts, int64 kept, int64 first, int64 first_numbers,
                   int64 second, int64 second_numbers) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(16) float shared[];
    __shared__ uint64 weights_there, planes_there;
    const int rank = blockIdx.x % BLOCKS, image = blockIdx.x / BLOCKS, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int plane = (int)pixels;
    const Excitation excitation(shared + (kept ? (int)block_channels * plane : 0), rank * (int)block_channels,
                                (int)channels, (int)block_channels, (int)hidden, (int)parts);
    const int count = excitation.count;
    const int64 from = ((int64)image * channels + excitation.first) * plane;
    if (threadIdx.x == 0) {
        barrier_init(&weights_there, 1), barrier_init(&planes_there, 1);
        fence_barrier_init();
        excitation.prefetch_weights(weights, channels);
    }
    __syncthreads();
    wait_for_kernel_ahead();
    launch_dependents();
    if (threadIdx.x == 0) {
        if (kept && count) fetch(shared_address(shared), input + from, count * plane * 4, &planes_there);
        excitation.fetch_weights(weights, channels, &weights_there);
    }
    const float* const planes = kept ? shared : input + from;
    if (kept && count) barrier_wait(&planes_there, 0);

    // Pixels of part `i % parts` of plane `i / parts`
    const auto begin = [&](int i) { return (int)((int64)plane * (i % (int)parts) / (int)parts); };
    const auto end = [&](int i) { return (int)((int64)plane * (i % (int)parts + 1) / (int)parts); };
    for (int i = warp; i < count * (int)parts; i += WARPS) {
        const int c = i / (int)parts, part = i % (int)parts;
        const float* const from_plane = planes + (int64)c * plane;
        float sum = 0.0f;
#pragma unroll 8
        for (int p = begin(i) + lane; p < end(i); p += 32) sum += from_plane[p];
        sum = add_lanes<32>(sum);
        if (lane == 0) excitation.sums[part * excitation.room + c] = sum;
    }
    excitation.compute_gates((int)parts, plane, biases, &weights_there, {first, first_numbers},
                             {second, second_numbers});
    for (int i = warp; i < count * (int)parts; i += WARPS) {
        const int c = i / (int)parts;
        const float gate = excitation.gates[c];
        const float* const from_plane = planes + (int64)c * plane;
        float* const to = output + from + (int64)c * plane;
#pragma unroll 4
        for (int p = begin(i) + lane; p < end(i); p += 32) to[p] = from_plane[p] * gate;
    }
    __syncwarp();
    cluster_wait();
#endif
}
