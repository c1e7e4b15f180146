// Shared by the tf32x3 kernels for Hopper, after the products: the sums of a tile's warpgroups and of the blocks of a
// cluster come together, in fixed order, and are written.
//
// A thread's accumulators are pieces of four: two filters, side by side, of two pixels. A piece is what is stored, sent
// and added at once. Of each pair of filters a warpgroup has 32, one a row.
#pragma once

#include "tf32x3/tf32x3.cuh"

constexpr int PIECES = BF / 8;  // of a thread
// Filters that each block of a cluster writes; the last ones may have fewer. Those of a piece belong to one block.
constexpr int SHARE = (BF / 2 + SPLIT - 1) / SPLIT * 2;

// Filters that this block of a cluster writes.
__device__ __forceinline__ int share_of(int rank) {
    return SHARE * SPLIT == BF ? SHARE : max(0, min(SHARE, BF - rank * SHARE));
}

// The same place in the shared memory of another block of the cluster.
__device__ __forceinline__ unsigned in_block(const void* place, int rank) {
    unsigned address;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(place)), "r"(rank));
    return address;
}

// What a block needs to write its tile of the output. A pixel is given by the place of its first filter's output.
struct Output {
    const float *input, *weight, *bias;
    float* output;
    bool relu;

    // One element of the output, with bias and ReLU; a NaN stays.
    __device__ __forceinline__ void write(float value, const Problem& p, int64 pixel, int filter) const {
        if (pixel < 0 || filter >= p.filters) return;
        if (bias) value += bias[filter];
        if (relu && value < 0.0f) value = 0.0f;
        output[pixel + (int64)filter * p.out_pixels] = value;
    }

    // The same from the plain FP32 sum: for a thread with an element that is not finite.
    __device__ __forceinline__ void write_plain(const Problem& p, int64 pixel, int filter) const {
        if (pixel < 0 || filter >= p.filters) return;
        const int64 image_size = (int64)p.filters * p.out_pixels;
        const int y = pixel % image_size / p.out_w, x = pixel % image_size % p.out_w;
        write(plain_sum(input, weight, p, KERNEL_H, KERNEL_W, pixel / image_size, filter, y, x), p, pixel, filter);
    }

    // Bias and ReLU for COUNT pieces, STEP filters apart, the first from `filter` on, where `left` filters are there.
    // Every bias is asked for before the first is added.
    template <int COUNT, int STEP>
    __device__ __forceinline__ void finish(float (&pieces)[COUNT][4], int filter, int left) const {
        if (bias) {
            float more[COUNT][2];
#pragma unroll
            for (int i = 0; i < COUNT * 2; ++i) {
                const int at = i / 2 * STEP + i % 2;
                more[i / 2][i % 2] = at < left ? bias[filter + at] : 0.0f;
            }
#pragma unroll
            for (int i = 0; i < COUNT * 4; ++i) pieces[i / 4][i % 4] += more[i / 4][i % 2];
        }
        if (relu)
#pragma unroll
            for (int i = 0; i < COUNT * 4; ++i)
                if (pieces[i / 4][i % 4] < 0.0f) pieces[i / 4][i % 4] = 0.0f;
    }

    // Stores those pieces, of FILTERS filters and PIXELS pixels each; `to` are the places of the first one's pixels, of
    // which `left` filters are there. Places are added to, which the compiler would make multiplications of.
    template <int FILTERS, int PIXELS, int COUNT, int STEP>
    __device__ __forceinline__ static void store(const float (&pieces)[COUNT][4], float* const (&to)[2],
                                                 const int (&left)[2], const Problem& p) {
        const int64 row = p.out_pixels;
#pragma unroll
        for (int filter = 0; filter < FILTERS; ++filter) {
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

    // Without a branch.
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

// The first of the two filters of a thread's piece, in the warpgroup's tile.
__device__ __forceinline__ int piece_filter(int piece) { return piece * 8 + threadIdx.x % 4 * 2; }

// Pieces that each of GROUPS warpgroups keeps: every GROUPS-th from its own number on. The last may not exist.
template <int GROUPS>
constexpr int KEPT = (PIECES + GROUPS - 1) / GROUPS;

template <int GROUPS>
__device__ __forceinline__ bool is_kept(int i, int group) {
    return (i + 1) * GROUPS <= PIECES || i * GROUPS + group < PIECES;
}

// Adds up the sums of GROUPS warpgroups a pixel; each keeps its pieces. All threads call this.
template <int GROUPS, int ROWS>
__device__ __forceinline__ void add_groups(float (&kept)[KEPT<GROUPS>][4], const float (&sum)[BF / 2], float* shared,
                                           int group) {
    float4* const first = reinterpret_cast<float4*>(shared) + threadIdx.x % ROWS;
    float4* const mine = first + group * PIECES * ROWS;
    if (GROUPS > 1) __syncthreads();  // what lay there has been read
#pragma unroll
    for (int piece = 0; piece < PIECES; ++piece) {
        const float* const of = sum + piece * 4;
        if (piece % GROUPS != group) mine[piece * ROWS] = make_float4(of[0], of[1], of[2], of[3]);
#pragma unroll
        for (int i = 0; i < 4; ++i)  // in the same registers for every group, so that what follows has no branches
            if (piece % GROUPS == group)
                kept[piece / GROUPS][i] = of[i];
            else if (piece % GROUPS == 0)  // what no group overwrites is none's
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

template <int COUNT>
__device__ __forceinline__ bool are_finite(const float (&pieces)[COUNT][4]) {
    int finite = true;
#pragma unroll
    for (int i = 0; i < COUNT * 4; ++i) finite &= isfinite(pieces[i / 4][i % 4]);
    asm volatile("" : "+r"(finite));  // now, while the pieces are what they are
    return finite;
}

// Writes a tile straight from the accumulators, of each warpgroup the pieces it keeps.
template <int GROUPS>
__device__ __forceinline__ void write_accumulators(float (&kept)[KEPT<GROUPS>][4], const Output& out, const Problem& p,
                                                   int64 pixel_a, int64 pixel_b, int filter_0, int group) {
    const int filter = filter_0 + piece_filter(group);
    const int left = min(p.filters, filter_0 + BF) - filter;  // also without the piece that does not exist
    const int left_of[] = {pixel_a < 0 ? 0 : left, pixel_b < 0 ? 0 : left};
    float* const to = out.output + (int64)filter * p.out_pixels;
    const bool finite = are_finite(kept);
    out.finish<KEPT<GROUPS>, GROUPS * 8>(kept, filter, left);
    out.store<2, 2, KEPT<GROUPS>, GROUPS * 8>(kept, {to + pixel_a, to + pixel_b}, left_of, p);
    if (!finite)
#pragma unroll 1
        for (int piece = group; piece < PIECES; piece += GROUPS)
#pragma unroll 1
            for (int i = 0; i < 4; ++i)
                out.write_plain(p, i / 2 ? pixel_b : pixel_a, filter_0 + piece_filter(piece) + i % 2);
}

// In shared memory: where a block of a cluster receives all blocks' sums of its share of the filters. Whoever sends
// needs nothing but that this place is there; whoever receives waits for the bytes alone. A barrier of the cluster
// that made stores visible would wait for all of a block's memory operations instead, 0.3 us.
template <int BP>
struct Inbox {
    float sums[SPLIT][SHARE * BP];  // of each block [SHARE / 2][BP / 2][piece]
    int64 pixels[BP];               // their places, as Output takes them
    uint64 arrived, pad;

    // Called by all threads. A block may send when `wait_for_cluster` has returned, and read after a block barrier.
    __device__ __forceinline__ void open(int rank) {
        if (threadIdx.x == 0) {
            barrier_init(&arrived, 1);
            fence_barrier_init();
            barrier_expect(&arrived, SPLIT * share_of(rank) * BP * sizeof(float));
        }
        __syncwarp();
        asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
    }
    __device__ __forceinline__ void wait_for_cluster() {
        asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    }

    // Sends the pieces that a warpgroup keeps to the blocks that write them. The stores count themselves as arrived,
    // and leave from registers: a block may end before they do.
    template <int GROUPS>
    __device__ __forceinline__ void send(const float (&kept)[KEPT<GROUPS>][4], int rank, int group) {
        constexpr unsigned PAIRS = SHARE / 2;  // of filters, of a block
        const unsigned row = threadIdx.x % (2 * BP) / 4, first = group * 4 + threadIdx.x % 4;
        const float* const mine = sums[rank] + row * 4;
#pragma unroll
        for (int i = 0; i < KEPT<GROUPS>; ++i)
            if (is_kept<GROUPS>(i, group)) {
                const unsigned pair = first + i * GROUPS * 4, to = pair / PAIRS;
                asm volatile(
                    "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1,%2,%3,%4}, [%5];"
                    ::"r"(in_block(mine + (pair - to * PAIRS) * (2 * BP), to)),
                    "f"(kept[i][0]), "f"(kept[i][1]), "f"(kept[i][2]), "f"(kept[i][3]), "r"(in_block(&arrived, to))
                    : "memory");
            }
    }

    // Adds up what has arrived, in the order of the blocks, and writes it. A thread takes WIDTH sums side by side, in
    // each turn of the same pixels: those of one filter and pixel, of two filters, or a piece.
    template <int THREADS>
    __device__ __forceinline__ void write(const Output& out, const Problem& p, int filter_0, int rank) {
        constexpr unsigned MOST = SHARE * BP, WIDTH = MOST / THREADS >= 4 ? 4 : MOST / THREADS >= 2 ? 2 : 1;
        constexpr unsigned STEP = THREADS * WIDTH, TURNS = (MOST + STEP - 1) / STEP, FILTERS = STEP / BP;
        static_assert(STEP % (2 * BP) == 0, "a turn is whole pairs of filters");
        const unsigned size = share_of(rank) * BP, at = threadIdx.x * WIDTH;
        const auto filter_of = [&](unsigned i) { return filter_0 + rank * SHARE + i / (2 * BP) * 2 + i % 2; };
        const auto pixel_of = [&](unsigned i) {
            return pixels[first_pixel(i / 4 % (BP / 2)) + i % 4 / 2 * OTHER_PIXEL];
        };
        const int filter = filter_of(at), left = min(p.filters, filter_0 + rank * SHARE + share_of(rank)) - filter;
        const int64 pixel_a = pixel_of(at), pixel_b = WIDTH == 4 ? pixel_of(at + 2) : -1;
        const int left_of[] = {pixel_a < 0 ? 0 : left, pixel_b < 0 ? 0 : left};
        float* const row = out.output + (int64)filter * p.out_pixels;
        float* to[] = {row + pixel_a, row + pixel_b};
        asm volatile("" : "+l"(to[0]), "+l"(to[1]));  // before the wait
        float sum[TURNS][4] = {};
        barrier_wait_cluster(&arrived, 0);
#pragma unroll
        for (unsigned turn = 0; turn < TURNS; ++turn) add_blocks<WIDTH>(sum[turn], at + turn * STEP, size);
        const bool finite = are_finite(sum);
        out.finish<TURNS, FILTERS>(sum, filter, left);
        out.store<WIDTH == 1 ? 1 : 2, WIDTH == 4 ? 2 : 1, TURNS, FILTERS>(sum, to, left_of, p);
        if (!finite)
#pragma unroll 1
            for (unsigned i = 0; i < size; ++i)
                if (i / WIDTH % THREADS == threadIdx.x) out.write_plain(p, pixel_of(i), filter_of(i));
    }

    // Adds WIDTH sums of all blocks, where they are among the first `size`.
    template <unsigned WIDTH>
    __device__ __forceinline__ void add_blocks(float (&sum)[4], unsigned at, unsigned size) const {
        struct alignas(4 * WIDTH) Sums {
            float of[WIDTH];
        };
        const bool exist = at < size;
        const unsigned from = exist ? at : 0;  // no branch, so that all turns' sums are asked for at once
#pragma unroll
        for (int block = 0; block < SPLIT; ++block) {
            const Sums more = *reinterpret_cast<const Sums*>(sums[block] + from);
#pragma unroll
            for (unsigned i = 0; i < WIDTH; ++i) sum[i] += more.of[i];
        }
#pragma unroll
        for (unsigned i = 0; i < WIDTH; ++i) sum[i] = exist ? sum[i] : 0.0f;
    }
};

#if SPLIT > 1
#define CLUSTER __cluster_dims__(SPLIT, 1, 1)
#else
#define CLUSTER
#endif
