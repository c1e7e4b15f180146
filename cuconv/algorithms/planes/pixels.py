"""How the threads of a block share a part of a channels-last image: the host's side of `pixels.cuh`."""

from __future__ import annotations

from cuconv.core.problem import HALF_BYTES

THREADS = 512
VECTOR = 8  # channels of a load of 16 bytes
MAX_CHANNELS = THREADS * VECTOR  # a thread has one vector of each pixel
SECTOR, WIDE = 16, 32  # channels of 32 bytes, the least that memory transfers, and of 64 bytes


def rows(channels: int) -> tuple[int, int]:
    """The pixels that a block of so many channels reads at a time, and the fewer rows to which it first joins its sums.

    The second divides the first, and gives each thread about eight numbers to join.
    """
    phases, parts = THREADS // (channels // VECTOR), max(1, THREADS // channels)
    return phases // parts * parts, parts


def part_bytes(pixels: int, channels: int) -> int:
    """The memory of a part of an image, in bytes."""
    return pixels * channels * HALF_BYTES
