"""What leaves the L2 cache first, where a 1x1 convolution goes through more than the cache holds.

Left to itself the cache keeps what was touched last. Who goes through a little more than fits then finds nothing of
what the kernel before wrote or read: each piece has left just before its turn.
"""

from __future__ import annotations

from cuconv.problem import FLOAT_BYTES, ConvProblem

L2_BYTES = 50 * 2**20  # of an H100 and an H200
FITS, BEYOND = 0.75, 2.3  # operands, in such caches, between which it helps
KEPT = 0.55  # of the cache: the output and what stays of the input
SHARES = 8  # as in eviction.cuh


def evict_first(problem: ConvProblem) -> int:
    """The share of the input, in eighths, that is to leave before anything else.

    For kernels whose columns are the input as it lies, 1x1 filters without padding.
    """
    bytes_read = FLOAT_BYTES * problem.n * problem.c * problem.h * problem.w
    bytes_written = FLOAT_BYTES * problem.n * problem.m * problem.out_pixels
    if not FITS <= problem.min_bytes / L2_BYTES <= BEYOND or bytes_written > bytes_read:
        return 0
    stays = max(0, KEPT * L2_BYTES - bytes_written)
    return round(SHARES * max(0, 1 - stays / bytes_read))
