// The part of fp16x3_pointwise that takes pixels from shared memory: fragments of A, their scales, and the split.
#pragma once

#include "fp16x3_pointwise_tiles.cuh"

// A pixel's scale: a power of two that stays while it brings a chunk's maximum to 2^LEAST_EXPONENT to 2^15.
struct PixelScale {
    int exponent = EMPTY, first = EMPTY;  // in use; of the tile's first chunk that is not zero, which the sums keep

    __device__ __forceinline__ void suit(float most) {
        const int found = (int)(__float_as_uint(most) >> 23) - 127;
        if (most == 0.0f || found + exponent >= LEAST_EXPONENT && found + exponent <= 14) return;
        exponent = clamp(10 - found, -113, 126);
        if (first == EMPTY) first = exponent;
    }
};

// Fragments of A. Row lane / 4 is a thread's first pixel, the row eight further on its other one; of each depth of 16 a
// thread has channels 2 * (lane % 4) + {0, 1, 8, 9}.
struct Fragments {
    float2 values[STEPS][4];  // of both pixels

    // rows: where a thread's two pixels are of its first channel. further: of every second channel, where SHIFTED.
    // other: from one pixel to the other, where they are not side by side.
    __device__ __forceinline__ void load(const float* rows, int further, int other) {
#pragma unroll
        for (int step = 0; step < STEPS; ++step)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float* const from = rows + channel(step, i) * PITCH + (i % 2 ? further : 0);
                values[step][i] = SHIFTED || PLANE ? make_float2(from[0], from[other])
                                                   : *reinterpret_cast<const float2*>(from);
            }
    }
    // left: channels from the chunk's first one on. Those beyond have a scale of zero, so this is where what lies there
    // from earlier chunks, since a bulk copy leaves it, is taken out.
    __device__ __forceinline__ void scale(const float* scales, int lane, int left) {
#pragma unroll
        for (int step = 0; step < STEPS; ++step)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float by = scales[channel(step, i) + lane % 4 * 2];
                values[step][i].x *= by, values[step][i].y *= by;
                if (PLANE && channel(step, i) + lane % 4 * 2 >= left) values[step][i] = {0.0f, 0.0f};
            }
    }
    __device__ static __forceinline__ constexpr int channel(int step, int i) { return step * 16 + i / 2 * 8 + i % 2; }

    // The largest magnitude of each pixel's values; a NaN does not count: the output shows it.
    __device__ __forceinline__ float2 largest() const {
        float2 most = {0.0f, 0.0f}, other = most;  // two of each pixel: a maximum waits for the one before it
#pragma unroll
        for (int step = 0; step < STEPS; ++step)
#pragma unroll
            for (int i = 0; i < 4; i += 2) {
                most.x = fmaxf(most.x, fabsf(values[step][i].x));
                most.y = fmaxf(most.y, fabsf(values[step][i].y));
                other.x = fmaxf(other.x, fabsf(values[step][i + 1].x));
                other.y = fmaxf(other.y, fabsf(values[step][i + 1].y));
            }
        most = {fmaxf(most.x, other.x), fmaxf(most.y, other.y)};
#pragma unroll
        for (int by = 1; by < 4; by *= 2) {
            most.x = fmaxf(most.x, __shfl_xor_sync(~0u, most.x, by));
            most.y = fmaxf(most.y, __shfl_xor_sync(~0u, most.y, by));
        }
        return most;
    }
    __device__ __forceinline__ void split_step(int step, float x, float y, unsigned (&high)[4],
                                               unsigned (&low)[4]) const {
#pragma unroll
        for (int half = 0; half < 2; ++half) {  // registers of A: rows change fastest
            const float2 a = values[step][half * 2], b = values[step][half * 2 + 1];
            split(a.x * x, b.x * x, high[half * 2], low[half * 2]);
            split(a.y * y, b.y * y, high[half * 2 + 1], low[half * 2 + 1]);
        }
    }
};
