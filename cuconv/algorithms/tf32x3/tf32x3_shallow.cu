// Convolution of a short reduction (few channels, a small filter) with mma.sync, for compute capability 8.0 and up,
// with the accuracy of FP32 or of TF32.
//
// The reduction is over before a pipeline would have filled, so there is none: each warp works on its own, with as many
// loads in flight as its registers hold. It computes 32 pixels for all filters of its block:
//   load       columns of the next tile, global memory -> registers
//   decompose  columns, in registers, once for all filters
//   mma.sync   FILTERS filters at a time; one chain over the whole reduction, small terms first
//   write      straight from the accumulators
// The block decomposes its weights once, into shared memory. Warps wait for each other only until these are there.
//
// The four lanes that have the same pixels share the reduction out by rows of the input, (c, ky). Of each of its rows a
// lane holds the window that its four pixels see, so that the filter's positions in X share registers:
//
//     row of the input   x x x x x x        kx = 0: x x x x . .
//                                                1: . x x x x .
//                                                2: . . x x x x
//
// The rows that are left when every lane has had as many are shared out by single positions in X. A slot is one of a
// lane's (row, position) pairs; an mma instruction takes two of each lane.
//
// PRODUCTS           3 for FP32, 1 for TF32
// PIXELS             pixels of a warp
// ROWS               rows of the input that a lane has, with all positions of the filter in X
// SINGLES            single positions of a lane, of the rows that are left
// KERNEL_H KERNEL_W  the filter's size
// FILTERS            filters that a warp multiplies at a time: a multiple of 8
// WARPS              warps of a block
// REGISTERS          registers that a thread may take
// POINTWISE          1 for a 1x1 filter without padding
// ADJACENT           1 where a lane's four pixels are neighbours: in an image if POINTWISE, else in a row
// VECTOR             1 where it is ADJACENT, and rows of the output lie over those of the input, 16-byte aligned
//
// Every argument has eight bytes: a pointer or a long long.

#include "tf32x3/shallow_output.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, SM_REGISTERS / (REGISTERS * THREADS))
    tf32x3_shallow(const float* __restrict__ input, const float* __restrict__ weight, const float* __restrict__ bias,
                   float* __restrict__ output, int64 images, int64 channels, int64 height, int64 width, int64 filters,
                   int64 kernel_h, int64 kernel_w, int64 pad_h, int64 pad_w, int64 out_h, int64 out_w,
                   int64 activation, int64 numbers, int64 output_planes, int64 filter_blocks, int64 block_filters) {
    extern __shared__ Fragment fragments[];
    const Problem p = {(int)channels, (int)height, (int)width, (int)filters,
                       (int)pad_h,    (int)pad_w,  (int)out_w, (int)(out_h * out_w), (int)output_planes};

    // filter_blocks blocks, neighbours in the grid, share the filters of the same pixels. The tiles of pixels go round
    // among the warps of the grid.
    const unsigned pixels = images * p.out_pixels, tiles = (pixels + PIXELS - 1) / PIXELS;
    const int filter_0 = blockIdx.x % (unsigned)filter_blocks * (int)block_filters;
    const unsigned step = gridDim.x / (unsigned)filter_blocks * WARPS;
    unsigned tile = blockIdx.x / (unsigned)filter_blocks * WARPS + threadIdx.x / 32;
    float values[COUNT];
    int64 place = -1;  // output offset of the pixels whose elements are in `values`
    const auto load = [&](const Pixels& here) {
        here.load(values, p);
        place = here.place;
    };

    // Wait for the kernel ahead before the first access to global memory, but after the index arithmetic.
    const Pixels first_pixels(tile, pixels, input, p);
#if __CUDA_ARCH__ >= 900
    uint64 known = (uint64)input;
    for (const float* source : first_pixels.source) known |= (uint64)source;
    wait_for_kernel_ahead(known);
    launch_dependents();
#endif

    // Load the first tile, and meanwhile decompose the weights.
    if (tile < tiles) load(first_pixels);
    const bool unusual = __syncthreads_or(decompose_weights(fragments, weight, block_filters / 8, filter_0, p));

    // Main loop: the next tile is loaded while this one is multiplied.
    const Output out = {input, weight, bias, output, {activation, numbers}};
    bool each = unusual;  // whether sums are judged one by one
    while (tile < tiles) {
        const Columns columns(values);
        const int64 columns_place = place;
        const unsigned first = tile * PIXELS;
        tile += step;
        if (tile < tiles) load(Pixels(tile, pixels, input, p));
        Totals totals;
        bool right = true;
#pragma unroll 1
        for (int f = 0; f < block_filters; f += FILTERS) {
            float sum[2][TILES][4];
            columns.multiply(sum, fragments + f / 8 * STEPS * 32 + threadIdx.x % 32);
            totals.add(sum);
            if (PRODUCTS == 3)
#pragma unroll
                for (int i = 0; i < 8 * TILES; ++i)
                    sum[i % 2][i / 8][i / 2 % 4] = restored(sum[i % 2][i / 8][i / 2 % 4], STEPS);
            if (each) right &= judge(sum);
            if (AtLeast::is(out.activation))
                out.write(sum, columns_place, filter_0 + f, p, AtLeast(out.activation));
            else
                out.write(sum, columns_place, filter_0 + f, p, out.activation);
        }
        const bool doubtful = !each && !totals.are_right();
        if (!right) out.replace_marked(first, pixels, filter_0, block_filters, p);
        each = unusual || doubtful;
        if (doubtful) {  // the same tile once more
            tile = first / PIXELS;
            load(Pixels(tile, pixels, input, p));
        }
    }
}
