// Implicit GEMM with wgmma, for Hopper, with the accuracy of FP32 or of TF32.
//
// output[p, m] = sum over k of columns[p, k] * weight[m, k], where k = (c, ky, kx) counts the weights of a filter as
// they lie in memory, and p counts the pixels of all images. The columns are never stored. tf32x3/parts.cuh decomposes
// the operands into TF32 parts.
//
// TF32 wgmma takes only K-major operands from shared memory. Weights are K-major as they lie, so they are tile B. The
// columns are not: they are tile A, which may come from registers, and NCHW needs no transformation. The eight lanes of
// a fragment's column are eight pixels side by side.
//
// Pipeline of a warpgroup, by stage of the reduction:
//   load       columns and weights, global memory -> registers; two stages ahead
//   decompose  weights, registers -> shared memory, K-major with the 128-byte swizzle; one stage ahead
//   decompose  columns, in registers
//   wgmma      a chain over the stage that starts at zero
//   add        the chain to FP32 registers
// The partial sums of all warpgroups and blocks that share a tile are then added in fixed order (sums.cuh).
//
// PRODUCTS           3 for FP32, 1 for TF32
// FILTERS            filters of a block's tile: 16, 32, 48, 64, 96 or 128
// PIXEL_WARPGROUPS   warpgroups over pixels, 64 each
// WARPGROUP_SPLIT_K  warpgroups over the reduction; stages go round among them
// SPLIT_K            blocks of a cluster that share a tile, each with a part of the reduction
// STAGE_DEPTH        depth of a stage
// INBOX_BYTES        shared memory for the sums from other blocks of the cluster
// TAP_BYTES          bytes of an entry of the tap table
// POINTWISE          1 for a 1x1 filter without padding
// VECTOR             1 where rows of weights are 16-byte aligned
// GENERAL            1 where the arguments have the filter's size, stride, dilation and groups
// KERNEL_H KERNEL_W  the filter's size elsewhere, where dilation is 1
// STRIDE_H STRIDE_W  the stride there
// GROUPED            1 where there are several groups there, whose number is an argument
// LARGE_FILTER       1 for more than 32 filter positions, 2 for more than 63; then up to 31 rows and 31 columns
// LINEAR             1 for one image whose output is as wide as the input: pixels are neighbours as their sources are
// WHOLE              1 for a reduction of whole stages; only if POINTWISE
// PAIRED             1 for pixels in pairs that are neighbours in input and output, 8-byte aligned; only if POINTWISE
// EVICT_FIRST        1 where L2 evicts a share of the input first (common/eviction.cuh); 0 if not POINTWISE
// MIN_BLOCKS_PER_SM  bounds the registers: left to itself the compiler takes a few too many
// RESIDUAL           1 where an argument is a residual (common/geometry.cuh)
//
// Every argument has eight bytes: a pointer or a long long. `channels` and `filters` are those of one group. *_image
// and *_group are floats from one image or group of an operand to the next; by_X packs the division by X (divider.cuh).

#include "tf32x3/sums.cuh"

constexpr int GROUP_THREADS = 128 * PIXEL_WARPGROUPS;  // threads that share a stage of weights in shared memory
constexpr int THREADS = GROUP_THREADS * WARPGROUP_SPLIT_K;
constexpr int TILE_PIXELS = 64 * PIXEL_WARPGROUPS;
constexpr int ROW_THREADS = STAGE_DEPTH / 4;           // threads that load a row of weights, 16 bytes each
constexpr int ROW_STEP = GROUP_THREADS / ROW_THREADS;  // from a thread's row of weights to its next one
constexpr int THREAD_ROWS = FILTERS / ROW_STEP;        // rows of weights of a thread
constexpr unsigned ROW_BYTES = STAGE_DEPTH * sizeof(float);
constexpr unsigned PART_BYTES = TILE_FLOATS * sizeof(float), BUFFER_BYTES = PARTS * PART_BYTES;
constexpr unsigned PIPELINE_BYTES = WARPGROUP_SPLIT_K * 2 * BUFFER_BYTES;
static_assert(FILTERS % ROW_STEP == 0, "every thread has rows of weights");
static_assert(WARPGROUP_SPLIT_K == 1 || TILE_PIXELS <= 2 * PARTS * STAGE_DEPTH,
              "the sums of the warpgroups take the place of the stages");
static_assert(sizeof(Tap) == TAP_BYTES, "the host makes room for the tap table");
#if SPLIT_K > 1
static_assert(sizeof(Inbox<TILE_PIXELS>) == INBOX_BYTES, "the host makes room for the inbox");
#endif

// Loads 16 bytes where `exists`, without a branch; `value` stays what it is elsewhere.
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

extern "C" __global__ void CLUSTER_DIMS __launch_bounds__(THREADS, MIN_BLOCKS_PER_SM)
    tf32x3_wgmma(const float* __restrict__ input, const float* __restrict__ weight, const float* __restrict__ bias,
                 float* __restrict__ output, int64 images, int64 channels, int64 height, int64 width, int64 filters,
                 int64 kernel_h, int64 kernel_w, int64 pad_h, int64 pad_w, int64 out_h, int64 out_w,
                 int64 activation, int64 numbers, int64 stride_h, int64 stride_w, int64 dilation_h, int64 dilation_w,
                 int64 groups, int64 input_image, int64 output_image, int64 input_group, int64 weight_group,
                 int64 by_group_tiles, int64 by_filter_tiles, int64 by_out_pixels, int64 by_out_w,
                 int64 evict_first RESIDUAL_ARGUMENT) {
    // [WARPGROUP_SPLIT_K][2 stages][PARTS][TILE_FLOATS], later the sums of the warpgroups; then the inbox, and the taps
    extern __shared__ __align__(1024) float shared[];
#if GENERAL
    const Kernel kernel = {(int)kernel_h, (int)kernel_w};
    const Geometry geometry = {(int)stride_h, (int)stride_w, (int)dilation_h, (int)dilation_w, (int)groups};
#elif GROUPED
    constexpr Kernel kernel;
    const Geometry geometry = {(int)groups};
#else
    constexpr Kernel kernel;
    constexpr Geometry geometry;
#endif
    const int64 out_pixels = out_h * out_w;
    const Problem p = {(int)channels, (int)height, (int)width, (int)filters, (int)pad_h, (int)pad_w, (int)out_w,
                       (int)out_pixels, input_image, output_image, kernel, geometry, Divider(out_w, by_out_w),
                       Divider(out_pixels, by_out_pixels)};
    const int depth = p.channels * p.kernel.h * p.kernel.w;
    const int plane = p.height * p.width;
    const int pixels = (int)images * p.out_pixels;

    // The block's tile, and its stages of the reduction: [first, last).
    const unsigned rank = blockIdx.x % SPLIT_K;
    unsigned tile = blockIdx.x / SPLIT_K;
    const unsigned filter_tiles = ((unsigned)p.filters + FILTERS - 1) / FILTERS;
    // The group's part of input and weight. Those of bias and output are computed after the main loop, where they are
    // used: before it they would take registers.
#if GENERAL || GROUPED
    const unsigned group_tiles = filter_tiles * (((unsigned)pixels + TILE_PIXELS - 1) / TILE_PIXELS);
    const int group = Divider(group_tiles, by_group_tiles)(tile, tile);
    const float* const group_input = input + group * input_group;
    const float* const group_weight = weight + group * weight_group;
#else
    const float *const group_input = input, *const group_weight = weight;
#endif
    unsigned filter_tile;
    const int pixel_0 = Divider(filter_tiles, by_filter_tiles)(tile, filter_tile) * TILE_PIXELS;
    const int filter_0 = filter_tile * FILTERS;
    const unsigned stages = ((unsigned)depth + STAGE_DEPTH - 1) / STAGE_DEPTH;
    const int first = stages * rank / SPLIT_K, last = stages * (rank + 1) / SPLIT_K;

    // The shuffle tells the compiler that a warp's threads agree on their group, so that the addresses for the tensor
    // cores stay in uniform registers.
    const int group_k = WARPGROUP_SPLIT_K == 1 ? 0 : __shfl_sync(~0u, threadIdx.x / GROUP_THREADS, 0);
    const int group_thread = threadIdx.x % GROUP_THREADS;
    const int fragment_pixel = pixel_0 + first_pixel(group_thread / 4);
    Pixel pixel_a(fragment_pixel, pixels, group_input, p), pixel_b(fragment_pixel + OTHER_PIXEL, pixels, group_input, p);

    // Open the inbox, and build the tap table.
    char* const behind_stages = reinterpret_cast<char*>(shared) + PIPELINE_BYTES;
    Tap* taps = reinterpret_cast<Tap*>(behind_stages + INBOX_BYTES);
#if SPLIT_K > 1
    auto& inbox = *reinterpret_cast<Inbox<TILE_PIXELS>*>(behind_stages);
    inbox.open(rank);
    if (threadIdx.x < TILE_PIXELS) inbox.pixels[threadIdx.x] = Pixel(pixel_0 + threadIdx.x, pixels, group_input, p).place;
#endif
#if !POINTWISE
    for (int i = threadIdx.x; i < (last - first) * STAGE_DEPTH; i += THREADS)
        taps[i] = make_tap(first * STAGE_DEPTH + i, depth, p);
    __syncthreads();
#endif

    // Every warpgroup has the same number of iterations, whatever stages are left: wgmma must not diverge.
    int iterations = (last - first + WARPGROUP_SPLIT_K - 1) / WARPGROUP_SPLIT_K;
    // Whether this warpgroup has no stage in the last iteration.
    const int idle = WARPGROUP_SPLIT_K > 1 && (iterations - 1) * WARPGROUP_SPLIT_K + group_k >= last - first;
    int left = depth - (first + group_k) * STAGE_DEPTH;  // elements of the reduction from the next stage to load on
    const int lane = threadIdx.x % 4;
#if POINTWISE
    pixel_a.source += (int64)(depth - left + lane) * plane;
    pixel_b.source += (int64)(depth - left + lane) * plane;
#endif
    taps += group_k * STAGE_DEPTH;

    // Weights: a thread carries 16 bytes of each of its rows from global to shared memory.
    const int chunk = group_thread % ROW_THREADS, chunk_row = group_thread / ROW_THREADS;
    const float* row = group_weight + ((int64)(filter_0 + chunk_row) * depth + (POINTWISE ? depth - left : 0) + chunk * 4);
    const int rows = p.filters - filter_0 - chunk_row;  // from this thread's first on
    float4 weights[THREAD_ROWS];
    const auto load_weights = [&](bool exist) {
        const int existing_rows = exist && (WHOLE || chunk * 4 < left) ? rows : 0;
        const float* from = POINTWISE ? row : row + (depth - left);  // incremented only where registers allow
#pragma unroll
        for (int i = 0; i < THREAD_ROWS; ++i) {
            const bool row_exists = i * ROW_STEP < existing_rows;
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
            asm("" : "+l"(from));  // an addition; left to itself the compiler would multiply
#endif
        }
    };
    // With the 128-byte swizzle, 16-byte chunk c of row r lies at chunk c ^ r % 8. ROW_STEP is a multiple of 8, so a
    // thread's rows have the same place within their swizzle pattern.
    float* const tiles = shared + group_k * (2 * PARTS) * TILE_FLOATS;
    unsigned place = shared_address(tiles) + chunk_row * ROW_BYTES + (chunk ^ chunk_row % 8) * 16;
#if POINTWISE
    asm volatile("" : "+r"(place));  // kept in a register instead of computed again for every stage
#endif
    const auto store_weights = [&](unsigned buffer) {
#pragma unroll
        for (int i = 0; i < THREAD_ROWS; ++i) {
            float4 big, small;
            decompose(weights[i], big, small);
            const unsigned to = place + buffer + i * ROW_STEP * ROW_BYTES;
            store_shared(to, big);
            if (PARTS == 2) store_shared(to + PART_BYTES, small);
        }
        fence_async_shared();
    };
    const auto group_barrier = [&] {
        named_barrier<GROUP_THREADS>(group_k + 1);
    };

    float sum[FILTERS / 2] = {}, values[STEPS][4], next[STEPS][4] = {};
    const uint64 policy = evict_first_policy(evict_first);
    // Loads this warpgroup's next stage into `weights` and `next`.
    const auto load = [&](bool exists) {
        load_weights(exists);
        if (exists) load_columns(next, pixel_a, pixel_b, left - lane, plane, taps + lane, policy);
#if POINTWISE
        row += WARPGROUP_SPLIT_K * STAGE_DEPTH;
        pixel_a.source += (int64)(WARPGROUP_SPLIT_K * STAGE_DEPTH) * plane;
        pixel_b.source += (int64)(WARPGROUP_SPLIT_K * STAGE_DEPTH) * plane;
#endif
        taps += WARPGROUP_SPLIT_K * STAGE_DEPTH;
        left -= WARPGROUP_SPLIT_K * STAGE_DEPTH;
    };
    // Takes over what was loaded: weights into a buffer of shared memory, columns into `values`.
    const auto take = [&](unsigned buffer) {
        store_weights(buffer);
        for (int step = 0; step < STEPS; ++step)
            for (int r = 0; r < 4; ++r) values[step][r] = next[step][r];
    };

    // Wait for the cluster's inboxes, and for the kernel ahead before the first access to global memory. The next
    // launch is called only now: while these blocks wait, its blocks would fill the SMs that the kernel ahead leaves
    // first, and occupancy would be uneven.
#if SPLIT_K > 1
    cluster_wait();
#endif
    wait_for_kernel_ahead((uint64)row | (uint64)pixel_a.source | (LINEAR || PAIRED ? 0 : (uint64)pixel_b.source));
    launch_dependents();

    // Fill the pipeline. Every warpgroup has a first stage, and no branch around its loads: the compiler would store
    // the weights, which it has to wait for, before it issues the loads of the columns.
    load(true);
    take(0);
    if (iterations > 1) load(iterations - 1 > idle);
    group_barrier();

    // Main loop. While the tensor cores work on a stage, the next one is stored, and the loads of the one after it
    // start.
    for (unsigned buffer = 0; iterations > 0; --iterations, buffer ^= BUFFER_BYTES) {
        float big[STEPS][4], small[STEPS][4], chain[FILTERS / 2];
        decompose_columns(values, big, small);
        start_products(chain, sum, big, small, swizzled_descriptor(tiles) + buffer / 16);
        if (iterations > 1) take(buffer ^ BUFFER_BYTES);
        if (iterations > 2) load(iterations - 2 > idle);
        finish_products(chain, sum);
        group_barrier();
    }

    // Add up the partial sums of the tile, and write the output.
#if GENERAL || GROUPED
    const int64 first_filter = (int64)group * p.filters, first_output = first_filter * p.out_pixels;
    input += (int64)group * p.channels * plane, weight += first_filter * depth, output += first_output;
    bias = bias ? bias + first_filter : bias;
    WITH_RESIDUAL(residual += first_output;)
#endif
    const Output out = {input, weight, bias, output, {activation, numbers} WITH_RESIDUAL(, residual)};
    float kept[KEPT<WARPGROUP_SPLIT_K>][4];
    add_warpgroups<WARPGROUP_SPLIT_K, GROUP_THREADS>(kept, sum, shared, group_k);
#if SPLIT_K == 1
    write_accumulators<WARPGROUP_SPLIT_K>(kept, out, p, pixel_a.place, pixel_b.place, filter_0, group_k);
#else
    inbox.send<WARPGROUP_SPLIT_K>(kept, rank, group_k);
    inbox.write<THREADS>(out, p, filter_0, rank);
#endif
}
