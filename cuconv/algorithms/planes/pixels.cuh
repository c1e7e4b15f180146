// A block's part of a channels-last image in half precision: neighbouring channels of neighbouring pixels.
//
// A vector is eight channels of a pixel, 16 bytes. A thread has the same vector of every `phases`-th pixel of the part,
// and neighbouring threads neighbouring vectors. Between its two passes a part stays in shared memory where it fits:
// each thread reads there only what it has written itself.
#pragma once

#include "channels_last/element.cuh"
#include "common/convolution.cuh"

constexpr int VECTOR = 8;

// The vectors of a thread. Strides are in vectors.
struct Pixels {
    int vector, phase, count;   // the thread's vector of a pixel, its first pixel, and its number of pixels
    int64 first, step;          // its first vector in the tensor, and the stride from one to the next
    int kept_first, kept_step;  // the same in shared memory

    // vectors, there: vectors of a pixel in the part, and those of them that the image has. row: vectors of a pixel of
    // the image. start: the part's first vector in the tensor. pixels: those of the part.
    __device__ __forceinline__ Pixels(int vectors, int there, int phases, int row, int64 start, int pixels)
        : vector(threadIdx.x % vectors),
          phase(threadIdx.x / vectors),
          count(phase < min(phases, pixels) && vector < there ? (pixels - phase - 1) / phases + 1 : 0),
          first(start + (int64)phase * row + vector),
          step((int64)phases * row),
          kept_first(phase * vectors + vector),
          kept_step(phases * vectors) {}

    // Calls use(values) for each of the thread's vectors, and keeps them in shared memory where `kept` is not null. The
    // loads of BATCH vectors are under way together.
    template <int BATCH, class Use>
    __device__ __forceinline__ void read(const uint4* from, uint4* kept, const Use& use) const {
        from += first, kept += kept ? kept_first : 0;
#pragma unroll 1
        for (int left = count; left > 0; left -= BATCH) {
            uint4 x[BATCH];
#pragma unroll
            for (int i = 0; i < BATCH; ++i)
                if (i < left) x[i] = from[i * step];
#pragma unroll
            for (int i = 0; i < BATCH; ++i) {
                if (i >= left) continue;
                if (kept) kept[i * kept_step] = x[i];
                float values[VECTOR];
                unpack(values, x[i]);
                use(values);
            }
            from += BATCH * step, kept += kept ? BATCH * kept_step : 0;
        }
    }

    // Changes each of the thread's vectors by change(values), rounds the result once, and writes it.
    template <int BATCH, class Change>
    __device__ __forceinline__ void write(const uint4* from, const uint4* kept, uint4* to, const Change& change) const {
        const uint4* source = kept ? kept + kept_first : from + first;
        const int64 source_step = kept ? kept_step : step;
        to += first;
#pragma unroll 1
        for (int left = count; left > 0; left -= BATCH) {
            uint4 x[BATCH];
#pragma unroll
            for (int i = 0; i < BATCH; ++i)
                if (i < left) x[i] = source[i * source_step];
#pragma unroll
            for (int i = 0; i < BATCH; ++i) {
                if (i >= left) continue;
                float values[VECTOR];
                unpack(values, x[i]);
                change(values);
                to[i * step] = make_uint4(packed(values[0], values[1]), packed(values[2], values[3]),
                                          packed(values[4], values[5]), packed(values[6], values[7]));
            }
            source += BATCH * source_step, to += BATCH * step;
        }
    }
};

// Writes the thread's number of each of its channels to a row of shared memory, which starts at a multiple of 16 bytes.
__device__ __forceinline__ void store_row(float* row, const float (&values)[VECTOR]) {
    reinterpret_cast<float4*>(row)[0] = make_float4(values[0], values[1], values[2], values[3]);
    reinterpret_cast<float4*>(row)[1] = make_float4(values[4], values[5], values[6], values[7]);
}
__device__ __forceinline__ void load_row(float (&values)[VECTOR], const float* row) {
    const float4 low = reinterpret_cast<const float4*>(row)[0], high = reinterpret_cast<const float4*>(row)[1];
    values[0] = low.x, values[1] = low.y, values[2] = low.z, values[3] = low.w;
    values[4] = high.x, values[5] = high.y, values[6] = high.z, values[7] = high.w;
}
