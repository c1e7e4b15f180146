// TF32 of float32 tensors in channels last by FP16 products, for Hopper: an FP16 number has the 11 bits of a TF32 one, and
// wgmma multiplies FP16 at twice the rate. Powers of two bring the operands into FP16's range.
//
// The implicit GEMM and its roles are those of nhwc_wgmma.cu: a block stays on its SM and computes one tile of
// PIXELS x FILTERS after the other. What differs:
//   weights    are packed ahead as FP16 numbers, with a factor for each filter (pack_scaled.cu). A bulk copy takes all
//              filters of a tile.
//   pixels     are copied as float32. A thread of a consumer warpgroup reads those of its two rows of tile A from shared
//              memory, scales and rounds them, and wgmma takes them from registers.
//   scales     each output pixel has one. It follows the numbers that its sums have met so far: a number that FP16 does
//              not hold lowers it, and then the sums are rescaled. This is rare, and no sum depends on another pixel.
// While the tensor cores multiply a stage, a warpgroup converts the next one.
//
// The macros are those of layer.cuh, with TF32 = 1, BOX_CHANNELS = 64 and GROUPED, RESIDENT_WEIGHTS = 0; and
// MIN_BLOCKS_PER_SM, which bounds the registers. FILTER_WARPGROUPS is 1.
//
// Every argument but the tensor map has eight bytes. packed: the factors of `rows` filters, and from `boxes_at` bytes on
// the boxes. The others are those of nhwc_wgmma.cu.

#define WGMMA_HALF f16
#define WEIGHT_ROW_BYTES 64  // FP16 numbers of a box's 32 channels

#include "channels_last/layer.cuh"

constexpr int ROW_TILES = PIXELS / 128;  // of 64 pixels, for each of two warpgroups
constexpr int CONSUMER_WARPS = 8, THREADS = 32 * (CONSUMER_WARPS + 2);
constexpr int STEPS = BOXES * 2;          // instructions for the channels of a stage
constexpr int TARGET_EXPONENT = 11;       // of a row's largest number where its scale is chosen
constexpr float MOST = 65504.0f;          // FP16's largest number
constexpr int FIRST_EXPONENT = 126;       // a scale that any number of ordinary size lowers
static_assert(ROW_TILES * 128 == PIXELS && BOX_ELEMENTS == 32 && FILTER_WARPGROUPS == 1);

__device__ __forceinline__ float power_of_two(int exponent) { return __int_as_float(exponent + 127 << 23); }

__device__ __forceinline__ float4 load_shared(unsigned address) {
    float4 x;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                 : "r"(address));
    return x;
}

// The larger magnitudes of two pairs of FP16; infinity where one is infinite, and NaN where one is NaN.
__device__ __forceinline__ unsigned larger_magnitudes(unsigned most, unsigned pair) {
    asm("{.reg .b32 a; abs.f16x2 a, %1; max.NaN.f16x2 %0, %0, a;}" : "+r"(most) : "r"(pair));
    return most;
}
__device__ __forceinline__ bool has_infinity_or_nan(unsigned pair) {
    return (pair & 0x7c00u) == 0x7c00u || (pair & 0x7c000000u) == 0x7c000000u;
}

// The rows of tile A that a thread has: `row` of every 64 pixels and the one 8 behind it. The rows of a warp's 16 pixels
// are taken in the order 0, 4, 1, 5, 2, 6, 3, 7: the swizzle then spreads eight threads' vectors over all banks.
struct Rows {
    int row = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 8 + threadIdx.x / 4 % 2 * 4;
    unsigned offset = row * ROW_BYTES + ((threadIdx.x % 4 ^ row % 8) * 16);

    // Four channels of a row: of the `step`-th 16 of a stage. lower: whether of the row 8 behind.
    __device__ __forceinline__ float4 load(unsigned pixels, int tile, int step, bool lower) const {
        return load_shared((pixels + offset ^ step % 2 * 64) + step / 2 * PIXEL_BYTES + (tile * 64 + lower * 8) * ROW_BYTES);
    }
};

// A stage's pixels as tile A, which a thread holds in registers, and their rows' scales.
struct Pixels {
    unsigned fragments[ROW_TILES][STEPS][4];
    int exponents[ROW_TILES][2];  // of the scales

    // Reads and converts a stage; returns whether a number does not fit.
    __device__ __forceinline__ bool convert(unsigned pixels, const Rows& rows) {
        unsigned most = 0;
#pragma unroll
        for (int tile = 0; tile < ROW_TILES; ++tile) {
            const float scales[] = {power_of_two(exponents[tile][0]), power_of_two(exponents[tile][1])};
#pragma unroll
            for (int step = 0; step < STEPS; ++step)
#pragma unroll
                for (int lower = 0; lower < 2; ++lower) {
                    const float4 x = rows.load(pixels, tile, step, lower);
                    const float scale = scales[lower];
                    unsigned* const to = fragments[tile][step] + lower;
                    to[0] = half_pair(x.x * scale, x.y * scale), to[2] = half_pair(x.z * scale, x.w * scale);
                    most = larger_magnitudes(larger_magnitudes(most, to[0]), to[2]);
                }
        }
        return has_infinity_or_nan(most);
    }

    // Lowers the scales of rows whose finite numbers do not fit, and rescales their sums. Called by a whole warp.
    __device__ __forceinline__ void rescale(float (&sums)[ROW_TILES][WGMMA_SUMS], unsigned pixels, const Rows& rows) {
#pragma unroll
        for (int tile = 0; tile < ROW_TILES; ++tile)
#pragma unroll
            for (int lower = 0; lower < 2; ++lower) {
                unsigned most = 0;
#pragma unroll 1
                for (int step = 0; step < STEPS; ++step) {
                    const float4 x = rows.load(pixels, tile, step, lower);
                    most = larger(larger(larger(larger(most, x.x), x.y), x.z), x.w);
                }
                most = max(most, __shfl_xor_sync(~0u, most, 1));
                most = max(most, __shfl_xor_sync(~0u, most, 2));
                int& exponent = exponents[tile][lower];
                if (__uint_as_float(most) * power_of_two(exponent) <= MOST) continue;
                const int lowered = TARGET_EXPONENT - ((int)(most >> 23) - 127);
                const float factor = power_of_two(max(lowered - exponent, -127));  // 2^-127 stands for 0
                exponent = lowered;
#pragma unroll
                for (int i = 2 * lower; i < WGMMA_SUMS; i += 4) sums[tile][i] *= factor, sums[tile][i + 1] *= factor;
            }
    }

    // The bits of the larger magnitude of `most` and a number, if that is finite.
    static __device__ __forceinline__ unsigned larger(unsigned most, float x) {
        const unsigned bits = __float_as_uint(x) & 0x7fffffffu;
        return bits < 0x7f800000u ? max(most, bits) : most;
    }
    static __device__ __forceinline__ unsigned half_pair(float first, float second) {
        unsigned pair;
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
        return pair;
    }
};

// Producer of weights: copies boxes of packed weights of the filters from `filter` on. A stage may end behind the last
// box, where pixels are zeros: the last box stands there again.
__device__ __forceinline__ void produce_packed(Ring& ring, const char* boxes, int filter, int rows, int count,
                                               int stages) {
    const int bytes = min(FILTERS, rows - filter) * WEIGHT_ROW_BYTES;
    const char* const first = boxes + (int64)filter * WEIGHT_ROW_BYTES;
    for (int box = 0; box < stages * BOXES; box += BOXES) {
        uint64* const full = ring.full + ring.stage;
        barrier_wait(ring.empty + ring.stage, ring.phase ^ 1);
        barrier_expect(full, BOXES * bytes);
#pragma unroll
        for (int i = 0; i < BOXES; ++i)
            copy_bulk(ring.weights() + i * FILTER_BYTES, first + (int64)min(box + i, count - 1) * rows * WEIGHT_ROW_BYTES,
                      bytes, full);
        ring.advance();
    }
}

// Consumer: adds up the products of `stages` stages, for the pixels from first_row on and all filters of a tile. Returns
// with the sums scaled by the rows' scales and divided by the filters' factors.
__device__ __forceinline__ void consume_scaled(float (&sums)[ROW_TILES][WGMMA_SUMS], Pixels& next, Ring& ring,
                                               int stages, int first_row, const Rows& rows) {
    const bool leader = threadIdx.x % 32 == 0;
    unsigned pixels;
    bool overflows;
    const auto read_stage = [&](const Ring& at) {
        barrier_wait(at.full + at.stage, at.phase);
        pixels = at.pixels() + first_row * ROW_BYTES;
        overflows = next.convert(pixels, rows);
    };
    const auto make_fit = [&] {
        if (!__any_sync(~0u, overflows)) return;
        next.rescale(sums, pixels, rows);
        next.convert(pixels, rows);
    };
#pragma unroll
    for (int tile = 0; tile < ROW_TILES; ++tile) {
        next.exponents[tile][0] = next.exponents[tile][1] = FIRST_EXPONENT;
#pragma unroll
        for (int i = 0; i < WGMMA_SUMS; ++i) sums[tile][i] = 0.0f;
    }
    read_stage(ring);
    make_fit();
#pragma unroll 1
    for (int i = 0; i < stages; ++i) {
        unsigned fragments[ROW_TILES][STEPS][4];
#pragma unroll
        for (int j = 0; j < ROW_TILES * STEPS * 4; ++j) (&fragments[0][0][0])[j] = (&next.fragments[0][0][0])[j];
        const unsigned weights = ring.weights();
        uint64* const behind = ring.empty + ring.stage;
        wgmma_fence();
#pragma unroll
        for (int step = 0; step < STEPS; ++step)
#pragma unroll
            for (int tile = 0; tile < ROW_TILES; ++tile)
                wgmma_half(sums[tile], fragments[tile][step],
                           tile_descriptor<WEIGHT_ROW_BYTES>(weights + step / 2 * FILTER_BYTES + step % 2 * STEP_BYTES),
                           1);
        wgmma_commit();
        ring.advance();
        const bool more = i + 1 < stages;
        if (more) read_stage(ring);
#pragma unroll
        for (int tile = 0; tile < ROW_TILES; ++tile) wgmma_wait(sums[tile]);
        // The products read the fragments until here: the compiler must not have others in their registers.
#pragma unroll
        for (int j = 0; j < ROW_TILES * STEPS * 4; ++j) asm volatile("" ::"r"((&fragments[0][0][0])[j]));
        if (leader) barrier_arrive(behind);
        if (more) make_fit();
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS_PER_SM)
    nhwc_scaled(const __grid_constant__ TensorMap pixel_map, const char* packed, int64 rows, int64 boxes_at,
                const float* bias, const float* residual, float* output, int64 output_stride, int64 pixels,
                int64 filters, int64 group_filters, int64 channels, int64 kernel_h, int64 kernel_w, int64 stride_h,
                int64 stride_w, int64 pad_h, int64 pad_w, int64 dilation_h, int64 dilation_w, int64 out_pixels,
                int64 out_w, int64 filter_tiles, int64 group_tiles, int64 by_out_pixels, int64 by_out_w,
                int64 by_filter_tiles, int64 by_group_tiles, int64 tiles, int64 ring_stages, int64 activation,
                int64 numbers, int64 paired, int64 weights_early) {
    extern __shared__ __align__(1024) unsigned char shared[];  // the ring's stages, and its barriers
    const Layer layer = {(int)kernel_h, (int)kernel_w, (int)stride_h, (int)stride_w, (int)pad_h, (int)pad_w,
                         (int)dilation_h, (int)dilation_w, Divider(out_pixels, by_out_pixels), Divider(out_w, by_out_w)};
    const Tiles tile_at = {Divider(filter_tiles, by_filter_tiles), Divider(group_tiles, by_group_tiles),
                           (int)group_filters};
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    const int boxes = (int)kernel_h * (int)kernel_w * (((int)channels + BOX_ELEMENTS - 1) / BOX_ELEMENTS);
    const int stages = (boxes + BOXES - 1) / BOXES;
    uint64* const full = reinterpret_cast<uint64*>(shared + (int)ring_stages * STAGE_BYTES);
    Ring ring = {shared_address(shared), full, full + ring_stages, (int)ring_stages};

    if (warp == CONSUMER_WARPS) {
        if (lane < ring_stages) barrier_init(full + lane, PRODUCERS), barrier_init(ring.empty + lane, CONSUMER_WARPS);
        fence_barrier_init();
    }
    __syncthreads();

    if (warp == CONSUMER_WARPS) {
        if (elect_one()) {
            if (!weights_early) wait_for_kernel_ahead();
            for (unsigned i = blockIdx.x; i < tiles; i += gridDim.x)
                produce_packed(ring, packed + boxes_at, tile_at[i].filter, (int)rows, boxes, stages);
        }
    } else if (warp == CONSUMER_WARPS + 1) {
        if (elect_one()) {
            prefetch(pixel_map);
            wait_for_kernel_ahead();
            // Not earlier: beside blocks of the kernel ahead, those of the next launch would be uneven over the SMs.
            launch_dependents();
            for (unsigned i = blockIdx.x; i < tiles; i += gridDim.x)
                produce_pixels(ring, pixel_map, Corner(tile_at[i], layer), Place(), stages, layer);
        }
    } else {
        const Outputs out = {residual, output, output_stride, (int)filters, (int)pixels, paired != 0, (int)filters};
        const Rows rows_of_thread;
        const int first_row = warp / 4 * ROW_TILES * 64;
        const Activation function(activation, numbers);
        wait_for_kernel_ahead();
        for (unsigned i = blockIdx.x; i < tiles; i += gridDim.x) {
            const Tile tile = tile_at[i];
            float sums[ROW_TILES][WGMMA_SUMS];  // new for each tile, so that the compiler carries none to the next
            Pixels operand;
            consume_scaled(sums, operand, ring, stages, first_row, rows_of_thread);
            const Bias factors(reinterpret_cast<const float*>(packed), tile.filter, (int)filters);
            const Bias biases(bias, tile.filter, (int)filters);
#pragma unroll
            for (int j = 0; j < WGMMA_SUMS; j += 4) {
                const Pair factor = pair_from(factors.pairs[j / 32], j / 4 % 8 * 4 + lane % 4);
#pragma unroll
                for (int k = 0; k < ROW_TILES; ++k)
#pragma unroll
                    for (int l = 0; l < 4; ++l)
                        sums[k][j + l] *= power_of_two(-operand.exponents[k][l / 2]) * (l % 2 ? factor.y : factor.x);
            }
            if (bias) biases.add_to(sums);
            const auto pixel_of = [&](int j) {  // j: the number of a sum
                return tile.pixel + first_row + rows_of_thread.row + j / WGMMA_SUMS * 64 + j % 4 * 4;
            };
            const auto filter_of = [&](int j) { return tile.filter + lane % 4 * 2 + j % WGMMA_SUMS / 4 * 8; };
            if (residual)
#pragma unroll
                for (int j = 0; j < ROW_TILES * WGMMA_SUMS; j += 2)
                    if (out.has(pixel_of(j), filter_of(j)))
                        add_pair((&sums[0][0])[j], (&sums[0][0])[j + 1], out.residual_at(pixel_of(j), filter_of(j)));
#pragma unroll
            for (int k = 0; k < ROW_TILES; ++k) activate(sums[k], function);
#pragma unroll
            for (int j = 0; j < ROW_TILES * WGMMA_SUMS; j += 2)
                out.write((&sums[0][0])[j], (&sums[0][0])[j + 1], pixel_of(j), filter_of(j));
        }
    }
}
