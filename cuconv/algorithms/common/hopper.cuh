// The one layer of Hopper's instructions (PTX ISA): barriers in shared memory, bulk copies that complete on them,
// clusters, fences and registers. Those of the tensor cores are in common/wgmma.cuh.
#pragma once

#include "common/convolution.cuh"

// Orders writes to shared memory before what the tensor cores and bulk copies read there.
__device__ __forceinline__ void fence_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// Makes initialised barriers known to the other blocks of the cluster.
__device__ __forceinline__ void fence_barrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// A barrier of some of a block's threads, whole warps; number 0 is that of __syncthreads().
template <int THREADS>
__device__ __forceinline__ void named_barrier(int number) {
    asm volatile("bar.sync %0, %1;" ::"r"(number), "n"(THREADS) : "memory");
}

// Moves registers between the warpgroups of a block: each of a warpgroup's threads gives some back, or gets more.
template <int COUNT>
__device__ __forceinline__ void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT>
__device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// A flag in global memory: a store that releases what the thread knows of, and a wait for it that acquires that.
__device__ __forceinline__ void set_flag(unsigned* flag) {
    asm volatile("st.release.gpu.global.u32 [%0], 1;" ::"l"(flag) : "memory");
}
__device__ __forceinline__ void wait_for_flag(const unsigned* flag) {
    unsigned value;
    do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
    while (!value);
}

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
