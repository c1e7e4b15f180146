// The part of fp16x3 that multiplies, adds up, and writes the output.
#pragma once

#include "fp16x3.cuh"

constexpr int STAGING = 16 * 40;          // floats of a warp: 16 filters x 32 positions, rows 8 banks apart

// Lower half of the descriptor of K-major core matrices of 8 rows x 16 bytes, one after the other; `depth_bytes` to the
// next 8 in depth. The upper half is the same for all: the 128 bytes, in units of 16, to the next 8 rows.
__device__ __forceinline__ unsigned descriptor(unsigned address, int depth_bytes) {
    return address >> 4 & 0x3fff | depth_bytes >> 4 << 16;
}

#define OUT4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define OUT16(i) OUT4(i), OUT4(i + 4), OUT4(i + 8), OUT4(i + 12)
// d (64 filters x 128 positions) = a * b, or += where `keep`.
__device__ __forceinline__ void wgmma(float (&d)[64], unsigned a, unsigned b, int keep) {
    asm volatile(
        "{.reg .pred p; .reg .b64 a, b; setp.ne.b32 p, %66, 0; mov.b64 a, {%64, 8}; mov.b64 b, {%65, 8}; wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
        "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,"
        "%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,"
        "%56,%57,%58,%59,%60,%61,%62,%63}, a, b, p, 1, 1, 0, 0;}"
        : OUT16(0), OUT16(16), OUT16(32), OUT16(48)
        : "r"(a), "r"(b), "r"(keep));
}

// One of the two warpgroups that multiply.
struct Consumer {
    const Geometry& g;
    const Workspace& workspace;
    const float *input, *weight, *bias;
    float* output;
    const bool relu;
    unsigned input_stages, weight_stages;  // addresses in shared memory
    float* staging;                        // of the warp
    Shared& shared;
    const int group, thread;  // of the warpgroup
    const int units;  // of all blocks
    const Share share;
    int rows = 0;  // of weights, used so far

    __device__ __forceinline__ int filter_part() const { return WF == 2 ? group : 0; }
    __device__ __forceinline__ int position_part() const { return WP == 2 ? group : 0; }
    __device__ __forceinline__ void barrier() const { group_barrier(group); }

    // chain = the products of one row of the filter, small ones first.
    __device__ __forceinline__ void start_products(float (&chain)[64], unsigned a, unsigned b) const {
        unsigned a_start = descriptor(a + filter_part() * 64 * 16, BF * 16);
        unsigned b_start = descriptor(b + position_part() * 128 * 16, GROUP_BYTES);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int small = 1; small >= 0; --small) {
            asm volatile("" : "+r"(a_start), "+r"(b_start));  // rather than keep every descriptor for later
#pragma unroll
            for (int step = 0; step < STEPS; ++step) {
                const unsigned a_high = a_start + step * 2 * BF;  // in units of 16 bytes
                const unsigned b_high = b_start + step % DEPTHS * 2 * POSITIONS + step / DEPTHS;
                if (small) {
                    wgmma(chain, a_high + WEIGHT_PART / 16, b_high, step > 0);
                    wgmma(chain, a_high, b_high + INPUT_PART / 16, 1);
                } else {
                    wgmma(chain, a_high, b_high, 1);
                }
            }
        }
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    }

    // The sum of `chunks` from a place on, of which `count` chunks of the share were before. Each half of it (filters 8
    // apart) has an exponent of its own until all is added.
    __device__ __forceinline__ void multiply(float (&sum)[64], const Place& from, int count, int chunks) {
        const int* exponents =
            workspace.exponents + from.tile_chunk(g) * BF + filter_part() * 64 + thread / 32 * 16 + thread % 32 / 4;
        int exponent[2];
        exponent[0] = exponent[1] = EMPTY;
#pragma unroll
        for (int i = 0; i < 64; ++i) sum[i] = 0.0f;
        for (const int end = count + chunks; count < end; ++count, exponents += BF) {
            const int slot = count % IN_STAGES;
            const int of_filter[2] = {exponents[0], exponents[8]};
            barrier_wait(shared.full_input + slot, count / IN_STAGES & 1);
            float factor[2];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int found = of_filter[half] + shared.exponents[slot];
                if (exponent[half] == EMPTY && found > EMPTY / 2) exponent[half] = found;
                factor[half] = found > EMPTY / 2 ? power_of_two(clamp(found - exponent[half], -126, 127)) : 0.0f;
            }
#pragma unroll 1
            for (int row = 0; row < ROWS; ++row, ++rows) {
                const int weight_slot = rows % WEIGHT_STAGES;
                barrier_wait(shared.full_weights + weight_slot, rows / WEIGHT_STAGES & 1);
                float chain[64];
                start_products(chain, weight_stages + weight_slot * ROW_BYTES,
                               input_stages + slot * 2 * INPUT_PART +
                                   row / KH * DEPTHS * 2 * GROUP_BYTES + row % KH * g.pitch * 16);
                asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
                for (int i = 0; i < 64; ++i) asm volatile("" : "+f"(chain[i])::"memory");
                if (thread == 0) {
                    barrier_arrive(shared.empty_weights + weight_slot);
                    if (row == ROWS - 1) barrier_arrive(shared.empty_input + slot);
                }
#pragma unroll
                for (int i = 0; i < 64; ++i) sum[i] = fmaf(chain[i], factor[i % 4 / 2], sum[i]);
            }
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int all = exponent[half] == EMPTY ? 0 : exponent[half];
#pragma unroll
            for (int i = 0; i < 64; ++i)
                if (i % 4 / 2 == half) sum[i] = sum[i] * power_of_two(all / 2) * power_of_two(all - all / 2);
        }
    }

    // Leaves the sums to the block that began the tile.
    __device__ __forceinline__ void leave(const float (&sum)[64]) const {
        float4* const to = workspace.sums + ((int64)blockIdx.x * 2 + group) * 16 * 128 + thread;
#pragma unroll
        for (int i = 0; i < 16; ++i) to[i * 128] = make_float4(sum[4 * i], sum[4 * i + 1], sum[4 * i + 2], sum[4 * i + 3]);
        barrier();
        if (thread == 0)  // releases what it knows of: through the barrier, all that its warpgroup wrote
            asm volatile("st.release.gpu.global.u32 [%0], 1;" ::"l"(workspace.flags + blockIdx.x * 2 + group) : "memory");
    }

    // Adds what the blocks after this one leave, up to the tile's end.
    __device__ __forceinline__ void collect(float (&sum)[64], int unit, int tile_end) const {
        for (int block = blockIdx.x + 1; unit < tile_end; ++block) {
            if (thread == 0) {
                unsigned flag;
                do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                                : "=r"(flag)
                                : "l"(workspace.flags + block * 2 + group)
                                : "memory");
                while (!flag);
            }
            barrier();
            const float4* const from = workspace.sums + ((int64)block * 2 + group) * 16 * 128 + thread;
#pragma unroll
            for (int i = 0; i < 16; ++i) {
                const float4 part = __ldcg(from + i * 128);
                sum[4 * i] += part.x, sum[4 * i + 1] += part.y, sum[4 * i + 2] += part.z, sum[4 * i + 3] += part.w;
            }
            unit = Share(units, block, gridDim.x).end;
        }
    }

    // Writes the tile through the warp's staging memory, 32 positions at a time.
    __device__ __forceinline__ void write(const float (&sum)[64], const Place& tile) const {
        const int lane = thread % 32, warp_filter = tile.filter_tile * BF + filter_part() * 64 + thread / 32 * 16;
        const int filters = min(16, g.p.filters - warp_filter);
        const float lane_bias = bias && lane < filters ? bias[warp_filter + lane] : 0.0f;
        const float least = relu ? 0.0f : __int_as_float(0xff800000);
        unsigned not_finite[4] = {};
#pragma unroll
        for (int pass = 0; pass < 4; ++pass) {
            __syncwarp();
#pragma unroll
            for (int i = 0; i < 16; i += 2)
                *reinterpret_cast<float2*>(staging + (lane / 4 + i % 4 / 2 * 8) * 40 + i / 4 * 8 + lane % 4 * 2) =
                    make_float2(sum[pass * 16 + i], sum[pass * 16 + i + 1]);
            __syncwarp();
            int image, y, x;
            const bool exists = locate(tile, pass, image, y, x);
            float* to = output + ((int64)image * g.p.filters + warp_filter) * g.p.out_pixels + y * g.p.out_w + x;
#pragma unroll
            for (int i = 0; i < 16; ++i, to += g.p.out_pixels) {
                const float value = staging[i * 40 + lane], with_bias = value + __shfl_sync(~0u, lane_bias, i);
                if (exists && i < filters) *to = with_bias < least ? least : with_bias;  // a NaN stays
                if (!isfinite(value)) not_finite[pass] |= 1u << i;
            }
        }
        if (__any_sync(~0u, not_finite[0] | not_finite[1] | not_finite[2] | not_finite[3]))
#pragma unroll
            for (int pass = 0; pass < 4; ++pass) write_plain(not_finite[pass], tile, pass, warp_filter, filters);
    }

    // The plain sum where a value is not finite.
    __device__ __forceinline__ void write_plain(unsigned wanted, const Place& tile, int pass, int filter, int filters) const {
        int image, y, x;
        if (!locate(tile, pass, image, y, x)) return;
#pragma unroll 1
        for (int i = 0; i < filters; ++i, ++filter) {
            if (!(wanted >> i & 1)) continue;
            float value = plain_sum(input, weight, g.p, KH, KW, image, filter, y, x);
            if (bias) value += bias[filter];
            output[((int64)image * g.p.filters + filter) * g.p.out_pixels + y * g.p.out_w + x] =
                relu && value < 0.0f ? 0.0f : value;
        }
    }

    // The output pixel that a lane writes in a pass; false where there is none.
    __device__ __forceinline__ bool locate(const Place& tile, int pass, int& image, int& y, int& x) const {
        const int position = tile.stretch * BP + position_part() * 128 + pass * 32 + thread % 32;
        const int row = position / g.pitch;
        x = position - row * g.pitch, image = row / g.image_rows, y = row - image * g.image_rows;
        return image < g.images && y < g.out_h && x < g.p.out_w;
    }

    __device__ __forceinline__ void run() {
        for (int unit = share.begin; unit < share.end;) {
            const Place from(unit, g);
            const int chunks = min(g.chunks - from.chunk, share.end - unit);
            float sum[64];
            multiply(sum, from, unit - share.begin, chunks);
            unit += chunks;
            if (from.chunk > 0) {
                leave(sum);
            } else {
                if (chunks < g.chunks) collect(sum, unit, unit - chunks + g.chunks);
                write(sum, from);
            }
        }
    }
};
