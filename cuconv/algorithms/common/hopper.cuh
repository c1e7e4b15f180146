// Inline PTX of Hopper's instructions, for all kernels: mbarriers, bulk copies, clusters, fences, register counts and
// flags in global memory. The tensor cores' instructions are in common/wgmma.cuh. Each comment names the instruction.
#pragma once

#include "common/convolution.cuh"

// fence.proxy.async: orders this thread's accesses to shared memory before those of wgmma and of bulk copies, which go
// through the async proxy: its writes before their reads, and its reads before their writes.
__device__ __forceinline__ void fence_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// fence.mbarrier_init: makes initialised mbarriers visible to the other blocks of the cluster.
__device__ __forceinline__ void fence_barrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// bar.sync: a barrier for THREADS threads of the block, in whole warps. Number 0 is the one of __syncthreads().
template <int THREADS>
__device__ __forceinline__ void named_barrier(int number) {
    asm volatile("bar.sync %0, %1;" ::"r"(number), "n"(THREADS) : "memory");
}
// The same with a constant number, an immediate operand: it takes no register.
template <int NUMBER, int THREADS>
__device__ __forceinline__ void named_barrier() {
    asm volatile("bar.sync %0, %1;" ::"n"(NUMBER), "n"(THREADS) : "memory");
}
// bar.red.popc: the same barrier; returns the number of threads for which the condition holds.
template <int THREADS>
__device__ __forceinline__ int named_barrier_count(int number, bool condition) {
    int count;
    asm volatile("{.reg .pred p; setp.ne.s32 p, %1, 0; bar.red.popc.u32 %0, %2, %3, p;}"
                 : "=r"(count)
                 : "r"((int)condition), "r"(number), "n"(THREADS)
                 : "memory");
    return count;
}

// setmaxnreg: producer warpgroups lower their register count per thread to COUNT so that consumers can raise theirs.
template <int COUNT>
__device__ __forceinline__ void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT>
__device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// A flag in global memory. set_flag is a release store, wait_for_flag an acquire load: a block that returns from the
// wait sees all writes before set_flag, also those of other threads if a barrier ordered them before it.
__device__ __forceinline__ void set_flag(unsigned* flag) {
    asm volatile("st.release.gpu.global.u32 [%0], 1;" ::"l"(flag) : "memory");
}
__device__ __forceinline__ void wait_for_flag(const unsigned* flag) {
    unsigned value;
    do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
    while (!value);
}

// mbarrier.init, .arrive and .arrive.expect_tx: a phase completes after `arrivals` arrivals and all expected bytes.
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
// cp.async.mbarrier.arrive.noinc: arrives once the cp.async copies of this thread so far have completed.
__device__ __forceinline__ void barrier_arrive_after_copies(uint64* barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}
// cp.async.wait_all: waits for the cp.async copies of this thread.
__device__ __forceinline__ void wait_for_all_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
#define BARRIER_WAIT(scope)                                                         \
    asm volatile(                                                                   \
        "{.reg .pred done;\n"                                                       \
        "again: mbarrier.try_wait.parity" scope ".shared::cta.b64 done, [%0], %1;\n" \
        "@!done bra again;}" ::"r"(shared_address(barrier)),                        \
        "r"(parity)                                                                 \
        : "memory")
// mbarrier.try_wait.parity in a loop: returns once the phase of this parity has completed.
__device__ __forceinline__ void barrier_wait(uint64* barrier, int parity) { BARRIER_WAIT(""); }
// The same with .acquire.cluster, for data that other blocks of the cluster have sent. It invalidates the L1 cache.
__device__ __forceinline__ void barrier_wait_cluster(uint64* barrier, int parity) { BARRIER_WAIT(".acquire.cluster"); }
// mbarrier.test_wait.parity: whether the phase of this parity has completed.
__device__ __forceinline__ bool barrier_passed(uint64* barrier, int parity) {
    int passed;
    asm volatile("{.reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; selp.b32 %0, 1, 0, p;}"
                 : "=r"(passed)
                 : "r"(shared_address(barrier)), "r"(parity)
                 : "memory");
    return passed;
}

// barrier.cluster.arrive and .wait: a barrier of all threads of the cluster, in two halves. The relaxed arrival orders
// no memory accesses; the wait is an acquire.
__device__ __forceinline__ void cluster_arrive_relaxed() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
// The whole barrier with a releasing arrival: what the cluster's threads wrote before it is visible to all behind it.
__device__ __forceinline__ void cluster_barrier() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    cluster_wait();
}

// mapa: the same shared-memory address in another block of the cluster.
__device__ __forceinline__ unsigned address_in(unsigned address, int block) {
    unsigned remote;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(block));
    return remote;
}
// mbarrier.arrive on the same barrier of another block of the cluster.
__device__ __forceinline__ void barrier_arrive_in(uint64* barrier, int block) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(address_in(shared_address(barrier), block))
                 : "memory");
}

// cp.async.bulk from shared memory to the same place in another block of the cluster. It completes on that block's
// barrier, which must expect the bytes.
__device__ __forceinline__ void copy_bulk_to(int block, unsigned source, int bytes, uint64* barrier) {
    asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     address_in(source, block)),
                 "r"(source), "r"(bytes), "r"(address_in(shared_address(barrier), block))
                 : "memory");
}

// cp.async.bulk from global to shared memory. It completes on the barrier, which must expect the bytes.
__device__ __forceinline__ void copy_bulk(unsigned target, const void* source, int bytes, uint64* barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     target),
                 "l"(source), "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
}
// The same for a barrier that expects nothing else: announces the bytes, then copies.
__device__ __forceinline__ void fetch(unsigned target, const void* source, int bytes, uint64* barrier) {
    barrier_expect(barrier, bytes);
    copy_bulk(target, source, bytes, barrier);
}
