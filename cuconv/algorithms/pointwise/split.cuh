// The part of fp16x3_pointwise that splits a tile's weights into their stages, where no kernel does it ahead: by the
// rules of split_weights, to the same bits. All multiplying warps take part, while the first pixels are on their way.
#pragma once

#include "pointwise/tiles.cuh"

// OWN weights side by side, zeros where there are none. In order with griddepcontrol.wait, and never behind a branch.
__device__ __forceinline__ void load_weights(float* values, const float* from, bool exists) {
#if OWN == 4
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %5, 0; mov.b32 %0, 0; mov.b32 %1, 0; mov.b32 %2, 0; mov.b32 %3, 0;\n"
        "@p ld.global.v4.f32 {%0, %1, %2, %3}, [%4];}"
        : "=f"(values[0]), "=f"(values[1]), "=f"(values[2]), "=f"(values[3])
        : "l"(from), "r"((int)exists));
#else
    asm volatile("{.reg .pred p; setp.ne.b32 p, %2, 0; mov.b32 %0, 0; @p ld.global.f32 %0, [%1];}"
                 : "=f"(values[0])
                 : "l"(from), "r"((int)exists));
#endif
}

// Who splits what. A warp's job: a chunk of eight or sixteen filters. Lanes side by side have filters side by side, so
// that a store of eight channels meets no bank twice; a lane has every second or fourth eight channels of the chunk.
// A chunk's jobs are dealt out in parts; a warp has every WARPS-th part.
struct Jobs {
    static constexpr int MULTIPLIERS = TEAMS * GROUP, WARPS = MULTIPLIERS / 32;
    static constexpr int CHANNEL_LANES = CHANNELS % 32 ? 2 : 4, FILTER_LANES = 32 / CHANNEL_LANES;
    static constexpr int EIGHTS = CHANNELS / 8 / CHANNEL_LANES;  // of a lane in a job
    static constexpr int OF_CHUNK = BF / FILTER_LANES;

    __device__ static constexpr int of_warp(int parts) {
        return (WEIGHT_STAGES * parts + WARPS - 1) / WARPS * (OF_CHUNK / parts);
    }
    // Of a chunk, so that a warp has least to do; where it has parts of several chunks, they are to be the same ones.
    __device__ static constexpr int best_parts() {
        int best = 1;
        for (int parts = 2; parts <= OF_CHUNK; ++parts)
            if (OF_CHUNK % parts == 0 && (WARPS % parts == 0 || WEIGHT_STAGES * parts <= WARPS) &&
                of_warp(parts) < of_warp(best))
                best = parts;
        return best;
    }
};

// A thread of those that multiply.
struct Splitter : Jobs {
    static constexpr int PARTS_OF_CHUNK = best_parts(), ALL_PARTS = WEIGHT_STAGES * PARTS_OF_CHUNK;
    static constexpr int RUN = OF_CHUNK / PARTS_OF_CHUNK, JOBS = of_warp(PARTS_OF_CHUNK);  // of a part, of a warp
    static constexpr int CHUNK_STEP = WARPS / PARTS_OF_CHUNK;                              // from a part to the next
    static_assert(WEIGHT_STAGES * CHANNELS <= TEAMS * STAGED * PITCH, "the maxima have no place");

    const Sizes& s;
    char* const stages;
    unsigned* const maxima;  // of all channels, in shared memory that nobody else uses meanwhile
    const int thread, lane = thread % 32, warp = thread / 32;
    const int lane_filter = lane % FILTER_LANES, lane_channel = lane / FILTER_LANES * 8;
    float values[JOBS][EIGHTS][8];

    __device__ __forceinline__ Splitter(const Sizes& s, char* stages, float* scratch)
        : s(s), stages(stages), maxima(reinterpret_cast<unsigned*>(scratch)), thread(own_thread()) {}

    __device__ __forceinline__ bool exists(int job) const {
        return (job / RUN + 1) * WARPS <= ALL_PARTS || job / RUN * WARPS + warp < ALL_PARTS;
    }
    __device__ __forceinline__ int chunk(int job) const { return warp / PARTS_OF_CHUNK + job / RUN * CHUNK_STEP; }
    __device__ __forceinline__ int filter(int job) const {  // in the tile
        return (warp % PARTS_OF_CHUNK * RUN + job % RUN) * FILTER_LANES + lane_filter;
    }
    __device__ static __forceinline__ constexpr int channel(int eight) { return eight * CHANNEL_LANES * 8; }
    __device__ __forceinline__ char* scales(int chunk) const { return stages + chunk * WEIGHT_STAGE + ROW_BYTES; }
    __device__ static __forceinline__ void barrier() {
        named_barrier<MULTIPLIERS>(TEAMS + 2);
    }

    template <class Action>
    __device__ __forceinline__ void each_channel(Action action) const {
#pragma unroll
        for (int i = 0; i < WEIGHT_STAGES * CHANNELS; i += MULTIPLIERS)
            if (i + thread < WEIGHT_STAGES * CHANNELS) action(i + thread);
    }

    // Called by all that multiply, when they have done with the weights before.
    __device__ __forceinline__ void run(const float* weight, int filter_tile, bool first) {
        load(weight, filter_tile * BF, first);
        barrier();  // all have done with what is written from here on
        each_channel([&](int channel) { maxima[channel] = 0; });
        barrier();
        scale_filters();
        find_maxima();
        barrier();
        write();
        each_channel([&](int channel) {
            reinterpret_cast<float*>(scales(channel / CHANNELS))[channel % CHANNELS] =
                maxima[channel] ? power_of_two(channel_exponent(maxima[channel])) : 0.0f;
        });
        fence_async_shared();  // for the tensor cores
        barrier();
    }

    // Asks for all at once.
    __device__ __forceinline__ void load(const float* weight, int filter_0, bool first) {
        const int channel_0 = chunk(0) * CHANNELS + lane_channel;
        const float* from[RUN];
        int left[RUN];
        uint64 known = 0;
#pragma unroll
        for (int in_run = 0; in_run < RUN; ++in_run) {
            const int row = filter_0 + filter(in_run);
            left[in_run] = row < s.filters ? s.channels - channel_0 : 0;
            from[in_run] = weight + row * (int64)s.channels + channel_0;
            known |= (uint64)from[in_run];
        }
        if (first) wait_and_let_next_follow(known);
#pragma unroll
        for (int job = 0; job < JOBS; ++job)
#pragma unroll
            for (int i = 0; i < EIGHTS * 8; i += OWN) {
                const int next = job / RUN * CHUNK_STEP * CHANNELS + channel(i / 8) + i % 8;
                load_weights(values[job][i / 8] + i % 8, from[job % RUN] + next, exists(job) && next < left[job % RUN]);
            }
    }

    __device__ __forceinline__ void scale_filters() {
#pragma unroll
        for (int job = 0; job < JOBS; ++job) {
            float most = 0.0f;
#pragma unroll
            for (int i = 0; i < EIGHTS * 8; ++i) {
                float& x = values[job][i / 8][i % 8];
                // NaN for what is not finite: its products are NaNs anyway, and fmaxf leaves it out.
                x = fmaf(x, 0.0f, x);
                most = fmaxf(most, fabsf(x));
            }
#pragma unroll
            for (int by = FILTER_LANES; by < 32; by *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, by));
            const unsigned bits = __float_as_uint(most);
            const int exponent = filter_exponent(bits);
            float* const factors = reinterpret_cast<float*>(scales(chunk(job)) + CHANNELS * 4);
            if (lane < FILTER_LANES && exists(job)) factors[filter(job)] = noted(bits ? exponent : EMPTY);
#pragma unroll
            for (int i = 0; i < EIGHTS * 8; ++i) values[job][i / 8][i % 8] *= power_of_two(-exponent);
        }
    }

    // Each lane ends with one of its eight channels: it sends half of what it has and keeps the other, again and again.
    __device__ __forceinline__ void find_maxima() const {
#pragma unroll
        for (int run = 0; run < JOBS; run += RUN)
#pragma unroll
            for (int eight = 0; eight < EIGHTS; ++eight) {
                float most[8] = {};
#pragma unroll
                for (int i = 0; i < RUN * 8; ++i)
                    most[i % 8] = fmaxf(most[i % 8], fabsf(values[run + i / 8][eight][i % 8]));
#pragma unroll
                for (int half = 4; half > 0; half /= 2)
#pragma unroll
                    for (int i = 0; i < half; ++i) {
                        const bool upper = lane & half;
                        const float sent = __shfl_xor_sync(~0u, upper ? most[i] : most[i + half], half);
                        most[i] = fmaxf(upper ? most[i + half] : most[i], sent);
                    }
                if (FILTER_LANES == 16) most[0] = fmaxf(most[0], __shfl_xor_sync(~0u, most[0], 8));
                const int at = chunk(run) * CHANNELS + channel(eight) + lane_channel + lane % 8;
                if (lane_filter < 8 && exists(run)) atomicMax(maxima + at, __float_as_uint(most[0]));
            }
    }

    __device__ __forceinline__ void write() {
#pragma unroll
        for (int run = 0; run < JOBS; run += RUN) {
            if (!exists(run)) break;
#pragma unroll
            for (int eight = 0; eight < EIGHTS; ++eight) {
                scale_channels(run, eight, maxima + chunk(run) * CHANNELS + channel(eight) + lane_channel);
#pragma unroll
                for (int job = run; job < run + RUN; ++job) {
                    uint4 high, low;
                    split(values[job][eight], high, low);
                    char* const to = stages + chunk(job) * WEIGHT_STAGE +
                                     ((channel(eight) + lane_channel) / 8 * BF + filter(job)) * 16;
                    *reinterpret_cast<uint4*>(to) = high;
                    if (FACTOR_PARTS == 2) *reinterpret_cast<uint4*>(to + WEIGHT_PART) = low;
                }
            }
        }
    }

    // Rare. Where all of a channel is zero there is nothing to scale.
    __device__ __forceinline__ void scale_channels(int run, int eight, const unsigned* maxima) {
        const uint4 a = reinterpret_cast<const uint4*>(maxima)[0], b = reinterpret_cast<const uint4*>(maxima)[1];
        const unsigned most[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
        unsigned least = ~0u;
#pragma unroll
        for (int c = 0; c < 8; ++c) least = min(least, most[c] - 1);
        if (!__any_sync(~0u, least < (LEAST_UNSCALED + 127u << 23) - 1)) return;
#pragma unroll
        for (int i = 0; i < RUN * 8; ++i)
            values[run + i / 8][eight][i % 8] *= power_of_two(-channel_exponent(most[i % 8]));
    }
};
