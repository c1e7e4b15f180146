// Implicit GEMM on Hopper's warpgroup tensor cores with the accuracy of FP32, or of TF32.
//
// output[p, m] = sum over k of columns[p, k] * weight[m, k], with k = (c, ky, kx) as the weights lie and p a pixel of
// any image. Each FP32 factor is split into two TF32 numbers, big + small, and three products are added:
// small*big + big*small + big*big; what is dropped is of the order 2^-22. The tensor cores truncate when they
// accumulate, so a chain is one stage of 32, then added to FP32 registers. Of one product, that of the rounded factors,
// is the accuracy of TF32.
//
// A, the pixels, goes from global memory to registers just as NCHW lies: the eight lanes of a fragment's column are
// eight pixels side by side. B, the weights, is split by the block on its way into shared memory, K-major with a
// 128-byte swizzle, as wgmma wants TF32.
//
// PRODUCTS 3, or 1 for TF32
// BF    filters of a block's tile: 16, 32, 48, 64, 96 or 128
// WP    warpgroups over pixels, 64 each
// WK    warpgroups over the reduction, which take stages in turn
// SPLIT blocks of a cluster that share a tile, each with a part of the reduction
// POINTWISE 1 for a 1x1 filter without padding
// VECTOR    1 where rows of weights are 16-byte aligned
// KERNEL_H, KERNEL_W the filter's size
// LARGE_FILTER 1 for more than 32 filter positions, up to 63
// LINEAR    1 for one image and an output as wide as the input: pixels lie side by side as their sources do
// WHOLE     1 for a reduction of whole stages, where it is POINTWISE
// PAIRED    1 for pixels in pairs that lie side by side in input and output, aligned to eight bytes; only if POINTWISE
// EVICT_FIRST  the share of the input that leaves the L2 cache first (eviction.cuh); 0 if not POINTWISE
// RESIDENT  blocks that an SM's registers are to hold: left to itself the compiler takes a few too many
//
// Every argument is eight bytes, a pointer or a long long.

#include "tf32x3/sums.cuh"

constexpr int GROUP_THREADS = 128 * WP;  // that share weights in shared memory
constexpr int THREADS = GROUP_THREADS * WK;
constexpr int BP = 64 * WP;
static_assert(WK == 1 || BP <= 2 * PARTS * BK, "the sums of its warpgroups take the place of the stages");
constexpr int CHUNKS = (BF * BK / 4 + GROUP_THREADS - 1) / GROUP_THREADS;  // float4 of a thread

// 16 bytes where they are, and else `value` stays what it is.
__device__ __forceinline__ void load_where(bool exists, float4& value, const float* from) {
    asm volatile("{.reg .pred p; setp.ne.s32 p, %5, 0; @p ld.global.nc.v4.f32 {%0, %1, %2, %3}, [%4];}"
                 : "+f"(value.x), "+f"(value.y), "+f"(value.z), "+f"(value.w)
                 : "l"(from), "r"((int)exists));
}

__device__ __forceinline__ void store_shared(unsigned to, float4 value) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(value.x), "f"(value.y), "f"(value.z),
                 "f"(value.w)
                 : "memory");
}

extern "C" __global__ void CLUSTER __launch_bounds__(THREADS, RESIDENT)
    tf32x3_wgmma(const float* __restrict__ input, const float* __restrict__ weight, const float* __restrict__ bias,
                 float* __restrict__ output, int64 images, int64 channels, int64 height, int64 width, int64 filters,
                 int64 kernel_h, int64 kernel_w, int64 pad_h, int64 pad_w, int64 out_h, int64 out_w, int64 relu) {
    // [WK][2 stages][PARTS][TILE_FLOATS] and then, in its place, each warpgroup's sums; inbox; taps
    extern __shared__ __align__(1024) float shared[];
    const Problem p(channels, height, width, filters, pad_h, pad_w, out_h, out_w);
    const int depth = p.channels * KERNEL_H * KERNEL_W;
    const int plane = p.height * p.width;
    const int pixels = (int)images * p.out_pixels;

    const unsigned rank = blockIdx.x % SPLIT, tile = blockIdx.x / SPLIT;
    const unsigned filter_tiles = (p.filters + BF - 1) / BF;
    const int filter_0 = tile % filter_tiles * BF, pixel_0 = tile / filter_tiles * BP;
    const unsigned stages = (depth + BK - 1) / BK;
    const int first = stages * rank / SPLIT, last = stages * (rank + 1) / SPLIT;

    // A warp's threads agree on their group, which spares the tensor cores' addresses a way through each thread.
    const int group_k = WK == 1 ? 0 : __shfl_sync(~0u, threadIdx.x / GROUP_THREADS, 0);
    const int group_thread = threadIdx.x % GROUP_THREADS;
    const int fragment_pixel = pixel_0 + first_pixel(group_thread / 4);
    Pixel pixel_a(fragment_pixel, pixels, input, p), pixel_b(fragment_pixel + OTHER_PIXEL, pixels, input, p);

    auto& inbox = *reinterpret_cast<Inbox<BP>*>(shared + WK * (2 * PARTS) * TILE_FLOATS);
    Tap* taps = reinterpret_cast<Tap*>(&inbox + (SPLIT > 1));
#if SPLIT > 1
    inbox.open(rank);
    if (threadIdx.x < BP) inbox.pixels[threadIdx.x] = Pixel(pixel_0 + threadIdx.x, pixels, input, p).place;
#endif
#if !POINTWISE
    for (int i = threadIdx.x; i < (last - first) * BK; i += THREADS) taps[i] = make_tap(first * BK + i, depth, p);
    __syncthreads();
#endif

    // The same number of turns for every warpgroup, whatever the stages left: wgmma must not diverge.
    int turns = (last - first + WK - 1) / WK;
    const int idle = WK > 1 && (turns - 1) * WK + group_k >= last - first;  // whether this one has none in the last
    int left = depth - (first + group_k) * BK;  // of the reduction from this warpgroup's next stage to load on
    const int lane = threadIdx.x % 4;
#if POINTWISE
    pixel_a.source += (int64)(depth - left + lane) * plane;
    pixel_b.source += (int64)(depth - left + lane) * plane;
#endif
    taps += group_k * BK;

    // A thread carries 16 bytes of CHUNKS rows of weights, ROW_STEP apart.
    constexpr int ROW_STEP = GROUP_THREADS / 8;
    static_assert(CHUNKS * ROW_STEP == BF, "every thread has rows");
    const int chunk = group_thread % 8, chunk_row = group_thread / 8;
    const float* row = weight + ((int64)(filter_0 + chunk_row) * depth + (POINTWISE ? depth - left : 0) + chunk * 4);
    const int rows = p.filters - filter_0 - chunk_row;  // from this thread's first on
    float4 weights[CHUNKS];
    const auto load_weights = [&](bool exist) {
        const int those = exist && (WHOLE || chunk * 4 < left) ? rows : 0;
        const float* from = POINTWISE ? row : row + (depth - left);  // not counted on where registers are few
#pragma unroll
        for (int i = 0; i < CHUNKS; ++i) {
            const bool row_exists = i * ROW_STEP < those;
            weights[i] = float4{};
#if VECTOR
            load_where(row_exists, weights[i], from);
#else
            weights[i].x = row_exists ? from[0] : 0.0f;
            weights[i].y = row_exists && chunk * 4 + 1 < left ? from[1] : 0.0f;
            weights[i].z = row_exists && chunk * 4 + 2 < left ? from[2] : 0.0f;
            weights[i].w = row_exists && chunk * 4 + 3 < left ? from[3] : 0.0f;
#endif
            from += (uint64)(unsigned)depth * ROW_STEP;
#if VECTOR
            asm("" : "+l"(from));  // added to, which the compiler would make multiplications of
#endif
        }
    };
    constexpr unsigned PART_BYTES = TILE_FLOATS * 4, BUFFER_BYTES = PARTS * PART_BYTES;
    float* const tiles = shared + group_k * (2 * PARTS) * TILE_FLOATS;
    unsigned place = shared_address(tiles) + chunk_row * (BK * 4) + (chunk ^ chunk_row % 8) * 16;  // swizzled
#if POINTWISE
    asm volatile("" : "+r"(place));  // kept, where registers allow
#endif
    const auto store_weights = [&](unsigned buffer) {
#pragma unroll
        for (int i = 0; i < CHUNKS; ++i) {
            float4 big, small;
            split(weights[i].x, big.x, small.x);
            split(weights[i].y, big.y, small.y);
            split(weights[i].z, big.z, small.z);
            split(weights[i].w, big.w, small.w);
            const unsigned to = place + buffer + i * ROW_STEP * (BK * 4);
            store_shared(to, big);
            if (PARTS == 2) store_shared(to + PART_BYTES, small);
        }
        fence_async_shared();
    };
    const auto group_barrier = [&] {
        named_barrier<GROUP_THREADS>(group_k + 1);
    };

    float sum[BF / 2] = {}, values[STEPS][4], next[STEPS][4] = {};
    const auto load = [&](bool exists) {  // this warpgroup's next stage
        load_weights(exists);
        if (exists) load_columns(next, pixel_a, pixel_b, left - lane, plane, taps + lane);
#if POINTWISE
        row += WK * BK;
        pixel_a.source += (int64)(WK * BK) * plane;
        pixel_b.source += (int64)(WK * BK) * plane;
#endif
        taps += WK * BK;
        left -= WK * BK;
    };
    const auto take = [&](unsigned buffer) {  // what was loaded
        store_weights(buffer);
        for (int step = 0; step < STEPS; ++step)
            for (int r = 0; r < 4; ++r) values[step][r] = next[step][r];
    };
#if SPLIT > 1
    inbox.wait_for_cluster();
#endif
    // Before the first access to global memory.
    wait_for_kernel_ahead((uint64)row | (uint64)pixel_a.source | (LINEAR || PAIRED ? 0 : (uint64)pixel_b.source));
    // Not sooner: while these blocks wait, the next launch would crowd on the SMs that the last one leaves first.
    launch_dependents();
    // Every warpgroup has a first stage. No branch: the compiler would store its weights before the columns set off.
    load(true);
    take(0);
    if (turns > 1) load(turns - 1 > idle);
    group_barrier();
    for (unsigned buffer = 0; turns > 0; --turns, buffer ^= BUFFER_BYTES) {
        float big[STEPS][4], small[STEPS][4], chain[BF / 2];
        split_columns(values, big, small);
        start_products(chain, sum, big, small, swizzled_descriptor(tiles) + buffer / 16);
        // While the tensor cores work: the stage after this one has arrived, the one after that sets off.
        if (turns > 1) take(buffer ^ BUFFER_BYTES);
        if (turns > 2) load(turns - 2 > idle);
        finish_products(chain, sum);
        group_barrier();
    }

    const Output out = {input, weight, bias, output, relu != 0};
    float kept[KEPT<WK>][4];
    add_groups<WK, GROUP_THREADS>(kept, sum, shared, group_k);
#if SPLIT == 1
    write_accumulators<WK>(kept, out, p, pixel_a.place, pixel_b.place, filter_0, group_k);
#else
    inbox.send<WK>(kept, rank, group_k);
    inbox.write<THREADS>(out, p, filter_0, rank);
#endif
}
