// Group normalisation of channels-last images in FP16 or BF16, then an activation: computed in FP32, rounded once.
//
// output = f((input - mean) / sqrt(variance + eps) * weight + bias). Mean and variance are those of a group of an
// image's channels; weight and bias are per channel.
//
// A cluster computes a set of neighbouring groups of an image, whose channels are whole vectors, and each of its blocks a
// slice of the pixels. In order:
//
//   1. Each thread finds the moments of its pixels, for each channel of its vector: from sums of differences from its
//      first pixel, so that digits cancel only where that pixel is far from the mean. The vectors stay in shared memory
//      where they fit.
//   2. The moments of a channel are joined: of phases in `parts` rows, of these rows, and of the cluster's blocks.
//   3. A warp joins those of a group's channels.
//   4. Threads normalise their vectors.
//
// Moments are joined in the same order at each call.
//
// BLOCKS  blocks of a cluster
// BF16    1 for BF16, 0 for FP16
//
// Every argument has eight bytes: a pointer or a long long.

#include "planes/cluster.cuh"
#include "planes/moments.cuh"
#include "planes/pixels.cuh"

constexpr int WARPS = 16, THREADS = 32 * WARPS, RESIDENT = 2;

// The pixels of a slice that each row of moments counts, of `rows` rows that share them one by one.
struct Counts {
    int each, more;

    __device__ __forceinline__ Counts(int pixels, int rows) : each(pixels / rows), more(pixels % rows) {}
    __device__ __forceinline__ float operator[](int row) const { return (float)(each + (row < more)); }
};

#if BLOCKS > 1
#define CLUSTER __cluster_dims__(BLOCKS, 1, 1)
#else
#define CLUSTER  // clusters of one block start later than blocks
#endif

// set_channels: channels of a set; the last set may have fewer. slice: pixels of a block. phases is a multiple of parts.
// kept: whether the slice fits into shared memory. epsilon: its bits.
extern "C" __global__ void CLUSTER __launch_bounds__(THREADS, RESIDENT)
    nhwc_group_norm(const uint4* __restrict__ input, const Element* __restrict__ weight,
                    const Element* __restrict__ bias, uint4* __restrict__ output, int64 channels, int64 group_channels,
                    int64 set_channels, int64 pixels, int64 slice, int64 phases, int64 parts, int64 kept,
                    int64 epsilon, int64 activation, int64 numbers) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(16) unsigned char shared[];
    const int rank = blockIdx.x % BLOCKS, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int room = (int)set_channels, vectors = room / VECTOR, row = (int)channels / VECTOR;
    const int sets = ((int)channels + room - 1) / room, image = blockIdx.x / BLOCKS / sets;
    const int channel = blockIdx.x / BLOCKS % sets * room, there = min(room, (int)channels - channel);
    const int64 pixel = min(pixels, rank * slice);
    const int slice_pixels = (int)min(slice, pixels - pixel);
    const Pixels part(vectors, there / VECTOR, (int)phases, row, (image * pixels + pixel) * row + channel / VECTOR,
                      slice_pixels);
    uint4* const stored = reinterpret_cast<uint4*>(shared);
    // Means, and sums of squared differences from them: [phases][room], then [parts][room], then [room].
    float* const means = reinterpret_cast<float*>(stored + (kept ? (int)slice * vectors : 0));
    float* const squares = means + (int)phases * room;
    // For each channel: first its moments over the image, later the mean and the scale of its group.
    float* const of_groups = squares + (int)phases * room;
    float* const scales = of_groups + room;
    wait_for_kernel_ahead();
    launch_dependents();

    float shift[VECTOR] = {}, sums[VECTOR] = {}, products[VECTOR] = {};
    if (part.count) unpack(shift, input[part.first]);
    part.read<3>(input, kept ? stored : nullptr, [&](const float(&values)[VECTOR]) {
#pragma unroll
        for (int i = 0; i < VECTOR; ++i) {
            const float difference = values[i] - shift[i];
            sums[i] += difference;
            products[i] = fmaf(difference, difference, products[i]);
        }
    });
    if (part.phase < (int)phases) {
        const float inverse = 1.0f / (float)max(1, part.count);
#pragma unroll
        for (int i = 0; i < VECTOR; ++i) {
            const float mean = sums[i] * inverse;
            products[i] = fmaf(-sums[i], mean, products[i]);
            shift[i] += mean;
        }
        const int at = part.phase * room + part.vector * VECTOR;
        store_row(means + at, shift);
        store_row(squares + at, products);
    }
    __syncthreads();
    const Counts of_phases(slice_pixels, (int)phases), of_parts(slice_pixels, (int)parts);
    for (int i = threadIdx.x; i < room * (int)parts; i += THREADS) {  // row i / room, which no other thread reads
        Moments moments = {0.0f, 0.0f, 0.0f};
#pragma unroll 4
        for (int phase = i / room; phase < (int)phases; phase += (int)parts) {
            const int at = phase * room + i % room;
            moments.join({of_phases[phase], means[at], squares[at]});
        }
        means[i] = moments.mean, squares[i] = moments.squares;
    }
    __syncthreads();
    for (int c = threadIdx.x; c < room; c += THREADS) {
        Moments moments = {0.0f, 0.0f, 0.0f};
#pragma unroll 4
        for (int i = 0; i < (int)parts; ++i) moments.join({of_parts[i], means[i * room + c], squares[i * room + c]});
        means[c] = moments.mean, squares[c] = moments.squares;
    }
#if BLOCKS > 1
    __syncwarp();
    cluster_barrier();
#endif
    for (int c = threadIdx.x; c < room; c += THREADS) {
#if BLOCKS > 1
        Moments moments = {0.0f, 0.0f, 0.0f};
#pragma unroll 4
        for (int block = 0; block < BLOCKS; ++block) {
            const float count = (float)max((int64)0, min(slice, pixels - block * slice));
            moments.join({count, load_remote(block, means + c), load_remote(block, squares + c)});
        }
#else
        const Moments moments = {(float)slice_pixels, means[c], squares[c]};  // the thread's own
#endif
        of_groups[c] = moments.mean, scales[c] = moments.squares;
    }
#if BLOCKS > 1
    __syncwarp();
    cluster_arrive();
#endif
    __syncthreads();
    const int group = (int)group_channels;
    for (int start = warp * group; start < there; start += WARPS * group) {
        Moments moments = {0.0f, 0.0f, 0.0f};
        for (int c = start + lane; c < start + group; c += 32) moments.join({(float)pixels, of_groups[c], scales[c]});
        moments.join_lanes();
        const float mean = __shfl_sync(~0u, moments.mean, 0), scale = __shfl_sync(~0u, moments.scale(epsilon), 0);
        for (int c = start + lane; c < start + group; c += 32) of_groups[c] = mean, scales[c] = scale;
    }
    __syncthreads();

    if (part.count) {
        float mean[VECTOR], factor[VECTOR], offset[VECTOR];
        load_row(mean, of_groups + part.vector * VECTOR);
        load_row(factor, scales + part.vector * VECTOR);
        const int at = channel + part.vector * VECTOR;
#pragma unroll
        for (int i = 0; i < VECTOR; ++i) {
            factor[i] *= weight ? value_of(weight[at + i]) : 1.0f;
            offset[i] = bias ? value_of(bias[at + i]) : 0.0f;
        }
        const Activation function(activation, numbers);
        part.write<2>(input, kept ? stored : nullptr, output, [&](float(&values)[VECTOR]) {
#pragma unroll
            for (int i = 0; i < VECTOR; ++i) values[i] = fmaf(values[i] - mean[i], factor[i], offset[i]);
            activate(values, function);
        });
    }
#if BLOCKS > 1
    __syncwarp();
    cluster_wait();  // no block ends while another one reads its moments
#endif
#endif
}
