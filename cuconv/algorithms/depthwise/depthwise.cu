// Grouped convolution with few channels a group, as plain FP32 sums; with one channel it is a depthwise convolution.
//
// A thread computes a strip of ROWS x COLUMNS neighbouring outputs, of FILTERS filters of one group. It goes down the
// rows of the input once. Of each row it holds the window that its outputs see, and adds it to every output row that
// the row meets:
//
//     rows of the input   0 1 2 3 4 5      output row 0: ky = 0 1 2
//     (3x3, 4 rows)                                   1:      0 1 2
//                                                     2:        0 1 2
//                                                     3:          0 1 2
//
// Strips are numbered along a row, then down a plane, then over planes, so that neighbouring lanes have neighbouring
// outputs, in planes of any size. Each sum is one chain in the order of channels and filter positions. Padding counts
// as zeros that are multiplied, so Inf and NaN go where a plain sum takes them.
//
// STAGED 0: every thread reads its windows from global memory, and the L1 cache serves what neighbours share.
// STAGED 1, for small planes: a block has batches of whole groups. Their planes and weights lie side by side, so the
// block copies them to shared memory in whole vectors, whatever the length of a row, and writes its outputs in the same
// way. With two buffers it copies the next batch while it computes one:
//
//     buffer 0   [ fetch batch 0 ][ compute ][ write ][ fetch batch 2 ...
//     buffer 1                    [ fetch batch 1 ]   [ compute ][ write ] ...
//
// GENERAL                1 for the kernel of every geometry (general.cuh), which has ROWS and AT_ONCE alone
// COLUMNS ROWS FILTERS   outputs of a strip; FILTERS divides the filters of a group
// GROUP_CHANNELS         channels of a group
// KERNEL_H KERNEL_W      the filter's size
// BAND                   rows of the filter whose weights a thread holds at a time; divides KERNEL_H
// VECTOR                 elements of a row that are loaded at a time: 1, 2 or 4; divides the width of a row
// LEAD                   elements from a multiple of VECTOR in a row to the window's first element
// OUT_VECTOR             outputs that are stored at a time: 1, 2 or 4; divides COLUMNS and the width of a row
// CHANNEL_GROUPS         unused: the number of groups is an argument, so that layers of all widths share a variant
//
// Every argument has eight bytes: a pointer or a long long.

#if GENERAL
#include "depthwise/general.cuh"
#else
#include "common/activation.cuh"
#include "common/async_copies.cuh"
#include "common/divider.cuh"
#include "depthwise/start.cuh"

// Where the outputs of a strip meet the input on one axis: slots are the input positions that it reads. Outputs share
// slots, unless their positions are so far apart that the span between the first and the last would not fit a mask.
template <int OUTPUTS, int KERNEL, int STRIDE, int DILATION>
struct Axis {
    static constexpr int SPAN = (OUTPUTS - 1) * STRIDE + (KERNEL - 1) * DILATION + 1;
    static constexpr bool SHARED = SPAN <= 60;
    static constexpr int SLOTS = SHARED ? SPAN : OUTPUTS * KERNEL;

    // The slot that an output reads at a filter position.
    __device__ static constexpr int slot(int output, int k) {
        return SHARED ? output * STRIDE + k * DILATION : k * OUTPUTS + output;
    }
    // The distance of a slot from the first input position.
    __device__ static constexpr int distance(int slot) {
        return SHARED ? slot : slot % OUTPUTS * STRIDE + slot / OUTPUTS * DILATION;
    }
    __device__ static constexpr uint64 used_slots() {
        uint64 mask = 0;
        for (int output = 0; SHARED && output < OUTPUTS; ++output)
            for (int k = 0; k < KERNEL; ++k) mask |= 1ull << slot(output, k);
        return mask;
    }
    static constexpr uint64 USED = used_slots();
    // Whether an output reads a slot.
    __device__ static constexpr bool is_used(int slot) {
        return slot >= 0 && slot < SLOTS && (!SHARED || USED >> slot & 1);
    }
};

typedef Axis<ROWS, BAND, STRIDE_H, DILATION_H> RowAxis;
typedef Axis<COLUMNS, KERNEL_W, STRIDE_W, DILATION_W> ColumnAxis;

constexpr int AREA = KERNEL_H * KERNEL_W;
constexpr int FILTER_FLOATS = GROUP_CHANNELS * AREA;                      // weights of a filter
constexpr int CHUNKS = (LEAD + ColumnAxis::SLOTS + VECTOR - 1) / VECTOR;  // vectors of a row of a window
static_assert(KERNEL_H % BAND == 0 && COLUMNS % OUT_VECTOR == 0 && LEAD < VECTOR, "see above");
static_assert(VECTOR == 1 || (ColumnAxis::SHARED && COLUMNS * STRIDE_W % VECTOR == 0), "windows begin alike");

template <int FLOATS>
struct VectorOf;
template <>
struct VectorOf<2> {
    typedef float2 type;
};
template <>
struct VectorOf<4> {
    typedef float4 type;
};

// Loads or stores neighbouring floats, whose address is a multiple of their size. Loads of global memory go through
// the read-only path.
template <int FLOATS>
__device__ __forceinline__ void load_vector(float* values, const float* from) {
    if constexpr (FLOATS == 1) {
        values[0] = STAGED ? *from : __ldg(from);
    } else {
        typedef typename VectorOf<FLOATS>::type Vector;
        const Vector* const source = reinterpret_cast<const Vector*>(from);
        const Vector v = STAGED ? *source : __ldg(source);
        values[0] = v.x, values[1] = v.y;
        if constexpr (FLOATS == 4) values[2] = v.z, values[3] = v.w;
    }
}
template <int FLOATS>
__device__ __forceinline__ void store_vector(float* to, const float* values) {
    if constexpr (FLOATS == 1) *to = values[0];
    if constexpr (FLOATS == 2) *reinterpret_cast<float2*>(to) = {values[0], values[1]};
    if constexpr (FLOATS == 4) *reinterpret_cast<float4*>(to) = {values[0], values[1], values[2], values[3]};
}

struct Problem {
    int height, width, pad_h, pad_w, out_h, out_w;
};

// The place of a strip: the unit is a block of FILTERS filters in one image.
struct Strip {
    unsigned unit;
    int y, x;  // row and column of its first output

    __device__ __forceinline__ Strip(unsigned strip, const Divider& by_strips_x, const Divider& by_strips_y) {
        unsigned column, row;
        unit = by_strips_y(by_strips_x(strip, column), row);
        y = row * ROWS, x = column * COLUMNS;
    }
};

struct Sums {
    float of[FILTERS][ROWS][COLUMNS];

    // The sums of a strip. planes: the channels of its group; weights: those of its first filter.
    __device__ __forceinline__ Sums(const Strip& strip, const float* planes, const float* weights, const Problem& p) {
#pragma unroll
        for (int i = 0; i < FILTERS * ROWS * COLUMNS; ++i)
            of[i / (ROWS * COLUMNS)][i / COLUMNS % ROWS][i % COLUMNS] = 0.0f;
        const int x = strip.x * STRIDE_W - p.pad_w;
#pragma unroll 1
        for (int c = 0; c < GROUP_CHANNELS; ++c) {
            int y = strip.y * STRIDE_H - p.pad_h;
#pragma unroll 1
            for (int ky = 0; ky < KERNEL_H; ky += BAND) {
                add_band(planes, weights + ky * KERNEL_W, y, x, p);
                y += BAND * DILATION_H;
            }
            planes += (int64)p.height * p.width, weights += AREA;
        }
    }

    // Adds the products of BAND rows of the filters with a channel. (y, x): the input element under the first position.
    __device__ __forceinline__ void add_band(const float* plane, const float* weights, int y, int x,
                                             const Problem& p) {
        float weight[FILTERS][BAND * KERNEL_W];
#pragma unroll
        for (int f = 0; f < FILTERS; ++f)
#pragma unroll
            for (int i = 0; i < BAND * KERNEL_W; ++i) load_vector<1>(&weight[f][i], weights + f * FILTER_FLOATS + i);
#pragma unroll
        for (int slot = 0; slot < RowAxis::SLOTS; ++slot)
            if (RowAxis::is_used(slot)) {
                float window[CHUNKS * VECTOR];
                load_window(window, plane, y + RowAxis::distance(slot), x, p);
#pragma unroll
                for (int ky = 0; ky < BAND; ++ky)
#pragma unroll
                    for (int row = 0; row < ROWS; ++row)
                        if (RowAxis::slot(row, ky) == slot) add_row(row, window, weight, ky);
            }
    }

    // Loads the elements of a row that the strip reads, and zeros for those in the padding.
    __device__ __forceinline__ static void load_window(float (&window)[CHUNKS * VECTOR], const float* plane, int y,
                                                       int x, const Problem& p) {
        const bool exists = (unsigned)y < (unsigned)p.height;
        const float* const from = plane + ((int64)y * p.width + x);
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; ++chunk) {
            float* const values = window + chunk * VECTOR;
            const int first = chunk * VECTOR - LEAD;  // slot
            int used = 0;
#pragma unroll
            for (int i = 0; i < VECTOR; ++i) used += ColumnAxis::is_used(first + i);
            if (VECTOR > 1 && used > 1) {  // rows are whole vectors, which lie inside or outside as one
#pragma unroll
                for (int i = 0; i < VECTOR; ++i) values[i] = 0.0f;
                if (exists && (unsigned)(x + first) < (unsigned)p.width) load_vector<VECTOR>(values, from + first);
            } else {
#pragma unroll
                for (int i = 0; i < VECTOR; ++i)
                    if (ColumnAxis::is_used(first + i)) {
                        const int distance = ColumnAxis::distance(first + i);
                        values[i] = 0.0f;
                        if (exists && (unsigned)(x + distance) < (unsigned)p.width)
                            load_vector<1>(values + i, from + distance);
                    }
            }
        }
    }

    // Adds the products of a row of the filters, ky, with a window to a row of outputs.
    __device__ __forceinline__ void add_row(int row, const float (&window)[CHUNKS * VECTOR],
                                            const float (&weight)[FILTERS][BAND * KERNEL_W], int ky) {
#pragma unroll
        for (int f = 0; f < FILTERS; ++f)
#pragma unroll
            for (int kx = 0; kx < KERNEL_W; ++kx)
#pragma unroll
                for (int i = 0; i < COLUMNS; ++i)
                    of[f][row][i] =
                        fmaf(window[LEAD + ColumnAxis::slot(i, kx)], weight[f][ky * KERNEL_W + kx], of[f][row][i]);
    }

    // Writes the outputs to the planes of the strip's filters. bias: that of the first filter, or null.
    __device__ __forceinline__ void write(const Strip& strip, float* planes, const float* bias,
                                          const Activation& activation, const Problem& p) {
#pragma unroll
        for (int f = 0; f < FILTERS; ++f) {
            float* const to = planes + (f * ((int64)p.out_h * p.out_w) + (int64)strip.y * p.out_w + strip.x);
            if (bias) {
                const float shift = __ldg(bias + f);
#pragma unroll
                for (int i = 0; i < ROWS * COLUMNS; ++i) of[f][i / COLUMNS][i % COLUMNS] += shift;
            }
            activate(of[f], activation);
#pragma unroll
            for (int row = 0; row < ROWS; ++row)
#pragma unroll
                for (int i = 0; i < COLUMNS; i += OUT_VECTOR)
                    if (strip.y + row < p.out_h && strip.x + i < p.out_w)
                        store_vector<OUT_VECTOR>(to + ((int64)row * p.out_w + i), &of[f][row][i]);
        }
    }
};

// cp.async of a number of floats that exist: starts to copy them into shared memory.
template <int FLOATS>
__device__ __forceinline__ void copy_async(float* to, const float* from) {
    if constexpr (FLOATS == 4)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to)), "l"(from) : "memory");
}

// Copies, by all threads of the block: from global to shared memory, which wait_for_copies() waits for, and back. The
// floats beyond whole vectors are the end of the last batch.
__device__ __forceinline__ void fetch_block(float* to, const float* from, int floats, bool aligned) {
    const int vectors = aligned ? floats / 4 : 0;
    for (int i = threadIdx.x; i < vectors; i += blockDim.x) copy_async<4>(to + i * 4, from + i * 4);
    for (int i = vectors * 4 + threadIdx.x; i < floats; i += blockDim.x) copy_async<1>(to + i, from + i);
}
__device__ __forceinline__ void write_block(float* to, const float* from, int floats, bool aligned) {
    const int vectors = aligned ? floats / 4 : 0;
    for (int i = threadIdx.x; i < vectors; i += blockDim.x)
        reinterpret_cast<float4*>(to)[i] = reinterpret_cast<const float4*>(from)[i];
    for (int i = vectors * 4 + threadIdx.x; i < floats; i += blockDim.x) to[i] = from[i];
}

// The batches of groups, counted over all images; the last one may be in part.
struct Batches {
    unsigned groups, group_units, units;  // groups of a batch, units of a group, all units

    __device__ __forceinline__ unsigned first_unit(unsigned batch) const { return batch * groups * group_units; }
    __device__ __forceinline__ unsigned units_of(unsigned batch) const {
        return min(groups * group_units, units - first_unit(batch));
    }
};

// units:        blocks of FILTERS filters, in all images; those of a group are neighbours, as are groups
// strips_*:     strips of a plane along a row and down the plane
// layer_units:  units of an image; group_units: units of a group. After each divisor follows its packed multiplier.
// block_groups: groups of a batch, if STAGED; batches: of all blocks
// buffers_of_block: if STAGED, 1 where a block has one batch, 2 where it goes from batch to batch
// aligned:      if STAGED, 1 where the block's planes can be copied four elements at a time
// The bound of one block an SM lets the compiler have as many loads under way as registers allow, without spills. In
// small 3x3 strips more loads are worth less than the blocks that their registers keep out of an SM.
constexpr bool IS_SMALL = AREA * FILTERS == 9 && STRIDE_H == 1;
constexpr int MIN_BLOCKS = IS_SMALL && ROWS == 1 ? 4 : IS_SMALL && VECTOR == 4 ? 3 : 1;
extern "C" __global__ void __launch_bounds__(MAX_THREADS, MIN_BLOCKS)
    depthwise(const float* __restrict__ input, const float* __restrict__ weight, const float* __restrict__ bias,
              float* __restrict__ output, int64 height, int64 width, int64 pad_h, int64 pad_w, int64 out_h,
              int64 out_w, int64 activation, int64 numbers, int64 units, int64 strips_x, int64 strips_x_packed,
              int64 strips_y, int64 strips_y_packed, int64 layer_units, int64 layer_units_packed, int64 group_units,
              int64 group_units_packed, int64 block_groups, int64 batches, int64 buffers_of_block, int64 aligned) {
    const Problem p = {(int)height, (int)width, (int)pad_h, (int)pad_w, (int)out_h, (int)out_w};
    const Activation function(activation, numbers);
    const Divider by_strips_x(strips_x, strips_x_packed), by_strips_y(strips_y, strips_y_packed);
    const Divider by_layer_units(layer_units, layer_units_packed), by_group_units(group_units, group_units_packed);
    const int64 plane = height * width, out_plane = out_h * out_w;
    unsigned within;  // the layer or the group
#if STAGED
    // In shared memory: for each buffer input and weights, and then outputs. All begin at multiples of four floats.
    extern __shared__ float4 shared[];
    const int input_floats = ((int)block_groups * GROUP_CHANNELS * (int)plane + 3) / 4 * 4;
    const int buffer_floats =
        input_floats + ((int)(block_groups * group_units) * FILTERS * FILTER_FLOATS + 3) / 4 * 4;
    float* const buffers = reinterpret_cast<float*>(shared);
    float* const outputs = buffers + buffers_of_block * buffer_floats;
    const Batches all = {(unsigned)block_groups, (unsigned)group_units, (unsigned)units};
    const auto fetch_batch = [&](unsigned batch, float* to) {
        const unsigned first_unit = all.first_unit(batch), batch_units = all.units_of(batch);
        const unsigned groups = by_group_units(batch_units, within), filters = layer_units * FILTERS;
        fetch_block(to, input + batch * block_groups * (GROUP_CHANNELS * plane), groups * GROUP_CHANNELS * (int)plane,
                    aligned);
        by_layer_units(first_unit, within);
        for (unsigned i = threadIdx.x; i < batch_units * FILTERS * FILTER_FLOATS; i += blockDim.x) {
            const unsigned place = within * FILTERS * FILTER_FLOATS + i, end = filters * FILTER_FLOATS;
            // Past the last filter follow the next image's weights: those from the first filter on.
            copy_async<1>(to + input_floats + i, weight + (place < end ? place : place - end));
        }
        commit_copies();
    };
    start(input, all.first_unit(blockIdx.x));
    fetch_batch(blockIdx.x, buffers);

#pragma unroll 1
    for (unsigned batch = blockIdx.x, turn = 0; batch < (unsigned)batches; batch += gridDim.x, ++turn) {
        const float* const inputs = buffers + turn % (unsigned)buffers_of_block * buffer_floats;
        const float* const weights = inputs + input_floats;
        const unsigned first_unit = all.first_unit(batch), batch_units = all.units_of(batch);
        if (buffers_of_block > 1 && batch + gridDim.x < (unsigned)batches) {
            fetch_batch(batch + gridDim.x, buffers + (turn + 1) % 2 * buffer_floats);
            wait_for_copies<1>();
        } else {
            wait_for_copies<0>();
        }
        __syncthreads();  // the batch is there, and the outputs of the one before are written
#pragma unroll 1
        for (unsigned i = threadIdx.x; i < batch_units * (unsigned)(strips_x * strips_y); i += blockDim.x) {
            const Strip strip(i, by_strips_x, by_strips_y);
            const float* const channels = inputs + by_group_units(strip.unit, within) * GROUP_CHANNELS * (int)plane;
            Sums sums(strip, channels, weights + strip.unit * (FILTERS * FILTER_FLOATS), p);
            by_layer_units(first_unit + strip.unit, within);
            const float* const shift = bias ? bias + within * FILTERS : nullptr;
            sums.write(strip, outputs + strip.unit * FILTERS * (int)out_plane, shift, function, p);
        }
        __syncthreads();  // the outputs are complete, and the buffer may be filled again
        write_block(output + first_unit * (FILTERS * out_plane), outputs, batch_units * FILTERS * (int)out_plane,
                    aligned);
    }
#else
    const Strip strip(blockIdx.x * blockDim.x + threadIdx.x, by_strips_x, by_strips_y);
    const unsigned group = by_group_units(strip.unit, within);
    by_layer_units(strip.unit, within);
    start(input, within + group);
    if (strip.unit >= units) return;
    const unsigned filter = within * FILTERS;
    Sums sums(strip, input + group * (GROUP_CHANNELS * plane), weight + filter * (int64)FILTER_FLOATS, p);
    sums.write(strip, output + strip.unit * (FILTERS * out_plane), bias ? bias + filter : nullptr, function, p);
#endif
}
#endif  // GENERAL
