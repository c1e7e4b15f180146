// Packs float32 weights in channels_last for nhwc_scaled: as FP16 numbers times a power of two for each filter, in the
// order in which its main kernel copies them.
//
//   weight [filters][positions][channels]  ->  factors [rows], then boxes [channels / 32][positions][rows][32]
//
// `rows` is the number of filters, rounded up to 8; rows and channels that do not exist are zeros. A filter is divided by
// its factor, so that its largest weight lies in [2^14, 2^15). A row of a box has the 64-byte swizzle of wgmma: the
// places of its four vectors of 8 numbers are exclusive-ored with bits 1 and 2 of the row's number. Of each 16 channels
// 4q, 4q + 1, 4q + 2 and 4q + 3 stand at 2q, 2q + 1, 2q + 8 and 2q + 9: there a thread of the main kernel, which
// reads four neighbours of a pixel at once, has them in tile A of a wgmma (PTX ISA, "wgmma", fragments of matrix A).
//
// A block packs a filter. Every argument has eight bytes. channels is a multiple of 4.

#include "common/convolution.cuh"

constexpr int THREADS = 128, BOX_CHANNELS = 32;
constexpr int TARGET_EXPONENT = 14, LEAST_EXPONENT = -110;

// The bits of the larger magnitude of `most` and the finite ones of four numbers.
__device__ __forceinline__ unsigned larger(unsigned most, const float4& x) {
    const float values[] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const unsigned bits = __float_as_uint(values[i]) & 0x7fffffffu;
        most = bits < 0x7f800000u ? max(most, bits) : most;
    }
    return most;
}

// Two numbers as FP16, the first in the lower half.
__device__ __forceinline__ unsigned pair_of(float first, float second) {
    unsigned pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    pack_weights(const float* weight, char* packed, int64 filters, int64 rows, int64 positions, int64 channels,
                 int64 boxes_at) {
    __shared__ unsigned maxima[THREADS / 32];
    const int filter = blockIdx.x, count = (int)(positions * channels) / 4;  // vectors of four
    const int blocks = ((int)channels + BOX_CHANNELS - 1) / BOX_CHANNELS;
    const bool exists = filter < filters;
    const float4* const from = reinterpret_cast<const float4*>(weight + (exists ? filter : 0) * positions * channels);
    wait_for_kernel_ahead();
    launch_dependents();

    unsigned most = 0;
    for (int i = threadIdx.x; exists && i < count; i += THREADS) most = larger(most, from[i]);
    most = __reduce_max_sync(~0u, most);
    if (threadIdx.x % 32 == 0) maxima[threadIdx.x / 32] = most;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < THREADS / 32; ++i) most = max(most, maxima[i]);
    const int exponent = max((int)(most >> 23) - 127, LEAST_EXPONENT) - TARGET_EXPONENT;
    const float scale = __int_as_float(127 - exponent << 23);
    if (threadIdx.x == 0) reinterpret_cast<float*>(packed)[filter] = __int_as_float(127 + exponent << 23);

    // A thread packs 16 channels of a position.
    for (int i = threadIdx.x; i < (int)positions * blocks * 2; i += THREADS) {
        const int position = i / (blocks * 2), step = i - position * blocks * 2, channel = step * 16;
        unsigned low[4], high[4];
#pragma unroll
        for (int q = 0; q < 4; ++q) {
            float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (exists && channel + 4 * q < channels) x = from[(position * (int)channels + channel) / 4 + q];
            low[q] = pair_of(x.x * scale, x.y * scale), high[q] = pair_of(x.z * scale, x.w * scale);
        }
        const int64 box = (int64)(step / 2) * positions + position;
        char* const to = packed + boxes_at + (box * rows + filter) * (BOX_CHANNELS * 2);
        const int vector = step % 2 * 2, swizzle = filter >> 1 & 3;
        *reinterpret_cast<uint4*>(to + (vector ^ swizzle) * 16) = make_uint4(low[0], low[1], low[2], low[3]);
        *reinterpret_cast<uint4*>(to + (vector + 1 ^ swizzle) * 16) = make_uint4(high[0], high[1], high[2], high[3]);
    }
}
