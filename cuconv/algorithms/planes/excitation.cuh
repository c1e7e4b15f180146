// The gates of squeeze and excitation, which follow from sums of an image's channels:
//
// gates = second(weight_2 * first(weight_1 * means + bias_1) + bias_2)
//
// A cluster computes an image. A block has sums of some channels, over all pixels or a slice of them: hidden values are
// linear in the sums, so the blocks' parts of them add up either way. In order:
//
//   1. The block multiplies its means by its columns of weight_1: its part of every hidden value.
//   2. Every block adds up the parts of all blocks, and so has all hidden values.
//   3. The block computes the gates of its channels.
//
// All sums are added in the same order at each call. BLOCKS: blocks of a cluster.
#pragma once

#include "planes/cluster.cuh"

constexpr int WARPS = 16, THREADS = 32 * WARPS;
constexpr int GATE_LANES = 8;  // lanes that share the sum of a gate

#if __CUDA_ARCH__ >= 900
// cp.async.bulk.prefetch.L2: reads bytes into the L2 cache, which a kernel ahead may still write.
__device__ __forceinline__ void prefetch_bulk(const void* source, int bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(source), "r"(bytes));
}

// A block's channels, and its shared memory.
struct Excitation {
    int first, count, room;  // the block's first channel, its channels, and the most channels of a block
    int units;               // hidden values
    float *squeezing, *exciting;  // the block's columns of weight_1 and rows of weight_2
    float *sums, *gates;          // sums: rows of `room` channels
    float *of_warps, *of_block;   // parts of the hidden values
    float *values;                // the hidden values

    // rows: of sums, for which there is memory
    __device__ __forceinline__ Excitation(float* memory, int first, int channels, int room, int units, int rows)
        : first(first),
          count(max(0, min(room, channels - first))),
          room(room),
          units(units),
          squeezing(memory),
          exciting(squeezing + room * units),
          sums(exciting + room * units),
          gates(sums + room * rows),
          of_warps(gates + room),
          of_block(of_warps + WARPS * units),
          values(of_block + units) {}

    // weights: weight_1 transposed and weight_2, each (channels, hidden)
    __device__ __forceinline__ void prefetch_weights(const float* weights, int64 channels) const {
        if (count == 0) return;
        prefetch_bulk(weights + (int64)first * units, count * units * 4);
        prefetch_bulk(weights + (channels + first) * units, count * units * 4);
    }
    __device__ __forceinline__ void fetch_weights(const float* weights, int64 channels, uint64* barrier) const {
        if (count == 0) return;
        const int bytes = count * units * 4;
        barrier_expect(barrier, 2 * bytes);
        copy_bulk(shared_address(squeezing), weights + (int64)first * units, bytes, barrier);
        copy_bulk(shared_address(exciting), weights + (channels + first) * units, bytes, barrier);
    }

    // Computes the gates of `rows` rows of sums over so many pixels of the image. All threads call it. Afterwards no
    // block may end before cluster_wait().
    __device__ __forceinline__ void compute_gates(int rows, int pixels, const float* biases, uint64* weights_there,
                                                  const Activation& inner, const Activation& outer) const {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        __syncthreads();
        if (count) barrier_wait(weights_there, 0);
        for (int unit = lane; unit < units; unit += 32) {
            float sum = 0.0f;
            for (int c = warp; c < count; c += WARPS) {
                float whole = 0.0f;
                for (int row = 0; row < rows; ++row) whole += sums[row * room + c];
                sum = fmaf(whole / (float)pixels, squeezing[c * units + unit], sum);
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
            values[unit] = activated(sum + biases[unit], inner);
        }
        __syncwarp();
        cluster_arrive();
        __syncthreads();
        for (int i = threadIdx.x; i < count * GATE_LANES; i += THREADS) {  // whole warps: channels are a multiple of 4
            const int c = i / GATE_LANES;
            float sum = 0.0f;
            for (int unit = i % GATE_LANES; unit < units; unit += GATE_LANES)
                sum = fmaf(exciting[c * units + unit], values[unit], sum);
            sum = add_lanes<GATE_LANES>(sum) + biases[units + first + c];
            if (i % GATE_LANES == 0) gates[c] = activated(sum, outer);
        }
        __syncthreads();
    }
};
#endif
