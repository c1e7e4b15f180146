// The kernel for every geometry: filter size, stride, dilation and the channels of a group are arguments.
//
// A thread computes ROWS outputs, one below the other, of one filter. Neighbouring lanes have neighbouring outputs of a
// row. The thread reads every operand of its products through the L1 cache; its outputs share the weights. Each sum is
// one chain in the order of channels and filter positions, as in the specialised kernel, so the bits are the same.
#pragma once

#include "common/activation.cuh"
#include "common/divider.cuh"
#include "depthwise/start.cuh"

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
    const float* plane = input + group * group_channels * plane_size;
    const float* weights = weight + filter * group_channels * kernel_h * kernel_w;
    float sums[ROWS] = {};
#pragma unroll 1
    for (int c = 0; c < (int)group_channels; ++c) {
#pragma unroll 1
        for (int ky = 0; ky < (int)kernel_h; ++ky) {
            const float* rows[ROWS];
            bool exists[ROWS];
#pragma unroll
            for (int i = 0; i < ROWS; ++i) {
                const int input_row = top + i * (int)stride_h + ky * (int)dilation_h;
                exists[i] = (unsigned)input_row < (unsigned)height;
                rows[i] = plane + (int64)input_row * width + left;
            }
#pragma unroll 4
            for (int kx = 0; kx < (int)kernel_w; ++kx) {
                const int column = kx * (int)dilation_w;
                const bool inside = (unsigned)(left + column) < (unsigned)width;
                const float by = __ldg(weights + kx);
                float values[ROWS];
#pragma unroll
                for (int i = 0; i < ROWS; ++i) values[i] = inside && exists[i] ? __ldg(rows[i] + column) : 0.0f;
#pragma unroll
                for (int i = 0; i < ROWS; ++i) sums[i] = fmaf(values[i], by, sums[i]);
            }
            weights += kernel_w;
        }
        plane += plane_size;
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
