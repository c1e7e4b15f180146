// Shared by the tf32x3 kernels of mma.sync: FP32 factors as two TF32 numbers, and the instruction on them.
//
// Of the including file's macros, PRODUCTS is used.
#pragma once

#include "common/convolution.cuh"

// big is x rounded to nearest; of small the tensor cores ignore the low 13 bits. A NaN stays one in small. Where there
// is one product, big is all.
__device__ __forceinline__ void split(float x, unsigned& big, unsigned& small) {
#if PRODUCTS == 3
    big = (__float_as_uint(x) + 0x1000u) & 0xffffe000u;
    small = __float_as_uint(x - __uint_as_float(big));
#else
    big = __float_as_uint(round_to_tf32(x));
#endif
}

__device__ __forceinline__ void mma(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
