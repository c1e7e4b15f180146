// Implicit GEMM with wgmma and tensor maps, for Hopper: channels-last tensors in FP16, BF16 or TF32, sums in FP32.
//
// output[p, m] = sum over k of columns[p, k] * weight[m, k], where p counts the output pixels of all images and
// k = (ky, kx, c) the weights of a filter as they lie in memory. The columns are never stored: a tensor map in im2col
// mode copies those of a tile, a channel block and a filter position straight into shared memory.
//
// A block computes tiles of PIXELS x FILTERS, one after the other; those that differ in their filters alone are
// neighbours. Its warps have three roles:
//   two or three consumer    multiply a stage with wgmma, both operands from shared memory; then write their tile
//   warpgroups
//   a warp for pixels        copies the stages' pixels, and after those of a tile its residual
//   a warp for weights       copies the stages' weights
// With three warpgroups, for tiles of 192 pixels, a thread starts with 128 registers. There the producers are a whole
// warpgroup, since setmaxnreg is for warpgroups, and the consumers get most of its registers.
// The producers run ahead of the consumers by the stages of a ring, also into the next tile while one is written. A
// residual takes stages of the ring too.
// Where RESIDENT_WEIGHTS is 1, a block computes tiles of the same filters, and copies their weights once.
//
// MIN_BLOCKS_PER_SM  bounds the registers
// WHOLE              1 where rows of output and residual start at multiples of 16 bytes: copies write and read them,
//                    otherwise threads do
// The other macros are those of layer.cuh; FILTER_WARPGROUPS is 1 or 2 here.
//
// Every argument but the tensor maps has eight bytes. by_X packs the division by X (divider.cuh). group_filters,
// channels and group_tiles are those of one group, filters and filter_tiles those of all. ring_stages: those of the
// ring. weights_early: whether the weights may be read before the kernel ahead ends.

#include "channels_last/layer.cuh"

constexpr int WARPGROUPS = PIXELS == 192 ? 3 : 2, PIXEL_WARPGROUPS = WARPGROUPS / FILTER_WARPGROUPS;
constexpr int ROW_TILES = PIXELS / PIXEL_WARPGROUPS / 64;
constexpr int CONSUMER_WARPS = 4 * WARPGROUPS, PRODUCER_WARPS = WARPGROUPS == 3 ? 4 : 2;
constexpr int THREADS = 32 * (CONSUMER_WARPS + PRODUCER_WARPS);
constexpr int CONSUMER_REGISTERS = 152, PRODUCER_REGISTERS = 40;  // used with three consumer warpgroups only
// Output and residual are copied by boxes of 64 pixels x BOX_FILTERS filters. A warpgroup has two boxes of output in
// shared memory; the ring has the residual of a tile, the boxes of the same pixels side by side.
constexpr int BOX_FILTERS = WARPGROUP_FILTERS % 64 == 0 ? 64 : WARPGROUP_FILTERS % 32 == 0 ? 32 : 16;
constexpr int BOX_ROW_BYTES = BOX_FILTERS * sizeof(Element), BOX_BYTES = 64 * BOX_ROW_BYTES;
constexpr int OUTPUT_BYTES = WHOLE ? WARPGROUPS * 2 * BOX_BYTES : 0;
constexpr int WARPGROUP_BOXES = WARPGROUP_FILTERS / BOX_FILTERS, TILE_BOXES = FILTERS / BOX_FILTERS * (PIXELS / 64);
constexpr int STAGE_BOXES = WHOLE ? STAGE_BYTES / BOX_BYTES : 1;
constexpr int RESIDUAL_STAGES = (TILE_BOXES + STAGE_BOXES - 1) / STAGE_BOXES;
static_assert(PIXEL_WARPGROUPS * FILTER_WARPGROUPS == WARPGROUPS, "every warpgroup has a part of the tile");
static_assert(ROW_TILES * 64 * PIXEL_WARPGROUPS == PIXELS, "a warpgroup has whole instructions of 64 rows");

// The matrices of 8x8 elements that a thread stores to and loads from a box: a row of them, and its swizzle.
struct BoxRow {
    int row = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 16, half = threadIdx.x % 32 / 16;

    // The address for two matrices side by side, the pair-th such ones of a row, and those below them.
    __device__ __forceinline__ unsigned operator()(unsigned box, int pair) const {
        const int swizzle = row * BOX_ROW_BYTES / 128 % (BOX_ROW_BYTES / 16);
        return box + row * BOX_ROW_BYTES + ((pair * 2 + half) ^ swizzle) * 16;
    }
};

// Producer of residuals: copies that of a tile into the ring.
__device__ __forceinline__ void produce_residual(Ring& ring, const TensorMap& map, const Tile& tile) {
#pragma unroll 1
    for (int first = 0; first < TILE_BOXES; first += STAGE_BOXES) {
        const int end = min(first + STAGE_BOXES, TILE_BOXES);
        uint64* const full = ring.full + ring.stage;
        barrier_wait(ring.empty + ring.stage, ring.phase ^ 1);
        barrier_expect(full, (end - first) * BOX_BYTES);
        for (int box = first; box < end; ++box) {
            const unsigned target = ring.pixels() + (box - first) * BOX_BYTES;
            const int filter = tile.filter + box % (FILTERS / BOX_FILTERS) * BOX_FILTERS;
            const int pixel = tile.pixel + box / (FILTERS / BOX_FILTERS) * 64;
#if GROUPED
            copy_box(target, map, filter, tile.group, pixel, full);
#else
            copy_box(target, map, filter, pixel, full);
#endif
        }
        ring.advance();
    }
}

#if WHOLE
// Adds a tile's residual to a warpgroup's sums, and gives the ring's stages back. box: the first one of the warpgroup.
__device__ __forceinline__ void add_residual(float (&sums)[ROW_TILES][WGMMA_SUMS], Ring& ring, int box) {
    const BoxRow row;
#pragma unroll
    for (int stage = 0; stage < RESIDUAL_STAGES; ++stage) {
        barrier_wait(ring.full + ring.stage, ring.phase);
#pragma unroll
        for (int tile = 0; tile < ROW_TILES; ++tile)
#pragma unroll
            for (int i = 0; i < WARPGROUP_BOXES; ++i) {
                const int place = box + tile * (FILTERS / BOX_FILTERS) + i - stage * STAGE_BOXES;
                if (RESIDUAL_STAGES > 1 && (place < 0 || place >= STAGE_BOXES)) continue;
#pragma unroll
                for (int pair = 0; pair < BOX_FILTERS / 16; ++pair) {
                    unsigned more[4];
                    load_matrices(row(ring.pixels() + place * BOX_BYTES, pair), more);
                    float* const sum = sums[tile] + (i * BOX_FILTERS + pair * 16) / 2;
#pragma unroll
                    for (int j = 0; j < 4; ++j) add_pair(sum[2 * j], sum[2 * j + 1], more[j]);
                }
            }
        fence_async_shared();  // copies are of another proxy: without it one may overtake these loads
        __syncwarp();
        if (threadIdx.x % 32 == 0) barrier_arrive(ring.empty + ring.stage);
        ring.advance();
    }
}

// Copies a warpgroup's finished sums through shared memory to the output. slots: the warpgroup's two boxes, of which
// `slot` is the next one. pixel, filter: the first of the warpgroup; filters are counted in the group.
__device__ __forceinline__ void copy_out(const float (&sums)[ROW_TILES][WGMMA_SUMS], const TensorMap& map,
                                         unsigned slots, int& slot, int pixel, int filter, int group,
                                         int warpgroup) {
    const BoxRow row;
    const int warp = threadIdx.x / 32 % 4;
#pragma unroll
    for (int tile = 0; tile < ROW_TILES; ++tile)
#pragma unroll
        for (int box = 0; box < WARPGROUP_BOXES; ++box) {
            const unsigned place = slots + slot * BOX_BYTES;
            if (warp == 0 && elect_one()) wait_for_reads_of_stores<1>();
            named_barrier<128>(1 + warpgroup);
#pragma unroll
            for (int pair = 0; pair < BOX_FILTERS / 16; ++pair) {
                const float* const sum = sums[tile] + (box * BOX_FILTERS + pair * 16) / 2;
                store_matrices(row(place, pair), packed(sum[0], sum[1]), packed(sum[2], sum[3]),
                               packed(sum[4], sum[5]), packed(sum[6], sum[7]));
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
#endif

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS_PER_SM)
    nhwc_wgmma(const __grid_constant__ TensorMap pixel_map, const __grid_constant__ TensorMap weight_map,
               const __grid_constant__ TensorMap output_map, const __grid_constant__ TensorMap residual_map,
               const Element* bias, const Element* residual, Element* output, int64 output_stride, int64 pixels,
               int64 filters, int64 group_filters, int64 channels, int64 kernel_h, int64 kernel_w, int64 stride_h,
               int64 stride_w, int64 pad_h, int64 pad_w, int64 dilation_h, int64 dilation_w, int64 out_pixels,
               int64 out_w, int64 filter_tiles, int64 group_tiles, int64 by_out_pixels, int64 by_out_w,
               int64 by_filter_tiles, int64 by_group_tiles, int64 tiles, int64 ring_stages, int64 activation,
               int64 numbers, int64 paired, int64 weights_early) {
    // The ring's stages, two boxes of output for each warpgroup, weights that stay, and the barriers of all these
    extern __shared__ __align__(1024) unsigned char shared[];
    const Layer layer = {(int)kernel_h, (int)kernel_w, (int)stride_h, (int)stride_w, (int)pad_h, (int)pad_w,
                         (int)dilation_h, (int)dilation_w, Divider(out_pixels, by_out_pixels), Divider(out_w, by_out_w)};
    const Tiles tile_at = {Divider(filter_tiles, by_filter_tiles), Divider(group_tiles, by_group_tiles),
                           (int)group_filters};
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    const int channel_blocks = ((int)channels + BOX_ELEMENTS - 1) / BOX_ELEMENTS;
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

    if (WARPGROUPS == 3 && warp >= CONSUMER_WARPS) give_registers<PRODUCER_REGISTERS>();
    if (warp == CONSUMER_WARPS) {
        if (elect_one()) {
            prefetch(weight_map);
            if (!weights_early) wait_for_kernel_ahead();
            Place place = {};
            const int kept_filter = tile_at[blockIdx.x].first_filter();
            for (int i = 0; RESIDENT_WEIGHTS && i < stages; ++i)
                copy_weights(resident.start + i * STAGE_WEIGHT_BYTES, resident.full + i, weight_map, kept_filter, place,
                             layer);
            for (unsigned i = blockIdx.x; !RESIDENT_WEIGHTS && i < tiles; i += gridDim.x) {
                produce_weights(ring, weight_map, tile_at[i].first_filter(), Place(), stages, layer);
                for (int stage = 0; WHOLE && residual && stage < RESIDUAL_STAGES; ++stage) {
                    barrier_wait(ring.empty + ring.stage, ring.phase ^ 1);
                    barrier_arrive(ring.full + ring.stage);
                    ring.advance();
                }
            }
        }
    } else if (warp == CONSUMER_WARPS + 1) {
        if (elect_one()) {
            prefetch(pixel_map);
            if (WHOLE && residual) prefetch(residual_map);
            wait_for_kernel_ahead();
            // Not earlier: beside blocks of the kernel ahead, those of the next launch would be uneven over the SMs.
            launch_dependents();
            for (unsigned i = blockIdx.x; i < tiles; i += gridDim.x) {
                const Tile tile = tile_at[i];
                produce_pixels(ring, pixel_map, Corner(tile, layer), Place(), stages, layer);
                if (WHOLE && residual) produce_residual(ring, residual_map, tile);
            }
        }
    } else if (warp < CONSUMER_WARPS) {
        if (WARPGROUPS == 3) take_registers<CONSUMER_REGISTERS>();
        Outputs out = {residual, output, output_stride, (int)filters, (int)pixels, paired != 0};
        const int warpgroup = warp / 4;
        const int row = warpgroup / FILTER_WARPGROUPS * ROW_TILES * 64;
        const int column = warpgroup % FILTER_WARPGROUPS * WARPGROUP_FILTERS;
        const Activation function(activation, numbers);
        [[maybe_unused]] int slot = 0;
        wait_for_kernel_ahead();
        for (unsigned i = blockIdx.x; i < tiles; i += gridDim.x) {
            const Tile tile = tile_at[i];
            const int pixel = tile.pixel + row, filter = tile.first_filter() + column;
            out.filters_end = tile.group_start + (int)group_filters;
            float sums[ROW_TILES][WGMMA_SUMS];  // new for each tile, so that the compiler carries none to the next
            if (!BIAS_AHEAD) consume<1>(sums, ring, resident, stages, row, column);
            const Bias biases(bias, filter, out.filters_end);
            if (BIAS_AHEAD) consume<1>(sums, ring, resident, stages, row, column);
            if (bias) biases.add_to(sums);
            [[maybe_unused]] const auto pixel_of = [&](int i) {  // i: the number of a sum
                return pixel + warp % 4 * 16 + lane / 4 + i / WGMMA_SUMS * 64 + i % 4 * 4;
            };
            [[maybe_unused]] const auto filter_of = [&](int i) {
                return filter + lane % 4 * 2 + i % WGMMA_SUMS / 4 * 8;
            };
#if WHOLE
            if (residual) add_residual(sums, ring, row / 64 * (FILTERS / BOX_FILTERS) + column / BOX_FILTERS);
#else
            if (residual)
#pragma unroll
                for (int i = 0; i < ROW_TILES * WGMMA_SUMS; i += 2)
                    if (out.has(pixel_of(i), filter_of(i)))
                        add_pair((&sums[0][0])[i], (&sums[0][0])[i + 1], out.residual_at(pixel_of(i), filter_of(i)));
#endif
#pragma unroll
            for (int tile = 0; tile < ROW_TILES; ++tile) activate(sums[tile], function);
#if WHOLE
            copy_out(sums, output_map, slots + warpgroup * 2 * BOX_BYTES, slot, pixel, tile.filter + column, tile.group,
                     warpgroup);
#else
#pragma unroll
            for (int i = 0; i < ROW_TILES * WGMMA_SUMS; i += 2)
                out.write((&sums[0][0])[i], (&sums[0][0])[i + 1], pixel_of(i), filter_of(i));
#endif
        }
        if (WHOLE && warp % 4 == 0 && elect_one()) wait_for_stores();
    }
}
