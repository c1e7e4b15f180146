// The mean of what the tensor cores lose by truncation, which kernels give back.
//
// A step is an instruction that adds products to a chain; it truncates the chain toward zero. Rounding errors of a
// network's layers cancel each other, but these errors add up: every layer's output is too small. Chains of random
// products lose LOSS * (n + 1) of their value in n steps, on average (docs/accuracy.md). Steps of small products, which
// come first, do not count. LOSS was found on an H200, by chains of 1, 3 and 4 steps; tests/gpu/test_contract.py bounds
// what is left for 1 to 5.
#pragma once

constexpr float LOSS = 0x1.35p-26f;  // 1.8e-8

// Returns the sum of chains plus their mean loss. steps: of a chain. Inf and NaN stay what they are.
__device__ __forceinline__ float restored(float sum, int steps) { return fmaf(sum, LOSS * (steps + 1), sum); }
