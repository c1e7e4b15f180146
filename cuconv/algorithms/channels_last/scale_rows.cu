// Copies rows of float32 numbers as FP16, each divided by a factor of its row: a power of two, so that the row's largest
// number lies in [2^14, 2^15). nhwc_scaled copies images and filters, and multiplies the copies.
//
//   from [rows][elements]  ->  to: factors [rows], and from `copies_at` bytes on the copies [rows][elements]
//
// A cluster copies a row, and each of its blocks a slice of it. Its numbers are read once, and kept in shared memory until
// the row's largest one is known, where they fit. Numbers that are not finite stay as they are, and count for no factor.
//
// BLOCKS  blocks of a cluster
//
// Elements and slices are multiples of 8. Every argument has eight bytes.

#include "planes/cluster.cuh"

#if __CUDA_ARCH__ >= 900
constexpr int WARPS = 16, THREADS = 32 * WARPS;
constexpr int TARGET_EXPONENT = 14, LEAST_EXPONENT = -110;

// The bits of the larger magnitude of `most` and four numbers, if it is finite.
__device__ __forceinline__ unsigned larger(unsigned most, const float4& x) {
    const float values[] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const unsigned bits = __float_as_uint(values[i]) & 0x7fffffffu;
        most = bits < 0x7f800000u ? max(most, bits) : most;
    }
    return most;
}
// Two numbers as FP16, the first in the lower half.
__device__ __forceinline__ unsigned half_pair(float first, float second) {
    unsigned pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
}

__device__ __forceinline__ void scale_row(const float* from, char* to, int64 elements, int64 slice, int64 kept,
                                          int64 copies_at) {
    extern __shared__ __align__(16) float4 shared[];
    __shared__ float maxima[WARPS], of_block;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, rank = blockIdx.x % BLOCKS, row = blockIdx.x / BLOCKS;
    const int64 begin = min(elements, rank * slice);
    const int vectors = (int)(min(elements, begin + slice) - begin) / 4;
    const float4* const source = reinterpret_cast<const float4*>(from + row * elements + begin);
    uint4* const copy = reinterpret_cast<uint4*>(to + copies_at + (row * elements + begin) * 2);
    wait_for_kernel_ahead();
    launch_dependents();

    unsigned most = 0;
#pragma unroll 8
    for (int i = threadIdx.x; i < vectors; i += THREADS) {
        const float4 x = source[i];
        if (kept) shared[i] = x;
        most = larger(most, x);
    }
    most = __reduce_max_sync(~0u, most);
    if (lane == 0) maxima[warp] = __uint_as_float(most);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < WARPS; ++i) most = max(most, __float_as_uint(maxima[i]));
#if BLOCKS > 1
    if (threadIdx.x == 0) of_block = __uint_as_float(most);
    __syncwarp();
    cluster_barrier();
#pragma unroll
    for (int block = 0; block < BLOCKS; ++block) most = max(most, __float_as_uint(load_remote(block, &of_block)));
    cluster_arrive();
#endif
    const int exponent = max((int)(most >> 23) - 127, LEAST_EXPONENT) - TARGET_EXPONENT;
    const float scale = __int_as_float(127 - exponent << 23);
    if (rank == 0 && threadIdx.x == 0) reinterpret_cast<float*>(to)[row] = __int_as_float(127 + exponent << 23);

    const float4* const numbers = kept ? shared : source;
#pragma unroll 4
    for (int i = threadIdx.x; i < vectors / 2; i += THREADS) {
        const float4 x = numbers[2 * i], y = numbers[2 * i + 1];
        copy[i] = make_uint4(half_pair(x.x * scale, x.y * scale), half_pair(x.z * scale, x.w * scale),
                             half_pair(y.x * scale, y.y * scale), half_pair(y.z * scale, y.w * scale));
    }
#if BLOCKS > 1
    __syncwarp();
    cluster_wait();  // no block ends while another one reads its maximum
#endif
}
#endif

#if BLOCKS > 1
#define CLUSTER __cluster_dims__(BLOCKS, 1, 1)
#else
#define CLUSTER  // clusters of one block start later than blocks
#endif

extern "C" __global__ void CLUSTER __launch_bounds__(512, 2)
    scale_rows(const float* from, char* to, int64 elements, int64 slice, int64 kept, int64 copies_at) {
#if __CUDA_ARCH__ >= 900
    scale_row(from, to, elements, slice, kept, copies_at);
#endif
}
// The same of weights.
extern "C" __global__ void CLUSTER __launch_bounds__(512, 2)
    pack_weights(const float* from, char* to, int64 elements, int64 slice, int64 kept, int64 copies_at) {
#if __CUDA_ARCH__ >= 900
    scale_row(from, to, elements, slice, kept, copies_at);
#endif
}
