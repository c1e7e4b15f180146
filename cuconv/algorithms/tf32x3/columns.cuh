// Columns and products of tf32x3_wgmma: finding a pixel's elements of the input, loading them into registers as
// fragments of wgmma's tile A, decomposing and multiplying them.
//
// It uses the kernel's macros FILTERS, STAGE_DEPTH, PRODUCTS, GENERAL, KERNEL_H, KERNEL_W, GROUPED, POINTWISE,
// LARGE_FILTER, LINEAR, WHOLE, PAIRED and EVICT_FIRST.
#pragma once

#include "common/divider.cuh"
#include "common/eviction.cuh"
#include "common/hopper.cuh"
#include "tf32x3/parts.cuh"
#define WGMMA_N FILTERS
#include "common/wgmma.cuh"

constexpr int STEPS = STAGE_DEPTH / 8;              // wgmma depths in a stage
constexpr int TILE_FLOATS = FILTERS * STAGE_DEPTH;  // a stage of weights, one part
static_assert(STAGE_DEPTH * sizeof(float) == 128, "a row of weights is as wide as the swizzle");

// A mask of the filter positions that read inside the input at a pixel. LARGE_FILTER 2: of filter rows in the low half,
// and of filter columns in the high half.
#if LARGE_FILTER
typedef uint64 TapMask;
#else
typedef unsigned TapMask;
#endif

// An entry of the tap table, for one k of the reduction: the distance in floats from a pixel's source to its element,
// and the filter position. That is one bit of the mask; for LARGE_FILTER 1 the bit's number; for LARGE_FILTER 2 the
// number of the row's bit and, times 256, that of the column's. A k beyond the reduction has no bit that a mask has.
struct Tap {
    int distance;
    unsigned position;
};

// A thread has two rows of A, eight rows apart (PTX ISA, "Register fragments for wgmma"). Which pixels of the tile
// these rows stand for is free: eight pixels apart as well, or side by side where they are loaded and stored as pairs.
constexpr int OTHER_PIXEL = PAIRED ? 1 : 8;  // from a thread's first pixel to the other one
__device__ __forceinline__ int first_pixel(int row) { return row / 8 * 16 + row % 8 * (PAIRED ? 2 : 1); }

#if GENERAL
// The filter's size.
struct Kernel {
    int h, w;
};
typedef ArgumentGeometry Geometry;
#else
struct Kernel {
    static constexpr int h = KERNEL_H, w = KERNEL_W;
};
#if GROUPED
struct Geometry {
    static constexpr int stride_h = STRIDE_H, stride_w = STRIDE_W, dilation_h = 1, dilation_w = 1;
    int groups;
};
#else
typedef ConstantGeometry Geometry;
#endif
#endif

struct Problem {
    int channels, height, width, filters, pad_h, pad_w, out_w, out_pixels;
    int64 input_image, output_image;  // floats from one image of the input, or of the output, to the next
    Kernel kernel;
    Geometry geometry;
    Divider by_out_w, by_out_pixels;
};

// A pixel of the output, and where its columns come from.
struct Pixel {
    bool exists;
    const float* source;  // the input element under the filter's first position, which may lie in the padding
    TapMask inside;       // the filter positions that meet the input here
    int64 place;          // offset of the first filter's output; -1 where there is no such pixel

    __device__ __forceinline__ Pixel(int index, int pixels, const float* input, const Problem& p) {
        int known_to_exist = index < pixels;
        asm("" : "+r"(known_to_exist));  // without this some variants spill registers
        exists = known_to_exist;
        const unsigned known = exists ? index : 0;
        unsigned pixel = known, x_out;
        const unsigned image = LINEAR ? 0 : p.by_out_pixels(known, pixel);
        place = exists ? image * p.output_image + pixel : -1;
        const Geometry g = p.geometry;
        source = input + image * p.input_image;
#if POINTWISE && !GENERAL && STRIDE_H == 1 && STRIDE_W == 1
        source += pixel;
        inside = exists;
#elif POINTWISE
        const int row = p.by_out_w(pixel, x_out);
        source += (int64)row * g.stride_h * p.width + (int)x_out * g.stride_w;
        inside = exists;
#else
        const int y_out = p.by_out_w(pixel, x_out);
        const int y = y_out * g.stride_h - p.pad_h, x = (int)x_out * g.stride_w - p.pad_w;
        source += (int64)y * p.width + x;
        TapMask columns = 0;  // filter columns that read inside the input
#pragma unroll
        for (int kx = 0; kx < p.kernel.w; ++kx)
            columns |= (TapMask)(exists && (unsigned)(x + kx * g.dilation_w) < p.width) << kx;
        inside = LARGE_FILTER == 2 ? columns << 32 : 0;
#pragma unroll
        for (int ky = 0; ky < p.kernel.h; ++ky)
            if ((unsigned)(y + ky * g.dilation_h) < p.height)
                inside |= LARGE_FILTER == 2 ? (TapMask)1 << ky : columns << ky * p.kernel.w;
#endif
        asm("" : "+l"(source));  // otherwise the compiler would compute it again for every load
    }

    __device__ __forceinline__ bool meets(Tap tap) const {
#if LARGE_FILTER == 2
        return inside >> (tap.position & 255) & inside >> (tap.position >> 8) & 1;
#elif LARGE_FILTER
        return inside >> tap.position & 1;
#else
        return inside & tap.position;
#endif
    }
};

// The entry of the tap table for k.
__device__ __forceinline__ Tap make_tap(unsigned k, int depth, const Problem& p) {
    const unsigned area = p.kernel.h * p.kernel.w, c = k / area, position = k - c * area;
    const unsigned ky = position / p.kernel.w, kx = position - ky * p.kernel.w;
    const int distance = (c * p.height + ky * p.geometry.dilation_h) * p.width + kx * p.geometry.dilation_w;
#if LARGE_FILTER == 2
    return {distance, k < depth ? ky + (kx + 32) * 256 : 31u};  // row 31 is never in a mask
#elif LARGE_FILTER
    return {distance, k < depth ? position : 63u};
#else
    return {distance, k < depth ? 1u << position : 0u};
#endif
}

// Loads a float where `exists`, with a cache policy and without a branch; `value` stays what it is elsewhere.
__device__ __forceinline__ void load_where(bool exists, float& value, const float* from, uint64 policy) {
    asm volatile("{.reg .pred p; setp.ne.s32 p, %2, 0; @p ld.global.nc" INPUT_LEVEL ".f32 %0, [%1]" INPUT_POLICY(3) ";}"
                 : "+f"(value)
                 : "l"(from), "r"((int)exists) INPUT_HINT(policy));
}

// The same for two floats side by side, aligned to eight bytes.
__device__ __forceinline__ void load_pair_where(bool exists, float& a, float& b, const float* from, uint64 policy) {
    asm volatile("{.reg .pred p; setp.ne.s32 p, %3, 0;\n"
                 "@p ld.global.nc" INPUT_LEVEL ".v2.f32 {%0, %1}, [%2]" INPUT_POLICY(4) ";}"
                 : "+f"(a), "+f"(b)
                 : "l"(from), "r"((int)exists) INPUT_HINT(policy));
}

// Loads the columns of a stage as fragments of A: for each step, pixels a and b at depths `lane` and `lane` + 4.
//
// POINTWISE: the pixels' sources point at this lane's first k, from which on `left` of the reduction exist. `values` of
// pixels that do not exist must be zero, and stay so.
// Otherwise `taps` points at the entry of this lane's first k.
__device__ __forceinline__ void load_columns(float (&values)[STEPS][4], const Pixel& a, const Pixel& b, int left,
                                             int plane, const Tap* taps, uint64 policy) {
#pragma unroll
    for (int k = 0; k < STAGE_DEPTH; k += 4) {
        float(&to)[4] = values[k / 8];
        const int half = k / 4 % 2;
#if POINTWISE
        const uint64 distance = (uint64)(unsigned)plane * k;
        const float *a_source = a.source + distance, *b_source = b.source + distance;
        asm("" : "+l"(a_source));
        if (LINEAR) b_source = a_source + OTHER_PIXEL;  // an offset in the instruction instead of a register
        if (!WHOLE && k >= left) to[half * 2] = to[half * 2 + 1] = 0.0f;
        if (PAIRED) load_pair_where(a.exists && (WHOLE || k < left), to[half * 2], to[half * 2 + 1], a_source, policy);
        else load_where(a.exists && (WHOLE || k < left), to[half * 2], a_source, policy);
        if (!PAIRED) load_where(b.exists && (WHOLE || k < left), to[half * 2 + 1], b_source, policy);
#else
        const Tap tap = taps[k];
        const float* const a_source = a.source + tap.distance;
        to[half * 2] = a.meets(tap) ? __ldg(a_source) : 0.0f;
        to[half * 2 + 1] = b.meets(tap) ? __ldg(LINEAR ? a_source + OTHER_PIXEL : b.source + tap.distance) : 0.0f;
#endif
    }
}

__device__ __forceinline__ void decompose_columns(const float (&values)[STEPS][4], float (&big)[STEPS][4],
                                                  float (&small)[STEPS][4]) {
#pragma unroll
    for (int step = 0; step < STEPS; ++step)
#pragma unroll
        for (int r = 0; r < 4; ++r) decompose(values[step][r], big[step][r], small[step][r]);
}

__device__ __forceinline__ void decompose(float4 x, float4& big, float4& small) {
    decompose(x.x, big.x, small.x);
    decompose(x.y, big.y, small.y);
    decompose(x.z, big.z, small.z);
    decompose(x.w, big.w, small.w);
}

// Starts the products of a stage. `b_big` describes the tile of big weights; the small ones follow it.
//
// Three products: chain = columns * weights. The tensor cores truncate when they accumulate, so the chain starts at
// zero, and its small terms come first, while it is small itself and truncation costs least.
// One product: sum += columns * weights. Truncation costs less accuracy than the rounding of the operands.
__device__ __forceinline__ void start_products(float (&chain)[FILTERS / 2], float (&sum)[FILTERS / 2],
                                               const float (&big)[STEPS][4], const float (&small)[STEPS][4],
                                               uint64 b_big) {
    const uint64 b_small = b_big + TILE_FLOATS / 4;  // descriptors count in 16 bytes; a step is 32 bytes of a row
    wgmma_fence();
#if PRODUCTS == 3
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
        wgmma_tf32(chain, small[step], b_big + step * 2, step > 0);
        wgmma_tf32(chain, big[step], b_small + step * 2, 1);
    }
#pragma unroll
    for (int step = 0; step < STEPS; ++step) wgmma_tf32(chain, big[step], b_big + step * 2, 1);
#else
#pragma unroll
    for (int step = 0; step < STEPS; ++step) wgmma_tf32(sum, big[step], b_big + step * 2, 1);
#endif
    wgmma_commit();
}

// Waits for the products of a stage, and adds a chain to the FP32 sums.
__device__ __forceinline__ void finish_products(float (&chain)[FILTERS / 2], float (&sum)[FILTERS / 2]) {
#if PRODUCTS == 3
    wgmma_wait(chain);
#pragma unroll
    for (int i = 0; i < FILTERS / 2; ++i) sum[i] += chain[i];
#else
    wgmma_wait(sum);
#endif
}
