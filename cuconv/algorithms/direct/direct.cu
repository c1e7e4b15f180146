// Direct convolution as plain FP32 sums on the CUDA cores: few filters, and large filters of few channels.
//
// A block computes a tile of outputs of FILTERS filters, in one image and one group. It walks the channels of the
// group: the tile's input and the weights of the next channels are copied to shared memory while those of the last are
// multiplied. A thread computes FILTERS x ROWS x COLUMNS sums. It goes down the input by the rows of the filter, and
// holds the windows of ROWS input rows, of which each step replaces one:
//
//     rows of the input in registers    ky = 0:  0 1 2 3        output row r takes row r + ky:
//     (ROWS = 4)                        ky = 1:    1 2 3 4      a step loads one window and one row of weights
//                                       ky = 2:      2 3 4 5    for ROWS rows of outputs
//
// Filters wider than TAPS are taken TAPS columns at a time, the last 1 to 3 by themselves: weights that do not exist are
// not multiplied, since 0 times Inf is a NaN. The padding of the input counts as zeros that are multiplied.
//
// Strides divide rows and columns into phases: position ky = phase + j * stride of output y reads row
// (y + j) * stride + phase. So each phase is a convolution of stride 1. Its columns lie side by side in shared memory.
//
// Few tiles leave a GPU idle. The threads of a block then share the sums of its tile: by channels, and by the rows of
// the filter. In the end they are added through shared memory, always in the same order.
//
// FILTERS  filters of a thread
// ROWS     rows of outputs of a thread
// SIZE     rows and columns of the filter, at stride 1; 0 where size and stride are arguments
//
// Every argument has eight bytes: a pointer or a long long.

#include "common/activation.cuh"
#include "common/async_copies.cuh"
#include "common/convolution.cuh"
#include "common/divider.cuh"

// The threads whose registers an SM must hold. A thread then has at most 128, 255 or 168 registers; no variant spills.
constexpr int SM_THREADS = FILTERS < 3 || FILTERS * ROWS < 8 ? 512 : ROWS == 2 ? 256 : 384;
constexpr int COLUMNS = 4;                   // a thread computes rows of four outputs, a vector
constexpr int TAPS = SIZE ? SIZE : 4;        // columns of the filter that are taken at a time
constexpr int SLOT = (TAPS + 3) / 4 * 4;     // floats of their weights in shared memory
constexpr int ROUNDS = SIZE ? SIZE : 1;      // rows of the filter that the loop unrolls
constexpr int SLOT_FLOATS = FILTERS * SLOT;  // the same of all filters of a thread

typedef float Sums[FILTERS][ROWS][COLUMNS];

__device__ __forceinline__ int quotient_up(int a, int b) { return (a + b - 1) / b; }

template <int FLOATS>
__device__ __forceinline__ void load_vectors(float (&values)[FLOATS], const float* from) {
#pragma unroll
    for (int i = 0; i < FLOATS; i += 4) {
        const float4 v = *reinterpret_cast<const float4*>(from + i);
        values[i] = v.x, values[i + 1] = v.y, values[i + 2] = v.z, values[i + 3] = v.w;
    }
}

// How the input and the weights of a channel lie in shared memory, which depends on the filter and the stride.
struct Layout {
    int kernel_h, kernel_w, stride_h, stride_w;
    int phases;          // phases of the input's columns
    int pitch;           // floats of a row of a phase, a multiple of 4
    int slots;           // slots of a row of the filter, with TAPS weights each
    int channel_floats;  // floats of a channel's input

    __device__ __forceinline__ int row_floats() const { return phases * pitch; }
    __device__ __forceinline__ int phase_slots() const { return slots / phases; }
};

// Adds the products of COUNT columns of the filter, and of its rows from `first` to `end`, to the sums. rows: the first
// output row's window, from row 0 on. Steps are from a row to the next.
template <int COUNT>
__device__ __forceinline__ void add_columns(Sums& sums, const float* rows, int row_step, const float* weights,
                                            int weight_step, int first, int end) {
    constexpr int WINDOW = (COLUMNS + COUNT + 2) / 4 * 4;
    float window[ROWS][WINDOW];
    rows += first * row_step, weights += first * weight_step;
#pragma unroll
    for (int row = 0; row < ROWS - 1; ++row, rows += row_step) load_vectors(window[row], rows);
#pragma unroll(ROUNDS)
    for (int from = first; from < end; from += ROWS)
#pragma unroll
        for (int step = 0; step < ROWS; ++step)
            if (from + step < end) {
                load_vectors(window[(step + ROWS - 1) % ROWS], rows);
#pragma unroll
                for (int f = 0; f < FILTERS; ++f) {
                    float weight[SLOT];
                    load_vectors(weight, weights + f * SLOT);
#pragma unroll
                    for (int tap = 0; tap < COUNT; ++tap)
#pragma unroll
                        for (int i = 0; i < ROWS * COLUMNS; ++i)
                            sums[f][i / COLUMNS][i % COLUMNS] =
                                fmaf(window[(step + i / COLUMNS) % ROWS][i % COLUMNS + tap], weight[tap],
                                     sums[f][i / COLUMNS][i % COLUMNS]);
                }
                rows += row_step, weights += weight_step;
            }
}

// Adds the products of a channel. input: the thread's first window. share: of `shares` parts of the filter's rows.
__device__ __forceinline__ void add_channel(Sums& sums, const float* input, const float* weights, const Layout& layout,
                                            int share, int shares) {
    if constexpr (SIZE > 0) {
        add_columns<TAPS>(sums, input, layout.pitch, weights, SLOT_FLOATS, 0, SIZE);
    } else {
        const int row_step = layout.stride_h * layout.row_floats();
        const int weight_row = layout.slots * SLOT_FLOATS, weight_step = layout.stride_h * weight_row;
#pragma unroll 1
        for (int y = 0; y < min(layout.stride_h, layout.kernel_h); ++y) {
            const int rows = quotient_up(layout.kernel_h - y, layout.stride_h), part = quotient_up(rows, shares);
            const int first = share * part, end = min(rows, first + part);
            if (first >= end) continue;
#pragma unroll 1
            for (int x = 0; x < layout.phases; ++x) {
                const float* window = input + (y * layout.phases + x) * layout.pitch;
                const float* slot = weights + y * weight_row + x * layout.phase_slots() * SLOT_FLOATS;
                int left = quotient_up(layout.kernel_w - x, layout.stride_w);
#pragma unroll 1
                for (; left >= TAPS; left -= TAPS, window += TAPS, slot += SLOT_FLOATS)
                    add_columns<TAPS>(sums, window, row_step, slot, weight_step, first, end);
                if (left == 1) add_columns<1>(sums, window, row_step, slot, weight_step, first, end);
                if (left == 2) add_columns<2>(sums, window, row_step, slot, weight_step, first, end);
                if (left == 3) add_columns<3>(sums, window, row_step, slot, weight_step, first, end);
            }
        }
    }
}

// Starts to copy a tile of `count` channels: `positions` input elements of each, by rows of by_columns.divisor. (top,
// left) is the first of them, in the image.
__device__ __forceinline__ void copy_input(float* to, const float* from, int count, int positions, int top, int left,
                                           int height, int width, const Divider& by_columns, const Layout& layout) {
    const int64 plane = (int64)height * width;
    for (unsigned i = threadIdx.x; i < positions; i += blockDim.x) {
        unsigned column;
        const int row = by_columns(i, column);
        const int phase = SIZE ? 0 : column % layout.phases, place = SIZE ? column : column / layout.phases;
        const int y = top + row, x = left + place * layout.stride_w + phase;
        const bool inside = (unsigned)y < (unsigned)height && (unsigned)x < (unsigned)width;
        const float* source = from + (inside ? (int64)y * width + x : 0);
        unsigned target = shared_address(to + row * layout.row_floats() + phase * layout.pitch + place);
#pragma unroll 4
        for (int c = 0; c < count; ++c, source += plane, target += 4 * layout.channel_floats)
            copy_async(target, source, inside);
    }
}

// Starts to copy the weights of `count` channels of `filters` filters; depth: weights of a filter.
__device__ __forceinline__ void copy_weights(float* to, const float* from, int count, int filters, int64 depth,
                                             const Layout& layout) {
    const int area = layout.kernel_h * layout.kernel_w;
    for (int i = threadIdx.x; i < count * area; i += blockDim.x) {
        const int row = i / layout.kernel_w, kx = i - row * layout.kernel_w;  // row: counted over all channels
        const int phase = SIZE ? 0 : kx % layout.stride_w, tap = SIZE ? kx : kx / layout.stride_w;
        const int slot = row * layout.slots + phase * layout.phase_slots() + tap / TAPS;
        const unsigned target = shared_address(to + slot * SLOT_FLOATS + tap % TAPS);
#pragma unroll
        for (int f = 0; f < FILTERS; ++f)
            if (f < filters) copy_async(target + 4 * SLOT * f, from + f * depth + i, true);
    }
}

// Adds the sums of the threads that share a tile. Half of the shares hand theirs to the other half, then half of these,
// and so on, until share 0 has the whole sum.
__device__ __forceinline__ void add_shares(Sums& sums, float4* shared, int share, int shares) {
    const int tile_threads = blockDim.x / shares;
    for (int half = shares / 2; half > 0; half /= 2) {
        float4* const place = shared + threadIdx.x % (half * tile_threads);
        __syncthreads();  // shared memory is free
#pragma unroll
        for (int i = 0; i < FILTERS * ROWS; ++i) {
            const float* const from = sums[i / ROWS][i % ROWS];
            if (share >= half && share < 2 * half)
                place[i * half * tile_threads] = {from[0], from[1], from[2], from[3]};
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < FILTERS * ROWS; ++i) {
            float* const sum = sums[i / ROWS][i % ROWS];
            if (share < half) {
                const float4 v = place[i * half * tile_threads];
                sum[0] += v.x, sum[1] += v.y, sum[2] += v.z, sum[3] += v.w;
            }
        }
    }
}

// Adds bias and residual to four sums of a row, and writes the activation of those that lie in the plane. columns: how
// many do. vector: whether all four do, at an address that is a multiple of 16 bytes.
__device__ __forceinline__ void write_row(float* to, const float* residual, const float (&sums)[COLUMNS], float bias,
                                          bool has_bias, const Activation& activation, int columns, bool vector) {
    float values[COLUMNS], added[COLUMNS] = {};
    if (residual && vector) load_vectors(added, residual);
#pragma unroll
    for (int i = 0; i < COLUMNS; ++i) {
        values[i] = has_bias ? sums[i] + bias : sums[i];
        if (residual && !vector && i < columns) added[i] = residual[i];
        if (residual) values[i] += added[i];
    }
    activate(values, activation);
    if (vector)
        *reinterpret_cast<float4*>(to) = {values[0], values[1], values[2], values[3]};
    else
#pragma unroll
        for (int i = 0; i < COLUMNS; ++i)
            if (i < columns) to[i] = values[i];
}

// channels, filters: of a group. output_planes: of an image of the tensor that the output is a slice of.
// vector: 1 where four outputs can be written at a time. tiles_*: tiles of a plane; filter_blocks: blocks of a tile.
// threads_*: of a tile; shares_c, shares_y: threads that share a sum, powers of two.
// chunk: channels that are copied at a time, a multiple of shares_c. buffers: 1 where there is one chunk, 2 otherwise.
// columns, rows: elements of the input of a tile; slots, pitch: see Layout. After columns follows its packed multiplier.
extern "C" __global__ void __launch_bounds__(SM_THREADS, 1)
    direct(const float* __restrict__ input, const float* __restrict__ weight, const float* __restrict__ bias,
           float* __restrict__ output, const float* __restrict__ residual, int64 channels, int64 height, int64 width,
           int64 filters, int64 kernel_h, int64 kernel_w, int64 pad_h, int64 pad_w, int64 stride_h, int64 stride_w,
           int64 out_h, int64 out_w, int64 groups, int64 output_planes, int64 activation, int64 numbers, int64 vector,
           int64 tiles_x, int64 tiles_y, int64 filter_blocks, int64 threads_x, int64 threads_y, int64 shares_c,
           int64 shares_y, int64 chunk, int64 buffers, int64 rows, int64 columns, int64 columns_packed, int64 pitch,
           int64 slots) {
    extern __shared__ float4 shared[];
    unsigned rest = blockIdx.x;
    const int filter = rest % (unsigned)filter_blocks * FILTERS;
    rest /= (unsigned)filter_blocks;
    const int tile_x = rest % (unsigned)tiles_x * (unsigned)threads_x * COLUMNS;
    rest /= (unsigned)tiles_x;
    const int tile_y = rest % (unsigned)tiles_y * (unsigned)threads_y * ROWS;
    rest /= (unsigned)tiles_y;
    const unsigned group = rest % (unsigned)groups, image = rest / (unsigned)groups;

    // A thread's place: its column and row of threads, and its share, of channels first.
    rest = threadIdx.x;
    const int thread_x = rest % (unsigned)threads_x, thread_y = rest / (unsigned)threads_x % (unsigned)threads_y;
    const int share = rest / (unsigned)(threads_x * threads_y), share_c = share % (unsigned)shares_c;

    Layout layout = {SIZE, SIZE, 1, 1, 1, (int)pitch, 1, 0};
    if constexpr (SIZE == 0) {
        layout = {(int)kernel_h, (int)kernel_w, (int)stride_h, (int)stride_w, (int)min(stride_w, kernel_w),
                  (int)pitch,    (int)slots,    0};
    }
    layout.channel_floats = (int)rows * layout.row_floats();
    const int weight_floats = layout.kernel_h * layout.slots * SLOT_FLOATS;  // weights of a channel
    const int buffer_floats = (int)chunk * (layout.channel_floats + weight_floats);
    const int window = thread_y * ROWS * layout.stride_h * layout.row_floats() + thread_x * COLUMNS;
    const int top = tile_y * layout.stride_h - (int)pad_h, left = tile_x * layout.stride_w - (int)pad_w;
    const Divider by_columns(columns, columns_packed);
    const int64 plane = height * width, depth = channels * (layout.kernel_h * layout.kernel_w);
    const float* const planes = input + (int64)(image * groups + group) * channels * plane;
    const float* const weights = weight + (group * filters + filter) * depth;

    const auto copy_chunk = [&](int first) {
        const int count = min((int)chunk, (int)channels - first);
        float* const to = reinterpret_cast<float*>(shared) + first / (int)chunk % (int)buffers * buffer_floats;
        copy_input(to, planes + first * plane, count, (int)(rows * columns), top, left, (int)height, (int)width,
                   by_columns, layout);
        copy_weights(to + (int)chunk * layout.channel_floats,
                     weights + (int64)first * (layout.kernel_h * layout.kernel_w), count, (int)filters - filter, depth,
                     layout);
        commit_copies();
    };
#if __CUDA_ARCH__ >= 900
    wait_for_kernel_ahead((uint64)input | (unsigned)window);
    launch_dependents();
#endif
    Sums sums = {};
    copy_chunk(0);
#pragma unroll 1
    for (int first = 0; first < (int)channels; first += (int)chunk) {
        if (first + (int)chunk < (int)channels) {
            copy_chunk(first + (int)chunk);
            wait_for_copies<1>();
        } else {
            wait_for_copies<0>();
        }
        __syncthreads();  // the chunk is there
        const float* const inputs =
            reinterpret_cast<float*>(shared) + first / (int)chunk % (int)buffers * buffer_floats;
        const float* const slots_of_chunk = inputs + (int)chunk * layout.channel_floats;
#pragma unroll 1
        for (int c = share_c; c < min((int)chunk, (int)channels - first); c += (int)shares_c)
            add_channel(sums, inputs + c * layout.channel_floats + window, slots_of_chunk + c * weight_floats, layout,
                        share / (unsigned)shares_c, (int)shares_y);
        __syncthreads();  // the buffer may be filled again
    }
    add_shares(sums, shared, share, (int)(shares_c * shares_y));

    const int x = tile_x + thread_x * COLUMNS, y = tile_y + thread_y * ROWS;
    if (share > 0 || x >= (int)out_w) return;
#pragma unroll
    for (int f = 0; f < FILTERS; ++f) {
        if (filter + f >= (int)filters) break;
        const int64 number = group * filters + filter + f;  // in an image
        const float shift = bias ? __ldg(bias + number) : 0.0f;
#pragma unroll
        for (int row = 0; row < ROWS; ++row) {
            if (y + row >= (int)out_h) break;
            const int64 place = (int64)(y + row) * out_w + x, out_plane = out_h * out_w;
            const float* const added =
                residual ? residual + (image * groups * filters + number) * out_plane + place : nullptr;
            write_row(output + (image * output_planes + number) * out_plane + place, added, sums[f][row], shift, bias,
                      {activation, numbers}, (int)out_w - x, vector);
        }
    }
}
