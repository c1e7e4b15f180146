// The producers of fp16x3_pointwise: a warpgroup that copies pixels, as they lie in memory, and packed weights into
// shared memory. Pixels pass no registers, so as many bytes are under way as shared memory holds.
#pragma once

#include "common/eviction.cuh"
#include "pointwise/tiles.cuh"

// cp.async of FLOATS elements, with a cache policy. The first `bytes` are copied, the others become zeros.
template <int FLOATS>
__device__ __forceinline__ void copy_async(unsigned target, const char* source, int bytes, uint64 policy) {
    if (FLOATS == 4)
        asm volatile("cp.async.cg.shared.global" INPUT_LEVEL " [%0], [%1], 16, %2" INPUT_POLICY(3) ";" ::"r"(target),
                     "l"(source), "r"(bytes) INPUT_HINT(policy)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global" INPUT_LEVEL " [%0], [%1], 4, %2" INPUT_POLICY(3) ";" ::"r"(target),
                     "l"(source), "r"(bytes) INPUT_HINT(policy)
                     : "memory");
}
// cp.async of FLOATS elements.
template <int FLOATS>
__device__ __forceinline__ void copy_async(unsigned target, const char* source, uint64 policy) {
    if (FLOATS == 4)
        asm volatile("cp.async.cg.shared.global" INPUT_LEVEL " [%0], [%1], 16" INPUT_POLICY(2) ";" ::"r"(target),
                     "l"(source) INPUT_HINT(policy)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global" INPUT_LEVEL " [%0], [%1], 4" INPUT_POLICY(2) ";" ::"r"(target),
                     "l"(source) INPUT_HINT(policy)
                     : "memory");
}

// cp.async.bulk of input; the barrier must expect nothing else.
__device__ __forceinline__ void fetch_input(unsigned target, const float* source, int bytes, uint64* barrier,
                                            uint64 policy) {
    barrier_expect(barrier, bytes);
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes" INPUT_CACHE_HINT
                 " [%0], [%1], %2, [%3]" INPUT_POLICY(4) ";" ::"r"(target),
                 "l"(source), "r"(bytes), "r"(shared_address(barrier)) INPUT_HINT(policy)
                 : "memory");
}

constexpr bool BULK = PLANE && VECTOR;                  // one thread copies a chunk of an image at once
constexpr int PRODUCERS = BULK ? 1 : PRODUCER_THREADS;  // arrivals at a stage of pixels that has been filled

// Addresses of bytes: the compiler then reaches planes that are less than 2^32 bytes further on by one instruction.
__device__ __forceinline__ const char* bytes_of(const float* p) { return reinterpret_cast<const char*>(p); }

// How a consumer's producers share a chunk: LANES threads copy FLOATS pixels each of one channel. A thread has the same
// PARTS of each AT_ONCE-th channel; a part is STEP pixels after the one before it.
template <int FLOATS, int LANES>
struct Columns {
    static constexpr int AT_ONCE = PRODUCER_THREADS / LANES, STEP = LANES * FLOATS, PARTS = WARPGROUP_PIXELS / STEP;
};

// The stage of a chunk's weights, and how often it was filled before. unit: the number of the consumer's chunks before.
__device__ __forceinline__ int weight_stage_of(int consumer, int unit, int chunk) {
    return WEIGHTS_RESIDENT
               ? chunk
               : unit % CONSUMER_WEIGHT_STAGES + (WARPGROUP_SPLIT_K ? consumer * CONSUMER_WEIGHT_STAGES : 0);
}
__device__ __forceinline__ int weight_uses(int unit, const Tile& tile) {
    return WEIGHTS_RESIDENT ? tile.loads : unit / CONSUMER_WEIGHT_STAGES;
}

// A producer thread. It copies the pixels of one consumer. The first thread also copies the weights: of all consumers,
// or with split-K across the warpgroups those of its own.
struct Producer {
    const Block& block;
    const Workspace& workspace;
    const int consumer, thread;  // thread: its number among the consumer's producers
    const uint64 policy;         // L2 cache policy for pixels

    __device__ __forceinline__ void copy_weights(const Tile& tile, int chunk, int unit) const {
        if (PACKS_WEIGHTS) return;
        const int stage = weight_stage_of(consumer, unit, chunk), uses = weight_uses(unit, tile);
        if (!PREPARED && unit == 0) wait_for_weights();
        if (uses > 0) barrier_wait(block.shared.empty_weights + stage, uses - 1 & 1);
        const int64 tile_chunk = (int64)tile.filter_tile * block.s.chunks + chunk;
        uint64* const full = block.shared.full_weights + stage;
        const unsigned to = shared_address(block.weights) + stage * WEIGHT_STAGE_BYTES;
        barrier_expect(full, WEIGHT_STAGE_BYTES);
        copy_bulk(to, workspace.rows + tile_chunk * ROW_BYTES, ROW_BYTES, full);
        copy_bulk(to + ROW_BYTES, workspace.channel_scales + tile_chunk * CHANNELS, CHANNELS * 4, full);
        copy_bulk(to + ROW_BYTES + CHANNELS * 4, workspace.filter_scales + tile_chunk * BF, BF * 4, full);
    }

    // Copies the chunks of one tile. first: the address of the first one. copy(stage, chunk) starts the copies of a
    // chunk; where BULK it arrives at the stage's barrier itself.
    template <class Copy>
    __device__ __forceinline__ void copy_chunks(const Tile& tile, int& unit, const void* first, Copy copy) const {
        if (PACKS_WEIGHTS && unit == 0) wait_then_launch_dependents((uint64)first);
        const bool with_weights = (WARPGROUP_SPLIT_K || consumer == 0) && thread == 0 &&
                                  (!WEIGHTS_RESIDENT || unit == 0 || !GRID_STRIDE && tile.pixel_tile == 0);
        int ahead = 0;  // chunks whose weights have been copied before the kernel ahead ended
        if (PREPARED && unit == 0) {
            if (with_weights)
                for (int chunk = block.begin_chunk(tile, consumer);
                     chunk < block.end_chunk(tile) && ahead < CONSUMER_WEIGHT_STAGES; chunk += CHUNK_STEP)
                    copy_weights(tile, chunk, ahead++);
            wait_for_kernel_ahead((uint64)first);
        }
        for (int chunk = block.begin_chunk(tile, consumer); chunk < block.end_chunk(tile);
             chunk += CHUNK_STEP, ++unit) {
            const int stage = unit % PIXEL_STAGES, uses = unit / PIXEL_STAGES;
            if (with_weights && (!PREPARED || unit >= ahead)) copy_weights(tile, chunk, unit);
            if (uses > 0) barrier_wait(block.shared.empty_pixels[consumer] + stage, uses - 1 & 1);
            copy(stage, chunk);
            if (!BULK) barrier_arrive_after_copies(block.shared.full_pixels[consumer] + stage);
        }
    }

    // Plain layout: each copy is of four pixels where VECTOR, else of one.
    __device__ __forceinline__ void copy_plain(const Tile& tile, int& unit) const {
        constexpr int FLOATS = VECTOR ? 4 : 1, LANES = VECTOR ? 16 : PRODUCER_THREADS;
        typedef Columns<FLOATS, LANES> By;
        // Single elements come through the L1 cache, which may hold what was there before the kernel ahead wrote.
        if (!VECTOR && !PACKS_WEIGHTS) wait_for_weights();
        const int lane_channel = thread / LANES, lane_pixel = thread % LANES * FLOATS;
        const unsigned plane = block.s.out_pixels * 4u;  // bytes
        const char* from[By::PARTS];
        bool all = true;
#pragma unroll
        for (int part = 0; part < By::PARTS; ++part) {
            const int64 place =
                block.locate(tile, consumer, part * By::STEP + lane_pixel).offset(block.s, block.s.channels);
            const int channel = block.begin_chunk(tile, consumer) * CHANNELS + lane_channel;
            from[part] = place < 0 ? nullptr : bytes_of(block.input + place) + channel * (uint64)plane;
            all &= place >= 0;
        }
        all = __all_sync(~0u, all);
        const unsigned to = shared_address(block.pixel_stages(consumer) + lane_channel * PITCH + lane_pixel);
        copy_chunks(tile, unit, all ? from[By::PARTS - 1] : bytes_of(block.input), [&](int stage, int chunk) {
            const int left = block.s.channels - chunk * CHANNELS - lane_channel;
#pragma unroll
            for (int part = 0; part < By::PARTS; ++part) {
                const unsigned target = to + (stage * PIXEL_STAGE_FLOATS + part * By::STEP) * 4;
                if (all && block.s.channels - chunk * CHANNELS >= CHANNELS) {
#pragma unroll
                    for (int c = 0; c < CHANNELS; c += By::AT_ONCE)
                        copy_async<FLOATS>(target + c * PITCH * 4, from[part] + c * (uint64)plane, policy);
                } else {
#pragma unroll 4
                    for (int c = 0; c < CHANNELS; c += By::AT_ONCE) {
                        const bool exists = c < left && from[part];
                        const char* const source = exists ? from[part] + c * (uint64)plane : bytes_of(block.input);
                        copy_async<FLOATS>(target + c * PITCH * 4, source, exists ? FLOATS * 4 : 0, policy);
                    }
                }
                if (from[part]) from[part] += CHUNK_STEP * CHANNELS * (uint64)plane;
            }
        });
    }

    // Shifted layouts: 64 pixels of one image, which begin anywhere. Copies are of 16 bytes from a multiple of 16 bytes
    // on, so that pixels are as far off it in shared memory as in global memory; a last copy brings the rest.
    __device__ __forceinline__ void copy_shifted(const Tile& tile, int& unit) const {
        constexpr int LANES = PRODUCER_THREADS / 4;  // a thread's channels are 4 apart, so equally far off 16 bytes
        typedef Columns<4, LANES> By;
        const Block::Place place = block.locate_shifted(tile, consumer);
        const bool there = place.image < block.s.images;
        const int lane_channel = thread / LANES, lane_pixel = thread % LANES * 4;
        const unsigned plane = block.s.out_pixels * 4u;  // bytes
        const int64 first_plane =
            place.image * (int64)block.s.channels + block.begin_chunk(tile, consumer) * CHANNELS;
        const float* const first = block.input + (first_plane * block.s.out_pixels + place.pixel);
        const char* from = bytes_of(first) + lane_channel * (uint64)plane;  // the thread's first channel
        from += lane_pixel * 4 - (int)((uint64)from % 16);
        const char* end = bytes_of(first) + thread * (uint64)plane;
        const int end_bytes = there ? (int)((uint64)end % 16) : 0;
        end += WARPGROUP_PIXELS * 4 - end_bytes;
        const unsigned to = shared_address(block.pixel_stages(consumer));
        copy_chunks(tile, unit, from, [&](int stage, int chunk) {
            const int left = there ? block.s.channels - chunk * CHANNELS : 0;
            const unsigned target = to + (stage * PIXEL_STAGE_FLOATS + lane_channel * PITCH + lane_pixel) * 4;
            const unsigned end_target = to + (stage * PIXEL_STAGE_FLOATS + thread * PITCH + WARPGROUP_PIXELS) * 4;
            if (left >= CHANNELS) {
#pragma unroll
                for (int c = 0; c < CHANNELS; c += By::AT_ONCE)
#pragma unroll
                    for (int part = 0; part < By::PARTS; ++part)
                        copy_async<4>(target + (c * PITCH + part * By::STEP) * 4,
                                      from + c * (uint64)plane + part * By::STEP * 4, policy);
            } else {
#pragma unroll 2
                for (int c = 0; c < CHANNELS; c += By::AT_ONCE) {
                    const bool exists = c + lane_channel < left;
#pragma unroll
                    for (int part = 0; part < By::PARTS; ++part)
                        copy_async<4>(target + (c * PITCH + part * By::STEP) * 4,
                                      exists ? from + c * (uint64)plane + part * By::STEP * 4 : from, exists ? 16 : 0,
                                      policy);
                }
            }
#pragma unroll
            for (int c = 0; c < CHANNELS; c += PRODUCER_THREADS) {
                const bool exists = c + thread < left;
                if (end_bytes > 0 && c + thread < CHANNELS)
                    copy_async<4>(end_target + c * PITCH * 4, exists ? end + c * (uint64)plane : end,
                                  exists ? end_bytes : 0, policy);
            }
            from += CHUNK_STEP * CHANNELS * (uint64)plane, end += CHUNK_STEP * CHANNELS * (uint64)plane;
        });
    }

    // Whole images: a chunk is one piece of memory. A bulk copy brings the channels that exist; consumers clear others.
    __device__ __forceinline__ void copy_image(const Tile& tile, int& unit) const {
        const int64 image = block.locate(tile, consumer, 0).image;
        const bool there = image < block.s.images;
        const float* const first = block.input + image * block.s.channels * PLANE;
        const unsigned to = shared_address(block.pixel_stages(consumer));
        if (!VECTOR && !PACKS_WEIGHTS) wait_for_weights();  // as in copy_plain
        copy_chunks(tile, unit, first, [&](int stage, int chunk) {
            const int floats = there ? min(CHANNELS, block.s.channels - chunk * CHANNELS) * PLANE : 0;
            const float* const from = first + chunk * (int64)PIXEL_STAGE_FLOATS;
            const unsigned target = to + stage * PIXEL_STAGE_FLOATS * 4;
            uint64* const full = block.shared.full_pixels[consumer] + stage;
            if (BULK && there) fetch_input(target, from, floats * 4, full, policy);
            else if (BULK) barrier_arrive(full);
            else
#pragma unroll 1
                for (int i = thread; i < PIXEL_STAGE_FLOATS; i += PRODUCER_THREADS)
                    copy_async<1>(target + i * 4, bytes_of(i < floats ? from + i : block.input), i < floats ? 4 : 0, policy);
        });
    }

    __device__ __forceinline__ void run() {
        if (BULK && thread > 0) return;
        int unit = 0;
        for (Tile tile = block.first_tile(); tile.count < block.shared.tiles; block.advance(tile)) {
            if (PLANE) copy_image(tile, unit);
            else if (SHIFTED) copy_shifted(tile, unit);
            else copy_plain(tile, unit);
        }
        wait_for_all_copies();
    }
};
