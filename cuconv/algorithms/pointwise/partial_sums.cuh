// Partial sums of fp16x3_pointwise with TAIL_SPLIT_K: blocks that have later chunks of a tile publish their sums in the
// workspace; the block with the first chunks adds them, in the order of the chunks.
#pragma once

#include "pointwise/tiles.cuh"

// A consumer. Each exchanges its own warpgroup tile with the same consumer of the other blocks.
struct PartialSums {
    const Sizes& s;
    const Memory memory;
    const int consumer;

    // Computed at each use, so that it takes no registers in between.
    __device__ __forceinline__ Workspace workspace() const {
        return Workspace(memory, (int64)s.filter_tiles * s.chunks, gridDim.x);
    }
    // The thread's first sums in a block's share of the workspace.
    __device__ __forceinline__ float4* sums_of(const Workspace& workspace, int block) const {
        return workspace.sums + (block * (int64)CONSUMERS + consumer) * (SUMS / 4 * WARPGROUP) +
               thread_index() % WARPGROUP;
    }

    __device__ __forceinline__ void publish(const float (&sum)[SUMS]) const {
        const Workspace to = workspace();
        float4* const sums = sums_of(to, blockIdx.x);
#pragma unroll
        for (int i = 0; i < SUMS; i += 4)
            sums[i / 4 * WARPGROUP] = make_float4(sum[i], sum[i + 1], sum[i + 2], sum[i + 3]);
        warpgroup_barrier(consumer);
        // A release store: through the barrier it also covers what the other threads wrote.
        if (thread_index() % WARPGROUP == 0) set_flag(to.flags + blockIdx.x * CONSUMERS + consumer);
    }

    __device__ __forceinline__ void accumulate(float (&sum)[SUMS]) const {
        const Workspace from = workspace();
#pragma unroll 1
        for (int block = blockIdx.x + 1; block < blockIdx.x + TAIL_SPLIT_K; ++block) {
            if (thread_index() % WARPGROUP == 0) {
                take_flag(from.flags + block * CONSUMERS + consumer);
            }
            warpgroup_barrier(consumer);
            const float4* const sums = sums_of(from, block);
#pragma unroll
            for (int i = 0; i < SUMS; i += 4) {
                const float4 part = __ldcg(sums + i / 4 * WARPGROUP);
                sum[i] += part.x, sum[i + 1] += part.y, sum[i + 2] += part.z, sum[i + 3] += part.w;
            }
        }
    }
};
