// Elements of channels-last tensors, and pairs of neighbours. TF32: 1 for float32, which copies and products round to
// TF32. BF16: 1 for BF16, 0 for FP16.
#pragma once

#if TF32
typedef float Element;
typedef float2 Pair;

__device__ __forceinline__ Pair pair_of(Element first, Element second) { return make_float2(first, second); }
__device__ __forceinline__ Pair packed(float first, float second) { return make_float2(first, second); }
__device__ __forceinline__ Element first_of(Pair pair) { return pair.x; }
__device__ __forceinline__ Element second_of(Pair pair) { return pair.y; }
__device__ __forceinline__ float value_of(Element element) { return element; }
// The pair of another lane of the warp.
__device__ __forceinline__ Pair pair_from(Pair pair, int lane) {
    return make_float2(__shfl_sync(~0u, pair.x, lane), __shfl_sync(~0u, pair.y, lane));
}
#else
typedef unsigned short Element;
typedef unsigned Pair;

__device__ __forceinline__ Pair pair_of(Element first, Element second) { return first | (unsigned)second << 16; }
__device__ __forceinline__ Element first_of(Pair pair) { return (Element)pair; }
__device__ __forceinline__ Element second_of(Pair pair) { return (Element)(pair >> 16); }
__device__ __forceinline__ Pair pair_from(Pair pair, int lane) { return __shfl_sync(~0u, pair, lane); }

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
#endif
