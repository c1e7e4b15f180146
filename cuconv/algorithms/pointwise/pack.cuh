// Weight packing by the block itself, where no kernel ahead does it: fp16x3_pointwise with PACKS_WEIGHTS. It follows
// the rules of common/weight_packing.cuh, to the same bits. All consumers take part, while the first pixels are copied.
//
//   global memory --> registers: all loads at once
//     scale each filter of a chunk              maxima of filters by shuffles within a warp
//     scale each channel of the tile's filters  maxima of channels by shuffles, then atomics in shared memory
//     decompose --> weight stages
#pragma once

#include "pointwise/tiles.cuh"

// Loads PACKS_WEIGHTS neighbouring weights, or zeros where there are none. A predicated load: volatile, so that it
// stays behind griddepcontrol.wait, and without a branch, so that many are under way.
__device__ __forceinline__ void load_weights(float* values, const float* from, bool exists) {
#if PACKS_WEIGHTS == 4
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

// How warps share the weights. A job of a warp is a chunk of FILTER_LANES filters. Neighbouring lanes have neighbouring
// filters, so that stores of eight channels meet no bank conflict; CHANNEL_LANES lanes share the octets (eight
// channels) of a filter. The jobs of a chunk are dealt out in parts, and a warp has every WARPS-th part. registers.py
// computes the jobs of a warp in the same way.
struct PackingJobs {
    static constexpr int PACKERS = CONSUMERS * WARPGROUP, WARPS = PACKERS / 32;
    static constexpr int CHANNEL_LANES = CHANNELS % 32 ? 2 : 4, FILTER_LANES = 32 / CHANNEL_LANES;
    static constexpr int OCTETS = CHANNELS / 8 / CHANNEL_LANES;  // octets that a lane packs in a job
    static constexpr int CHUNK_JOBS = BF / FILTER_LANES;

    __device__ static constexpr int warp_jobs(int parts) {
        return (WEIGHT_STAGES * parts + WARPS - 1) / WARPS * (CHUNK_JOBS / parts);
    }
    // The parts of a chunk for which the busiest warp has the fewest jobs. A warp with parts of several chunks must
    // have the same part of each.
    __device__ static constexpr int best_parts() {
        int best = 1;
        for (int parts = 2; parts <= CHUNK_JOBS; ++parts)
            if (CHUNK_JOBS % parts == 0 && (WARPS % parts == 0 || WEIGHT_STAGES * parts <= WARPS) &&
                warp_jobs(parts) < warp_jobs(best))
                best = parts;
        return best;
    }
};

// A consumer thread while it packs.
struct WeightPacker : PackingJobs {
    static constexpr int CHUNK_PARTS = best_parts(), ALL_PARTS = WEIGHT_STAGES * CHUNK_PARTS;
    static constexpr int PART_JOBS = CHUNK_JOBS / CHUNK_PARTS, JOBS = warp_jobs(CHUNK_PARTS);
    static constexpr int NEXT_CHUNK = WARPS / CHUNK_PARTS;  // chunks from a warp's part to its next one
    static_assert(WEIGHT_STAGES * CHANNELS <= CONSUMERS * EPILOGUE_FILTERS * PITCH,
                  "the maxima lie in the epilogue's memory");

    const Sizes& s;
    char* const stages;
    unsigned* const maxima;  // each channel's, in shared memory
    const int thread, lane = thread % 32, warp = thread / 32;
    const int lane_filter = lane % FILTER_LANES, lane_channel = lane / FILTER_LANES * 8;
    float values[JOBS][OCTETS][8];

    // scratch: shared memory that is not in use meanwhile.
    __device__ __forceinline__ WeightPacker(const Sizes& s, char* stages, float* scratch)
        : s(s), stages(stages), maxima(reinterpret_cast<unsigned*>(scratch)), thread(thread_index()) {}

    __device__ __forceinline__ bool exists(int job) const {
        return (job / PART_JOBS + 1) * WARPS <= ALL_PARTS || job / PART_JOBS * WARPS + warp < ALL_PARTS;
    }
    __device__ __forceinline__ int chunk(int job) const { return warp / CHUNK_PARTS + job / PART_JOBS * NEXT_CHUNK; }
    __device__ __forceinline__ int filter(int job) const {  // within the tile
        return (warp % CHUNK_PARTS * PART_JOBS + job % PART_JOBS) * FILTER_LANES + lane_filter;
    }
    __device__ static __forceinline__ constexpr int channel(int octet) { return octet * CHANNEL_LANES * 8; }
    __device__ __forceinline__ char* scales(int chunk) const { return stages + chunk * WEIGHT_STAGE_BYTES + ROW_BYTES; }
    __device__ static __forceinline__ void barrier() { named_barrier<CONSUMERS + 2, PACKERS>(); }

    template <class Action>
    __device__ __forceinline__ void for_each_channel(Action action) const {
#pragma unroll
        for (int i = 0; i < WEIGHT_STAGES * CHANNELS; i += PACKERS)
            if (i + thread < WEIGHT_STAGES * CHANNELS) action(i + thread);
    }

    // Packs the weights of a filter tile. All consumer threads call it, after their last use of the weights before.
    // first: whether these are the block's first weights.
    __device__ __forceinline__ void run(const float* weight, int filter_tile, bool first) {
        load(weight, filter_tile * BF, first);
        barrier();  // no consumer reads the epilogue's memory or the weight stages any more
        for_each_channel([&](int channel) { maxima[channel] = 0; });
        barrier();
        scale_filters();
        find_channel_maxima();
        barrier();
        write();
        for_each_channel([&](int channel) {
            reinterpret_cast<float*>(scales(channel / CHANNELS))[channel % CHANNELS] =
                maxima[channel] ? power_of_two(channel_exponent(maxima[channel])) : 0.0f;
        });
        fence_async_shared();  // wgmma reads what was written
        barrier();
    }

    __device__ __forceinline__ void load(const float* weight, int filter_0, bool first) {
        const int channel_0 = chunk(0) * CHANNELS + lane_channel;
        const float* from[PART_JOBS];
        int left[PART_JOBS];
        uint64 known = 0;
#pragma unroll
        for (int in_part = 0; in_part < PART_JOBS; ++in_part) {
            const int row = filter_0 + filter(in_part);
            left[in_part] = row < s.filters ? s.channels - channel_0 : 0;
            from[in_part] = weight + row * (int64)s.channels + channel_0;
            known |= (uint64)from[in_part];
        }
        if (first) wait_then_launch_dependents(known);
#pragma unroll
        for (int job = 0; job < JOBS; ++job)
#pragma unroll
            for (int i = 0; i < OCTETS * 8; i += PACKS_WEIGHTS) {
                const int next = job / PART_JOBS * NEXT_CHUNK * CHANNELS + channel(i / 8) + i % 8;
                load_weights(values[job][i / 8] + i % 8, from[job % PART_JOBS] + next,
                             exists(job) && next < left[job % PART_JOBS]);
            }
    }

    __device__ __forceinline__ void scale_filters() {
#pragma unroll
        for (int job = 0; job < JOBS; ++job) {
            float most = 0.0f;
#pragma unroll
            for (int i = 0; i < OCTETS * 8; ++i) {
                float& x = values[job][i / 8][i % 8];
                // Inf becomes NaN, which fmaxf ignores. The products would be NaN in any case.
                x = fmaf(x, 0.0f, x);
                most = fmaxf(most, fabsf(x));
            }
#pragma unroll
            for (int by = FILTER_LANES; by < 32; by *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, by));
            const unsigned bits = __float_as_uint(most);
            const int exponent = filter_exponent(bits);
            float* const filter_scales = reinterpret_cast<float*>(scales(chunk(job)) + CHANNELS * 4);
            if (lane < FILTER_LANES && exists(job))
                filter_scales[filter(job)] = filter_scale(bits ? exponent : ZERO_EXPONENT);
#pragma unroll
            for (int i = 0; i < OCTETS * 8; ++i) values[job][i / 8][i % 8] *= power_of_two(-exponent);
        }
    }

    // In each step a lane sends the maxima of half of its channels and keeps the others, until it has one channel.
    __device__ __forceinline__ void find_channel_maxima() const {
#pragma unroll
        for (int part = 0; part < JOBS; part += PART_JOBS)
#pragma unroll
            for (int octet = 0; octet < OCTETS; ++octet) {
                float most[8] = {};
#pragma unroll
                for (int i = 0; i < PART_JOBS * 8; ++i)
                    most[i % 8] = fmaxf(most[i % 8], fabsf(values[part + i / 8][octet][i % 8]));
#pragma unroll
                for (int half = 4; half > 0; half /= 2)
#pragma unroll
                    for (int i = 0; i < half; ++i) {
                        const bool upper = lane & half;
                        const float sent = __shfl_xor_sync(~0u, upper ? most[i] : most[i + half], half);
                        most[i] = fmaxf(upper ? most[i + half] : most[i], sent);
                    }
                if (FILTER_LANES == 16) most[0] = fmaxf(most[0], __shfl_xor_sync(~0u, most[0], 8));
                const int at = chunk(part) * CHANNELS + channel(octet) + lane_channel + lane % 8;
                if (lane_filter < 8 && exists(part)) atomicMax(maxima + at, __float_as_uint(most[0]));
            }
    }

    __device__ __forceinline__ void write() {
#pragma unroll
        for (int part = 0; part < JOBS; part += PART_JOBS) {
            if (!exists(part)) break;
#pragma unroll
            for (int octet = 0; octet < OCTETS; ++octet) {
                scale_channels(part, octet, maxima + chunk(part) * CHANNELS + channel(octet) + lane_channel);
#pragma unroll
                for (int job = part; job < part + PART_JOBS; ++job) {
                    uint4 high, low;
                    decompose(values[job][octet], high, low);
                    char* const to = stages + chunk(job) * WEIGHT_STAGE_BYTES +
                                     ((channel(octet) + lane_channel) / 8 * BF + filter(job)) * 16;
                    *reinterpret_cast<uint4*>(to) = high;
                    if (OPERAND_PARTS == 2) *reinterpret_cast<uint4*>(to + WEIGHT_PART) = low;
                }
            }
        }
    }

    // Scales a lane's octet where a channel is far below its filters, which is rare. A channel of zeros stays.
    __device__ __forceinline__ void scale_channels(int part, int octet, const unsigned* maxima) {
        const uint4 a = reinterpret_cast<const uint4*>(maxima)[0], b = reinterpret_cast<const uint4*>(maxima)[1];
        const unsigned most[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
        unsigned least = ~0u;
#pragma unroll
        for (int c = 0; c < 8; ++c) least = min(least, most[c] - 1);  // 0 becomes the largest number
        if (!__any_sync(~0u, least < (LEAST_UNSCALED + 127u << 23) - 1)) return;
#pragma unroll
        for (int i = 0; i < PART_JOBS * 8; ++i)
            values[part + i / 8][octet][i % 8] *= power_of_two(-channel_exponent(most[i % 8]));
    }
};
