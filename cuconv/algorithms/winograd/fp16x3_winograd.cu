// Winograd's convolution along rows on Hopper's FP16 tensor cores with the accuracy of FP32: for four outputs side
// by side six products with a 3x3 filter's row instead of twelve, eight with a 5x5 filter's instead of twenty.
//
// A cell is four outputs side by side; they need KW + 3 inputs of each filter row. Inputs and weights are polynomials,
// whose product is known by its values at as many points: 0, infinity, and +-5/8, +-3/2 or +-1/2, +-1, +-2. So
//     out[m, cell, j] = sum over points p of A[j, p] * sum over (c, ky) of (G w[m, c, ky])[p] * (B d[c, cell + ky])[p]
// and each point is a convolution with KH x 1 filters over cells. What fp16x3 does with pixels this does with cells:
// they lie in shared memory as [point][8 channels][cell][channel], where a row of the filter is a start address of
// wgmma. Rows above and below an image are zeros between it and its neighbours; the transform reads what is beside one.
//
// Both transforms are of FP32 numbers, which are then scaled and split as fp16x3's; chains of products are all of a
// filter's rows for 16 channels at one point.
//
// Warp specialisation: two warpgroups multiply, with half of the points each, and fetch their weights by bulk copies;
// the others copy the input, transform and split it.
//
// Blocks of a cluster have the same cells, and filter tiles side by side. They convert the chunks of their input in
// turn: what one has made it sends to the same place in the shared memory of the others, its exponent behind it.
//     empty_input  of the block that fills a place next: all who multiply have done with it, in all blocks
//     full_input   of each block: its own have filled it, or the bytes of another have come
// A cluster takes an equal share of all (tile, chunk) pairs in order; where a tile is shared, its first cluster adds
// the others' sums in order.
//
// FILTERS   of a block's tile, 64; TILE_CELLS: a multiple of 8
// CLUSTER   blocks that share their input
// PRODUCERS threads that bring input, 128 or 256
// CHANNELS  of a chunk, 16
// KH, KW    filter size: KW is 3 or 5
// STAGE_CELLS of a chunk in shared memory; RAW_FLOATS: of a channel of it before the transform
// WHOLE_GROUPS 1 where the number of channels is a multiple of 8
// IN_STAGES, WEIGHT_STAGES: chunks of input, and positions of weights of each warpgroup, in shared memory
//
// Every argument is eight bytes, a pointer or a long long. `pitch`: cells of a row of a strip; an image is `strips` of
// them side by side.

#include "winograd/consume.cuh"
#include "winograd/produce.cuh"
#include "winograd/weights.cuh"

#if CLUSTER > 1
#define CLUSTERED __cluster_dims__(CLUSTER, 1, 1)
#else
#define CLUSTERED
#endif

__device__ __forceinline__ void cluster_barrier() {
    if (CLUSTER > 1)
        asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
    else
        __syncthreads();
}

// What is left for producers; where they are few they need no more, and those who multiply are spared spills.
constexpr int LAUNCH_REGISTERS = 65536 / THREADS / 8 * 8;
constexpr int HELD = (OWN + 1) * WGMMA_SUMS;  // sums and a chain
constexpr int SPARE = PRODUCERS == 256 || HELD >= 192 ? 24 : HELD > 160 ? 32 : 48;
constexpr int CONSUMER_REGISTERS = (HELD + SPARE) / 8 * 8;
constexpr int LEFT_REGISTERS = (LAUNCH_REGISTERS * THREADS - CONSUMER_REGISTERS * CONSUMERS) / PRODUCERS / 8 * 8;
constexpr int PRODUCER_REGISTERS = LEFT_REGISTERS < LAUNCH_REGISTERS ? LEFT_REGISTERS : LAUNCH_REGISTERS;

extern "C" __global__ void CLUSTERED __launch_bounds__(THREADS, 1)
    fp16x3_winograd(const float* __restrict__ input, const float* __restrict__ weight, const float* __restrict__ bias,
                    float* __restrict__ output, void* __restrict__ memory, int64 images, int64 channels, int64 height,
                    int64 width, int64 filters, int64 pad_h, int64 pad_w, int64 out_h, int64 out_w, int64 pitch,
                    int64 strips, int64 share_units, int64 relu) {
    launch_dependents();
    extern __shared__ __align__(128) char dynamic[];  // input stages, weight stages, raw input
    __shared__ Shared shared;
    Geometry g;
    g.p = {(int)channels, (int)height, (int)width, (int)filters, (int)pad_h, (int)pad_w, (int)out_w,
           (int)(out_h * out_w)};
    g.images = images, g.out_h = out_h, g.pitch = pitch, g.image_rows = g.p.height + g.p.pad_h;
    g.strips = strips, g.chunks = (g.p.channels + CHANNELS - 1) / CHANNELS;
    g.filter_tiles = (g.p.filters + ALIKE - 1) / ALIKE;
    const int cells = g.images * g.strips * g.image_rows * g.pitch;
    g.units = (cells + CELLS - 1) / CELLS * g.filter_tiles * g.chunks, g.share = share_units;
    const Workspace workspace(memory, (int64)g.filter_tiles * g.chunks, gridDim.x);
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
        shared.exponents = workspace.filter_scales, shared.flags = workspace.flags, shared.sums = workspace.sums;
        const Part share(g, part_of_block());
        shared.units = share.end - share.begin;
        fence_async_shared();
        if (CLUSTER > 1) fence_barrier_init();
    }
    cluster_barrier();

    const int role = __shfl_sync(~0u, threadIdx.x / GROUP, 0);
    if (role >= CONSUMERS / GROUP) {
        give_registers<PRODUCER_REGISTERS>();
        wait_for_weights();
        float* const raw_floats = reinterpret_cast<float*>(raw);
        Producer producer = {g, workspace, reinterpret_cast<const char*>(input), dynamic, raw_floats, shared};
        producer.run();
    } else {
        take_registers<CONSUMER_REGISTERS>();
        wait_for_weights();
        const Part share(g, part_of_block());
        const Output out = {g.p, input, weight, bias, output, relu != 0};
        const unsigned own_stages = shared_address(weight_stages) + role * WEIGHT_STAGES * WEIGHT_STAGE_BYTES;
        const char* const rows = workspace.rows;
        const int first_row = ((int)Place(share.begin, g).tile_chunk(g) * CLUSTER + block_rank()) * ROWS + role * OWN;
        const int64 all_rows = (int64)g.filter_tiles * g.chunks * CLUSTER * ROWS;
        const WeightFetcher weights = {rows, rows + (int64)first_row * ROW_BYTES, rows + all_rows * ROW_BYTES,
                                       own_stages, shared, role};
        Consumer consumer = {g, out, shared_address(dynamic), weight_stages, shared, role, share,
                             (unsigned)(images >> 32), weights};
        consumer.run();
    }
    if (CLUSTER > 1) cluster_barrier();  // others may still write here, and count on barriers here
}
