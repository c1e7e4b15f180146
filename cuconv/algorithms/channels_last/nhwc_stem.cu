// Convolution of few channels, those of a network's first layer, in FP16 or BF16 and channels last: wgmma, whose tile A
// threads read from the image itself.
//
// An image row is a line of width * channels elements. The input that a tile of output pixels needs is its window, a
// box of parts of such lines: one copy by a tensor map brings it into a stage of a ring, with zeros for the padding. Each
// warpgroup computes 64 pixels of a tile, and all FILTERS filters of the block.
//
// The reduction runs over pairs of elements: the row of a filter has kernel_w * channels elements, which are neighbours
// in the window. Copies start at multiples of 16 bytes: where the first element of a row lies in the upper half of a
// word, its first pair has that one alone, and so may its last pair have one. A table has for each pair its place in the
// window and a mask, which clears what is not of the row: there an infinity would make a NaN, even of a weight of zero.
// Pairs behind the last row have the mask 0. The block spreads the weights in the same order, once for all its tiles.
//
// BF16     1 for BF16, 0 for FP16
// FILTERS  filters of a block, a multiple of 16
// ODD      1 where a pixel's first element may be the upper half of a word: stride_w * channels is odd
//
// Every argument behind the tensor map has eight bytes. by_X packs the division by X (divider.cuh). left: elements of
// padding that a window has ahead of the image, of which the first pixel's filter skips `skipped`. row_elements: of a
// filter's row. row_pairs: the pairs of it. lead: 1 where the first of them has one element, 0 elsewhere. steps: of 16
// elements of the reduction, an even number. pitch: bytes from one row of a window to the next. A tile has 2^log_columns
// columns. vector: as in Outputs. weights_early: whether the weights may be
// read before the kernel ahead ends.

#include "channels_last/windows.cuh"

constexpr int CORE = 8;               // rows of a core matrix, and elements of each: 16 bytes
constexpr int STAGE_ALIGNMENT = 128;  // bytes; where a copy by a tensor map starts in shared memory
constexpr int CORE_BYTES = FILTERS * CORE * sizeof(Element);  // all filters' weights for eight elements in depth

constexpr uint64 CORE_LAYOUT = 8ull << 32;  // the upper half of core_descriptor's

// The pairs of the reduction: their filter row, and their place in it.
struct Pairs {
    Divider by_row;
    int rows, row_elements, lead;

    // Finds a pair's row and its number in the row, and returns the mask of its elements that exist.
    __device__ __forceinline__ unsigned find(int pair, int& row, unsigned& in_row) const {
        row = by_row(pair, in_row);
        const int element = first_element(in_row);
        return row < rows ? pair_mask(element >= 0, element + 1 < row_elements) : 0;
    }
    // The element of a row that the lower half of a pair is; -1 where it is none.
    __device__ __forceinline__ int first_element(int in_row) const { return in_row * 2 - lead; }
};

// Writes the table: for each step and thread % 4 two pairs, each as its byte in the window and its mask. All threads of
// the block call it.
__device__ __forceinline__ void make_table(uint2* table, const Pairs& pairs, int count, int pitch) {
#pragma unroll 1
    for (int pair = threadIdx.x; pair < count; pair += blockDim.x) {
        int row;
        unsigned in_row;
        const unsigned mask = pairs.find(pair, row, in_row);
        // Pairs t and t + 4 of a step are neighbours in the table: a thread reads both at once.
        table[pair & ~7 | pair % 4 * 2 | pair / 4 % 2] =
            make_uint2(mask ? row * pitch + in_row * (2 * (int)sizeof(Element)) : 0, mask);
    }
}

// The weights of a block's filters: [filter][row][row_elements].
struct Weights {
    const Element* start;
    int filters;  // only those that exist

    // A pair of a filter's weights; zeros where there are none. It always loads, and masks what it has loaded: behind a
    // branch a thread would wait for each load.
    __device__ __forceinline__ unsigned pair(const Pairs& pairs, int filter, int pair) const {
        int row;
        unsigned in_row;
        const unsigned of_row = pairs.find(pair, row, in_row), mask = filter < filters ? of_row : 0;
        const int at = (filter * pairs.rows + row) * pairs.row_elements + pairs.first_element(in_row);
        const unsigned low = start[mask & 0xffff ? at : 0], high = start[mask >> 16 ? at + 1 : 0];
        return (low | high << 16) & mask;
    }
};

// Spreads the weights in core matrices: [8 elements in depth][filter][8 elements]. A warp has eight neighbouring
// filters and the four pairs of 8 elements.
__device__ __forceinline__ void spread_weights(unsigned* to, const Weights& weights, const Pairs& pairs, int count) {
    constexpr int AT_A_TIME = 8, GROUPS = FILTERS / 8;
    const int lane = threadIdx.x % 32, warps = blockDim.x / 32, items = count / 4 * GROUPS;
#pragma unroll 1
    for (int item = threadIdx.x / 32; item < items; item += AT_A_TIME * warps) {
        unsigned values[AT_A_TIME];
#pragma unroll
        for (int i = 0; i < AT_A_TIME; ++i) {
            const int at = item + i * warps;
            values[i] = weights.pair(pairs, at % GROUPS * 8 + lane / 4, at / GROUPS * 4 + lane % 4);
        }
#pragma unroll
        for (int i = 0; i < AT_A_TIME; ++i)
            if (item + i * warps < items) to[(item + i * warps) * 32 + lane] = values[i];
    }
}

// A thread's two pixels of a tile, 8 columns apart or in different rows: where their windows start in that of the tile.
struct Windows {
    unsigned first, second;  // bytes, from whole words on
    unsigned shift;          // bits of the first word that are not of a pair

    __device__ __forceinline__ unsigned pair(unsigned at) const {
        unsigned word;
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(at) : "memory");
        if (!ODD) return word;
        unsigned next;
        asm volatile("ld.shared.u32 %0, [%1 + 4];" : "=r"(next) : "r"(at) : "memory");
        return __funnelshift_r(word, next, shift);
    }
    // A thread's part of tile A for a step, whose two pairs are those of the table's entry.
    __device__ __forceinline__ void read(unsigned (&values)[4], unsigned stage, const uint4& entry) const {
        values[0] = pair(stage + first + entry.x) & entry.y;
        values[1] = pair(stage + second + entry.x) & entry.y;
        values[2] = pair(stage + first + entry.z) & entry.w;
        values[3] = pair(stage + second + entry.z) & entry.w;
    }
};

// The sums of a warpgroup's pixels. table: the thread's first entry. Two parts of tile A take turns: while one is
// multiplied, the thread reads the other.
__device__ __forceinline__ void multiply(float (&sums)[WGMMA_SUMS], const Windows& windows, unsigned stage,
                                         const uint4* table, unsigned weights, int steps) {
    unsigned values[2][4];
    uint4 entry = table[0];
#pragma unroll 1
    for (int step = 0; step < steps; step += 2)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            windows.read(values[i], stage, entry);
            entry = table[(step + i + 1) * 4];  // behind the table it is not used
            wgmma_fence();
            const unsigned tile = core_descriptor(weights + (step + i) * 2 * CORE_BYTES, CORE_BYTES);
            wgmma_half(sums, values[i], CORE_LAYOUT | tile, step + i > 0);
            wgmma_commit();
            wgmma_wait_for_all_but_one();
        }
    wgmma_wait(sums);
}

extern "C" __global__ void __launch_bounds__(MAX_THREADS, MIN_BLOCKS)
    nhwc_stem(const __grid_constant__ TensorMap input, const Element* weight, const Element* bias,
              const Element* residual, Element* output, int64 output_stride, int64 filters, int64 channels, int64 out_h,
              int64 out_w, int64 pad_h, int64 left, int64 skipped, int64 kernel_h, int64 stride_h, int64 stride_w,
              int64 row_elements, int64 row_pairs, int64 by_row_pairs, int64 lead, int64 steps, int64 pitch,
              int64 window_rows, int64 tiles, int64 tiles_down, int64 by_tiles_down, int64 tiles_along,
              int64 by_tiles_along, int64 tile_rows, int64 log_columns, int64 filter_blocks, int64 by_filter_blocks,
              int64 stages, int64 activation, int64 numbers, int64 vector, int64 weights_early) {
    // The ring's stages, the weights, the table, the bias, the outputs of each warp, and the barriers of the stages
    extern __shared__ __align__(STAGE_ALIGNMENT) unsigned char shared[];
    const int window_bytes = (int)window_rows * (int)pitch, pair_count = (int)steps * (STEP / 2);
    const int stage_bytes = (window_bytes + STAGE_ALIGNMENT - 1) / STAGE_ALIGNMENT * STAGE_ALIGNMENT;
    unsigned char* const weights = shared + (int)stages * stage_bytes;
    uint2* const table = reinterpret_cast<uint2*>(weights + (int)steps * 2 * CORE_BYTES);
    float* const biases = reinterpret_cast<float*>(table + pair_count);
    unsigned char* const staging = reinterpret_cast<unsigned char*>(biases + FILTERS);
    uint64* const full = reinterpret_cast<uint64*>(staging + blockDim.x / 32 * OUTPUT_BYTES);

    const Tiles tile_at = {Divider(tiles_along, by_tiles_along), Divider(tiles_down, by_tiles_down), (int)tile_rows,
                           (int)log_columns};
    const Pairs pairs = {Divider(row_pairs, by_row_pairs), (int)kernel_h, (int)row_elements, (int)lead};
    unsigned filter_block;
    const unsigned first = Divider(filter_blocks, by_filter_blocks)(blockIdx.x, filter_block);
    const TileRing ring = {first, gridDim.x / (unsigned)filter_blocks, (unsigned)tiles, (int)stages, full};
    const int first_filter = filter_block * FILTERS, own_filters = min(FILTERS, (int)filters - first_filter);

    const auto copy = [&](unsigned index, int stage) {
        const Tile tile = tile_at[index];
        barrier_expect(full + stage, window_bytes);
        copy_box(shared_address(shared) + stage * stage_bytes, input,
                 tile.x * (int)(stride_w * channels) - (int)left, tile.y * (int)stride_h - (int)pad_h, tile.image,
                 full + stage);
    };
    // Starts the first windows. Weights that a kernel ahead may write are read after it, constant ones before.
    const auto begin = [&] {
        wait_for_kernel_ahead();
        if (is_leader()) ring.begin(copy);
        launch_dependents();
    };
    if (is_leader()) {
        prefetch(input);
        ring.init();
        fence_barrier_init();
    }
    if (!weights_early) begin();
    make_table(table, pairs, pair_count, (int)pitch);
    spread_weights(reinterpret_cast<unsigned*>(weights),
                   {weight + (int64)first_filter * kernel_h * row_elements, own_filters}, pairs, pair_count);
    if (weights_early) begin();
    load_biases(biases, bias ? bias + first_filter : nullptr, own_filters);
    fence_async_shared();  // wgmma reads the weights through the async proxy
    __syncthreads();

    const int lane = threadIdx.x % 32, pixel = threadIdx.x / 32 * WARP_PIXELS + lane / 4;  // in the tile
    const auto window_of = [&](int pixel) {
        return tile_at.row(pixel) * (int)stride_h * (int)pitch +
               (tile_at.column(pixel) * (int)(stride_w * channels) + (int)(skipped - lead)) * (int)sizeof(Element);
    };
    const unsigned start = window_of(pixel);
    const Windows windows = {start & ~3u, window_of(pixel + 8) & ~3u, (start & 2) * 8};
    const Element* const added = residual ? residual + first_filter : nullptr;
    const Outputs out = {added, output + first_filter, filters, output_stride, own_filters, (int)vector};
    const auto multiply_stage = [&](float (&sums)[WGMMA_SUMS], int stage) {
        multiply(sums, windows, shared_address(shared) + stage * stage_bytes,
                 reinterpret_cast<const uint4*>(table) + lane % 4, shared_address(weights), (int)steps);
    };
    compute(ring, tile_at, out, (int)out_h, (int)out_w, biases, staging, {activation, numbers}, copy, multiply_stage);
}
