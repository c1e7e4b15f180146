// Implicit GEMM on Hopper's FP16 tensor cores with the accuracy of FP32, at twice the rate of tf32x3.
//
//   out[m, q] = sum over (ky, kx, c) of weight[m, c, ky, kx] * padded[c, q + ky * pitch + kx]
//
// Images are flattened with their zero padding, which rows and images share with their neighbours. A filter tap is then
// a shift of the flattened image. Shared memory holds a stretch of it as [8 channels][position][channel], where a shift
// is another start address of wgmma. So each input element is loaded and decomposed once for all taps.
//
// Each operand is scaled by a power of two and decomposed into two FP16 parts, x = high + low. The tensor cores compute
// low * high + high * low + high * high for one row of the filter; that chain is then added to FP32 registers. For the
// accuracy of TF32 they compute high * high alone, and a chain is a whole chunk. Weights are scaled by filter and
// channel (common/weight_packing.cuh), the input by chunk of channels as it comes. Where all weight rows fit their
// stages, a block fetches them once.
//
//   pack_weights      weights -> scaled FP16 parts in the workspace, a kernel ahead of this one unless PREPARED
//   producers 0       chunk 0: load, scale, decompose -> stage 0  | chunk 2 -> stage 2 | ...
//   producers 1       chunk 1: load, scale, decompose -> stage 1  | chunk 3 -> stage 3 | ...
//     a thread each   bulk copies of weight rows: workspace -> weight stages
//   consumers 0, 1    for each chain: chain = wgmma(input stage, weight stages); sums += chain * factor
//                     at a tile's end: sums -> staging -> bias, activation -> output
//
//   full_input      mbarriers: a stage of input has been written (4 arrivals, one of each producer warp)
//   empty_input     a stage of input has been read (2 arrivals, one of each consumer warpgroup)
//   full_weights    a weight row has come (its bulk copy's bytes)
//   empty_weights   a weight row has been read (2 arrivals, one of each consumer warpgroup)
//   rows_fetched    a counter: the producer whose row is next may fetch it
//
// Stream-K: a block takes an equal share of all (tile, chunk) pairs in order. Where blocks share a tile, its first
// block adds the partial sums of the others in order.
//
// macro           meaning
// NARROW          0: filters are the tensor cores' rows and positions their columns; 1: the other way round
// FILTERS,        filters and positions of a tile. NARROW 0: 64 x 256 or 128 x 128. NARROW 1: a multiple of 8 up to
// TILE_POSITIONS  128, by a multiple of 128; the product is at most 128 * 128
// CHANNELS        channels of a chunk: 16
// KH, KW          size of the filter or of its pieces, not 1x1
// SLOTS           positions of a chunk in shared memory, in units of 128
// WHOLE_GROUPS    1 where the number of channels is a multiple of 8
// IN_STAGES       chunks of input in shared memory
// WEIGHT_STAGES   weight rows in shared memory
// PRODUCTS        3, or 1 for the accuracy of TF32 (common/fp16.cuh)
// PIECES          1 where a filter is multiplied in pieces of KH x KW, and images are cut into strips of columns; so
//                 are all layers with a stride, and some with a dilation (common/pieces.cuh)
// DILATED         1 where the images are whole and a filter has a dilation: taps are further apart than one position
// SHARED_BYTES    dynamic shared memory that the host asks for
// RESIDUAL        1 where there is a tensor to add before the activation (common/geometry.cuh)
// PREPARED        1 where the weights have been packed by an earlier launch (common/geometry.cuh)
//
// Every argument is eight bytes, a pointer or a long long. spatial_tiles: tiles of positions up to the last output.
// pitch: positions of a row of an image or a strip, of which it has image_rows; by_X packs the division by X
// (common/divider.cuh). From strip_columns on, the outputs in a row of a strip, arguments are read with PIECES alone;
// DILATED reads strides and dilations, too.
// row_phases, column_phases: phases that have an output. *_phases_h and *_phases_w are those of Axis (common/pieces.cuh).

// In small narrow tiles the registers have room for more sums, and one wgmma multiplies by both parts of the weights.
// The bound is MAX_SIDE_BY_SIDE of fp16x3.py.
#define SIDE_BY_SIDE (NARROW && PRODUCTS == 3 && FILTERS * TILE_POSITIONS <= 32 * 256)

#define COMPUTED __forceinline__  // the formulas of activations: a call would spill

#include "fp16x3/consume.cuh"
#include "fp16x3/produce.cuh"
#include "common/weight_packing.cuh"

constexpr int CONSUMER_REGISTERS = 152, PRODUCER_REGISTERS = 104;
// So few sums and products that no role needs more than 128 registers a thread, with which a block starts.
constexpr bool FEW_SUMS = PIECES && (SIDE_BY_SIDE ? 4 : 2) * SUMS <= 64;
static_assert(IN_STAGES * INPUT_STAGE + WEIGHT_STAGES * ROW_BYTES + 2 * STAGING * 4 == SHARED_BYTES);

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    fp16x3(const float* __restrict__ input, const float* __restrict__ weight, const float* __restrict__ bias,
           float* __restrict__ output, void* __restrict__ memory, int64 images, int64 channels, int64 height,
           int64 width, int64 filters, int64 kernel_h, int64 kernel_w, int64 pad_h, int64 pad_w, int64 out_h,
           int64 out_w, int64 activation, int64 numbers, int64 output_planes, int64 spatial_tiles, int64 pitch,
           int64 image_rows, int64 by_pitch, int64 by_image_rows, int64 strip_columns, int64 strips, int64 row_phases,
           int64 column_phases, int64 by_strips, int64 by_row_phases, int64 by_column_phases, int64 pieces,
           int64 pieces_in_row, int64 stride_h, int64 stride_w, int64 dilation_h, int64 dilation_w,
           int64 output_phases_h, int64 output_phases_w, int64 used_tap_phases_h,
           int64 used_tap_phases_w RESIDUAL_ARGUMENT PREPARED_ARGUMENTS) {
    launch_dependents();
    extern __shared__ __align__(128) char dynamic[];  // input stages, weight stages, staging
    __shared__ Shared shared;
    // Computed from arguments alone, so that it lies in uniform registers. Read from shared memory it would take each
    // thread's registers, and producers short of them load the input late.
    Geometry g;
    g.p = {(int)channels, (int)height, (int)width, (int)filters, (int)pad_h, (int)pad_w, (int)out_w,
           (int)(out_h * out_w), (int)output_planes};
    g.images = images, g.out_h = out_h, g.filter_tiles = (g.p.filters + BF - 1) / BF;
    g.chunks = (g.p.channels + CHANNELS - 1) / CHANNELS;
    g.pitch = pitch, g.by_pitch = Divider(pitch, by_pitch), g.by_image_rows = Divider(image_rows, by_image_rows);
#if PIECES || DILATED
    g.p.kernel_h = kernel_h, g.p.kernel_w = kernel_w;
    g.p.geometry = {(int)stride_h, (int)stride_w, (int)dilation_h, (int)dilation_w, 1};
#endif
#if PIECES
    g.rows = {(int)stride_h, (int)dilation_h, (int)output_phases_h, (int)used_tap_phases_h};
    g.columns = {(int)stride_w, (int)dilation_w, (int)output_phases_w, (int)used_tap_phases_w};
    g.strip_columns = strip_columns, g.by_strips = Divider(strips, by_strips);
    g.by_row_phases = Divider(row_phases, by_row_phases);
    g.by_column_phases = Divider(column_phases, by_column_phases);
    g.pieces_in_row = pieces_in_row, g.channel_chunks = g.chunks, g.chunks *= (int)pieces;
#endif
    g.units = (int)spatial_tiles * g.filter_tiles * g.chunks;
    const Workspace workspace(Memory{memory WITH_PREPARED(, packed, flags)}, (int64)g.filter_tiles * g.chunks, gridDim.x);
    char* const weight_stages = dynamic + IN_STAGES * INPUT_STAGE;
    float* const staging = reinterpret_cast<float*>(weight_stages + WEIGHT_STAGES * ROW_BYTES);

    if (threadIdx.x == 0) {
        for (int i = 0; i < IN_STAGES; ++i) {
            barrier_init(shared.full_input + i, WARPGROUP / 32);
            barrier_init(shared.empty_input + i, 2);
        }
        for (int i = 0; i < WEIGHT_STAGES; ++i) {
            barrier_init(shared.full_weights + i, 1);
            barrier_init(shared.empty_weights + i, 2);
        }
        shared.rows_fetched = 0;
        shared.geometry = g;
        fence_async_shared();
    }
    __syncthreads();
    const Share share(g.units, blockIdx.x, gridDim.x);

    const int role = __shfl_sync(~0u, threadIdx.x / WARPGROUP, 0);
    if (role >= CONSUMERS / WARPGROUP) {
        if (!FEW_SUMS) give_registers<PRODUCER_REGISTERS>();
        const char* const rows_end = workspace.rows + (int64)g.filter_tiles * g.chunks * ROWS * ROW_BYTES;
        const int group = role - CONSUMERS / WARPGROUP, rows = (share.end - share.begin) * ROWS;
        const int last_row = resident_rows(g) ? min(rows, resident_rows(g)) : rows;
        WeightFetcher weights = {workspace.rows,
                                 workspace.rows + WorkUnit(share.begin, g).tile_chunk(g) * ROWS * ROW_BYTES, rows_end,
                                 shared_address(weight_stages), group * ROWS, last_row};
        weights.advance(group * ROWS);
        Producer producer = {g, workspace, reinterpret_cast<const char*>(input), dynamic, shared, group,
                             (int)threadIdx.x % WARPGROUP, g.p.channels, (int64)g.p.height * g.p.width * 4, weights};
        producer.run(share);
    } else {
        if (!FEW_SUMS) take_registers<CONSUMER_REGISTERS>();
        wait_for_weights();
        const Output out = {g.p, input, weight, bias, output, {activation, numbers} WITH_RESIDUAL(, residual)};
        Consumer consumer = {g, workspace, out, shared_address(dynamic), shared_address(weight_stages),
                             staging + role * STAGING, shared, role, (int)threadIdx.x % WARPGROUP, share,
                             (unsigned)(images >> 32), resident_rows(g),
                             resident_rows(g) && g.chunks == 1 && share.end - share.begin > 1};
        consumer.run();
    }
}
