// Depthwise convolution of channels-last tensors in FP16 or BF16: plain FP32 sums, rounded once.
//
// A vector is eight channels of a pixel, 16 bytes. A block has a channel block of `vectors` vectors, whose weights it
// keeps in shared memory as floats: [filter position][half of a vector][vector][4 channels]. It computes tiles of the
// output, one after the other. The input pixels that a tile needs are its window, [image][row][column][vector]: one
// copy by a tensor map brings it into a stage of a ring, tiles ahead of its use, with zeros for the padding.
//
// A thread computes a vector of COLUMNS neighbouring output pixels, a strip, and then the next of its strips in the
// tile. Neighbouring threads have neighbouring vectors, and then the strip of the row below: the host chooses the
// window's columns so that these rows lie in other banks.
//
// BF16                1 for BF16, 0 for FP16
// KERNEL_H, KERNEL_W  the filter's rows and columns, with dilation 1; 0 where all of the geometry is an argument
// STRIDE              of both axes, where the filter is a macro
//
// Every argument behind the tensor map has eight bytes. by_X packs the division by X (divider.cuh). across: strips in a
// row of a tile. positions: strips that a block computes at a time. whole: whether output and residual are read and
// written by vectors. weights_early: whether the weights may be read before the kernel ahead ends.

#include "channels_last/element.cuh"
#include "common/activation.cuh"
#include "common/divider.cuh"
#include "common/tma.cuh"

constexpr int MAX_THREADS = 256, VECTOR = 8, VECTOR_BYTES = VECTOR * sizeof(Element);
constexpr int STAGE_ALIGNMENT = 128;  // bytes; where a copy by a tensor map starts in shared memory
constexpr bool GENERAL = KERNEL_W == 0;

// Sizes of a filter.
struct Filter {
    int rows, columns, stride_h, stride_w, dilation_h, dilation_w;
};

// A tile of the output: its first image, row and column.
struct Tile {
    int image, y, x;
};

// All tiles of the output: those of a row of tiles are neighbours.
struct Tiles {
    Divider along, down;
    int images, rows, columns;  // per tile

    __device__ __forceinline__ Tile operator[](unsigned index) const {
        unsigned x, y;
        const int group = down(along(index, x), y);
        return {group * images, (int)y * rows, (int)x * columns};
    }
};

// The input of a thread's strip in shared memory, from the vector of its first pixel on.
struct Window {
    const unsigned char* start;
    int row_bytes, pixel_bytes;

    __device__ __forceinline__ void read(float (&values)[VECTOR], int row, int column) const {
        unpack(values, *reinterpret_cast<const uint4*>(start + row * row_bytes + column * pixel_bytes));
    }
};

// The weights of a filter position for a thread's vector.
struct Weights {
    const float4* start;  // the vector's first four channels at filter position 0
    int vectors;

    __device__ __forceinline__ void read(float (&values)[VECTOR], int position) const {
        const float4 low = start[position * 2 * vectors], high = start[(position * 2 + 1) * vectors];
        values[0] = low.x, values[1] = low.y, values[2] = low.z, values[3] = low.w;
        values[4] = high.x, values[5] = high.y, values[6] = high.z, values[7] = high.w;
    }
};

// Spreads a channel block's weights, [channel][filter position], as floats in the order in which threads read them.
__device__ __forceinline__ void spread_weights(float4* to, const Element* from, int taps, int vectors, int vector,
                                               int position, int positions) {
    for (int tap = position; tap < taps; tap += positions) {
        float values[VECTOR];
#pragma unroll
        for (int i = 0; i < VECTOR; ++i) values[i] = value_of(from[(vector * VECTOR + i) * taps + tap]);
        to[tap * 2 * vectors + vector] = make_float4(values[0], values[1], values[2], values[3]);
        to[(tap * 2 + 1) * vectors + vector] = make_float4(values[4], values[5], values[6], values[7]);
    }
}

// Adds the products of a vector and its weights.
__device__ __forceinline__ void multiply(float (&sum)[VECTOR], const float (&values)[VECTOR],
                                         const float (&weight)[VECTOR]) {
#pragma unroll
    for (int i = 0; i < VECTOR; ++i) sum[i] = fmaf(values[i], weight[i], sum[i]);
}

// Adds the products of a strip, those of each sum in the order of the filter positions.
__device__ __forceinline__ void add_products(float (&sums)[COLUMNS][VECTOR], const Window& window,
                                             const Weights& weights, const Filter& filter) {
    float values[VECTOR];
#if KERNEL_W
    constexpr int WINDOW_COLUMNS = (COLUMNS - 1) * STRIDE + KERNEL_W;
#pragma unroll 1  // all rows at once would take 1.5 to 2 times as many registers, or not fit in the instruction cache
    for (int ky = 0; ky < KERNEL_H; ++ky) {
        float weight[KERNEL_W][VECTOR];
#pragma unroll
        for (int kx = 0; kx < KERNEL_W; ++kx) weights.read(weight[kx], ky * KERNEL_W + kx);
#pragma unroll
        for (int column = 0; column < WINDOW_COLUMNS; ++column) {
            window.read(values, ky, column);
#pragma unroll
            for (int x = 0; x < COLUMNS; ++x) {
                const int kx = column - x * STRIDE;
                if (kx >= 0 && kx < KERNEL_W) multiply(sums[x], values, weight[kx]);
            }
        }
    }
#else
    for (int ky = 0; ky < filter.rows; ++ky)
#pragma unroll 2
        for (int kx = 0; kx < filter.columns; ++kx) {
            float weight[VECTOR];
            weights.read(weight, ky * filter.columns + kx);
#pragma unroll
            for (int x = 0; x < COLUMNS; ++x) {
                window.read(values, ky * filter.dilation_h, x * filter.stride_w + kx * filter.dilation_w);
                multiply(sums[x], values, weight);
            }
        }
#endif
}

// Bias, residual and activation of a vector's sums, which are then rounded and written.
__device__ __forceinline__ void finish(float (&sums)[VECTOR], const float (&bias)[VECTOR], const Element* residual,
                                       Element* output, const Activation& activation, bool whole) {
#pragma unroll
    for (int i = 0; i < VECTOR; ++i) sums[i] += bias[i];
    if (residual) {
        float more[VECTOR];
        if (whole)
            unpack(more, *reinterpret_cast<const uint4*>(residual));
        else
#pragma unroll
            for (int i = 0; i < VECTOR; ++i) more[i] = value_of(residual[i]);
#pragma unroll
        for (int i = 0; i < VECTOR; ++i) sums[i] += more[i];
    }
    activate(sums, activation);
    const unsigned pairs[] = {packed(sums[0], sums[1]), packed(sums[2], sums[3]), packed(sums[4], sums[5]),
                              packed(sums[6], sums[7])};
    if (whole)
        *reinterpret_cast<uint4*>(output) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
    else
#pragma unroll
        for (int i = 0; i < VECTOR; ++i) output[i] = (Element)(pairs[i / 2] >> i % 2 * 16);
}

extern "C" __global__ void __launch_bounds__(MAX_THREADS)
    nhwc_depthwise(const __grid_constant__ TensorMap input, const Element* weight, const Element* bias,
                   const Element* residual, Element* output, int64 output_stride, int64 images, int64 channels,
                   int64 out_h, int64 out_w, int64 pad_h, int64 pad_w, int64 kernel_h, int64 kernel_w, int64 stride_h,
                   int64 stride_w, int64 dilation_h, int64 dilation_w, int64 tiles, int64 tiles_down,
                   int64 by_tiles_down, int64 tiles_along, int64 by_tiles_along, int64 tile_images, int64 tile_rows,
                   int64 by_tile_rows, int64 across, int64 by_across, int64 window_rows, int64 window_columns,
                   int64 vectors, int64 by_vectors, int64 positions, int64 channel_blocks, int64 by_channel_blocks,
                   int64 stages, int64 activation, int64 numbers, int64 whole, int64 weights_early) {
    extern __shared__ __align__(STAGE_ALIGNMENT) unsigned char shared[];
    const int taps = GENERAL ? (int)(kernel_h * kernel_w) : KERNEL_H * KERNEL_W;
    const int step_h = GENERAL ? (int)stride_h : STRIDE, step_w = GENERAL ? (int)stride_w : STRIDE;
    const Filter filter = {(int)kernel_h, (int)kernel_w, step_h, step_w, (int)dilation_h, (int)dilation_w};
    const Tiles tile_at = {Divider(tiles_along, by_tiles_along), Divider(tiles_down, by_tiles_down), (int)tile_images,
                           (int)tile_rows, (int)across * COLUMNS};
    // The ring's stages, the weights as floats and as they come, and the barriers of the stages and of the weights
    const int pixel_bytes = (int)vectors * VECTOR_BYTES, row_bytes = (int)window_columns * pixel_bytes;
    const int image_bytes = (int)window_rows * row_bytes, window_bytes = (int)tile_images * image_bytes;
    const int stage_bytes = (window_bytes + STAGE_ALIGNMENT - 1) / STAGE_ALIGNMENT * STAGE_ALIGNMENT;
    float4* const floats = reinterpret_cast<float4*>(shared + (int)stages * stage_bytes);
    const Element* const raw = reinterpret_cast<const Element*>(floats + taps * 2 * (int)vectors);
    uint64* const full = reinterpret_cast<uint64*>(floats + taps * 3 * (int)vectors);

    unsigned channel_block, vector;
    const unsigned first = Divider(channel_blocks, by_channel_blocks)(blockIdx.x, channel_block);
    const unsigned step = gridDim.x / (unsigned)channel_blocks;
    const int position = Divider(vectors, by_vectors)(threadIdx.x, vector);
    const int first_channel = channel_block * (int)vectors * VECTOR, channel = first_channel + vector * VECTOR;

    const auto copy = [&](unsigned index, int stage) {
        const Tile tile = tile_at[index];
        barrier_expect(full + stage, window_bytes);
        copy_box(shared_address(shared) + stage * stage_bytes, input, first_channel, tile.x * step_w - (int)pad_w,
                 tile.y * step_h - (int)pad_h, tile.image, full + stage);
    };
    // Starts the first windows. Weights that a kernel ahead may write come at the same time, constant ones before.
    const auto begin = [&] {
        wait_for_kernel_ahead();
        if (is_leader())
            for (int i = 0; i < stages && first + i * step < tiles; ++i) copy(first + i * step, i);
        launch_dependents();
    };
    if (is_leader()) {
        prefetch(input);
        for (int i = 0; i <= stages; ++i) barrier_init(full + i, 1);
        fence_barrier_init();
    }
    if (!weights_early) begin();
    if (is_leader()) {
        const int weights = min((int)vectors * VECTOR, (int)channels - first_channel) * taps;
        fetch(shared_address(raw), weight + (int64)first_channel * taps, weights * sizeof(Element), full + stages);
    }
    __syncthreads();
    barrier_wait(full + stages, 0);
    spread_weights(floats, raw, taps, vectors, vector, position, positions);
    if (weights_early) begin();
    __syncthreads();

    const Weights weights = {floats + vector, (int)vectors};
    const unsigned char* const own = shared + vector * VECTOR_BYTES;  // the thread's vector of a window's first pixel
    float biases[VECTOR];
#pragma unroll
    for (int i = 0; i < VECTOR; ++i) biases[i] = bias && channel < channels ? value_of(bias[channel + i]) : 0.0f;

    const Divider down(tile_rows, by_tile_rows), along(across, by_across);
    const unsigned strips = position < positions && channel < channels ? tile_images * tile_rows * across : 0;
    int stage = 0, phase = 0;
    for (unsigned index = first; index < tiles; index += step) {
        const Tile tile = tile_at[index];
        barrier_wait(full + stage, phase);
        for (unsigned strip = position; strip < strips; strip += positions) {
            unsigned row, column;  // where the strip lies in the tile
            const int image = along(down(strip, row), column), start = column * COLUMNS;
            const int64 out_row = (tile.image + image) * out_h + tile.y + row;
            if (tile.image + image >= images || tile.y + row >= out_h) continue;
            const int place = image * image_bytes + (int)row * step_h * row_bytes + start * step_w * pixel_bytes;
            const Window window = {own + stage * stage_bytes + place, row_bytes, pixel_bytes};
            float sums[COLUMNS][VECTOR] = {};
            add_products(sums, window, weights, filter);
            const int64 pixel = out_row * out_w + tile.x + start;
            const int left = (int)out_w - tile.x - start;
#pragma unroll
            for (int i = 0; i < COLUMNS; ++i) {
                if (i >= left) break;
                finish(sums[i], biases, residual ? residual + (pixel + i) * channels + channel : nullptr,
                       output + (pixel + i) * output_stride + channel, {activation, numbers}, whole != 0);
            }
        }
        fence_async_shared();  // the next copy into the stage must not overtake these loads
        __syncthreads();
        if (is_leader() && index + stages * step < tiles) copy(index + stages * step, stage);
        if (++stage == stages) stage = 0, phase ^= 1;
    }
}
