// Implicit GEMM on Hopper's FP16 tensor cores with the accuracy of FP32, at twice the rate of tf32x3.
//
// out[m, q] = sum over (ky, kx, c) of weight[m, c, ky, kx] * padded[c, q + ky * pitch + kx]: with the zeros of the
// padding laid out once between rows and between images, a filter position is a shift of the flattened image. A block
// keeps a stretch of it in shared memory as [8 channels][position][channel], where every shift is a start address of
// wgmma, and so each input element is fetched and split once for all filter positions.
//
// Each factor is scaled by a power of two and split into two FP16 numbers, x = high + low; low*high + high*low +
// high*high is accumulated for one row of the filter and then added to FP32 registers. Scales: of weights by filter and
// channel (split_weights), of inputs by chunk of channels as it comes; see docs/kernels.md.
//
// Warp specialisation: two warpgroups multiply, two fetch and split the input; weights come split from a workspace by
// bulk copies. A block takes an equal share of all (tile, chunk) pairs in order (stream-K); where a tile is shared, its
// first block adds the others' sums in order.
//
// NARROW    1 where positions are the tensor cores' rows and filters their columns, 0 where it is the other way round
// FILTERS, TILE_POSITIONS: of a tile. Filters as rows: 64 x 256 or 128 x 128. As columns: any multiple of 8 up to 128,
//           by a multiple of 128 such that the product is 128 * 128 at most
// CHANNELS  of a chunk, 16
// KH, KW    filter size, not 1x1
// SLOTS     positions of a chunk in shared memory, in units of 128
// WHOLE_GROUPS 1 where the number of channels is a multiple of 8
// IN_STAGES, WEIGHT_STAGES: chunks of input and rows of weights in shared memory
// PRODUCTS  3, or 1 for the accuracy of TF32 (fp16x3.cuh)
//
// Every argument is eight bytes, a pointer or a long long.

#include "fp16x3/consume.cuh"
#include "fp16x3/produce.cuh"
#include "common/weight_packing.cuh"

constexpr int CONSUMER_REGISTERS = 152, PRODUCER_REGISTERS = 104;

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    fp16x3(const float* __restrict__ input, const float* __restrict__ weight, const float* __restrict__ bias,
           float* __restrict__ output, void* __restrict__ memory, int64 images, int64 channels, int64 height,
           int64 width, int64 filters, int64 kernel_h, int64 kernel_w, int64 pad_h, int64 pad_w, int64 out_h,
           int64 out_w, int64 relu) {
    launch_dependents();
    extern __shared__ __align__(128) char dynamic[];  // input stages, weight stages, staging
    __shared__ Shared shared;
    // Of arguments alone, so that it lies in the registers that a warp shares: what is read from shared memory takes
    // each thread's, and a producer short of them asks for input late.
    Geometry g;
    g.p = {(int)channels, (int)height, (int)width, (int)filters, (int)pad_h, (int)pad_w, (int)out_w,
           (int)(out_h * out_w)};
    g.images = images, g.out_h = out_h, g.pitch = g.p.width + g.p.pad_w, g.image_rows = g.p.height + g.p.pad_h;
    g.chunks = (g.p.channels + CHANNELS - 1) / CHANNELS, g.filter_tiles = (g.p.filters + BF - 1) / BF;
    g.units = (g.images * g.image_rows * g.pitch + BP - 1) / BP * g.filter_tiles * g.chunks;
    const Workspace workspace(memory, (int64)g.filter_tiles * g.chunks, gridDim.x);
    char* const weight_stages = dynamic + IN_STAGES * INPUT_STAGE;
    float* const staging = reinterpret_cast<float*>(weight_stages + WEIGHT_STAGES * ROW_BYTES);

    if (threadIdx.x == 0) {
        for (int i = 0; i < IN_STAGES; ++i) {
            barrier_init(shared.full_input + i, GROUP / 32);
            barrier_init(shared.empty_input + i, 2);
        }
        for (int i = 0; i < WEIGHT_STAGES; ++i) {
            barrier_init(shared.full_weights + i, 1);
            barrier_init(shared.empty_weights + i, 2);
        }
        shared.rows_fetched = 0;
        fence_async_shared();
    }
    __syncthreads();
    const Share share(g.units, blockIdx.x, gridDim.x);

    const int role = __shfl_sync(~0u, threadIdx.x / GROUP, 0);
    if (role >= CONSUMERS / GROUP) {
        give_registers<PRODUCER_REGISTERS>();
        const char* const rows_end = workspace.rows + (int64)g.filter_tiles * g.chunks * ROWS * ROW_BYTES;
        const int group = role - CONSUMERS / GROUP;
        WeightFetcher weights = {workspace.rows,
                                 workspace.rows + Place(share.begin, g).tile_chunk(g) * ROWS * ROW_BYTES, rows_end,
                                 shared_address(weight_stages), group * ROWS, (share.end - share.begin) * ROWS};
        weights.advance(group * ROWS);
        Producer producer = {g, workspace, reinterpret_cast<const char*>(input), dynamic, shared, group,
                             (int)threadIdx.x % GROUP, g.p.channels, (int64)g.p.height * g.p.width * 4, weights};
        producer.run(share);
    } else {
        take_registers<CONSUMER_REGISTERS>();
        wait_for_weights();
        const Output out = {g.p, input, weight, bias, output, relu != 0};
        Consumer consumer = {g, workspace, out, shared_address(dynamic), shared_address(weight_stages),
                             staging + role * STAGING, shared, role, (int)threadIdx.x % GROUP, share,
                             (unsigned)(images >> 32)};
        consumer.run();
    }
}
