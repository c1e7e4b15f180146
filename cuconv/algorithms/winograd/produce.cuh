// The producers of fp16x3_winograd: they copy input into shared memory, transform, scale and decompose it, and send it
// to the other blocks of the cluster.
//
// Raw input comes as it lies, eight channels at a time, row by row: each row's cells, and the four floats that its last
// cell needs beyond its outputs. A lane then transforms four channels of a cell.
#pragma once

#include "common/async_copies.cuh"
#include "winograd/tiles.cuh"

// A chunk's scaled and transformed maximum must lie in [LEAST, MOST], 16 and 32768 as FP16. A new scale brings the
// maximum before the transform to 2^TARGET.
constexpr unsigned LEAST = 0x4c00, MOST = 0x7800;
constexpr int TARGET = 9;

// Barriers 1 and 2 are the consumer warpgroups' own.
__device__ __forceinline__ void producers_barrier() { named_barrier<3, PRODUCERS>(); }

// This thread's number among the producers. Unsigned, so that remainders by powers of two are bits.
__device__ __forceinline__ unsigned producing_thread() {
    static_assert(CONSUMERS % PRODUCERS == 0 && (PRODUCERS & PRODUCERS - 1) == 0);
    return (unsigned)thread_number() % PRODUCERS;
}

__device__ __forceinline__ void load_four(const float* from, float* to) {
    const float4 four = *reinterpret_cast<const float4*>(from);
    to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
}

// Transforms a cell's inputs to a pair of points, or to 0 and infinity where PAIR is -1. All of these are remainders of
// the polynomial whose coefficients the inputs are.
template <int PAIR>
__device__ __forceinline__ void transform(const float (&d)[POINTS], float& a, float& b) {
    constexpr Polynomial others(PAIR);
    constexpr int degree = PAIR < 0 ? PAIRS : PAIRS - 1, first = PAIR < 0 ? 0 : 2;
    float even = d[first + 2 * degree], odd = d[1 + 2 * degree];
#pragma unroll
    for (int power = degree - 1; power >= 0; --power) {
        even = fmaf(others.of[power], d[first + 2 * power], even);
        odd = fmaf(others.of[power], d[1 + 2 * power], odd);
    }
    constexpr float point = PAIR < 0 ? 0.0f : pair_point(PAIR);
    a = PAIR < 0 ? even : fmaf(point, odd, even), b = PAIR < 0 ? odd : fmaf(-point, odd, even);
}

// A thread's cell in a job, of the warp's 16, and its first channel of eight. In this order a quarter of a warp reads
// 128 adjacent bytes, and half a warp writes as many.
__device__ __forceinline__ int cell_of(int job, unsigned thread) {
    return job * (WARPS * 16) + (thread / 16 * 8 + thread % 8);
}
__device__ __forceinline__ int channel_of(unsigned thread) { return thread % 16 / 8 * 4; }

// Transforms two channels of a cell to all pairs from PAIR on, and calls put(point, the channels there) for each point.
template <int PAIR = -1, class Put>
__device__ __forceinline__ void transform(const float (&d)[2][POINTS], const Put& put) {
    float a[2], b[2];
#pragma unroll
    for (int c = 0; c < 2; ++c) transform<PAIR>(d[c], a[c], b[c]);
    put(PAIR < 0 ? 0 : first_of_pair(PAIR), a[0], a[1]);
    put(PAIR < 0 ? INFINITY_POINT : first_of_pair(PAIR) + 1, b[0], b[1]);
    if constexpr (PAIR + 1 < PAIRS) transform<PAIR + 1>(d, put);
}

// Whether the maximum takes a high part in as soon as it is there, or later. The order that avoids spills depends on
// the registers of a producer; the result is the same.
constexpr bool EARLY_MAXIMUM = PRODUCERS == 256;

// Transforms four channels of a cell, decomposes and stores them, and raises `most` to their largest magnitudes. NaN
// does not count: it reaches the output, which is then computed again. get(c, d): loads a channel's scaled inputs.
// target: of the cell and channels.
template <class Get>
__device__ __forceinline__ void store(const Get& get, char* target, unsigned& most) {
    unsigned high[POINTS], low[POINTS];
    float d[2][POINTS];
    get(0, d[0]), get(1, d[1]);
    transform(d, [&](int point, float a, float b) {
        decompose(a, b, high[point], low[point]);
        if (EARLY_MAXIMUM) most = larger_magnitudes(most, high[point]);
    });
    get(2, d[0]), get(3, d[1]);
    transform(d, [&](int point, float a, float b) {
        char* const to = target + point * POINT_BYTES;
        unsigned next_high, next_low;
        decompose(a, b, next_high, next_low);
        *reinterpret_cast<uint2*>(to) = make_uint2(high[point], next_high);
        *reinterpret_cast<uint2*>(to + INPUT_PART) = make_uint2(low[point], next_low);
        most = larger_magnitudes(most, EARLY_MAXIMUM ? next_high : larger_magnitudes(high[point], next_high));
    });
}

// Converts a chunk again with a scale for its largest finite element; returns the exponent of that scale, or
// ZERO_EXPONENT. suspect: whether the thread has found a cell that is below LEAST_EXACT in four channels, but not 0.
// scales: of the channels alone. Not inlined and not unrolled: it is rare, and must cost the common path no registers.
__device__ __noinline__ int convert_again(const Geometry g, const char* input, const float* scales, char* stage,
                                          unsigned* maxima, bool& suspect, int first_cell, int chunk) {
    const int64 plane = (int64)g.p.height * g.p.width * 4;
    const auto load = [&](int row, int offset, int in_chunk) {
        const unsigned source = g.source(row, offset);
        const int channel = chunk * CHANNELS + in_chunk;
        if (source == NOWHERE || channel >= g.p.channels) return 0.0f;
        return *reinterpret_cast<const float*>(input + channel * plane + source) * scales[in_chunk];
    };
    int exponent = 0;
    suspect = false;
#pragma unroll 1
    for (int pass = 0; pass < 2; ++pass) {  // the maximum first, then the conversion
        unsigned most = 0;
#pragma unroll 1
        for (int job = 0; job < 2 * JOBS; ++job) {
            const unsigned thread = producing_thread();
            const int in_stage = cell_of(job / 2, thread), octet = job % 2;
            if (in_stage >= STAGE_CELLS) continue;
            const int cell = first_cell + in_stage, row = cell / g.pitch, column = (cell - row * g.pitch) * OUTPUTS;
            float of_cell = 0.0f;
            bool zero = true;
#pragma unroll 1
            for (int c = channel_of(thread); c < channel_of(thread) + 4; c += 2) {
                float d[2][POINTS];
#pragma unroll 1
                for (int i = 0; i < 2 * POINTS; ++i) {
                    float x = load(row, column + i % POINTS, octet * 8 + c + i / POINTS);
                    zero &= x == 0.0f;
                    if (pass) x *= power_of_two(exponent);
                    of_cell = fmaxf(of_cell, fabsf(x));
                    d[i / POINTS][i % POINTS] = x, most = max(most, finite_magnitude(x));
                }
                char* const target = stage + octet * OCTET_BYTES + in_stage * 16 + c * 2;
                if (pass) transform(d, [&](int point, float a, float b) {
                    unsigned high, low;
                    decompose(a, b, high, low);
                    *reinterpret_cast<unsigned*>(target + point * POINT_BYTES) = high;
                    *reinterpret_cast<unsigned*>(target + point * POINT_BYTES + INPUT_PART) = low;
                });
            }
            if (pass && !zero && of_cell < LEAST_EXACT) suspect = true;
        }
        if (pass) break;
        most = __reduce_max_sync(~0u, most);
        if (producing_thread() % 32 == 0) maxima[producing_thread() / 32] = most;
        producers_barrier();
        for (int warp = 0; warp < WARPS; ++warp) most = max(most, maxima[warp]);
        if (most == 0) return ZERO_EXPONENT;
        exponent = clamp(TARGET + 127 - (int)(most >> 23), -118, 126);
    }
    return exponent;
}

__device__ constexpr int least_common_multiple(int a, int b) {
    int multiple = a;
    while (multiple % b) multiple += a;
    return multiple;
}

// All producers of a block.
struct Producer {
    const Geometry& g;
    const Workspace& workspace;
    const char* const input;
    char* const stages;
    float* const raw;
    Shared& shared;
    int exponent = 6;      // the input scale's; 6 suits maxima of 1/4 to 512, whatever the transform makes of them
    bool suspect = false;  // whether the scale was found for a suspect chunk; chunks with the same scale may be alike
    unsigned most = 0;  // the chunk's largest magnitude

    __device__ __forceinline__ int first_cell(const WorkUnit& at) const { return at.spatial_tile * CELLS; }

    // Finds where in the input the elements of a tile lie that this thread copies.
    __device__ __forceinline__ void locate_sources(const WorkUnit& at) {
        const unsigned thread = producing_thread();
        const int first = first_cell(at), first_row = first / g.pitch, row_floats = g.pitch * OUTPUTS + 4;
        const int skipped = (first - first_row * g.pitch) * OUTPUTS;
#pragma unroll 1
        for (int i = 0; i < COPIES; ++i) {
            const int place = i * PRODUCERS + thread + skipped, row = place / row_floats;
            shared.sources[i][thread] = g.source(first_row + row, place - row * row_floats);
        }
    }

    // Finds where in the raw input the cells of a tile lie that this thread converts.
    __device__ __forceinline__ void locate_windows(const WorkUnit& at) {
        const unsigned thread = producing_thread();
        const int skipped = first_cell(at) % g.pitch;
#pragma unroll 1
        for (int job = 0; job < JOBS; ++job) {
            const int cell = cell_of(job, thread);
            shared.windows[job][thread] = cell * OUTPUTS + (skipped + cell) / g.pitch * 4;
        }
    }

    // Starts to copy eight channels of a chunk, with their scales.
    __device__ __forceinline__ void copy(const WorkUnit& at, int octet, unsigned thread) const {
        unsigned sources[COPIES];  // all loads first
#pragma unroll
        for (int i = 0; i < COPIES; ++i) sources[i] = shared.sources[i][thread];
        const unsigned channel = at.chunk * CHANNELS + octet * 8;
        const unsigned scale = at.filter_tile * g.chunks * CHANNELS + channel + thread;
        if (thread < 8)
            copy_async(shared_address(shared.scales[octet] + thread), workspace.channel_scales + scale, true);
        const unsigned plane = (unsigned)g.p.height * g.p.width * 4, group = channel * plane;  // bytes, below 2^32
        const bool in_input = (int)channel < g.p.channels;
        const unsigned to = shared_address(raw + octet * 8 * RAW_FLOATS + thread);
#pragma unroll
        for (int i = 0; i < COPIES; ++i) {
            if ((i + 1) * PRODUCERS > RAW_FLOATS && i * PRODUCERS + thread >= RAW_FLOATS) break;
            const bool any = sources[i] != NOWHERE && in_input;
            const char* from = input + (any ? group + sources[i] : 0);
            const unsigned next = any ? plane : 0;
#pragma unroll
            for (int c = 0; c < 8; ++c) {
                const bool exists = any && (WHOLE_GROUPS || (int)channel + c < g.p.channels);
                copy_async(to + (c * RAW_FLOATS + i * PRODUCERS) * 4, WHOLE_GROUPS || exists ? from : input, exists);
                from += next;
            }
        }
    }

    // Scales, transforms and decomposes eight channels.
    __device__ __forceinline__ void convert(int octet, char* stage) {
        const unsigned thread = producing_thread();
        const float4 own = *reinterpret_cast<const float4*>(shared.scales[octet] + channel_of(thread));
        const float all = power_of_two(exponent), scales[4] = {own.x * all, own.y * all, own.z * all, own.w * all};
        const float* const octet_raw = raw + (octet * 8 + channel_of(thread)) * RAW_FLOATS;
#pragma unroll 1
        for (int job = 0; job < JOBS; ++job) {
            const int cell = cell_of(job, thread);
            if (STAGE_CELLS % (16 * WARPS) != 0 && cell >= STAGE_CELLS) break;
            const float* const window = octet_raw + shared.windows[job][thread];
            const auto get = [&](int c, float (&d)[POINTS]) {
                const float* const x = window + c * RAW_FLOATS;
                load_four(x, d);
                if (POINTS == 8) {
                    load_four(x + POINTS - 4, d + POINTS - 4);
                } else {
                    const float2 last = *reinterpret_cast<const float2*>(x + 4);
                    d[4] = last.x, d[5] = last.y;
                }
#pragma unroll
                for (int i = 0; i < POINTS; ++i) d[i] *= scales[c];
            };
            store(get, stage + octet * OCTET_BYTES + cell * 16 + channel_of(thread) * 2, most);
        }
    }

    // Hands a chunk over to the consumers of all blocks. All producers have converted it and passed a barrier since.
    // count: of the share's chunks before it.
    __device__ __forceinline__ void hand_over(unsigned count) {
        const unsigned stage = count % IN_STAGES;
        unsigned all = 0;
#pragma unroll
        for (int warp = 0; warp < WARPS; ++warp) all = max(all, shared.maxima[0][warp]);
        int used = exponent;
        if (all < LEAST || all > MOST) {
            const WorkUnit at(ClusterShare(g, share_number()).begin + count, g);
            bool found;
            used = convert_again(g, input, workspace.channel_scales + at.tile_chunk(g) * CHANNELS,
                                 stages + stage * STAGE_BYTES, shared.maxima[1], found, first_cell(at), at.chunk);
            fence_async_shared();
            found = any_at_barrier<PRODUCERS>(3, found);
            if (used != ZERO_EXPONENT) exponent = used, suspect = found;
        }
        if (producing_thread() == 0) {
            char* const data = stages + stage * STAGE_BYTES;
            *reinterpret_cast<int*>(data + SCALE_OFFSET) =
                scale_of(used == ZERO_EXPONENT ? ZERO_EXPONENT : -used, suspect);
            barrier_arrive(shared.full_input + stage);
            send(data, stage);
        }
    }

    // Sends a chunk to the same stage of each other block of the cluster.
    __device__ __forceinline__ void send(const char* data, int stage) const {
        if (CLUSTER > 1) fence_async_shared();
#pragma unroll
        for (int i = 1; i < CLUSTER; ++i)
            copy_bulk_to((block_rank() + i) % CLUSTER, shared_address(data), SENT_BYTES, shared.full_input + stage);
    }

    // Goes on to the block's next chunk.
    __device__ __forceinline__ void advance(WorkUnit& at) const {
#pragma unroll
        for (int i = 0; i < CLUSTER; ++i) at.advance(g);
    }

    // Waits until the consumers of all blocks have released a chunk's stage. They tell only the block that fills it
    // next, so this block's barrier has a phase for each of its own uses of the stage.
    __device__ __forceinline__ void wait_for_stage(unsigned count) {
        if (count < IN_STAGES) return;
        constexpr unsigned period = least_common_multiple(IN_STAGES, CLUSTER);  // chunks between two uses by this block
        const unsigned waits_before = count / period - (count % period < IN_STAGES ? 1 : 0);
        barrier_wait(shared.empty_input + count % IN_STAGES, waits_before & 1);
    }

    __device__ __forceinline__ void run() {
        unsigned count = block_rank();         // chunks of the share before the current one
        int left = shared.units - (int)count;  // chunks of the share from the current one on
        if (left <= 0) return;
        WorkUnit at(ClusterShare(g, share_number()).begin + count, g);  // the chunk that is copied next
        bool moved = false;  // whether `at` is in a tile whose windows are not located yet
        locate_sources(at);
        locate_windows(at);
        copy(at, 0, producing_thread());
        commit_copies();
#pragma unroll 1
        for (int octet = 0;; octet ^= 1) {
            const unsigned thread = producing_thread();  // ahead of the wait
            wait_for_copies<0>();
            producers_barrier();  // all have copied their parts, and converted the eight channels before
            if (octet == 0 && count >= CLUSTER) hand_over(count - CLUSTER);
            if (left <= 0) break;
            if (octet == 0 && moved) locate_windows(at), moved = false;
            if (octet == 0 || left > CLUSTER) {
                if (octet) {
                    const int before = at.spatial_tile;
                    advance(at);
                    moved = at.spatial_tile != before;
                    if (moved) locate_sources(at);
                }
                copy(at, octet ^ 1, thread);
            }
            commit_copies();
            if (octet == 0) wait_for_stage(count);
            convert(octet, stages + count % IN_STAGES * STAGE_BYTES);
            if (octet) {
                const unsigned of_warp = __reduce_max_sync(~0u, max(most & 0xffff, most >> 16));
                const unsigned of_end = producing_thread();  // read anew: the conversion takes all registers
                if (of_end % 32 == 0) shared.maxima[0][of_end / 32] = of_warp;
                most = 0, count += CLUSTER, left -= CLUSTER;
                fence_async_shared();
            }
        }
    }
};
