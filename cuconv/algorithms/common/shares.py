"""The time of a block of the fp16x3 kernels, whose blocks take equal shares of all (tile, chunk) pairs in order."""

from __future__ import annotations

from math import ceil, hypot
from typing import NamedTuple


class TileTimes(NamedTuple):
    """The terms of a cost model that belong to a tile's pipeline, in microseconds.

    chunk, fetch, multiply: for each chunk of channels. write: for the outputs. publish: added where blocks share the
    tile. accumulate: added for each of them but the first.
    """

    chunk: float
    fetch: float
    multiply: float
    write: float
    publish: float
    accumulate: float

    def block_us(self, chunks: int, tiles: int, sharers: int) -> float:
        """The time of a block for its chunks, and for the tiles that it writes, each of which `sharers` blocks share.

        Producers fetch while consumers multiply and write, so their times are combined as a norm and not as a sum.
        """
        overlapped_us = hypot(chunks * self.fetch, chunks * self.multiply + self.write * tiles)
        exchange_us = (self.publish + self.accumulate * (sharers - 1)) if sharers > 1 else 0.0
        return chunks * self.chunk + overlapped_us + exchange_us

    def least_us(self, chunks: int, sharers: int) -> float:
        """The least time of the busiest block of a tile, whose chunks up to `sharers` blocks share."""
        shares = {ceil(chunks / blocks) for blocks in range(1, min(chunks, sharers) + 1)}
        return min(self.block_us(share, 1, ceil(chunks / share)) for share in shares)


def blocks_per_tile(tiles: int, chunks: int, blocks: int) -> int:
    """The most blocks that share a tile, where blocks take equal shares of all (tile, chunk) pairs in order."""
    if tiles % blocks == 0:
        return 1
    share = tiles * chunks / blocks
    return min(chunks, ceil(chunks / share) + (0 if blocks % tiles == 0 else 1))
