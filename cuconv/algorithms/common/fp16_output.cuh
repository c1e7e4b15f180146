// How the fp16x3 kernels for larger filters turn sums into output: what does not depend on the layout of registers.
#pragma once

#include "common/activation.cuh"
#include "common/fp16.cuh"
#include "common/pieces.cuh"

// 1 where a whole filter has a dilation.
#ifndef DILATED
#define DILATED 0
#endif

struct Problem {
    int channels, height, width, filters, pad_h, pad_w, out_w, out_pixels;
    int output_planes;  // from one image of the output to the next
#if PIECES || DILATED
    int kernel_h, kernel_w;  // size of the whole filter, not of a piece
    ArgumentGeometry geometry;
#else
    static constexpr int kernel_h = KH, kernel_w = KW;
#endif
};

// An output pixel; image is -1 where there is none.
struct Pixel {
    int image, pixel;
};

// The operands, and the epilogue: bias, residual and activation.
struct Output {
    const Problem p;  // a copy: through a reference, write_plain would make the compiler keep it in local memory
    const float *input, *weight, *bias;
    float* to;
    Activation activation;
    WITH_RESIDUAL(const float* residual;)

    __device__ __forceinline__ int64 index(const Pixel& at, int filter) const {
        return ((int64)at.image * p.output_planes + filter) * p.out_pixels + at.pixel;
    }
#if RESIDUAL
    // The residual at a place of the output; 0 where there is no such place.
    __device__ __forceinline__ float residual_at(const float* place, bool exists) const {
        return exists ? __ldg(residual + (place - to)) : 0.0f;
    }
#endif
    // The number of filters from `filter` on that have an output at a pixel; not above 0 where there is none.
    __device__ __forceinline__ int filters_from(int filter, const Pixel& at) const {
        return at.image < 0 ? 0 : p.filters - filter;
    }
};

// Overwrites outputs that are not finite by plain FP32 sums: FP16 parts of Inf and NaN mean nothing, and a NaN also
// marks a doubtful sum (least_trusted). Called by a whole warp. Bit i of a lane's `wanted` stands for filter
// first + i * step at its pixel. Not inlined: it is rare, and inlined it costs its caller registers.
__device__ __noinline__ void write_plain(const Output out, unsigned wanted, const Pixel at, int first, int step) {
    const int end = out.filters_from(first, at), y = at.pixel / out.p.out_w, x = at.pixel - y * out.p.out_w;
#pragma unroll 1
    for (int i = 0; __any_sync(~0u, wanted != 0); i += step, wanted >>= 1) {
        const int filter = first + i;
        const bool mine = (wanted & 1) && i < end;
        float value = plain_sum_where(mine, out.input, out.weight, out.p, out.p.kernel_h, out.p.kernel_w, at.image,
                                      filter, y, x);
        if (!mine) continue;
        if (out.bias) value += out.bias[filter];
        WITH_RESIDUAL(value += out.residual[out.index(at, filter)];)
        out.to[out.index(at, filter)] = activated(value, out.activation);
    }
}
