// Squeeze and excitation of channels-last images in FP16 or BF16: FP32 sums and gates, and outputs that are rounded once.
//
// output[n, c] = input[n, c] * gate[n, c], with the gates of excitation.cuh.
//
// A cluster computes an image. Its blocks share the channels in `channel_blocks` parts, and the pixels in
// BLOCKS / channel_blocks slices. In order:
//
//   1. Threads add up their vectors, and keep them in shared memory where they fit. Weights are copied meanwhile.
//   2. The rows of sums, one for each phase, become `parts` rows.
//   3. The cluster computes the gates, and the block multiplies its pixels by those of its channels.
//
// All sums are added in the same order at each call.
//
// BLOCKS  blocks of a cluster
// BF16    1 for BF16, 0 for FP16
//
// Channels are a multiple of 8. Every argument has eight bytes: a pointer or a long long.

#include "planes/excitation.cuh"
#include "planes/pixels.cuh"

// weights: weight_1 transposed and weight_2, each (channels, hidden)
// biases: bias_1 (hidden), then bias_2 (channels)
// block_channels, block_pixels: those of a block's part. kept: whether it fits into shared memory
extern "C" __global__ void __cluster_dims__(BLOCKS, 1, 1) __launch_bounds__(THREADS)
    nhwc_squeeze_excite(const uint4* __restrict__ input, const float* __restrict__ weights,
                        const float* __restrict__ biases, uint4* __restrict__ output, int64 channels, int64 pixels,
                        int64 hidden, int64 channel_blocks, int64 block_channels, int64 block_pixels, int64 phases,
                        int64 parts, int64 kept, int64 first, int64 first_numbers, int64 second,
                        int64 second_numbers) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(16) unsigned char shared[];
    __shared__ uint64 weights_there;
    const int rank = blockIdx.x % BLOCKS, image = blockIdx.x / BLOCKS;
    const int room = (int)block_channels, vectors = room / VECTOR, row = (int)channels / VECTOR;
    uint4* const stored = reinterpret_cast<uint4*>(shared);
    const Excitation excitation(reinterpret_cast<float*>(stored + (kept ? (int)block_pixels * vectors : 0)),
                                rank % (int)channel_blocks * room, (int)channels, room, (int)hidden, (int)phases);
    const int64 pixel = min(pixels, rank / (int)channel_blocks * block_pixels);
    const Pixels part(vectors, excitation.count / VECTOR, (int)phases, row,
                      (image * pixels + pixel) * row + excitation.first / VECTOR,
                      (int)min(block_pixels, pixels - pixel));
    if (threadIdx.x == 0) {
        barrier_init(&weights_there, 1);
        fence_barrier_init();
        excitation.prefetch_weights(weights, channels);
    }
    __syncthreads();
    wait_for_kernel_ahead();
    launch_dependents();
    if (threadIdx.x == 0) excitation.fetch_weights(weights, channels, &weights_there);

    float sums[VECTOR] = {};
    part.read<8>(input, kept ? stored : nullptr, [&](const float(&values)[VECTOR]) {
#pragma unroll
        for (int i = 0; i < VECTOR; ++i) sums[i] += values[i];
    });
    float* const rows = excitation.sums;
    if (part.phase < (int)phases) store_row(rows + part.phase * room + part.vector * VECTOR, sums);
    __syncthreads();
    for (int i = threadIdx.x; i < room * (int)parts; i += THREADS) {  // row i / room, which no other thread reads
        float sum = 0.0f;
        for (int other = i; other < room * (int)phases; other += room * (int)parts) sum += rows[other];
        rows[i] = sum;
    }
    excitation.compute_gates((int)parts, (int)pixels, biases, &weights_there, {first, first_numbers},
                             {second, second_numbers});
    float gates[VECTOR];
    load_row(gates, excitation.gates + part.vector * VECTOR);
    part.write<8>(input, kept ? stored : nullptr, output, [&](float(&values)[VECTOR]) {
#pragma unroll
        for (int i = 0; i < VECTOR; ++i) values[i] *= gates[i];
    });
    __syncwarp();
    cluster_wait();
#endif
}
