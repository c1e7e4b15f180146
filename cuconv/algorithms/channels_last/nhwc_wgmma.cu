// Implicit GEMM with wgmma and tensor maps, for Hopper: channels-last tensors in FP16 or BF16, sums in FP32.
//
// output[p, m] = sum over k of columns[p, k] * weight[m, k], where p counts the output pixels of all images and
// k = (ky, kx, c) the weights of a filter as they lie in memory. The columns are never stored: a tensor map in im2col
// mode copies those of a tile, a channel block and a filter position straight into shared memory.
//
// A block computes tiles of PIXELS x FILTERS, one after the other; those that differ in their filters alone are
// neighbours. Its warps have three roles:
//   two consumer warpgroups  multiply a stage with wgmma, both operands from shared memory; then write their tile
//   a warp for pixels        copies the stages' pixels
//   a warp for weights       copies the stages' weights
// The producers run ahead of the consumers by up to STAGES stages, also into the next tile while one is written.
//
// MIN_BLOCKS_PER_SM  bounds the registers
// WHOLE              1 where rows of the output start at multiples of 16 bytes: copies write it, otherwise threads do
// The other macros are those of layer.cuh; FILTER_WARPGROUPS is 1 or 2 here.
//
// Every argument but the tensor maps has eight bytes. by_X packs the division by X (divider.cuh). weights_early: whether
// the weights may be read before the kernel ahead ends.

#include "channels_last/layer.cuh"

constexpr int PIXEL_WARPGROUPS = 2 / FILTER_WARPGROUPS, ROW_TILES = PIXELS / PIXEL_WARPGROUPS / 64;
constexpr int CONSUMER_WARPS = 8, THREADS = 32 * (CONSUMER_WARPS + 2);
// A warpgroup writes boxes of 64 pixels x BOX_FILTERS filters, of which it has two in shared memory.
constexpr int BOX_FILTERS = WARPGROUP_FILTERS % 64 == 0 ? 64 : WARPGROUP_FILTERS % 32 == 0 ? 32 : 16;
constexpr int BOX_ROW_BYTES = BOX_FILTERS * sizeof(Element), BOX_BYTES = 64 * BOX_ROW_BYTES;
constexpr int OUTPUT_BYTES = WHOLE ? 4 * BOX_BYTES : 0;
static_assert(ROW_TILES * 64 * PIXEL_WARPGROUPS == PIXELS, "a warpgroup has whole instructions of 64 rows");

// Copies a warpgroup's sums through shared memory to the output. slots: the warpgroup's two boxes, of which `slot` is
// the next one. pixel, filter: the first of the warpgroup.
__device__ __forceinline__ void copy_out(const float (&sums)[ROW_TILES][WGMMA_SUMS], const Epilogue& out,
                                         const TensorMap& map, unsigned slots, int& slot, int pixel, int filter,
                                         int warpgroup) {
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
#pragma unroll
    for (int tile = 0; tile < ROW_TILES; ++tile)
#pragma unroll
        for (int box = 0; box < WARPGROUP_FILTERS / BOX_FILTERS; ++box) {
            const unsigned place = slots + slot * BOX_BYTES;
            const int first_pixel = pixel + tile * 64, first_filter = filter + box * BOX_FILTERS;
            if (warp == 0 && elect_one()) wait_for_reads_of_stores<1>();
            named_barrier<128>(1 + warpgroup);
#pragma unroll
            for (int pair = 0; pair < BOX_FILTERS / 16; ++pair) {  // of 8x8 matrices
                const float* const sum = sums[tile] + (box * BOX_FILTERS + pair * 16) / 2;
                unsigned matrices[4];
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int column = first_filter + pair * 16 + half * 8 + lane % 4 * 2;
                    const int row = first_pixel + warp * 16 + lane / 4;
                    const float first = out.bias_of(column), second = out.bias_of(column + 1);
                    matrices[2 * half] = out.finished(sum[4 * half], sum[4 * half + 1], row, column, first, second);
                    matrices[2 * half + 1] =
                        out.finished(sum[4 * half + 2], sum[4 * half + 3], row + 8, column, first, second);
                }
                const int row = warp * 16 + lane % 16, chunk = pair * 2 + lane / 16;
                const int swizzle = row * BOX_ROW_BYTES / 128 % (BOX_ROW_BYTES / 16);
                store_matrices(place + row * BOX_ROW_BYTES + (chunk ^ swizzle) * 16, matrices[0], matrices[1],
                               matrices[2], matrices[3]);
            }
            fence_async_shared();
            named_barrier<128>(1 + warpgroup);
            if (warp == 0 && elect_one()) {
                store_box(map, place, first_filter, first_pixel);
                commit_stores();
            }
            slot ^= 1;
        }
}

// Writes a warpgroup's sums to the output, two at a time.
__device__ __forceinline__ void write_out(const float (&sums)[ROW_TILES][WGMMA_SUMS], const Epilogue& out, int pixel,
                                          int filter) {
    const int row = pixel + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4, column = filter + threadIdx.x % 4 * 2;
#pragma unroll
    for (int tile = 0; tile < ROW_TILES; ++tile)
#pragma unroll
        for (int i = 0; i < WGMMA_SUMS; i += 2)
            out.write(sums[tile][i], sums[tile][i + 1], row + tile * 64 + i % 4 * 4, column + i / 4 * 8);
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS_PER_SM)
    nhwc_wgmma(const __grid_constant__ TensorMap pixel_map, const __grid_constant__ TensorMap weight_map,
               const __grid_constant__ TensorMap output_map, const Element* bias, const Element* residual,
               Element* output, int64 output_stride, int64 pixels, int64 filters, int64 channels, int64 kernel_h,
               int64 kernel_w, int64 stride_h, int64 stride_w, int64 pad_h, int64 pad_w, int64 dilation_h,
               int64 dilation_w, int64 out_pixels, int64 out_w, int64 filter_tiles, int64 tiles, int64 by_out_pixels,
               int64 by_out_w, int64 by_filter_tiles, int64 relu, int64 paired, int64 weights_early) {
    // [STAGES][pixels, weights], then two boxes of output for each warpgroup, then the barriers
    extern __shared__ __align__(1024) unsigned char shared[];
    const unsigned slots = shared_address(shared) + STAGES * STAGE_BYTES;
    uint64* const full = reinterpret_cast<uint64*>(shared + STAGES * STAGE_BYTES + OUTPUT_BYTES);
    Ring ring = {shared_address(shared), full, full + STAGES};
    const Layer layer = {(int)kernel_h, (int)kernel_w, (int)stride_h, (int)stride_w, (int)pad_h, (int)pad_w,
                         (int)dilation_h, (int)dilation_w, Divider(out_pixels, by_out_pixels), Divider(out_w, by_out_w)};
    const Divider by_tiles(filter_tiles, by_filter_tiles);
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    const int channel_blocks = ((int)channels + BOX_CHANNELS - 1) / BOX_CHANNELS;
    const int stages = ((int)kernel_h * (int)kernel_w * channel_blocks + BOXES - 1) / BOXES;

    if (warp == CONSUMER_WARPS) {
        if (lane < STAGES) barrier_init(full + lane, 2), barrier_init(full + STAGES + lane, CONSUMER_WARPS);
        fence_barrier_init();
    }
    __syncthreads();
    launch_dependents();

    if (warp == CONSUMER_WARPS) {
        if (elect_one()) {
            prefetch(weight_map);
            if (!weights_early) wait_for_kernel_ahead();
            for (unsigned tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
                unsigned filter_tile;
                by_tiles(tile, filter_tile);
                produce_weights(ring, weight_map, filter_tile * FILTERS, Place(), stages, layer);
            }
        }
    } else if (warp == CONSUMER_WARPS + 1) {
        if (elect_one()) {
            prefetch(pixel_map);
            wait_for_kernel_ahead();
            for (unsigned tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
                unsigned filter_tile;
                const Corner corner(by_tiles(tile, filter_tile) * PIXELS, layer);
                produce_pixels(ring, pixel_map, corner, Place(), stages, layer);
            }
        }
    } else {
        const Epilogue out = {bias, residual, output, output_stride, (int)filters, (int)pixels, relu != 0, paired != 0};
        const int warpgroup = warp / 4;
        const int row = warpgroup / FILTER_WARPGROUPS * ROW_TILES * 64;
        const int column = warpgroup % FILTER_WARPGROUPS * WARPGROUP_FILTERS;
        int slot = 0;
        float sums[ROW_TILES][WGMMA_SUMS];
        wait_for_kernel_ahead();
        for (unsigned tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
            unsigned filter_tile;
            const int pixel = by_tiles(tile, filter_tile) * PIXELS + row, filter = filter_tile * FILTERS + column;
            consume<1>(sums, ring, stages, row, column);
#if WHOLE
            copy_out(sums, out, output_map, slots + warpgroup * 2 * BOX_BYTES, slot, pixel, filter, warpgroup);
#else
            write_out(sums, out, pixel, filter);
#endif
        }
        if (WHOLE && warp % 4 == 0 && elect_one()) wait_for_stores();
    }
}
