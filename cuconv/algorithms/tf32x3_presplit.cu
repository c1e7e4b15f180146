// Implicit GEMM on Hopper's warpgroup tensor cores with the accuracy of FP32, or of TF32, for much work on the same
// weights.
//
// As tf32x3_wgmma, but the weights are split into TF32 parts once, by a kernel of their own, into a workspace that
// holds each stage of each tile just as shared memory wants it. The bulk copy engine then brings a stage with one
// instruction, several stages ahead, and the warpgroups do nothing but columns and products, out of step with each
// other: while one splits its columns, another keeps the tensor cores busy.
//
// PRODUCTS 3, or 1 for TF32, where a weight has one part
// BF    filters of a block's tile: 64 or 128
// WP    warpgroups over pixels, 64 each
// STAGES stages of weights in shared memory, at least 3
// SPLIT blocks of a cluster that share a tile, each with a part of the reduction
// POINTWISE 1 for a 1x1 filter without padding
// KERNEL_H, KERNEL_W the filter's size
// LARGE_FILTER 1 for more than 32 filter positions, up to 63
// LINEAR    1 for one image and an output as wide as the input: pixels lie side by side as their sources do
// WHOLE     1 for a reduction of whole stages, where it is POINTWISE
// PAIRED    1 for pixels in pairs that lie side by side in input and output, aligned to eight bytes; only if POINTWISE
// EVICT_FIRST  the share of the input that leaves the L2 cache first (eviction.cuh); 0 if not POINTWISE
//
// Every argument is eight bytes, a pointer or a long long.

#include "tf32x3_sums.cuh"

constexpr int THREADS = 128 * WP;
constexpr int BP = 64 * WP;
constexpr int STAGE_FLOATS = PARTS * TILE_FLOATS;
constexpr int AHEAD = STAGES - 2;  // stages: a warpgroup may be two behind the one that fetches
constexpr int SPLIT_THREADS = 256;

// parts: [filter tiles][stages][PARTS][BF][BK], rows swizzled as wgmma reads them; zeros beyond the weights.
// One thread carries four depths of one filter.
extern "C" __global__ void __launch_bounds__(SPLIT_THREADS)
    split_weights(const float* __restrict__ weight, float* __restrict__ parts, int64 filters, int64 depth) {
    // At once: the prologue of the products hides behind the kernel ahead of this one. Their blocks come when all of
    // these wait, and these when all blocks of the last products run, so that none crowd. The workspace is safe: who
    // has waited knows that all kernels before it ended, for each of them waited too.
    asm volatile("griddepcontrol.launch_dependents;");
    const int stages = (depth + BK - 1) / BK;
    const int64 i = (int64)blockIdx.x * SPLIT_THREADS + threadIdx.x;
    const int chunk = i % (BK / 4), row = i / (BK / 4) % BF;
    const int64 tile = i / (BF * BK / 4);
    const int stage = tile % stages, filter = (int)(tile / stages) * BF + row, k = stage * BK + chunk * 4;
    asm volatile("griddepcontrol.wait;" ::: "memory");
    if (tile / stages * BF >= filters) return;
    float values[4], big[4], small[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        values[j] = filter < filters && k + j < depth ? weight[filter * depth + k + j] : 0.0f;
        split(values[j], big[j], small[j]);
    }
    float* target = parts + tile * STAGE_FLOATS + row * BK + (chunk ^ row % 8) * 4;
    *reinterpret_cast<float4*>(target) = make_float4(big[0], big[1], big[2], big[3]);
    if (PARTS == 2)
        *reinterpret_cast<float4*>(target + TILE_FLOATS) = make_float4(small[0], small[1], small[2], small[3]);
}

extern "C" __global__ void CLUSTER __launch_bounds__(THREADS)
    tf32x3_presplit(const float* __restrict__ input, const float* __restrict__ weight, const float* __restrict__ bias,
                    float* __restrict__ output, const float* __restrict__ parts, int64 images, int64 channels,
                    int64 height, int64 width, int64 filters, int64 kernel_h, int64 kernel_w, int64 pad_h, int64 pad_w,
                    int64 out_h, int64 out_w, int64 relu) {
    extern __shared__ __align__(1024) float shared[];  // [STAGES][STAGE_FLOATS], barriers, inbox, taps
    uint64* full = reinterpret_cast<uint64*>(shared + STAGES * STAGE_FLOATS);  // of each stage
    uint64* empty = full + STAGES;
    auto& inbox = *reinterpret_cast<Inbox<BP>*>(empty + STAGES);
    Tap* taps = reinterpret_cast<Tap*>(&inbox + (SPLIT > 1));
    const Problem p(channels, height, width, filters, pad_h, pad_w, out_h, out_w);
    const int depth = p.channels * KERNEL_H * KERNEL_W;
    const int plane = p.height * p.width;
    const int pixels = (int)images * p.out_pixels;

    const unsigned rank = blockIdx.x % SPLIT, tile = blockIdx.x / SPLIT;
    const unsigned filter_tiles = (p.filters + BF - 1) / BF;
    const int filter_tile = tile % filter_tiles, filter_0 = filter_tile * BF, pixel_0 = tile / filter_tiles * BP;
    const unsigned stages = (depth + BK - 1) / BK;
    const int first = stages * rank / SPLIT, last = stages * (rank + 1) / SPLIT;

#if SPLIT > 1
    inbox.open(rank);
    if (threadIdx.x < BP) inbox.pixels[threadIdx.x] = Pixel(pixel_0 + threadIdx.x, pixels, input, p).place;
#endif
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) {
            barrier_init(full + i, 1);
            barrier_init(empty + i, WP);
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
#if !POINTWISE
    for (int i = threadIdx.x; i < (last - first) * BK; i += THREADS) taps[i] = make_tap(first * BK + i, depth, p);
#endif
    __syncthreads();
#if SPLIT > 1
    inbox.wait_for_cluster();
#endif
    const int fragment_pixel = pixel_0 + first_pixel(threadIdx.x / 4);
    Pixel pixel_a(fragment_pixel, pixels, input, p), pixel_b(fragment_pixel + OTHER_PIXEL, pixels, input, p);
    const int lane = threadIdx.x % 4;
    int left = depth - first * BK - lane;  // of the reduction from this lane's first k of a stage on
#if POINTWISE
    pixel_a.source += (int64)(depth - left) * plane;
    pixel_b.source += (int64)(depth - left) * plane;
#endif
    const float* source = parts + (int64)filter_tile * stages * STAGE_FLOATS;
    // Before the first access to global memory.
    wait_for_kernel_ahead((uint64)source | (uint64)pixel_a.source | (LINEAR || PAIRED ? 0 : (uint64)pixel_b.source));
    asm volatile("griddepcontrol.launch_dependents;");  // only now, as in tf32x3_wgmma

    const auto fetch_stage = [&](int stage) {
        const int slot = (stage - first) % STAGES, round = (stage - first) / STAGES;
        if (round > 0) barrier_wait(empty + slot, round - 1 & 1);
        const unsigned target = shared_address(shared + slot * STAGE_FLOATS);
        fetch(target, source + (int64)stage * STAGE_FLOATS, STAGE_FLOATS * 4, full + slot);
    };
    if (threadIdx.x == 0)
        for (int stage = first; stage < min(first + AHEAD, last); ++stage) fetch_stage(stage);

    const Output out = {input, weight, bias, output, relu != 0};
    float sum[BF / 2] = {}, values[STEPS][4] = {};
    taps += lane;
    const auto load = [&] {  // a stage's columns
        load_columns(values, pixel_a, pixel_b, left, plane, taps);
        left -= BK;
#if POINTWISE
        pixel_a.source += (int64)BK * plane;
        pixel_b.source += (int64)BK * plane;
#endif
        taps += BK;
    };
    load();
    for (int stage = first; stage < last; ++stage) {
        const int slot = (stage - first) % STAGES, round = (stage - first) / STAGES;
        float big[STEPS][4], small[STEPS][4], chain[BF / 2];
        if (threadIdx.x == 0 && stage + AHEAD < last) fetch_stage(stage + AHEAD);
        split_columns(values, big, small);
        barrier_wait(full + slot, round & 1);
        start_products(chain, sum, big, small, descriptor(shared + slot * STAGE_FLOATS));
        if (stage + 1 < last) load();  // while the tensor cores work
        finish_products(chain, sum);
        if (threadIdx.x % 128 == 0) barrier_arrive(empty + slot);
    }

    float kept[KEPT<1>][4];
    add_groups<1, THREADS>(kept, sum, shared, 0);
#if SPLIT == 1
    write_accumulators<1>(kept, out, p, pixel_a.place, pixel_b.place, filter_0, 0);
#else
    inbox.send<1>(kept, rank, 0);
    inbox.write<THREADS>(out, p, filter_0, rank);
#endif
}
