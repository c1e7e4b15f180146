// Evict-first policy for the input of a 1x1 convolution whose operands exceed the L2 cache; eviction.py has the rule.
//
// EVICT_FIRST  eighths of the input that L2 evicts before anything else; 0 for the cache's own policy (LRU)
//
// Inline assembly loads the input with three macros:
//   INPUT_LEVEL      follows the load's state space;
//   INPUT_HINT       ends the list of input operands;
//   INPUT_POLICY(n)  follows the load's last operand, where n is the number of the operand that INPUT_HINT adds.
// A bulk copy takes INPUT_CACHE_HINT for INPUT_LEVEL.
#pragma once

#if EVICT_FIRST
#define INPUT_CACHE_HINT ".L2::cache_hint"
#define INPUT_POLICY(n) ", %" #n
#define INPUT_HINT , "l"(evict_first_policy())
#else
#define INPUT_CACHE_HINT ""
#define INPUT_POLICY(n) ""
#define INPUT_HINT
#endif
// .L2::128B fetches whole lines from memory: neighbouring blocks read the rest of a line.
#define INPUT_LEVEL INPUT_CACHE_HINT ".L2::128B"

// The cache policy of createpolicy.fractional (PTX, "createpolicy"): a fixed share of the addresses is evict-first.
__device__ __forceinline__ unsigned long long evict_first_policy() {
    unsigned long long policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, %1;" : "=l"(policy) : "f"(EVICT_FIRST / 8.0f));
    return policy;
}
