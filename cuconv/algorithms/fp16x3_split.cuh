// The part of fp16x3 that splits the weights: a kernel of its own, ahead of the main one.
#pragma once

#include "fp16x3.cuh"

constexpr int SPLIT_THREADS = 512;

// A block splits the weights of a tile of filters and a chunk of channels: each filter scaled to a maximum of 2^8 to
// 2^9, then each channel likewise, which the input makes up for.
extern "C" __global__ void __launch_bounds__(SPLIT_THREADS)
    split_weights(const float* __restrict__ weight, void* __restrict__ workspace, int64 filters, int64 channels,
                  int64 blocks) {
    asm volatile("griddepcontrol.launch_dependents;");
    constexpr int LENGTH = CHANNELS * TAPS, LD = LENGTH | 1, ITERATIONS = (LENGTH + 31) / 32;
    extern __shared__ float tile[];  // [BF][LD]
    __shared__ int exponents[BF];
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
#pragma unroll 4
    for (int i = threadIdx.x; i < BF * LENGTH; i += SPLIT_THREADS) {
        const int filter = i / LENGTH, k = i % LENGTH;
        const bool exists = filter_0 + filter < filters && k < row_length;
        tile[filter * LD + k] = exists ? weight[((int64)(filter_0 + filter) * channels + channel_0) * TAPS + k] : 0.0f;
    }
    __syncthreads();

    unsigned column_max[ITERATIONS] = {};
    for (int filter = warp; filter < BF; filter += SPLIT_THREADS / 32) {
        unsigned values[ITERATIONS], most = 0;
#pragma unroll
        for (int i = 0; i < ITERATIONS; ++i) {
            values[i] = lane + i * 32 < LENGTH ? finite_magnitude(tile[filter * LD + lane + i * 32]) : 0;
            most = max(most, values[i]);
        }
        most = __reduce_max_sync(~0u, most);
        const int exponent = max((int)(most >> 23) - 127, -110) - 8;
        if (lane == 0) exponents[filter] = exponent;
#pragma unroll
        for (int i = 0; i < ITERATIONS; ++i)
            column_max[i] = max(column_max[i], __float_as_uint(__uint_as_float(values[i]) * power_of_two(-exponent)));
        if (lane == 0)
            const_cast<int*>(to.exponents)[(int64)blockIdx.x * BF + filter] = most ? exponent : EMPTY;
    }
#pragma unroll
    for (int i = 0; i < ITERATIONS; ++i)
        if (lane + i * 32 < LENGTH) atomicMax(&channel_max[(lane + i * 32) / TAPS], column_max[i]);
    __syncthreads();

    // Exponent of a channel's scale: 0 where its maximum is 2^8 to 2^9, less where it is smaller.
    const auto channel_exponent = [&](int c) { return max((int)(channel_max[c] >> 23) - 127 - 8, -126); };
    for (int c = threadIdx.x; c < CHANNELS; c += SPLIT_THREADS)
        const_cast<float*>(to.channel_scales)[(int64)blockIdx.x * CHANNELS + c] =
            channel_max[c] ? power_of_two(channel_exponent(c)) : 0.0f;
    char* const rows = const_cast<char*>(to.rows) + (int64)blockIdx.x * ROWS * ROW_BYTES;
    for (int i = threadIdx.x; i < ROWS * STEPS * 2 * BF; i += SPLIT_THREADS) {
        const int filter = i % BF, group = i / BF % 2, step = i / (2 * BF) % STEPS, row = i / (2 * BF * STEPS);
        const int channel = row / KH * ROW_CHANNELS + step % DEPTHS * 16 + group * 8;
        const int tap = row % KH * KW + step / DEPTHS;
        const float scale = power_of_two(-exponents[filter]);
        float values[8];
#pragma unroll
        for (int c = 0; c < 8; ++c)
            values[c] = tile[filter * LD + (channel + c) * TAPS + tap] * scale * power_of_two(-channel_exponent(channel + c));
        uint4 high, low;
        split(values, high, low);
        char* const target = rows + (int64)row * ROW_BYTES + ((step * 2 + group) * BF + filter) * 16;
        *reinterpret_cast<uint4*>(target) = high;
        *reinterpret_cast<uint4*>(target + WEIGHT_PART) = low;
    }
}
