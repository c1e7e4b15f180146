// Max pooling of channels-last images in half precision: each output is the largest element of its window, NaN if the
// window has a NaN, and -infinity if no filter position lies in the image.
//
// A thread computes a vector, eight channels of an output pixel. Neighbouring threads have neighbouring vectors. The
// filter positions outside of the image are left out first: of what remains, a thread loads blocks of BLOCK x BLOCK
// positions, whose loads are under way together. Beyond the last position a block loads the last one again: no maximum
// changes, and no branch is needed.
//
// BF16  1 for BF16, 0 for FP16
//
// Every argument has eight bytes. outputs: vectors of the output. vectors: vectors of a pixel. by_X packs the division
// by X (divider.cuh).

#include "common/divider.cuh"

constexpr int MAX_THREADS = 128, BLOCK = 3;

// Two elements that are no larger than any other.
constexpr unsigned LEAST = BF16 ? 0xff80ff80u : 0xfc00fc00u;

// max.NaN: the larger elements of two pairs, NaN where either is NaN.
__device__ __forceinline__ void raise(unsigned& pair, unsigned other) {
#if BF16
    asm("max.NaN.bf16x2 %0, %0, %1;" : "+r"(pair) : "r"(other));
#else
    asm("max.NaN.f16x2 %0, %0, %1;" : "+r"(pair) : "r"(other));
#endif
}

// One axis of a window: the filter positions from `first` to before `last` lie in the image, from pixel `start` on.
struct Positions {
    int start, dilation, first, last;

    __device__ __forceinline__ Positions(int start, int size, int kernel, const Divider& dilation)
        : start(start), dilation(dilation.divisor) {
        const auto below = [&](int pixels) {  // the positions that lie in so many pixels
            unsigned remainder;
            return (int)dilation(max(pixels, 0) + dilation.divisor - 1, remainder);
        };
        first = below(-start), last = min(kernel, below(size - start));
    }
    // The pixel of a position, or of the last one.
    __device__ __forceinline__ int pixel(int position) const { return start + min(position, last - 1) * dilation; }
};

extern "C" __global__ void __launch_bounds__(MAX_THREADS)
    max_pool(const uint4* input, uint4* output, int64 outputs, int64 height, int64 width, int64 vectors,
             int64 by_vectors, int64 out_h, int64 by_out_h, int64 out_w, int64 by_out_w, int64 kernel_h,
             int64 kernel_w, int64 stride_h, int64 stride_w, int64 pad_h, int64 pad_w, int64 dilation_h,
             int64 by_dilation_h, int64 dilation_w, int64 by_dilation_w) {
    const unsigned index = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned vector, x, y;
    const unsigned pixel = Divider(vectors, by_vectors)(index, vector), row = Divider(out_w, by_out_w)(pixel, x);
    const unsigned image = Divider(out_h, by_out_h)(row, y);
    const Positions rows((int)y * (int)stride_h - (int)pad_h, (int)height, (int)kernel_h,
                         Divider(dilation_h, by_dilation_h));
    const Positions columns((int)x * (int)stride_w - (int)pad_w, (int)width, (int)kernel_w,
                            Divider(dilation_w, by_dilation_w));
    const int row_vectors = (int)width * (int)vectors;
    const uint4* const from = input + (int64)image * height * row_vectors + vector;
#if __CUDA_ARCH__ >= 900
    wait_for_kernel_ahead();
    launch_dependents();
#endif
    if (index >= outputs) return;
    uint4 largest = {LEAST, LEAST, LEAST, LEAST};
#pragma unroll 1
    for (int ky = rows.first; ky < rows.last; ky += BLOCK)
#pragma unroll 1
        for (int kx = columns.first; kx < columns.last; kx += BLOCK) {
            uint4 values[BLOCK][BLOCK];
#pragma unroll
            for (int i = 0; i < BLOCK; ++i) {
                const uint4* const in_row = from + (int64)rows.pixel(ky + i) * row_vectors;
#pragma unroll
                for (int j = 0; j < BLOCK; ++j) values[i][j] = in_row[columns.pixel(kx + j) * (int)vectors];
            }
#pragma unroll
            for (int i = 0; i < BLOCK; ++i)
#pragma unroll
                for (int j = 0; j < BLOCK; ++j) {
                    raise(largest.x, values[i][j].x), raise(largest.y, values[i][j].y);
                    raise(largest.z, values[i][j].z), raise(largest.w, values[i][j].w);
                }
        }
    output[index] = largest;
}
