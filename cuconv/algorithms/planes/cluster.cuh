// Sums of a warp's lanes, and numbers in the shared memory of a cluster's other blocks.
#pragma once

#include "common/activation.cuh"
#include "common/hopper.cuh"

// The sum over LANES neighbouring lanes, in each of them and always in the same order.
template <int LANES>
__device__ __forceinline__ float add_lanes(float value) {
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
    return value;
}

// ld.shared::cluster: a number in the shared memory of another block of the cluster. No block may end before the others
// have loaded what they need of it.
__device__ __forceinline__ float load_remote(int block, const float* number) {
    float value;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(address_in(shared_address(number), block)));
    return value;
}

// barrier.cluster.arrive: the first half of a barrier of all threads of the cluster, which orders what the thread has
// loaded and stored before it. cluster_wait() is the second half.
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
