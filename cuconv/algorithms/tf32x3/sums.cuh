// Sums and output of tf32x3_wgmma: the partial sums of a tile's warpgroups, and of the blocks of a cluster, are added
// in fixed order and written.
//
// A thread's accumulators are pieces of four sums: two neighbouring filters of two pixels. A piece is stored, sent and
// added as a whole. Of every eight filters, thread t of a warp has 2 * (t % 4) and the next one, of the pixels in rows
// t / 4 and t / 4 + 8 of the warp's part of tile A (PTX ISA, "Register fragments for wgmma").
//
// It uses the kernel's macros FILTERS and SPLIT_K, and those of columns.cuh.
#pragma once

#include "common/activation.cuh"
#include "tf32x3/columns.cuh"

constexpr int PIECES = FILTERS / 8;  // pieces of a thread
// Filters that each block of a cluster writes, in whole pieces; the last block may have fewer.
constexpr int SHARE = (FILTERS / 2 + SPLIT_K - 1) / SPLIT_K * 2;

// The filters that block `rank` of the cluster writes.
__device__ __forceinline__ int share_of(int rank) {
    return SHARE * SPLIT_K == FILTERS ? SHARE : max(0, min(SHARE, FILTERS - rank * SHARE));
}

// The operands and sizes with which a block writes its tile of the output. `pixel` is always the offset of the pixel's
// output of filter 0, -1 where there is no pixel.
struct Output {
    const float *input, *weight, *bias;
    float* output;
    Activation activation;
    WITH_RESIDUAL(const float* residual;)

    // Replaces an output of each lane that is marked, a NaN, by the plain FP32 sum with bias, residual and activation.
    // The lanes of a warp call it together, where at least one of them has marked a sum (parts.cuh), for outputs that
    // they have written themselves. A NaN that the activation made comes again.
    __device__ __forceinline__ void replace_marked(const Problem& p, int64 pixel, int filter) const {
        float* const to = output + (pixel + (int64)filter * p.out_pixels);
        const bool marked = pixel >= 0 && filter < p.filters && isnan(*to);
        if (!__any_sync(~0u, marked)) return;
        const int64 known = pixel < 0 ? 0 : pixel;
        const int image = known / p.output_image, within = known - image * p.output_image, y = within / p.out_w;
        float value = plain_sum_where(marked, input, weight, p, p.kernel.h, p.kernel.w, image, filter, y,
                                      within - y * p.out_w);
        if (!marked) return;
        if (bias) value += bias[filter];
        WITH_RESIDUAL(value += residual[to - output];)
        *to = activated(value, activation);
    }

    // Adds the bias to COUNT pieces, STEP filters apart. The first piece has filters from `filter` on, of which `left`
    // exist in the tile. All biases are loaded before the first is added.
    template <int COUNT, int STEP>
    __device__ __forceinline__ void add_bias(float (&pieces)[COUNT][4], int filter, int left) const {
        if (bias) {
            float biases[COUNT][2];
#pragma unroll
            for (int i = 0; i < COUNT * 2; ++i) {
                const int at = i / 2 * STEP + i % 2;
                biases[i / 2][i % 2] = at < left ? bias[filter + at] : 0.0f;
            }
#pragma unroll
            for (int i = 0; i < COUNT * 4; ++i) pieces[i / 4][i % 4] += biases[i / 4][i % 2];
        }
    }

#if RESIDUAL
    // Adds the residual to pieces; the arguments are those of store(). All of it is loaded before the first is added.
    template <int WIDTH, int PIXELS, int COUNT, int STEP>
    __device__ __forceinline__ void add_residual(float (&pieces)[COUNT][4], float* const (&to)[2],
                                                 const int (&left)[2], const Problem& p) const {
        float more[COUNT][4] = {};
#pragma unroll
        for (int filter = 0; filter < WIDTH; ++filter) {
            const int64 row = p.out_pixels;
            const float *a = residual + (to[0] - output) + filter * row, *b = residual + (to[1] - output) + filter * row;
#pragma unroll
            for (int piece = 0; piece < COUNT; ++piece, a += STEP * row, b += STEP * row) {
                const int at = piece * STEP + filter, other = PIXELS == 2 ? filter + 2 : filter;
                if (at < left[0]) more[piece][filter] = __ldg(a);
                if (PIXELS == 2 && at < left[1]) more[piece][other] = __ldg(b);
            }
        }
#pragma unroll
        for (int i = 0; i < COUNT * 4; ++i) pieces[i / 4][i % 4] += more[i / 4][i % 4];
    }
#endif

    // Stores COUNT pieces, STEP filters apart, each of WIDTH filters and PIXELS pixels. `to` are the addresses of the
    // first piece's pixels, of which `left` filters exist. The addresses are incremented: left to itself the compiler
    // would compute each by a multiplication.
    template <int WIDTH, int PIXELS, int COUNT, int STEP>
    __device__ __forceinline__ static void store(const float (&pieces)[COUNT][4], float* const (&to)[2],
                                                 const int (&left)[2], const Problem& p) {
        const int64 row = p.out_pixels;
#pragma unroll
        for (int filter = 0; filter < WIDTH; ++filter) {
            float *a = to[0] + filter * row, *b = to[1] + filter * row;
#pragma unroll
            for (int piece = 0; piece < COUNT; ++piece) {
                const int at = piece * STEP + filter;
                const float value = pieces[piece][filter], other = pieces[piece][PIXELS == 2 ? filter + 2 : filter];
                if (PAIRED && PIXELS == 2) store_pair_where(at < left[0], a, value, other);
                else store_where(at < left[0], a, value);
                if (!PAIRED && PIXELS == 2) store_where(at < left[1], LINEAR ? a + OTHER_PIXEL : b, other);
                a += STEP * row;
                b += STEP * row;
                asm("" : "+l"(a), "+l"(b));
            }
        }
    }

    // Predicated stores, without a branch.
    __device__ __forceinline__ static void store_where(bool exists, float* to, float value) {
        asm volatile("{.reg .pred p; setp.ne.s32 p, %2, 0; @p st.global.f32 [%0], %1;}" ::"l"(to), "f"(value),
                     "r"((int)exists)
                     : "memory");
    }
    __device__ __forceinline__ static void store_pair_where(bool exists, float* to, float a, float b) {
        asm volatile("{.reg .pred p; setp.ne.s32 p, %3, 0; @p st.global.v2.f32 [%0], {%1, %2};}" ::"l"(to), "f"(a),
                     "f"(b), "r"((int)exists)
                     : "memory");
    }
};

// The first of the two filters of a thread's piece, within the tile.
__device__ __forceinline__ int piece_filter(int piece) { return piece * 8 + threadIdx.x % 4 * 2; }

// Where GROUPS warpgroups share the reduction, each keeps every GROUPS-th piece from its own number on, and adds up the
// others' sums of these. KEPT is their number, rounded up: the last may not exist.
template <int GROUPS>
constexpr int KEPT = (PIECES + GROUPS - 1) / GROUPS;

template <int GROUPS>
__device__ __forceinline__ bool is_kept(int i, int group) {
    return (i + 1) * GROUPS <= PIECES || i * GROUPS + group < PIECES;
}

// Adds up the sums of GROUPS warpgroups of ROWS threads through `shared`: [GROUPS][PIECES][ROWS] pieces. All threads of
// the block call it.
template <int GROUPS, int ROWS>
__device__ __forceinline__ void add_warpgroups(float (&kept)[KEPT<GROUPS>][4], const float (&sum)[FILTERS / 2],
                                               float* shared, int group) {
    float4* const first = reinterpret_cast<float4*>(shared) + threadIdx.x % ROWS;
    float4* const mine = first + group * PIECES * ROWS;
    if (GROUPS > 1) __syncthreads();  // all warpgroups have read the stages, whose place the sums take
#pragma unroll
    for (int piece = 0; piece < PIECES; ++piece) {
        const float* const of = sum + piece * 4;
        if (piece % GROUPS != group) mine[piece * ROWS] = make_float4(of[0], of[1], of[2], of[3]);
        // Every warpgroup keeps its pieces in the same registers, so that what follows has no branches. They get the
        // piece of warpgroup 0 first, or zeros where not every warpgroup has a piece, and then the warpgroup's own.
#pragma unroll
        for (int i = 0; i < 4; ++i)
            if (piece % GROUPS == group)
                kept[piece / GROUPS][i] = of[i];
            else if (piece % GROUPS == 0)
                kept[piece / GROUPS][i] = piece + GROUPS <= PIECES ? of[i] : 0.0f;
    }
    if (GROUPS > 1) __syncthreads();
#pragma unroll
    for (int other = 1; other < GROUPS; ++other) {
        const float4* const from = first + ((group + other) % GROUPS * PIECES + group) * ROWS;
#pragma unroll
        for (int i = 0; i < KEPT<GROUPS>; ++i)
            if (is_kept<GROUPS>(i, group)) {
                const float4 more = from[i * GROUPS * ROWS];
                kept[i][0] += more.x;
                kept[i][1] += more.y;
                kept[i][2] += more.z;
                kept[i][3] += more.w;
            }
    }
}

// Gives sums what the chains of a stage have lost (truncation.cuh), the first WIDTH of each piece. The chain of a short
// reduction has fewer steps than a stage.
template <int WIDTH = 4, int COUNT>
__device__ __forceinline__ void restore(float (&pieces)[COUNT][4], const Problem& p) {
    const int steps = min(STEPS, (p.channels * p.kernel.h * p.kernel.w + 7) / 8);
    if (PRODUCTS == 3)
#pragma unroll
        for (int i = 0; i < COUNT * WIDTH; ++i)
            pieces[i / WIDTH][i % WIDTH] = restored(pieces[i / WIDTH][i % WIDTH], steps);
}

// Whether all sums of a warp are right (parts.cuh), the first WIDTH of each piece. Where they are not, marks those that
// are replaced.
template <int WIDTH = 4, int COUNT>
__device__ __forceinline__ bool judge(float (&pieces)[COUNT][4]) {
    Judge judge;
#pragma unroll
    for (int i = 0; i < COUNT * WIDTH; ++i) judge.add(pieces[i / WIDTH][i % WIDTH], i % 2);
    int right = __all_sync(~0u, judge.all_right());
    asm volatile("" : "+r"(right));  // evaluated here, before bias and activation change the pieces
    if (!right)
#pragma unroll
        for (int i = 0; i < COUNT * WIDTH; ++i)
            pieces[i / WIDTH][i % WIDTH] = mark_wrong(pieces[i / WIDTH][i % WIDTH]);
    return right;
}

// Writes a tile straight from the accumulators: each warpgroup the pieces that it keeps.
template <int GROUPS>
__device__ __forceinline__ void write_accumulators(float (&kept)[KEPT<GROUPS>][4], const Output& out, const Problem& p,
                                                   int64 pixel_a, int64 pixel_b, int filter_0, int group) {
    const int filter = filter_0 + piece_filter(group);
    const int left = min(p.filters, filter_0 + FILTERS) - filter;  // also excludes a piece that does not exist
    const int left_of[] = {pixel_a < 0 ? 0 : left, pixel_b < 0 ? 0 : left};
    float* const to = out.output + (int64)filter * p.out_pixels;
    restore(kept, p);
    const bool right = judge(kept);
    out.add_bias<KEPT<GROUPS>, GROUPS * 8>(kept, filter, left);
    WITH_RESIDUAL(out.add_residual<2, 2, KEPT<GROUPS>, GROUPS * 8>(kept, {to + pixel_a, to + pixel_b}, left_of, p);)
    activate(kept, out.activation);
    out.store<2, 2, KEPT<GROUPS>, GROUPS * 8>(kept, {to + pixel_a, to + pixel_b}, left_of, p);
    if (!right)
#pragma unroll 1
        for (int piece = group; piece < PIECES; piece += GROUPS)
#pragma unroll 1
            for (int i = 0; i < 4; ++i)
                out.replace_marked(p, i / 2 ? pixel_b : pixel_a, filter_0 + piece_filter(piece) + i % 2);
}

#if SPLIT_K > 1
#define CLUSTER_DIMS __cluster_dims__(SPLIT_K, 1, 1)

// The shared memory in which a block of a cluster receives every block's sums of its share of the filters.
//
// Blocks send sums; they do not fetch them. A sender needs to know only that the receiver's inbox is open, and a
// receiver waits on its own mbarrier, on which the stores count their bytes. A cluster barrier that made stores visible
// would wait for all memory operations of a block instead (docs/tf32x3_wgmma.md).
template <int PIXELS>
struct Inbox {
    float sums[SPLIT_K][SHARE * PIXELS];  // each block's: [SHARE / 2][PIXELS / 2][piece]
    int64 pixels[PIXELS];                 // offsets of the pixels' outputs, as Output takes them
    uint64 arrived, padding;

    // Opens the inbox. All threads call it. A block may send after cluster_wait(), and read after a block barrier.
    __device__ __forceinline__ void open(int rank) {
        if (threadIdx.x == 0) {
            barrier_init(&arrived, 1);
            fence_barrier_init();
            barrier_expect(&arrived, SPLIT_K * share_of(rank) * PIXELS * sizeof(float));
        }
        __syncwarp();
        cluster_arrive_relaxed();
    }

    // Sends the pieces that a warpgroup keeps to the blocks that write them. st.async stores from registers and counts
    // its bytes on the receiver's mbarrier, so a block may end before its stores arrive.
    template <int GROUPS>
    __device__ __forceinline__ void send(const float (&kept)[KEPT<GROUPS>][4], int rank, int group) {
        constexpr unsigned PAIRS = SHARE / 2;  // pairs of filters that a block writes
        const unsigned row = threadIdx.x % (2 * PIXELS) / 4, first = group * 4 + threadIdx.x % 4;
        const float* const mine = sums[rank] + row * 4;
#pragma unroll
        for (int i = 0; i < KEPT<GROUPS>; ++i)
            if (is_kept<GROUPS>(i, group)) {
                const unsigned pair = first + i * GROUPS * 4, to = pair / PAIRS;
                const float* const place = mine + (pair - to * PAIRS) * (2 * PIXELS);
                asm volatile(
                    "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1,%2,%3,%4}, [%5];"
                    ::"r"(address_in(shared_address(place), to)),
                    "f"(kept[i][0]), "f"(kept[i][1]), "f"(kept[i][2]), "f"(kept[i][3]),
                    "r"(address_in(shared_address(&arrived), to))
                    : "memory");
            }
    }

    // Adds up what has arrived, in the order of the blocks, and writes it. In each iteration a thread takes WIDTH sums
    // side by side, of the same pixels: those of one filter and pixel, of two filters, or a piece.
    template <int THREADS>
    __device__ __forceinline__ void write(const Output& out, const Problem& p, int filter_0, int rank) {
        constexpr unsigned MOST = SHARE * PIXELS, WIDTH = MOST / THREADS >= 4 ? 4 : MOST / THREADS >= 2 ? 2 : 1;
        constexpr unsigned STEP = THREADS * WIDTH, ITERATIONS = (MOST + STEP - 1) / STEP, STEP_FILTERS = STEP / PIXELS;
        static_assert(STEP % (2 * PIXELS) == 0, "an iteration is whole pairs of filters");
        const unsigned size = share_of(rank) * PIXELS, at = threadIdx.x * WIDTH;
        const auto filter_of = [&](unsigned i) { return filter_0 + rank * SHARE + i / (2 * PIXELS) * 2 + i % 2; };
        const auto pixel_of = [&](unsigned i) {
            return pixels[first_pixel(i / 4 % (PIXELS / 2)) + i % 4 / 2 * OTHER_PIXEL];
        };
        const int filter = filter_of(at), left = min(p.filters, filter_0 + rank * SHARE + share_of(rank)) - filter;
        const int64 pixel_a = pixel_of(at), pixel_b = WIDTH == 4 ? pixel_of(at + 2) : -1;
        const int left_of[] = {pixel_a < 0 ? 0 : left, pixel_b < 0 ? 0 : left};
        float* const row = out.output + (int64)filter * p.out_pixels;
        float* to[] = {row + pixel_a, row + pixel_b};
        asm volatile("" : "+l"(to[0]), "+l"(to[1]));  // computed before the wait
        float sum[ITERATIONS][4] = {};
        barrier_wait_cluster(&arrived, 0);
#pragma unroll
        for (unsigned i = 0; i < ITERATIONS; ++i) add_blocks<WIDTH>(sum[i], at + i * STEP, size);
        restore<WIDTH>(sum, p);
        const bool right = judge<WIDTH>(sum);
        out.add_bias<ITERATIONS, STEP_FILTERS>(sum, filter, left);
        WITH_RESIDUAL((out.add_residual<WIDTH == 1 ? 1 : 2, WIDTH == 4 ? 2 : 1, ITERATIONS, STEP_FILTERS>(
                           sum, to, left_of, p));)
        activate(sum, out.activation);
        out.store<WIDTH == 1 ? 1 : 2, WIDTH == 4 ? 2 : 1, ITERATIONS, STEP_FILTERS>(sum, to, left_of, p);
        if (!right)
#pragma unroll 1
            for (unsigned i = 0; i < ITERATIONS * WIDTH; ++i) {
                const unsigned mine = at + i / WIDTH * STEP + i % WIDTH;
                out.replace_marked(p, mine < size ? pixel_of(mine) : -1, filter_of(mine));
            }
    }

    // Adds WIDTH sums of all blocks, where they are among the first `size`.
    template <unsigned WIDTH>
    __device__ __forceinline__ void add_blocks(float (&sum)[4], unsigned at, unsigned size) const {
        struct alignas(4 * WIDTH) Sums {
            float of[WIDTH];
        };
        const bool exist = at < size;
        const unsigned from = exist ? at : 0;  // no branch, so that the loads of all iterations are issued together
#pragma unroll
        for (int block = 0; block < SPLIT_K; ++block) {
            const Sums more = *reinterpret_cast<const Sums*>(sums[block] + from);
#pragma unroll
            for (unsigned i = 0; i < WIDTH; ++i) sum[i] += more.of[i];
        }
#pragma unroll
        for (unsigned i = 0; i < WIDTH; ++i) sum[i] = exist ? sum[i] : 0.0f;
    }
};
#else
#define CLUSTER_DIMS
#endif
