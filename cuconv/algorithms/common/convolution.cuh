// Helpers of every kernel: integer types, shared-memory addresses, rounding to TF32, programmatic dependent launch, and
// the plain FP32 sum, by one thread or by the lanes of a warp.
#pragma once

#include "common/geometry.cuh"

typedef long long int64;
typedef unsigned long long uint64;

// The address within shared memory, as PTX takes it for operands in the .shared state space.
__device__ __forceinline__ unsigned shared_address(const void* p) {
    return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

// Adds half a unit of TF32's last bit, 2^-11 of x's power of two. The tensor cores ignore the low 13 bits of an
// operand, so the truncated sum is x rounded to nearest, ties away from zero. NaN and infinities stay what they are.
__device__ __forceinline__ float round_to_tf32(float x) {
    return fmaf(__uint_as_float(__float_as_uint(x) & 0xff800000u), 0x1p-11f, x);
}

#if __CUDA_ARCH__ >= 900
// Programmatic dependent launch (PTX: griddepcontrol). The next kernel in the stream may start once every block of this
// one has called launch_dependents() or ended.
__device__ __forceinline__ void launch_dependents() { asm volatile("griddepcontrol.launch_dependents;"); }
// griddepcontrol.wait: returns once the kernels ahead in the stream have ended and their writes are visible.
__device__ __forceinline__ void wait_for_kernel_ahead() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
// griddepcontrol.wait, predicated on a nonzero register so that the assembler cannot hoist it: an unconditional wait
// moves to the kernel's first instructions, and the address computations that could overlap the wait follow it. `known`
// must not be 0 and must depend on those computations.
__device__ __forceinline__ void wait_for_kernel_ahead(uint64 known) {
    asm volatile("{.reg .pred p; setp.ne.u64 p, %0, 0; @p griddepcontrol.wait;}" ::"l"(known) : "memory");
}
#endif

// Stride, dilation and groups of a kernel that has them as macros (common/geometry.cuh).
struct ConstantGeometry {
    static constexpr int stride_h = STRIDE_H, stride_w = STRIDE_W, dilation_h = DILATION_H, dilation_w = DILATION_W;
    static constexpr int groups = CHANNEL_GROUPS;
};
// The same of a kernel that has them as arguments.
struct ArgumentGeometry {
    int stride_h, stride_w, dilation_h, dilation_w, groups;
};
// The geometry of a problem: its member `geometry` where it has one, and otherwise the macros. The second argument is
// 0: as an int it prefers the first of the two functions, if that exists for the problem.
template <class Problem>
__device__ __forceinline__ auto geometry_of(const Problem& p, int) -> decltype(p.geometry) {
    return p.geometry;
}
template <class Problem>
__device__ __forceinline__ ConstantGeometry geometry_of(const Problem&, long) {
    return {};
}

// One output as a plain FP32 sum. Kernels call it for outputs that are not finite, since Inf and NaN cannot be
// decomposed into parts. `Problem` has the sizes: channels, height, width, pad_h, pad_w. With groups, its channels,
// input and weight, and the number of the filter, are those of a group. Stride, dilation and groups are those of
// geometry_of(p, 0).
template <class Problem>
__device__ __noinline__ float plain_sum(const float* input, const float* weight, const Problem p, int kernel_h,
                                        int kernel_w, int64 image, int filter, int y, int x) {
    const auto g = geometry_of(p, 0);
    float sum = 0.0f;
#pragma unroll 1
    for (int c = 0; c < p.channels; ++c)
#pragma unroll 1
        for (int ky = 0; ky < kernel_h; ++ky)
#pragma unroll 1
            for (int kx = 0; kx < kernel_w; ++kx) {
                const int iy = y * g.stride_h + ky * g.dilation_h - p.pad_h;
                const int ix = x * g.stride_w + kx * g.dilation_w - p.pad_w;
                const bool inside = iy >= 0 && iy < p.height && ix >= 0 && ix < p.width;
                const int64 channel = image * g.groups * p.channels + c;
                const float value = inside ? input[(channel * p.height + iy) * p.width + ix] : 0.0f;
                sum = fmaf(value, weight[(((int64)filter * p.channels + c) * kernel_h + ky) * kernel_w + kx], sum);
            }
    return sum;
}

// Plain FP32 sums of the outputs that the lanes of a warp want. All 32 lanes call it together, each with an output of
// its own; where `wanted` is false, the output does not matter and the result is 0. The other arguments are those of
// plain_sum, and input, weight, p and the filter's size are the same in all lanes.
//
// The lanes share a sum: lane i adds the products i, i + 32, i + 64 and so on of (c, ky, kx). So a sum has the same
// bits whatever the other lanes want.
template <class Problem>
__device__ __noinline__ float plain_sum_where(bool wanted, const float* input, const float* weight, const Problem p,
                                              int kernel_h, int kernel_w, int image, int filter, int y, int x) {
    const unsigned lane = threadIdx.x % 32, area = kernel_h * kernel_w, depth = p.channels * area;
    const auto g = geometry_of(p, 0);
    float result = 0.0f;
#pragma unroll 1
    for (unsigned left = __ballot_sync(~0u, wanted); left != 0; left &= left - 1) {
        const int from = __ffs(left) - 1;
        const int64 first_channel = (int64)__shfl_sync(~0u, image, from) * g.groups * p.channels;
        const float* const weights = weight + (int64)__shfl_sync(~0u, filter, from) * depth;
        const int top = __shfl_sync(~0u, y, from) * g.stride_h - p.pad_h;
        const int start = __shfl_sync(~0u, x, from) * g.stride_w - p.pad_w;
        float sum = 0.0f;
#pragma unroll 8
        for (unsigned k = lane; k < depth; k += 32) {
            const unsigned c = k / area, position = k - c * area, ky = position / kernel_w;
            const int iy = top + (int)ky * g.dilation_h, ix = start + (int)(position - ky * kernel_w) * g.dilation_w;
            const bool inside = iy >= 0 && iy < p.height && ix >= 0 && ix < p.width;
            sum = fmaf(inside ? input[((first_channel + c) * p.height + iy) * p.width + ix] : 0.0f, weights[k], sum);
        }
#pragma unroll
        for (int by = 16; by > 0; by /= 2) sum += __shfl_xor_sync(~0u, sum, by);
        if (lane == from) result = sum;
    }
    return result;
}
