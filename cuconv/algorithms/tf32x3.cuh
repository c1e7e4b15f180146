// Shared by the tf32x3 kernels for Hopper: FP32 factors as two TF32 numbers, wgmma on them, and the im2col addressing.
//
// Of the including file's macros, BF (filters of a tile), SPLIT, POINTWISE and LARGE_FILTER are used.
#pragma once

typedef long long int64;
typedef unsigned long long uint64;

// A filter position (tap) as a bit: which of them meet the input at a pixel.
#if LARGE_FILTER
typedef uint64 TapMask;
#else
typedef unsigned TapMask;
#endif

// For one k of the reduction: distance in bytes from a pixel's source, and the filter position, as a bit or (of a
// large filter) as a number; no bit beyond the reduction.
struct Tap {
    int distance;
    unsigned position;
};

constexpr int BK = 32;               // depth of a stage: 128 bytes of a row of weights
constexpr int STEPS = BK / 8;        // wgmma depths in a stage
constexpr int TILE_FLOATS = BF * BK;  // weights of a stage, big or small

struct Problem {
    int channels, height, width, filters, kernel_h, kernel_w, pad_h, pad_w, out_w, out_pixels;
};

__device__ __forceinline__ unsigned shared_address(const void* p) {
    return static_cast<unsigned>(__cvta_generic_to_shared(p));
}

// big is x rounded to nearest; of small the tensor cores ignore the low 13 bits. A NaN stays one in small.
__device__ __forceinline__ void split(float x, float& big, float& small) {
    big = __uint_as_float((__float_as_uint(x) + 0x1000u) & 0xffffe000u);
    small = x - big;
}

// Descriptor of a K-major tile of rows of 128 bytes, swizzled in groups of eight rows.
__device__ __forceinline__ uint64 descriptor(const float* tile) {
    return (uint64)(shared_address(tile) >> 4 & 0x3fff) | 1ull << 16 | (uint64)(1024 >> 4) << 32 | 1ull << 62;
}

#define OUT4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define OUT16(i) OUT4(i), OUT4(i + 4), OUT4(i + 8), OUT4(i + 12)
#define R0 "%0,%1,%2,%3,%4,%5,%6,%7"
#define R8 "%8,%9,%10,%11,%12,%13,%14,%15"
#define R16 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define R32 \
    "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
    "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define WGMMA(n, registers, operands, desc, keep)                                        \
    "{.reg .pred p; setp.ne.b32 p, " keep ", 0; wgmma.mma_async.sync.aligned.m64n" n     \
    "k8.f32.tf32.tf32 {" registers "}, {" operands "}, " desc ", p, 1, 1;}"

// d (64 pixels x BF filters) = a * b, or += where `keep`.
__device__ __forceinline__ void wgmma(float (&d)[BF / 2], const float (&a)[4], uint64 b, int keep) {
#define IN                                                                                               \
    "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])),                  \
        "r"(__float_as_uint(a[3])), "l"(b), "r"(keep)
#if BF == 16
    asm volatile(WGMMA("16", R0, "%8,%9,%10,%11", "%12", "%13") : OUT4(0), OUT4(4) : IN);
#elif BF == 32
    asm volatile(WGMMA("32", R0 "," R8, "%16,%17,%18,%19", "%20", "%21") : OUT16(0) : IN);
#elif BF == 64
    asm volatile(WGMMA("64", R0 "," R8 "," R16, "%32,%33,%34,%35", "%36", "%37") : OUT16(0), OUT16(16) : IN);
#else
    asm volatile(WGMMA("128", R0 "," R8 "," R16 "," R32, "%64,%65,%66,%67", "%68", "%69")
                 : OUT16(0), OUT16(16), OUT16(32), OUT16(48)
                 : IN);
#endif
}

// A barrier of the blocks of a cluster. Releasing makes what this block wrote to shared memory visible to the others,
// and waits for all of its memory operations (0.3 us); without, it says no more than that the block came by.
template <bool release>
__device__ __forceinline__ void cluster_arrive() {
#if SPLIT > 1
    if (release)
        asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    else
        asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void cluster_wait() {
#if SPLIT > 1
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

// A float in the shared memory of block `rank` of the cluster, where this block has `p`.
__device__ __forceinline__ float load_from_block(const float* p, int rank) {
#if SPLIT > 1
    unsigned address;
    float value;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(p)), "r"(rank));
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
    return value;
#else
    return *p;
#endif
}

// The plain FP32 sum, for outputs that are not finite: a split of Inf or NaN has no meaning.
__device__ __noinline__ float plain_sum(const float* input, const float* weight, const Problem p, int64 image,
                                           int filter, int y, int x) {
    float sum = 0.0f;
#pragma unroll 1
    for (int c = 0; c < p.channels; ++c)
#pragma unroll 1
        for (int ky = 0; ky < p.kernel_h; ++ky)
#pragma unroll 1
            for (int kx = 0; kx < p.kernel_w; ++kx) {
                const int iy = y + ky - p.pad_h, ix = x + kx - p.pad_w;
                const bool inside = iy >= 0 && iy < p.height && ix >= 0 && ix < p.width;
                const float value = inside ? input[((image * p.channels + c) * p.height + iy) * p.width + ix] : 0.0f;
                sum = fmaf(value, weight[(((int64)filter * p.channels + c) * p.kernel_h + ky) * p.kernel_w + kx], sum);
            }
    return sum;
}

// A pixel of the output, and where its columns come from.
struct Pixel {
    bool exists;
    int image, pixel;
    const float* source;
    TapMask inside;  // the filter positions that meet the input here

    __device__ __forceinline__ Pixel(int index, int pixels, const float* input, const Problem& p) {
        exists = index < pixels;
        image = exists ? index / p.out_pixels : 0;
        pixel = exists ? index % p.out_pixels : 0;
        source = input + (int64)image * p.channels * p.height * p.width;
#if POINTWISE
        source += pixel;
        inside = exists;
#else
        const int y = pixel / p.out_w - p.pad_h, x = pixel % p.out_w - p.pad_w;
        source += (int64)y * p.width + x;
        inside = 0;
        for (int tap = 0, ky = 0; ky < p.kernel_h; ++ky)
            for (int kx = 0; kx < p.kernel_w; ++kx, ++tap)
                inside |= (TapMask)(exists && y + ky >= 0 && y + ky < p.height && x + kx >= 0 && x + kx < p.width) << tap;
#endif
    }

    __device__ __forceinline__ float load(Tap tap) const {
#if LARGE_FILTER
        const bool meets = inside >> tap.position & 1;
#else
        const bool meets = inside & tap.position;
#endif
        return meets ? *reinterpret_cast<const float*>(reinterpret_cast<const char*>(source) + tap.distance) : 0.0f;
    }
};

// The columns of a stage as fragments of A: pixels a and b, eight apart, by k of lane and lane + 4 in each step.
// `k_0` is the stage's first k, `taps` its entries of the tap table.
__device__ __forceinline__ void load_columns(float (&values)[STEPS][4], const Pixel& a, const Pixel& b, int k_0,
                                             int depth, int plane, const Tap* taps) {
    const int lane = threadIdx.x % 4;
    const int64 start = (int64)(k_0 + lane) * plane;
#pragma unroll
    for (int step = 0; step < STEPS; ++step)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int k = step * 8 + half * 4;
#if POINTWISE
            const int64 at = start + (int64)k * plane;
            const bool k_exists = k_0 + k + lane < depth;
            values[step][half * 2] = k_exists && a.exists ? a.source[at] : 0.0f;
            values[step][half * 2 + 1] = k_exists && b.exists ? b.source[at] : 0.0f;
#else
            const Tap tap = taps[k + lane];
            values[step][half * 2] = a.load(tap);
            values[step][half * 2 + 1] = b.load(tap);
#endif
        }
}

__device__ __forceinline__ void split_columns(const float (&values)[STEPS][4], float (&big)[STEPS][4],
                                              float (&small)[STEPS][4]) {
#pragma unroll
    for (int step = 0; step < STEPS; ++step)
#pragma unroll
        for (int r = 0; r < 4; ++r) split(values[step][r], big[step][r], small[step][r]);
}

// Starts a stage's products: chain = columns * weights, of which `tile` holds big and then small. The small terms
// come first, while the chain is small itself and truncation costs least.
__device__ __forceinline__ void start_products(float (&chain)[BF / 2], const float (&big)[STEPS][4],
                                               const float (&small)[STEPS][4], const float* tile) {
    const uint64 b_big = descriptor(tile), b_small = descriptor(tile + TILE_FLOATS);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {  // 32 bytes of a row each
        wgmma(chain, small[step], b_big + step * 2, step > 0);
        wgmma(chain, big[step], b_small + step * 2, 1);
    }
#pragma unroll
    for (int step = 0; step < STEPS; ++step) wgmma(chain, big[step], b_big + step * 2, 1);
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void finish_products(float (&chain)[BF / 2], float (&sum)[BF / 2]) {
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
    for (int i = 0; i < BF / 2; ++i) {
        asm volatile("" : "+f"(chain[i])::"memory");
        sum[i] += chain[i];
    }
}

// An entry of the tap table.
__device__ __forceinline__ Tap make_tap(int k, int depth, int area, const Problem& p) {
    const int c = k / area, position = k % area;
    const int distance = (c * p.height + position / p.kernel_w) * p.width + position % p.kernel_w;
#if LARGE_FILTER
    return {distance * 4, k < depth ? (unsigned)position : 63u};  // a bit that is never set
#else
    return {distance * 4, k < depth ? 1u << position : 0u};
#endif
}

// What a block needs to write its tile of the output.
struct Output {
    const float *input, *weight, *bias;
    float* output;
    bool relu;

    // One element of the output, with bias and ReLU; a NaN stays.
    __device__ __forceinline__ void write(float value, const Problem& p, const Pixel& at, int filter) const {
        if (!at.exists || filter >= p.filters) return;
        if (bias) value += bias[filter];
        if (relu && value < 0.0f) value = 0.0f;
        output[((int64)at.image * p.filters + filter) * p.out_pixels + at.pixel] = value;
    }

    // The same from the plain FP32 sum: for a thread with an element that is not finite.
    __device__ __forceinline__ void write_plain(const Problem& p, const Pixel& at, int filter) const {
        if (!at.exists || filter >= p.filters) return;
        write(plain_sum(input, weight, p, at.image, filter, at.pixel / p.out_w, at.pixel % p.out_w), p, at, filter);
    }
};

// Filter and pixel of element i of a thread's accumulators, in the warpgroup's tile.
__device__ __forceinline__ int accumulator_filter(int i) { return i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2; }
__device__ __forceinline__ int accumulator_pixel(int i) { return threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4 + i % 4 / 2 * 8; }

// Writes a tile straight from the accumulators of its warpgroup.
__device__ __forceinline__ void write_accumulators(const float (&sum)[BF / 2], const Output& out, const Problem& p,
                                                   const Pixel& a, const Pixel& b, int filter_0) {
    bool finite = true;
#pragma unroll
    for (int i = 0; i < BF / 2; ++i) {
        finite &= isfinite(sum[i]);
        out.write(sum[i], p, i % 4 / 2 ? b : a, filter_0 + accumulator_filter(i));
    }
    if (!finite)
#pragma unroll 1
        for (int i = 0; i < BF / 2; ++i) {
            out.write_plain(p, a, filter_0 + accumulator_filter(i));
            out.write_plain(p, b, filter_0 + accumulator_filter(i));
        }
}

// Adds up the sums of GROUPS warpgroups a pixel and of the blocks of a cluster, in fixed order, and writes the tile.
// Sums lie in shared memory as [GROUPS][BF][BP + 4], which puts a warp's stores in 32 different banks; each block
// writes an equal share of the filters. All threads of the cluster call this.
template <int GROUPS, int BP, int THREADS>
__device__ __forceinline__ void write_shared_tile(const float* shared, const Output& out, const Problem& p,
                                                  const Pixel& mine, int filter_0, int rank) {
    constexpr int SHARE = BF / SPLIT, LD = BP + 4;
    static_assert(BF % SPLIT == 0 && THREADS % BP == 0, "a cluster shares the filters of a tile evenly");
    cluster_arrive<true>();
    cluster_wait();
    float values[(SHARE + THREADS / BP - 1) / (THREADS / BP)];
    bool finite = true;
#pragma unroll
    for (int i = 0; i < SHARE; i += THREADS / BP) {
        const int filter = i + threadIdx.x / BP;
        float value = 0.0f;
        if (filter < SHARE)
#pragma unroll
            for (int block = 0; block < SPLIT; ++block)
#pragma unroll
                for (int group = 0; group < GROUPS; ++group)
                    value +=
                        load_from_block(shared + (group * BF + rank * SHARE + filter) * LD + threadIdx.x % BP, block);
        values[i / (THREADS / BP)] = value;
        finite &= isfinite(value);
    }
    // A vote on every value: what this block reads of the others has arrived before it says so.
    const bool all_finite = __syncthreads_and(finite);
    cluster_arrive<false>();
    const int first = filter_0 + rank * SHARE, end = first + SHARE;
#pragma unroll
    for (int i = 0; i < SHARE; i += THREADS / BP) {
        const int filter = first + i + threadIdx.x / BP;
        if (filter < end) out.write(values[i / (THREADS / BP)], p, mine, filter);
    }
    if (!all_finite)
#pragma unroll 1
        for (int filter = first + threadIdx.x / BP; filter < end; filter += THREADS / BP)
            out.write_plain(p, mine, filter);
    cluster_wait();  // nobody leaves while its sums are read
}

#if SPLIT > 1
#define CLUSTER __cluster_dims__(SPLIT, 1, 1)
#else
#define CLUSTER
#endif
