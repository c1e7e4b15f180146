// Convolution with groups of 2 to 32 channels, a power of two, and as many filters, of channels-last tensors in FP16 or
// BF16: by mma.sync, with FP32 sums that are rounded once.
//
// A vector is eight channels of a pixel, 16 bytes. A block has a channel block of VECTORS vectors, which are whole groups,
// and keeps their weights in shared memory, [filter][filter position][channel of the group]. It computes tiles of the
// output, one after the other. The input pixels that a tile needs are its window, [row][column][vector]: one copy by a
// tensor map brings it into a stage of a ring, tiles ahead of its use, with zeros for the padding. The copy's swizzle puts
// the same vector of neighbouring pixels into different banks.
//
// A chunk is one vector at one filter position. The reduction of a group is a sequence of chunks, filter position by
// filter position. An instruction multiplies two chunks of 16 pixels with those of eight filters. A warp computes the
// filters of a group for M_TILES * 16 pixels of a tile at a time; the warps of a block share the groups, and if they
// are more, the pixels.
//
// Groups of 2 or 4 channels share a vector: their weights are filled up with zeros to those of one group of 8. A zero times
// a NaN or an infinity of another group is a NaN. So a sum that is not finite is added up once more, of its group alone.
//
// BF16     1 for BF16, 0 for FP16
// VECTORS  vectors of a channel block: 8 or 4
// CHUNKS   vectors of a group, so chunks of a filter position: 1, 2 or 4
// SMALL    1 where groups share a vector; then CHUNKS is 1
//
// Every argument behind the tensor map has eight bytes. by_X packs the division by X (divider.cuh). group_channels:
// those of a group. A tile has tile_rows rows and 2^log_columns columns. paired: whether output and residual are read
// and written by pairs. weights_early: whether the weights may be read before the kernel ahead ends.

#include "channels_last/element.cuh"
#include "common/activation.cuh"
#include "common/divider.cuh"
#include "common/tma.cuh"

constexpr int MAX_THREADS = 256, VECTOR = 8, VECTOR_BYTES = VECTOR * sizeof(Element);
constexpr int STAGE_ALIGNMENT = 1024;  // bytes, after which the swizzle repeats
constexpr int GROUPS = VECTORS / CHUNKS;
constexpr int MMA_PIXELS = 16, M_TILES = CHUNKS == 1 ? 4 : 2;

// Where a vector of a window's pixel lies in a stage.
__device__ __forceinline__ int place_of(int pixel, int vector) {
    const int moved = VECTORS == 8 ? pixel % 8 : pixel / 2 % 4;
    return (pixel * VECTORS + (vector ^ moved)) * VECTOR_BYTES;
}

// cp.async: starts to copy a vector to shared memory, so that a thread does not wait for each of its copies.
__device__ __forceinline__ void copy_vector(uint4* to, const uint4* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
// A vector of zeros but for `count` elements from the `first` on, both even.
__device__ __forceinline__ uint4 spread(const Element* from, int first, int count) {
    unsigned words[4] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int at = i * 2 - first;
        if (at >= 0 && at < count) words[i] = *reinterpret_cast<const unsigned*>(from + at);
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
}
// Waits for the thread's copies.
__device__ __forceinline__ void wait_for_vectors() { asm volatile("cp.async.wait_all;" ::: "memory"); }

#if BF16
#define MMA_TYPES "f32.bf16.bf16.f32"
#else
#define MMA_TYPES "f32.f16.f16.f32"
#endif
// mma.sync: adds the products of 16 pixels and eight filters over two chunks.
__device__ __forceinline__ void multiply(float* sums, const unsigned (&pixels)[4], unsigned first, unsigned second) {
    asm("mma.sync.aligned.m16n8k16.row.col." MMA_TYPES " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(pixels[0]), "r"(pixels[1]), "r"(pixels[2]), "r"(pixels[3]), "r"(first), "r"(second));
}
// The same over one chunk, the first of `pixels`.
__device__ __forceinline__ void multiply(float* sums, const unsigned (&pixels)[4], unsigned first) {
    asm("mma.sync.aligned.m16n8k8.row.col." MMA_TYPES " {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(pixels[0]), "r"(pixels[1]), "r"(first));
}

// A tile of the output: its image, and its first row and column.
struct Tile {
    int image, y, x;
};

// All tiles of the output: those of a row of tiles are neighbours.
struct Tiles {
    Divider along, down;
    int rows, columns;  // per tile

    __device__ __forceinline__ Tile operator[](unsigned index) const {
        unsigned x, y;
        const int image = down(along(index, x), y);
        return {image, (int)y * rows, (int)x * columns};
    }
};

// Adds a group's products for the pixels whose windows start at the window's pixels `starts`. offsets: of each filter
// position, in pixels of the window. weights: the group's, by words of two, from the lane's first on; pitch: words from one
// filter to the next.
__device__ __forceinline__ void add_products(float (&sums)[M_TILES][CHUNKS][4], unsigned stage,
                                             const int (&starts)[M_TILES], const int* offsets, int taps, int vector,
                                             const unsigned* weights, int pitch) {
    const int half = threadIdx.x % 32 / 16;  // the lane's addresses are in the first or the second of two chunks
    const int chunks = taps * CHUNKS;
#pragma unroll 2
    for (int chunk = 0; chunk + 1 < chunks; chunk += 2) {
        const int own = chunk + half, offset = offsets[own / CHUNKS];
        unsigned pixels[M_TILES][4];
#pragma unroll
        for (int i = 0; i < M_TILES; ++i)
            load_matrices(stage + place_of(starts[i] + offset, vector + own % CHUNKS), pixels[i]);
#pragma unroll
        for (int n = 0; n < CHUNKS; ++n) {
            const unsigned* const of_filter = weights + n * 8 * pitch + chunk * 4;
            const unsigned first = of_filter[0], second = of_filter[4];
#pragma unroll
            for (int i = 0; i < M_TILES; ++i) multiply(sums[i][n], pixels[i], first, second);
        }
    }
    if (chunks % 2) {  // a group of one vector, and an odd number of filter positions
        const unsigned first = weights[(chunks - 1) * 4];
#pragma unroll
        for (int i = 0; i < M_TILES; ++i) {
            unsigned pixels[4];
            load_matrices(stage + place_of(starts[i] + offsets[taps - 1], vector), pixels);
            multiply(sums[i][0], pixels, first);
        }
    }
}

// The sum of the products of `count` channels of a vector, from the `first` on, for the pixel whose window starts at the
// window's pixel `start`. weights: those of a filter. Rare, so not inlined.
__device__ __noinline__ float plain_sum(unsigned stage, int start, const int* offsets, int taps, int vector,
                                        const Element* weights, int first, int count) {
    float sum = 0.0f;
    for (int tap = 0; tap < taps; ++tap)
        for (int i = first; i < first + count; ++i) {
            Element pixel;
            asm volatile("ld.shared.u16 %0, [%1];"
                         : "=h"(pixel)
                         : "r"(stage + place_of(start + offsets[tap], vector) + i * (int)sizeof(Element)));
            sum = fmaf(value_of(pixel), value_of(weights[tap * VECTOR + i]), sum);
        }
    return sum;
}

extern "C" __global__ void __launch_bounds__(MAX_THREADS)
    nhwc_grouped(const __grid_constant__ TensorMap input, const Element* weight, const Element* bias,
                 const Element* residual, Element* output, int64 output_stride, int64 channels, int64 out_h, int64 out_w,
                 int64 pad_h, int64 pad_w, int64 kernel_h, int64 kernel_w, int64 stride_h, int64 stride_w,
                 int64 dilation_h, int64 dilation_w, int64 tiles, int64 tiles_down, int64 by_tiles_down,
                 int64 tiles_along, int64 by_tiles_along, int64 tile_rows, int64 log_columns, int64 window_rows,
                 int64 window_columns, int64 channel_blocks, int64 by_channel_blocks, int64 stages, int64 activation,
                 int64 numbers, int64 paired, int64 weights_early, int64 group_channels) {
    extern __shared__ __align__(STAGE_ALIGNMENT) unsigned char shared[];
    const int taps = (int)(kernel_h * kernel_w), columns = 1 << (int)log_columns;
    const int tile_pixels = (int)tile_rows << (int)log_columns;
    const Tiles tile_at = {Divider(tiles_along, by_tiles_along), Divider(tiles_down, by_tiles_down), (int)tile_rows,
                           columns};
    // The ring's stages, the weights, the filter positions' places in a window, and the barriers of the stages. A
    // filter's pitch is an odd number of vectors, so that eight filters lie in different banks.
    const int window_bytes = (int)(window_rows * window_columns) * VECTORS * VECTOR_BYTES;
    const int stage_bytes = (window_bytes + STAGE_ALIGNMENT - 1) / STAGE_ALIGNMENT * STAGE_ALIGNMENT;
    const int filter_vectors = taps * CHUNKS, pitch = filter_vectors | 1;
    uint4* const weights = reinterpret_cast<uint4*>(shared + (int)stages * stage_bytes);
    uint64* const full = reinterpret_cast<uint64*>(weights + VECTORS * VECTOR * pitch);
    int* const offsets = reinterpret_cast<int*>(full + stages);

    unsigned channel_block;
    const unsigned first = Divider(channel_blocks, by_channel_blocks)(blockIdx.x, channel_block);
    const unsigned step = gridDim.x / (unsigned)channel_blocks;
    const int first_channel = channel_block * VECTORS * VECTOR;

    const auto copy = [&](unsigned index, int stage) {
        const Tile tile = tile_at[index];
        barrier_expect(full + stage, window_bytes);
        copy_box(shared_address(shared) + stage * stage_bytes, input, first_channel, tile.x * (int)stride_w - (int)pad_w,
                 tile.y * (int)stride_h - (int)pad_h, tile.image, full + stage);
    };
    // Starts the first windows. Weights that a kernel ahead may write are read after it, constant ones before.
    const auto begin = [&] {
        wait_for_kernel_ahead();
        if (is_leader())
            for (int i = 0; i < stages && first + i * step < tiles; ++i) copy(first + i * step, i);
        launch_dependents();
    };
    if (is_leader()) {
        prefetch(input);
        for (int i = 0; i < stages; ++i) barrier_init(full + i, 1);
        fence_barrier_init();
    }
    if (!weights_early) begin();
    const int filters = min(VECTORS * VECTOR, (int)channels - first_channel);
    const uint4* const from = reinterpret_cast<const uint4*>(weight) + (int64)first_channel * filter_vectors;
    [[maybe_unused]] const int of_group = (int)group_channels;
    for (int i = threadIdx.x; i < filters * filter_vectors; i += blockDim.x) {
        const int filter = i / filter_vectors;
        uint4* const to = weights + filter * pitch + i - filter * filter_vectors;
        if (SMALL)
            *to = spread(weight + ((int64)first_channel * taps + i) * of_group, filter % VECTOR / of_group * of_group,
                         of_group);
        else
            copy_vector(to, from + i);
    }
    for (int tap = threadIdx.x; tap < taps; tap += blockDim.x)
        offsets[tap] = tap / (int)kernel_w * (int)(dilation_h * window_columns) + tap % (int)kernel_w * (int)dilation_w;
    if (weights_early) begin();
    wait_for_vectors();
    __syncthreads();

    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = warp % GROUPS, vector = group * CHUNKS;
    const int part = warp / GROUPS, parts = max(1, (int)blockDim.x / 32 / GROUPS);  // shares of a tile's pixels
    const int channel = first_channel + vector * VECTOR + lane % 4 * 2;  // the first of the lane's sums
    const bool exists = channel < channels && part < parts;
    const unsigned* const own_weights =
        reinterpret_cast<const unsigned*>(weights + (vector * VECTOR + lane / 4) * pitch) + lane % 4;
    float biases[CHUNKS][2] = {};
#pragma unroll
    for (int n = 0; n < CHUNKS; ++n)
        if (bias && exists) {
            biases[n][0] = value_of(bias[channel + n * VECTOR]), biases[n][1] = value_of(bias[channel + n * VECTOR + 1]);
        }

    const auto start_of = [&](int pixel) {  // the first pixel of the window that a pixel of a tile reads
        return (pixel >> (int)log_columns) * (int)(stride_h * window_columns) + (pixel & (columns - 1)) * (int)stride_w;
    };
    int stage = 0, phase = 0;
    for (unsigned index = first; index < tiles; index += step) {
        const Tile tile = tile_at[index];
        barrier_wait(full + stage, phase);
        const int pass = M_TILES * MMA_PIXELS;
        for (int start = exists ? part * pass : tile_pixels; start < tile_pixels; start += parts * pass) {
            int starts[M_TILES];
#pragma unroll
            for (int i = 0; i < M_TILES; ++i) {
                starts[i] = start_of(min(start + i * MMA_PIXELS + lane % 16, tile_pixels - 1));
            }
            float sums[M_TILES][CHUNKS][4] = {};
            __syncwarp();
            add_products(sums, shared_address(shared) + stage * stage_bytes, starts, offsets, taps, vector, own_weights,
                         pitch * 4);
#if SMALL
#pragma unroll
            for (int i = 0; i < M_TILES * 4; ++i) {
                float& sum = sums[i / 4][0][i % 4];
                if (isfinite(sum)) continue;
                const int pixel = min(start + i / 4 * MMA_PIXELS + i % 4 / 2 * 8 + lane / 4, tile_pixels - 1);
                const int filter = lane % 4 * 2 + i % 2;
                const uint4* const of_filter = weights + (vector * VECTOR + filter) * pitch;
                sum = plain_sum(shared_address(shared) + stage * stage_bytes, start_of(pixel), offsets, taps, vector,
                                reinterpret_cast<const Element*>(of_filter), filter / of_group * of_group, of_group);
            }
#endif
            // The output's pixel of the sums in a row of a matrix, above or below, or -1 where there is none
            const auto pixel_of = [&](int i, int below) -> int64 {
                const int pixel = start + i * MMA_PIXELS + below * 8 + lane / 4;
                const int y = tile.y + (pixel >> (int)log_columns), x = tile.x + (pixel & (columns - 1));
                const bool is_output = pixel < tile_pixels && y < out_h && x < out_w;
                return is_output ? ((int64)tile.image * out_h + y) * out_w + x : -1;
            };
#pragma unroll
            for (int i = 0; i < M_TILES * 2; ++i) {
                const int64 pixel = residual ? pixel_of(i / 2, i % 2) : -1;
#pragma unroll
                for (int n = 0; n < CHUNKS; ++n) {
                    float* const two = sums[i / 2][n] + i % 2 * 2;
                    two[0] += biases[n][0], two[1] += biases[n][1];
                    if (pixel < 0) continue;
                    const Element* const more = residual + pixel * channels + channel + n * VECTOR;
                    const Pair pair = paired ? *reinterpret_cast<const Pair*>(more) : pair_of(more[0], more[1]);
                    two[0] += value_of(first_of(pair)), two[1] += value_of(second_of(pair));
                }
            }
            activate(reinterpret_cast<float(&)[M_TILES * CHUNKS * 4]>(sums), {activation, numbers});
#pragma unroll
            for (int i = 0; i < M_TILES * 2; ++i) {
                const int64 pixel = pixel_of(i / 2, i % 2);
                if (pixel < 0) continue;
#pragma unroll
                for (int n = 0; n < CHUNKS; ++n) {
                    const float* const two = sums[i / 2][n] + i % 2 * 2;
                    Element* const to = output + pixel * output_stride + channel + n * VECTOR;
                    const Pair pair = packed(two[0], two[1]);
                    if (paired)
                        *reinterpret_cast<Pair*>(to) = pair;
                    else
                        to[0] = first_of(pair), to[1] = second_of(pair);
                }
            }
        }
        fence_async_shared();  // the next copy into the stage must not overtake these loads
        __syncthreads();
        if (is_leader() && index + stages * step < tiles) copy(index + stages * step, stage);
        if (++stage == stages) stage = 0, phase ^= 1;
    }
}
