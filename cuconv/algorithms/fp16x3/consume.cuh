// The part of fp16x3 that multiplies, adds up, and hands the sums on; which way the operands lie in the tensor cores is
// up to the header that NARROW chooses.
#pragma once

#include "fp16x3/tiles.cuh"
#if NARROW
#include "fp16x3/multiply_narrow.cuh"
#else
#include "fp16x3/multiply.cuh"
#endif

// A chain of products: a row of the filter, or in one product, where rounding costs more than a long chain, a whole
// chunk.
constexpr bool CHAINS_OF_ROWS = PRODUCTS == 3;

// The turn of a chunk of input, or of a row of weights, among as many places in shared memory, counted on: a remainder
// would take ten instructions.
template <int PLACES>
struct Turn {
    int slot = 0, parity = 0;  // parity: of how often all of them have been used

    __device__ __forceinline__ void advance() {
        slot = slot + 1 < PLACES ? slot + 1 : 0;
        parity ^= slot == 0;
    }
};

// One of the two warpgroups that multiply.
struct Consumer {
    const Geometry& g;
    const Workspace& workspace;
    const Output output;
    unsigned input_stages, weight_stages;  // addresses in shared memory
    float* staging;                        // of the warpgroup
    Shared& shared;
    const int group, thread;  // of the warpgroup
    const Share share;
    const unsigned zero;  // which the compiler cannot know
    Turn<IN_STAGES> input = {};        // of the chunk to come
    Turn<WEIGHT_STAGES> weights = {};  // of its next row

    __device__ __forceinline__ void barrier() const { group_barrier(group); }

    // chain = the products of one row of the filter, or += where `keep`; small ones first where there are any.
    // Both start where the warpgroup's positions and filters do.
    __device__ __forceinline__ void start_products(Sums& chain, unsigned input_start, unsigned weight_start,
                                                   int keep) const {
        wgmma_fence();
#pragma unroll
        for (int small = FACTOR_PARTS - 1; small >= 0; --small) {
            if (SUMS > WGMMA_SUMS || STEPS > 4)  // descriptors are too many to keep
                input_start += zero, weight_start += zero;
            else
                asm volatile("" : "+r"(input_start), "+r"(weight_start));
#pragma unroll
            for (int step = 0; step < STEPS; ++step) {
                const unsigned w = weight_start + step * 2 * BF;  // in units of 16 bytes
                const unsigned x = input_start + step;
                if (small) {
                    multiply_step(chain, x, w + WEIGHT_PART / 16, step > 0 ? 1 : keep);
                    multiply_step(chain, x + INPUT_PART / 16, w, 1);
                } else {
                    multiply_step(chain, x, w, FACTOR_PARTS == 2 || step > 0 ? 1 : keep);
                }
            }
        }
        wgmma_commit();
    }

    // The sums of `chunks` from a place on.
    __device__ __forceinline__ void multiply(Sums& sums, const Place& from, int chunks) {
        // Of the first places; others are so many units of 16 bytes further on, for shared memory has fewer than 2^14.
        const unsigned inputs = core_descriptor(input_stages + first_position(group) * 16, GROUP_BYTES);
        const unsigned filters = core_descriptor(weight_stages + first_filter(group) * 16, BF * 16);
        Factors factors(workspace.filter_scales + from.tile_chunk(g) * BF, group, thread);
        factors.fetch();
#pragma unroll
        for (int i = 0; i < SUMS; ++i) sums[i] = 0.0f;
        for (; chunks > 0; --chunks, input.advance()) {
            const int slot = input.slot;
            barrier_wait(shared.full_input + slot, input.parity);
            const int of_input = shared.exponents[slot];  // before any thread can give the slot back
            Sums chain;
#pragma unroll CHAINS_OF_ROWS ? 1 : ROWS  // a chain that went round a loop would be spilled
            for (int row = 0; row < ROWS; ++row, weights.advance()) {
                const int weight_slot = weights.slot;
                barrier_wait(shared.full_weights + weight_slot, weights.parity);
                start_products(chain, inputs + slot * (INPUT_STAGE / 16) + row * g.pitch,
                               filters + weight_slot * (ROW_BYTES / 16), !CHAINS_OF_ROWS && row > 0);
                if (row == 0) {  // while the products are under way
                    factors.meet(of_input);
                    if (chunks > 1) factors.fetch();
                }
                wgmma_wait(chain);
                if (thread == 0) {
                    barrier_arrive(shared.empty_weights + weight_slot);
                    if (row == ROWS - 1) barrier_arrive(shared.empty_input + slot);
                }
                if (CHAINS_OF_ROWS) factors.add(sums, chain);
            }
            if (!CHAINS_OF_ROWS) factors.add(sums, chain);
        }
        factors.finish(sums);
    }

    // Where a block leaves this thread's sums.
    __device__ __forceinline__ float4* sums_of(int block) const {
        return workspace.sums + (int64)block * (MAX_SUMS / 4) + group * (SUMS / 4 * GROUP) + thread;
    }

    // Leaves the sums to the block that began the tile.
    __device__ __forceinline__ void leave(const Sums& sums) const {
        float4* const to = sums_of(blockIdx.x);
#pragma unroll
        for (int i = 0; i < SUMS; i += 4)
            to[i / 4 * GROUP] = make_float4(sums[i], sums[i + 1], sums[i + 2], sums[i + 3]);
        barrier();
        if (thread == 0)  // releases what it knows of: through the barrier, all that its warpgroup wrote
            set_flag(workspace.flags + blockIdx.x * 2 + group);
    }

    // Adds what the blocks after this one leave, up to the tile's end.
    __device__ __forceinline__ void collect(Sums& sums, int unit, int tile_end) const {
        for (int block = blockIdx.x + 1; unit < tile_end; ++block) {
            if (thread == 0) {
                wait_for_flag(workspace.flags + block * 2 + group);
            }
            barrier();
            const float4* const from = sums_of(block);
#pragma unroll
            for (int i = 0; i < SUMS; i += 4) {
                const float4 part = __ldcg(from + i / 4 * GROUP);
                sums[i] += part.x, sums[i + 1] += part.y, sums[i + 2] += part.z, sums[i + 3] += part.w;
            }
            unit = Share(g.units, block, gridDim.x).end;
        }
    }

    __device__ __forceinline__ void run() {
        for (int unit = share.begin; unit < share.end;) {
            const Place from(unit, g);
            const int chunks = min(g.chunks - from.chunk, share.end - unit);
            Sums sums;
            multiply(sums, from, chunks);
            unit += chunks;
            if (from.chunk > 0) {
                leave(sums);
            } else {
                if (chunks < g.chunks) collect(sums, unit, unit - chunks + g.chunks);
                write(output, g, from, sums, staging, group, thread);
            }
        }
    }
};
