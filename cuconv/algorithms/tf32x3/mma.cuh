// The tensor-core instruction of compute capability 8.0 and up, for the tf32x3 kernels that also run below Hopper, and
// parts as its operands.
#pragma once

#include "tf32x3/parts.cuh"

// d += a * b by one warp: mma.sync m16n8k8 in TF32 (PTX ISA, "Matrix fragments for mma.m16n8k8"). Thread t of the warp
// holds rows t / 4 and t / 4 + 8 of A, and column t / 4 of B, at depths t % 4 and t % 4 + 4.
__device__ __forceinline__ void mma(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Decomposes x into the bits of its parts.
__device__ __forceinline__ void decompose(float x, unsigned& big, unsigned& small) {
    float big_part, small_part;
    decompose(x, big_part, small_part);
    big = __float_as_uint(big_part);
    if (PARTS == 2) small = __float_as_uint(small_part);
}
