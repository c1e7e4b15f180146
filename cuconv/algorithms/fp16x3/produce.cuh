// The producers of fp16x3: two warpgroups that load, scale and decompose the input, and fetch the packed weights.
#pragma once

#include "fp16x3/tiles.cuh"

// A job of a producer thread is eight channels of one position. A chunk's jobs come in an even number of batches: while
// one batch is converted, the next is on its way to the other half of the registers.
constexpr int JOBS = SLOTS * (CHANNELS / 8);
constexpr int MOST_IN_TWO = TAPS < 25 && !PIECES ? 6 : 4;  // jobs that registers hold in two batches
constexpr int BATCHES = JOBS <= MOST_IN_TWO ? 2 : (JOBS + 3) / 4 * 2, BATCH = (JOBS + BATCHES - 1) / BATCHES;
// A chunk's scaled maximum must lie in [2^LEAST_EXPONENT, 2^15); a new scale brings it to 2^TARGET. With low parts, few
// of ordinary values are then below LEAST_EXACT. Without them, ordinary values keep their 11 bits in an image whose
// maximum is 2^-20 of that of another image in the tile.
constexpr int LEAST_EXPONENT = PRODUCTS == 3 ? 8 : 9;
constexpr int TARGET = 12;

// The range of a chunk's scaled values: the largest, and the least of the maxima of eight channels of a position.
struct Range {
    unsigned most = 0;    // bits of a float
    unsigned least = ~0u;  // bits of a float, less 1: eight zeros count as the largest

    __device__ __forceinline__ void include(const float (&scaled)[8]) {
        const unsigned octet = __float_as_uint(largest(scaled));
        most = max(most, octet);
        if (PRODUCTS == 3) least = __viaddmin_u32(octet, ~0u, least);  // octet - 1, in one instruction
    }
    // Whether some position is so small that FP16 has lost bits of it.
    __device__ __forceinline__ bool is_suspect() const { return least < __float_as_uint(LEAST_EXACT) - 1; }
    __device__ __forceinline__ bool wants_scale() const {
        return most < __float_as_uint(power_of_two(LEAST_EXPONENT)) || most >= __float_as_uint(0x1p15f);
    }
};

// A job's first channel within the chunk, and its position within the tile.
__device__ __forceinline__ constexpr int channel_of(int job) { return job / SLOTS * 8; }
__device__ __forceinline__ int position_of(int job, int thread) { return job % SLOTS * WARPGROUP + thread; }

// Decomposes a job's values into a stage of input.
__device__ __forceinline__ void store(const float (&scaled)[8], int job, int thread, char* stage) {
    uint4 high, low;
    decompose(scaled, high, low);
    char* const target = stage + channel_of(job) / 8 * OCTET_BYTES + position_of(job, thread) * 16;
    *reinterpret_cast<uint4*>(target) = high;
    if (OPERAND_PARTS == 2) *reinterpret_cast<uint4*>(target + INPUT_PART) = low;
}

// Converts a chunk again with a scale for its largest finite element; returns the exponent of that scale, or
// ZERO_EXPONENT, and whether a warp has found the chunk suspect. scales: of the channels alone. Not inlined, and
// jobs not unrolled: it is rare, and must cost the common path no registers.
__device__ __noinline__ int convert_again(const Geometry& g, const char* input, const float* scales, char* stage,
                                          unsigned* maxima, unsigned* suspects, int spatial_tile, int chunk) {
    const Geometry::Shift shift = g.shift_of(g.piece_of(chunk));
    const int first_channel = g.first_channel(chunk);
    const int thread = threadIdx.x % WARPGROUP;
    const int64 plane = (int64)g.p.height * g.p.width * 4;
    const auto load = [&](int job, int c) {
        const unsigned source = g.source(spatial_tile * BP + position_of(job, thread), shift);
        const int in_chunk = channel_of(job) + c, channel = first_channel + in_chunk;
        if (source == NOWHERE || channel >= g.p.channels) return 0.0f;
        return *reinterpret_cast<const float*>(input + channel * plane + source) * scales[in_chunk];
    };
    unsigned most = 0;
#pragma unroll 1
    for (int job = 0; job < JOBS; ++job)
#pragma unroll
        for (int c = 0; c < 8; ++c) most = max(most, finite_magnitude(load(job, c)));
    most = __reduce_max_sync(~0u, most);
    if (thread % 32 == 0) maxima[thread / 32] = most;
    warpgroup_barrier(threadIdx.x / WARPGROUP);
    for (int warp = 0; warp < WARPGROUP / 32; ++warp) most = max(most, maxima[warp]);
    if (most == 0) return ZERO_EXPONENT;
    const int exponent = clamp(TARGET + 127 - (int)(most >> 23), -118, 126);
    Range range;
#pragma unroll 1
    for (int job = 0; job < JOBS; ++job) {
        float values[8];
#pragma unroll
        for (int c = 0; c < 8; ++c) values[c] = load(job, c) * power_of_two(exponent);
        store(values, job, thread, stage);
        range.include(values);
    }
    const bool suspect = __any_sync(~0u, range.is_suspect());
    if (thread % 32 == 0) suspects[thread / 32] = suspect;
    return exponent;
}

// Fetches the weight rows of a warpgroup's chunks, as stages become free. One thread of each producer warpgroup has
// one, and all rows of the share must be fetched in order: empty_weights tells only the parity of a stage's uses, so
// whether use n may begin cannot be told before use n - 1 has. The two threads therefore alternate with their chunks:
// a thread goes on where the counter rows_fetched says that all rows before its own have been fetched.
//
// The counter's accesses are relaxed: an atomic exchange and a volatile load. That suffices, since shared memory
// performs each thread's accesses in program order. A thread that reads the count therefore tests empty_weights after
// the thread that wrote it did, and cannot see an older phase. What a stage holds is not ordered by the counter but by
// empty_weights, whose test acquires. A release would wait for the input that the thread has under way (MEMBAR).
struct WeightFetcher {
    const char *const rows, *next;  // in the workspace, in the order of their use, again and again
    const char* const end;
    const unsigned stages;  // address in shared memory
    int row, last;          // the next of the block's share, and its end

    __device__ __forceinline__ void fetch_ready(Shared& shared) {
        while (row < last && shared.rows_fetched == row) {
            const unsigned stage = row % (unsigned)WEIGHT_STAGES, use = row / (unsigned)WEIGHT_STAGES;
            if (use > 0 && !barrier_passed(shared.empty_weights + stage, use - 1 & 1)) return;
            fetch(stages + stage * ROW_BYTES, next, ROW_BYTES, shared.full_weights + stage);
            atomicExch(const_cast<int*>(&shared.rows_fetched), ++row);
            advance(1);
            if (row % ROWS == 0) row += ROWS, advance(ROWS);  // the next chunk is the other warpgroup's
        }
    }
    __device__ __forceinline__ void advance(int count) {
        next += (int64)count * ROW_BYTES;
        while (next >= end) next -= end - rows;
    }
};

// A warpgroup that converts every other chunk of the input. Two of them take turns, so that the waits of one are the
// work of the other.
struct Producer {
    const Geometry& g;
    const Workspace& workspace;
    const char* const input;
    char* const stages;
    Shared& shared;
    const int group, thread;  // 0 or 1; thread of the warpgroup
    const int channels;
    const int64 plane;  // bytes
    WeightFetcher weights;

    __device__ __forceinline__ void barrier() const { warpgroup_barrier(CONSUMERS / WARPGROUP + group); }

    // Finds where in the input this thread's positions of a tile lie, as a piece of the filter reads them. Pieces take
    // one position at a time, and its numbers from shared memory: this must take no registers from loads under way.
    __device__ __forceinline__ void locate_sources(int spatial_tile, int piece) {
        const Geometry& from = PIECES ? shared.geometry : g;
        const Geometry::Shift shift = from.shift_of(piece);
#pragma unroll PIECES ? 1 : SLOTS
        for (int i = 0; i < SLOTS; ++i)
            shared.sources[group][i][thread] = from.source(spatial_tile * BP + position_of(i, thread), shift);
    }

    // Loads a job's values. Predicated instructions rather than branches, which would keep jobs from overlapping.
    // EARLY: before griddepcontrol.wait, and so past the L1 cache, which may hold what an earlier kernel has read.
    template <bool EARLY = false>
    __device__ __forceinline__ void load(float (&values)[8], int job, int chunk) const {
        const int channel = g.first_channel(chunk) + channel_of(job);
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

    __device__ __forceinline__ const float* channel_scales(const WorkUnit& at) const {
        return workspace.channel_scales + at.tile_chunk(g) * CHANNELS;
    }

    // Scales, decomposes and stores a job's values, and includes them in the range. NaN does not count: it reaches the
    // output, which is then computed again.
    __device__ __forceinline__ void convert(const float (&values)[8], const float* scales, int job, char* stage,
                                            Range& range) const {
        const float4 a = reinterpret_cast<const float4*>(scales)[0], b = reinterpret_cast<const float4*>(scales)[1];
        const float scaled[8] = {values[0] * a.x, values[1] * a.y, values[2] * a.z, values[3] * a.w,
                                 values[4] * b.x, values[5] * b.y, values[6] * b.z, values[7] * b.w};
        store(scaled, job, thread, stage);
        range.include(scaled);
    }

    // The range of a scaled chunk over the warpgroup. The last bit of a warp's maximum tells whether it is suspect.
    __device__ __forceinline__ Range reduce(const Range& range, unsigned (&maxima)[WARPGROUP / 32]) const {
        const unsigned warp_most = __reduce_max_sync(~0u, range.most);
        const unsigned suspect = __any_sync(~0u, range.is_suspect());
        if (thread % 32 == 0) maxima[thread / 32] = warp_most & ~1u | suspect;
        barrier();
        const uint4 all = *reinterpret_cast<const uint4*>(maxima);
        return {max(max(all.x, all.y), max(all.z, all.w)), (all.x | all.y | all.z | all.w) & 1 ? 0 : ~0u};
    }

    __device__ __forceinline__ void run(const Share& share) {
        float values[2][BATCH][8];
        int exponent = TARGET - 3;  // right for maxima of 1/2 to 64; PRODUCTS 1: of 1 to 64
        int unit = share.begin + group;
        if (unit >= share.end) return;
        WorkUnit at(unit, g);
        locate_sources(at.spatial_tile, g.piece_of(at.chunk));
        if (PREPARED && thread == 0) weights.fetch_ready(shared);
        if (PREPARED) wait_for_weights();
#pragma unroll
        for (int job = 0; job < BATCH; ++job) load<!PREPARED>(values[0][job], job, at.chunk);
        if (!PREPARED) wait_for_weights();
        if (thread < CHANNELS)
            shared.channel_scales[group][0][thread] = channel_scales(at)[thread] * power_of_two(exponent);
        barrier();
        for (int buffer = 0; unit < share.end; unit += 2, buffer ^= 1) {
            const unsigned count = unit - share.begin, stage = count % IN_STAGES, use = count / IN_STAGES;
            char* const to = stages + stage * INPUT_STAGE;
            const int chunk = at.chunk, spatial_tile = at.spatial_tile;
            at.advance(g), at.advance(g);  // `at` is loaded from here on; past the end, what is loaded is not used
            const bool last = unit + 2 >= share.end;
            const float next_scale = thread < CHANNELS && !last ? channel_scales(at)[thread] : 0.0f;
            const float* const scales = shared.channel_scales[group][buffer];
            Range range;
            if (thread == 0)
                do weights.fetch_ready(shared);
                while (use > 0 && !barrier_passed(shared.empty_input + stage, use - 1 & 1));
            else if (use > 0)
                barrier_wait(shared.empty_input + stage, use - 1 & 1);
#pragma unroll
            for (int batch = 0; batch < BATCHES; ++batch) {
                const bool next = batch == BATCHES - 1;
                const int piece = g.piece_of(at.chunk);
                if (next && (at.spatial_tile != spatial_tile || piece != g.piece_of(chunk)))
                    locate_sources(at.spatial_tile, piece);
#pragma unroll
                for (int i = 0; i < BATCH; ++i) {
                    const int job = next ? i : (batch + 1) * BATCH + i;
                    if (job < JOBS) load(values[(batch + 1) % 2][i], job, next ? at.chunk : chunk);
                }
                // With every batch, since a chunk may take long. The branch also keeps conversions behind the loads.
                if (thread == 0) weights.fetch_ready(shared);
#pragma unroll
                for (int i = 0; i < BATCH; ++i) {
                    const int job = batch * BATCH + i;
                    if (job < JOBS) convert(values[batch % 2][i], scales + channel_of(job), job, to, range);
                }
            }
            float* const next_scales = shared.channel_scales[group][buffer ^ 1];
            if (thread < CHANNELS) next_scales[thread] = next_scale * power_of_two(exponent);
            range = reduce(range, shared.maxima[group][buffer]);
            int used = exponent;
            bool suspect = range.is_suspect();
            if (range.wants_scale()) {
                const WorkUnit now(unit, g);
                unsigned(&suspects)[WARPGROUP / 32] = shared.maxima[group][buffer];
                used = convert_again(shared.geometry, input, channel_scales(now), to,
                                     shared.maxima[group][buffer ^ 1], suspects, now.spatial_tile, chunk);
                if (used != ZERO_EXPONENT) exponent = used;
                if (thread < CHANNELS) next_scales[thread] = next_scale * power_of_two(exponent);
                barrier();
                suspect = used != ZERO_EXPONENT && (suspects[0] | suspects[1] | suspects[2] | suspects[3]);
            }
            if (thread == 0) shared.scales[stage] = scale_of(used == ZERO_EXPONENT ? ZERO_EXPONENT : -used, suspect);
            fence_async_shared();
            __syncwarp();
            if (thread % 32 == 0) barrier_arrive(shared.full_input + stage);
        }
        if (thread == 0)
            while (weights.row < weights.last) weights.fetch_ready(shared);
    }
};
