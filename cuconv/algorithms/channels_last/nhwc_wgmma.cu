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
// The producers run ahead of the consumers by the stages of a ring, also into the next tile while one is written.
// Where RESIDENT_WEIGHTS is 1, a block computes tiles of the same filters, and copies their weights once.
//
// MIN_BLOCKS_PER_SM  bounds the registers
// WHOLE              1 where rows of the output start at multiples of 16 bytes: copies write it, otherwise threads do
// The other macros are those of layer.cuh; FILTER_WARPGROUPS is 1 or 2 here.
//
// Every argument but the tensor maps has eight bytes. by_X packs the division by X (divider.cuh). group_filters,
// channels and group_tiles are those of one group, filters and filter_tiles those of all. ring_stages: those of the
// ring. weights_early: whether the weights may be read before the kernel ahead ends.

#include "channels_last/layer.cuh"

constexpr int PIXEL_WARPGROUPS = 2 / FILTER_WARPGROUPS, ROW_TILES = PIXELS / PIXEL_WARPGROUPS / 64;
constexpr int CONSUMER_WARPS = 8, THREADS = 32 * (CONSUMER_WARPS + 2);
// A warpgroup writes boxes of 64 pixels x BOX_FILTERS filters, of which it has two in shared memory.
constexpr int BOX_FILTERS = WARPGROUP_FILTERS % 64 == 0 ? 64 : WARPGROUP_FILTERS % 32 == 0 ? 32 : 16;
constexpr int BOX_ROW_BYTES = BOX_FILTERS * sizeof(Element), BOX_BYTES = 64 * BOX_ROW_BYTES;
constexpr int OUTPUT_BYTES = WHOLE ? 4 * BOX_BYTES : 0;
static_assert(ROW_TILES * 64 * PIXEL_WARPGROUPS == PIXELS, "a warpgroup has whole instructions of 64 rows");

// Copies a warpgroup's finished sums through shared memory to the output. slots: the warpgroup's two boxes, of which
// `slot` is the next one. pixel, filter: the first of the warpgroup; filters are counted in the group.
__device__ __forceinline__ void copy_out(const float (&sums)[ROW_TILES][WGMMA_SUMS], const TensorMap& map,
                                         unsigned slots, int& slot, int pixel, int filter, int group,
                                         int warpgroup) {
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    const int row = warp * 16 + lane % 16, swizzle = row * BOX_ROW_BYTES / 128 % (BOX_ROW_BYTES / 16);
#pragma unroll
    for (int tile = 0; tile < ROW_TILES; ++tile)
#pragma unroll
        for (int box = 0; box < WARPGROUP_FILTERS / BOX_FILTERS; ++box) {
            const unsigned place = slots + slot * BOX_BYTES;
            if (warp == 0 && elect_one()) wait_for_reads_of_stores<1>();
            named_barrier<128>(1 + warpgroup);
#pragma unroll
            for (int pair = 0; pair < BOX_FILTERS / 16; ++pair) {  // of 8x8 matrices side by side
                const float* const sum = sums[tile] + (box * BOX_FILTERS + pair * 16) / 2;
                store_matrices(place + row * BOX_ROW_BYTES + ((pair * 2 + lane / 16) ^ swizzle) * 16,
                               packed(sum[0], sum[1]), packed(sum[2], sum[3]), packed(sum[4], sum[5]),
                               packed(sum[6], sum[7]));
            }
            fence_async_shared();
            named_barrier<128>(1 + warpgroup);
            if (warp == 0 && elect_one()) {
#if GROUPED
                store_box(map, place, filter + box * BOX_FILTERS, group, pixel + tile * 64);
#else
                store_box(map, place, filter + box * BOX_FILTERS, pixel + tile * 64);
#endif
                commit_stores();
            }
            slot ^= 1;
        }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS_PER_SM)
    nhwc_wgmma(const __grid_constant__ TensorMap pixel_map, const __grid_constant__ TensorMap weight_map,
               const __grid_constant__ TensorMap output_map, const Element* bias, const Element* residual,
               Element* output, int64 output_stride, int64 pixels, int64 filters, int64 group_filters, int64 channels,
               int64 kernel_h, int64 kernel_w, int64 stride_h, int64 stride_w, int64 pad_h, int64 pad_w,
               int64 dilation_h, int64 dilation_w, int64 out_pixels, int64 out_w, int64 filter_tiles, int64 group_tiles,
               int64 by_out_pixels, int64 by_out_w, int64 by_filter_tiles, int64 by_group_tiles, int64 tiles,
               int64 ring_stages, int64 activation, int64 numbers, int64 paired, int64 weights_early) {
    // The ring's stages, two boxes of output for each warpgroup, weights that stay, and the barriers of all these
    extern __shared__ __align__(1024) unsigned char shared[];
    const Layer layer = {(int)kernel_h, (int)kernel_w, (int)stride_h, (int)stride_w, (int)pad_h, (int)pad_w,
                         (int)dilation_h, (int)dilation_w, Divider(out_pixels, by_out_pixels), Divider(out_w, by_out_w)};
    const Tiles tile_at = {Divider(filter_tiles, by_filter_tiles), Divider(group_tiles, by_group_tiles),
                           (int)group_filters};
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    const int channel_blocks = ((int)channels + BOX_CHANNELS - 1) / BOX_CHANNELS;
    const int stages = ((int)kernel_h * (int)kernel_w * channel_blocks + BOXES - 1) / BOXES;
    const int ring_bytes = (int)ring_stages * STAGE_BYTES;
    const unsigned slots = shared_address(shared) + ring_bytes;
    const unsigned kept_bytes = RESIDENT_WEIGHTS ? stages * STAGE_WEIGHT_BYTES : 0;
    uint64* const full = reinterpret_cast<uint64*>(shared + ring_bytes + OUTPUT_BYTES + kept_bytes);
    Ring ring = {shared_address(shared), full, full + ring_stages, (int)ring_stages};
    const ResidentWeights resident = {slots + OUTPUT_BYTES, full + 2 * ring_stages};

    if (warp == CONSUMER_WARPS) {
        if (lane < ring_stages) barrier_init(full + lane, PRODUCERS), barrier_init(ring.empty + lane, CONSUMER_WARPS);
        for (int i = lane; RESIDENT_WEIGHTS && i < stages; i += 32) barrier_init(resident.full + i, 1);
        fence_barrier_init();
    }
    __syncthreads();
    launch_dependents();

    if (warp == CONSUMER_WARPS) {
        if (elect_one()) {
            prefetch(weight_map);
            if (!weights_early) wait_for_kernel_ahead();
            Place place = {};
            const int kept_filter = tile_at[blockIdx.x].first_filter();
            for (int i = 0; RESIDENT_WEIGHTS && i < stages; ++i)
                copy_weights(resident.start + i * STAGE_WEIGHT_BYTES, resident.full + i, weight_map, kept_filter, place,
                             layer);
            for (unsigned i = blockIdx.x; !RESIDENT_WEIGHTS && i < tiles; i += gridDim.x)
                produce_weights(ring, weight_map, tile_at[i].first_filter(), Place(), stages, layer);
        }
    } else if (warp == CONSUMER_WARPS + 1) {
        if (elect_one()) {
            prefetch(pixel_map);
            wait_for_kernel_ahead();
            for (unsigned i = blockIdx.x; i < tiles; i += gridDim.x)
                produce_pixels(ring, pixel_map, Corner(tile_at[i], layer), Place(), stages, layer);
        }
    } else {
        Epilogue out = {bias, residual, output, output_stride, (int)filters, (int)pixels, {activation, numbers},
                        paired != 0};
        const int warpgroup = warp / 4;
        const int row = warpgroup / FILTER_WARPGROUPS * ROW_TILES * 64;
        const int column = warpgroup % FILTER_WARPGROUPS * WARPGROUP_FILTERS;
        const int first_row = warp % 4 * 16 + lane / 4, first_column = lane % 4 * 2;  // of the thread's sums
        [[maybe_unused]] int slot = 0;
        wait_for_kernel_ahead();
        for (unsigned i = blockIdx.x; i < tiles; i += gridDim.x) {
            const Tile tile = tile_at[i];
            const int pixel = tile.pixel + row, filter = tile.first_filter() + column;
            out.filters_end = tile.group_start + (int)group_filters;
            float sums[ROW_TILES][WGMMA_SUMS];  // new for each tile, so that the compiler carries none to the next
            consume<1>(sums, ring, resident, stages, row, column);
            out.finish(sums, pixel + first_row, filter + first_column);
#if WHOLE
            copy_out(sums, output_map, slots + warpgroup * 2 * BOX_BYTES, slot, pixel, tile.filter + column, tile.group,
                     warpgroup);
#else
#pragma unroll
            for (int i = 0; i < ROW_TILES * WGMMA_SUMS; i += 2)
                out.write((&sums[0][0])[i], (&sums[0][0])[i + 1],
                          pixel + first_row + i / WGMMA_SUMS * 64 + i % 4 * 4,
                          filter + first_column + i % WGMMA_SUMS / 4 * 8);
#endif
        }
        if (WHOLE && warp % 4 == 0 && elect_one()) wait_for_stores();
    }
}
