// The kernel for every geometry: filter size, stride, dilation and the channels of a group are arguments.
//
// A thread computes ROWS outputs, one below the other, of one filter. Neighbouring lanes have neighbouring outputs of a
// row. The thread reads every operand of its products through the L1 cache; its outputs share the weights. It loads for
// AT_ONCE filter positions before it multiplies, across the ends of the filter's rows: for a filter of few columns, loads
// of one row would leave the thread waiting. Each sum is one chain in the order of channels and filter positions, as in
// the specialised kernel, so the bits are the same.
#pragma once

#include "common/activation.cuh"
#include "common/divider.cuh"
#include "depthwise/start.cuh"

// A filter position: its column in the filter, and where the thread's first output reads the input through it.
struct Tap {
    int column, y, x;
    unsigned offset;  // of the input element in its plane; it wraps around in the padding

    __device__ __forceinline__ void advance(int64 kernel_w, int64 dilation_h, int64 dilation_w, int64 width) {
        ++column, x += (int)dilation_w, offset += (unsigned)dilation_w;
        if (column < (int)kernel_w) return;
        const int back = column * (int)dilation_w;
        column = 0, y += (int)dilation_h, x -= back, offset += (unsigned)dilation_h * (unsigned)width - back;
    }
};

// units:    output planes in all images; those of a group are neighbours, as are groups
// strips_*: strips of a plane along a row and down the plane
// layer_units: units of an image; group_units: units of a group. After each divisor follows its packed multiplier.
extern "C" __global__ void __launch_bounds__(MAX_THREADS, 1)
    depthwise(const float* __restrict__ input, const float* __restrict__ weight, const float* __restrict__ bias,
              float* __restrict__ output, int64 height, int64 width, int64 pad_h, int64 pad_w, int64 out_h,
              int64 out_w, int64 activation, int64 numbers, int64 units, int64 strips_x, int64 strips_x_packed,
              int64 strips_y, int64 strips_y_packed, int64 layer_units, int64 layer_units_packed, int64 group_units,
              int64 group_units_packed, int64 group_channels, int64 kernel_h, int64 kernel_w, int64 stride_h,
              int64 stride_w, int64 dilation_h, int64 dilation_w) {
    const Divider by_strips_x(strips_x, strips_x_packed), by_strips_y(strips_y, strips_y_packed);
    const Divider by_layer_units(layer_units, layer_units_packed), by_group_units(group_units, group_units_packed);
    unsigned x, row, filter, within;
    const unsigned unit = by_strips_y(by_strips_x(blockIdx.x * blockDim.x + threadIdx.x, x), row);
    const unsigned group = by_group_units(unit, within);
    by_layer_units(unit, filter);
    start(input, within + filter);
    if (unit >= units) return;

    const int64 plane_size = height * width;
    const int y = row * ROWS, top = y * (int)stride_h - (int)pad_h, left = (int)x * (int)stride_w - (int)pad_w;
    const int taps = (int)kernel_h * (int)kernel_w;
    const unsigned output_step = (unsigned)stride_h * (unsigned)width;
    const float* plane = input + group * group_channels * plane_size;
    const float* weights = weight + filter * group_channels * taps;
    float sums[ROWS] = {};
#pragma unroll 1
    for (int c = 0; c < (int)group_channels; ++c) {
        Tap tap = {0, top, left, (unsigned)top * (unsigned)width + left};
#pragma unroll 1
        for (int first = 0; first < taps; first += AT_ONCE) {
            float values[AT_ONCE][ROWS], by[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                const bool exists = first + i < taps, inside = exists && (unsigned)tap.x < (unsigned)width;
                by[i] = exists ? __ldg(weights + first + i) : 0.0f;
#pragma unroll
                for (int j = 0; j < ROWS; ++j)
                    values[i][j] = inside && (unsigned)(tap.y + j * (int)stride_h) < (unsigned)height
                                       ? __ldg(plane + (tap.offset + j * output_step))
                                       : 0.0f;
                tap.advance(kernel_w, dilation_h, dilation_w, width);
            }
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i)
#pragma unroll
                for (int j = 0; j < ROWS; ++j) sums[j] = fmaf(values[i][j], by[i], sums[j]);
        }
        plane += plane_size, weights += taps;
    }

    float* const to = output + (unit * out_h + y) * out_w + x;
#pragma unroll
    for (int i = 0; i < ROWS; ++i)
        if (bias) sums[i] += __ldg(bias + filter);
    activate(sums, {activation, numbers});
#pragma unroll
    for (int i = 0; i < ROWS; ++i)
        if (y + i < (int)out_h) to[i * out_w] = sums[i];
}
