// 1x1 convolution on Hopper's FP16 tensor cores with the accuracy of FP32.
//
//   out[m, p] = sum over c of weight[m, c] * input[c, p]        p: a pixel of any image, NCHW
//
// Matrix A is a tile of pixels, in registers; B the filters, in shared memory. Each pixel and each filter is scaled by
// a power of two for each chunk of channels, and decomposed into two FP16 parts, x = high + low. The tensor cores
// compute low * high + high * low + high * high for a chunk; that chain is then added to FP32 registers.
//
//   pack_weights    weights -> scaled FP16 parts in the workspace, a kernel ahead (unless PACKS_WEIGHTS or PREPARED)
//   producers       pixels of a chunk, as they lie in memory -> pixel stage of each consumer   (cp.async or bulk copy)
//     one thread    packed weights of a chunk -> weight stage                                  (bulk copy)
//   consumer 0      [ decompose | products of chunk 0 ........ | add ][ decompose | products of chunk 1 ...
//                               [ load chunk 1, find its scale ]                  [ load chunk 2 ...
//   consumer 1          [ decompose | ...         each at its own pace; at a tile's end: sums -> epilogue -> output
//
//   full_pixels, empty_pixels      hand a pixel stage over and back: copies that arrive, 4 warps of a consumer
//   full_weights, empty_weights    the same for weight stages: the bytes of bulk copies, all warps that read them
//
// macro              meaning
// FILTERS            filters of a tile, a multiple of 16
// CHANNELS           channels of a chunk, a multiple of 16
// CONSUMERS          warpgroups that multiply, 64 pixels each: 2 or 3
// WARPGROUP_SPLIT_K  1: they have the same 64 pixels, and each has every CONSUMERS-th of at least CONSUMERS chunks
// PIXEL_STAGES       chunks of each consumer's pixels in shared memory
// WEIGHT_STAGES      chunks of weights there; PIXEL_STAGES unless resident, with WARPGROUP_SPLIT_K for each consumer
// WEIGHTS_RESIDENT   1: these are all chunks of a filter tile, and stay for the tiles of the block with these filters
// GRID_STRIDE        1: a block takes every gridDim.x-th tile, in the order of pixels; with resident weights gridDim.x
//                    must then be a multiple of the filter tiles. 0: consecutive tiles, in the order of filters
// TAIL_SPLIT_K       blocks that share each tile of the last wave, by chunks; otherwise 1
// PACKS_WEIGHTS      weights of one load, 1 or 4, where the block packs its weights; 0: a kernel ahead packs them
// EPILOGUE_FILTERS   filters of a consumer in shared memory at once on the way out
// VECTOR             1: four neighbours of a plane, or of all planes in whole images, may be copied and written at once
// SHIFTED            8 or 4: consumers have pixels of one image each, which begin anywhere; they write from a multiple
//                    of that number of floats to another. Otherwise 0
// PLANE              pixels of an image, 33 to 64, where a consumer has a whole image; otherwise 0
// PITCH              floats in shared memory from a channel's or filter's pixels to the next one's
// PRODUCER_THREADS   threads that copy one consumer's pixels
// EVICT_FIRST        1 where a share of the input has an evict-first policy (common/eviction.cuh)
// PRODUCTS           3, or 1 for the accuracy of TF32 (common/fp16.cuh)
// SHARED_BYTES       dynamic shared memory that the host asks for
// RESIDUAL           1 where there is a tensor to add before the activation (common/geometry.cuh)
// PREPARED           1 where the weights have been packed by an earlier launch (common/geometry.cuh)
//
// Every argument is eight bytes, a pointer or a long long.

#include "pointwise/consume.cuh"
#include "pointwise/produce.cuh"

constexpr int EPILOGUE_OFFSET = CONSUMERS * PIXEL_STAGES * PIXEL_STAGE_FLOATS * 4 + WEIGHT_STAGES * WEIGHT_STAGE_BYTES;
static_assert(EPILOGUE_OFFSET + CONSUMERS * BUFFERS * 4 == SHARED_BYTES);
static_assert(CONSUMERS * PRODUCER_THREADS <= WARPGROUP);

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    fp16x3_pointwise(const float* __restrict__ input, const float* __restrict__ weight, const float* __restrict__ bias,
                     float* __restrict__ output, void* __restrict__ workspace, int64 images, int64 channels, int64 height,
                     int64 width, int64 filters, int64 activation, int64 numbers, int64 output_planes, int64 evict_first
                     RESIDUAL_ARGUMENT PREPARED_ARGUMENTS) {
    if (!PACKS_WEIGHTS) launch_dependents();
    extern __shared__ __align__(128) char dynamic[];  // pixel stages, weight stages, buffers of the epilogue
    __shared__ Shared shared;
    const int pixels = height * width;
    const int image_tiles = (pixels - GRAIN + TILE_STEP) / TILE_STEP;
    const int64 warpgroup_tiles = PLANE     ? images
                                  : SHIFTED ? images * image_tiles
                                            : (images * pixels + WARPGROUP_PIXELS - 1) / WARPGROUP_PIXELS;
    const Sizes s = {(int)channels, (int)height, (int)width, (int)filters, 0, 0, (int)width, pixels, (unsigned)images,
                     (int)(channels + CHANNELS - 1) / CHANNELS,
                     (int)(warpgroup_tiles + WARPGROUP_TILES - 1) / WARPGROUP_TILES, (int)(filters + BF - 1) / BF,
                     (unsigned)image_tiles, (int)output_planes};
    const int tiles = s.pixel_tiles * s.filter_tiles;
    const Share share(tiles, blockIdx.x, gridDim.x);  // the block's share of the tiles, without a grid stride
    const LastWave last(s);
    const Memory memory = {workspace WITH_PREPARED(, packed, flags)};
    char* const weight_stages = dynamic + CONSUMERS * PIXEL_STAGES * PIXEL_STAGE_FLOATS * 4;
    float* const buffers = reinterpret_cast<float*>(weight_stages + WEIGHT_STAGES * WEIGHT_STAGE_BYTES);
    if (threadIdx.x == 0) {
        shared.tiles = GRID_STRIDE ? (tiles - 1 - blockIdx.x) / gridDim.x + 1 : share.end - share.begin;
        if (TAIL_SPLIT_K > 1) {
            shared.tiles = last.waves + last.takes_part;
            shared.split_tile = last.split_tile();
            shared.begin_chunk = last.begin_chunk(last.part, s), shared.end_chunk = last.begin_chunk(last.part + 1, s);
        }
        shared.reciprocal = ~0u / (unsigned)(SHIFTED ? image_tiles : pixels);
        for (int consumer = 0; consumer < CONSUMERS; ++consumer)
            for (int i = 0; i < PIXEL_STAGES; ++i) {
                barrier_init(shared.full_pixels[consumer] + i, PRODUCERS);
                barrier_init(shared.empty_pixels[consumer] + i, RELEASES);
            }
        for (int i = 0; i < WEIGHT_STAGES; ++i) {
            barrier_init(shared.full_weights + i, 1);
            barrier_init(shared.empty_weights + i, WEIGHT_RELEASES);
        }
        fence_async_shared();
    }
    __syncthreads();
    const int role = __shfl_sync(~0u, threadIdx.x / WARPGROUP, 0), thread = threadIdx.x % WARPGROUP;
    const Block block = {s, input, reinterpret_cast<float*>(dynamic), weight_stages, shared,
                         TAIL_SPLIT_K > 1 ? last.tile_of(0, last.split_tile())
                         : GRID_STRIDE    ? (int)blockIdx.x
                                          : share.begin};
    if (role == CONSUMERS) {
        give_registers<PRODUCER_REGISTERS>();
        const Workspace parts(memory, (int64)s.filter_tiles * s.chunks, TAIL_SPLIT_K > 1 ? gridDim.x : 0);
        Producer producer = {block, parts, thread / PRODUCER_THREADS, thread % PRODUCER_THREADS,
                             evict_first_policy(evict_first)};
        if (producer.consumer < CONSUMERS) producer.run();
    } else {
        take_registers<CONSUMER_REGISTERS>();
        if (!PACKS_WEIGHTS) wait_for_weights();  // before anything is written
        const Epilogue epilogue = {block,   weight, bias, output, {activation, numbers},
                                   buffers, role WITH_RESIDUAL(, residual)};
        Consumer(block, role, thread).run(epilogue, memory);
    }
}
