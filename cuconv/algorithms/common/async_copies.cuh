// cp.async: copies of single floats from global to shared memory, which a thread starts and waits for in groups.
#pragma once

#include "common/convolution.cuh"

// Starts to copy a float, or a zero where it does not exist. to: shared_address of its place.
__device__ __forceinline__ void copy_async(unsigned to, const void* from, bool exists) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(exists ? 4 : 0) : "memory");
}

// Ends a group of this thread's copies.
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits for all groups of this thread's copies but the last PENDING.
template <int PENDING>
__device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
