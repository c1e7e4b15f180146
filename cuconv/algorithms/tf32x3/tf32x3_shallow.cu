// Convolution of a short reduction (few channels, a small filter) with mma.sync, for compute capability 8.0 and up,
// with the accuracy of FP32 or of TF32.
//
// The reduction is over before a pipeline would have filled, so there is none: each warp works on its own, with as many
// loads in flight as its registers hold. It computes 32 pixels for all filters of its block:
//   load       columns of the next tile, global memory -> registers
//   decompose  columns, in registers, once for all filters
//   mma.sync   FILTERS filters at a time; one chain over the whole reduction, small terms first
//   write      straight from the accumulators
// The block decomposes its weights once, into shared memory. Warps wait for each other only until these are there.
//
// The four lanes that have the same pixels share the reduction out by rows of the input, (c, ky). Of each of its rows a
// lane holds the window that its four pixels see, so that the filter's positions in X share registers:
//
//     row of the input   x x x x x x        kx = 0: x x x x . .
//                                                1: . x x x x .
//                                                2: . . x x x x
//
// The rows that are left when every lane has had as many are shared out by single positions in X. A slot is one of a
// lane's (row, position) pairs; an mma instruction takes two of each lane.
//
// PRODUCTS           3 for FP32, 1 for TF32
// PIXELS             pixels of a warp
// ROWS               rows of the input that a lane has, with all positions of the filter in X
// SINGLES            single positions of a lane, of the rows that are left
// KERNEL_H KERNEL_W  the filter's size
// FILTERS            filters that a warp multiplies at a time: a multiple of 8
// WARPS              warps of a block
// REGISTERS          registers that a thread may take
// POINTWISE          1 for a 1x1 filter without padding
// ADJACENT           1 where a lane's four pixels are neighbours: in an image if POINTWISE, else in a row
// VECTOR             1 where it is ADJACENT, and rows of the output lie over those of the input, 16-byte aligned
//
// Every argument has eight bytes: a pointer or a long long.

#include "tf32x3/mma.cuh"

constexpr int THREADS = 32 * WARPS;
constexpr int WINDOW = 3 + KERNEL_W;          // elements of a row that four neighbouring pixels see
constexpr int WINDOWS = ROWS * WINDOW;        // elements of a lane in its rows
constexpr int COUNT = WINDOWS + SINGLES * 4;  // elements of a lane
constexpr int ROW_SLOTS = ROWS * KERNEL_W;    // slots of a lane in its rows
constexpr int SLOTS = ROW_SLOTS + SINGLES;    // slots of a lane
constexpr int STEPS = (SLOTS + 1) / 2;        // mma depths
constexpr int TILES = FILTERS / 8;            // mma tiles of filters at a time
constexpr int LEFT = KERNEL_W / 2;            // columns of padding, where it is VECTOR
constexpr int SM_REGISTERS = 64 * 1024;
#if PRODUCTS == 3
typedef uint4 Fragment;  // a lane's of tile B: two slots' big parts, then their small parts
#else
typedef uint2 Fragment;
#endif
static_assert(PIXELS == 32, "eight rows of a fragment, each with four pixels");
static_assert(ADJACENT || POINTWISE, "only pixels of a 1x1 filter may be apart");

// The row of the input, (c, ky), and the position in X of a lane's slot.
struct Slot {
    int row, kx;

    __device__ __forceinline__ Slot(int slot, int lane) {
        const int single = (slot - ROW_SLOTS) * 4 + lane;
        row = slot < ROW_SLOTS ? slot / KERNEL_W * 4 + lane : ROWS * 4 + single / KERNEL_W;
        kx = slot < ROW_SLOTS ? slot % KERNEL_W : single % KERNEL_W;
    }
};

// The index among a lane's elements of the one that a slot has under a pixel, 0 to 3.
__device__ __forceinline__ constexpr int element(int slot, int pixel) {
    const int in_rows = slot / KERNEL_W * WINDOW + slot % KERNEL_W;
    return pixel + (slot < ROW_SLOTS ? in_rows : WINDOWS + (slot - ROW_SLOTS) * 4);
}

struct Problem {
    int channels, height, width, filters, pad_h, pad_w, out_w, out_pixels;
    int output_planes;  // from one image of the output to the next
};

// A lane's four pixels of a tile.
struct Pixels {
    const float* source[ADJACENT ? 1 : 4];  // the window's first element, or that of each pixel; null without a pixel
    int y, x;                               // of the window's first element, which may lie in the padding
    int64 place;                            // offset of the first output that the lane writes; -1 where there is none

    __device__ __forceinline__ Pixels(unsigned tile, unsigned pixels, const float* input, const Problem& p) {
        const unsigned lane = threadIdx.x % 32, first = tile * PIXELS;
        const int plane = p.height * p.width;
#if ADJACENT
        const unsigned pixel = first + lane / 4 * 4, image = pixel / p.out_pixels;
        const unsigned within = pixel - image * p.out_pixels;
        const unsigned row = POINTWISE ? 0 : within / p.out_w;
        y = (int)row - p.pad_h, x = (int)(within - row * p.out_w) - p.pad_w;
        place = pixel < pixels ? (int64)image * p.output_planes * p.out_pixels + within : -1;
        source[0] = place < 0 ? nullptr : input + (int64)image * p.channels * plane + (int64)y * p.width + x;
#else
        const unsigned image = first / p.out_pixels, within = first - image * p.out_pixels;
        // The offset of a pixel of the tile in images of so many planes. A tile meets two images at most.
        const auto where = [&](int offset, int planes) -> int64 {
            const unsigned pixel = within + offset;
            const bool next = pixel >= p.out_pixels;
            return first + offset < pixels ? (int64)(image + next) * planes * plane + pixel - (next ? plane : 0) : -1;
        };
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int64 from = where(i * 8 + lane / 4, p.channels);
            source[i] = from < 0 ? nullptr : input + from;
        }
        place = where(lane % 4 * 8 + lane / 4, p.output_planes);
#endif
    }

    // Whether a row of the reduction exists and meets the input; sets its distance from the source.
    __device__ __forceinline__ bool reaches(int row, const Problem& p, int64& distance) const {
        const int ky = row % KERNEL_H;
        distance = row / KERNEL_H * ((int64)p.height * p.width) + ky * p.width;
        const bool exists = row < p.channels * KERNEL_H;
        return exists && (POINTWISE || (unsigned)(y + ky) < p.height);
    }

    // Loads a lane's elements: a window of each of its rows, then four pixels of each single position.
    __device__ __forceinline__ void load(float (&values)[COUNT], const Problem& p) const {
        int64 distance;
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const bool exists = reaches(r * 4 + threadIdx.x % 4, p, distance);
#if ADJACENT
            const bool inside = exists && source[0];
            const float* const from = source[0] + distance;
            float* const window = values + r * WINDOW;
#if VECTOR
            const float4 middle = inside ? __ldg(reinterpret_cast<const float4*>(from + LEFT)) : float4{};
            window[LEFT] = middle.x, window[LEFT + 1] = middle.y;
            window[LEFT + 2] = middle.z, window[LEFT + 3] = middle.w;
#endif
#pragma unroll
            for (int i = 0; i < WINDOW; ++i)
                if (!VECTOR || i < LEFT || i >= LEFT + 4)
                    window[i] = inside && (unsigned)(x + i) < p.width ? __ldg(from + i) : 0.0f;
#else
#pragma unroll
            for (int i = 0; i < 4; ++i) values[r * 4 + i] = exists && source[i] ? __ldg(source[i] + distance) : 0.0f;
#endif
        }
#pragma unroll
        for (int single = 0; single < SINGLES; ++single) {
            const Slot slot(ROW_SLOTS + single, threadIdx.x % 4);
            const bool inside = reaches(slot.row, p, distance) && source[0];
            const float* const from = source[0] + distance + slot.kx;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const bool meets = inside && (unsigned)(x + slot.kx + i) < p.width;
                values[WINDOWS + single * 4 + i] = meets ? __ldg(from + i) : 0.0f;
            }
        }
    }
};

// A pixel whose sums of several filters together are at least LEAST_TOTAL in magnitude has an input of at least 2^-74 if
// no weight but 0 is outside [LEAST_WEIGHT, 1 / LEAST_WEIGHT]. That input's products are then at least LEAST_RIGHT.
constexpr float LEAST_TOTAL = 0x1p-40f, LEAST_WEIGHT = 0x1p-22f;

// Decomposes the weights of `tiles` times eight filters into fragments of tile B: [tile][step][lane]. Returns whether
// this thread has met one outside of these bounds.
__device__ __forceinline__ bool decompose_weights(Fragment* fragments, const float* weight, int tiles, int filter_0,
                                                  const Problem& p) {
    const int rows = p.channels * KERNEL_H;
    bool unusual = false;
#pragma unroll 4
    for (int i = threadIdx.x; i < tiles * STEPS * 32; i += THREADS) {
        const int lane = i % 32, step = i / 32 % STEPS, filter = filter_0 + i / (32 * STEPS) * 8 + lane / 4;
        unsigned big[2], small[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const Slot slot(step * 2 + half, lane % 4);
            const bool exists = step * 2 + half < SLOTS && slot.row < rows && filter < p.filters;
            const int64 place = ((int64)filter * rows + slot.row) * KERNEL_W + slot.kx;
            const float w = exists ? weight[place] : 0.0f;
            unusual |= w != 0.0f && !(fabsf(w) >= LEAST_WEIGHT && fabsf(w) <= 1 / LEAST_WEIGHT);
            decompose(w, big[half], small[half]);
        }
#if PRODUCTS == 3
        fragments[i] = {big[0], big[1], small[0], small[1]};
#else
        fragments[i] = {big[0], big[1]};
#endif
    }
    return unusual;
}

// A lane's columns in parts, as fragments of tile A.
struct Columns {
    unsigned big[COUNT], small[COUNT];

    __device__ __forceinline__ explicit Columns(const float (&values)[COUNT]) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) decompose(values[i], big[i], small[i]);
    }

    // A fragment of tile A: pixels 2 * half and 2 * half + 1 of each lane, by the two slots of a step.
    __device__ __forceinline__ static void fragment(unsigned (&a)[4], const unsigned (&part)[COUNT], int half,
                                                    int step) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int slot = step * 2 + i / 2;
            a[i] = slot < SLOTS ? part[element(slot, half * 2 + i % 2)] : 0u;
        }
    }

    // sum = columns * weights of FILTERS filters. The small terms come first, while the chain is small itself and
    // truncation by the tensor cores costs least.
    __device__ __forceinline__ void multiply(float (&sum)[2][TILES][4], const Fragment* fragments) const {
#pragma unroll
        for (int j = 0; j < TILES; ++j) {
            Fragment b[STEPS];
#pragma unroll
            for (int step = 0; step < STEPS; ++step) b[step] = fragments[(j * STEPS + step) * 32];
#pragma unroll
            for (int half = 0; half < 2; ++half)
#pragma unroll
                for (int i = 0; i < 4; ++i) sum[half][j][i] = 0.0f;
#if PRODUCTS == 3
#pragma unroll
            for (int step = 0; step < STEPS; ++step)
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    unsigned a_big[4], a_small[4];
                    fragment(a_big, big, half, step), fragment(a_small, small, half, step);
                    mma(sum[half][j], a_small, {b[step].x, b[step].y});
                    mma(sum[half][j], a_big, {b[step].z, b[step].w});
                }
#endif
#pragma unroll
            for (int step = 0; step < STEPS; ++step)
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    unsigned a_big[4];
                    fragment(a_big, big, half, step);
                    mma(sum[half][j], a_big, {b[step].x, b[step].y});
                }
        }
    }
};

// Predicated stores. Left to itself the compiler branches around each store and the computation of its address.
__device__ __forceinline__ void store(char* to, float value, bool exists) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %2, 0; @p st.global.f32 [%0], %1;}" ::"l"(to), "f"(value),
                 "r"((int)exists)
                 : "memory");
}
__device__ __forceinline__ void store(char* to, const float (&v)[4], bool exists) {
    asm volatile("{.reg .pred p; setp.ne.b32 p, %5, 0; @p st.global.v4.f32 [%0], {%1, %2, %3, %4};}" ::"l"(to),
                 "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3]), "r"((int)exists)
                 : "memory");
}

// Four lanes' four values each, transposed: value i of lane j becomes value j of lane i.
__device__ __forceinline__ void transpose(float (&v)[4]) {
#pragma unroll
    for (int bit = 1; bit < 4; bit *= 2) {
        const bool upper = threadIdx.x & bit;
#pragma unroll
        for (int i = 0; i < 4; ++i)
            if (!(i & bit)) {
                const float other = __shfl_xor_sync(~0u, upper ? v[i] : v[i | bit], bit);
                (upper ? v[i] : v[i | bit]) = other;
            }
    }
}

// The magnitudes of all filters' sums together, of each of a lane's four pixels. They tell whether the sums may be wrong
// (parts.cuh), in an instruction a sum.
struct Totals {
    float of[2][2] = {};

    __device__ __forceinline__ void add(const float (&sum)[2][TILES][4]) {
#pragma unroll
        for (int i = 0; i < 8 * TILES; ++i) of[i % 2][i / 4 % 2] += fabsf(sum[i % 2][i / 8][i / 2 % 4]);
    }
    // Whether all sums of the warp are right. False also where they are small. Sums that are all 0 are right.
    __device__ __forceinline__ bool are_right() const {
        bool right = true;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float total = of[i / 2][i % 2];
            right &= total <= MOST_RIGHT && (PRODUCTS == 1 || total >= LEAST_TOTAL || total == 0.0f);
        }
        return __all_sync(~0u, right);
    }
};

// Judges a warp's sums one by one. Returns whether all are right; where they are not, marks those that are replaced.
__device__ __forceinline__ bool judge(float (&sum)[2][TILES][4]) {
    Judge judge;
#pragma unroll
    for (int i = 0; i < 8 * TILES; ++i) judge.add(sum[i % 2][i / 8][i / 2 % 4], i % 2);
    const bool right = __all_sync(~0u, judge.all_right());
    if (!right)
#pragma unroll
        for (int i = 0; i < 8 * TILES; ++i)
            sum[i % 2][i / 8][i / 2 % 4] = mark_wrong(sum[i % 2][i / 8][i / 2 % 4]);
    return right;
}

// The operands and sizes with which a warp writes its outputs.
struct Output {
    const float *input, *weight, *bias;
    float* output;
    bool relu;

    // A sum with bias and ReLU.
    __device__ __forceinline__ float finish(float value, int filter, const Problem& p) const {
        if (bias && filter < p.filters) value += bias[filter];
        return relu && value < 0.0f ? 0.0f : value;  // a NaN stays
    }

    // Writes FILTERS filters from `filter_0` on.
    __device__ __forceinline__ void write(float (&sum)[2][TILES][4], int64 place, int filter_0,
                                          const Problem& p) const {
        const int lane = threadIdx.x % 4;
        if (bias || relu)  // one branch for all sums
#pragma unroll
            for (int i = 0; i < 8 * TILES; ++i) {
                float& value = sum[i % 2][i / 8][i / 2 % 4];
                value = finish(value, filter_0 + i / 8 * 8 + lane * 2 + i / 2 % 2, p);
            }
        const unsigned plane = p.out_pixels * 4u;  // bytes
        char* const first = reinterpret_cast<char*>(output + place) + filter_0 * (uint64)plane;
        char* const mine = first + lane * 2 * (uint64)plane;
        const int left = place < 0 ? 0 : p.filters - filter_0;
#pragma unroll
        for (int j = 0; j < TILES; ++j)
#pragma unroll
            for (int side = 0; side < 2; ++side) {  // a lane's four pixels of filter 2 * lane + side
                float v[4] = {sum[0][j][side], sum[0][j][side + 2], sum[1][j][side], sum[1][j][side + 2]};
#if ADJACENT
                char* const to = mine + (j * 8 + side) * (uint64)plane;
                const bool exists = j * 8 + lane * 2 + side < left;
#if VECTOR
                store(to, v, exists);
#else
#pragma unroll
                for (int i = 0; i < 4; ++i) store(to + i * 4, v[i], exists);
#endif
#else
                transpose(v);  // one pixel of four filters, 2 * i + side: a warp writes 32 pixels side by side
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int filter = j * 8 + i * 2 + side;
                    store(first + filter * (uint64)plane, v[i], filter < left);
                }
#endif
            }
    }

    // Replaces the outputs of a tile that are marked, which are NaNs, by plain FP32 sums, for all filters of the block.
    // A warp calls it where one of its lanes has marked a sum.
    __device__ __forceinline__ void replace_marked(unsigned first, unsigned pixels, int filter_0, int filters,
                                                   const Problem& p) const {
        const unsigned index = first + threadIdx.x % 32, image = index / p.out_pixels;
        const int pixel = index - image * p.out_pixels, y = pixel / p.out_w, x = pixel - y * p.out_w;
        __syncwarp();  // the outputs that other lanes have written can be read
#pragma unroll 1
        for (int filter = filter_0; filter < min(filter_0 + filters, p.filters); ++filter) {
            float* const to = output + (((int64)image * p.output_planes + filter) * p.out_pixels + pixel);
            const bool marked = index < pixels && isnan(*to);
            if (!__any_sync(~0u, marked)) continue;
            const float sum = plain_sum_where(marked, input, weight, p, KERNEL_H, KERNEL_W, image, filter, y, x);
            if (marked) *to = finish(sum, filter, p);
        }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, SM_REGISTERS / (REGISTERS * THREADS))
    tf32x3_shallow(const float* __restrict__ input, const float* __restrict__ weight, const float* __restrict__ bias,
                   float* __restrict__ output, int64 images, int64 channels, int64 height, int64 width, int64 filters,
                   int64 kernel_h, int64 kernel_w, int64 pad_h, int64 pad_w, int64 out_h, int64 out_w, int64 relu,
                   int64 output_planes, int64 filter_blocks, int64 block_filters) {
    extern __shared__ Fragment fragments[];
    const Problem p = {(int)channels, (int)height, (int)width, (int)filters,
                       (int)pad_h,    (int)pad_w,  (int)out_w, (int)(out_h * out_w), (int)output_planes};

    // filter_blocks blocks, neighbours in the grid, share the filters of the same pixels. The tiles of pixels go round
    // among the warps of the grid.
    const unsigned pixels = images * p.out_pixels, tiles = (pixels + PIXELS - 1) / PIXELS;
    const int filter_0 = blockIdx.x % (unsigned)filter_blocks * (int)block_filters;
    const unsigned step = gridDim.x / (unsigned)filter_blocks * WARPS;
    unsigned tile = blockIdx.x / (unsigned)filter_blocks * WARPS + threadIdx.x / 32;
    float values[COUNT];
    int64 place = -1;  // of the pixels whose elements are in `values`
    const auto load = [&](const Pixels& here) {
        here.load(values, p);
        place = here.place;
    };

    // Wait for the kernel ahead before the first access to global memory, but after the index arithmetic.
    const Pixels first_pixels(tile, pixels, input, p);
#if __CUDA_ARCH__ >= 900
    uint64 known = (uint64)input;
    for (const float* source : first_pixels.source) known |= (uint64)source;
    wait_for_kernel_ahead(known);
    launch_dependents();
#endif

    // Load the first tile, and meanwhile decompose the weights.
    if (tile < tiles) load(first_pixels);
    const bool unusual = __syncthreads_or(decompose_weights(fragments, weight, block_filters / 8, filter_0, p));

    // Main loop: the next tile is loaded while this one is multiplied.
    const Output out = {input, weight, bias, output, relu != 0};
    bool each = unusual;  // whether sums are judged one by one
    while (tile < tiles) {
        const Columns columns(values);
        const int64 columns_place = place;
        const unsigned first = tile * PIXELS;
        tile += step;
        if (tile < tiles) load(Pixels(tile, pixels, input, p));
        Totals totals;
        bool right = true;
#pragma unroll 1
        for (int f = 0; f < block_filters; f += FILTERS) {
            float sum[2][TILES][4];
            columns.multiply(sum, fragments + f / 8 * STEPS * 32 + threadIdx.x % 32);
            totals.add(sum);
            if (PRODUCTS == 3)
#pragma unroll
                for (int i = 0; i < 8 * TILES; ++i)
                    sum[i % 2][i / 8][i / 2 % 4] = restored(sum[i % 2][i / 8][i / 2 % 4], STEPS);
            if (each) right &= judge(sum);
            out.write(sum, columns_place, filter_0 + f, p);
        }
        const bool doubtful = !each && !totals.are_right();
        if (!right) out.replace_marked(first, pixels, filter_0, block_filters, p);
        each = unusual || doubtful;
        if (doubtful) {  // the same tile once more
            tile = first / PIXELS;
            load(Pixels(tile, pixels, input, p));
        }
    }
}
