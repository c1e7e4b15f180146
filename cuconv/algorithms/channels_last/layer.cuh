// The common parts of the kernels for channels-last tensors in FP16, BF16 and TF32: elements, sizes, and the ring of stages
// through which the producer warps hand tiles of the operands to the consumer warpgroups.
//
// TF32               1 for TF32 of float32 tensors
// BF16               1 for BF16, 0 for FP16
// PIXELS             output pixels of a tile
// WARPGROUP_FILTERS  filters of a consumer warpgroup: a multiple of 16 up to 256
// FILTER_WARPGROUPS  warpgroups over the filters of a tile
// BOX_CHANNELS       channels of a copy in half precision: 16, 32 or 64, in rows of twice as many bytes with a swizzle of
//                    that width; half as many in TF32
// BOXES              copies of each operand in a stage
// RESIDENT_WEIGHTS   1 where a block's weights stay in shared memory, and stages of the ring have pixels alone
// GROUPED            1 where there are groups: the map of pixels has a dimension for them
//
// Output pixels of all images are counted in one sequence. The reduction is one, too: blocks of BOX_ELEMENTS channels
// outside and filter positions inside, so that the pixels which neighbouring positions share are read from the L2
// cache. A box of that sequence is one channel block of one filter position. A tile has filters of one group alone, and
// the channels of its reduction are those of the group.
#pragma once

#if TF32
#define WGMMA_SHARED_TF32
#elif BF16
#define WGMMA_HALF bf16
#else
#define WGMMA_HALF f16
#endif
#define WGMMA_N WARPGROUP_FILTERS

#include "channels_last/element.cuh"
#include "common/activation.cuh"
#include "common/divider.cuh"
#include "common/tma.cuh"
#include "common/wgmma.cuh"

constexpr int FILTERS = WARPGROUP_FILTERS * FILTER_WARPGROUPS;
constexpr int ROW_BYTES = BOX_CHANNELS * 2, BOX_ELEMENTS = ROW_BYTES / sizeof(Element);
constexpr int STEP_BYTES = 32;  // an instruction multiplies so many bytes of a row
constexpr bool BIAS_AHEAD = sizeof(Element) == 2;  // whether bias is read ahead; in TF32 it takes too many registers
constexpr int PIXEL_BYTES = PIXELS * ROW_BYTES, FILTER_BYTES = FILTERS * ROW_BYTES;  // per box
constexpr int STAGE_PIXEL_BYTES = BOXES * PIXEL_BYTES, STAGE_WEIGHT_BYTES = BOXES * FILTER_BYTES;
constexpr int STAGE_BYTES = STAGE_PIXEL_BYTES + (RESIDENT_WEIGHTS ? 0 : STAGE_WEIGHT_BYTES);
constexpr int PRODUCERS = RESIDENT_WEIGHTS ? 1 : 2;  // per stage

// Sizes of a layer, and divisions by them.
struct Layer {
    int kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
    Divider by_out_pixels, by_out_w;
};

// A tile of the output: its first pixel, its group, the group's first filter, and the tile's first one, counted in the
// group.
struct Tile {
    int pixel, group, group_start, filter;

    __device__ __forceinline__ int first_filter() const { return group_start + filter; }
};

// The tiles of the output. Those of the same pixels are neighbours, and among them those of the same group.
struct Tiles {
    Divider by_filter_tiles, by_group_tiles;  // the filter tiles of all groups, and of one
    int group_filters;

    __device__ __forceinline__ Tile operator[](unsigned index) const {
        unsigned filter_tile;
        const int pixel = by_filter_tiles(index, filter_tile) * PIXELS;
        const int group = GROUPED ? by_group_tiles(filter_tile, filter_tile) : 0;
        return {pixel, group, group * group_filters, (int)filter_tile * FILTERS};
    }
};

// Where the filter of a tile's first output pixel starts in its image, and the tile's group.
struct Corner {
    int x, y, image, group;

    __device__ __forceinline__ Corner(const Tile& tile, const Layer& layer) : group(tile.group) {
        unsigned pixel, column;
        image = layer.by_out_pixels(tile.pixel, pixel);
        y = (int)layer.by_out_w(pixel, column) * layer.stride_h - layer.pad_h;
        x = (int)column * layer.stride_w - layer.pad_w;
    }
};

// A place in the reduction. Places behind the last box have channels that do not exist, which are copied as zeros.
struct Place {
    int channel, row, column;

    __device__ __forceinline__ void next(const Layer& layer) {
        if (++column < layer.kernel_w) return;
        column = 0;
        if (++row < layer.kernel_h) return;
        row = 0;
        channel += BOX_ELEMENTS;
    }
};

// A ring of stages in shared memory, as one producer or consumer walks it. A stage holds BOXES boxes of pixels, then
// BOXES boxes of weights. A `full` barrier completes when the producers' bytes have arrived, an `empty` one when the
// consumers have released the stage.
struct Ring {
    unsigned start;  // the first stage's address
    uint64 *full, *empty;
    int stages;
    int stage = 0, phase = 0;

    __device__ __forceinline__ unsigned pixels() const { return start + stage * STAGE_BYTES; }
    __device__ __forceinline__ unsigned weights() const { return pixels() + STAGE_PIXEL_BYTES; }
    __device__ __forceinline__ void advance(int by = 1) {
        stage += by;
        if (stage >= stages) stage -= stages, phase ^= 1;
    }
};

// Weights that stay in shared memory: every stage of the reduction, each with a barrier that completes once.
struct ResidentWeights {
    unsigned start;
    uint64* full;
};

// Producer of pixels: copies `stages` stages of the reduction, from a place on, for the tile that starts at a corner.
__device__ __forceinline__ void produce_pixels(Ring& ring, const TensorMap& map, const Corner& corner, Place place,
                                               int stages, const Layer& layer) {
    for (; stages > 0; --stages) {
        uint64* const full = ring.full + ring.stage;
        barrier_wait(ring.empty + ring.stage, ring.phase ^ 1);
        barrier_expect(full, STAGE_PIXEL_BYTES);
#pragma unroll
        for (int box = 0; box < BOXES; ++box) {
            copy_pixels(ring.pixels() + box * PIXEL_BYTES, map, place.channel, corner.x, corner.y, corner.image,
#if GROUPED
                        corner.group,
#endif
                        place.column * layer.dilation_w, place.row * layer.dilation_h, full);
            place.next(layer);
        }
        ring.advance();
    }
}

// Copies the boxes of a stage for the filters from `filter` on.
__device__ __forceinline__ void copy_weights(unsigned target, uint64* full, const TensorMap& map, int filter,
                                             Place& place, const Layer& layer) {
    barrier_expect(full, STAGE_WEIGHT_BYTES);
#pragma unroll
    for (int box = 0; box < BOXES; ++box) {
        copy_box(target + box * FILTER_BYTES, map, place.channel, place.row * layer.kernel_w + place.column, filter,
                 full);
        place.next(layer);
    }
}

// Producer of weights: the same as that of pixels, for the filters from `filter` on.
__device__ __forceinline__ void produce_weights(Ring& ring, const TensorMap& map, int filter, Place place, int stages,
                                                const Layer& layer) {
    for (; stages > 0; --stages) {
        barrier_wait(ring.empty + ring.stage, ring.phase ^ 1);
        copy_weights(ring.weights(), ring.full + ring.stage, map, filter, place, layer);
        ring.advance();
    }
}

// Starts the products of a stage. FIRST: they replace the sums, which are added to otherwise.
template <bool FIRST, int ROW_TILES>
__device__ __forceinline__ void start_products(float (&sums)[ROW_TILES][WGMMA_SUMS], unsigned pixels,
                                               unsigned weights) {
    wgmma_fence();
#pragma unroll
    for (int box = 0; box < BOXES; ++box)
#pragma unroll
        for (int k = 0; k < ROW_BYTES; k += STEP_BYTES)
#pragma unroll
            for (int tile = 0; tile < ROW_TILES; ++tile)
                wgmma_shared(sums[tile],
                             tile_descriptor<ROW_BYTES>(pixels + box * PIXEL_BYTES + tile * 64 * ROW_BYTES + k),
                             tile_descriptor<ROW_BYTES>(weights + box * FILTER_BYTES + k), !FIRST || box + k > 0);
    wgmma_commit();
}

// Consumer: adds up the products of every STEP-th of `stages` stages, one at least. The warpgroup has ROW_TILES times 64
// rows of a stage's pixels, from first_row on, and WGMMA_N filters, from first_column on. A stage is given back when the
// products of the next one have started. resident: where weights stay.
template <int STEP, int ROW_TILES>
__device__ __forceinline__ void consume(float (&sums)[ROW_TILES][WGMMA_SUMS], Ring& ring,
                                        const ResidentWeights& resident, int stages, int first_row, int first_column) {
    const bool leader = threadIdx.x % 32 == 0;
    unsigned pixels, weights;
    const auto await_stage = [&](int i) {
        pixels = ring.pixels() + first_row * ROW_BYTES;
        weights = (RESIDENT_WEIGHTS ? resident.start + i * STAGE_WEIGHT_BYTES : ring.weights()) + first_column * ROW_BYTES;
        if (RESIDENT_WEIGHTS) barrier_wait(resident.full + i, 0);
        barrier_wait(ring.full + ring.stage, ring.phase);
    };
    await_stage(0);
    start_products<true>(sums, pixels, weights);
    uint64* behind = ring.empty + ring.stage;
    ring.advance(STEP);
#pragma unroll 1
    for (int i = STEP; i < stages; i += STEP) {
        await_stage(i);
        start_products<false>(sums, pixels, weights);
        wgmma_wait_for_all_but_one();
        if (leader) barrier_arrive(behind);
        behind = ring.empty + ring.stage;
        ring.advance(STEP);
    }
#pragma unroll
    for (int tile = 0; tile < ROW_TILES; ++tile) wgmma_wait(sums[tile]);
    if (leader) barrier_arrive(behind);
}

// Two neighbouring elements, of which the first `count` exist; zeros stand for the others. paired: whether one load reads
// both.
__device__ __forceinline__ Pair load_pair(const Element* from, int count, bool paired) {
    if (count <= 0) return Pair();
    if (paired) return *reinterpret_cast<const Pair*>(from);
    return pair_of(from[0], count > 1 ? from[1] : Element());
}
__device__ __forceinline__ void add_pair(float& first, float& second, Pair pair) {
    first += value_of(first_of(pair)), second += value_of(second_of(pair));
}

// The bias of a warpgroup's filters: each warp has all of it, a pair of neighbours in each lane. It is read ahead of the
// products, whose time hides that of the loads.
struct Bias {
    Pair pairs[(WARPGROUP_FILTERS + 63) / 64];

    __device__ __forceinline__ Bias(const Element* bias, int filter, int filters_end) {
#pragma unroll
        for (int i = 0; i < sizeof(pairs) / sizeof(*pairs); ++i) {
            const int at = filter + i * 64 + threadIdx.x % 32 * 2;
            pairs[i] = bias ? load_pair(bias + at, filters_end - at, false) : Pair();
        }
    }
    // Adds it to sums as wgmma leaves them.
    template <int ROW_TILES>
    __device__ __forceinline__ void add_to(float (&sums)[ROW_TILES][WGMMA_SUMS]) const {
#pragma unroll
        for (int i = 0; i < WGMMA_SUMS / 4; ++i) {
            const Pair pair = pair_from(pairs[i / 8], i % 8 * 4 + threadIdx.x % 4);
#pragma unroll
            for (int tile = 0; tile < ROW_TILES; ++tile) {
                add_pair(sums[tile][4 * i], sums[tile][4 * i + 1], pair);
                add_pair(sums[tile][4 * i + 2], sums[tile][4 * i + 3], pair);
            }
        }
    }
};

// Residual and output, of which a thread reads and writes two neighbouring filters of a pixel.
struct Outputs {
    const Element* residual;  // null where there is none
    Element* output;
    int64 output_stride;  // elements from one pixel of the output to the next
    int filters, pixels;
    bool paired;      // whether two neighbours can be read and written at once
    int filters_end;  // one behind the last filter of the tile's group

    __device__ __forceinline__ bool has(int pixel, int filter) const { return pixel < pixels && filter < filters_end; }
    __device__ __forceinline__ Pair residual_at(int pixel, int filter) const {
        if (!has(pixel, filter)) return Pair();
        return load_pair(residual + (int64)pixel * filters + filter, filters_end - filter, paired);
    }
    __device__ __forceinline__ void write(float first, float second, int pixel, int filter) const {
        if (!has(pixel, filter)) return;
        const Pair pair = packed(first, second);
        Element* const to = output + pixel * output_stride + filter;
        if (paired) {
            *reinterpret_cast<Pair*>(to) = pair;
        } else {
            to[0] = first_of(pair);
            if (filter + 1 < filters_end) to[1] = second_of(pair);
        }
    }
};
