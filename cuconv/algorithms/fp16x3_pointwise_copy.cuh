// The part of fp16x3_pointwise that copies pixels and weights into shared memory.
#pragma once

#include "fp16x3_pointwise_tiles.cuh"

// WIDTH elements, zeros where there are none.
__device__ __forceinline__ void copy_async(unsigned target, const char* source, bool exists) {
    const int bytes = exists ? WIDTH * 4 : 0;
#if VECTOR
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(source), "r"(bytes) : "memory");
#else
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(target), "l"(source), "r"(bytes) : "memory");
#endif
}
__device__ __forceinline__ void copy_async(unsigned target, const char* source) {
#if VECTOR
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(target), "l"(source) : "memory");
#else
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(target), "l"(source) : "memory");
#endif
}

constexpr int COPIERS = TEAMS == 2 ? 64 : 32;                        // threads that copy the pixels of a team
constexpr int COLUMNS = TEAM_TILE / WIDTH;                           // copies for a channel
constexpr int AT_ONCE = COLUMNS < COPIERS ? COPIERS / COLUMNS : 1;   // channels
constexpr int PARTS = COLUMNS > COPIERS ? COLUMNS / COPIERS : 1;     // of a channel

// A thread of the warpgroup that copies: a team's pixels, and the first one the weights, of a joint tile each team's.
struct Copier {
    const Pointwise& of;
    const Workspace& from;
    const float* const input;
    const int team, thread;  // of the team's

    __device__ __forceinline__ void copy_weights(const Tile& tile, int chunk, int unit) const {
        if (OWN) return;
        const int slot = weight_slot(team, unit, chunk), before = weight_round(unit, tile);
        if (unit == 0) wait_for_weights();
        if (before > 0) barrier_wait(of.shared.empty_weights + slot, before - 1 & 1);
        const int64 part = (int64)tile.filter_tile * of.s.chunks + chunk;
        uint64* const full = of.shared.full_weights + slot;
        const unsigned to = shared_address(of.weights) + slot * WEIGHT_STAGE;
        barrier_expect(full, WEIGHT_STAGE);
        copy_bulk(to, from.rows + part * ROW_BYTES, ROW_BYTES, full);
        copy_bulk(to + ROW_BYTES, from.channel_scales + part * CHANNELS, CHANNELS * 4, full);
        copy_bulk(to + ROW_BYTES + CHANNELS * 4, from.exponents + part * BF, BF * 4, full);
    }

    // `left`: channels from the first on; where these are enough there is nothing to test, and addresses are one
    // multiplication each.
    __device__ __forceinline__ static void copy_chunk(unsigned to, const char* from, int left, unsigned plane) {
        if (__all_sync(~0u, left >= CHANNELS)) {
#pragma unroll
            for (int c = 0; c < CHANNELS; c += AT_ONCE) copy_async(to + c * PITCH * 4, from + c * (uint64)plane);
        } else {
#pragma unroll 4
            for (int c = 0; c < CHANNELS; c += AT_ONCE)
                copy_async(to + c * PITCH * 4, c < left ? from + c * (uint64)plane : from, c < left);
        }
    }

    __device__ __forceinline__ void run() {
        const Sizes& s = of.s;
        const unsigned plane = s.out_pixels * 4u;  // bytes
        const int lane_pixel = thread % COLUMNS * WIDTH, lane_channel = thread / COLUMNS;
        const unsigned pixels = shared_address(of.stages(team) + lane_channel * PITCH + lane_pixel);
        if (!VECTOR && !OWN) wait_for_weights();  // single elements are copied through the L1 cache, which may be behind
        Tile tile(of.first, s);
        for (int count = of.first, unit = 0; count < of.last; ++count, tile.advance(s)) {
            const bool other_weights =
                (JOINT || team == 0) && thread == 0 && (!RESIDENT || count == of.first || tile.stretch == 0);
            const char* source[PARTS];
            int left[PARTS];
#pragma unroll
            for (int part = 0; part < PARTS; ++part) {
                const int pixel = tile.stretch * TILE + first_pixel(team) + part * COPIERS * WIDTH + lane_pixel;
                const int channel = first_chunk(team) * CHANNELS + lane_channel;
                const int64 place = s.locate(pixel, s.channels);
                source[part] = reinterpret_cast<const char*>(input) + (place < 0 ? 0 : place * 4 + channel * (int64)plane);
                left[part] = place < 0 ? 0 : s.channels - channel;
            }
            for (int chunk = first_chunk(team); chunk < s.chunks; chunk += STRIDE, ++unit) {
                const int slot = unit % STAGES, round = unit / STAGES;
                if (other_weights) copy_weights(tile, chunk, unit);
                if (round > 0) barrier_wait(of.shared.empty_pixels[team] + slot, round - 1 & 1);
#pragma unroll
                for (int part = 0; part < PARTS; ++part) {
                    copy_chunk(pixels + (slot * STAGE_FLOATS + part * COPIERS * WIDTH) * 4, source[part], left[part], plane);
                    source[part] += STRIDE * CHANNELS * (int64)plane;
                    left[part] -= STRIDE * CHANNELS;
                }
                asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(
                                 shared_address(of.shared.full_pixels[team] + slot))
                             : "memory");
            }
        }
        asm volatile("cp.async.wait_all;" ::: "memory");
    }
};
