// The part of fp16x3_winograd that brings input into shared memory, transformed. Eight channels of it at a time come as
// they lie, row by row, each row's cells and four floats more; a lane then takes four channels of a cell from there.
#pragma once

#include "winograd/tiles.cuh"

constexpr unsigned LEAST = 0x4c00, MOST = 0x7800;  // 16 and 32768 as FP16: a chunk's maximum, scaled and transformed
constexpr int TARGET = 9;  // exponent of the maximum before the transform, where the scale is chosen

__device__ __forceinline__ void producers_barrier() {
    asm volatile("bar.sync 3, %0;" ::"n"(PRODUCERS) : "memory");
}

// Without a sign, so that its parts are bits.
__device__ __forceinline__ unsigned producing_thread() {
    static_assert(CONSUMERS % PRODUCERS == 0 && (PRODUCERS & PRODUCERS - 1) == 0);
    return (unsigned)thread_number() % PRODUCERS;
}

// Starts to copy a float into shared memory, or a zero.
__device__ __forceinline__ void copy_float(unsigned to, const void* from, bool exists) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(exists ? 4 : 0) : "memory");
}

__device__ __forceinline__ void take_four(const float* from, float* to) {
    const float4 four = *reinterpret_cast<const float4*>(from);
    to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
}

// The inputs of a cell at a pair of points, or at 0 and infinity where PAIR is -1: all remainders of a polynomial.
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

// Of the magnitudes of two pairs of FP16.
__device__ __forceinline__ unsigned larger(unsigned x, unsigned y) {
    unsigned most;
    asm("{.reg .b32 a, b; abs.f16x2 a, %1; abs.f16x2 b, %2; max.f16x2 %0, a, b;}" : "=r"(most) : "r"(x), "r"(y));
    return most;
}

// Which 16 cells a warp's job has, and which of them and of eight channels a lane's are. As lanes lie, a quarter of a
// warp reads 128 bytes side by side, and half a warp writes as many.
__device__ __forceinline__ int cell_of(int job, unsigned thread) {
    return job * (WARPS * 16) + (thread / 16 * 8 + thread % 8);
}
__device__ __forceinline__ int channel_of(unsigned thread) { return thread % 16 / 8 * 4; }

// Transforms two channels of a cell, for all pairs from one on: put(place of a point, the channels there).
template <int PAIR = -1, class Put>
__device__ __forceinline__ void transform(const float (&d)[2][POINTS], const Put& put) {
    float a[2], b[2];
#pragma unroll
    for (int c = 0; c < 2; ++c) transform<PAIR>(d[c], a[c], b[c]);
    put(PAIR < 0 ? 0 : pair_place(PAIR), a[0], a[1]);
    put(PAIR < 0 ? INFINITY_PLACE : pair_place(PAIR) + 1, b[0], b[1]);
    if constexpr (PAIR + 1 < PAIRS) transform<PAIR + 1>(d, put);
}

// Where the maximum counts a high part as soon as it is there: which order is spared spills, of the same numbers.
constexpr bool AT_ONCE_COUNTED = PRODUCERS == 256;

// Transforms four channels of a cell, takes them apart and stores them; `most` grows to their largest magnitude, of a
// NaN not: the output shows it. `get(c, d)`: a channel's inputs, scaled. `target`: of the cell and channels.
template <class Get>
__device__ __forceinline__ void store(const Get& get, char* target, unsigned& most) {
    unsigned high[POINTS], low[POINTS];
    float d[2][POINTS];
    get(0, d[0]), get(1, d[1]);
    transform(d, [&](int place, float a, float b) {
        split(a, b, high[place], low[place]);
        if (AT_ONCE_COUNTED) most = larger(most, high[place]);
    });
    get(2, d[0]), get(3, d[1]);
    transform(d, [&](int place, float a, float b) {
        char* const to = target + place * POSITION_BYTES;
        unsigned next_high, next_low;
        split(a, b, next_high, next_low);
        *reinterpret_cast<uint2*>(to) = make_uint2(high[place], next_high);
        *reinterpret_cast<uint2*>(to + INPUT_PART) = make_uint2(low[place], next_low);
        most = larger(most, AT_ONCE_COUNTED ? next_high : larger(high[place], next_high));
    });
}

// Converts a chunk again with a scale that suits its largest finite element; returns that scale's exponent, or EMPTY.
// `scales` are the channels' own. Rare, so all that counts is that the usual way has its values in registers.
__device__ __noinline__ int convert_again(const Geometry g, const char* input, const float* scales, char* stage,
                                          unsigned* maxima, int first_cell, int chunk) {
    const int64 plane = (int64)g.p.height * g.p.width * 4;
    const auto load = [&](int row, int offset, int in_chunk) {
        const unsigned source = g.source(row, offset);
        const int channel = chunk * CHANNELS + in_chunk;
        if (source == NOWHERE || channel >= g.p.channels) return 0.0f;
        return *reinterpret_cast<const float*>(input + channel * plane + source) * scales[in_chunk];
    };
    int exponent = 0;
#pragma unroll 1
    for (int turn = 0; turn < 2; ++turn) {  // first only its maximum is looked for
        unsigned most = 0;
#pragma unroll 1
        for (int job = 0; job < 2 * JOBS; ++job) {
            const unsigned thread = producing_thread();
            const int in_stage = cell_of(job / 2, thread), octet = job % 2;
            if (in_stage >= STAGE_CELLS) continue;
            const int cell = first_cell + in_stage, row = cell / g.pitch, column = (cell - row * g.pitch) * OUTPUTS;
#pragma unroll 1
            for (int c = channel_of(thread); c < channel_of(thread) + 4; c += 2) {
                float d[2][POINTS];
#pragma unroll 1
                for (int i = 0; i < 2 * POINTS; ++i) {
                    float x = load(row, column + i % POINTS, octet * 8 + c + i / POINTS);
                    if (turn) x *= power_of_two(exponent);
                    d[i / POINTS][i % POINTS] = x, most = max(most, finite_magnitude(x));
                }
                char* const target = stage + octet * OCTET_BYTES + in_stage * 16 + c * 2;
                if (turn) transform(d, [&](int place, float a, float b) {
                    unsigned high, low;
                    split(a, b, high, low);
                    *reinterpret_cast<unsigned*>(target + place * POSITION_BYTES) = high;
                    *reinterpret_cast<unsigned*>(target + place * POSITION_BYTES + INPUT_PART) = low;
                });
            }
        }
        if (turn) break;
        most = __reduce_max_sync(~0u, most);
        if (producing_thread() % 32 == 0) maxima[producing_thread() / 32] = most;
        producers_barrier();
        for (int warp = 0; warp < WARPS; ++warp) most = max(most, maxima[warp]);
        if (most == 0) return EMPTY;
        exponent = clamp(TARGET + 127 - (int)(most >> 23), -118, 126);
    }
    return exponent;
}

__device__ constexpr int least_common_multiple(int a, int b) {
    int multiple = a;
    while (multiple % b) multiple += a;
    return multiple;
}

struct Producer {
    const Geometry& g;
    const Workspace& workspace;
    const char* const input;
    char* const stages;
    float* const raw;
    Shared& shared;
    int exponent = 6;        // of the scale: suits maxima of 1/4 to 512, and what the transform makes of them
    unsigned most = 0;       // of the chunk

    __device__ __forceinline__ int first_cell(const Place& at) const { return at.stretch * CELLS; }

    // Of a tile: what this thread copies.
    __device__ __forceinline__ void seek(const Place& at) {
        const unsigned thread = producing_thread();
        const int first = first_cell(at), first_row = first / g.pitch, row_floats = g.pitch * OUTPUTS + 4;
        const int skipped = (first - first_row * g.pitch) * OUTPUTS;
#pragma unroll 1
        for (int i = 0; i < COPIES; ++i) {
            const int place = i * PRODUCERS + thread + skipped, row = place / row_floats;
            shared.sources[i][thread] = g.source(first_row + row, place - row * row_floats);
        }
    }

    // Of a tile: where the inputs of this thread's cells lie.
    __device__ __forceinline__ void place(const Place& at) {
        const unsigned thread = producing_thread();
        const int skipped = first_cell(at) % g.pitch;
#pragma unroll 1
        for (int job = 0; job < JOBS; ++job) {
            const int cell = cell_of(job, thread);
            shared.windows[job][thread] = cell * OUTPUTS + (skipped + cell) / g.pitch * 4;
        }
    }

    // Starts to copy eight channels of a chunk, with their scales.
    __device__ __forceinline__ void copy(const Place& at, int octet, unsigned thread) const {
        unsigned sources[COPIES];  // asked for at once
#pragma unroll
        for (int i = 0; i < COPIES; ++i) sources[i] = shared.sources[i][thread];
        const unsigned channel = at.chunk * CHANNELS + octet * 8;
        const unsigned scale = at.filter_tile * g.chunks * CHANNELS + channel + thread;
        if (thread < 8)
            copy_float(shared_address(shared.scales[octet] + thread), workspace.channel_scales + scale, true);
        const unsigned plane = (unsigned)g.p.height * g.p.width * 4, group = channel * plane;  // of at most 2^32 bytes
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
                copy_float(to + (c * RAW_FLOATS + i * PRODUCERS) * 4, WHOLE_GROUPS || exists ? from : input, exists);
                from += next;
            }
        }
    }

    // Scales, transforms and splits eight channels.
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
                take_four(x, d);
                if (POINTS == 8) {
                    take_four(x + POINTS - 4, d + POINTS - 4);
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

    // Hands a chunk of the share on that all have converted, and had a barrier after.
    __device__ __forceinline__ void publish(unsigned count) {
        const unsigned slot = count % IN_STAGES;
        unsigned all = 0;
#pragma unroll
        for (int warp = 0; warp < WARPS; ++warp) all = max(all, shared.maxima[0][warp]);
        int used = exponent;
        if (all < LEAST || all > MOST) {
            const Place at(Part(g, part_of_block()).begin + count, g);
            used = convert_again(g, input, workspace.channel_scales + at.tile_chunk(g) * CHANNELS,
                                 stages + slot * STAGE_BYTES, shared.maxima[1], first_cell(at), at.chunk);
            if (used != EMPTY) exponent = used;
            fence_async_shared();
            producers_barrier();
        }
        if (producing_thread() == 0) {
            char* const stage = stages + slot * STAGE_BYTES;
            *reinterpret_cast<int*>(stage + EXPONENT_PLACE) = used == EMPTY ? EMPTY : -used;
            barrier_arrive(shared.full_input + slot);
            send(stage, slot);
        }
    }

    // A chunk to the same place in each of the cluster's other blocks.
    __device__ __forceinline__ void send(const char* stage, int slot) const {
        if (CLUSTER > 1) fence_async_shared();
#pragma unroll
        for (int i = 1; i < CLUSTER; ++i)
            copy_bulk_to((block_rank() + i) % CLUSTER, shared_address(stage), SENT_BYTES, shared.full_input + slot);
    }

    // To the block's next chunk.
    __device__ __forceinline__ void advance(Place& at) const {
#pragma unroll
        for (int i = 0; i < CLUSTER; ++i) at.advance(g);
    }

    // Waits until all blocks of the cluster have done with what is in a chunk's place. Only the block that fills it is
    // told, so it waits for every phase of its barrier, whichever blocks took turns there.
    __device__ __forceinline__ void wait_for_place(unsigned count) {
        if (count < IN_STAGES) return;
        constexpr unsigned period = least_common_multiple(IN_STAGES, CLUSTER);  // of the block's use of a place
        const unsigned waits_before = count / period - (count % period < IN_STAGES ? 1 : 0);
        barrier_wait(shared.empty_input + count % IN_STAGES, waits_before & 1);
    }

    __device__ __forceinline__ void run() {
        unsigned count = block_rank();         // of the share's chunks
        int left = shared.units - (int)count;  // of them, from this one on
        if (left <= 0) return;
        Place at(Part(g, part_of_block()).begin + count, g);  // of what is copied
        bool moved = false;  // to another tile, of which nothing is converted yet
        seek(at);
        place(at);
        copy(at, 0, producing_thread());
        asm volatile("cp.async.commit_group;" ::: "memory");
#pragma unroll 1
        for (int octet = 0;; octet ^= 1) {
            const unsigned thread = producing_thread();  // ahead of the wait
            asm volatile("cp.async.wait_group 0;" ::: "memory");
            producers_barrier();  // all have copied their parts, and converted what was there before
            if (octet == 0 && count >= CLUSTER) publish(count - CLUSTER);
            if (left <= 0) break;
            if (octet == 0 && moved) place(at), moved = false;
            if (octet == 0 || left > CLUSTER) {
                if (octet) {
                    const int before = at.stretch;
                    advance(at);
                    moved = at.stretch != before;
                    if (moved) seek(at);
                }
                copy(at, octet ^ 1, thread);
            }
            asm volatile("cp.async.commit_group;" ::: "memory");
            if (octet == 0) wait_for_place(count);
            convert(octet, stages + count % IN_STAGES * STAGE_BYTES);
            if (octet) {
                const unsigned of_warp = __reduce_max_sync(~0u, max(most & 0xffff, most >> 16));
                const unsigned of_end = producing_thread();  // read anew: converting takes all registers
                if (of_end % 32 == 0) shared.maxima[0][of_end / 32] = of_warp;
                most = 0, count += CLUSTER, left -= CLUSTER;
                fence_async_shared();
            }
        }
    }
};
