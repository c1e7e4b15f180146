// Shared by the tf32x3 kernels for Hopper, after the products: the sums of a tile's warpgroups and of the blocks of a
// cluster come together, in fixed order, and are written.
//
// A thread's accumulators are pieces of four: two filters, side by side, of two pixels, eight apart. A piece is what
// is stored, sent and added at once. Of each pair of filters a warpgroup has 32, one a row.
#pragma once

#include "tf32x3.cuh"

constexpr int PIECES = BF / 8;  // of a thread
// Filters that each block of a cluster writes; the last ones may have fewer. Those of a piece belong to one block.
constexpr int SHARE = (BF / 2 + SPLIT - 1) / SPLIT * 2;

// Filters that this block of a cluster writes.
__device__ __forceinline__ int share_of(int rank) { return max(0, min(SHARE, BF - rank * SHARE)); }

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
};

// The first of the two filters of a thread's piece, in the warpgroup's tile.
__device__ __forceinline__ int piece_filter(int piece) { return piece * 8 + threadIdx.x % 4 * 2; }

// Adds up the sums of GROUPS warpgroups a pixel; each keeps those of every GROUPS-th piece. All threads call this.
template <int GROUPS, int ROWS>
__device__ __forceinline__ void add_groups(float (&sum)[BF / 2], float* shared, int group) {
    float4* const mine = reinterpret_cast<float4*>(shared) + threadIdx.x % ROWS;
    __syncthreads();  // what lay there has been read
#pragma unroll
    for (int piece = 0; piece < PIECES; ++piece)
        if (piece % GROUPS != group)
            mine[(group * PIECES + piece) * ROWS] =
                make_float4(sum[piece * 4], sum[piece * 4 + 1], sum[piece * 4 + 2], sum[piece * 4 + 3]);
    __syncthreads();
#pragma unroll
    for (int piece = 0; piece < PIECES; ++piece)
        if (piece % GROUPS == group)
#pragma unroll
            for (int other = 1; other < GROUPS; ++other) {
                const float4 more = mine[((group + other) % GROUPS * PIECES + piece) * ROWS];
                sum[piece * 4] += more.x;
                sum[piece * 4 + 1] += more.y;
                sum[piece * 4 + 2] += more.z;
                sum[piece * 4 + 3] += more.w;
            }
}

// Writes a tile straight from the accumulators, of each warpgroup every GROUPS-th piece.
template <int GROUPS>
__device__ __forceinline__ void write_accumulators(const float (&sum)[BF / 2], const Output& out, const Problem& p,
                                                   int64 pixel_a, int64 pixel_b, int filter_0, int group) {
    bool finite = true;
#pragma unroll
    for (int piece = 0; piece < PIECES; ++piece)
        if (piece % GROUPS == group)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float value = sum[piece * 4 + i];
                finite &= isfinite(value);
                out.write(value, p, i / 2 ? pixel_b : pixel_a, filter_0 + piece_filter(piece) + i % 2);
            }
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
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
            barrier_expect(&arrived, SPLIT * share_of(rank) * BP * sizeof(float));
        }
        __syncwarp();
        asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
    }
    __device__ __forceinline__ void wait_for_cluster() {
        asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    }

    // Sends a warpgroup's accumulators, every GROUPS-th piece, to the blocks that write them. The stores count
    // themselves as arrived, and leave from registers: a block may end before they do.
    template <int GROUPS>
    __device__ __forceinline__ void send(const float (&sum)[BF / 2], int rank, int group) {
        const int row = threadIdx.x % (2 * BP) / 4;
#pragma unroll
        for (int piece = 0; piece < PIECES; ++piece)
            if (piece % GROUPS == group) {
                const int filter = piece_filter(piece), to = filter / SHARE;
                const unsigned place = in_block(sums[rank] + (filter % SHARE / 2 * (BP / 2) + row) * 4, to);
                asm volatile(
                    "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1,%2,%3,%4}, [%5];"
                    ::"r"(place),
                    "f"(sum[piece * 4]), "f"(sum[piece * 4 + 1]), "f"(sum[piece * 4 + 2]), "f"(sum[piece * 4 + 3]),
                    "r"(in_block(&arrived, to))
                    : "memory");
            }
    }

    // Adds up what has arrived, in the order of the blocks, and writes it. A thread takes WIDTH sums side by side.
    template <int THREADS>
    __device__ __forceinline__ void write(const Output& out, const Problem& p, int filter_0, int rank) {
        constexpr unsigned MOST = SHARE * BP, WIDTH = MOST / THREADS >= 4 ? 4 : MOST / THREADS >= 2 ? 2 : 1;
        constexpr unsigned TURNS = (MOST + THREADS * WIDTH - 1) / (THREADS * WIDTH);
        const unsigned size = share_of(rank) * BP;
        const auto filter_of = [&](unsigned i) { return filter_0 + rank * SHARE + i / (2 * BP) * 2 + i % 2; };
        const auto pixel_of = [&](unsigned i) {
            const unsigned row = i / 4 % (BP / 2);
            return pixels[row / 8 * 16 + row % 8 + i % 4 / 2 * 8];
        };
        int64 places[TURNS][WIDTH];
#pragma unroll
        for (unsigned turn = 0; turn < TURNS; ++turn)
#pragma unroll
            for (unsigned i = 0; i < WIDTH; ++i) places[turn][i] = pixel_of((turn * THREADS + threadIdx.x) * WIDTH + i);
        bool finite = true;
        barrier_wait_cluster(&arrived, 0);
#pragma unroll
        for (unsigned turn = 0; turn < TURNS; ++turn) {
            const unsigned at = (turn * THREADS + threadIdx.x) * WIDTH;
            if (at >= size) break;
            struct alignas(4 * WIDTH) Sums {
                float of[WIDTH];
            } sum = {};
#pragma unroll
            for (int block = 0; block < SPLIT; ++block) {
                const Sums more = *reinterpret_cast<const Sums*>(sums[block] + at);
#pragma unroll
                for (unsigned i = 0; i < WIDTH; ++i) sum.of[i] += more.of[i];
            }
#pragma unroll
            for (unsigned i = 0; i < WIDTH; ++i) {
                finite &= isfinite(sum.of[i]);
                out.write(sum.of[i], p, places[turn][i], filter_of(at + i));
            }
        }
        if (!finite)
#pragma unroll 1
            for (unsigned i = 0; i < size; ++i)
                if (i / WIDTH % THREADS == threadIdx.x) out.write_plain(p, pixel_of(i), filter_of(i));
    }
};

#if SPLIT > 1
#define CLUSTER __cluster_dims__(SPLIT, 1, 1)
#else
#define CLUSTER
#endif
