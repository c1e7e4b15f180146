// Filters in pieces, on one axis, whatever the stride and the dilation.
//
// With g = gcd(stride, dilation), the outputs p, p + dilation / g, p + 2 * dilation / g, ... read through the taps r,
// r + stride / g, r + 2 * stride / g, ... inputs that are lcm(stride, dilation) apart:
//
//   output[p + dilation / g * i]  +=  weight[r + stride / g * j] * input[stride * p + dilation * r + lcm * (i + j)]
//
// Each phase p of the outputs with each phase r of the taps is a convolution of stride 1 without dilation. Pieces are
// SIZE taps of the same phase; the last ones may reach beyond the filter, where weights are zeros. All phases' pieces
// are numbered in turn.
#pragma once

// The phases of a filter's taps: stride / g, of which the last have no tap if the filter is smaller.
struct Taps {
    int kernel, phases;

    __device__ __forceinline__ int used() const { return min(phases, kernel); }
    template <int SIZE>
    __device__ __forceinline__ int pieces() const {
        const int most = (kernel + phases - 1) / phases;  // taps of a phase
        return (most + SIZE - 1) / SIZE * used();
    }
    // A piece's tap number j, as a place in the filter.
    template <int SIZE>
    __device__ __forceinline__ int tap(int piece, int j) const {
        return piece % used() + phases * (piece / used() * SIZE + j);
    }
};

// The inputs and outputs of an axis. All numbers are a kernel's arguments: what is computed from them would stay in
// registers, of which a kernel may have none left.
struct Axis {
    int stride, dilation;
    int output_phases;    // dilation / g
    int used_tap_phases;  // those that have a tap

    // Output number i of a phase.
    __device__ __forceinline__ int output(int i, int phase) const { return phase + output_phases * i; }
    // The input, padding included, that an output reads through tap 0.
    __device__ __forceinline__ int input(int output) const { return stride * output; }
    // The distance in inputs from tap 0 to the first tap of a piece.
    template <int SIZE>
    __device__ __forceinline__ int shift(int piece) const {
        const int phase = piece % used_tap_phases, in_phase = piece / used_tap_phases * SIZE;
        return stride * output_phases * in_phase + dilation * phase;
    }
};
