// The part of fp16x3 that splits the weights: a kernel of its own, ahead of the main one.
#pragma once

#include "fp16x3.cuh"

constexpr int SPLIT_THREADS = 512, WARPS = SPLIT_THREADS / 32;
constexpr int AT_A_TIME = TAPS > 25 ? 2 : 4;  // filters of a warp

// A block splits the weights of a tile of filters and a chunk of channels: each filter scaled to a maximum of 2^8 to
// 2^9, then each channel likewise, which the input makes up for.
extern "C" __global__ void __launch_bounds__(SPLIT_THREADS)
    split_weights(const float* __restrict__ weight, void* __restrict__ workspace, int64 filters, int64 channels,
                  int64 blocks) {
    asm volatile("griddepcontrol.launch_dependents;");
    constexpr int LENGTH = CHANNELS * TAPS, LD = LENGTH | 1, ITERATIONS = (LENGTH + 31) / 32;
    extern __shared__ float tile[];  // [BF][LD]
    __shared__ float channel_scales[CHANNELS];
    __shared__ unsigned channel_max[CHANNELS];
    const int chunks = (channels + CHANNELS - 1) / CHANNELS;
    const int filter_0 = blockIdx.x / chunks * BF, channel_0 = blockIdx.x % chunks * CHANNELS;
    const int row_length = min(CHANNELS, (int)channels - channel_0) * TAPS;
    const Workspace to(workspace, gridDim.x, blocks);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    for (int i = threadIdx.x; i < CHANNELS; i += SPLIT_THREADS) channel_max[i] = 0;
    asm volatile("griddepcontrol.wait;" ::: "memory");
    if (blockIdx.x == 0)
        for (int i = threadIdx.x; i < 2 * blocks; i += SPLIT_THREADS) to.flags[i] = 0;
    // A warp takes a filter at a time, and asks for several before it looks at the first.
    float column_max[ITERATIONS] = {};
#pragma unroll
    for (int first = 0; first < BF; first += WARPS * AT_A_TIME) {
        float values[AT_A_TIME][ITERATIONS];
#pragma unroll
        for (int j = 0; j < AT_A_TIME; ++j) {
            const int filter = filter_0 + first + j * WARPS + warp;
            const float* const from = weight + ((int64)filter * channels + channel_0) * TAPS + lane;
#pragma unroll
            for (int i = 0; i < ITERATIONS; ++i)
                values[j][i] = filter < filters && lane + i * 32 < row_length ? from[i * 32] : 0.0f;
        }
#pragma unroll
        for (int j = 0; j < AT_A_TIME; ++j) {
            const int filter = first + j * WARPS + warp;
            unsigned most = 0;
#pragma unroll
            for (int i = 0; i < ITERATIONS; ++i) most = max(most, finite_magnitude(values[j][i]));
            most = __reduce_max_sync(~0u, most);
            const int exponent = max((int)(most >> 23) - 127, -110) - 8;
            if (lane == 0)
                const_cast<int*>(to.exponents)[(int64)blockIdx.x * BF + filter] = most ? exponent : EMPTY;
#pragma unroll
            for (int i = 0; i < ITERATIONS; ++i) {
                const float scaled = values[j][i] * power_of_two(-exponent);
                if (lane + i * 32 < LENGTH) tile[filter * LD + lane + i * 32] = scaled;
                column_max[i] = fmaxf(column_max[i], __uint_as_float(finite_magnitude(scaled)));
            }
        }
    }
    __syncthreads();  // channel_max is zero
#pragma unroll
    for (int i = 0; i < ITERATIONS; ++i)
        if (lane + i * 32 < LENGTH) atomicMax(&channel_max[(lane + i * 32) / TAPS], __float_as_uint(column_max[i]));
    __syncthreads();

    // A channel's scale is 1 where its maximum is 2^8 to 2^9, less where it is smaller.
    for (int c = threadIdx.x; c < CHANNELS; c += SPLIT_THREADS) {
        const int exponent = max((int)(channel_max[c] >> 23) - 127 - 8, -126);
        channel_scales[c] = power_of_two(-exponent);
        const_cast<float*>(to.channel_scales)[(int64)blockIdx.x * CHANNELS + c] =
            channel_max[c] ? power_of_two(exponent) : 0.0f;
    }
    __syncthreads();
    char* const rows = const_cast<char*>(to.rows) + (int64)blockIdx.x * ROWS * ROW_BYTES;
    for (int i = threadIdx.x; i < ROWS * STEPS * 2 * BF; i += SPLIT_THREADS) {
        const int filter = i % BF, group = i / BF % 2, step = i / (2 * BF) % STEPS, row = i / (2 * BF * STEPS);
        const int channel = row / KH * ROW_CHANNELS + step % DEPTHS * 16 + group * 8;
        const int tap = row % KH * KW + step / DEPTHS;
        float values[8];
#pragma unroll
        for (int c = 0; c < 8; ++c)
            values[c] = tile[filter * LD + (channel + c) * TAPS + tap] * channel_scales[channel + c];
        uint4 high, low;
        split(values, high, low);
        char* const target = rows + (int64)row * ROW_BYTES + ((step * 2 + group) * BF + filter) * 16;
        *reinterpret_cast<uint4*>(target) = high;
        *reinterpret_cast<uint4*>(target + WEIGHT_PART) = low;
    }
}
