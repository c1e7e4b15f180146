// What most layers do not have, as compile-time constants: stride, dilation, groups, and a residual. Without them the
// kernels are compiled as if these did not exist.
//
// STRIDE_H STRIDE_W      rows and columns of the padded image from one output pixel to the next
// DILATION_H DILATION_W  rows and columns of the padded image from one filter position to the next
// CHANNEL_GROUPS         equal parts of channels and filters; a filter reads the channels of its own part
// RESIDUAL               1 where the last argument is a tensor like the output, added to it before ReLU
#pragma once

#ifndef CHANNEL_GROUPS
#define STRIDE_H 1
#define STRIDE_W 1
#define DILATION_H 1
#define DILATION_W 1
#define CHANNEL_GROUPS 1
#endif

#ifndef RESIDUAL
#define RESIDUAL 0
#endif
// What stands in the parentheses where there is a residual, and nothing elsewhere.
#if RESIDUAL
#define WITH_RESIDUAL(...) __VA_ARGS__
#else
#define WITH_RESIDUAL(...)
#endif
#define RESIDUAL_ARGUMENT WITH_RESIDUAL(, const float* __restrict__ residual)
