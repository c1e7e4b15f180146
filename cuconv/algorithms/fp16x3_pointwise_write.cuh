// The part of fp16x3_pointwise that writes sums.
#pragma once

#include "fp16x3_pointwise_tiles.cuh"

// Whether a condition holds in any thread of a warpgroup.
__device__ __forceinline__ bool group_any(int group, bool condition) {
    int any;
    asm volatile("{.reg .pred p; setp.ne.s32 p, %1, 0; bar.red.popc.u32 %0, %2, %3, p;}"
                 : "=r"(any)
                 : "r"((int)condition), "r"(1 + group), "n"(GROUP)
                 : "memory");
    return any;
}

struct Writer {
    const Sizes& s;
    const float *input, *weight, *bias;
    float* output;
    const bool relu;
    float* const staging;  // of the warpgroup
    const int group, thread;

    // Of a thread: the first of its two pixels, in its warpgroup's 64, and the filter of a sum, in its tile.
    __device__ __forceinline__ int first_pixel() const { return thread / 32 * 16 + thread % 32 / 4 * 2; }
    __device__ __forceinline__ int filter_of(int i) const { return i / 4 * 8 + thread % 4 * 2 + i % 2; }

    __device__ __forceinline__ void write(float (&sum)[SUMS], const Tile& tile) const {
        const int tile_pixel = tile.stretch * TILE + group * TEAM_TILE, filter_0 = tile.filter_tile * BF;
        float zeros[4] = {};
#pragma unroll
        for (int i = 0; i < SUMS; ++i) zeros[i % 4] = fmaf(sum[i], 0.0f, zeros[i % 4]);
        const bool plain = group_any(group, zeros[0] + zeros[1] + zeros[2] + zeros[3] != 0.0f);
        if (bias)
#pragma unroll
            for (int i = 0; i < SUMS; ++i)
                if (i % 4 < 2) {
                    const int filter = filter_0 + filter_of(i);
                    const float b = filter < s.filters ? __ldg(bias + filter) : 0.0f;
                    sum[i] += b, sum[i + 2] += b;
                }
        if (relu)
#pragma unroll
            for (int i = 0; i < SUMS; ++i) sum[i] = sum[i] < 0.0f ? 0.0f : sum[i];  // a NaN stays
        write_sums(sum, tile_pixel, filter_0);
        if (plain) {
            group_barrier(group);
            write_plain(sum, tile_pixel, filter_0);
        }
    }

    // Through shared memory, so that a warp writes pixels side by side.
    __device__ __forceinline__ void write_sums(const float (&sum)[SUMS], int tile_pixel, int filter_0) const {
        const int lane_pixel = thread % (64 / WIDTH) * WIDTH, lane_filter = thread / (64 / WIDTH);
        const int64 place = s.locate(tile_pixel + lane_pixel, s.filters);
        const int filters = place < 0 ? 0 : s.filters - filter_0 - lane_filter;
        float* to = output + place + (int64)(filter_0 + lane_filter) * s.out_pixels;
        float* const mine = staging + thread % 4 * 2 * WRITE_PITCH + first_pixel();
        const float* const from = staging + lane_filter * WRITE_PITCH + lane_pixel;
#pragma unroll
        for (int pass = 0; pass < BF; pass += PASS) {
            group_barrier(group);
#pragma unroll
            for (int i = 0; i < PASS / 2 && pass / 2 + i < SUMS; ++i)
                if (i % 4 < 2)
                    *reinterpret_cast<float2*>(mine + (i / 4 * 8 + i % 2) * WRITE_PITCH) =
                        make_float2(sum[pass / 2 + i], sum[pass / 2 + i + 2]);
            group_barrier(group);
#pragma unroll
            for (int i = 0; i < PASS && pass + i < BF; i += 2 * WIDTH, to += 2 * WIDTH * (int64)s.out_pixels) {
#if VECTOR
                const float4 v = *reinterpret_cast<const float4*>(from + i * WRITE_PITCH);
                if (pass + i < filters) *reinterpret_cast<float4*>(to) = v;
#else
                const float v = from[i * WRITE_PITCH];
                if (pass + i < filters) *to = v;
#endif
            }
        }
    }
    // The plain sum where a value is not finite.
    __device__ __forceinline__ void write_plain(const float (&sum)[SUMS], int tile_pixel, int filter_0) const {
        unsigned wanted[(SUMS + 31) / 32] = {};
#pragma unroll
        for (int i = 0; i < SUMS; ++i)
            if (!isfinite(sum[i])) wanted[i / 32] |= 1u << i % 32;
#pragma unroll
        for (int j = 0; j < (SUMS + 31) / 32; ++j)
#pragma unroll 1
            for (; wanted[j]; wanted[j] &= wanted[j] - 1) {
                const int i = j * 32 + __ffs(wanted[j]) - 1, filter = filter_0 + filter_of(i);
                const int pixel = tile_pixel + first_pixel() + i % 4 / 2;
                const int64 place = s.locate(pixel, s.filters);
                if (place < 0 || filter >= s.filters) continue;
                const int in_image = pixel % s.out_pixels;
                float value = plain_sum(input, weight, s, 1, 1, pixel / s.out_pixels, filter, in_image / s.width,
                                        in_image % s.width);
                if (bias) value += bias[filter];
                output[place + (int64)filter * s.out_pixels] = relu && value < 0.0f ? 0.0f : value;
            }
    }
};
