// Winograd's convolution along rows on Hopper's FP16 tensor cores with the accuracy of FP32. For four adjacent outputs
// it takes six products with a row of a 3x3 filter instead of twelve, and eight with a row of a 5x5 filter instead of
// twenty.
//
// A cell is four adjacent outputs. It needs KW + 3 inputs of each filter row. Inputs and weights are polynomials, and
// their product is known by its values at as many points: 0, infinity, and +-5/8, +-3/2 (KW 3) or +-1/2, +-1, +-2 (KW
// 5).
//
//   out[m, cell, j] = sum over points p of A[j, p] * sum over (c, ky) of (G w[m, c, ky])[p] * (B d[c, cell + ky])[p]
//
// So each point is a convolution of cells with KH x 1 filters, which is computed as fp16x3 computes one of pixels.
// Shared memory holds [point][8 channels][cell][channel], where a row of the filter is another start address of wgmma.
// Rows above and below an image are zeros between it and its neighbours; the transform reads zeros left and right of it.
//
// Both transforms are of FP32 numbers, which are then scaled and decomposed as fp16x3's are. A chain of products is all
// rows of the filter for 16 channels at one point.
//
//   pack_weights   weights -> transformed, scaled FP16 parts in the workspace, a kernel ahead unless PREPARED
//   producers      input -> raw (cp.async) -> transform, scale, decompose -> input stage -> the other blocks' stages
//   consumers 0    half of the points: chain = wgmma(input stage, weight stage); sums[point] += chain * factor
//   consumers 1    the other half; a thread of each warpgroup fetches its weights by bulk copies
//                  at a tile's end: sums -> outputs, both halves added in staging memory -> bias, activation -> output
//
// Blocks of a cluster have the same cells and adjacent filter tiles. Chunk u of a cluster's share is converted by block
// u % CLUSTER, which sends it, with the exponent of its scale, to the same stage u % IN_STAGES of the others.
//   empty_input    of the block that fills the stage next: the consumers of all blocks have released it
//   full_input     of each block: its own producers have filled the stage, or another block's bytes have come
//   full_weights   of each consumer warpgroup: the bytes of a bulk copy have come
//
// Stream-K: a cluster takes an equal share of all (tile, chunk) pairs in order. Where clusters share a tile, its first
// cluster adds the partial sums of the others in order.
//
// macro          meaning
// FILTERS        filters of a block's tile: 64
// TILE_CELLS     cells of a tile, a multiple of 8
// CLUSTER        blocks that share their input
// PRODUCERS      producer threads: 128 or 256
// CHANNELS       channels of a chunk: 16
// KH, KW         filter size; KW is 3 or 5
// STAGE_CELLS    cells of a chunk in shared memory: a tile and its halo
// RAW_FLOATS     floats of a channel before the transform
// WHOLE_GROUPS   1 where the number of channels is a multiple of 8
// IN_STAGES      chunks of input in shared memory
// WEIGHT_STAGES  points of weights of each consumer warpgroup in shared memory
// SHARED_BYTES   dynamic shared memory that the host asks for
// PREPARED       1 where the weights have been packed by an earlier launch (common/geometry.cuh)
//
// Every argument is eight bytes, a pointer or a long long. pitch: cells of a row of a strip. strips: of an image, side
// by side. share_units: the least units of a cluster.

#include "winograd/consume.cuh"
#include "winograd/produce.cuh"
#include "winograd/weights.cuh"

#if CLUSTER > 1
#define CLUSTERED __cluster_dims__(CLUSTER, 1, 1)
#else
#define CLUSTERED
#endif

// A barrier of all threads of the cluster.
__device__ __forceinline__ void all_blocks_barrier() {
    if (CLUSTER > 1)
        cluster_barrier();
    else
        __syncthreads();
}

// Registers of a thread. Consumers get what their sums need to avoid spills; producers get what is left, and no more
// than at launch.
constexpr int LAUNCH_REGISTERS = 65536 / THREADS / 8 * 8;
constexpr int HELD = (GROUP_POINTS + 1) * WGMMA_SUMS;  // sums and a chain
constexpr int SPARE = PRODUCERS == 256 || HELD >= 192 ? 24 : HELD > 160 ? 32 : 48;
constexpr int CONSUMER_REGISTERS = (HELD + SPARE) / 8 * 8;
constexpr int LEFT_REGISTERS = (LAUNCH_REGISTERS * THREADS - CONSUMER_REGISTERS * CONSUMERS) / PRODUCERS / 8 * 8;
constexpr int PRODUCER_REGISTERS = LEFT_REGISTERS < LAUNCH_REGISTERS ? LEFT_REGISTERS : LAUNCH_REGISTERS;

static_assert(IN_STAGES * STAGE_BYTES + 2 * WEIGHT_STAGES * WEIGHT_STAGE_BYTES + 2 * RAW_BYTES == SHARED_BYTES);

extern "C" __global__ void CLUSTERED __launch_bounds__(THREADS, 1)
    fp16x3_winograd(const float* __restrict__ input, const float* __restrict__ weight, const float* __restrict__ bias,
                    float* __restrict__ output, void* __restrict__ memory, int64 images, int64 channels, int64 height,
                    int64 width, int64 filters, int64 pad_h, int64 pad_w, int64 out_h, int64 out_w, int64 pitch,
                    int64 strips, int64 share_units, int64 activation, int64 numbers,
                    int64 output_planes PREPARED_ARGUMENTS) {
    launch_dependents();
    extern __shared__ __align__(128) char dynamic[];  // input stages, weight stages, raw input
    __shared__ Shared shared;
    Geometry g;
    g.p = {(int)channels, (int)height, (int)width, (int)filters, (int)pad_h, (int)pad_w, (int)out_w,
           (int)(out_h * out_w), (int)output_planes};
    g.images = images, g.out_h = out_h, g.pitch = pitch, g.image_rows = g.p.height + g.p.pad_h;
    g.strips = strips, g.chunks = (g.p.channels + CHANNELS - 1) / CHANNELS;
    g.filter_tiles = (g.p.filters + SCALE_FILTERS - 1) / SCALE_FILTERS;
    const int cells = g.images * g.strips * g.image_rows * g.pitch;
    g.units = (cells + CELLS - 1) / CELLS * g.filter_tiles * g.chunks, g.share = share_units;
    const Workspace workspace(Memory{memory WITH_PREPARED(, packed, flags)}, (int64)g.filter_tiles * g.chunks, gridDim.x);
    char* const weight_stages = dynamic + IN_STAGES * STAGE_BYTES;
    char* const raw = weight_stages + 2 * WEIGHT_STAGES * WEIGHT_STAGE_BYTES;

    if (threadIdx.x == 0) {
        for (int i = 0; i < IN_STAGES; ++i) {
            barrier_init(shared.full_input + i, 1);
            barrier_init(shared.empty_input + i, 2 * CLUSTER);
        }
        for (int i = 0; i < 2 * WEIGHT_STAGES; ++i) barrier_init(shared.full_weights[0] + i, 1);
        for (int i = 0; i < IN_STAGES; ++i)
            if (i % CLUSTER != block_rank()) barrier_expect(shared.full_input + i, SENT_BYTES);
        shared.filter_scales = workspace.filter_scales, shared.flags = workspace.flags, shared.sums = workspace.sums;
        const ClusterShare share(g, share_number());
        shared.units = share.end - share.begin;
        fence_async_shared();
        if (CLUSTER > 1) fence_barrier_init();
    }
    all_blocks_barrier();

    const int role = __shfl_sync(~0u, threadIdx.x / WARPGROUP, 0);
    if (role >= CONSUMERS / WARPGROUP) {
        give_registers<PRODUCER_REGISTERS>();
        wait_for_weights();
        float* const raw_floats = reinterpret_cast<float*>(raw);
        Producer producer = {g, workspace, reinterpret_cast<const char*>(input), dynamic, raw_floats, shared};
        producer.run();
    } else {
        take_registers<CONSUMER_REGISTERS>();
        if (!PREPARED) wait_for_weights();
        const ClusterShare share(g, share_number());
        const Output out = {g.p, input, weight, bias, output, {activation, numbers}};
        const unsigned own_stages = shared_address(weight_stages) + role * WEIGHT_STAGES * WEIGHT_STAGE_BYTES;
        const char* const rows = workspace.rows;
        const int first_row =
            ((int)WorkUnit(share.begin, g).tile_chunk(g) * CLUSTER + block_rank()) * ROWS + role * GROUP_POINTS;
        const int64 all_rows = (int64)g.filter_tiles * g.chunks * CLUSTER * ROWS;
        const WeightFetcher weights = {rows, rows + (int64)first_row * ROW_BYTES, rows + all_rows * ROW_BYTES,
                                       own_stages, shared, role};
        Consumer consumer = {g, out, shared_address(dynamic), weight_stages, shared, role, share,
                             (unsigned)(images >> 32), weights};
        consumer.run();
    }
    if (CLUSTER > 1) cluster_barrier();  // until here other blocks may write to this one's stages and barriers
}
