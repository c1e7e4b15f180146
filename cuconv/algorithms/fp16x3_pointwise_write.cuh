// The part of fp16x3_pointwise that writes sums, through shared memory, so that pixels lie side by side.
//
// A few filters at a time, into the next of several buffers. Where four pixels may be written at once a buffer is left by
// bulk copies, one a filter and image, while its team goes on; else its threads write element by element. The sums of a
// joint tile's teams are added on the way.
#pragma once

#include "fp16x3_pointwise_tiles.cuh"

constexpr int BUFFERS = VECTOR && !JOINT ? 4 : 2, PASS = STAGED / BUFFERS;  // filters of a buffer, a multiple of 8

// Whether a condition holds in any thread of a warpgroup.
__device__ __forceinline__ bool group_any(int group, bool condition) {
    int any;
    asm volatile("{.reg .pred p; setp.ne.s32 p, %1, 0; bar.red.popc.u32 %0, %2, %3, p;}"
                 : "=r"(any)
                 : "r"((int)condition), "r"(1 + group), "n"(GROUP)
                 : "memory");
    return any;
}

// A bulk copy out of shared memory, of the thread's current group, where it is wanted.
__device__ __forceinline__ void write_bulk(uint64 target, unsigned source, int bytes, bool wanted) {
    asm volatile("{.reg .pred p; setp.ne.s32 p, %3, 0;\n"
                 "@p cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;}" ::"l"(target),
                 "r"(source), "r"(bytes), "r"((int)wanted)
                 : "memory");
}
__device__ __forceinline__ void close_group() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Until all but the thread's last LEFT groups have read shared memory.
template <int LEFT>
__device__ __forceinline__ void wait_for_reads() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(LEFT) : "memory");
}

// What is read and written at once.
struct alignas(WIDTH * 4) Pixels {
    float of[WIDTH];

    // With bias and ReLU; a NaN stays. Returns `zeros`, or something else where a sum is not finite.
    __device__ __forceinline__ float finish(float zeros, float bias, bool relu) {
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) {
            zeros = fmaf(of[i], 0.0f, zeros);
            of[i] += bias;
            if (relu && of[i] < 0.0f) of[i] = 0.0f;
        }
        return zeros;
    }
};

struct Place {
    unsigned image, pixel;  // of the batch, of the image

    __device__ __forceinline__ Place(unsigned image, unsigned pixel) : image(image), pixel(pixel) {}
    __device__ __forceinline__ Place(const Sizes& s, unsigned of_batch)
        : image(of_batch / (unsigned)s.out_pixels), pixel(of_batch - image * s.out_pixels) {}
};

struct Writer {
    const Sizes& s;
    const float *input, *weight, *bias;
    float* output;
    const bool relu;
    float* const all_staging;  // of the teams: their buffers
    const int group;

    // Of the warpgroup. Read anew each time, so that nothing that follows from it takes a register during the products.
    __device__ static __forceinline__ int own_thread() {
        int thread;
        asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
        return thread % 128;
    }
    // Of a thread: the first of its two pixels, in its warpgroup's 64, and the filter of a sum, in its tile.
    __device__ static __forceinline__ int first_pixel_of(int thread) { return thread / 32 * 16 + thread % 32 / 4 * 2; }
    __device__ static __forceinline__ int filter_of(int thread, int i) { return i / 4 * 8 + thread % 4 * 2 + i % 2; }

    // `count`: of the tile, one more each time.
    __device__ __forceinline__ void write(float (&sum)[SUMS], const Tile& tile, int count) const {
        const int thread = own_thread(), tile_pixel = tile.stretch * TILE + first_pixel(group);
        const int filter_0 = tile.filter_tile * BF, turn = count * ((BF + PASS - 1) / PASS);
#if JOINT
        write_joint(sum, thread, tile_pixel, filter_0, turn);
#else
        const bool plain = group_any(group, find_bad(sum));
        finish_sums(sum, thread, filter_0);
        write_sums(sum, thread, tile_pixel, filter_0, turn);
        if (plain) {
            finish();
            group_barrier(group);
            write_plain(sum, thread, tile_pixel, filter_0);
        }
#endif
    }

    // Whether a sum is not finite.
    __device__ static __forceinline__ bool find_bad(const float (&sum)[SUMS]) {
        float zeros[4] = {};
#pragma unroll
        for (int i = 0; i < SUMS; ++i) zeros[i % 4] = fmaf(sum[i], 0.0f, zeros[i % 4]);
        return zeros[0] + zeros[1] + zeros[2] + zeros[3] != 0.0f;
    }

    __device__ __forceinline__ void finish_sums(float (&sum)[SUMS], int thread, int filter_0) const {
        if (bias)
#pragma unroll
            for (int i = 0; i < SUMS; ++i)
                if (i % 4 < 2) {
                    const int filter = filter_0 + filter_of(thread, i);
                    const float b = filter < s.filters ? __ldg(bias + filter) : 0.0f;
                    sum[i] += b, sum[i + 2] += b;
                }
        if (relu)
#pragma unroll
            for (int i = 0; i < SUMS; ++i) sum[i] = sum[i] < 0.0f ? 0.0f : sum[i];  // a NaN stays
    }

    // A team's sums of some filters, into a buffer.
    __device__ __forceinline__ void stage(float* buffer, const float (&sum)[SUMS], int thread, int pass) const {
        buffer += thread % 4 * 2 * WRITE_PITCH + first_pixel_of(thread);
#pragma unroll
        for (int i = 0; i < PASS / 2 && pass / 2 + i < SUMS; ++i)
            if (i % 4 < 2)
                *reinterpret_cast<float2*>(buffer + (i / 4 * 8 + i % 2) * WRITE_PITCH) =
                    make_float2(sum[pass / 2 + i], sum[pass / 2 + i + 2]);
    }

    // One barrier a pass: it says that this buffer is full, and that the next one has been read.
    __device__ __forceinline__ void write_sums(const float (&sum)[SUMS], int thread, int tile_pixel, int filter_0,
                                               unsigned turn) const {
        const Place place(s, VECTOR ? tile_pixel : tile_pixel + thread % TEAM_TILE);
#pragma unroll
        for (int pass = 0; pass < BF; pass += PASS, ++turn) {
            float* const full = all_staging + (group * STAGED + turn % BUFFERS * PASS) * WRITE_PITCH;
            stage(full, sum, thread, pass);
#if VECTOR
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
            wait_for_reads<BUFFERS - 2>();
#endif
            group_barrier(group);
            send(thread, full, place, filter_0 + pass, min(BF - pass, PASS));
        }
    }

    // A buffer's way to the output.
    __device__ __forceinline__ void send(int thread, const float* from, const Place& place, int filter_0,
                                         int filters) const {
#if VECTOR
        // A lane of each warp starts a share of the copies. All they need is uniform, else each would be a loop over lanes.
        const int first = thread / 32 * (PASS / 4), filter = filter_0 + first;
        const int count = thread % 32 == 0 ? min(filters - first, s.filters - filter) : 0;
        Place at = {__shfl_sync(~0u, place.image, 0), __shfl_sync(~0u, place.pixel, 0)};
        const uint64 plane = s.out_pixels * 4ull;
#pragma unroll 1
        for (int i = 0; i < TEAM_TILE && at.image < s.images; at = {at.image + 1, 0}) {
            const int pixels = min(TEAM_TILE - i, s.out_pixels - (int)at.pixel);
            const float* const start = output + ((int64)at.image * s.filters + filter) * s.out_pixels + at.pixel;
            uint64 to = __shfl_sync(~0u, reinterpret_cast<uint64>(start), 0);
            const unsigned source = __shfl_sync(~0u, shared_address(from + first * WRITE_PITCH + i), 0);
#pragma unroll
            for (int j = 0; j < PASS / 4; ++j, to += plane)
                write_bulk(to, source + j * WRITE_PITCH * 4, pixels * 4, j < count);
            i += pixels;
        }
        close_group();
#else
        const int lane_pixel = thread % TEAM_TILE, lane_filter = thread / TEAM_TILE;
        const int left = place.image < s.images ? min(filters, s.filters - filter_0) - lane_filter : 0;
        float* to = output + ((int64)place.image * s.filters + filter_0 + lane_filter) * s.out_pixels + place.pixel;
#pragma unroll
        for (int i = 0; i < PASS; i += 2, to += 2 * (int64)s.out_pixels) {
            const float v = from[(lane_filter + i) * WRITE_PITCH + lane_pixel];
            if (i < left) *to = v;
        }
#endif
    }

    // Until all that was sent has been written, and the buffers may go.
    __device__ __forceinline__ void finish() const {
#if VECTOR
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
#endif
    }

    // Of a joint tile: each team leaves its sums, then a thread adds those of all teams, in order, side by side.
    __device__ __forceinline__ void write_joint(const float (&sum)[SUMS], int thread, int tile_pixel, int filter_0,
                                                unsigned turn) const {
        constexpr int COLUMNS = TEAM_TILE / WIDTH, AT_ONCE = TEAMS * GROUP / COLUMNS;  // filters
        const int lane_pixel = (group * GROUP + thread) % COLUMNS * WIDTH, lane_filter = (group * GROUP + thread) / COLUMNS;
        const Place place(s, tile_pixel + lane_pixel);
        const int left = place.image < s.images ? s.filters - filter_0 : 0;
        float* const to = output + ((int64)place.image * s.filters + filter_0) * s.out_pixels + place.pixel;
        float zeros = 0.0f;
#pragma unroll
        for (int pass = 0; pass < BF; pass += PASS, ++turn) {
            float* const full = all_staging + turn % BUFFERS * PASS * WRITE_PITCH;
            stage(full + group * STAGED * WRITE_PITCH, sum, thread, pass);
            asm volatile("bar.sync %0, %1;" ::"n"(TEAMS + 1), "n"(TEAMS * GROUP) : "memory");
#pragma unroll
            for (int i = 0; i < min(PASS, BF - pass); i += AT_ONCE) {
                const int in_pass = i + lane_filter, filter = pass + in_pass;
                if (in_pass >= min(PASS, BF - pass) || filter >= left) break;
                Pixels v = add_teams(full + in_pass * WRITE_PITCH + lane_pixel);
                zeros = v.finish(zeros, bias ? __ldg(bias + filter_0 + filter) : 0.0f, relu);
                *reinterpret_cast<Pixels*>(to + filter * (int64)s.out_pixels) = v;
            }
        }
        if (zeros == 0.0f) return;
#pragma unroll 1
        for (int filter = 0; filter < min(BF, left); ++filter)
            if (filter % PASS % AT_ONCE == lane_filter)
#pragma unroll 1
                for (int i = 0; i < WIDTH; ++i)
                    if (!isfinite(to[filter * (int64)s.out_pixels + i]))
                        write_plain(tile_pixel + lane_pixel + i, filter_0 + filter);
    }
    // The sums of a place in all teams' buffers.
    __device__ static __forceinline__ Pixels add_teams(const float* from) {
        Pixels v = *reinterpret_cast<const Pixels*>(from);
#pragma unroll
        for (int team = 1; team < TEAMS; ++team) {
            const Pixels more = *reinterpret_cast<const Pixels*>(from + team * STAGED * WRITE_PITCH);
#pragma unroll
            for (int i = 0; i < WIDTH; ++i) v.of[i] += more.of[i];
        }
        return v;
    }

    // The plain sum where a value is not finite.
    __device__ __forceinline__ void write_plain(const float (&sum)[SUMS], int thread, int tile_pixel, int filter_0) const {
        unsigned wanted[(SUMS + 31) / 32] = {};
#pragma unroll
        for (int i = 0; i < SUMS; ++i)
            if (!isfinite(sum[i])) wanted[i / 32] |= 1u << i % 32;
#pragma unroll
        for (int j = 0; j < (SUMS + 31) / 32; ++j)
#pragma unroll 1
            for (; wanted[j]; wanted[j] &= wanted[j] - 1) {
                const int i = j * 32 + __ffs(wanted[j]) - 1;
                write_plain(tile_pixel + first_pixel_of(thread) + i % 4 / 2, filter_0 + filter_of(thread, i));
            }
    }
    __device__ __forceinline__ void write_plain(int pixel, int filter) const {
        const int64 place = s.locate(pixel, s.filters);
        if (place < 0 || filter >= s.filters) return;
        const int in_image = pixel % s.out_pixels;
        float value =
            plain_sum(input, weight, s, 1, 1, pixel / s.out_pixels, filter, in_image / s.width, in_image % s.width);
        if (bias) value += bias[filter];
        output[place + (int64)filter * s.out_pixels] = relu && value < 0.0f ? 0.0f : value;
    }
};
