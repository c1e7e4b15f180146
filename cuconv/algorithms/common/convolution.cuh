// Shared by all kernels: integers, addresses in shared memory, rounding to TF32, and the plain FP32 sum.
#pragma once

typedef long long int64;
typedef unsigned long long uint64;

__device__ __forceinline__ unsigned shared_address(const void* p) {
    return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

// x rounded to nearest as a TF32 number, of which the tensor cores ignore the low 13 bits: adds half a unit of the last
// bit that counts, 2^-11 of x's power of two. NaN and infinities stay what they are.
__device__ __forceinline__ float round_to_tf32(float x) {
    return fmaf(__uint_as_float(__float_as_uint(x) & 0xff800000u), 0x1p-11f, x);
}

#if __CUDA_ARCH__ >= 900
// Programmatic dependent launch. The next kernel in the stream may start once every block has called this, or ended.
__device__ __forceinline__ void launch_dependents() { asm volatile("griddepcontrol.launch_dependents;"); }
// Waits until all kernels ahead in the stream have ended and what they wrote can be read.
__device__ __forceinline__ void wait_for_kernel_ahead() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
// Waits for the kernel ahead in the stream, when `known` is known, which is not 0: the assembler begins with the wait
// where nothing holds it, and what could have been computed meanwhile comes after.
__device__ __forceinline__ void wait_for_kernel_ahead(uint64 known) {
    asm volatile("{.reg .pred p; setp.ne.u64 p, %0, 0; @p griddepcontrol.wait;}" ::"l"(known) : "memory");
}
#endif

// The plain FP32 sum, for outputs that are not finite: a split of Inf or NaN has no meaning.
template <class Problem>
__device__ __noinline__ float plain_sum(const float* input, const float* weight, const Problem p, int kernel_h,
                                        int kernel_w, int64 image, int filter, int y, int x) {
    float sum = 0.0f;
#pragma unroll 1
    for (int c = 0; c < p.channels; ++c)
#pragma unroll 1
        for (int ky = 0; ky < kernel_h; ++ky)
#pragma unroll 1
            for (int kx = 0; kx < kernel_w; ++kx) {
                const int iy = y + ky - p.pad_h, ix = x + kx - p.pad_w;
                const bool inside = iy >= 0 && iy < p.height && ix >= 0 && ix < p.width;
                const float value = inside ? input[((image * p.channels + c) * p.height + iy) * p.width + ix] : 0.0f;
                sum = fmaf(value, weight[(((int64)filter * p.channels + c) * kernel_h + ky) * kernel_w + kx], sum);
            }
    return sum;
}
