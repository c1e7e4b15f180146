// Inline PTX of Hopper's asynchronous matrix instructions (PTX ISA, "wgmma"), for all kernels: wgmma.mma_async, the
// statements that order it, and the descriptors of tiles in shared memory.
//
// WGMMA_N  columns of tile B, a multiple of 8 up to 256; defined before this file is included
// WGMMA_2N  optional: twice as many, for wgmma_f16_2n
// WGMMA_HALF  optional: f16 or bf16, for wgmma_half, and wgmma_shared of the type
// WGMMA_SHARED_TF32  optional: for wgmma_shared in TF32
//
// An instruction multiplies a tile A of 64 rows by a tile B of WGMMA_N columns. A warp has 16 of the rows. A thread
// holds WGMMA_N / 2 sums: for every 8 columns two neighbours in one row and two in the row 8 below.
#pragma once

#include "common/convolution.cuh"

constexpr int WGMMA_SUMS = WGMMA_N / 2;

// Inline assembly cannot loop, so macros write the operands out. The sums are operands 0 to n / 2 - 1:
//   WGMMA_EACH_n(X, separator)  is X(a, b, c, d) for every four of them;
//   WGMMA_AFTER_n(X)            is X of the six operands that follow them.
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
#define WGMMA_EACH_168(X, separator) WGMMA_EACH_160(X, separator) separator() X(80, 81, 82, 83)
#define WGMMA_EACH_176(X, separator) WGMMA_EACH_168(X, separator) separator() X(84, 85, 86, 87)
#define WGMMA_EACH_184(X, separator) WGMMA_EACH_176(X, separator) separator() X(88, 89, 90, 91)
#define WGMMA_EACH_192(X, separator) WGMMA_EACH_184(X, separator) separator() X(92, 93, 94, 95)
#define WGMMA_EACH_200(X, separator) WGMMA_EACH_192(X, separator) separator() X(96, 97, 98, 99)
#define WGMMA_EACH_208(X, separator) WGMMA_EACH_200(X, separator) separator() X(100, 101, 102, 103)
#define WGMMA_EACH_216(X, separator) WGMMA_EACH_208(X, separator) separator() X(104, 105, 106, 107)
#define WGMMA_EACH_224(X, separator) WGMMA_EACH_216(X, separator) separator() X(108, 109, 110, 111)
#define WGMMA_EACH_232(X, separator) WGMMA_EACH_224(X, separator) separator() X(112, 113, 114, 115)
#define WGMMA_EACH_240(X, separator) WGMMA_EACH_232(X, separator) separator() X(116, 117, 118, 119)
#define WGMMA_EACH_248(X, separator) WGMMA_EACH_240(X, separator) separator() X(120, 121, 122, 123)
#define WGMMA_EACH_256(X, separator) WGMMA_EACH_248(X, separator) separator() X(124, 125, 126, 127)
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
#define WGMMA_AFTER_168(X) X(84, 85, 86, 87, 88, 89)
#define WGMMA_AFTER_176(X) X(88, 89, 90, 91, 92, 93)
#define WGMMA_AFTER_184(X) X(92, 93, 94, 95, 96, 97)
#define WGMMA_AFTER_192(X) X(96, 97, 98, 99, 100, 101)
#define WGMMA_AFTER_200(X) X(100, 101, 102, 103, 104, 105)
#define WGMMA_AFTER_208(X) X(104, 105, 106, 107, 108, 109)
#define WGMMA_AFTER_216(X) X(108, 109, 110, 111, 112, 113)
#define WGMMA_AFTER_224(X) X(112, 113, 114, 115, 116, 117)
#define WGMMA_AFTER_232(X) X(116, 117, 118, 119, 120, 121)
#define WGMMA_AFTER_240(X) X(120, 121, 122, 123, 124, 125)
#define WGMMA_AFTER_248(X) X(124, 125, 126, 127, 128, 129)
#define WGMMA_AFTER_256(X) X(128, 129, 130, 131, 132, 133)
#define WGMMA_PASTE_OF(list, n) list##n
#define WGMMA_PASTE(list, n) WGMMA_PASTE_OF(list, n)
#define WGMMA_TEXT_OF(x) #x
#define WGMMA_TEXT(x) WGMMA_TEXT_OF(x)
#define WGMMA_NAME(a, b, c, d) "%" #a ",%" #b ",%" #c ",%" #d
#define WGMMA_SUM(i, j, k, l) "+f"(d[i]), "+f"(d[j]), "+f"(d[k]), "+f"(d[l])
#define WGMMA_NAMES(n) WGMMA_PASTE(WGMMA_EACH_, n)(WGMMA_NAME, WGMMA_TEXT_COMMA)
#define WGMMA_OPERANDS(n) WGMMA_PASTE(WGMMA_EACH_, n)(WGMMA_SUM, WGMMA_COMMA)
#define WGMMA_AFTER(X, n) WGMMA_PASTE(WGMMA_AFTER_, n)(X)

// d = a * b, or d += a * b where `keep` is not 0. FP16, both tiles in shared memory. a and b are the lower halves of
// their descriptors (core_descriptor); the upper half is 128 bytes / 16 = 8 for both.
#define WGMMA_BEFORE(a, b, keep, ...) \
    "{.reg .pred p; .reg .b64 a, b; setp.ne.b32 p, %" #keep ", 0; mov.b64 a, {%" #a ", 8}; mov.b64 b, {%" #b ", 8};"
#define WGMMA_F16(name, n) \
    __device__ __forceinline__ void name(float* d, unsigned a, unsigned b, int keep) { \
        asm volatile(WGMMA_AFTER(WGMMA_BEFORE, n) "wgmma.mma_async.sync.aligned.m64n" WGMMA_TEXT(n) \
                     "k16.f32.f16.f16 {" WGMMA_NAMES(n) "}, a, b, p, 1, 1, 0, 0;}" \
                     : WGMMA_OPERANDS(n), "+r"(a), "+r"(b), "+r"(keep)); \
    }
WGMMA_F16(wgmma_f16, WGMMA_N)
#ifdef WGMMA_2N
WGMMA_F16(wgmma_f16_2n, WGMMA_2N)
#endif
#undef WGMMA_F16
#undef WGMMA_BEFORE

// The same with tile A in registers.
#define WGMMA_BEFORE(a0, a1, a2, a3, b, keep) \
    "{.reg .pred p; .reg .b64 b; setp.ne.b32 p, %" #keep ", 0; mov.b64 b, {%" #b ", 8};"
#define WGMMA_A(a0, a1, a2, a3, b, keep) "{%" #a0 ",%" #a1 ",%" #a2 ",%" #a3 "}"
__device__ __forceinline__ void wgmma_f16(float (&d)[WGMMA_SUMS], const unsigned (&a)[4], unsigned b, int keep) {
    asm volatile(WGMMA_AFTER(WGMMA_BEFORE, WGMMA_N)
                 "wgmma.mma_async.sync.aligned.m64n" WGMMA_TEXT(WGMMA_N) "k16.f32.f16.f16 {" WGMMA_NAMES(WGMMA_N)
                 "}, " WGMMA_AFTER(WGMMA_A, WGMMA_N) ", b, p, 1, 1, 0;}"
                 : WGMMA_OPERANDS(WGMMA_N)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(keep));
}
#undef WGMMA_BEFORE

// The same in TF32: the instruction ignores the low 13 bits of each element. b is the whole descriptor.
#define WGMMA_BEFORE(a0, a1, a2, a3, b, keep) "{.reg .pred p; setp.ne.b32 p, %" #keep ", 0;"
#define WGMMA_B(a0, a1, a2, a3, b, keep) "%" #b
__device__ __forceinline__ void wgmma_tf32(float (&d)[WGMMA_SUMS], const float (&a)[4], uint64 b, int keep) {
    asm volatile(WGMMA_AFTER(WGMMA_BEFORE, WGMMA_N)
                 "wgmma.mma_async.sync.aligned.m64n" WGMMA_TEXT(WGMMA_N) "k8.f32.tf32.tf32 {" WGMMA_NAMES(WGMMA_N)
                 "}, " WGMMA_AFTER(WGMMA_A, WGMMA_N) ", " WGMMA_AFTER(WGMMA_B, WGMMA_N) ", p, 1, 1;}"
                 : WGMMA_OPERANDS(WGMMA_N)
                 : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])),
                   "r"(__float_as_uint(a[3])), "l"(b), "r"(keep));
}
#undef WGMMA_BEFORE

#ifdef WGMMA_HALF
#define WGMMA_KIND "k16.f32." WGMMA_TEXT(WGMMA_HALF) "." WGMMA_TEXT(WGMMA_HALF)
#define WGMMA_MAJOR ", 0, 0"
#elif defined(WGMMA_SHARED_TF32)
#define WGMMA_KIND "k8.f32.tf32.tf32"
#define WGMMA_MAJOR ""  // tiles in TF32 are always K-major
#endif

#ifdef WGMMA_KIND
// The same in FP16, BF16 or TF32, both tiles in shared memory. a and b are the whole descriptors (tile_descriptor).
#define WGMMA_BEFORE(a, b, keep, ...) "{.reg .pred p; setp.ne.b32 p, %" #keep ", 0;"
#define WGMMA_A_B(a, b, ...) "%" #a ", %" #b
__device__ __forceinline__ void wgmma_shared(float (&d)[WGMMA_SUMS], uint64 a, uint64 b, int keep) {
    asm volatile(WGMMA_AFTER(WGMMA_BEFORE, WGMMA_N)
                 "wgmma.mma_async.sync.aligned.m64n" WGMMA_TEXT(WGMMA_N) WGMMA_KIND " {" WGMMA_NAMES(WGMMA_N) "}, "
                 WGMMA_AFTER(WGMMA_A_B, WGMMA_N) ", p, 1, 1" WGMMA_MAJOR ";}"
                 : WGMMA_OPERANDS(WGMMA_N)
                 : "l"(a), "l"(b), "r"(keep));
}
#undef WGMMA_BEFORE
#endif

#ifdef WGMMA_HALF
// The same in FP16 or BF16 with tile A in registers.
#define WGMMA_BEFORE(a0, a1, a2, a3, b, keep) "{.reg .pred p; setp.ne.b32 p, %" #keep ", 0;"
__device__ __forceinline__ void wgmma_half(float (&d)[WGMMA_SUMS], const unsigned (&a)[4], uint64 b, int keep) {
    asm volatile(WGMMA_AFTER(WGMMA_BEFORE, WGMMA_N)
                 "wgmma.mma_async.sync.aligned.m64n" WGMMA_TEXT(WGMMA_N) WGMMA_KIND " {" WGMMA_NAMES(WGMMA_N) "}, "
                 WGMMA_AFTER(WGMMA_A, WGMMA_N) ", " WGMMA_AFTER(WGMMA_B, WGMMA_N) ", p, 1, 1, 0;}"
                 : WGMMA_OPERANDS(WGMMA_N)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(keep));
}
#undef WGMMA_BEFORE
#endif

// wgmma.fence: needed before the first wgmma that reads registers written by other instructions.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
// wgmma.commit_group: closes the group of all wgmma since the last commit.
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// wgmma.wait_group 1: waits for every group but the last one.
__device__ __forceinline__ void wgmma_wait_for_all_but_one() {
    asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
}
// wgmma.wait_group 0: waits for every group. The empty statements keep the compiler from reading the sums earlier.
template <int COUNT>
__device__ __forceinline__ void wgmma_wait(float (&d)[COUNT]) {
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
    for (int i = 0; i < COUNT; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// The lower half of a matrix descriptor without swizzle (PTX ISA, "Matrix descriptor"). The tile is K-major, in core
// matrices of 8 rows x 16 bytes. The next 8 rows follow 128 bytes later: the descriptor's upper half says so, in
// units of 16 bytes. The next 16 bytes in depth follow `depth_bytes` later.
__device__ __forceinline__ unsigned core_descriptor(unsigned address, int depth_bytes) {
    return address >> 4 & 0x3fff | depth_bytes >> 4 << 16;
}

// The descriptor of a K-major tile in rows of 128 bytes with the 128-byte swizzle, which repeats every 8 rows.
__device__ __forceinline__ uint64 swizzled_descriptor(const float* tile) {
    return (uint64)(shared_address(tile) >> 4 & 0x3fff) | 1ull << 16 | (uint64)(1024 >> 4) << 32 | 1ull << 62;
}
// The descriptor of a K-major tile in rows of ROW_BYTES (32, 64 or 128) with the swizzle of that width. The next 16
// bytes in depth follow 16 bytes later, the next 8 rows 8 row lengths later.
template <int ROW_BYTES>
__device__ __forceinline__ uint64 tile_descriptor(unsigned tile) {
    constexpr uint64 layout = ROW_BYTES == 128 ? 1 : ROW_BYTES == 64 ? 2 : 3;
    return (uint64)(tile >> 4 & 0x3fff) | 1ull << 16 | (uint64)(8 * ROW_BYTES >> 4) << 32 | layout << 62;
}
