// The part of fp16x3 that brings input and weights into shared memory.
#pragma once

#include "fp16x3/tiles.cuh"

// Of a producing thread and a chunk: eight channels of a position each. In batches, an even number: while one is
// converted, the next is under way to the other half of the registers.
constexpr int JOBS = SLOTS * (CHANNELS / 8);
constexpr int BATCHES = JOBS <= (TAPS < 25 ? 6 : 4) ? 2 : (JOBS + 3) / 4 * 2, BATCH = (JOBS + BATCHES - 1) / BATCHES;
// A chunk's maximum, scaled, as FP16 (32768 at most), and its exponent where the scale is chosen.
constexpr unsigned LEAST = LEAST_EXPONENT + 15 << 10, MOST = 0x7800;
constexpr int TARGET = (LEAST_EXPONENT + 15) / 2;

// The first of a job's eight channels, in its chunk, and its position, in its tile.
__device__ __forceinline__ constexpr int channel_of(int job) { return job / SLOTS * 8; }
__device__ __forceinline__ int position_of(int job, int thread) { return job % SLOTS * GROUP + thread; }

// Splits a job's values into a stage of input; the high parts are returned.
__device__ __forceinline__ uint4 store(const float (&scaled)[8], int job, int thread, char* stage) {
    uint4 high, low;
    split(scaled, high, low);
    char* const target = stage + channel_of(job) / 8 * GROUP_BYTES + position_of(job, thread) * 16;
    *reinterpret_cast<uint4*>(target) = high;
    if (FACTOR_PARTS == 2) *reinterpret_cast<uint4*>(target + INPUT_PART) = low;
    return high;
}

// Converts a chunk again with a scale that suits its largest finite element; returns that scale's exponent, or EMPTY.
// `scales` are the channels' own. Rare, so all that counts is that the usual way has its values in registers.
__device__ __noinline__ int convert_again(const Geometry g, const char* input, const float* scales, char* stage,
                                          unsigned* maxima, int stretch, int chunk, int exponent) {
    const int thread = threadIdx.x % GROUP;
    const int64 plane = (int64)g.p.height * g.p.width * 4;
    const auto load = [&](int job, int c) {
        const unsigned source = g.source(stretch * BP + position_of(job, thread));
        const int in_chunk = channel_of(job) + c, channel = chunk * CHANNELS + in_chunk;
        if (source == NOWHERE || channel >= g.p.channels) return 0.0f;
        return *reinterpret_cast<const float*>(input + channel * plane + source) * scales[in_chunk];
    };
    unsigned most = 0;
#pragma unroll 1
    for (int job = 0; job < JOBS; ++job)
#pragma unroll 1
        for (int c = 0; c < 8; ++c) most = max(most, finite_magnitude(load(job, c)));
    most = __reduce_max_sync(~0u, most);
    if (thread % 32 == 0) maxima[thread / 32] = most;
    group_barrier(threadIdx.x / GROUP);
    for (int warp = 0; warp < GROUP / 32; ++warp) most = max(most, maxima[warp]);
    if (most == 0) return EMPTY;
    exponent = clamp(TARGET + 127 - (int)(most >> 23), -118, 126);
#pragma unroll 1
    for (int job = 0; job < JOBS; ++job) {
        float values[8];
#pragma unroll
        for (int c = 0; c < 8; ++c) values[c] = load(job, c) * power_of_two(exponent);
        store(values, job, thread, stage);
    }
    return exponent;
}

// What one thread of a producing group does besides: it fetches the weights of the group's chunks as places become
// free.
struct WeightFetcher {
    const char *const rows, *next;  // in the workspace: they lie in the order of their use, over and over
    const char* const end;
    const unsigned stages;
    int row, last;  // of the share

    __device__ __forceinline__ void fetch_what_fits(Shared& shared) {
        // In order: a place that is not even filled could not be told from one that is free again.
        while (row < last && shared.rows_fetched == row) {
            const unsigned slot = row % (unsigned)WEIGHT_STAGES, round = row / (unsigned)WEIGHT_STAGES;
            if (round > 0 && !barrier_passed(shared.empty_weights + slot, round - 1 & 1)) return;
            fetch(stages + slot * ROW_BYTES, next, ROW_BYTES, shared.full_weights + slot);
            shared.rows_fetched = ++row;
            advance(1);
            if (row % ROWS == 0) row += ROWS, advance(ROWS);  // the other group's
        }
    }
    __device__ __forceinline__ void advance(int count) {
        next += (int64)count * ROW_BYTES;
        while (next >= end) next -= end - rows;
    }
};

// A warpgroup that fetches, scales and splits every other chunk of the input: each of the two has its own delays.
struct Producer {
    const Geometry& g;
    const Workspace& from;
    const char* const input;
    char* const stages;
    Shared& shared;
    const int group, thread;
    const int channels;
    const int64 plane;  // bytes
    WeightFetcher weights;

    __device__ __forceinline__ void barrier() const { group_barrier(CONSUMERS / GROUP + group); }

    __device__ __forceinline__ void seek(int stretch) {
#pragma unroll
        for (int i = 0; i < SLOTS; ++i)
            shared.sources[group][i][thread] = g.source(stretch * BP + position_of(i, thread));
    }

    // Predicated instructions rather than branches, which would keep jobs from overlapping. EARLY: ahead of
    // the wait, and so from L2, for the L1 cache may be as earlier kernels left it.
    template <bool EARLY = false>
    __device__ __forceinline__ void load(float (&values)[8], int job, int chunk) const {
        const int channel = chunk * CHANNELS + channel_of(job);
        const unsigned source = shared.sources[group][job % SLOTS][thread];
        const char* at = input + channel * plane + source;
#pragma unroll
        for (int c = 0; c < 8; ++c, at += plane) {
            const bool exists = source != NOWHERE && channel + (WHOLE_GROUPS ? 0 : c) < channels;
            if (EARLY)
                asm volatile("{.reg .pred p; setp.ne.b32 p, %2, 0; mov.b32 %0, 0;\n"
                             "@p ld.relaxed.gpu.global.f32 %0, [%1];}"
                             : "=f"(values[c])
                             : "l"(at), "r"((int)exists));
            else
                asm volatile("{.reg .pred p; setp.ne.b32 p, %2, 0; mov.b32 %0, 0; @p ld.global.nc.f32 %0, [%1];}"
                             : "=f"(values[c])
                             : "l"(at), "r"((int)exists));
        }
    }

    __device__ __forceinline__ const float* channel_scales(const Place& at) const {
        return from.channel_scales + at.tile_chunk(g) * CHANNELS;
    }

    // Scales, splits and stores a job's values; `most` grows to their largest magnitudes, of a NaN not: the output
    // shows it.
    __device__ __forceinline__ void convert(const float (&values)[8], const float* scales, int job, char* stage,
                                            unsigned& most) const {
        const float4 a = reinterpret_cast<const float4*>(scales)[0], b = reinterpret_cast<const float4*>(scales)[1];
        const float scaled[8] = {values[0] * a.x, values[1] * a.y, values[2] * a.z, values[3] * a.w,
                                 values[4] * b.x, values[5] * b.y, values[6] * b.z, values[7] * b.w};
        const uint4 high = store(scaled, job, thread, stage);
        most = larger(larger(most, larger(high.x, high.y)), larger(high.z, high.w));
    }
    // Of the magnitudes of two pairs of FP16.
    __device__ static __forceinline__ unsigned larger(unsigned x, unsigned y) {
        unsigned most;
        asm("{.reg .b32 a, b; abs.f16x2 a, %1; abs.f16x2 b, %2; max.f16x2 %0, a, b;}" : "=r"(most) : "r"(x), "r"(y));
        return most;
    }

    // Largest magnitude, of a chunk as scaled, over the group: the bits of an FP16.
    __device__ __forceinline__ unsigned maximum(unsigned most, unsigned (&maxima)[GROUP / 32]) const {
        const unsigned of_warp = __reduce_max_sync(~0u, max(most & 0xffff, most >> 16));
        if (thread % 32 == 0) maxima[thread / 32] = of_warp;
        barrier();
        const uint4 all = *reinterpret_cast<const uint4*>(maxima);
        return max(max(all.x, all.y), max(all.z, all.w));
    }

    __device__ __forceinline__ void run(const Share& share) {
        float values[2][BATCH][8];
        int exponent = TARGET - 3;  // of the scale: suits maxima of 1/4 to 512, of 1/2 to 256 for one product
        int unit = share.begin + group;
        if (unit >= share.end) return;
        Place at(unit, g);
        seek(at.stretch);
#pragma unroll
        for (int job = 0; job < BATCH; ++job) load<true>(values[0][job], job, at.chunk);
        wait_for_weights();
        if (thread < CHANNELS)
            shared.channel_scales[group][0][thread] = channel_scales(at)[thread] * power_of_two(exponent);
        barrier();
        for (int turn = 0; unit < share.end; unit += 2, turn ^= 1) {
            const unsigned count = unit - share.begin, slot = count % IN_STAGES, round = count / IN_STAGES;
            char* const stage = stages + slot * INPUT_STAGE;
            const int chunk = at.chunk, stretch = at.stretch;
            at.advance(g), at.advance(g);  // what is fetched from here on; past the end it is nowhere, or of no use
            const bool last = unit + 2 >= share.end;
            const float next_scale = thread < CHANNELS && !last ? channel_scales(at)[thread] : 0.0f;
            const float* const scales = shared.channel_scales[group][turn];
            unsigned most = 0;
            if (thread == 0)
                do weights.fetch_what_fits(shared);
                while (round > 0 && !barrier_passed(shared.empty_input + slot, round - 1 & 1));
            else if (round > 0)
                barrier_wait(shared.empty_input + slot, round - 1 & 1);
#pragma unroll
            for (int batch = 0; batch < BATCHES; ++batch) {
                const bool next = batch == BATCHES - 1;
                if (next && at.stretch != stretch) seek(at.stretch);
#pragma unroll
                for (int i = 0; i < BATCH; ++i) {
                    const int job = next ? i : (batch + 1) * BATCH + i;
                    if (job < JOBS) load(values[(batch + 1) % 2][i], job, next ? at.chunk : chunk);
                }
                // Not only once a chunk, which may be long. And a branch: nothing is converted ahead of the loads.
                if (thread == 0) weights.fetch_what_fits(shared);
#pragma unroll
                for (int i = 0; i < BATCH; ++i) {
                    const int job = batch * BATCH + i;
                    if (job < JOBS) convert(values[batch % 2][i], scales + channel_of(job), job, stage, most);
                }
            }
            float* const next_scales = shared.channel_scales[group][turn ^ 1];
            if (thread < CHANNELS) next_scales[thread] = next_scale * power_of_two(exponent);
            most = maximum(most, shared.maxima[group][turn]);
            int used = exponent;
            if (most < LEAST || most > MOST) {
                const Place now(unit, g);
                used = convert_again(g, input, channel_scales(now), stage, shared.maxima[group][turn ^ 1], now.stretch,
                                     chunk, exponent);
                if (used != EMPTY) exponent = used;
                if (thread < CHANNELS) next_scales[thread] = next_scale * power_of_two(exponent);
                barrier();
            }
            if (thread == 0) shared.exponents[slot] = used == EMPTY ? EMPTY : -used;
            fence_async_shared();
            __syncwarp();
            if (thread % 32 == 0) barrier_arrive(shared.full_input + slot);
        }
        if (thread == 0)
            while (weights.row < weights.last) weights.fetch_what_fits(shared);
    }
};
