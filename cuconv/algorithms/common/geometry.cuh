// Stride, dilation, groups, a residual and prepared weights as compile-time constants. Most layers have none of them:
// their kernels are compiled as if these did not exist.
//
// STRIDE_H STRIDE_W      rows and columns of the padded image from one output pixel to the next
// DILATION_H DILATION_W  rows and columns of the padded image from one filter position to the next
// CHANNEL_GROUPS         equal parts of channels and filters; a filter reads the channels of its own part
// RESIDUAL               1 where an argument after the others is a tensor like the output, added before the activation
// PREPARED               1 where the last arguments are weights that an earlier launch has packed, and flags of blocks,
//                        which are 0 before and after the kernel
#pragma once

#ifndef STRIDE_H
#define STRIDE_H 1
#define STRIDE_W 1
#endif
#ifndef CHANNEL_GROUPS
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

#ifndef PREPARED
#define PREPARED 0
#endif
// What stands in the parentheses where weights are prepared, and nothing elsewhere.
#if PREPARED
#define WITH_PREPARED(...) __VA_ARGS__
#else
#define WITH_PREPARED(...)
#endif
#define PREPARED_ARGUMENTS WITH_PREPARED(, void* __restrict__ packed, unsigned* __restrict__ flags)
