// Sums and output of tf32x3_shallow: which sums are right, and how a warp writes its pixels.
#pragma once

#include "common/at_least.cuh"
#include "tf32x3/shallow_columns.cuh"

// Predicated stores. Left to itself the compiler branches around each store and the computation of its address.
__device__ __forceinline__ void store(char* to, float value, bool exists) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %2, 0; @p st.global.f32 [%0], %1;}" ::"l"(to), "f"(value),
                 "r"((int)exists)
                 : "memory");
}
__device__ __forceinline__ void store(char* to, const float (&v)[4], bool exists) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %5, 0; @p st.global.v4.f32 [%0], {%1, %2, %3, %4};}" ::"l"(to),
                 "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]), "r"((int)exists)
                 : "memory");
}

// Four lanes' four values each, transposed: value i of lane j becomes value j of lane i.
__device__ __forceinline__ void transpose(float (&v)[4]) {
#pragma unroll
    for (int bit = 1; bit < 4; bit *= 2) {
        const bool upper = threadIdx.x & bit;
#pragma unroll
        for (int i = 0; i < 4; ++i)
            if (!(i & bit)) {
                const float other = __shfl_xor_sync(~0u, upper ? v[i] : v[i | bit], bit);
                (upper ? v[i] : v[i | bit]) = other;
            }
    }
}

// The magnitudes of all filters' sums together, of each of a lane's four pixels. They tell whether the sums may be wrong
// (parts.cuh), in an instruction a sum.
struct Totals {
    float of[2][2] = {};

    __device__ __forceinline__ void add(const float (&sum)[2][TILES][4]) {
#pragma unroll
        for (int i = 0; i < 8 * TILES; ++i) of[i % 2][i / 4 % 2] += fabsf(sum[i % 2][i / 8][i / 2 % 4]);
    }
    // Whether all sums of the warp are right. False also where they are small. Sums that are all 0 are right.
    __device__ __forceinline__ bool are_right() const {
        bool right = true;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float total = of[i / 2][i % 2];
            right &= total <= MOST_RIGHT && (PRODUCTS == 1 || total >= LEAST_TOTAL || total == 0.0f);
        }
        return __all_sync(~0u, right);
    }
};

// Judges a warp's sums one by one. Returns whether all are right; where they are not, marks those that are replaced.
__device__ __forceinline__ bool judge(float (&sum)[2][TILES][4]) {
    Judge judge;
#pragma unroll
    for (int i = 0; i < 8 * TILES; ++i) judge.add(sum[i % 2][i / 8][i / 2 % 4], i % 2);
    const bool right = __all_sync(~0u, judge.all_right());
    if (!right)
#pragma unroll
        for (int i = 0; i < 8 * TILES; ++i)
            sum[i % 2][i / 8][i / 2 % 4] = mark_wrong(sum[i % 2][i / 8][i / 2 % 4]);
    return right;
}

// The operands and sizes with which a warp writes its outputs.
struct Output {
    const float *input, *weight, *bias;
    float* output;
    Activation activation;

    // Writes FILTERS filters from `filter_0` on. function: the activation, or what stands for it.
    template <class Function>
    __device__ __forceinline__ void write(float (&sum)[2][TILES][4], int64 place, int filter_0, const Problem& p,
                                          const Function& function) const {
        const int lane = threadIdx.x % 4;
        if (bias)
#pragma unroll
            for (int i = 0; i < 8 * TILES; ++i) {
                const int filter = filter_0 + i / 8 * 8 + lane * 2 + i / 2 % 2;
                if (filter < p.filters) sum[i % 2][i / 8][i / 2 % 4] += bias[filter];
            }
        activate(sum[0], function);
        activate(sum[1], function);
        const unsigned plane = p.out_pixels * 4u;  // bytes
        char* const first = reinterpret_cast<char*>(output + place) + filter_0 * (uint64)plane;
        char* const mine = first + lane * 2 * (uint64)plane;
        const int left = place < 0 ? 0 : p.filters - filter_0;
#pragma unroll
        for (int j = 0; j < TILES; ++j)
#pragma unroll
            for (int side = 0; side < 2; ++side) {  // a lane's four pixels of filter 2 * lane + side
                float v[4] = {sum[0][j][side], sum[0][j][side + 2], sum[1][j][side], sum[1][j][side + 2]};
#if ADJACENT
                char* const to = mine + (j * 8 + side) * (uint64)plane;
                const bool exists = j * 8 + lane * 2 + side < left;
#if VECTOR
                store(to, v, exists);
#else
#pragma unroll
                for (int i = 0; i < 4; ++i) store(to + i * 4, v[i], exists);
#endif
#else
                transpose(v);  // one pixel of four filters, 2 * i + side: a warp writes 32 pixels side by side
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int filter = j * 8 + i * 2 + side;
                    store(first + filter * (uint64)plane, v[i], filter < left);
                }
#endif
            }
    }

    // Replaces the outputs of a tile that are marked, which are NaNs, by plain FP32 sums, for all filters of the block.
    // A warp calls it where one of its lanes has marked a sum.
    __device__ __forceinline__ void replace_marked(unsigned first, unsigned pixels, int filter_0, int filters,
                                                   const Problem& p) const {
        const unsigned index = first + threadIdx.x % 32, image = index / p.out_pixels;
        const int pixel = index - image * p.out_pixels, y = pixel / p.out_w, x = pixel - y * p.out_w;
        __syncwarp();  // the outputs that other lanes have written can be read
#pragma unroll 1
        for (int filter = filter_0; filter < min(filter_0 + filters, p.filters); ++filter) {
            float* const to = output + (((int64)image * p.output_planes + filter) * p.out_pixels + pixel);
            const bool marked = index < pixels && isnan(*to);
            if (!__any_sync(~0u, marked)) continue;
            float value = plain_sum_where(marked, input, weight, p, KERNEL_H, KERNEL_W, image, filter, y, x);
            if (!marked) continue;
            if (bias) value += bias[filter];
            *to = activated(value, activation);
        }
    }
};
