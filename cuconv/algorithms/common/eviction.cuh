// What leaves the L2 cache first, where a 1x1 layer goes through more than it holds; as in eviction.py.
//
// EVICT_FIRST  the share of the input that leaves before anything else, in eighths
//
// For inline assembly: INPUT_LEVEL stands behind a load's state space, INPUT_POLICY(n) behind its last operand, where
// operand n is INPUT_HINT, which follows the other inputs.
#pragma once

#if EVICT_FIRST
#define INPUT_CACHE_HINT ".L2::cache_hint"
#define INPUT_POLICY(n) ", %" #n
#define INPUT_HINT , "l"(leaves_first())
#else
#define INPUT_CACHE_HINT ""
#define INPUT_POLICY(n) ""
#define INPUT_HINT
#endif
// Whole lines come from memory: what is left of one is read by neighbours.
#define INPUT_LEVEL INPUT_CACHE_HINT ".L2::128B"

__device__ __forceinline__ unsigned long long leaves_first() {
    unsigned long long policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, %1;" : "=l"(policy) : "f"(EVICT_FIRST / 8.0f));
    return policy;
}
