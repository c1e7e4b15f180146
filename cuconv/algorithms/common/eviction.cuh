// Evict-first policy for the input of a 1x1 convolution whose operands exceed the L2 cache; eviction.py has the rule.
//
// EVICT_FIRST  1 where L2 evicts a share of the input before anything else; 0 for the cache's own policy (LRU)
//
// Inline assembly loads the input with three macros:
//   INPUT_LEVEL      follows the load's state space;
//   INPUT_HINT(p)    ends the list of input operands, with the policy p;
//   INPUT_POLICY(n)  follows the load's last operand, where n is the number of the operand that INPUT_HINT adds.
// A bulk copy takes INPUT_CACHE_HINT for INPUT_LEVEL.
#pragma once

#if EVICT_FIRST
#define INPUT_CACHE_HINT ".L2::cache_hint"
#define INPUT_POLICY(n) ", %" #n
#define INPUT_HINT(policy) , "l"(policy)
#else
#define INPUT_CACHE_HINT ""
#define INPUT_POLICY(n) ""
#define INPUT_HINT(policy)
#endif
// .L2::128B fetches whole lines from memory: neighbouring blocks read the rest of a line.
#define INPUT_LEVEL INPUT_CACHE_HINT ".L2::128B"

// The cache policy of createpolicy.fractional (PTX, "createpolicy"): a fixed share of the addresses, in eighths, is
// evict-first. 0 where the kernel has none.
__device__ __forceinline__ unsigned long long evict_first_policy(long long eighths) {
    unsigned long long policy = 0;
#if EVICT_FIRST
    asm("createpolicy.fractional.L2::evict_first.b64 %0, %1;" : "=l"(policy) : "f"((int)eighths * 0.125f));
#endif
    return policy;
}
