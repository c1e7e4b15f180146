// Weight packing: the kernel pack_weights scales the weights, decomposes them into FP16 parts and lays them out in the
// workspace in the order in which the main kernel copies them.
//
//   weights [filters][channels][KH][KW]  ->  a cluster of blocks for each pair of a filter tile and a chunk of channels
//     1. each filter of the chunk is scaled by a power of two, so that its maximum lies in [2^14, 2^15)
//     2. blocks exchange the maxima of their channels
//     3. a channel whose maximum is then below 2^LEAST_UNSCALED is scaled up, for all filters of the tile alike; the
//        main kernel multiplies that channel of the input by the inverse. Ordinary weights leave the input as it is
//     4. decompose(x) -> high + low -> workspace
//     5. a filter's chunk is suspect where eight channels of a tap, or of a row of taps before its transform, are all
//        below LEAST_EXACT, but not all 0, and before a transform also where a column of taps is far below another: the
//        main kernel then doubts small outputs
#pragma once

#include "common/fp16.cuh"
#include "common/pieces.cuh"

// PACK_FILTERS and the 5 below are FILTERS and GROUP_WARPS of weight_packing.py.
constexpr int PACK_FILTERS = 32;  // filters of a block: the lanes of a warp
constexpr int PACK_TAPS = FILTER_ROWS * FILTER_COLUMNS;
#ifdef TRANSFORMS_WEIGHTS  // a warp transforms a row of the filter to all of its points
#define WITH_TRANSFORM(...) __VA_ARGS__
// The main kernel judges a pixel by its outputs of eight filters. The last eight may be fewer, whose outputs are often
// small by chance: filters from before them fill up. Their outputs are not written.
constexpr int FILTERS_JUDGED = 8;
constexpr int GROUP_WARPS = FILTER_COLUMNS;
#define MARKS_SMALL 0  // gather() does
#else
#define WITH_TRANSFORM(...)
constexpr int FILTERS_JUDGED = 0;
#ifdef FLOAT_FILTER_SCALES  // a scale that is a power alone has no place for the mark
#define MARKS_SMALL 0
#else
#define MARKS_SMALL (PRODUCTS == 3)
#endif
constexpr int GROUP_WARPS = TAPS < 5 ? TAPS : 5;  // warps that share eight channels
#endif

constexpr int PACK_CLUSTER = (SCALE_FILTERS + PACK_FILTERS - 1) / PACK_FILTERS;  // blocks
static_assert(CLUSTER == 1 || BF % PACK_FILTERS == 0);
constexpr int PACK_WARPS = GROUP_WARPS * (CHANNELS / 8), PACK_THREADS = PACK_WARPS * 32;
constexpr int FILTER_FLOATS = CHANNELS * TAPS;
constexpr int FILTER_PITCH = FILTER_FLOATS | 1;  // odd, so that a column of filters lies in all banks
constexpr int TARGET_EXPONENT = 14;              // exponent of a scaled maximum; FP16 ends at 2^16
// Channels with at least this exponent stay as they are: scaling them would cost the input as much of its range.
constexpr int LEAST_UNSCALED = TARGET_EXPONENT - 6;

// The weights of a chunk that a lane loads from each filter: every 32nd from the lane's own on. They are `length`, after
// the first weight of the chunk's channels; of a piece they are not neighbours.
struct ChunkWeights {
    int length;
#if PIECES
    Taps taps_h, taps_w;
    int piece;
#endif
    // The lane's weight number `i`; 0 where there is none, or where the piece reaches beyond the filter's end.
    __device__ __forceinline__ float load(const float* filter, bool exists, int i) const {
        const int lane = threadIdx.x % 32;
#if PIECES
        const int weight = lane + i * 32, channel = weight / TAPS, tap = weight % TAPS;
        const int in_row = taps_w.pieces<KW>();
        const int ky = taps_h.tap<KH>(piece / in_row, tap / KW), kx = taps_w.tap<KW>(piece % in_row, tap % KW);
        exists = exists && weight < length && ky < taps_h.kernel && kx < taps_w.kernel;
        return exists ? filter[(channel * taps_h.kernel + ky) * taps_w.kernel + kx] : 0.0f;
#else
        const float* const own = filter + lane;  // one address for all loads
        return i * 32 < (exists ? length - lane : 0) ? own[i * 32] : 0.0f;
#endif
    }
};

// The larger of a maximum and |x| if x is finite: fmaf turns Inf into NaN, and fmaxf ignores NaN.
__device__ __forceinline__ float larger(float most, float x) { return fmaxf(most, fabsf(fmaf(x, 0.0f, x))); }
__device__ __forceinline__ unsigned warp_max(float most) { return __reduce_max_sync(~0u, __float_as_uint(most)); }

// The exponent by which a filter's weights, then a channel's, are divided; `most`: bits of the largest magnitude.
__device__ __forceinline__ int filter_exponent(unsigned most) {
    return max((int)(most >> 23) - 127, -110) - TARGET_EXPONENT;
}
__device__ __forceinline__ int channel_exponent(unsigned most) {
    const int found = (int)(most >> 23) - 127;
    return found < LEAST_UNSCALED ? max(found - TARGET_EXPONENT, -126) : 0;
}

// The largest magnitudes of the channels over all filters of a tile, which BLOCKS blocks have. Each block sends its own
// to every block of the cluster. The stores come from registers and count themselves as arrived, so a block waits only
// for what it receives, and may end before the others have received what it sent.
template <int BLOCKS>
struct ChannelMaxima {
    __align__(16) unsigned of_block[CHANNELS];
    __align__(16) unsigned received[BLOCKS][CHANNELS];
    uint64 arrived;

    // Called by all threads.
    __device__ __forceinline__ void open() {
        if (threadIdx.x < CHANNELS) of_block[threadIdx.x] = 0;
        if (threadIdx.x == 0) {
            barrier_init(&arrived, 1);
            fence_barrier_init();
            barrier_expect(&arrived, sizeof(received));
        }
        __syncwarp();
        cluster_arrive_relaxed();
    }
    // Sends the block's maxima to every block, itself included. Called by all threads, after a __syncthreads().
    __device__ __forceinline__ void send(int rank) {
        cluster_wait();  // all blocks have opened theirs
        for (int i = threadIdx.x; i < BLOCKS * CHANNELS; i += PACK_THREADS)
            asm volatile("{.reg .b32 to, barrier; mapa.shared::cluster.u32 to, %0, %3;\n"
                         "mapa.shared::cluster.u32 barrier, %1, %3;\n"
                         "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [to], %2, [barrier];}" ::"r"(
                             shared_address(received[rank] + i % CHANNELS)),
                         "r"(shared_address(&arrived)), "r"(of_block[i % CHANNELS]), "r"(i / CHANNELS)
                         : "memory");
    }
    // Waits for all blocks and returns a channel's maximum.
    __device__ __forceinline__ unsigned receive(int channel) {
        barrier_wait_cluster(&arrived, 0);
        unsigned most = 0;
#pragma unroll
        for (int block = 0; block < BLOCKS; ++block) most = max(most, received[block][channel]);
        return most;
    }
};

// One block has all filters of the tile: its maxima are the tile's, and the __syncthreads() before send() orders the
// warps' contributions before receive(). st.async is for clusters of at least two blocks; in a smaller one
// compute-sanitizer reports an invalid write.
template <>
struct ChannelMaxima<1> {
    unsigned of_block[CHANNELS];

    __device__ __forceinline__ void open() {
        if (threadIdx.x < CHANNELS) of_block[threadIdx.x] = 0;
    }
    __device__ __forceinline__ void send(int) {}
    __device__ __forceinline__ unsigned receive(int channel) { return of_block[channel]; }
};

// A filter's scale as the main kernel wants it.
__device__ __forceinline__ FilterScale filter_scale(int exponent) {
#ifdef FLOAT_FILTER_SCALES
    return power_of_two(exponent);  // 1 for a filter of zeros
#else
    return scale_of(exponent, false);
#endif
}

// Scales the block's filters into shared memory; a warp takes every PACK_WARPS-th filter, and issues all of its loads
// before it uses the first. pitch: floats from a filter to the next. count: filters that exist. back: how far before a
// filter is the one that takes its place if it does not exist; 0 for zeros.
// tile_filters: filters of the tile from the block's first one on.
__device__ __forceinline__ void scale_filters(const float* weight, float* tile, FilterScale* scales, int64 pitch,
                                              int count, const ChunkWeights& chunk, int back, int tile_filters) {
    constexpr int WARP_FILTERS = (PACK_FILTERS + PACK_WARPS - 1) / PACK_WARPS, LOADS = (FILTER_FLOATS + 31) / 32;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float values[WARP_FILTERS][LOADS];
#pragma unroll
    for (int j = 0; j < WARP_FILTERS; ++j) {
        int filter = j * PACK_WARPS + warp;
        if (filter >= count) filter -= back;
        const float* const from = weight + filter * pitch;
#pragma unroll
        for (int i = 0; i < LOADS; ++i) values[j][i] = chunk.load(from, filter < count, i);
    }
    unsigned most[WARP_FILTERS];
#pragma unroll
    for (int j = 0; j < WARP_FILTERS; ++j) {
        float lane_most = 0.0f;
#pragma unroll
        for (int i = 0; i < LOADS; ++i) lane_most = larger(lane_most, values[j][i]);
        most[j] = warp_max(lane_most);
    }
#pragma unroll
    for (int j = 0; j < WARP_FILTERS; ++j) {
        const int filter = j * PACK_WARPS + warp, exponent = filter_exponent(most[j]);
        if (lane == 0 && filter < min(PACK_FILTERS, tile_filters))
            scales[filter] = filter_scale(most[j] ? exponent : ZERO_EXPONENT);
#pragma unroll
        for (int i = 0; i < LOADS; ++i)
            if (filter < PACK_FILTERS && lane + i * 32 < FILTER_FLOATS)
                tile[filter * FILTER_PITCH + lane + i * 32] = values[j][i] * power_of_two(-exponent);
    }
}

// From here on a lane has a filter, and a warp has eight channels and every GROUP_WARPS-th tap from its first one on.
constexpr int WARP_TAPS = (PACK_TAPS + GROUP_WARPS - 1) / GROUP_WARPS;

#ifdef TRANSFORMS_WEIGHTS
// Transforms a row of a filter, in eight channels, to all of its points, and returns in `columns` the largest
// magnitudes of its KW weights. The including header defines it.
__device__ __forceinline__ void transform_weights(float (&values)[WARP_TAPS][8], float (&columns)[KW],
                                                  const float* weights, int row);

// The largest magnitudes of the taps at each kx, over all ky and channels of a chunk, for each filter of the block. An
// output that does not read the input at a large tap, because of padding or since that input is 0, is a difference of
// transformed products of that tap: its error is large compared with products of small taps.
typedef unsigned ColumnMaxima[KW][PACK_FILTERS];
constexpr float LEAST_COLUMN = 0x1p-5f;  // as a share of the largest; columns of ordinary weights have similar sizes

// Whether a column of the lane's filter is far below the largest.
__device__ __forceinline__ bool is_uneven(const ColumnMaxima& columns) {
    unsigned least = ~0u, most = 0;
#pragma unroll
    for (int kx = 0; kx < KW; ++kx) {
        const unsigned column = columns[kx][threadIdx.x % 32];
        least = min(least, column), most = max(most, column);
    }
    return __uint_as_float(least) < LEAST_COLUMN * __uint_as_float(most);
}
#endif

// Reads the warp's values from shared memory and raises the maxima of its channels. With a transform, raises those of
// the columns of its filters, and marks the suspect. filter_scale: of the lane's filter and the chunk.
__device__ __forceinline__ void gather(float (&values)[WARP_TAPS][8], const float* tile, unsigned* maxima,
                                       WITH_TRANSFORM(ColumnMaxima& column_maxima, FilterScale* filter_scale, )
                                           int channel, int tap) {
    const int lane = threadIdx.x % 32;
    float most[8] = {};
#ifdef TRANSFORMS_WEIGHTS
    float columns[KW] = {};
    transform_weights(values, columns, tile + lane * FILTER_PITCH + channel * TAPS, tap);
#pragma unroll
    for (int kx = 0; kx < KW; ++kx) atomicMax(&column_maxima[kx][lane], __float_as_uint(columns[kx]));
    float row = columns[0];
#pragma unroll
    for (int kx = 1; kx < KW; ++kx) row = fmaxf(row, columns[kx]);
    if (row > 0.0f && row < LEAST_EXACT) atomicOr(filter_scale, SUSPECT_BIT);
#endif
#pragma unroll
    for (int i = 0; i < WARP_TAPS; ++i, tap += GROUP_WARPS)
#pragma unroll
        for (int c = 0; c < 8; ++c) {
#ifndef TRANSFORMS_WEIGHTS
            values[i][c] = tap < TAPS ? tile[lane * FILTER_PITCH + (channel + c) * TAPS + tap] : 0.0f;
#endif
            most[c] = larger(most[c], values[i][c]);
        }
    unsigned lane_most = 0;
#pragma unroll
    for (int c = 0; c < 8; ++c) {
        const unsigned warp_most = warp_max(most[c]);
        if (lane == c) lane_most = warp_most;
    }
    if (lane < 8) atomicMax(maxima + channel + lane, lane_most);
}

// Scales the warp's values by their channels, decomposes and stores them. scale: of channel + lane % 8. to: the lane's
// filter in the chunk's rows; null where it does not exist. filter_scale: of the lane's filter and the chunk.
__device__ __forceinline__ void write(const float (&values)[WARP_TAPS][8], float scale, char* to, int channel,
                                      int tap, FilterScale* filter_scale) {
    float scales[8];
#pragma unroll
    for (int c = 0; c < 8; ++c) scales[c] = __shfl_sync(~0u, scale, c);
    if (to == nullptr) return;
    unsigned least = ~0u;  // the bits of an octet's largest magnitude, less 1: zeros count as the largest
#pragma unroll
    for (int i = 0; i < WARP_TAPS; ++i, tap += GROUP_WARPS) {
        if (tap >= PACK_TAPS) break;
        float scaled[8];
#pragma unroll
        for (int c = 0; c < 8; ++c) scaled[c] = values[i][c] * scales[c];
        if (MARKS_SMALL) least = __viaddmin_u32(__float_as_uint(largest(scaled)), ~0u, least);
        uint4 high, low;
        decompose(scaled, high, low);
        const int row = channel / ROW_CHANNELS * FILTER_ROWS + tap / FILTER_COLUMNS;
        const int step = tap % FILTER_COLUMNS * DEPTHS + channel % ROW_CHANNELS / 16, octet = channel / 8 % 2;
        char* const target = to + row * ROW_BYTES + (step * 2 + octet) * OCTET_FILTERS * 16;
        *reinterpret_cast<uint4*>(target) = high;
        if (OPERAND_PARTS == 2) *reinterpret_cast<uint4*>(target + LOW_WEIGHTS) = low;
    }
#if MARKS_SMALL
    if (least < __float_as_uint(LEAST_EXACT) - 1) atomicOr(filter_scale, SUSPECT_BIT);
#endif
}

#if PIECES  // kernel_h, kernel_w: the whole filter's
#define PIECES_ARGUMENTS , int64 kernel_h, int64 kernel_w, int64 tap_phases_h, int64 tap_phases_w
#else
#define PIECES_ARGUMENTS
#endif

// blocks: of the main kernel, whose flags are cleared. The weights are not __restrict__: with it the compiler
// could move their reads ahead of griddepcontrol.wait.
extern "C" __global__ void __cluster_dims__(PACK_CLUSTER, 1, 1) __launch_bounds__(PACK_THREADS, 1)
    pack_weights(const float* weight, void* workspace, int64 filters, int64 channels, int64 blocks PIECES_ARGUMENTS) {
    extern __shared__ float tile[];  // [PACK_FILTERS][FILTER_PITCH]
    __shared__ ChannelMaxima<PACK_CLUSTER> maxima;
    WITH_TRANSFORM(__shared__ ColumnMaxima columns;)
    const int channel_chunks = (channels + CHANNELS - 1) / CHANNELS;
    const int tile_chunk = blockIdx.x / PACK_CLUSTER, rank = blockIdx.x % PACK_CLUSTER;
#if PIECES
    const Taps taps_h = {(int)kernel_h, (int)tap_phases_h}, taps_w = {(int)kernel_w, (int)tap_phases_w};
    const int chunks = channel_chunks * taps_h.pieces<KH>() * taps_w.pieces<KW>();
    const int64 area = kernel_h * kernel_w;
#else
    const int chunks = channel_chunks;
    constexpr int area = TAPS;
#endif
    const int in_tile = rank * PACK_FILTERS, filter_0 = tile_chunk / chunks * SCALE_FILTERS + in_tile;
    const int channel_0 = tile_chunk % channel_chunks * CHANNELS;  // chunks is a multiple of channel_chunks
    int count = min((int)filters - filter_0, SCALE_FILTERS - in_tile);
    int length = min(CHANNELS, (int)channels - channel_0) * TAPS;
    int64 first = (filter_0 * channels + channel_0) * area;
    const Workspace to(workspace, gridDim.x / PACK_CLUSTER, blocks);
    maxima.open();
    WITH_TRANSFORM(for (int i = threadIdx.x; i < KW * PACK_FILTERS; i += PACK_THREADS) columns[0][i] = 0;)

    // The operands make the assembler compute them before the wait, not after it.
    asm volatile("griddepcontrol.wait;" : "+l"(first), "+r"(count), "+r"(length)::"memory");
    // Only now: the main kernel reads the input before it waits, so every kernel ahead of this one must have ended.
    launch_dependents();
    FilterScale* const scales =
        const_cast<FilterScale*>(to.filter_scales) + (int64)tile_chunk * SCALE_FILTERS + in_tile;
    const int back = filters < FILTERS_JUDGED ? 0 : FILTERS_JUDGED;
#if PIECES
    const ChunkWeights chunk = {length, taps_h, taps_w, tile_chunk % chunks / channel_chunks};
#else
    const ChunkWeights chunk = {length};
#endif
    scale_filters(weight + first, tile, scales, channels * area, count, chunk, back, SCALE_FILTERS - in_tile);
    __syncthreads();

    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int channel = warp / GROUP_WARPS * 8, tap = warp % GROUP_WARPS;
    float values[WARP_TAPS][8];
    gather(values, tile, maxima.of_block, WITH_TRANSFORM(columns, scales + lane, ) channel, tap);
    __syncthreads();
    maxima.send(rank);
    if (blockIdx.x == 0)
        for (int i = threadIdx.x; i < BLOCK_FLAGS * blocks; i += PACK_THREADS) to.flags[i] = 0;
    const unsigned most = maxima.receive(channel + lane % 8);
    const int exponent = channel_exponent(most);
    if (rank == 0 && tap == 0 && lane < 8)
        const_cast<float*>(to.channel_scales)[(int64)tile_chunk * CHANNELS + channel + lane] =
            most ? power_of_two(exponent) : 0.0f;
    const int filter_tile = CLUSTER > 1 ? in_tile / BF : 0;  // among tiles with common channel scales
    char* const rows = const_cast<char*>(to.rows) + ((int64)tile_chunk * CLUSTER + filter_tile) * ROWS * ROW_BYTES;
    const bool exists = BF % PACK_FILTERS == 0 || in_tile + lane < BF;
    WITH_TRANSFORM(if (warp == 0 && is_uneven(columns)) atomicOr(scales + lane, SUSPECT_BIT);)
    write(values, power_of_two(-exponent), exists ? rows + (in_tile - filter_tile * BF + lane) * 16 : nullptr, channel,
          tap, scales + lane);
}
