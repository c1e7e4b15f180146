// The part of fp16x3 that makes output of sums: what is the same whichever way they lie in registers.
#pragma once

#include "common/fp16.cuh"

struct Problem {
    int channels, height, width, filters, pad_h, pad_w, out_w, out_pixels;
};

// An output pixel; without an image it does not exist.
struct Pixel {
    int image, pixel;
};

// The operands, and what becomes of a sum.
struct Output {
    const Problem p;  // no reference: write_plain would want it in local memory
    const float *input, *weight, *bias;
    float* to;
    bool relu;

    __device__ __forceinline__ int64 index(const Pixel& at, int filter) const {
        return ((int64)at.image * p.filters + filter) * p.out_pixels + at.pixel;
    }
    __device__ __forceinline__ float least() const { return relu ? 0.0f : __int_as_float(0xff800000); }
    // Of how many filters from one on there is output at a pixel.
    __device__ __forceinline__ int filters_from(int filter, const Pixel& at) const {
        return at.image < 0 ? 0 : p.filters - filter;
    }
};

// Where a value is not finite, the plain sum counts: writes it at a pixel for each filter whose bit is set, `step`
// apart, from `first` on. No part of its caller, which is all the shorter.
__device__ __noinline__ void write_plain(const Output out, unsigned wanted, const Pixel at, int first, int step) {
    const int end = out.filters_from(first, at), y = at.pixel / out.p.out_w, x = at.pixel - y * out.p.out_w;
#pragma unroll 1
    for (int i = 0; wanted && i < end; i += step, wanted >>= 1) {
        if (!(wanted & 1)) continue;
        const int filter = first + i;
        float value = plain_sum(out.input, out.weight, out.p, KH, KW, at.image, filter, y, x);
        if (out.bias) value += out.bias[filter];
        out.to[out.index(at, filter)] = out.relu && value < 0.0f ? 0.0f : value;
    }
}
