"""The evict-first policy for 1x1 convolutions whose operands exceed the L2 cache.

By default L2 evicts the least recently used line (LRU). A stream slightly larger than L2 then evicts every line just
before it is used again. With this policy part of the input is evicted first, so that the rest of the input and the
output stay for the next kernel that reads them. `eviction.cuh` applies it to the loads.
"""

from __future__ import annotations

from cuconv.core.problem import FLOAT_BYTES, ConvProblem
from cuconv.device import L2_BYTES

# Found on an H200; docs/memory.md has the times. The policy gains time where the operands fill between MIN_L2_FILLS and
# MAX_L2_FILLS L2 caches.
MIN_L2_FILLS, MAX_L2_FILLS = 0.75, 2.3
KEPT = 0.55  # the output and the part of the input that stays may fill this share of L2
EIGHTHS = 8  # the unit of the result; eviction.cuh divides by it


def evict_first(problem: ConvProblem) -> int:
    """The share of the input, in eighths, that L2 evicts first; 0 keeps the cache's own policy.

    It is for kernels that read the input as it lies in memory: 1x1 filters without padding.
    """
    bytes_read = FLOAT_BYTES * problem.n * problem.c * problem.h * problem.w
    bytes_written = FLOAT_BYTES * problem.n * problem.m * problem.out_pixels
    if not MIN_L2_FILLS <= problem.min_bytes / L2_BYTES <= MAX_L2_FILLS or bytes_written > bytes_read:
        return 0
    input_bytes_kept = max(0, KEPT * L2_BYTES - bytes_written)
    return round(EIGHTHS * max(0, 1 - input_bytes_kept / bytes_read))
