// 1x1 convolution on Hopper's FP16 tensor cores with the accuracy of FP32, from NCHW as it lies.
//
// out[m, p] = sum over c of weight[m, c] * input[c, p], p a pixel of any image. A is a tile of pixels from registers,
// B the filters from shared memory. Each pixel and each filter of a chunk of channels is scaled by a power of two and
// split into two FP16 numbers, x = high + low; low*high + high*low + high*high is accumulated for a chunk and then
// added to FP32 registers.
//
// Warp specialisation: one warpgroup copies pixels into shared memory as they lie (cp.async or, of whole images, bulk
// copies, so that no register waits for them), the others take them from there as fragments of A, scale, split and
// multiply. Weights come split by a kernel ahead (fp16x3_split.cuh), by bulk copies, or those who multiply split them
// at the start (fp16x3_pointwise_split.cuh).
//
// FILTERS   of a tile, a multiple of 16
// CHANNELS  of a chunk, a multiple of 16
// TEAMS     warpgroups that multiply, 64 pixels each
// JOINT     1 where they have the same 64 pixels instead, and each every TEAMS-th chunk, of which there are so many
// STAGES    chunks of pixels in shared memory
// WEIGHT_STAGES  chunks of weights there, a multiple of TEAMS where JOINT and not RESIDENT
// RESIDENT  1 where these are all chunks of a tile's filters: they stay for all the tiles of a block with these filters
// STRIDED   1 for every gridDim.x-th tile a block, where tiles of the same pixels follow each other: always where
//           weights do not stay; where they do, gridDim.x is then a multiple of the tiles of the same pixels
// SPLIT_LAST  blocks that share each tile of the last round, by chunks; else 1
// OWN       weights that a thread reads at once, 1 or 4, where the block splits its own; 0 where a kernel ahead does
// STAGED    filters of a team in shared memory on their way to the output
// VECTOR    1 where four pixels of a plane, or of all planes of an image, may be copied and written at once
// SHIFTED   where they may not, but teams take their pixels from one image each, so that all but the ends of rows may:
//           8 or 4, the floats of the output at whose multiples what a team writes begins and ends; else 0
// PLANE     pixels of an image where a team has a whole one, 33 to 64; else 0
// EVICT_FIRST  the share of the input that leaves the L2 cache first (eviction.cuh)
// PRODUCTS  3, or 1 for the accuracy of TF32 (fp16x3.cuh)
//
// Every argument is eight bytes, a pointer or a long long.

#include "pointwise/copy.cuh"
#if OWN
#include "pointwise/split.cuh"
#endif
#if SPLIT_LAST > 1
#include "pointwise/exchange.cuh"
#endif
#define WGMMA_N FILTERS
#include "common/wgmma.cuh"
#include "pointwise/write.cuh"

// A pixel's scale: a power of two that stays while it brings a chunk's maximum to 2^LEAST_EXPONENT to 2^15.
struct PixelScale {
    int exponent = EMPTY, first = EMPTY;  // in use; of the tile's first chunk that is not zero, which the sums keep

    __device__ __forceinline__ void suit(float most) {
        const int found = (int)(__float_as_uint(most) >> 23) - 127;
        if (most == 0.0f || found + exponent >= LEAST_EXPONENT && found + exponent <= 14) return;
        exponent = clamp(10 - found, -113, 126);
        if (first == EMPTY) first = exponent;
    }
};

// Fragments of A. Row lane / 4 is a thread's first pixel, the row eight further on its other one; of each depth of 16 a
// thread has channels 2 * (lane % 4) + {0, 1, 8, 9}.
struct Fragments {
    float2 values[STEPS][4];  // of both pixels

    // rows: where a thread's two pixels are of its first channel. further: of every second channel, where SHIFTED.
    // other: from one pixel to the other, where they are not side by side.
    __device__ __forceinline__ void load(const float* rows, int further, int other) {
#pragma unroll
        for (int step = 0; step < STEPS; ++step)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float* const from = rows + channel(step, i) * PITCH + (i % 2 ? further : 0);
                values[step][i] = SHIFTED || PLANE ? make_float2(from[0], from[other])
                                                   : *reinterpret_cast<const float2*>(from);
            }
    }
    // left: channels from the chunk's first one on. Those beyond have a scale of zero, so this is where what lies there
    // from earlier chunks, since a bulk copy leaves it, is taken out.
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
    __device__ static __forceinline__ constexpr int channel(int step, int i) { return step * 16 + i / 2 * 8 + i % 2; }

    // The largest magnitude of each pixel's values; a NaN does not count: the output shows it.
    __device__ __forceinline__ float2 largest() const {
        float2 most = {0.0f, 0.0f}, other = most;  // two of each pixel: a maximum waits for the one before it
#pragma unroll
        for (int step = 0; step < STEPS; ++step)
#pragma unroll
            for (int i = 0; i < 4; i += 2) {
                most.x = fmaxf(most.x, fabsf(values[step][i].x));
                most.y = fmaxf(most.y, fabsf(values[step][i].y));
                other.x = fmaxf(other.x, fabsf(values[step][i + 1].x));
                other.y = fmaxf(other.y, fabsf(values[step][i + 1].y));
            }
        most = {fmaxf(most.x, other.x), fmaxf(most.y, other.y)};
#pragma unroll
        for (int by = 1; by < 4; by *= 2) {
            most.x = fmaxf(most.x, __shfl_xor_sync(~0u, most.x, by));
            most.y = fmaxf(most.y, __shfl_xor_sync(~0u, most.y, by));
        }
        return most;
    }
    __device__ __forceinline__ void split_step(int step, float x, float y, unsigned (&high)[4],
                                               unsigned (&low)[4]) const {
#pragma unroll
        for (int half = 0; half < 2; ++half) {  // registers of A: rows change fastest
            const float2 a = values[step][half * 2], b = values[step][half * 2 + 1];
            split(a.x * x, b.x * x, high[half * 2], low[half * 2]);
            split(a.y * y, b.y * y, high[half * 2 + 1], low[half * 2 + 1]);
        }
    }
};

// chain = the products of a chunk, small ones first where there are any: the tensor cores begin with the first depth
// that is split.
__device__ __forceinline__ void start_products(float (&chain)[SUMS], const Fragments& pixels,
                                               const PixelScale (&scales)[2], unsigned (&high)[STEPS][4],
                                               unsigned (&low)[STEPS][4], unsigned weights) {
    // K-major core matrices of 8 filters x 16 bytes, one after the other; BF of these rows to the next 8 channels.
    weights = __shfl_sync(~0u, weights, 0);  // the compiler is to see that it is uniform
    const unsigned b_high = weights >> 4 & 0x3fff | BF << 16, b_low = b_high + WEIGHT_PART / 16;
    const float x = power_of_two(scales[0].exponent), y = power_of_two(scales[1].exponent);  // 1 where all is zero
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
        pixels.split_step(step, x, y, high[step], low[step]);
        wgmma_fence();
        wgmma_f16(chain, FACTOR_PARTS == 2 ? low[step] : high[step], b_high + step * 2 * BF, step > 0);
        if (FACTOR_PARTS == 2) wgmma_f16(chain, high[step], b_low + step * 2 * BF, 1);
    }
#pragma unroll
    for (int step = 0; FACTOR_PARTS == 2 && step < STEPS; ++step) wgmma_f16(chain, high[step], b_high + step * 2 * BF, 1);
    wgmma_commit();
}

// One of the warpgroups that multiply.
struct Multiplier {
    const Pointwise& of;
    const int team, lane;
    int first, other;  // the thread's first pixel of its first channel, in a stage; from there to the other one
    int shift;         // of the pixels to come, in the row of the thread's first channel
    Turn turn;         // of the chunk to come
    int weights;       // the place of its weights
    Fragments next;
    float2 largest;  // of its pixels
    PixelScale scales[2];

    __device__ __forceinline__ Multiplier(const Pointwise& of, int team, int thread)
        : of(of), team(team), lane(thread % 32) {
        const int pixel = first_pixel_of(thread);
        first = lane % 4 * 2 * PITCH + pixel;
        // A pixel that is not there is the thread's first one again, whose scale and products are harmless.
        other = has_other(pixel) ? OTHER_PIXEL : 0;
        if (PLANE) asm volatile("" : "+r"(first), "+r"(other));  // not computed anew each time
    }

    __device__ __forceinline__ const char* weight_stage(int slot) const { return of.weights + slot * WEIGHT_STAGE; }

    // Fetches the pixels of the chunk to come from shared memory, and leaves their place.
    __device__ __forceinline__ void fetch(int chunk, const Tile& tile) {
        weights = RESIDENT ? chunk : turn.slot + (JOINT ? team * TEAM_WEIGHT_STAGES : 0);
        if (!OWN) barrier_wait(of.shared.full_weights + weights, RESIDENT ? tile.loads & 1 : turn.parity);
        const float* const scales = reinterpret_cast<const float*>(weight_stage(weights) + ROW_BYTES);
        const float2 two = lane * 2 < CHANNELS ? reinterpret_cast<const float2*>(scales)[lane] : float2{1.0f, 1.0f};
        barrier_wait(of.shared.full_pixels[team] + turn.slot, turn.parity);
        const float* const pixels = of.stages(team) + turn.slot * STAGE_FLOATS + first;
        if (SHIFTED) next.load(pixels + shift, (shift + of.s.out_pixels) % 4 - shift, OTHER_PIXEL);
        else next.load(pixels, 0, PLANE ? other : OTHER_PIXEL);
        if (__any_sync(~0u, two.x != 1.0f || two.y != 1.0f)) next.scale(scales, lane, of.s.channels - chunk * CHANNELS);
        largest = next.largest();
        leave(of.shared.empty_pixels[team] + turn.slot, __float_as_int(largest.x) | __float_as_int(largest.y));
        turn.advance();
    }

    // A tile's pixels are the next ones that are fetched.
    __device__ __forceinline__ void find(const Tile& tile) {
        const Pointwise::Place place = of.locate_row(tile, team);
        const unsigned row = place.image * of.s.channels + lane % 4 * 2;
        shift = (offset_of(of.input) + row * of.s.out_pixels + place.pixel) % 4;
    }

    // Arrives for a warp when what it loads has come: an arrival alone overtakes loads from shared memory under way, so
    // it is made to depend on `loaded`, the bits of positive numbers that depend on every load.
    __device__ __forceinline__ void leave(uint64* barrier, int loaded) const {
        asm("" : "+r"(loaded));  // the compiler knows better than to test for what cannot be
        __syncwarp();
        if (lane == 0 || loaded < 0) barrier_arrive(barrier);
    }

    // sum += chain, in the scale of the tile's first chunk. Returns bits for leave.
    __device__ __forceinline__ int add(float (&sum)[SUMS], float (&chain)[SUMS], const float* factors) const {
        int loaded = 0;
        const int by[2] = {scales[0].first - scales[0].exponent, scales[1].first - scales[1].exponent};
        if (__any_sync(~0u, by[0] | by[1]))  // rare
#pragma unroll
            for (int i = 0; i < SUMS; ++i)
                chain[i] = chain[i] * power_of_two(by[i % 4 / 2] / 2) * power_of_two(by[i % 4 / 2] - by[i % 4 / 2] / 2);
#pragma unroll
        for (int i = 0; i < SUMS; i += 4) {
            const float2 by_filter = *reinterpret_cast<const float2*>(factors + i * 2);
            loaded |= __float_as_int(by_filter.x);
            sum[i] = fmaf(chain[i], by_filter.x, sum[i]);
            sum[i + 1] = fmaf(chain[i + 1], by_filter.y, sum[i + 1]);
            sum[i + 2] = fmaf(chain[i + 2], by_filter.x, sum[i + 2]);
            sum[i + 3] = fmaf(chain[i + 3], by_filter.y, sum[i + 3]);
        }
        return loaded;
    }

    // chain *= its filters' scales. Returns bits for leave.
    __device__ __forceinline__ int scale_back(float (&chain)[SUMS], const float* factors) const {
        int loaded = 0;
#pragma unroll
        for (int i = 0; i < SUMS; ++i) {
            const float by = factors[i / 4 * 8 + i % 2];
            loaded |= __float_as_int(by);
            chain[i] *= by;
        }
        return loaded;
    }

    // Of the filters whose sums are the thread's.
    __device__ __forceinline__ const float* factors(int slot) const {
        return reinterpret_cast<const float*>(weight_stage(slot) + ROW_BYTES + CHANNELS * 4) + lane % 4 * 2;
    }

    // chain = the products of the chunk at hand; meanwhile fetches the one to come, where there is one.
    __device__ __forceinline__ void multiply(float (&chain)[SUMS], bool more, int next_chunk, const Tile& tile) {
        unsigned high[STEPS][4], low[STEPS][4];
        scales[0].suit(largest.x), scales[1].suit(largest.y);
        start_products(chain, next, scales, high, low, shared_address(weight_stage(weights)));
        if (more) {
            if (SHIFTED && next_chunk == first_chunk(team)) {
                Tile following = tile;
                of.advance(following);
                find(following);
            }
            fetch(next_chunk, tile);
        }
        wgmma_wait(chain);
    }

    // The sums of a tile, in the scale of its first chunk. more: whether to fetch the next tile's first chunk.
    __device__ __forceinline__ void add_chunks(float (&sum)[SUMS], bool more, const Tile& tile) {
#pragma unroll
        for (int i = 0; i < SUMS; ++i) sum[i] = 0.0f;
#pragma unroll 1
        for (int chunk = of.begin_chunk(tile, team); chunk < of.end_chunk(tile); chunk += STRIDE) {
            const int slot = weights;
            const bool last = chunk + STRIDE >= of.end_chunk(tile);
            float chain[SUMS];
            multiply(chain, !last || more, last ? first_chunk(team) : chunk + STRIDE, tile);
            const int loaded = add(sum, chain, factors(slot));
            if (!OWN && tile.is_last(of.s)) leave(of.shared.empty_weights + slot, loaded);
        }
    }

    // The same of a single chunk, whose chain becomes the sums.
    __device__ __forceinline__ void add_chunk(float (&sum)[SUMS], bool more, const Tile& tile) {
        multiply(sum, more, 0, tile);
        const int loaded = scale_back(sum, factors(0));
        if (!OWN && tile.is_last(of.s)) leave(of.shared.empty_weights, loaded);
    }

    // memory: the workspace, where blocks leave sums to each other.
    __device__ __forceinline__ void run(const Writer& writer, void* memory) {
        const Sizes& s = of.s;
        for (Tile tile = of.first_tile(); tile.count < of.shared.tiles; of.advance(tile)) {
            const bool other_weights = tile.count == 0 || !STRIDED && tile.stretch == 0;
#if OWN
            if (other_weights)
                Splitter(s, of.weights, writer.staging).run(writer.weight, tile.filter_tile, tile.count == 0);
#endif
            if (other_weights) {
                if (SHIFTED) find(tile);
                fetch(of.begin_chunk(tile, team), tile);
            }
            // Not from a tile with other weights, which wait until this one's have been used.
            const bool more = tile.count + 1 < of.shared.tiles && !(RESIDENT && tile.is_last(s));
            float sum[SUMS];
            scales[0] = scales[1] = PixelScale();
            if (SINGLE) add_chunk(sum, more, tile);
            else add_chunks(sum, more, tile);
#pragma unroll
            for (int i = 0; i < SUMS; ++i) sum[i] *= power_of_two(-scales[i % 4 / 2].first);
#if SPLIT_LAST > 1
            const Exchange exchange = {s, memory, team};
            if (of.begin_chunk(tile, team) > 0) {
                exchange.leave(sum);
                continue;
            }
            if (of.end_chunk(tile) < s.chunks) exchange.collect(sum);
#endif
            writer.write(sum, tile);
        }
    }
};

extern "C" __global__ void __launch_bounds__(ALL_THREADS, 1)
    fp16x3_pointwise(const float* __restrict__ input, const float* __restrict__ weight, const float* __restrict__ bias,
                     float* __restrict__ output, void* __restrict__ memory, int64 images, int64 channels, int64 height,
                     int64 width, int64 filters, int64 relu) {
    if (!OWN) launch_dependents();
    extern __shared__ __align__(128) char dynamic[];  // stages of pixels, stages of weights, staging of the output
    __shared__ SharedState shared;
    const int pixels = height * width;
    const int rows = (pixels - GRAIN + OWN_PIXELS) / OWN_PIXELS;
    const int64 all_rows = PLANE     ? images
                           : SHIFTED ? images * rows
                                     : (images * pixels + TEAM_TILE - 1) / TEAM_TILE;
    const Sizes s = {(int)channels, (int)height, (int)width, (int)filters, 0, 0, (int)width, pixels, (unsigned)images,
                     (int)(channels + CHANNELS - 1) / CHANNELS, (int)(all_rows + TILE_TEAMS - 1) / TILE_TEAMS,
                     (int)(filters + BF - 1) / BF, (unsigned)rows};
    const int tiles = s.stretches * s.filter_tiles;
    const Share share(tiles, blockIdx.x, gridDim.x);  // where not STRIDED
    const LastRound last(s);
    char* const weight_stages = dynamic + TEAMS * STAGES * STAGE_FLOATS * 4;
    float* const staging = reinterpret_cast<float*>(weight_stages + WEIGHT_STAGES * WEIGHT_STAGE);
    if (threadIdx.x == 0) {
        shared.tiles = STRIDED ? (tiles - 1 - blockIdx.x) / gridDim.x + 1 : share.end - share.begin;
        if (SPLIT_LAST > 1) {
            shared.tiles = last.rounds + last.takes_part;
            shared.partial = last.partial();
            shared.begin = last.chunk_of(last.part, s), shared.end = last.chunk_of(last.part + 1, s);
        }
        shared.reciprocal = ~0u / (unsigned)(SHIFTED ? rows : pixels);
        for (int team = 0; team < TEAMS; ++team)
            for (int i = 0; i < STAGES; ++i) {
                barrier_init(shared.full_pixels[team] + i, ARRIVALS);
                barrier_init(shared.empty_pixels[team] + i, 128 / 32);
            }
        for (int i = 0; i < WEIGHT_STAGES; ++i) {
            barrier_init(shared.full_weights + i, 1);
            barrier_init(shared.empty_weights + i, WEIGHT_USERS);
        }
        fence_async_shared();
    }
    __syncthreads();
    const int role = __shfl_sync(~0u, threadIdx.x / 128, 0), thread = threadIdx.x % 128;
    const Pointwise of = {s, input, reinterpret_cast<float*>(dynamic), weight_stages, shared,
                          SPLIT_LAST > 1 ? last.tile_of(0, last.partial())
                          : STRIDED      ? (int)blockIdx.x
                                         : share.begin};
    if (role == TEAMS) {
        give_registers<COPIER_REGISTERS>();
        const Workspace workspace(memory, (int64)s.filter_tiles * s.chunks, SPLIT_LAST > 1 ? gridDim.x : 0);
        Copier copier = {of, workspace, thread / COPIERS, thread % COPIERS};
        if (copier.team < TEAMS) copier.run();
    } else {
        take_registers<MULTIPLIER_REGISTERS>();
        if (!OWN) wait_for_weights();  // before anything is written
        const Writer writer = {of, weight, bias, output, relu != 0, staging, role};
        Multiplier(of, role, thread).run(writer, memory);
    }
}
