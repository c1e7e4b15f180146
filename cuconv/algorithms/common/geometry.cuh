// Stride, dilation and groups of a layer, as compile-time constants, since most layers have none: then the kernels are
// compiled as if these did not exist.
//
// STRIDE_H STRIDE_W      rows and columns of the padded image from one output pixel to the next
// DILATION_H DILATION_W  rows and columns of the padded image from one filter position to the next
// CHANNEL_GROUPS         equal parts of channels and filters; a filter reads the channels of its own part
#pragma once

#ifndef CHANNEL_GROUPS
#define STRIDE_H 1
#define STRIDE_W 1
#define DILATION_H 1
#define DILATION_W 1
#define CHANNEL_GROUPS 1
#endif
