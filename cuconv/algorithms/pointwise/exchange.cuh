// The part of fp16x3_pointwise by which blocks share a tile of the last round: who has later chunks leaves its sums to
// the block that has the first ones, which adds them in order and writes.
#pragma once

#include "pointwise/tiles.cuh"

// A warpgroup that multiplies, as all teams of a tile do for themselves.
struct Exchange {
    const Sizes& s;
    void* const memory;
    const int team;

    // Found anew each time, so that nothing of it takes a register for long.
    __device__ __forceinline__ Workspace workspace() const {
        return Workspace(memory, (int64)s.filter_tiles * s.chunks, gridDim.x);
    }
    __device__ __forceinline__ float4* sums_of(const Workspace& workspace, int block) const {
        return workspace.sums + (block * (int64)TEAMS + team) * (SUMS / 4 * GROUP) + own_thread() % GROUP;
    }
    __device__ __forceinline__ void barrier() const {
        named_barrier<GROUP>(1 + team);
    }

    // To the block that has the tile's first part.
    __device__ __forceinline__ void leave(const float (&sum)[SUMS]) const {
        const Workspace to = workspace();
        float4* const sums = sums_of(to, blockIdx.x);
#pragma unroll
        for (int i = 0; i < SUMS; i += 4)
            sums[i / 4 * GROUP] = make_float4(sum[i], sum[i + 1], sum[i + 2], sum[i + 3]);
        barrier();
        if (own_thread() % GROUP == 0)  // releases what it knows of: through the barrier, all that its team wrote
            set_flag(to.flags + blockIdx.x * TEAMS + team);
    }

    // Of the blocks that have the tile's other parts.
    __device__ __forceinline__ void collect(float (&sum)[SUMS]) const {
        const Workspace from = workspace();
#pragma unroll 1
        for (int block = blockIdx.x + 1; block < blockIdx.x + SPLIT_LAST; ++block) {
            if (own_thread() % GROUP == 0) {
                wait_for_flag(from.flags + block * TEAMS + team);
            }
            barrier();
            const float4* const sums = sums_of(from, block);
#pragma unroll
            for (int i = 0; i < SUMS; i += 4) {
                const float4 part = __ldcg(sums + i / 4 * GROUP);
                sum[i] += part.x, sum[i + 1] += part.y, sum[i + 2] += part.z, sum[i + 3] += part.w;
            }
        }
    }
};
