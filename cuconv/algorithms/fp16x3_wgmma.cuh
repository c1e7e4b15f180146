// The tensor cores' instruction on FP16, both operands in shared memory, for COLUMNS of B: a multiple of 8 up to 128.
#pragma once

constexpr int WGMMA_SUMS = COLUMNS / 2;  // of a thread, for 64 rows of A

// X(a, b, c, d) for each four operands of the asm statement that are sums; they follow a, b and keep.
#define EACH_8(X, comma) X(3, 4, 5, 6)
#define EACH_16(X, comma) EACH_8(X, comma) comma X(7, 8, 9, 10)
#define EACH_24(X, comma) EACH_16(X, comma) comma X(11, 12, 13, 14)
#define EACH_32(X, comma) EACH_24(X, comma) comma X(15, 16, 17, 18)
#define EACH_40(X, comma) EACH_32(X, comma) comma X(19, 20, 21, 22)
#define EACH_48(X, comma) EACH_40(X, comma) comma X(23, 24, 25, 26)
#define EACH_56(X, comma) EACH_48(X, comma) comma X(27, 28, 29, 30)
#define EACH_64(X, comma) EACH_56(X, comma) comma X(31, 32, 33, 34)
#define EACH_72(X, comma) EACH_64(X, comma) comma X(35, 36, 37, 38)
#define EACH_80(X, comma) EACH_72(X, comma) comma X(39, 40, 41, 42)
#define EACH_88(X, comma) EACH_80(X, comma) comma X(43, 44, 45, 46)
#define EACH_96(X, comma) EACH_88(X, comma) comma X(47, 48, 49, 50)
#define EACH_104(X, comma) EACH_96(X, comma) comma X(51, 52, 53, 54)
#define EACH_112(X, comma) EACH_104(X, comma) comma X(55, 56, 57, 58)
#define EACH_120(X, comma) EACH_112(X, comma) comma X(59, 60, 61, 62)
#define EACH_128(X, comma) EACH_120(X, comma) comma X(63, 64, 65, 66)
#define EACH_OF(filters) EACH_##filters
#define EACH(filters) EACH_OF(filters)
#define NAME(a, b, c, d) "%" #a ",%" #b ",%" #c ",%" #d
#define OPERAND(a, b, c, e) , "+f"(d[a - 3]), "+f"(d[b - 3]), "+f"(d[c - 3]), "+f"(d[e - 3])
#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

// Lower half of the descriptor of K-major core matrices of 8 rows x 16 bytes, one after the other; `depth_bytes` to the
// next 8 in depth. The upper half is the same for all: the 128 bytes, in units of 16, to the next 8 rows.
__device__ __forceinline__ unsigned descriptor(unsigned address, int depth_bytes) {
    return address >> 4 & 0x3fff | depth_bytes >> 4 << 16;
}

// d (64 x COLUMNS) = a * b, or += where `keep`. What is only read stands first, as if it were changed, so
// that it has the same numbers for every size.
__device__ __forceinline__ void wgmma(float* d, unsigned a, unsigned b, int keep) {
    asm volatile(
        "{.reg .pred p; .reg .b64 a, b; setp.ne.b32 p, %2, 0; mov.b64 a, {%0, 8}; mov.b64 b, {%1, 8};"
        "wgmma.mma_async.sync.aligned.m64n" TEXT(COLUMNS) "k16.f32.f16.f16 {" EACH(COLUMNS)(NAME, ",")
        "}, a, b, p, 1, 1, 0, 0;}"
        : "+r"(a), "+r"(b), "+r"(keep) EACH(COLUMNS)(OPERAND, ));
}
