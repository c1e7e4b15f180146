// Filters in pieces, on one axis, whatever the stride and the dilation.
//
// With g = gcd(stride, dilation), the outputs p, p + dilation / g, p + 2 * dilation / g, ... read through the taps r,
// r + stride / g, r + 2 * stride / g, ... inputs that are lcm(stride, dilation) apart:
//
//   output[p + dilation / g * i]  +=  weight[r + stride / g * j] * input[stride * p + dilation * r + lcm * (i + j)]
//
// That is a convolution of stride 1 without dilation, for each phase p of the outputs and each phase r of the taps.
// Pieces are SIZE taps of the same phase; the last ones may reach beyond the filter, where weights are zeros.
#pragma once

__device__ __forceinline__ int quotient_up(int a, int b) { return (a + b - 1) / b; }

struct Axis {
    int kernel, stride, dilation;  // of the convolution
    int phases, tap_phases;        // dilation / g and stride / g

    // The same numbers, of which the compiler computes nothing ahead of here: a kernel has no registers to keep it in.
    __device__ __forceinline__ Axis here() const {
        Axis same = *this;
        asm volatile("" : "+r"(same.kernel), "+r"(same.stride), "+r"(same.phases), "+r"(same.tap_phases));
        return same;
    }
    // Phases that have a tap.
    __device__ __forceinline__ int used() const { return min(tap_phases, kernel); }

    template <int SIZE>
    __device__ __forceinline__ int pieces() const {
        return quotient_up(quotient_up(kernel, tap_phases), SIZE) * used();
    }
    // A piece's tap number j, as a place in the filter.
    template <int SIZE>
    __device__ __forceinline__ int tap(int piece, int j) const {
        return piece % used() + tap_phases * (piece / used() * SIZE + j);
    }
    // Output number i of a phase.
    __device__ __forceinline__ int output(int i, int phase) const { return phase + phases * i; }
    // The input, padding included, that an output reads through the first tap of the first piece, and how much further
    // on that of another piece is.
    __device__ __forceinline__ int input(int output) const { return stride * output; }
    template <int SIZE>
    __device__ __forceinline__ int shift(int piece) const {
        return stride * phases * (piece / used() * SIZE) + dilation * (piece % used());
    }
};
__device__ __forceinline__ Axis axis_of(int kernel, int stride, int dilation, int tap_phases) {
    return {kernel, stride, dilation, dilation * tap_phases / stride, tap_phases};
}
