// Shared by the kernels for Hopper: barriers in shared memory, and bulk copies that complete on them.
#pragma once

#include "convolution.cuh"

__device__ __forceinline__ void barrier_init(uint64* barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint64* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
__device__ __forceinline__ void barrier_expect(uint64* barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}
#define BARRIER_WAIT(scope)                                                         \
    asm volatile(                                                                   \
        "{.reg .pred done;\n"                                                       \
        "again: mbarrier.try_wait.parity" scope ".shared::cta.b64 done, [%0], %1;\n" \
        "@!done bra again;}" ::"r"(shared_address(barrier)),                        \
        "r"(parity)                                                                 \
        : "memory")
__device__ __forceinline__ void barrier_wait(uint64* barrier, int parity) { BARRIER_WAIT(""); }
// Also for what other blocks of the cluster have sent; empties the L1 cache.
__device__ __forceinline__ void barrier_wait_cluster(uint64* barrier, int parity) { BARRIER_WAIT(".acquire.cluster"); }
// Whether a wait would be over.
__device__ __forceinline__ bool barrier_passed(uint64* barrier, int parity) {
    int passed;
    asm volatile("{.reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; selp.b32 %0, 1, 0, p;}"
                 : "=r"(passed)
                 : "r"(shared_address(barrier)), "r"(parity)
                 : "memory");
    return passed;
}

// The same address in another block of the cluster.
__device__ __forceinline__ unsigned address_in(unsigned address, int block) {
    unsigned remote;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(block));
    return remote;
}
__device__ __forceinline__ void barrier_arrive_in(uint64* barrier, int block) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(address_in(shared_address(barrier), block))
                 : "memory");
}

// Copies shared memory to the same place in another block; completes on the barrier there, which expects its bytes.
__device__ __forceinline__ void copy_bulk_to(int block, unsigned source, int bytes, uint64* barrier) {
    asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     address_in(source, block)),
                 "r"(source), "r"(bytes), "r"(address_in(shared_address(barrier), block))
                 : "memory");
}

// A bulk copy into shared memory that completes on the barrier, which expects its bytes.
__device__ __forceinline__ void copy_bulk(unsigned target, const void* source, int bytes, uint64* barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     target),
                 "l"(source), "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
}
// The same where it is all that the barrier expects.
__device__ __forceinline__ void fetch(unsigned target, const void* source, int bytes, uint64* barrier) {
    barrier_expect(barrier, bytes);
    copy_bulk(target, source, bytes, barrier);
}
