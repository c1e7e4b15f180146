// Implicit GEMM with wgmma and tensor maps, as nhwc_wgmma, for small outputs: the blocks of a cluster share the
// reduction of a tile, and so may the warpgroups of a block.
//
// A block has one tile of PIXELS x WARPGROUP_FILTERS, and 1 / SPLIT_K of its reduction. Its warps have three roles:
//   consumer warpgroups  multiply the stages with wgmma: one for each 64 pixels, and WARPGROUP_SPLIT_K of these, which
//                        take the stages in turns
//   a warp for weights   copies the stages' weights
//   a warp for pixels    copies the stages' pixels
// Then the sums of the block's warpgroups are added in shared memory. A block alone writes them; those of a cluster are
// sent to the blocks that own them: each adds its share in the order of the blocks, and writes it. So the order of a
// sum's products is fixed.
//
// SPLIT_K            blocks of a cluster
// WARPGROUP_SPLIT_K  consumer warpgroups that share the reduction of a block
// MIN_BLOCKS_PER_SM  bounds the registers
// The other macros are those of layer.cuh; FILTER_WARPGROUPS is 1 here.
//
// The arguments are as those of nhwc_wgmma. ring_stages is a multiple of WARPGROUP_SPLIT_K, so that each stage is always
// the same warpgroup's: a barrier shows only the parity of its phase, and who skips a round would misread it.
// The blocks of a cluster are neighbours, and so are tiles that differ in their filters alone.

#define RESIDENT_WEIGHTS 0
#include "channels_last/layer.cuh"

constexpr int PIXEL_WARPGROUPS = PIXELS / 64, CONSUMERS = 128 * PIXEL_WARPGROUPS * WARPGROUP_SPLIT_K;
constexpr int CONSUMER_WARPS = CONSUMERS / 32, THREADS = CONSUMERS + 64;
// A thread's four sums of eight filters in two rows: what is exchanged at once. A block owns PIECES / SPLIT_K of them.
constexpr int PIECES = PIXELS * FILTERS / 4, OWNED = PIECES / SPLIT_K, THREAD_PIECES = FILTERS / 8 / WARPGROUP_SPLIT_K;
constexpr int THREAD_OWNED = (OWNED + CONSUMERS - 1) / CONSUMERS;
constexpr int SUMS_BYTES = PIECES * 16, PARTIAL_BYTES = (WARPGROUP_SPLIT_K - 1) * SUMS_BYTES;
constexpr int INBOX_BYTES = SPLIT_K > 1 ? SUMS_BYTES : 0;  // a block alone sends nothing
static_assert(FILTERS / 8 % WARPGROUP_SPLIT_K == 0 && PIECES % SPLIT_K == 0, "equal shares");

__device__ __forceinline__ void store_piece(unsigned to, const float* sums) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(sums[0]), "f"(sums[1]), "f"(sums[2]),
                 "f"(sums[3])
                 : "memory");
}
__device__ __forceinline__ float4 load_piece(unsigned from) {
    float4 piece;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(piece.x), "=f"(piece.y), "=f"(piece.z), "=f"(piece.w)
                 : "r"(from)
                 : "memory");
    return piece;
}
// st.async: stores a piece in the shared memory of a block of the cluster, and completes its bytes on the block's barrier.
__device__ __forceinline__ void send_piece(unsigned to, const float* sums, uint64* barrier, int block) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
                     address_in(to, block)),
                 "f"(sums[0]), "f"(sums[1]), "f"(sums[2]), "f"(sums[3]),
                 "r"(address_in(shared_address(barrier), block))
                 : "memory");
}

// Adds the sums of the block's warpgroups: each keeps THREAD_PIECES of a thread's pieces, and gives the others away.
// Its own come first, then those of the others in order.
__device__ __forceinline__ void add_warpgroups(float (&kept)[4 * THREAD_PIECES], const float (&sums)[WGMMA_SUMS],
                                               unsigned partial, int row_group, int share) {
    const int thread = threadIdx.x % 128;
    const auto place = [&](int owner, int from, int piece) {
        const int other = from - (from > owner);
        const int index = ((owner * (WARPGROUP_SPLIT_K - 1) + other) * PIXEL_WARPGROUPS + row_group) * THREAD_PIECES;
        return partial + ((index + piece) * 128 + thread) * 16;
    };
#pragma unroll
    for (int owner = 0; owner < WARPGROUP_SPLIT_K; ++owner)
#pragma unroll
        for (int piece = 0; piece < THREAD_PIECES; ++piece) {
            const float* const four = sums + 4 * (owner * THREAD_PIECES + piece);
            if (owner != share) {
                store_piece(place(owner, share, piece), four);
            } else {
#pragma unroll
                for (int i = 0; i < 4; ++i) kept[4 * piece + i] = four[i];
            }
        }
    named_barrier<2, CONSUMERS>();
#pragma unroll
    for (int step = 1; step < WARPGROUP_SPLIT_K; ++step)
#pragma unroll
        for (int piece = 0; piece < THREAD_PIECES; ++piece) {
            const float4 more = load_piece(place(share, step - 1 + (step - 1 >= share), piece));
            kept[4 * piece] += more.x, kept[4 * piece + 1] += more.y;
            kept[4 * piece + 2] += more.z, kept[4 * piece + 3] += more.w;
        }
}

// A piece that a thread owns, the i-th: its number among those of the block, and the place of its first two sums. The
// other two are 8 pixels further.
struct OwnedPiece {
    int index, pixel, filter;

    // A block alone keeps the pieces where add_warpgroups leaves them. share: the warpgroup's of the reduction.
    __device__ __forceinline__ OwnedPiece(int i, int rank, int row_group, int share, const Tile& tile)
        : index(SPLIT_K > 1 ? threadIdx.x + i * CONSUMERS : number(i, row_group, share)) {
        const int piece = rank * OWNED + index, thread = piece % 128, eights = piece / 128;
        pixel = tile.pixel + eights / (FILTERS / 8) * 64 + thread / 32 * 16 + thread % 32 / 4;
        filter = tile.first_filter() + eights % (FILTERS / 8) * 8 + thread % 4 * 2;
    }
    __device__ __forceinline__ bool exists() const { return OWNED % CONSUMERS == 0 || index < OWNED; }
    // The number among those of the tile of the i-th piece that add_warpgroups leaves to a thread.
    static __device__ __forceinline__ int number(int i, int row_group, int share) {
        return (row_group * (FILTERS / 8) + share * THREAD_PIECES + i) * 128 + threadIdx.x % 128;
    }
};
static_assert(SPLIT_K > 1 || THREAD_OWNED == THREAD_PIECES, "a block alone keeps all its pieces");

#if SPLIT_K > 1
#define CLUSTER __cluster_dims__(SPLIT_K, 1, 1)
#else
#define CLUSTER  // clusters of one block start later than blocks
#endif

extern "C" __global__ void CLUSTER __launch_bounds__(THREADS, MIN_BLOCKS_PER_SM)
    nhwc_split(const __grid_constant__ TensorMap pixel_map, const __grid_constant__ TensorMap weight_map,
               const Element* bias, const Element* residual, Element* output, int64 output_stride, int64 pixels,
               int64 filters, int64 group_filters, int64 channels, int64 kernel_h, int64 kernel_w, int64 stride_h,
               int64 stride_w, int64 pad_h, int64 pad_w, int64 dilation_h, int64 dilation_w, int64 out_pixels,
               int64 out_w, int64 filter_tiles, int64 group_tiles, int64 by_out_pixels, int64 by_out_w,
               int64 by_filter_tiles, int64 by_group_tiles, int64 by_taps, int64 by_kernel_w, int64 ring_stages,
               int64 activation, int64 numbers, int64 paired, int64 weights_early) {
    // The ring's stages, the inbox, the sums of the warpgroups, and the barriers
    extern __shared__ __align__(1024) unsigned char shared[];
    const int ring_bytes = (int)ring_stages * STAGE_BYTES;
    const unsigned inbox = shared_address(shared) + ring_bytes, partial = inbox + INBOX_BYTES;
    uint64* const full = reinterpret_cast<uint64*>(shared + ring_bytes + INBOX_BYTES + PARTIAL_BYTES);
    uint64* const received = full + 2 * ring_stages;
    Ring ring = {shared_address(shared), full, full + ring_stages, (int)ring_stages};
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32, rank = blockIdx.x % SPLIT_K;
    const Tiles tile_at = {Divider(filter_tiles, by_filter_tiles), Divider(group_tiles, by_group_tiles),
                           (int)group_filters};
    const Tile tile = tile_at[blockIdx.x / SPLIT_K];
    const int taps = (int)kernel_h * (int)kernel_w;
    const int channel_blocks = ((int)channels + BOX_ELEMENTS - 1) / BOX_ELEMENTS;
    const int all = (taps * channel_blocks + BOXES - 1) / BOXES, begin = all * rank / SPLIT_K;
    const int stages = all * (rank + 1) / SPLIT_K - begin;
    const Layer layer = {(int)kernel_h, (int)kernel_w, (int)stride_h, (int)stride_w, (int)pad_h, (int)pad_w,
                         (int)dilation_h, (int)dilation_w, Divider(out_pixels, by_out_pixels), Divider(out_w, by_out_w)};
    const auto first_place = [&] {
        unsigned tap, column;
        const int block = Divider(taps, by_taps)(begin * BOXES, tap);
        const int row = Divider(kernel_w, by_kernel_w)(tap, column);
        return Place{block * BOX_ELEMENTS, row, (int)column};
    };

    if (warp == CONSUMER_WARPS) {
        if (lane < ring_stages) barrier_init(full + lane, 2), barrier_init(ring.empty + lane, 4 * PIXEL_WARPGROUPS);
        if (SPLIT_K > 1 && lane == 31) barrier_init(received, 1), barrier_expect(received, INBOX_BYTES);
        fence_barrier_init();
        __syncwarp();
    }
    if (warp == CONSUMER_WARPS + 1 && elect_one()) prefetch(pixel_map);
    __syncthreads();
    if (SPLIT_K > 1) cluster_arrive_relaxed();
    if (warp == CONSUMER_WARPS) {
        if (elect_one()) {
            if (!weights_early) wait_for_kernel_ahead();
            produce_weights(ring, weight_map, tile.first_filter(), first_place(), stages, layer);
        }
        __syncwarp();
        if (SPLIT_K > 1) cluster_wait();
    } else if (warp == CONSUMER_WARPS + 1) {
        if (elect_one()) {
            const Corner corner(tile, layer);
            const Place place = first_place();
            wait_for_kernel_ahead();
            produce_pixels(ring, pixel_map, corner, place, stages, layer);
        }
        __syncwarp();
        launch_dependents();
        if (SPLIT_K > 1) cluster_wait();
    } else {
        const Outputs out = {residual,    output,      output_stride,
                             (int)filters, (int)pixels, paired != 0, tile.group_start + (int)group_filters};
        const int warpgroup = warp / 4, row_group = warpgroup % PIXEL_WARPGROUPS, share = warpgroup / PIXEL_WARPGROUPS;

        // What is added to the pieces that the thread owns is read ahead of the products, whose time hides the loads.
        wait_for_kernel_ahead();
        Pair biases[THREAD_OWNED], above[THREAD_OWNED] = {}, below[THREAD_OWNED] = {};
#pragma unroll
        for (int i = 0; i < THREAD_OWNED; ++i) {
            const OwnedPiece one(i, rank, row_group, share, tile);
            if (!one.exists()) break;
            biases[i] = bias && BIAS_AHEAD ? load_pair(bias + one.filter, out.filters_end - one.filter, false) : Pair();
            if (!residual) continue;
            above[i] = out.residual_at(one.pixel, one.filter);
            below[i] = out.residual_at(one.pixel + 8, one.filter);
        }

        float sums[1][WGMMA_SUMS];
        ring.advance(share);
        consume<WARPGROUP_SPLIT_K>(sums, ring, ResidentWeights(), stages - share, row_group * 64, 0);
        launch_dependents();
        float kept[4 * THREAD_PIECES];
        add_warpgroups(kept, sums[0], partial, row_group, share);

        // Send each piece to its owner: the pieces of the tile are numbered by 64 pixels, 8 filters and threads.
        if (SPLIT_K > 1) {
            cluster_wait();
#pragma unroll
            for (int i = 0; i < THREAD_PIECES; ++i) {
                const int piece = OwnedPiece::number(i, row_group, share);
                send_piece(inbox + (rank * OWNED + piece % OWNED) * 16, kept + 4 * i, received, piece / OWNED);
            }
            barrier_wait_cluster(received, 0);
        }
#pragma unroll
        for (int i = 0; i < THREAD_OWNED; ++i) {
            const OwnedPiece one(i, rank, row_group, share, tile);
            if (!one.exists()) break;
            float sum[4] = {};
            if (SPLIT_K == 1) {
#pragma unroll
                for (int j = 0; j < 4; ++j) sum[j] = kept[4 * i + j];
            }
#pragma unroll
            for (int from = 0; SPLIT_K > 1 && from < SPLIT_K; ++from) {
                const float4 more = load_piece(inbox + (from * OWNED + one.index) * 16);
                sum[0] += more.x, sum[1] += more.y, sum[2] += more.z, sum[3] += more.w;
            }
            if (bias && !BIAS_AHEAD) biases[i] = load_pair(bias + one.filter, out.filters_end - one.filter, false);
            if (bias) add_pair(sum[0], sum[1], biases[i]), add_pair(sum[2], sum[3], biases[i]);
            if (residual) add_pair(sum[0], sum[1], above[i]), add_pair(sum[2], sum[3], below[i]);
            activate(sum, Activation(activation, numbers));
            out.write(sum[0], sum[1], one.pixel, one.filter);
            out.write(sum[2], sum[3], one.pixel + 8, one.filter);
        }
    }
}
