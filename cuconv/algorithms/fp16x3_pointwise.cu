// 1x1 convolution on Hopper's FP16 tensor cores with the accuracy of FP32, from NCHW as it lies.
//
// out[m, p] = sum over c of weight[m, c] * input[c, p], p a pixel of any image. A is a tile of pixels from registers, B the
// filters from shared memory. Each pixel and each filter of a chunk of channels is scaled by a power of two and split into
// two FP16 numbers, x = high + low; low*high + high*low + high*high is accumulated for a chunk and then added to FP32
// registers.
//
// Warp specialisation: one warpgroup copies pixels into shared memory as they lie (cp.async, so that no register waits
// for them), two take them from there as fragments of A, scale, split and multiply. Weights come split by a kernel ahead
// (fp16x3_split.cuh), by bulk copies.
//
// FILTERS   of a tile, a multiple of 16
// CHANNELS  of a chunk, a multiple of 16
// TEAMS     warpgroups that multiply, 64 pixels each
// STAGES    chunks of pixels in shared memory
// WEIGHT_STAGES  chunks of weights there
// RESIDENT  1 where these are all chunks of a tile's filters: they stay for all the tiles of a block with these filters
// VECTOR    1 where four pixels of a plane may be copied and written at once
//
// Every argument is eight bytes, a pointer or a long long.

#define KH 1
#define KW 1
#include "fp16x3_split.cuh"

#include "fp16x3_pointwise_wgmma.cuh"

constexpr int ALL_THREADS = (TEAMS + 1) * 128;
constexpr int COPIER_REGISTERS = 40, MULTIPLIER_REGISTERS = TEAMS == 2 ? 232 : TEAMS == 3 ? 152 : 104;
constexpr int TEAM_TILE = 64, TILE = TEAMS * TEAM_TILE;  // pixels
constexpr int PITCH = 72;   // floats of a channel in shared memory: fragments are read without bank conflicts
constexpr int WIDTH = VECTOR ? 4 : 1;
constexpr int STAGE_FLOATS = CHANNELS * PITCH;  // of a warpgroup
constexpr int WEIGHT_STAGE = ROW_BYTES + CHANNELS * 4 + BF * 4;  // with the channels' scales and the filters' exponents
constexpr int PASS = BF < 32 ? BF : 32, WRITE_PITCH = 72;  // filters written at a time, floats of one's 64 pixels
constexpr int SUMS = BF / 2;

// Sizes, by the names that plain_sum wants, and what there is of tiles.
struct Sizes {
    const int channels, height, width, filters, pad_h, pad_w, out_w, out_pixels;
    unsigned images;
    int chunks, stretches, filter_tiles;  // a stretch: the pixels of a tile
    // Offset in the elements of an array with `planes` a image; -1 beyond the last pixel.
    __device__ __forceinline__ int64 locate(unsigned pixel, int planes) const {
        const unsigned image = pixel / (unsigned)out_pixels;
        return image < images ? (int64)image * planes * out_pixels + (pixel - image * out_pixels) : -1;
    }
};

struct SharedState {
    uint64 full_pixels[TEAMS][STAGES], empty_pixels[TEAMS][STAGES];
    uint64 full_weights[WEIGHT_STAGES], empty_weights[WEIGHT_STAGES];
};

// A tile, and where its weights are in shared memory. Tiles of the same filters follow each other where weights stay,
// tiles of the same pixels where they do not.
struct Tile {
    int stretch, filter_tile;
    int loads = 0;  // of other filters' weights, so far

    __device__ __forceinline__ Tile(int tile, const Sizes& s)
        : stretch(RESIDENT ? tile % s.stretches : tile / s.filter_tiles),
          filter_tile(RESIDENT ? tile / s.stretches : tile % s.filter_tiles) {}
    // Whether the next one has other weights.
    __device__ __forceinline__ bool is_last(const Sizes& s) const { return !RESIDENT || stretch + 1 == s.stretches; }
    __device__ __forceinline__ void advance(const Sizes& s) {
        if (++(RESIDENT ? stretch : filter_tile) < (RESIDENT ? s.stretches : s.filter_tiles)) return;
        (RESIDENT ? stretch : filter_tile) = 0, ++(RESIDENT ? filter_tile : stretch), ++loads;
    }
};

// Place of a chunk's weights in shared memory and how often it was filled before; `unit` counts a block's chunks.
__device__ __forceinline__ int weight_slot(int unit, int chunk) { return RESIDENT ? chunk : unit % WEIGHT_STAGES; }
__device__ __forceinline__ int weight_round(int unit, const Tile& tile) { return RESIDENT ? tile.loads : unit / WEIGHT_STAGES; }

struct Pointwise {
    const Sizes& s;
    float* const pixels;   // stages
    char* const weights;   // stages
    SharedState& shared;
    const int first, last;  // tiles

    __device__ __forceinline__ float* stages(int team) const { return pixels + team * STAGES * STAGE_FLOATS; }
};

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

// A pixel's scale: a power of two that stays while it brings a chunk's maximum to 2^4 to 2^15.
struct PixelScale {
    int exponent = EMPTY, first = EMPTY;  // in use; of the tile's first chunk that is not zero, which the sums keep

    __device__ __forceinline__ void suit(float most) {
        const int found = (int)(__float_as_uint(most) >> 23) - 127;
        if (most == 0.0f || found + exponent >= 4 && found + exponent <= 14) return;
        exponent = clamp(10 - found, -113, 126);
        if (first == EMPTY) first = exponent;
    }
};

constexpr int COPIERS = TEAMS == 2 ? 64 : 32;                        // threads that copy the pixels of a team
constexpr int COLUMNS = TEAM_TILE / WIDTH;                           // copies for a channel
constexpr int AT_ONCE = COLUMNS < COPIERS ? COPIERS / COLUMNS : 1;   // channels
constexpr int PARTS = COLUMNS > COPIERS ? COLUMNS / COPIERS : 1;     // of a channel

// A thread of the warpgroup that copies: of each team the pixels, the first one weights as well.
struct Copier {
    const Pointwise& of;
    const Workspace& from;
    const float* const input;
    const int team, thread;  // of the team's

    __device__ __forceinline__ void copy_weights(const Tile& tile, int chunk, int unit) const {
        const int slot = weight_slot(unit, chunk), before = weight_round(unit, tile);
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
        if (!VECTOR) wait_for_weights();  // single elements are copied through the L1 cache, which may be behind
        Tile tile(of.first, s);
        for (int count = of.first, unit = 0; count < of.last; ++count, tile.advance(s)) {
            const bool other_weights = team == 0 && thread == 0 && (!RESIDENT || count == of.first || tile.stretch == 0);
            const char* source[PARTS];
            int left[PARTS];
#pragma unroll
            for (int part = 0; part < PARTS; ++part) {
                const int pixel = tile.stretch * TILE + team * TEAM_TILE + part * COPIERS * WIDTH + lane_pixel;
                const int64 place = s.locate(pixel, s.channels);
                source[part] = reinterpret_cast<const char*>(input) + (place < 0 ? 0 : place * 4 + lane_channel * (int64)plane);
                left[part] = place < 0 ? 0 : s.channels - lane_channel;
            }
            for (int chunk = 0; chunk < s.chunks; ++chunk, ++unit) {
                const int slot = unit % STAGES, round = unit / STAGES;
                if (other_weights) copy_weights(tile, chunk, unit);
                if (round > 0) barrier_wait(of.shared.empty_pixels[team] + slot, round - 1 & 1);
#pragma unroll
                for (int part = 0; part < PARTS; ++part) {
                    copy_chunk(pixels + (slot * STAGE_FLOATS + part * COPIERS * WIDTH) * 4, source[part], left[part], plane);
                    source[part] += (int64)CHANNELS * plane;
                    left[part] -= CHANNELS;
                }
                asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(
                                 shared_address(of.shared.full_pixels[team] + slot))
                             : "memory");
            }
        }
        asm volatile("cp.async.wait_all;" ::: "memory");
    }
};

// Fragments of A. Row lane / 4 is pixel 2 * (lane / 4), the row eight further on the pixel beside it; of each depth of
// 16 a thread has channels 2 * (lane % 4) + {0, 1, 8, 9}.
struct Fragments {
    float2 values[STEPS][4];  // of both pixels

    __device__ __forceinline__ void load(const float* pixels, const float* scales, int lane) {
#pragma unroll
        for (int step = 0; step < STEPS; ++step)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                values[step][i] = *reinterpret_cast<const float2*>(pixels + channel(step, i) * PITCH);
        bool scaled = false;
#pragma unroll
        for (int c = 0; c < CHANNELS; c += 32) scaled |= c + lane < CHANNELS && scales[c + lane] != 1.0f;
        if (__any_sync(~0u, scaled))
#pragma unroll
            for (int step = 0; step < STEPS; ++step)
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const float by = scales[channel(step, i) + lane % 4 * 2];
                    values[step][i].x *= by, values[step][i].y *= by;
                }
    }
    __device__ static __forceinline__ constexpr int channel(int step, int i) { return step * 16 + i / 2 * 8 + i % 2; }

    // The largest magnitude of each pixel's values; a NaN does not count: the output shows it.
    __device__ __forceinline__ float2 largest() const {
        float2 most = {0.0f, 0.0f};
#pragma unroll
        for (int step = 0; step < STEPS; ++step)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                most.x = fmaxf(most.x, fabsf(values[step][i].x));
                most.y = fmaxf(most.y, fabsf(values[step][i].y));
            }
#pragma unroll
        for (int by = 1; by < 4; by *= 2) {
            most.x = fmaxf(most.x, __shfl_xor_sync(~0u, most.x, by));
            most.y = fmaxf(most.y, __shfl_xor_sync(~0u, most.y, by));
        }
        return most;
    }
    __device__ __forceinline__ void split_step(int step, float x, float y, unsigned (&high)[4], unsigned (&low)[4]) const {
#pragma unroll
        for (int half = 0; half < 2; ++half) {  // registers of A: rows change fastest
            const float2 a = values[step][half * 2], b = values[step][half * 2 + 1];
            split(a.x * x, b.x * x, high[half * 2], low[half * 2]);
            split(a.y * y, b.y * y, high[half * 2 + 1], low[half * 2 + 1]);
        }
    }
};

// Whether a condition holds in any thread of a warpgroup.
__device__ __forceinline__ bool group_any(int group, bool condition) {
    int any;
    asm volatile("{.reg .pred p; setp.ne.s32 p, %1, 0; bar.red.popc.u32 %0, %2, %3, p;}"
                 : "=r"(any)
                 : "r"((int)condition), "r"(1 + group), "n"(GROUP)
                 : "memory");
    return any;
}

// chain = the products of a chunk, small ones first: the tensor cores begin with the first depth that is split.
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
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        wgmma(chain, low[step], b_high + step * 2 * BF, step > 0);
        wgmma(chain, high[step], b_low + step * 2 * BF, 1);
    }
#pragma unroll
    for (int step = 0; step < STEPS; ++step) wgmma(chain, high[step], b_high + step * 2 * BF, 1);
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

struct Writer {
    const Sizes& s;
    const float *input, *weight, *bias;
    float* output;
    const bool relu;
    float* const staging;  // of the warpgroup
    const int group, thread;

    // Of a thread: the first of its two pixels, in its warpgroup's 64, and the filter of a sum, in its tile.
    __device__ __forceinline__ int first_pixel() const { return thread / 32 * 16 + thread % 32 / 4 * 2; }
    __device__ __forceinline__ int filter_of(int i) const { return i / 4 * 8 + thread % 4 * 2 + i % 2; }

    __device__ __forceinline__ void write(float (&sum)[SUMS], const Tile& tile) const {
        const int tile_pixel = tile.stretch * TILE + group * TEAM_TILE, filter_0 = tile.filter_tile * BF;
        float zeros[4] = {};
#pragma unroll
        for (int i = 0; i < SUMS; ++i) zeros[i % 4] = fmaf(sum[i], 0.0f, zeros[i % 4]);
        const bool plain = group_any(group, zeros[0] + zeros[1] + zeros[2] + zeros[3] != 0.0f);
        if (bias)
#pragma unroll
            for (int i = 0; i < SUMS; ++i)
                if (i % 4 < 2) {
                    const int filter = filter_0 + filter_of(i);
                    const float b = filter < s.filters ? __ldg(bias + filter) : 0.0f;
                    sum[i] += b, sum[i + 2] += b;
                }
        if (relu)
#pragma unroll
            for (int i = 0; i < SUMS; ++i) sum[i] = sum[i] < 0.0f ? 0.0f : sum[i];  // a NaN stays
        write_sums(sum, tile_pixel, filter_0);
        if (plain) {
            group_barrier(group);
            write_plain(sum, tile_pixel, filter_0);
        }
    }

    // Through shared memory, so that a warp writes pixels side by side.
    __device__ __forceinline__ void write_sums(const float (&sum)[SUMS], int tile_pixel, int filter_0) const {
        const int lane_pixel = thread % (64 / WIDTH) * WIDTH, lane_filter = thread / (64 / WIDTH);
        const int64 place = s.locate(tile_pixel + lane_pixel, s.filters);
        const int filters = place < 0 ? 0 : s.filters - filter_0 - lane_filter;
        float* to = output + place + (int64)(filter_0 + lane_filter) * s.out_pixels;
        float* const mine = staging + thread % 4 * 2 * WRITE_PITCH + first_pixel();
        const float* const from = staging + lane_filter * WRITE_PITCH + lane_pixel;
#pragma unroll
        for (int pass = 0; pass < BF; pass += PASS) {
            group_barrier(group);
#pragma unroll
            for (int i = 0; i < PASS / 2 && pass / 2 + i < SUMS; ++i)
                if (i % 4 < 2)
                    *reinterpret_cast<float2*>(mine + (i / 4 * 8 + i % 2) * WRITE_PITCH) =
                        make_float2(sum[pass / 2 + i], sum[pass / 2 + i + 2]);
            group_barrier(group);
#pragma unroll
            for (int i = 0; i < PASS && pass + i < BF; i += 2 * WIDTH, to += 2 * WIDTH * (int64)s.out_pixels) {
#if VECTOR
                const float4 v = *reinterpret_cast<const float4*>(from + i * WRITE_PITCH);
                if (pass + i < filters) *reinterpret_cast<float4*>(to) = v;
#else
                const float v = from[i * WRITE_PITCH];
                if (pass + i < filters) *to = v;
#endif
            }
        }
    }
    // The plain sum where a value is not finite.
    __device__ __forceinline__ void write_plain(const float (&sum)[SUMS], int tile_pixel, int filter_0) const {
        unsigned wanted[(SUMS + 31) / 32] = {};
#pragma unroll
        for (int i = 0; i < SUMS; ++i)
            if (!isfinite(sum[i])) wanted[i / 32] |= 1u << i % 32;
#pragma unroll
        for (int j = 0; j < (SUMS + 31) / 32; ++j)
#pragma unroll 1
            for (; wanted[j]; wanted[j] &= wanted[j] - 1) {
                const int i = j * 32 + __ffs(wanted[j]) - 1, filter = filter_0 + filter_of(i);
                const int pixel = tile_pixel + first_pixel() + i % 4 / 2;
                const int64 place = s.locate(pixel, s.filters);
                if (place < 0 || filter >= s.filters) continue;
                const int in_image = pixel % s.out_pixels;
                float value = plain_sum(input, weight, s, 1, 1, pixel / s.out_pixels, filter, in_image / s.width,
                                        in_image % s.width);
                if (bias) value += bias[filter];
                output[place + (int64)filter * s.out_pixels] = relu && value < 0.0f ? 0.0f : value;
            }
    }
};

// One of the warpgroups that multiply.
struct Multiplier {
    const Pointwise& of;
    const int team, lane, first_pixel;
    Fragments next;  // of the chunk to come
    float2 largest;  // of its pixels
    PixelScale scales[2];

    __device__ __forceinline__ const char* weight_stage(int slot) const { return of.weights + slot * WEIGHT_STAGE; }

    // Fetches a chunk's pixels from shared memory, and leaves their place.
    __device__ __forceinline__ void fetch(int unit, int chunk, const Tile& tile) {
        const int slot = unit % STAGES, weights = weight_slot(unit, chunk);
        barrier_wait(of.shared.full_weights + weights, weight_round(unit, tile) & 1);
        barrier_wait(of.shared.full_pixels[team] + slot, unit / STAGES & 1);
        next.load(of.stages(team) + slot * STAGE_FLOATS + lane % 4 * 2 * PITCH + first_pixel,
                  reinterpret_cast<const float*>(weight_stage(weights) + ROW_BYTES), lane);
        largest = next.largest();
        leave(of.shared.empty_pixels[team] + slot, __float_as_int(largest.x) | __float_as_int(largest.y));
    }

    // Arrives for a warp when what it loads has come: an arrival alone overtakes loads from shared memory under way, so
    // it is made to depend on `loaded`, the bits of positive numbers that depend on every load.
    __device__ __forceinline__ void leave(uint64* barrier, int loaded) const {
        asm("" : "+r"(loaded));  // the compiler knows better than to test for what cannot be
        __syncwarp();
        if (lane == 0 || loaded < 0) barrier_arrive(barrier);
    }

    // sum += chain, in the scale of the tile's first chunk. Returns bits for leave.
    __device__ __forceinline__ int add(float (&sum)[SUMS], float (&chain)[SUMS], const int* exponents) const {
        int loaded = 0;
        const int by[2] = {scales[0].first - scales[0].exponent, scales[1].first - scales[1].exponent};
        if (__any_sync(~0u, by[0] | by[1]))  // rare
#pragma unroll
            for (int i = 0; i < SUMS; ++i)
                chain[i] = chain[i] * power_of_two(by[i % 4 / 2] / 2) * power_of_two(by[i % 4 / 2] - by[i % 4 / 2] / 2);
#pragma unroll
        for (int i = 0; i < SUMS; i += 4) {
            const int2 exponent = *reinterpret_cast<const int2*>(exponents + i * 2);
            const float x = power_of_two(exponent.x), y = power_of_two(exponent.y);  // 1 of a filter of zeros
            loaded |= __float_as_int(x);
            sum[i] = fmaf(chain[i], x, sum[i]);
            sum[i + 1] = fmaf(chain[i + 1], y, sum[i + 1]);
            sum[i + 2] = fmaf(chain[i + 2], x, sum[i + 2]);
            sum[i + 3] = fmaf(chain[i + 3], y, sum[i + 3]);
        }
        return loaded;
    }

    __device__ __forceinline__ void run(const Writer& writer) {
        const Sizes& s = of.s;
        Tile tile(of.first, s);
        if (of.first < of.last) fetch(0, 0, tile);
        for (int count = of.first, unit = 0; count < of.last; ++count, tile.advance(s)) {
            float sum[SUMS];
#pragma unroll
            for (int i = 0; i < SUMS; ++i) sum[i] = 0.0f;
            scales[0] = scales[1] = PixelScale();
            const bool more = count + 1 < of.last;
#pragma unroll 1
            for (int chunk = 0; chunk < s.chunks; ++chunk, ++unit) {
                const int slot = weight_slot(unit, chunk);
                float chain[SUMS];
                unsigned high[STEPS][4], low[STEPS][4];
                scales[0].suit(largest.x), scales[1].suit(largest.y);
                start_products(chain, next, scales, high, low, shared_address(weight_stage(slot)));
                const bool last = chunk + 1 == s.chunks;
                // Not from a tile with other weights, which wait until this one's have been used.
                if (!last || more && !(RESIDENT && tile.is_last(s))) fetch(unit + 1, last ? 0 : chunk + 1, tile);
                asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
                for (int i = 0; i < SUMS; ++i) asm volatile("" : "+f"(chain[i])::"memory");
                const int loaded = add(
                    sum, chain, reinterpret_cast<const int*>(weight_stage(slot) + ROW_BYTES + CHANNELS * 4) + lane % 4 * 2);
                if (tile.is_last(s)) leave(of.shared.empty_weights + slot, loaded);
            }
#pragma unroll
            for (int i = 0; i < SUMS; ++i) sum[i] *= power_of_two(-scales[i % 4 / 2].first);
            writer.write(sum, tile);
            if (RESIDENT && more && tile.is_last(s)) {
                Tile following = tile;
                following.advance(s);
                fetch(unit, 0, following);
            }
        }
    }
};

extern "C" __global__ void __launch_bounds__(ALL_THREADS, 1)
    fp16x3_pointwise(const float* __restrict__ input, const float* __restrict__ weight, const float* __restrict__ bias,
                     float* __restrict__ output, void* __restrict__ memory, int64 images, int64 channels, int64 height,
                     int64 width, int64 filters, int64 relu) {
    asm volatile("griddepcontrol.launch_dependents;");
    extern __shared__ __align__(128) char dynamic[];  // stages of pixels, stages of weights, staging of the output
    __shared__ SharedState shared;
    const int pixels = height * width;
    const Sizes s = {(int)channels, (int)height, (int)width, (int)filters, 0, 0, (int)width, pixels, (unsigned)images,
                     (int)(channels + CHANNELS - 1) / CHANNELS, (int)((images * pixels + TILE - 1) / TILE),
                     (int)(filters + BF - 1) / BF};
    const int tiles = s.stretches * s.filter_tiles;
    const Share share(tiles, blockIdx.x, gridDim.x);
    char* const weight_stages = dynamic + TEAMS * STAGES * STAGE_FLOATS * 4;
    float* const staging = reinterpret_cast<float*>(weight_stages + WEIGHT_STAGES * WEIGHT_STAGE);
    if (threadIdx.x == 0) {
        for (int team = 0; team < TEAMS; ++team)
            for (int i = 0; i < STAGES; ++i) {
                barrier_init(shared.full_pixels[team] + i, COPIERS);
                barrier_init(shared.empty_pixels[team] + i, 128 / 32);
            }
        for (int i = 0; i < WEIGHT_STAGES; ++i) {
            barrier_init(shared.full_weights + i, 1);
            barrier_init(shared.empty_weights + i, TEAMS * 128 / 32);
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();
    const int role = __shfl_sync(~0u, threadIdx.x / 128, 0), thread = threadIdx.x % 128;
    const Pointwise of = {s, reinterpret_cast<float*>(dynamic), weight_stages, shared, share.begin, share.end};
    if (role == TEAMS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COPIER_REGISTERS));
        const Workspace workspace(memory, (int64)s.filter_tiles * s.chunks, 0);
        Copier copier = {of, workspace, input, thread / COPIERS, thread % COPIERS};
        if (copier.team < TEAMS) copier.run();
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(MULTIPLIER_REGISTERS));
        wait_for_weights();  // before anything is written
        const Writer writer = {s, input, weight, bias, output, relu != 0, staging + role * PASS * WRITE_PITCH, role, thread};
        Multiplier multiplier = {of, role, thread % 32, writer.first_pixel()};
        multiplier.run(writer);
    }
}
