// The consumers of fp16x3_pointwise: warpgroups that multiply the pixels in shared memory by the packed weights there.
//
//   tensor cores    [ products of chunk i ...................... ]          [ products of chunk i + 1 ....
//   other pipes     [ decompose ][ load chunk i + 1, its maxima ] [ sums += ][ decompose ][ load chunk i + 2
#pragma once

#include "pointwise/epilogue.cuh"
#if PACKS_WEIGHTS
#include "pointwise/pack.cuh"
#endif
#if TAIL_SPLIT_K > 1
#include "pointwise/partial_sums.cuh"
#endif
#define WGMMA_N FILTERS
#include "common/wgmma.cuh"

// The least exponent that the maximum of a pixel's chunk may have with the scale that it has. With low parts, few of
// ordinary values are then below LEAST_EXACT. Without them, all 11 bits must hold down to 2^-20 of the maximum.
constexpr int LEAST_EXPONENT = PRODUCTS == 3 ? 8 : 6;
// A pixel's scale, a power of two. It stays while it brings the maximum of a chunk into [2^LEAST_EXPONENT, 2^15). A new
// one brings it into [2^TARGET, 2^(TARGET + 1)): later chunks of ordinary data have maxima from 1/16 to 4 times as
// large.
constexpr int TARGET = PRODUCTS == 3 ? 12 : 10;
static_assert(LEAST_EXPONENT < TARGET && TARGET < 14, "a new scale lies within the range in which it stays");

struct PixelScale {
    int exponent = ZERO_EXPONENT;      // the current chunk's
    int sum_exponent = ZERO_EXPONENT;  // the sums': that of the tile's first chunk that is not all zero

    // most: the largest magnitude of the chunk's values.
    __device__ __forceinline__ void update(float most) {
        const int found = (int)(__float_as_uint(most) >> 23) - 127;
        if (most == 0.0f || found + exponent >= LEAST_EXPONENT && found + exponent <= 14) return;
        exponent = clamp(TARGET - found, -113, 126);
        if (sum_exponent == ZERO_EXPONENT) sum_exponent = exponent;
    }
};

// A thread's share of a chunk's pixels, as wgmma takes matrix A from registers. The thread has two pixels, which are
// rows lane / 4 and lane / 4 + 8 of its warp, and of every 16 channels 2 * (lane % 4) + {0, 1, 8, 9}.
struct Fragments {
    float2 values[STEPS][4];  // values of both pixels

    __device__ static __forceinline__ constexpr int channel(int step, int i) { return step * 16 + i / 2 * 8 + i % 2; }

    // from: the first pixel of the thread's first channel. odd: floats by which odd channels are further on, where
    // SHIFTED. second: floats from the first pixel to the second.
    __device__ __forceinline__ void load(const float* from, int odd, int second) {
#pragma unroll
        for (int step = 0; step < STEPS; ++step)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float* const pixel = from + channel(step, i) * PITCH + (i % 2 ? odd : 0);
                values[step][i] = SHIFTED || PLANE ? make_float2(pixel[0], pixel[second])
                                                   : *reinterpret_cast<const float2*>(pixel);
            }
    }

    // Multiplies by the channels' scales. left: channels from the chunk's first one to the last. A bulk copy leaves
    // what earlier chunks had in the channels beyond; their scale is zero, so this function is called and clears them.
    __device__ __forceinline__ void scale(const float* scales, int lane, int left) {
#pragma unroll
        for (int step = 0; step < STEPS; ++step)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float by = scales[channel(step, i) + lane % 4 * 2];
                values[step][i].x *= by, values[step][i].y *= by;
                if (PLANE && channel(step, i) + lane % 4 * 2 >= left) values[step][i] = {0.0f, 0.0f};
            }
    }

    // The largest magnitude of each pixel's values in the four lanes that have them. It ignores a NaN, which the output
    // will show. Two maxima for each pixel make the chains of dependent instructions half as long.
    __device__ __forceinline__ float2 largest() const {
        float2 most = {0.0f, 0.0f}, odd = most;
#pragma unroll
        for (int step = 0; step < STEPS; ++step)
#pragma unroll
            for (int i = 0; i < 4; i += 2) {
                most.x = fmaxf(most.x, fabsf(values[step][i].x));
                most.y = fmaxf(most.y, fabsf(values[step][i].y));
                odd.x = fmaxf(odd.x, fabsf(values[step][i + 1].x));
                odd.y = fmaxf(odd.y, fabsf(values[step][i + 1].y));
            }
        most = {fmaxf(most.x, odd.x), fmaxf(most.y, odd.y)};
#pragma unroll
        for (int by = 1; by < 4; by *= 2) {
            most.x = fmaxf(most.x, __shfl_xor_sync(~0u, most.x, by));
            most.y = fmaxf(most.y, __shfl_xor_sync(~0u, most.y, by));
        }
        return most;
    }

    // The parts of 16 channels, scaled by x and y, in the registers of matrix A: rows change fastest.
    __device__ __forceinline__ void decompose_step(int step, float x, float y, unsigned (&high)[4],
                                                   unsigned (&low)[4]) const {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float2 a = values[step][half * 2], b = values[step][half * 2 + 1];
            decompose(a.x * x, b.x * x, high[half * 2], low[half * 2]);
            decompose(a.y * y, b.y * y, high[half * 2 + 1], low[half * 2 + 1]);
        }
    }
};

// chain = the products of a chunk. Those with low parts come first: they are small, and the tensor cores begin as soon
// as the first 16 channels are decomposed. weights: address of the chunk's weights in shared memory.
__device__ __forceinline__ void start_products(float (&chain)[SUMS], const Fragments& pixels,
                                               const PixelScale (&scales)[2], unsigned (&high)[STEPS][4],
                                               unsigned (&low)[STEPS][4], unsigned weights) {
    weights = __shfl_sync(~0u, weights, 0);  // shows the compiler that it is the same in all lanes
    // The weights are K-major core matrices of 8 filters x 16 bytes. The next 8 channels follow BF * 16 bytes later.
    const unsigned b_high = core_descriptor(weights, BF * 16), b_low = b_high + WEIGHT_PART / 16;
    const float x = power_of_two(scales[0].exponent), y = power_of_two(scales[1].exponent);  // 1 for ZERO_EXPONENT
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
        pixels.decompose_step(step, x, y, high[step], low[step]);
        wgmma_fence();
        wgmma_f16(chain, OPERAND_PARTS == 2 ? low[step] : high[step], b_high + step * 2 * BF, step > 0);
        if (OPERAND_PARTS == 2) wgmma_f16(chain, high[step], b_low + step * 2 * BF, 1);
    }
#pragma unroll
    for (int step = 0; OPERAND_PARTS == 2 && step < STEPS; ++step)
        wgmma_f16(chain, high[step], b_high + step * 2 * BF, 1);
    wgmma_commit();
}

// A consumer thread.
struct Consumer {
    const Block& block;
    const int consumer, lane;
    int first, second;  // floats from a stage to the thread's first pixel, and from there to its second
    int shift;          // SHIFTED: floats from a multiple of 16 bytes to the next pixels, in the thread's first channel
    PipelineState<PIXEL_STAGES> pipeline;  // the next chunk's
    int weights;                           // weight stage of the next chunk
    Fragments next;                        // the next chunk's pixels
    float2 largest;                        // largest magnitudes in `next`
    PixelScale scales[2];

    __device__ __forceinline__ Consumer(const Block& block, int consumer, int thread)
        : block(block), consumer(consumer), lane(thread % 32) {
        const int pixel = first_pixel(thread);
        first = lane % 4 * 2 * PITCH + pixel;
        // A second pixel that does not exist is replaced by the first one, whose scale and products are harmless.
        second = has_second(pixel) ? SECOND_PIXEL : 0;
        if (PLANE) asm volatile("" : "+r"(first), "+r"(second));  // keeps the compiler from computing them again
    }

    // Loads the next chunk's pixels from shared memory, and releases their stage.
    __device__ __forceinline__ void load_next(int chunk, const Tile& tile) {
        weights =
            WEIGHTS_RESIDENT ? chunk : pipeline.stage + (WARPGROUP_SPLIT_K ? consumer * CONSUMER_WEIGHT_STAGES : 0);
        if (!PACKS_WEIGHTS)
            barrier_wait(block.shared.full_weights + weights, WEIGHTS_RESIDENT ? tile.loads & 1 : pipeline.parity);
        const float* const channel_scales = reinterpret_cast<const float*>(block.weight_stage(weights) + ROW_BYTES);
        const float2 two =
            lane * 2 < CHANNELS ? reinterpret_cast<const float2*>(channel_scales)[lane] : float2{1.0f, 1.0f};
        barrier_wait(block.shared.full_pixels[consumer] + pipeline.stage, pipeline.parity);
        const float* const pixels = block.pixel_stages(consumer) + pipeline.stage * PIXEL_STAGE_FLOATS + first;
        if (SHIFTED) next.load(pixels + shift, (shift + block.s.out_pixels) % 4 - shift, SECOND_PIXEL);
        else next.load(pixels, 0, PLANE ? second : SECOND_PIXEL);
        if (__any_sync(~0u, two.x != 1.0f || two.y != 1.0f))
            next.scale(channel_scales, lane, block.s.channels - chunk * CHANNELS);
        largest = next.largest();
        release(block.shared.empty_pixels[consumer] + pipeline.stage,
                __float_as_int(largest.x) | __float_as_int(largest.y));
        pipeline.advance();
    }

    // Finds the shift of a tile whose pixels are loaded next.
    __device__ __forceinline__ void find_shift(const Tile& tile) {
        const Block::Place place = block.locate_shifted(tile, consumer);
        const unsigned plane = place.image * block.s.channels + lane % 4 * 2;
        shift = (misalignment(block.input) + plane * block.s.out_pixels + place.pixel) % 4;
    }

    // Arrives for the warp, once what it loaded from the stage has come: an arrival alone can overtake loads from
    // shared memory that are under way. loaded: bits that depend on every load, of numbers that are not negative. By
    // the PTX memory model __syncwarp orders the loads of all lanes before the arrival, which releases them to the
    // producer.
    __device__ __forceinline__ void release(uint64* barrier, int loaded) const {
        asm("" : "+r"(loaded));  // hides from the compiler that the test below never holds
        __syncwarp();
        if (ALL_LANES_ARRIVE || lane == 0 || loaded < 0) barrier_arrive(barrier);
    }

    // sum += chain, rescaled to the tile's first chunk. Returns bits for release().
    __device__ __forceinline__ int add(float (&sum)[SUMS], float (&chain)[SUMS], const float* filter_scales) const {
        int loaded = 0;
        const int by[2] = {scales[0].sum_exponent - scales[0].exponent, scales[1].sum_exponent - scales[1].exponent};
        if (__any_sync(~0u, by[0] | by[1]))  // rare
#pragma unroll
            for (int i = 0; i < SUMS; ++i)
                chain[i] = chain[i] * power_of_two(by[i % 4 / 2] / 2) * power_of_two(by[i % 4 / 2] - by[i % 4 / 2] / 2);
#pragma unroll
        for (int i = 0; i < SUMS; i += 4) {
            const float2 scale = *reinterpret_cast<const float2*>(filter_scales + i * 2);
            loaded |= __float_as_int(scale.x);
            sum[i] = fmaf(chain[i], scale.x, sum[i]);
            sum[i + 1] = fmaf(chain[i + 1], scale.y, sum[i + 1]);
            sum[i + 2] = fmaf(chain[i + 2], scale.x, sum[i + 2]);
            sum[i + 3] = fmaf(chain[i + 3], scale.y, sum[i + 3]);
        }
        return loaded;
    }

    // chain *= the filters' scales. Returns bits for release().
    __device__ __forceinline__ int scale_by_filters(float (&chain)[SUMS], const float* filter_scales) const {
        int loaded = 0;
#pragma unroll
        for (int i = 0; i < SUMS; ++i) {
            const float scale = filter_scales[i / 4 * 8 + i % 2];
            loaded |= __float_as_int(scale);
            chain[i] *= scale;
        }
        return loaded;
    }

    // The scales of the thread's filters, in a stage of weights.
    __device__ __forceinline__ const float* filter_scales(int stage) const {
        return reinterpret_cast<const float*>(block.weight_stage(stage) + ROW_BYTES + CHANNELS * 4) + lane % 4 * 2;
    }

    // chain = the products of the chunk that was loaded last. Meanwhile loads next_chunk if there is one (`more`).
    __device__ __forceinline__ void multiply(float (&chain)[SUMS], bool more, int next_chunk, const Tile& tile) {
        unsigned high[STEPS][4], low[STEPS][4];
        scales[0].update(largest.x), scales[1].update(largest.y);
        start_products(chain, next, scales, high, low, shared_address(block.weight_stage(weights)));
        if (more) {
            if (SHIFTED && next_chunk == first_chunk(consumer)) {
                Tile following = tile;
                block.advance(following);
                find_shift(following);
            }
            load_next(next_chunk, tile);
        }
        wgmma_wait(chain);
    }

    // The sums of a tile, in the scale of its first chunk. more: whether to load the following tile's first chunk.
    __device__ __forceinline__ void add_chunks(float (&sum)[SUMS], bool more, const Tile& tile) {
#pragma unroll
        for (int i = 0; i < SUMS; ++i) sum[i] = 0.0f;
#pragma unroll 1
        for (int chunk = block.begin_chunk(tile, consumer); chunk < block.end_chunk(tile); chunk += CHUNK_STEP) {
            const int stage = weights;
            const bool last = chunk + CHUNK_STEP >= block.end_chunk(tile);
            float chain[SUMS];
            multiply(chain, !last || more, last ? first_chunk(consumer) : chunk + CHUNK_STEP, tile);
            const int loaded = add(sum, chain, filter_scales(stage));
            if (!PACKS_WEIGHTS && tile.ends_use_of_weights(block.s))
                release(block.shared.empty_weights + stage, loaded);
        }
    }

    // The same where all channels are one chunk: its products are the sums.
    __device__ __forceinline__ void multiply_single_chunk(float (&sum)[SUMS], bool more, const Tile& tile) {
        multiply(sum, more, 0, tile);
        const int loaded = scale_by_filters(sum, filter_scales(0));
        if (!PACKS_WEIGHTS && tile.ends_use_of_weights(block.s)) release(block.shared.empty_weights, loaded);
    }

    // Computes all tiles of the block.
    __device__ __forceinline__ void run(const Epilogue& epilogue, const Memory& memory) {
        const Sizes& s = block.s;
        for (Tile tile = block.first_tile(); tile.count < block.shared.tiles; block.advance(tile)) {
            const bool other_weights = block.begins_weights(tile);
#if PACKS_WEIGHTS
            if (other_weights)
                WeightPacker(s, block.weights, epilogue.buffers)
                    .run(epilogue.weight, tile.filter_tile, tile.count == 0);
#endif
            if (other_weights) {
                if (SHIFTED) find_shift(tile);
                load_next(block.begin_chunk(tile, consumer), tile);
            }
            // A tile with other weights is loaded later: its weights take the place of this one's.
            const bool more = tile.count + 1 < block.shared.tiles && !(WEIGHTS_RESIDENT && tile.ends_use_of_weights(s));
            float sum[SUMS];
            scales[0] = scales[1] = PixelScale();
            if (SINGLE_CHUNK) multiply_single_chunk(sum, more, tile);
            else add_chunks(sum, more, tile);
#pragma unroll
            for (int i = 0; i < SUMS; ++i) {
                if (PRODUCTS == 3) sum[i] = restored(sum[i], STEPS);
                sum[i] *= power_of_two(-scales[i % 4 / 2].sum_exponent);
            }
#if TAIL_SPLIT_K > 1
            const PartialSums partial = {s, memory, consumer};
            if (block.begin_chunk(tile, consumer) > 0) {
                partial.publish(sum);
                continue;
            }
            if (block.end_chunk(tile) < s.chunks) partial.accumulate(sum);
#endif
            epilogue.write(sum, tile);
        }
    }
};
