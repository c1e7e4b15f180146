"""Division by a divisor that is constant for a launch, as a multiplication: the host's part of divider.cuh."""

from __future__ import annotations


def packed_divisor(divisor: int) -> int:
    """A multiplier in 32 bits, and a shift from bit 32 on, which replace the division of dividends below 2**31.

    divisor: from 1 to 2**31.
    """
    shift = (divisor - 1).bit_length()
    multiplier = (2**32 * (2**shift - divisor)) // divisor + 1
    return multiplier | shift << 32
