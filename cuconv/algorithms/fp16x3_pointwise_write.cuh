// The part of fp16x3_pointwise that writes sums, through shared memory, so that pixels lie side by side.
//
// A few filters at a time, into one of two buffers while the other one is read. Those who share a tile's pixels, a team or
// all teams of a joint tile, read and write together; the sums of a joint tile's teams are added on the way.
#pragma once

#include "fp16x3_pointwise_tiles.cuh"

constexpr int PASS = STAGED / 2, PASSES = (BF + PASS - 1) / PASS;  // filters of a buffer
constexpr int SHARERS = JOINT ? TEAMS : 1;                          // teams of a tile's pixels
constexpr int STAGING = STAGED * WRITE_PITCH;                       // floats of a team's buffers

// What is read and written at once.
struct alignas(WIDTH * 4) Pixels {
    float of[WIDTH];

    // With bias and ReLU. What is not finite becomes a NaN and stays one. Returns `zeros`, or a NaN where there is any.
    __device__ __forceinline__ float finish(float zeros, float bias, bool relu) {
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) {
            of[i] = fmaf(of[i], 0.0f, of[i]);
            zeros = fmaf(of[i], 0.0f, zeros);
            of[i] += bias;
            if (relu && of[i] < 0.0f) of[i] = 0.0f;
        }
        return zeros;
    }
};

struct Writer {
    const Sizes& s;
    const float *input, *weight, *bias;
    float* output;
    const bool relu;
    float* const staging;  // of all teams
    const int team;

    // Of a thread: the first of its two pixels, in its team's 64.
    __device__ static __forceinline__ int first_pixel_of(int thread) { return thread / 32 * 16 + thread % 32 / 4 * 2; }

    // `count`: of the tile, one more each time.
    __device__ __forceinline__ void write(const float (&sum)[SUMS], const Tile& tile, int count) const {
        constexpr int COLUMNS = TEAM_TILE / WIDTH, AT_ONCE = SHARERS * GROUP / COLUMNS;  // filters
        const int thread = own_thread() % GROUP, sharer = JOINT ? team * GROUP + thread : thread;
        const int lane_pixel = sharer % COLUMNS * WIDTH, lane_filter = sharer / COLUMNS;
        const int pixel = tile.stretch * TILE + first_pixel(team) + lane_pixel, filter_0 = tile.filter_tile * BF;
        const int64 place = s.locate(pixel, s.filters);
        const int left = place < 0 ? 0 : s.filters - filter_0;
        float* const to = output + place + (int64)filter_0 * s.out_pixels;
        float* const own = staging + team * STAGING;
        float zeros = 0.0f;
        unsigned turn = count * PASSES;
#pragma unroll
        for (int pass = 0; pass < BF; pass += PASS, ++turn) {
            const int buffer = turn % 2 * PASS * WRITE_PITCH;
            stage(own + buffer, sum, thread, pass);
            // This buffer is full, and the other one has been read.
            asm volatile("bar.sync %0, %1;" ::"r"(JOINT ? TEAMS + 1 : 1 + team), "n"(SHARERS * GROUP) : "memory");
            const float* const from = (JOINT ? staging : own) + buffer + lane_pixel;
#pragma unroll
            for (int i = 0; i < min(PASS, BF - pass); i += AT_ONCE) {
                const int in_pass = i + lane_filter, filter = pass + in_pass;
                const bool is_there = PASS % AT_ONCE == 0 && BF % AT_ONCE == 0 || in_pass < min(PASS, BF - pass);
                const bool wanted = is_there && filter < left;
                Pixels v = {};
                if (is_there) v = add_teams(from + in_pass * WRITE_PITCH);
                zeros = v.finish(zeros, bias && wanted ? __ldg(bias + filter_0 + filter) : 0.0f, relu);
                if (wanted) *reinterpret_cast<Pixels*>(to + filter * (int64)s.out_pixels) = v;
            }
        }
        if (zeros != 0.0f)
#pragma unroll 1
            for (int filter = 0; filter < min(BF, left); ++filter)
                if (filter % PASS % AT_ONCE == lane_filter) mend(to + filter * (int64)s.out_pixels, pixel, filter_0 + filter);
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
