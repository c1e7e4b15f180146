// The part of fp16x3_pointwise that writes sums, through shared memory, so that pixels lie side by side.
//
// A few filters at a time, into one of two buffers while the other one is read. Those who share a tile's pixels, a team or
// all teams of a joint tile, read and write together; the sums of a joint tile's teams are added on the way.
#pragma once

#include "fp16x3_pointwise_tiles.cuh"

constexpr int PASS = STAGED / 2, PASSES = (BF + PASS - 1) / PASS;  // filters of a buffer
constexpr int SHARERS = JOINT ? TEAMS : 1;                          // teams of a tile's pixels
constexpr int STAGING = STAGED * WRITE_PITCH;                       // floats of a team's buffers

// The larger of two, or NaN.
__device__ __forceinline__ float max_or_nan(float a, float b) {
    float most;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(most) : "f"(a), "f"(b));
    return most;
}

// What is read and written at once.
struct alignas(WIDTH * 4) Pixels {
    float of[WIDTH];

    // What is not finite becomes a NaN and stays one. Returns `zeros`, or a NaN where there is any.
    __device__ __forceinline__ float mark(float zeros) {
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) {
            of[i] = fmaf(of[i], 0.0f, of[i]);
            zeros = fmaf(of[i], 0.0f, zeros);
        }
        return zeros;
    }
    __device__ __forceinline__ void add(float bias) {
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) of[i] += bias;
    }
    __device__ __forceinline__ void raise(float least) {
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) of[i] = max_or_nan(of[i], least);
    }
};

struct Writer {
    static constexpr int COLUMNS = TEAM_TILE / WIDTH, AT_ONCE = SHARERS * GROUP / COLUMNS;  // filters

    // What a thread writes of a tile: a place in each AT_ONCE-th filter of a pass, from its first one on.
    struct Part {
        float* const to;
        const float* const bias;  // if any
        const int left;           // filters that exist
        const int first, place;   // filter, and where it is in a buffer

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
    __device__ __forceinline__ void write(const float (&sum)[SUMS], const Tile& tile, int count) const {
        const int thread = own_thread() % GROUP, sharer = JOINT ? team * GROUP + thread : thread;
        const int lane_pixel = sharer % COLUMNS * WIDTH, lane_filter = sharer / COLUMNS;
        const int pixel = tile.stretch * TILE + first_pixel(team) + lane_pixel, filter_0 = tile.filter_tile * BF;
        const int64 place = s.locate(pixel, s.filters);
        const int filters = place < 0 ? 0 : min(BF, s.filters - filter_0);
        float* const to = output + place + filter_0 * (int64)s.out_pixels;
        const Part part = {to + lane_filter * (int64)s.out_pixels, bias ? bias + filter_0 + lane_filter : nullptr,
                           filters - lane_filter, lane_filter, lane_filter * WRITE_PITCH + lane_pixel};
        const bool all = __all_sync(~0u, filters == BF && bias == nullptr);
        const float zeros = all ? write_passes<true>(sum, part, thread, count) : write_passes<false>(sum, part, thread, count);
        if (zeros != 0.0f)
#pragma unroll 1
            for (int filter = 0; filter < filters; ++filter)
                if (filter % PASS % AT_ONCE == lane_filter) mend(to + filter * (int64)s.out_pixels, pixel, filter_0 + filter);
    }

    // ALL: there is nothing to test, and no bias. Returns 0, or NaN where anything is not finite.
    template <bool ALL>
    __device__ __forceinline__ float write_passes(const float (&sum)[SUMS], const Part& part, int thread, int count) const {
        const unsigned plane = s.out_pixels * 4u;  // bytes
        const float least = relu ? 0.0f : -__int_as_float(0x7f800000);
        float* const own = staging + team * STAGING;
        float zeros = 0.0f;
        unsigned turn = count * PASSES;
#pragma unroll
        for (int pass = 0; pass < BF; pass += PASS, ++turn) {
            constexpr int MOST = (PASS + AT_ONCE - 1) / AT_ONCE;
            const int buffer = turn % 2 * PASS * WRITE_PITCH, filters = min(PASS, BF - pass);
            stage(own + buffer, sum, thread, pass);
            float added[MOST];
#pragma unroll
            for (int i = 0; !ALL && i < MOST; ++i) {
                const int filter = pass + i * AT_ONCE;
                const bool wanted = part.bias && part.is_there(i, filters) && filter < part.left;
                added[i] = wanted ? __ldg(part.bias + filter) : 0.0f;
            }
            // This buffer is full, and the other one has been read.
            asm volatile("bar.sync %0, %1;" ::"r"(JOINT ? TEAMS + 1 : 1 + team), "n"(SHARERS * GROUP) : "memory");
            const float* const from = (JOINT ? staging : own) + buffer + part.place;
            Pixels v[MOST];
#pragma unroll
            for (int i = 0; i < MOST; ++i)
                if (part.is_there(i, filters)) v[i] = add_teams(from + i * AT_ONCE * WRITE_PITCH);
#pragma unroll
            for (int i = 0; i < MOST; ++i) {
                if (!part.is_there(i, filters)) continue;
                zeros = v[i].mark(zeros);
                if (!ALL) v[i].add(added[i]);
                v[i].raise(least);
                const unsigned filter = pass + i * AT_ONCE;
                char* const target = reinterpret_cast<char*>(part.to) + filter * (uint64)plane;
                if (ALL || (int)filter < part.left) *reinterpret_cast<Pixels*>(target) = v[i];
            }
        }
        return zeros;
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
