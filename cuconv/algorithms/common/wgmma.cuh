// The one layer of Hopper's asynchronous matrix instructions (PTX ISA, "wgmma"): the instruction for N columns, and the
// statements that order it. WGMMA_N, a multiple of 8 up to 160, is the including file's.
//
// An instruction multiplies a tile A of 64 rows with a tile B of WGMMA_N columns. Each thread of the warpgroup holds
// WGMMA_N / 2 sums: of rows 8 apart and columns 8 apart, two side by side.
#pragma once

#include "common/convolution.cuh"

constexpr int WGMMA_SUMS = WGMMA_N / 2;

// Inline assembly has no loops, so its operands are lists. WGMMA_EACH_n(X, separator) is X(a, b, c, d) for each four of
// the n / 2 sums, operands 0, 1, ...; WGMMA_AFTER_n(X) is X(the six operands that follow the sums).
#define WGMMA_COMMA() ,
#define WGMMA_TEXT_COMMA() ","
#define WGMMA_EACH_8(X, separator) X(0, 1, 2, 3)
#define WGMMA_EACH_16(X, separator) WGMMA_EACH_8(X, separator) separator() X(4, 5, 6, 7)
#define WGMMA_EACH_24(X, separator) WGMMA_EACH_16(X, separator) separator() X(8, 9, 10, 11)
#define WGMMA_EACH_32(X, separator) WGMMA_EACH_24(X, separator) separator() X(12, 13, 14, 15)
#define WGMMA_EACH_40(X, separator) WGMMA_EACH_32(X, separator) separator() X(16, 17, 18, 19)
#define WGMMA_EACH_48(X, separator) WGMMA_EACH_40(X, separator) separator() X(20, 21, 22, 23)
#define WGMMA_EACH_56(X, separator) WGMMA_EACH_48(X, separator) separator() X(24, 25, 26, 27)
#define WGMMA_EACH_64(X, separator) WGMMA_EACH_56(X, separator) separator() X(28, 29, 30, 31)
#define WGMMA_EACH_72(X, separator) WGMMA_EACH_64(X, separator) separator() X(32, 33, 34, 35)
#define WGMMA_EACH_80(X, separator) WGMMA_EACH_72(X, separator) separator() X(36, 37, 38, 39)
#define WGMMA_EACH_88(X, separator) WGMMA_EACH_80(X, separator) separator() X(40, 41, 42, 43)
#define WGMMA_EACH_96(X, separator) WGMMA_EACH_88(X, separator) separator() X(44, 45, 46, 47)
#define WGMMA_EACH_104(X, separator) WGMMA_EACH_96(X, separator) separator() X(48, 49, 50, 51)
#define WGMMA_EACH_112(X, separator) WGMMA_EACH_104(X, separator) separator() X(52, 53, 54, 55)
#define WGMMA_EACH_120(X, separator) WGMMA_EACH_112(X, separator) separator() X(56, 57, 58, 59)
#define WGMMA_EACH_128(X, separator) WGMMA_EACH_120(X, separator) separator() X(60, 61, 62, 63)
#define WGMMA_EACH_136(X, separator) WGMMA_EACH_128(X, separator) separator() X(64, 65, 66, 67)
#define WGMMA_EACH_144(X, separator) WGMMA_EACH_136(X, separator) separator() X(68, 69, 70, 71)
#define WGMMA_EACH_152(X, separator) WGMMA_EACH_144(X, separator) separator() X(72, 73, 74, 75)
#define WGMMA_EACH_160(X, separator) WGMMA_EACH_152(X, separator) separator() X(76, 77, 78, 79)
#define WGMMA_AFTER_8(X) X(4, 5, 6, 7, 8, 9)
#define WGMMA_AFTER_16(X) X(8, 9, 10, 11, 12, 13)
#define WGMMA_AFTER_24(X) X(12, 13, 14, 15, 16, 17)
#define WGMMA_AFTER_32(X) X(16, 17, 18, 19, 20, 21)
#define WGMMA_AFTER_40(X) X(20, 21, 22, 23, 24, 25)
#define WGMMA_AFTER_48(X) X(24, 25, 26, 27, 28, 29)
#define WGMMA_AFTER_56(X) X(28, 29, 30, 31, 32, 33)
#define WGMMA_AFTER_64(X) X(32, 33, 34, 35, 36, 37)
#define WGMMA_AFTER_72(X) X(36, 37, 38, 39, 40, 41)
#define WGMMA_AFTER_80(X) X(40, 41, 42, 43, 44, 45)
#define WGMMA_AFTER_88(X) X(44, 45, 46, 47, 48, 49)
#define WGMMA_AFTER_96(X) X(48, 49, 50, 51, 52, 53)
#define WGMMA_AFTER_104(X) X(52, 53, 54, 55, 56, 57)
#define WGMMA_AFTER_112(X) X(56, 57, 58, 59, 60, 61)
#define WGMMA_AFTER_120(X) X(60, 61, 62, 63, 64, 65)
#define WGMMA_AFTER_128(X) X(64, 65, 66, 67, 68, 69)
#define WGMMA_AFTER_136(X) X(68, 69, 70, 71, 72, 73)
#define WGMMA_AFTER_144(X) X(72, 73, 74, 75, 76, 77)
#define WGMMA_AFTER_152(X) X(76, 77, 78, 79, 80, 81)
#define WGMMA_AFTER_160(X) X(80, 81, 82, 83, 84, 85)
#define WGMMA_PASTE_OF(list, n) list##n
#define WGMMA_PASTE(list, n) WGMMA_PASTE_OF(list, n)
#define WGMMA_TEXT_OF(x) #x
#define WGMMA_TEXT(x) WGMMA_TEXT_OF(x)
#define WGMMA_NAME(a, b, c, d) "%" #a ",%" #b ",%" #c ",%" #d
#define WGMMA_SUM(i, j, k, l) "+f"(d[i]), "+f"(d[j]), "+f"(d[k]), "+f"(d[l])
#define WGMMA_NAMES WGMMA_PASTE(WGMMA_EACH_, WGMMA_N)(WGMMA_NAME, WGMMA_TEXT_COMMA)
#define WGMMA_OPERANDS WGMMA_PASTE(WGMMA_EACH_, WGMMA_N)(WGMMA_SUM, WGMMA_COMMA)
#define WGMMA_AFTER(X) WGMMA_PASTE(WGMMA_AFTER_, WGMMA_N)(X)

// d = a * b, or d += a * b where `keep` is not 0. FP16, both operands in shared memory. a, b: lower halves of their
// descriptors; the upper half of both is the 128 bytes, in units of 16, from eight rows (columns) to the next.
#define WGMMA_BEFORE(a, b, keep, ...) \
    "{.reg .pred p; .reg .b64 a, b; setp.ne.b32 p, %" #keep ", 0; mov.b64 a, {%" #a ", 8}; mov.b64 b, {%" #b ", 8};"
__device__ __forceinline__ void wgmma_f16(float* d, unsigned a, unsigned b, int keep) {
    asm volatile(WGMMA_AFTER(WGMMA_BEFORE)
                 "wgmma.mma_async.sync.aligned.m64n" WGMMA_TEXT(WGMMA_N) "k16.f32.f16.f16 {" WGMMA_NAMES
                 "}, a, b, p, 1, 1, 0, 0;}"
                 : WGMMA_OPERANDS, "+r"(a), "+r"(b), "+r"(keep));
}
#undef WGMMA_BEFORE

// The same with A in registers.
#define WGMMA_BEFORE(a0, a1, a2, a3, b, keep) \
    "{.reg .pred p; .reg .b64 b; setp.ne.b32 p, %" #keep ", 0; mov.b64 b, {%" #b ", 8};"
#define WGMMA_A(a0, a1, a2, a3, b, keep) "{%" #a0 ",%" #a1 ",%" #a2 ",%" #a3 "}"
__device__ __forceinline__ void wgmma_f16(float (&d)[WGMMA_SUMS], const unsigned (&a)[4], unsigned b, int keep) {
    asm volatile(WGMMA_AFTER(WGMMA_BEFORE)
                 "wgmma.mma_async.sync.aligned.m64n" WGMMA_TEXT(WGMMA_N) "k16.f32.f16.f16 {" WGMMA_NAMES
                 "}, " WGMMA_AFTER(WGMMA_A) ", b, p, 1, 1, 0;}"
                 : WGMMA_OPERANDS
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(keep));
}
#undef WGMMA_BEFORE

// The same in TF32, which ignores the low 13 bits of a. b: the whole descriptor.
#define WGMMA_BEFORE(a0, a1, a2, a3, b, keep) "{.reg .pred p; setp.ne.b32 p, %" #keep ", 0;"
#define WGMMA_B(a0, a1, a2, a3, b, keep) "%" #b
__device__ __forceinline__ void wgmma_tf32(float (&d)[WGMMA_SUMS], const float (&a)[4], uint64 b, int keep) {
    asm volatile(WGMMA_AFTER(WGMMA_BEFORE)
                 "wgmma.mma_async.sync.aligned.m64n" WGMMA_TEXT(WGMMA_N) "k8.f32.tf32.tf32 {" WGMMA_NAMES
                 "}, " WGMMA_AFTER(WGMMA_A) ", " WGMMA_AFTER(WGMMA_B) ", p, 1, 1;}"
                 : WGMMA_OPERANDS
                 : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])),
                   "r"(__float_as_uint(a[3])), "l"(b), "r"(keep));
}
#undef WGMMA_BEFORE

// Before the first wgmma that reads registers which other instructions have written.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
// Closes the group of all wgmma since the last one.
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits for every group, and keeps the compiler from reading the sums before.
template <int COUNT>
__device__ __forceinline__ void wgmma_wait(float (&d)[COUNT]) {
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
    for (int i = 0; i < COUNT; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// Lower half of the descriptor of K-major core matrices of 8 rows x 16 bytes, one after the other; `depth_bytes` to the
// next 8 in depth. The upper half is the same for all: the 128 bytes, in units of 16, to the next 8 rows.
__device__ __forceinline__ unsigned core_descriptor(unsigned address, int depth_bytes) {
    return address >> 4 & 0x3fff | depth_bytes >> 4 << 16;
}

// The descriptor of a K-major tile of rows of 128 bytes, swizzled in groups of eight rows.
__device__ __forceinline__ uint64 swizzled_descriptor(const float* tile) {
    return (uint64)(shared_address(tile) >> 4 & 0x3fff) | 1ull << 16 | (uint64)(1024 >> 4) << 32 | 1ull << 62;
}
