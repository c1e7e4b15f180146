// The part of fp16x3_pointwise that writes sums, through shared memory, so that pixels lie side by side.
//
// A few filters at a time, into one of two buffers while the other one is read. Those who share a tile's pixels, a team or
// all teams of a joint tile, read and write together; the sums of a joint tile's teams are added on the way.
#pragma once

#include "fp16x3_pointwise_tiles.cuh"

constexpr int PASS = STAGED / 2, PASSES = (BF + PASS - 1) / PASS;  // filters of a buffer
constexpr int SHARERS = JOINT ? TEAMS : 1;                          // teams of a tile's pixels
constexpr int STAGING = STAGED * WRITE_PITCH;                       // floats of a team's buffers

// Whether a condition holds in any thread of a warpgroup.
__device__ __forceinline__ bool group_any(int group, bool condition) {
    int any;
    asm volatile("{.reg .pred p; setp.ne.s32 p, %1, 0; bar.red.popc.u32 %0, %2, %3, p;}"
                 : "=r"(any)
                 : "r"((int)condition), "r"(1 + group), "n"(GROUP)
                 : "memory");
    return any;
}

// What is read and written at once.
struct alignas(WIDTH * 4) Pixels {
    float of[WIDTH];
};

struct Writer {
    static constexpr int COLUMNS = TEAM_TILE / WIDTH, AT_ONCE = SHARERS * GROUP / COLUMNS;  // filters

    // What a thread writes of a tile: a place in each AT_ONCE-th filter of a pass, from its first one on.
    struct Part {
        float* const to;
        const int filter, left;  // the first, and how many there are from it on
        const int first, place;  // in a pass, and where it is in a buffer
        bool bad;                // whether a sum is not finite

        // Whether its filter of turn i is one of a pass.
        __device__ __forceinline__ bool is_there(int i, int filters) const {
            return (i + 1) * AT_ONCE <= filters || i * AT_ONCE + first < filters;
        }
    };

    const Sizes& s;
    const float *input, *weight, *bias;
    float* output;
    const bool relu;
    float* const staging;  // of all teams
    const int team;

    // Of a thread: the first of its two pixels, in its team's 64.
    __device__ static __forceinline__ int first_pixel_of(int thread) { return thread / 32 * 16 + thread % 32 / 4 * 2; }

    // `count`: of the tile, one more each time.
    __device__ __forceinline__ void write(float (&sum)[SUMS], const Tile& tile, int count) const {
        const int thread = own_thread() % GROUP, sharer = JOINT ? team * GROUP + thread : thread;
        const int lane_pixel = sharer % COLUMNS * WIDTH, lane_filter = sharer / COLUMNS;
        const int pixel = tile.stretch * TILE + first_pixel(team) + lane_pixel, filter_0 = tile.filter_tile * BF;
        const int64 place = s.locate(pixel, s.filters);
        Part part = {output + place + (filter_0 + lane_filter) * (int64)s.out_pixels,
                     filter_0 + lane_filter,
                     place < 0 ? 0 : min(BF, s.filters - filter_0) - lane_filter,
                     lane_filter,
                     lane_filter * WRITE_PITCH + lane_pixel,
                     !JOINT && group_any(team, find_bad(sum))};
        if (!JOINT) finish(sum, thread, filter_0, part.bad);
        // Of single elements there are so many that it pays to test for nothing where all of them exist.
        if (WIDTH == 1 && __all_sync(~0u, part.left == BF - lane_filter))
            write_passes<true>(sum, part, thread, count);
        else
            write_passes<false>(sum, part, thread, count);
        if (part.bad)
#pragma unroll 1
            for (int i = 0; i < part.left; ++i)
                if ((lane_filter + i) % PASS % AT_ONCE == lane_filter) mend(part.to + i * (int64)s.out_pixels, pixel, part.filter + i);
    }

    template <bool ALL>
    __device__ __forceinline__ void write_passes(const float (&sum)[SUMS], Part& part, int thread, int count) const {
        constexpr int MOST = (PASS + AT_ONCE - 1) / AT_ONCE, BATCH = WIDTH == 1 ? MOST : 1;
        float* const own = staging + team * STAGING;
        unsigned turn = count * PASSES;
#pragma unroll
        for (int pass = 0; pass < BF; pass += PASS, ++turn) {
            const int buffer = turn % 2 * PASS * WRITE_PITCH, filters = min(PASS, BF - pass);
            stage(own + buffer, sum, thread, pass);
            // This buffer is full, and the other one has been read.
            asm volatile("bar.sync %0, %1;" ::"r"(JOINT ? TEAMS + 1 : 1 + team), "n"(SHARERS * GROUP) : "memory");
            const float* const from = (JOINT ? staging : own) + buffer + part.place;
#pragma unroll
            for (int first = 0; first < MOST; first += BATCH) {
                Pixels v[BATCH];
#pragma unroll
                for (int i = 0; i < BATCH; ++i)
                    if (part.is_there(first + i, filters)) v[i] = add_teams(from + (first + i) * AT_ONCE * WRITE_PITCH);
#pragma unroll
                for (int i = 0; i < BATCH; ++i) {
                    if (!part.is_there(first + i, filters)) continue;
                    const int at = pass + (first + i) * AT_ONCE;
                    if (JOINT) part.bad |= finish(v[i], part.filter + at);
                    if (ALL || at < part.left) *reinterpret_cast<Pixels*>(part.to + at * (int64)s.out_pixels) = v[i];
                }
            }
        }
    }

    // Whether a sum is not finite.
    __device__ static __forceinline__ bool find_bad(const float (&sum)[SUMS]) {
        float zeros[4] = {};
#pragma unroll
        for (int i = 0; i < SUMS; ++i) zeros[i % 4] = fmaf(sum[i], 0.0f, zeros[i % 4]);
        return zeros[0] + zeros[1] + zeros[2] + zeros[3] != 0.0f;
    }
    // Bias and ReLU. What is not finite becomes a NaN, which stays one: it is to be found in the output.
    __device__ __forceinline__ void finish(float (&sum)[SUMS], int thread, int filter_0, bool bad) const {
        if (bad)
#pragma unroll
            for (int i = 0; i < SUMS; ++i) sum[i] = fmaf(sum[i], 0.0f, sum[i]);
        if (bias)
#pragma unroll
            for (int i = 0; i < SUMS; ++i)
                if (i % 4 < 2) {
                    const int filter = filter_0 + i / 4 * 8 + thread % 4 * 2 + i % 2;
                    const float b = filter < s.filters ? __ldg(bias + filter) : 0.0f;
                    sum[i] += b, sum[i + 2] += b;
                }
        if (relu)
#pragma unroll
            for (int i = 0; i < SUMS; ++i) sum[i] = sum[i] < 0.0f ? 0.0f : sum[i];
    }
    // The same of a joint tile's sums, which are only there once they are added; returns whether one is not finite.
    __device__ __forceinline__ bool finish(Pixels& v, int filter) const {
        float zeros = 0.0f;
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) {
            v.of[i] = fmaf(v.of[i], 0.0f, v.of[i]);
            zeros = fmaf(v.of[i], 0.0f, zeros);
        }
        if (bias) {
            const float b = filter < s.filters ? __ldg(bias + filter) : 0.0f;
#pragma unroll
            for (int i = 0; i < WIDTH; ++i) v.of[i] += b;
        }
        if (relu)
#pragma unroll
            for (int i = 0; i < WIDTH; ++i) v.of[i] = v.of[i] < 0.0f ? 0.0f : v.of[i];
        return zeros != 0.0f;
    }

    // A team's sums of some filters, into a buffer. Those of a thread: two filters of every eight, of two pixels.
    __device__ __forceinline__ void stage(float* buffer, const float (&sum)[SUMS], int thread, int pass) const {
        buffer += thread % 4 * 2 * WRITE_PITCH + first_pixel_of(thread);
#pragma unroll
        for (int i = 0; i < PASS / 2 && pass / 2 + i < SUMS; ++i)
            if (i % 4 < 2)
                *reinterpret_cast<float2*>(buffer + (i / 4 * 8 + i % 2) * WRITE_PITCH) =
                    make_float2(sum[pass / 2 + i], sum[pass / 2 + i + 2]);
    }

    // The sums of a place in all sharers' buffers, in order.
    __device__ static __forceinline__ Pixels add_teams(const float* from) {
        Pixels v = *reinterpret_cast<const Pixels*>(from);
#pragma unroll
        for (int team = 1; team < SHARERS; ++team) {
            const Pixels more = *reinterpret_cast<const Pixels*>(from + team * STAGING);
#pragma unroll
            for (int i = 0; i < WIDTH; ++i) v.of[i] += more.of[i];
        }
        return v;
    }

    // The plain sums instead of NaNs that the thread has written.
    __device__ __forceinline__ void mend(float* written, int pixel, int filter) const {
#pragma unroll 1
        for (int i = 0; i < WIDTH; ++i, ++pixel) {
            if (!isnan(written[i])) continue;
            const int in_image = pixel % s.out_pixels;
            float value =
                plain_sum(input, weight, s, 1, 1, pixel / s.out_pixels, filter, in_image / s.width, in_image % s.width);
            if (bias) value += bias[filter];
            written[i] = relu && value < 0.0f ? 0.0f : value;
        }
    }
};
