// The consumers of fp16x3: two warpgroups that multiply, add up and write, or publish their sums to another block.
#pragma once

#include "fp16x3/tiles.cuh"
#if NARROW
#include "fp16x3/multiply_narrow.cuh"
#else
#include "fp16x3/multiply.cuh"
#endif

// Whether a chain of products ends with each row of the filter: three products keep chains short, since long ones lose
// accuracy. One product loses little by them, and its chain is a whole chunk.
constexpr bool CHAINS_OF_ROWS = PRODUCTS == 3;

struct Consumer {
    const Geometry& g;
    const Workspace& workspace;
    const Output output;
    unsigned input_stages, weight_stages;  // addresses in shared memory
    float* staging;                        // the warpgroup's
    Shared& shared;
    const int warpgroup, thread;  // thread of the warpgroup
    const Share share;
    const unsigned zero;  // 0, but the compiler cannot know
    const int resident;                         // weight rows that stay in shared memory, or 0
    // With one chunk a tile, both warpgroups would multiply at the same time, and then write at the same time. So the
    // second begins when the first has multiplied half a tile. Only with resident weights: a
    // stage of others is filled again after both have released it, so neither can be half a tile ahead.
    bool staggered;
    PipelineState<IN_STAGES> input = {};        // the next chunk's
    PipelineState<WEIGHT_STAGES> weights = {};  // its next weight row's

    __device__ __forceinline__ void barrier() const { warpgroup_barrier(warpgroup); }

    // The second warpgroup waits here for the first, which does not wait.
    __device__ __forceinline__ void stagger() {
        if (warpgroup == 0)
            asm volatile("bar.arrive 5, %0;" ::"n"(CONSUMERS) : "memory");
        else
            named_barrier<5, CONSUMERS>();
        staggered = false;
    }

    // Resident rows are read again and again: their barriers stay in the phase after the only copy.
    __device__ __forceinline__ void next_row() {
        if (!resident)
            weights.advance();
        else
            weights.stage = weights.stage + 1 < resident ? weights.stage + 1 : 0;
    }

    // Starts chain = the products of a weight row, or chain += where `keep`; the small products first. Both start
    // addresses are those of the warpgroup's positions and filters.
    __device__ __forceinline__ void start_products(Chain& chain, unsigned input_start, unsigned weight_start,
                                                   int keep) const {
        wgmma_fence();
#pragma unroll
        for (int small = OPERAND_PARTS - 1; small >= 0; --small) {
            // Keeps the compiler from computing all descriptors ahead: they would be too many to keep in registers.
            if (SUMS > WGMMA_SUMS || STEPS > 4)
                input_start += zero, weight_start += zero;
            else
                asm volatile("" : "+r"(input_start), "+r"(weight_start));
#pragma unroll
            for (int step = 0; step < STEPS; ++step) {
                const unsigned w = weight_start + step * 2 * OCTET_FILTERS;  // in units of 16 bytes
                const unsigned x = input_start + step * g.column_step();
#if SIDE_BY_SIDE
                if (small)
                    multiply_step(chain, x + INPUT_PART / 16, w, step > 0 ? 1 : keep);
                else
                    multiply_both(chain, x, w, step > 0 ? 1 : keep);
#else
                if (small) {
                    multiply_step(chain, x, w + LOW_WEIGHTS / 16, step > 0 ? 1 : keep);
                    multiply_step(chain, x + INPUT_PART / 16, w, 1);
                } else {
                    multiply_step(chain, x, w, OPERAND_PARTS == 2 || step > 0 ? 1 : keep);
                }
#endif
            }
        }
        wgmma_commit();
    }

    // sums = the products of `chunks` chunks from a unit of work on, all of one tile.
    __device__ __forceinline__ void multiply(Sums& sums, const WorkUnit& from, int chunks) {
        // The descriptors of stage 0. Those of other stages are sums: shared memory has fewer than 2^14 units.
        const unsigned inputs = core_descriptor(input_stages + first_position(warpgroup) * 16, OCTET_BYTES);
        const unsigned filters = core_descriptor(weight_stages + first_filter(warpgroup) * 16, OCTET_FILTERS * 16);
        Rescale rescale(workspace.filter_scales + from.tile_chunk(g) * BF, warpgroup, thread);
        rescale.prefetch();
        int doubt = NO_DOUBT;
#pragma unroll
        for (int i = 0; i < SUMS; ++i) sums[i] = 0.0f;
        for (; chunks > 0; --chunks, input.advance()) {
            const int input_stage = input.stage;
            barrier_wait(shared.full_input + input_stage, input.parity);
            const int input_scale = shared.scales[input_stage];  // before any thread can release the stage
            Chain chain;
#pragma unroll CHAINS_OF_ROWS ? 1 : ROWS  // a chain that is carried around a loop would be spilled
            for (int row = 0; row < ROWS; ++row, next_row()) {
                const int weight_stage = weights.stage;
                barrier_wait(shared.full_weights + weight_stage, weights.parity);
                start_products(chain, inputs + input_stage * (INPUT_STAGE / 16) + row * g.row_step(),
                               filters + weight_stage * (ROW_BYTES / 16), !CHAINS_OF_ROWS && row > 0);
                if (row == 0) {  // while the products are under way
                    rescale.update(input_scale);
                    doubt = max(doubt, rescale.doubt(input_scale));
                    if (chunks > 1) rescale.prefetch();
                }
                wgmma_wait(chain);
                if (thread == 0) {
                    if (!resident) barrier_arrive(shared.empty_weights + weight_stage);
                    if (row == ROWS - 1) barrier_arrive(shared.empty_input + input_stage);
                }
                if (CHAINS_OF_ROWS) rescale.accumulate(sums, chain);
                if (row == (ROWS - 1) / 2 && staggered && warpgroup == 0) stagger();
            }
            if (!CHAINS_OF_ROWS) rescale.accumulate(sums, chain);
        }
        rescale.finish(sums, doubt);
    }

    // This thread's partial sums in the workspace, as a block publishes them.
    __device__ __forceinline__ float4* partial_sums(int block) const {
        return workspace.sums + (int64)block * (MAX_SUMS / 4) + warpgroup * (SUMS / 4 * WARPGROUP) + thread;
    }

    // Publishes the sums to the block that began the tile.
    __device__ __forceinline__ void publish(const Sums& sums) const {
        float4* const to = partial_sums(blockIdx.x);
#pragma unroll
        for (int i = 0; i < SUMS; i += 4)
            to[i / 4 * WARPGROUP] = make_float4(sums[i], sums[i + 1], sums[i + 2], sums[i + 3]);
        barrier();
        if (thread == 0)  // the flag's release covers what the barrier has shown this thread: the warpgroup's stores
            set_flag(workspace.flags + blockIdx.x * 2 + warpgroup);
    }

    // Adds the partial sums of the blocks after this one, in order, up to the tile's end.
    __device__ __forceinline__ void accumulate(Sums& sums, int unit, int tile_end) const {
        for (int block = blockIdx.x + 1; unit < tile_end; ++block) {
            if (thread == 0) take_flag(workspace.flags + block * 2 + warpgroup);
            barrier();
            const float4* const from = partial_sums(block);
#pragma unroll
            for (int i = 0; i < SUMS; i += 4) {
                const float4 part = __ldcg(from + i / 4 * WARPGROUP);
                sums[i] += part.x, sums[i + 1] += part.y, sums[i + 2] += part.z, sums[i + 3] += part.w;
            }
            unit = Share(g.units, block, gridDim.x).end;
        }
    }

    __device__ __forceinline__ void run() {
        for (int unit = share.begin; unit < share.end;) {
            const WorkUnit from(unit, g);
            const int chunks = min(g.chunks - from.chunk, share.end - unit);
            Sums sums;
            if (staggered && warpgroup == 1) stagger();
            multiply(sums, from, chunks);
            unit += chunks;
            if (from.chunk > 0) {
                publish(sums);
            } else {
                if (chunks < g.chunks) accumulate(sums, unit, unit - chunks + g.chunks);
                write(output, PIECES ? shared.geometry : g, from, sums, staging, warpgroup, thread);
            }
        }
    }
};
