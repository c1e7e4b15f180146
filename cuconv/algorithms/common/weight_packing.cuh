// The part of fp16x3 that splits the weights: a kernel of its own, ahead of the main one.
//
// A cluster of blocks for a tile of filters and a chunk of channels: each filter is scaled to a maximum of 2^14 to
// 2^15, then each channel likewise, over all filters of the tile, which the input makes up for. Only channels far below
// the others, though: ordinary weights leave the input as it is.
#pragma once

#include "common/fp16.cuh"

// As in fp16x3.py.
constexpr int SPLIT_FILTERS = 32;                // of a block: the lanes of a warp
constexpr int SPLIT_TAPS = FILTER_ROWS * FILTER_COLUMNS;
#ifdef TRANSFORMED  // a warp has a row of the weights in all its forms
constexpr int GROUP_WARPS = FILTER_COLUMNS;
#else
constexpr int GROUP_WARPS = TAPS < 5 ? TAPS : 5;  // for eight channels
#endif

constexpr int SPLIT_CLUSTER = (ALIKE + SPLIT_FILTERS - 1) / SPLIT_FILTERS;
static_assert(CLUSTER == 1 || BF % SPLIT_FILTERS == 0);
constexpr int SPLIT_WARPS = GROUP_WARPS * (CHANNELS / 8), SPLIT_THREADS = SPLIT_WARPS * 32;
constexpr int FILTER_FLOATS = CHANNELS * TAPS, FILTER_PITCH = FILTER_FLOATS | 1;  // odd: a column lies in all banks
constexpr int TARGET_EXPONENT = 14;  // below 2^16, where FP16 ends
// Of a channel's maximum, down to which it is not scaled: the input loses as much of its range to channels that make up
// for their weights.
constexpr int LEAST_UNSCALED = TARGET_EXPONENT - 6;

// The larger of a maximum and the magnitude of x, if that is finite: fmaxf leaves out NaNs, and x * 0 makes Inf one.
__device__ __forceinline__ float larger(float most, float x) { return fmaxf(most, fabsf(fmaf(x, 0.0f, x))); }
__device__ __forceinline__ unsigned warp_max(float most) { return __reduce_max_sync(~0u, __float_as_uint(most)); }

// What is taken out of a filter's weights, and then of a channel's, by the bits of its largest magnitude.
__device__ __forceinline__ int filter_exponent(unsigned most) {
    return max((int)(most >> 23) - 127, -110) - TARGET_EXPONENT;
}
__device__ __forceinline__ int channel_exponent(unsigned most) {
    const int found = (int)(most >> 23) - 127;
    return found < LEAST_UNSCALED ? max(found - TARGET_EXPONENT, -126) : 0;
}

// Largest magnitudes of channels. Blocks send each other theirs; the stores count themselves as arrived and leave from
// registers, so that nobody waits for anything else, nor stays for others.
struct ChannelMaxima {
    __align__(16) unsigned of_block[CHANNELS];
    __align__(16) unsigned received[SPLIT_CLUSTER][CHANNELS];
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
        asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
    }
    // To every block, itself too; called by all threads.
    __device__ __forceinline__ void send(int rank) {
        asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");  // all have opened theirs
        for (int i = threadIdx.x; i < SPLIT_CLUSTER * CHANNELS; i += SPLIT_THREADS)
            asm volatile("{.reg .b32 to, barrier; mapa.shared::cluster.u32 to, %0, %3;\n"
                         "mapa.shared::cluster.u32 barrier, %1, %3;\n"
                         "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [to], %2, [barrier];}" ::"r"(
                             shared_address(received[rank] + i % CHANNELS)),
                         "r"(shared_address(&arrived)), "r"(of_block[i % CHANNELS]), "r"(i / CHANNELS)
                         : "memory");
    }
    // Of a channel, over the tile.
    __device__ __forceinline__ unsigned receive(int channel) {
        barrier_wait_cluster(&arrived, 0);
        unsigned most = 0;
#pragma unroll
        for (int block = 0; block < SPLIT_CLUSTER; ++block) most = max(most, received[block][channel]);
        return most;
    }
};

// What the main kernel is told of a filter.
__device__ __forceinline__ FilterScale noted(int exponent) {
#ifdef FACTORS
    return power_of_two(exponent);  // of a filter of zeros 1
#else
    return exponent;
#endif
}

// A warp reads filters, asking for all before it looks at the first, and leaves them scaled in shared memory. `count`:
// filters that exist, `length`: floats of each, `of_tile`: filters of the tile from the block's first on.
__device__ __forceinline__ void scale_filters(const float* weight, float* tile, FilterScale* scales, int64 pitch,
                                              int count, int length, int of_tile) {
    constexpr int AT_ONCE = (SPLIT_FILTERS + SPLIT_WARPS - 1) / SPLIT_WARPS, LOADS = (FILTER_FLOATS + 31) / 32;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float values[AT_ONCE][LOADS];
#pragma unroll
    for (int j = 0; j < AT_ONCE; ++j) {
        const int filter = j * SPLIT_WARPS + warp;
        const float* const from = weight + filter * pitch + lane;
        const int left = filter < count ? length - lane : 0;
#pragma unroll
        for (int i = 0; i < LOADS; ++i) values[j][i] = i * 32 < left ? from[i * 32] : 0.0f;
    }
    unsigned most[AT_ONCE];
#pragma unroll
    for (int j = 0; j < AT_ONCE; ++j) {
        float of_lane = 0.0f;
#pragma unroll
        for (int i = 0; i < LOADS; ++i) of_lane = larger(of_lane, values[j][i]);
        most[j] = warp_max(of_lane);
    }
#pragma unroll
    for (int j = 0; j < AT_ONCE; ++j) {
        const int filter = j * SPLIT_WARPS + warp, exponent = filter_exponent(most[j]);
        if (lane == 0 && filter < min(SPLIT_FILTERS, of_tile)) scales[filter] = noted(most[j] ? exponent : EMPTY);
#pragma unroll
        for (int i = 0; i < LOADS; ++i)
            if (filter < SPLIT_FILTERS && lane + i * 32 < FILTER_FLOATS)
                tile[filter * FILTER_PITCH + lane + i * 32] = values[j][i] * power_of_two(-exponent);
    }
}

// From there on a lane has a filter, and a warp eight channels and a few filter positions, `tap` and so on.
constexpr int TURNS = (SPLIT_TAPS + GROUP_WARPS - 1) / GROUP_WARPS;

#ifdef TRANSFORMED
// Makes the values of eight channels of a filter from its weights: the including header's.
__device__ __forceinline__ void take(float (&values)[TURNS][8], const float* weights, int tap);
#endif

// The warp's values, and their largest magnitudes in each channel.
__device__ __forceinline__ void gather(float (&values)[TURNS][8], const float* tile, unsigned* maxima, int channel,
                                       int tap) {
    const int lane = threadIdx.x % 32;
    float most[8] = {};
#ifdef TRANSFORMED
    take(values, tile + lane * FILTER_PITCH + channel * TAPS, tap);
#endif
#pragma unroll
    for (int turn = 0; turn < TURNS; ++turn, tap += GROUP_WARPS)
#pragma unroll
        for (int c = 0; c < 8; ++c) {
#ifndef TRANSFORMED
            values[turn][c] = tap < TAPS ? tile[lane * FILTER_PITCH + (channel + c) * TAPS + tap] : 0.0f;
#endif
            most[c] = larger(most[c], values[turn][c]);
        }
    unsigned of_channel = 0;
#pragma unroll
    for (int c = 0; c < 8; ++c) {
        const unsigned of_warp = warp_max(most[c]);
        if (lane == c) of_channel = of_warp;
    }
    if (lane < 8) atomicMax(maxima + channel + lane, of_channel);
}

// Splits them, times their channels' factors: that of channel % 8 is a lane's. `to`: the rows of the chunk, from the
// lane's filter on.
__device__ __forceinline__ void write(const float (&values)[TURNS][8], float factor, char* to, int channel, int tap) {
    float factors[8];
#pragma unroll
    for (int c = 0; c < 8; ++c) factors[c] = __shfl_sync(~0u, factor, c);
    if (to == nullptr) return;
#pragma unroll
    for (int turn = 0; turn < TURNS; ++turn, tap += GROUP_WARPS) {
        if (tap >= SPLIT_TAPS) break;
        float scaled[8];
#pragma unroll
        for (int c = 0; c < 8; ++c) scaled[c] = values[turn][c] * factors[c];
        uint4 high, low;
        split(scaled, high, low);
        const int row = channel / ROW_CHANNELS * FILTER_ROWS + tap / FILTER_COLUMNS;
        const int step = tap % FILTER_COLUMNS * DEPTHS + channel % ROW_CHANNELS / 16, group = channel / 8 % 2;
        char* const target = to + row * ROW_BYTES + (step * 2 + group) * BF * 16;
        *reinterpret_cast<uint4*>(target) = high;
        if (FACTOR_PARTS == 2) *reinterpret_cast<uint4*>(target + WEIGHT_PART) = low;
    }
}

// No __restrict__: the compiler moves reads of what is never written ahead of griddepcontrol.wait.
extern "C" __global__ void __cluster_dims__(SPLIT_CLUSTER, 1, 1) __launch_bounds__(SPLIT_THREADS, 1)
    split_weights(const float* weight, void* workspace, int64 filters, int64 channels, int64 blocks) {
    extern __shared__ float tile[];  // [SPLIT_FILTERS][FILTER_PITCH]
    __shared__ ChannelMaxima maxima;
    const int chunks = (channels + CHANNELS - 1) / CHANNELS;
    const int tile_chunk = blockIdx.x / SPLIT_CLUSTER, rank = blockIdx.x % SPLIT_CLUSTER;
    const int in_tile = rank * SPLIT_FILTERS, filter_0 = tile_chunk / chunks * ALIKE + in_tile;
    const int channel_0 = tile_chunk % chunks * CHANNELS;
    int count = min((int)filters - filter_0, ALIKE - in_tile), length = min(CHANNELS, (int)channels - channel_0) * TAPS;
    int64 first = (filter_0 * channels + channel_0) * TAPS;
    const Workspace to(workspace, gridDim.x / SPLIT_CLUSTER, blocks);
    maxima.open();

    // With operands, so that they are computed ahead of it.
    asm volatile("griddepcontrol.wait;" : "+l"(first), "+r"(count), "+r"(length)::"memory");
    // Not earlier: the main kernel reads the input before it waits, so all that came before this one must have ended.
    launch_dependents();
    FilterScale* const scales = const_cast<FilterScale*>(to.filter_scales) + (int64)tile_chunk * ALIKE + in_tile;
    scale_filters(weight + first, tile, scales, channels * TAPS, count, length, ALIKE - in_tile);
    __syncthreads();

    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int channel = warp / GROUP_WARPS * 8, tap = warp % GROUP_WARPS;
    float values[TURNS][8];
    gather(values, tile, maxima.of_block, channel, tap);
    __syncthreads();
    maxima.send(rank);
    if (blockIdx.x == 0)
        for (int i = threadIdx.x; i < BLOCK_FLAGS * blocks; i += SPLIT_THREADS) to.flags[i] = 0;
    const unsigned most = maxima.receive(channel + lane % 8);
    const int exponent = channel_exponent(most);
    if (rank == 0 && tap == 0 && lane < 8)
        const_cast<float*>(to.channel_scales)[(int64)tile_chunk * CHANNELS + channel + lane] =
            most ? power_of_two(exponent) : 0.0f;
    const int turn = CLUSTER > 1 ? in_tile / BF : 0;  // of those that are scaled alike
    char* const rows = const_cast<char*>(to.rows) + ((int64)tile_chunk * CLUSTER + turn) * ROWS * ROW_BYTES;
    const bool exists = BF % SPLIT_FILTERS == 0 || in_tile + lane < BF;
    write(values, power_of_two(-exponent), exists ? rows + (in_tile - turn * BF + lane) * 16 : nullptr, channel, tap);
}
