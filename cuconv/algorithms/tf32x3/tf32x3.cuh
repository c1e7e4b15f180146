// Shared by the tf32x3 kernels for Hopper: FP32 factors as two TF32 numbers, wgmma on them, and the im2col addressing.
//
// Of the including file's macros, BF (filters of a tile), PRODUCTS, KERNEL_H, KERNEL_W, POINTWISE, LARGE_FILTER,
// LINEAR, WHOLE, PAIRED and EVICT_FIRST are used.
#pragma once

#include "common/eviction.cuh"
#include "common/hopper.cuh"
#define WGMMA_N BF
#include "common/wgmma.cuh"

// A filter position (tap) as a bit: which of them meet the input at a pixel.
#if LARGE_FILTER
typedef uint64 TapMask;
#else
typedef unsigned TapMask;
#endif

// For one k of the reduction: distance in floats from a pixel's source, and the filter position, as a bit or (of a
// large filter) as a number; no bit beyond the reduction.
struct Tap {
    int distance;
    unsigned position;
};

constexpr int BK = 32;               // depth of a stage: 128 bytes of a row of weights
constexpr int STEPS = BK / 8;        // wgmma depths in a stage
constexpr int TILE_FLOATS = BF * BK;  // weights of a stage, big or small
constexpr int PARTS = PRODUCTS == 3 ? 2 : 1;  // of a factor: big and small, or what TF32 has of it
static_assert(PRODUCTS == 3 || PRODUCTS == 1, "three products of two parts, or one of one");

// A thread's two pixels are eight rows of A apart. Which pixels these rows are is free: eight apart as well, or side by
// side. The first pixel of `row` of every eight, in a tile, and the way to the other one.
constexpr int OTHER_PIXEL = PAIRED ? 1 : 8;
__device__ __forceinline__ int first_pixel(int row) { return row / 8 * 16 + row % 8 * (PAIRED ? 2 : 1); }

// Division as a multiplication, exact where n * divisor < 2^32; one division for many.
struct Divider {
    unsigned divisor, inverse;

    __device__ __forceinline__ explicit Divider(unsigned d) : divisor(d), inverse(0xffffffffu / d + 1) {}
    __device__ __forceinline__ int operator()(unsigned n) const { return divisor == 1 ? n : __umulhi(n, inverse); }
};

struct Problem {
    int channels, height, width, filters, pad_h, pad_w, out_w, out_pixels;
    Divider by_out_w;

    __device__ __forceinline__ Problem(int channels, int height, int width, int filters, int pad_h, int pad_w,
                                       int out_h, int out_w)
        : channels(channels), height(height), width(width), filters(filters), pad_h(pad_h), pad_w(pad_w),
          out_w(out_w), out_pixels(out_h * out_w), by_out_w(out_w) {}
};

// big is x rounded to nearest; of small the tensor cores ignore the low 13 bits. A NaN stays one in small. Where there
// is one product, big is all.
__device__ __forceinline__ void split(float x, float& big, float& small) {
#if PRODUCTS == 3
    big = __uint_as_float((__float_as_uint(x) + 0x1000u) & 0xffffe000u);
    small = x - big;
#else
    big = round_to_tf32(x);
#endif
}

// A pixel of the output, and where its columns come from.
struct Pixel {
    bool exists;
    const float* source;
    TapMask inside;  // the filter positions that meet the input here
    int64 place;     // of the first filter's output; -1 where there is no such pixel

    __device__ __forceinline__ Pixel(int index, int pixels, const float* input, const Problem& p) {
        exists = index < pixels;
        const unsigned known = exists ? index : 0;
        const unsigned image = LINEAR ? 0 : known / p.out_pixels, pixel = known - image * p.out_pixels;
        place = exists ? (int64)image * p.filters * p.out_pixels + pixel : -1;
        source = input + (int64)image * p.channels * p.height * p.width;
#if POINTWISE
        source += pixel;
        inside = exists;
#else
        const int row = LINEAR ? p.by_out_w(pixel) : pixel / p.out_w;
        const int y = row - p.pad_h, x = (int)pixel - row * p.out_w - p.pad_w;
        source += (int64)y * p.width + x;
        TapMask columns = 0;  // of the filter, that meet the input
#pragma unroll
        for (int kx = 0; kx < KERNEL_W; ++kx) columns |= (TapMask)(exists && (unsigned)(x + kx) < p.width) << kx;
        inside = 0;
#pragma unroll
        for (int ky = 0; ky < KERNEL_H; ++ky)
            if ((unsigned)(y + ky) < p.height) inside |= columns << ky * KERNEL_W;
#endif
        asm("" : "+l"(source));  // computed once
    }

    __device__ __forceinline__ bool meets(Tap tap) const {
#if LARGE_FILTER
        return inside >> tap.position & 1;
#else
        return inside & tap.position;
#endif
    }
};

// Loads a float where there is one, and else leaves what `value` holds.
__device__ __forceinline__ void load_where(bool exists, float& value, const float* from) {
    asm volatile("{.reg .pred p; setp.ne.s32 p, %2, 0; @p ld.global.nc" INPUT_LEVEL ".f32 %0, [%1]" INPUT_POLICY(3) ";}"
                 : "+f"(value)
                 : "l"(from), "r"((int)exists) INPUT_HINT);
}

// The same of two that lie side by side, eight bytes aligned.
__device__ __forceinline__ void load_pair_where(bool exists, float& a, float& b, const float* from) {
    asm volatile("{.reg .pred p; setp.ne.s32 p, %3, 0;\n"
                 "@p ld.global.nc" INPUT_LEVEL ".v2.f32 {%0, %1}, [%2]" INPUT_POLICY(4) ";}"
                 : "+f"(a), "+f"(b)
                 : "l"(from), "r"((int)exists) INPUT_HINT);
}

// The columns of a stage as fragments of A: pixels a and b by k of lane and lane + 4 in each step.
// Where POINTWISE, the pixels' sources are those of this lane's first k, from which on `left` are there, and `values`
// of pixels that do not exist are zero and stay so. Else `taps` are those of the stage from this lane's first on.
__device__ __forceinline__ void load_columns(float (&values)[STEPS][4], const Pixel& a, const Pixel& b, int left,
                                             int plane, const Tap* taps) {
#pragma unroll
    for (int k = 0; k < BK; k += 4) {
        float(&to)[4] = values[k / 8];
        const int half = k / 4 % 2;
#if POINTWISE
        const uint64 distance = (uint64)(unsigned)plane * k;
        const float *a_source = a.source + distance, *b_source = b.source + distance;
        asm("" : "+l"(a_source));
        if (LINEAR) b_source = a_source + OTHER_PIXEL;  // an offset in the instruction, no register
        if (!WHOLE && k >= left) to[half * 2] = to[half * 2 + 1] = 0.0f;
        if (PAIRED) load_pair_where(a.exists && (WHOLE || k < left), to[half * 2], to[half * 2 + 1], a_source);
        else load_where(a.exists && (WHOLE || k < left), to[half * 2], a_source);
        if (!PAIRED) load_where(b.exists && (WHOLE || k < left), to[half * 2 + 1], b_source);
#else
        const Tap tap = taps[k];
        const float* const a_source = a.source + tap.distance;
        to[half * 2] = a.meets(tap) ? __ldg(a_source) : 0.0f;
        to[half * 2 + 1] = b.meets(tap) ? __ldg(LINEAR ? a_source + OTHER_PIXEL : b.source + tap.distance) : 0.0f;
#endif
    }
}

__device__ __forceinline__ void split_columns(const float (&values)[STEPS][4], float (&big)[STEPS][4],
                                              float (&small)[STEPS][4]) {
#pragma unroll
    for (int step = 0; step < STEPS; ++step)
#pragma unroll
        for (int r = 0; r < 4; ++r) split(values[step][r], big[step][r], small[step][r]);
}

// Starts a stage's products. Three: chain = columns * weights, where `b_big` describes the tile of big weights, behind
// which lie the small ones. The small terms come first, while the chain is small itself and truncation costs least.
// One: sum += columns * weights, where truncation costs less than rounding has.
__device__ __forceinline__ void start_products(float (&chain)[BF / 2], float (&sum)[BF / 2],
                                               const float (&big)[STEPS][4], const float (&small)[STEPS][4],
                                               uint64 b_big) {
    const uint64 b_small = b_big + TILE_FLOATS / 4;  // counted in 16 bytes
    wgmma_fence();
#if PRODUCTS == 3
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {  // 32 bytes of a row each
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

__device__ __forceinline__ void finish_products(float (&chain)[BF / 2], float (&sum)[BF / 2]) {
#if PRODUCTS == 3
    wgmma_wait(chain);
#pragma unroll
    for (int i = 0; i < BF / 2; ++i) sum[i] += chain[i];
#else
    wgmma_wait(sum);
#endif
}

// An entry of the tap table.
__device__ __forceinline__ Tap make_tap(unsigned k, int depth, const Problem& p) {
    const unsigned c = k / (KERNEL_H * KERNEL_W), position = k % (KERNEL_H * KERNEL_W);
    const unsigned ky = position / KERNEL_W, kx = position % KERNEL_W;
    const int distance = (c * p.height + ky) * p.width + kx;
#if LARGE_FILTER
    return {distance, k < depth ? position : 63u};  // a bit that is never set
#else
    return {distance, k < depth ? 1u << position : 0u};
#endif
}
