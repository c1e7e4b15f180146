// The part of fp16x3_pointwise that copies pixels and weights into shared memory.
#pragma once

#include "common/eviction.cuh"
#include "pointwise/tiles.cuh"

// The first `bytes` of FLOATS elements, and zeros.
template <int FLOATS>
__device__ __forceinline__ void copy_async(unsigned target, const char* source, int bytes) {
    if (FLOATS == 4)
        asm volatile("cp.async.cg.shared.global" INPUT_LEVEL " [%0], [%1], 16, %2" INPUT_POLICY(3) ";" ::"r"(target),
                     "l"(source), "r"(bytes) INPUT_HINT
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global" INPUT_LEVEL " [%0], [%1], 4, %2" INPUT_POLICY(3) ";" ::"r"(target),
                     "l"(source), "r"(bytes) INPUT_HINT
                     : "memory");
}
template <int FLOATS>
__device__ __forceinline__ void copy_async(unsigned target, const char* source) {
    if (FLOATS == 4)
        asm volatile("cp.async.cg.shared.global" INPUT_LEVEL " [%0], [%1], 16" INPUT_POLICY(2) ";" ::"r"(target),
                     "l"(source) INPUT_HINT
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global" INPUT_LEVEL " [%0], [%1], 4" INPUT_POLICY(2) ";" ::"r"(target),
                     "l"(source) INPUT_HINT
                     : "memory");
}

// By one bulk copy, which is all that the barrier expects.
__device__ __forceinline__ void copy_piece(unsigned target, const float* source, int bytes, uint64* barrier) {
    barrier_expect(barrier, bytes);
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes" INPUT_CACHE_HINT
                 " [%0], [%1], %2, [%3]" INPUT_POLICY(4) ";" ::"r"(target),
                 "l"(source), "r"(bytes), "r"(shared_address(barrier)) INPUT_HINT
                 : "memory");
}

constexpr int COPIERS = TEAMS == 2 ? 64 : 32;  // threads that copy the pixels of a team
constexpr bool BULK = PLANE && VECTOR;         // but one of them copies a chunk of an image at once
constexpr int ARRIVALS = BULK ? 1 : COPIERS;   // at a stage that has been filled

// Bytes, since an address some planes of less than 2^32 bytes further on is then one instruction away.
__device__ __forceinline__ const char* bytes_of(const float* of) { return reinterpret_cast<const char*>(of); }

// How a team's copiers share a chunk out: a thread has the same places of each AT_ONCE-th channel.
template <int FLOATS, int LANES>
struct Columns {
    static constexpr int AT_ONCE = COPIERS / LANES, PARTS = TEAM_TILE / (LANES * FLOATS), STEP = LANES * FLOATS;
};

// A thread of the warpgroup that copies: a team's pixels, and the first one the weights, of a joint tile each team's.
struct Copier {
    const Pointwise& of;
    const Workspace& workspace;
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
        copy_bulk(to, workspace.rows + part * ROW_BYTES, ROW_BYTES, full);
        copy_bulk(to + ROW_BYTES, workspace.channel_scales + part * CHANNELS, CHANNELS * 4, full);
        copy_bulk(to + ROW_BYTES + CHANNELS * 4, workspace.filter_scales + part * BF, BF * 4, full);
    }

    // Chunks of one tile. Called with where the first one is, and with how to copy a chunk: copy(slot, chunk), which
    // arrives by itself where BULK.
    template <class Copy>
    __device__ __forceinline__ void copy_chunks(const Tile& tile, int& unit, const void* first, Copy copy) const {
        if (OWN && unit == 0) wait_and_let_next_follow((uint64)first);
        const bool other_weights =
            (JOINT || team == 0) && thread == 0 && (!RESIDENT || unit == 0 || !STRIDED && tile.stretch == 0);
        for (int chunk = of.begin_chunk(tile, team); chunk < of.end_chunk(tile); chunk += STRIDE, ++unit) {
            const int slot = unit % STAGES, round = unit / STAGES;
            if (other_weights) copy_weights(tile, chunk, unit);
            if (round > 0) barrier_wait(of.shared.empty_pixels[team] + slot, round - 1 & 1);
            copy(slot, chunk);
            if (!BULK)
                asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(
                                 shared_address(of.shared.full_pixels[team] + slot))
                             : "memory");
        }
    }

    // Pixels of any images.
    __device__ __forceinline__ void copy_pixels(const Tile& tile, int& unit) const {
        constexpr int FLOATS = VECTOR ? 4 : 1, LANES = VECTOR ? 16 : COPIERS;
        typedef Columns<FLOATS, LANES> By;
        if (!VECTOR && !OWN) wait_for_weights();  // single elements come through the L1 cache, which may be behind
        const int lane_channel = thread / LANES, lane_pixel = thread % LANES * FLOATS;
        const unsigned plane = of.s.out_pixels * 4u;  // bytes
        const char* from[By::PARTS];
        bool all = true;
#pragma unroll
        for (int part = 0; part < By::PARTS; ++part) {
            const int64 place = of.locate(tile, team, part * By::STEP + lane_pixel).offset(of.s, of.s.channels);
            const int channel = of.begin_chunk(tile, team) * CHANNELS + lane_channel;
            from[part] = place < 0 ? nullptr : bytes_of(of.input + place) + channel * (uint64)plane;
            all &= place >= 0;
        }
        all = __all_sync(~0u, all);
        const unsigned to = shared_address(of.stages(team) + lane_channel * PITCH + lane_pixel);
        copy_chunks(tile, unit, all ? from[By::PARTS - 1] : bytes_of(of.input), [&](int slot, int chunk) {
            const int left = of.s.channels - chunk * CHANNELS - lane_channel;
#pragma unroll
            for (int part = 0; part < By::PARTS; ++part) {
                const unsigned target = to + (slot * STAGE_FLOATS + part * By::STEP) * 4;
                if (all && of.s.channels - chunk * CHANNELS >= CHANNELS) {
#pragma unroll
                    for (int c = 0; c < CHANNELS; c += By::AT_ONCE)
                        copy_async<FLOATS>(target + c * PITCH * 4, from[part] + c * (uint64)plane);
                } else {
#pragma unroll 4
                    for (int c = 0; c < CHANNELS; c += By::AT_ONCE) {
                        const bool exists = c < left && from[part];
                        const char* const source = exists ? from[part] + c * (uint64)plane : bytes_of(of.input);
                        copy_async<FLOATS>(target + c * PITCH * 4, source, exists ? FLOATS * 4 : 0);
                    }
                }
                if (from[part]) from[part] += STRIDE * CHANNELS * (uint64)plane;
            }
        });
    }

    // Pixels side by side, of planes that begin anywhere: sixteen bytes at a time from where sixteen bytes begin, so
    // that a row lies as far off them in shared memory as in global memory; then what is left of it.
    __device__ __forceinline__ void copy_shifted(const Tile& tile, int& unit) const {
        constexpr int LANES = COPIERS / 4;  // a thread's channels are four apart, and equally far off sixteen bytes
        typedef Columns<4, LANES> By;
        const Pointwise::Place place = of.locate_row(tile, team);
        const bool there = place.image < of.s.images;
        const int lane_channel = thread / LANES, lane_pixel = thread % LANES * 4;
        const unsigned plane = of.s.out_pixels * 4u;  // bytes
        const int64 first_plane = place.image * (int64)of.s.channels + of.begin_chunk(tile, team) * CHANNELS;
        const float* const first = of.input + (first_plane * of.s.out_pixels + place.pixel);
        const char* row = bytes_of(first) + lane_channel * (uint64)plane;  // of the thread's first channel
        row += lane_pixel * 4 - (int)((uint64)row % 16);
        const char* end = bytes_of(first) + thread * (uint64)plane;
        const int end_bytes = there ? (int)((uint64)end % 16) : 0;
        end += TEAM_TILE * 4 - end_bytes;
        const unsigned to = shared_address(of.stages(team));
        copy_chunks(tile, unit, row, [&](int slot, int chunk) {
            const int left = there ? of.s.channels - chunk * CHANNELS : 0;
            const unsigned target = to + (slot * STAGE_FLOATS + lane_channel * PITCH + lane_pixel) * 4;
            const unsigned end_target = to + (slot * STAGE_FLOATS + thread * PITCH + TEAM_TILE) * 4;
            if (left >= CHANNELS) {
#pragma unroll
                for (int c = 0; c < CHANNELS; c += By::AT_ONCE)
#pragma unroll
                    for (int part = 0; part < By::PARTS; ++part)
                        copy_async<4>(target + (c * PITCH + part * By::STEP) * 4,
                                      row + c * (uint64)plane + part * By::STEP * 4);
            } else {
#pragma unroll 2
                for (int c = 0; c < CHANNELS; c += By::AT_ONCE) {
                    const bool exists = c + lane_channel < left;
#pragma unroll
                    for (int part = 0; part < By::PARTS; ++part)
                        copy_async<4>(target + (c * PITCH + part * By::STEP) * 4,
                                      exists ? row + c * (uint64)plane + part * By::STEP * 4 : row, exists ? 16 : 0);
                }
            }
#pragma unroll
            for (int c = 0; c < CHANNELS; c += COPIERS) {
                const bool exists = c + thread < left;
                if (end_bytes > 0 && c + thread < CHANNELS)
                    copy_async<4>(end_target + c * PITCH * 4, exists ? end + c * (uint64)plane : end,
                                  exists ? end_bytes : 0);
            }
            row += STRIDE * CHANNELS * (uint64)plane, end += STRIDE * CHANNELS * (uint64)plane;
        });
    }

    // A whole image: a chunk of its channels lies in one piece, of which a bulk copy brings what exists.
    __device__ __forceinline__ void copy_image(const Tile& tile, int& unit) const {
        const int64 image = of.locate(tile, team, 0).image;
        const bool there = image < of.s.images;
        const float* const first = of.input + image * of.s.channels * PLANE;
        const unsigned to = shared_address(of.stages(team));
        if (!VECTOR && !OWN) wait_for_weights();  // as in copy_pixels
        copy_chunks(tile, unit, first, [&](int slot, int chunk) {
            const int floats = there ? min(CHANNELS, of.s.channels - chunk * CHANNELS) * PLANE : 0;
            const float* const from = first + chunk * (int64)STAGE_FLOATS;
            const unsigned target = to + slot * STAGE_FLOATS * 4;
            uint64* const full = of.shared.full_pixels[team] + slot;
            if (BULK && there) copy_piece(target, from, floats * 4, full);
            else if (BULK) barrier_arrive(full);
            else
#pragma unroll 1
                for (int i = thread; i < STAGE_FLOATS; i += COPIERS)
                    copy_async<1>(target + i * 4, bytes_of(i < floats ? from + i : of.input), i < floats ? 4 : 0);
        });
    }

    __device__ __forceinline__ void run() {
        if (BULK && thread > 0) return;
        const Sizes& s = of.s;
        int unit = 0;
        for (Tile tile = of.first_tile(); tile.count < of.shared.tiles; of.advance(tile)) {
            if (PLANE) copy_image(tile, unit);
            else if (SHIFTED) copy_shifted(tile, unit);
            else copy_pixels(tile, unit);
        }
        asm volatile("cp.async.wait_all;" ::: "memory");
    }
};
