// Convolution of few channels by filters of several positions, in FP16 or BF16 and channels last: wgmma, whose tile
// A is read from windows of the input.
//
// The input that a tile of output pixels needs is its window, a box of channels, columns and rows: one copy by a tensor
// map brings it into a stage of a ring, with zeros for the padding. All filter positions read it there, so that every
// input pixel is copied about once, where tiles of im2col columns copy it for each position. Each warpgroup computes 64
// pixels of a tile, and all FILTERS filters of the block, whose weights stay in shared memory.
//
// The reduction runs over octets, eight channels of a filter position, in the order of the weights in memory. A table
// has for each octet its place in the window. Octets behind the last one, which fill up a box of weights, are zeros.
//
// SWIZZLE  bytes of a pixel where they are 32, 64 or 128, and copies swizzle the window; 0 elsewhere
// The other macros are those of windows.cuh.
//
// Every argument behind the tensor maps has eight bytes. by_X packs the division by X (divider.cuh). octets,
// row_octets, position_octets: octets of the whole reduction, of a filter row, of a filter position. pitch: bytes from
// one row of a window to the next. A tile has 2^log_columns columns. vector: as in Outputs. weights_early: whether the
// weights may be read before the kernel ahead ends.

#include "channels_last/windows.cuh"

constexpr int OCTET = 8, OCTET_BYTES = OCTET * sizeof(Element), STEP_BYTES = STEP * sizeof(Element);
// A thread reads tile A for two steps at a time, here a group.
constexpr int GROUP_STEPS = 2, GROUP_OCTETS = GROUP_STEPS * STEP / OCTET;
constexpr int ROW_BYTES = 128, ROW_OCTETS = ROW_BYTES / OCTET_BYTES;       // a row of a weight box, whose swizzle is as wide
constexpr int BOX_BYTES = FILTERS * ROW_BYTES, BOX_GROUPS = ROW_OCTETS / GROUP_OCTETS;
constexpr int STAGE_ALIGNMENT = 1024;  // bytes, after which every swizzle repeats
constexpr int NOWHERE = -1;            // stands for the place of an octet that does not exist

// The octets of the reduction, and their places in a window.
struct Octets {
    int count, row_bytes, position_bytes;  // from one row of the filter to the next, and from one position
    Divider by_row, by_position;

    // The byte of an octet in the window of a pixel.
    __device__ __forceinline__ int place(int octet) const {
        unsigned in_row, in_position;
        const int row = by_row(octet, in_row), column = by_position(in_row, in_position);
        return octet < count ? row * row_bytes + column * position_bytes + (int)in_position * OCTET_BYTES : NOWHERE;
    }
};

// Writes the table: for each group, and for each half of a step, the octets of the group's steps. All threads call it.
__device__ __forceinline__ void make_table(int* table, const Octets& octets, int size) {
#pragma unroll 1
    for (int octet = threadIdx.x; octet < size; octet += blockDim.x)
        table[octet / GROUP_OCTETS * GROUP_OCTETS + octet % 2 * GROUP_STEPS + octet / 2 % GROUP_STEPS] =
            octets.place(octet);
}

// A thread's part of tile A for a step: its lane loads a row of eight elements for the warp. pixel: where the window of
// the lane's pixel starts. zeros: an octet of zeros.
__device__ __forceinline__ void read_window(unsigned (&values)[4], unsigned pixel, int place, unsigned zeros) {
    unsigned at = pixel + place;
    if (SWIZZLE > 0) at ^= at >> 3 & (SWIZZLE - 16);
    load_matrices(place == NOWHERE ? zeros : at, values);
}

// A block's weights in shared memory: boxes of 64 elements of all filters, each with a barrier that completes once.
struct Weights {
    unsigned start;
    uint64* full;
    int boxes;
};

// The sums of a warpgroup's pixels. table: the first entry of the lane's half of a step. Two parts of tile A take turns:
// while one is multiplied, the thread reads the other.
__device__ __forceinline__ void multiply(float (&sums)[WGMMA_SUMS], unsigned pixel, const int2* table,
                                         const Weights& weights, unsigned zeros) {
    static_assert(GROUP_STEPS == 2 && BOX_GROUPS == 2, "an entry has two places, and a box of weights two groups");
    unsigned values[BOX_GROUPS][GROUP_STEPS][4];
    int2 entry = table[0];
#pragma unroll 1
    for (int box = 0; box < weights.boxes; ++box) {
        barrier_wait(weights.full + box, 0);
#pragma unroll
        for (int group = 0; group < BOX_GROUPS; ++group) {
            read_window(values[group][0], pixel, entry.x, zeros);
            read_window(values[group][1], pixel, entry.y, zeros);
            entry = table[(box * BOX_GROUPS + group + 1) * 2];  // behind the table it is not used
            wgmma_fence();
#pragma unroll
            for (int step = 0; step < GROUP_STEPS; ++step) {
                const unsigned tile = weights.start + box * BOX_BYTES + (group * GROUP_STEPS + step) * STEP_BYTES;
                wgmma_half(sums, values[group][step], tile_descriptor<ROW_BYTES>(tile), box + group + step > 0);
            }
            wgmma_commit();
            wgmma_wait_for_all_but_one();
        }
    }
    wgmma_wait(sums);
}

extern "C" __global__ void __launch_bounds__(MAX_THREADS, MIN_BLOCKS)
    nhwc_window(const __grid_constant__ TensorMap input, const __grid_constant__ TensorMap weight, const Element* bias,
                const Element* residual, Element* output, int64 output_stride, int64 filters, int64 channels,
                int64 out_h, int64 out_w, int64 pad_h, int64 pad_w, int64 stride_h, int64 stride_w, int64 dilation_h,
                int64 dilation_w, int64 octets, int64 row_octets, int64 by_row_octets, int64 position_octets,
                int64 by_position_octets, int64 pitch, int64 window_rows, int64 tiles, int64 tiles_down,
                int64 by_tiles_down, int64 tiles_along, int64 by_tiles_along, int64 tile_rows, int64 log_columns,
                int64 filter_blocks, int64 by_filter_blocks, int64 stages, int64 activation, int64 numbers, int64 vector,
                int64 weights_early) {
    // In this order: the ring's stages, the weights, the table, the bias, an octet of zeros, each warp's outputs, the
    // stages' barriers, the weight boxes' barriers
    extern __shared__ __align__(STAGE_ALIGNMENT) unsigned char shared[];
    const int window_bytes = (int)window_rows * (int)pitch, boxes = ((int)octets + ROW_OCTETS - 1) / ROW_OCTETS;
    const int stage_bytes = (window_bytes + STAGE_ALIGNMENT - 1) / STAGE_ALIGNMENT * STAGE_ALIGNMENT;
    unsigned char* const weights = shared + (int)stages * stage_bytes;
    int* const table = reinterpret_cast<int*>(weights + boxes * BOX_BYTES);
    float* const biases = reinterpret_cast<float*>(table + boxes * ROW_OCTETS);
    uint4* const zeros = reinterpret_cast<uint4*>(biases + FILTERS);
    unsigned char* const staging = reinterpret_cast<unsigned char*>(zeros + 1);
    uint64* const full = reinterpret_cast<uint64*>(staging + blockDim.x / 32 * OUTPUT_BYTES);
    const Weights kept = {shared_address(weights), full + stages, boxes};

    const Tiles tile_at = {Divider(tiles_along, by_tiles_along), Divider(tiles_down, by_tiles_down), (int)tile_rows,
                           (int)log_columns};
    const int pixel_bytes = (int)channels * (int)sizeof(Element);
    unsigned filter_block;
    const unsigned first = Divider(filter_blocks, by_filter_blocks)(blockIdx.x, filter_block);
    const TileRing ring = {first, gridDim.x / (unsigned)filter_blocks, (unsigned)tiles, (int)stages, full};
    const int first_filter = filter_block * FILTERS;

    const auto copy = [&](unsigned index, int stage) {
        const Tile tile = tile_at[index];
        barrier_expect(full + stage, window_bytes);
        copy_box(shared_address(shared) + stage * stage_bytes, input, 0, tile.x * (int)stride_w - (int)pad_w,
                 tile.y * (int)stride_h - (int)pad_h, tile.image, full + stage);
    };
    const auto copy_weights = [&] {
#pragma unroll 1
        for (int box = 0; box < boxes; ++box) {
            barrier_expect(kept.full + box, BOX_BYTES);
            copy_box(kept.start + box * BOX_BYTES, weight, box * (ROW_OCTETS * OCTET), first_filter, kept.full + box);
        }
    };
    if (is_leader()) {
        prefetch(input), prefetch(weight);
        ring.init();
#pragma unroll 1
        for (int box = 0; box < boxes; ++box) barrier_init(kept.full + box, 1);
        fence_barrier_init();
        if (weights_early) copy_weights();
    }
    make_table(table,
               {(int)octets, (int)dilation_h * (int)pitch, (int)dilation_w * pixel_bytes,
                Divider(row_octets, by_row_octets), Divider(position_octets, by_position_octets)},
               boxes * ROW_OCTETS);
    if (threadIdx.x == 32) *zeros = make_uint4(0, 0, 0, 0);  // not the leader's warp, which is busy
    wait_for_kernel_ahead();
    if (is_leader()) {
        if (!weights_early) copy_weights();
        ring.begin(copy);
    }
    launch_dependents();
    const int own_filters = min(FILTERS, (int)filters - first_filter);
    load_biases(biases, bias ? bias + first_filter : nullptr, own_filters);
    __syncthreads();

    const int lane = threadIdx.x % 32, pixel = threadIdx.x / 32 * WARP_PIXELS + lane % 16;  // in the tile
    const unsigned window = shared_address(shared) + tile_at.row(pixel) * (int)stride_h * (int)pitch +
                            tile_at.column(pixel) * (int)stride_w * pixel_bytes;
    const Element* const added = residual ? residual + first_filter : nullptr;
    const Outputs out = {added, output + first_filter, filters, output_stride, own_filters, (int)vector};
    const auto multiply_stage = [&](float (&sums)[WGMMA_SUMS], int stage) {
        multiply(sums, window + stage * stage_bytes, reinterpret_cast<const int2*>(table) + lane / 16, kept,
                 shared_address(zeros));
    };
    compute(ring, tile_at, out, (int)out_h, (int)out_w, biases, staging, {activation, numbers}, copy, multiply_stage);
}
