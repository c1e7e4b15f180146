"""Bounds that a predicted time cannot be below, by which "auto" leaves out algorithms without weighing them."""

from __future__ import annotations

import numpy as np

from cuconv.core.problem import ceil_div


def least_shared_us(
    chunks: int,
    sharers: int,
    chunk_us: float,
    fetch_us: float,
    multiply_us: float,
    write_us: float,
    publish_us: float,
    accumulate_us: float,
) -> float:
    """The least time of the busiest block, where up to `sharers` blocks share the chunks of a tile.

    chunk_us, fetch_us, multiply_us: for each chunk; the last two overlap. write_us: for the tile. publish_us: added
    where a tile is shared. accumulate_us: added for each sharer but the first.
    """
    share = ceil_div(chunks, np.arange(1, min(chunks, sharers) + 1))  # larger ones have no fewer sharers
    others = ceil_div(chunks, share) - 1
    us = share * chunk_us + np.hypot(share * fetch_us, share * multiply_us + write_us)
    return float(np.min(us + (others > 0) * publish_us + others * accumulate_us))
