// The tensor cores' instruction on FP16 with A in registers, for FILTERS columns of B: a multiple of 16 up to 160.
#pragma once

// X(eight numbers) for each eight operands of the asm statement that are sums, comma() between; X(the six that follow).
#define EACH_16(X, comma) X(0, 1, 2, 3, 4, 5, 6, 7)
#define EACH_32(X, comma) EACH_16(X, comma) comma() X(8, 9, 10, 11, 12, 13, 14, 15)
#define EACH_48(X, comma) EACH_32(X, comma) comma() X(16, 17, 18, 19, 20, 21, 22, 23)
#define EACH_64(X, comma) EACH_48(X, comma) comma() X(24, 25, 26, 27, 28, 29, 30, 31)
#define EACH_80(X, comma) EACH_64(X, comma) comma() X(32, 33, 34, 35, 36, 37, 38, 39)
#define EACH_96(X, comma) EACH_80(X, comma) comma() X(40, 41, 42, 43, 44, 45, 46, 47)
#define EACH_112(X, comma) EACH_96(X, comma) comma() X(48, 49, 50, 51, 52, 53, 54, 55)
#define EACH_128(X, comma) EACH_112(X, comma) comma() X(56, 57, 58, 59, 60, 61, 62, 63)
#define EACH_144(X, comma) EACH_128(X, comma) comma() X(64, 65, 66, 67, 68, 69, 70, 71)
#define EACH_160(X, comma) EACH_144(X, comma) comma() X(72, 73, 74, 75, 76, 77, 78, 79)
#define AFTER_16(X) X(8, 9, 10, 11, 12, 13)
#define AFTER_32(X) X(16, 17, 18, 19, 20, 21)
#define AFTER_48(X) X(24, 25, 26, 27, 28, 29)
#define AFTER_64(X) X(32, 33, 34, 35, 36, 37)
#define AFTER_80(X) X(40, 41, 42, 43, 44, 45)
#define AFTER_96(X) X(48, 49, 50, 51, 52, 53)
#define AFTER_112(X) X(56, 57, 58, 59, 60, 61)
#define AFTER_128(X) X(64, 65, 66, 67, 68, 69)
#define AFTER_144(X) X(72, 73, 74, 75, 76, 77)
#define AFTER_160(X) X(80, 81, 82, 83, 84, 85)
#define OF_SIZE(list, filters) list##filters
#define OF(list, filters) OF_SIZE(list, filters)
#define NAME(a, b, c, d, e, f, g, h) "%" #a ",%" #b ",%" #c ",%" #d ",%" #e ",%" #f ",%" #g ",%" #h
#define SUM(a, b, c, d, e, f, g, h) \
    "+f"(d_[a]), "+f"(d_[b]), "+f"(d_[c]), "+f"(d_[d]), "+f"(d_[e]), "+f"(d_[f]), "+f"(d_[g]), "+f"(d_[h])
#define COMMA() ,
#define NAMED_COMMA() ","
#define BEFORE(a0, a1, a2, a3, b, keep) \
    "{.reg .pred p; .reg .b64 b; setp.ne.b32 p, %" #keep ", 0; mov.b64 b, {%" #b ", 8};"
#define INPUTS(a0, a1, a2, a3, b, keep) "{%" #a0 ",%" #a1 ",%" #a2 ",%" #a3 "}, b, p, 1, 1, 0;}"
#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

// d_ (64 pixels x FILTERS) = a * b, or += where `keep`. b: lower half of its descriptor; the upper is the 128 bytes, in
// units of 16, from eight filters to the next.
__device__ __forceinline__ void wgmma(float (&d_)[FILTERS / 2], const unsigned (&a)[4], unsigned b, int keep) {
    asm volatile(OF(AFTER_, FILTERS)(BEFORE)
                 "wgmma.mma_async.sync.aligned.m64n" TEXT(FILTERS) "k16.f32.f16.f16 {"
                 OF(EACH_, FILTERS)(NAME, NAMED_COMMA) "}, " OF(AFTER_, FILTERS)(INPUTS)
                 : OF(EACH_, FILTERS)(SUM, COMMA)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(keep));
}
