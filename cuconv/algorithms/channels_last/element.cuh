// Elements of tensors in half precision, of the type that the macro BF16 names: 1 for BF16, 0 for FP16.
#pragma once

typedef unsigned short Element;

// Two numbers, each rounded once; `first` is in the lower half, at the lower address.
__device__ __forceinline__ unsigned packed(float first, float second) {
    unsigned pair;
#if BF16
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
#else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
#endif
    return pair;
}
__device__ __forceinline__ float value_of(Element element) {
#if BF16
    return __uint_as_float((unsigned)element << 16);
#else
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(element));
    return value;
#endif
}
// The values of eight elements.
__device__ __forceinline__ void unpack(float (&values)[8], const uint4& elements) {
    const unsigned pairs[] = {elements.x, elements.y, elements.z, elements.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) values[i] = value_of((Element)(pairs[i / 2] >> i % 2 * 16));
}
