// Inline PTX of tensor maps (PTX ISA, "cp.async.bulk.tensor"): one thread starts a copy of a box of a tensor between
// global and shared memory. Each comment names the instruction. All of them are executed by one thread of a warp.
#pragma once

#include "common/hopper.cuh"

// CUtensorMap: a tensor and the box that a copy takes, as the driver encodes them. It is a kernel's argument, and must
// be declared __grid_constant__.
struct alignas(64) TensorMap {
    uint64 opaque[16];
};

// elect.sync: true in one lane of a converged warp. The compiler knows that this lane is alone; behind `lane == 0` it
// wraps every copy in a loop over the lanes.
__device__ __forceinline__ bool elect_one() {
    int elected;
    asm volatile("{.reg .pred p; elect.sync _|p, 0xffffffff; selp.b32 %0, 1, 0, p;}" : "=r"(elected));
    return elected;
}

// True in one thread of a block's first warp. All threads of that warp must call it.
__device__ __forceinline__ bool is_leader() { return threadIdx.x < 32 && elect_one(); }

// prefetch.tensormap: fetches a map ahead of its first copy.
__device__ __forceinline__ void prefetch(const TensorMap& map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// Copies one filter position of successive output pixels to shared memory: .im2col of a map of four dimensions. x and y
// are the place of the first pixel's filter in the image, tap_x and tap_y of the filter position in the filter. The
// barrier must expect the whole box: what lies outside the tensor becomes zeros.
__device__ __forceinline__ void copy_pixels(unsigned target, const TensorMap& map, int channel, int x, int y, int image,
                                            int tap_x, int tap_y, uint64* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3, %4, %5}], [%6], {%7, %8};" ::"r"(target),
        "l"(&map), "r"(channel), "r"(x), "r"(y), "r"(image), "r"(shared_address(barrier)), "h"((short)tap_x),
        "h"((short)tap_y)
        : "memory");
}

// The same of a map of five dimensions, the outermost of which is the group: images take the place of the depth, where
// the filter has one position.
__device__ __forceinline__ void copy_pixels(unsigned target, const TensorMap& map, int channel, int x, int y, int image,
                                            int group, int tap_x, int tap_y, uint64* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3, %4, %5, %6}], [%7], {%8, %9, %10};" ::"r"(target),
        "l"(&map), "r"(channel), "r"(x), "r"(y), "r"(image), "r"(group), "r"(shared_address(barrier)),
        "h"((short)tap_x), "h"((short)tap_y), "h"((short)0)
        : "memory");
}

// Copies a box of three dimensions to shared memory: .tile. The barrier must expect the whole box, as above.
__device__ __forceinline__ void copy_box(unsigned target, const TensorMap& map, int x, int y, int z, uint64* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(target),
        "l"(&map), "r"(x), "r"(y), "r"(z), "r"(shared_address(barrier))
        : "memory");
}

// The same of two dimensions.
__device__ __forceinline__ void copy_box(unsigned target, const TensorMap& map, int x, int y, uint64* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3}], [%4];" ::"r"(target),
        "l"(&map), "r"(x), "r"(y), "r"(shared_address(barrier))
        : "memory");
}
// The same of four dimensions.
__device__ __forceinline__ void copy_box(unsigned target, const TensorMap& map, int x, int y, int z, int w,
                                         uint64* barrier) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(target),
        "l"(&map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(shared_address(barrier))
        : "memory");
}

// Copies a box of two dimensions from shared memory, without what lies outside the tensor.
__device__ __forceinline__ void store_box(const TensorMap& map, unsigned source, int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map), "r"(x),
                 "r"(y), "r"(source)
                 : "memory");
}
// The same of three dimensions.
__device__ __forceinline__ void store_box(const TensorMap& map, unsigned source, int x, int y, int z) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(&map),
                 "r"(x), "r"(y), "r"(z), "r"(source)
                 : "memory");
}
// cp.async.bulk.commit_group: closes the group of this thread's stores since the last one.
__device__ __forceinline__ void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// cp.async.bulk.wait_group.read: waits until all but the last LEFT groups have read shared memory.
template <int LEFT>
__device__ __forceinline__ void wait_for_reads_of_stores() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(LEFT) : "memory");
}
// cp.async.bulk.wait_group: waits until all of this thread's stores are done.
__device__ __forceinline__ void wait_for_stores() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// stmatrix and ldmatrix: store and load four 8x8 matrices of 16-bit elements. Lane l has the address of row l % 8 of
// matrix l / 8.
__device__ __forceinline__ void store_matrices(unsigned row, unsigned m0, unsigned m1, unsigned m2, unsigned m3) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(m0), "r"(m1),
                 "r"(m2), "r"(m3)
                 : "memory");
}
__device__ __forceinline__ void load_matrices(unsigned row, unsigned (&matrices)[4]) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
                 : "r"(row)
                 : "memory");
}
