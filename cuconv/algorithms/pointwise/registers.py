"""Limits that the registers of fp16x3_pointwise set: the largest tiles, and the weights that a block can pack itself.

The limits of tiles are measured: with more filters the compiler spills registers or serialises the products.
"""

from __future__ import annotations

from math import ceil

from cuconv.algorithms.common.implicit_gemm import PRODUCTS
from cuconv.algorithms.pointwise.tiles import PixelLayout, grain_of
from cuconv.core.problem import FP32

CONSUMERS = (2, 3)
"""The numbers of consumers that a block may have."""

CHANNELS = (16, 32, 48, 64)
"""The channels that a chunk may have."""

# The most filters of a tile: for each number of consumers, by the channels of a chunk.
FILTERS_HELD = {2: {16: 160, 32: 160, 48: 160, 64: 144}, 3: {16: 96, 32: 80, 48: 80, 64: 64}}
# One product has no low parts, which leaves room for more filters. Keys are (consumers, channels).
ONE_PRODUCT = {(2, 64): 160, (3, 64): 80}
# Layouts other than the plain one leave room for fewer filters, in either precision.
SHIFTED = {(2, 48): 144, (2, 64): 128, (3, 48): 64}
WHOLE_IMAGES = {(2, 48): 144, (2, 64): 128}

# The same where all channels are one chunk with resident weights: its products are the sums.
SINGLE_CHUNK_FILTERS_HELD = {2: {16: 160, 32: 160, 48: 160, 64: 160}, 3: {16: 160, 32: 160, 48: 160, 64: 128}}
SINGLE_CHUNK_SHIFTED = {(3, 48): 144}
SINGLE_CHUNK_WHOLE_IMAGES = {(3, 32): 144, (3, 48): 144}

# The most weights that a thread packs, by the consumers of a block.
PACKED_WEIGHTS_HELD = {2: 64, 3: 48}


def most_filters(consumers: int, channels: int, products: int, single_chunk: bool, layout: PixelLayout) -> int:
    """The most filters of a tile that the registers of a consumer hold.

    single_chunk: all channels are one chunk, and the weights are resident.
    """
    most = SINGLE_CHUNK_FILTERS_HELD[consumers][channels] if single_chunk else FILTERS_HELD[consumers][channels]
    if grain_of(layout):
        return (SINGLE_CHUNK_SHIFTED if single_chunk else SHIFTED).get((consumers, channels), most)
    if layout is PixelLayout.WHOLE_IMAGES:
        return (SINGLE_CHUNK_WHOLE_IMAGES if single_chunk else WHOLE_IMAGES).get((consumers, channels), most)
    if products != PRODUCTS[FP32] and not single_chunk:
        return ONE_PRODUCT.get((consumers, channels), most)
    return most


def packed_weights(filters: int, channels: int, chunks: int, consumers: int) -> int:
    """The weights that the busiest thread packs where a block packs its weights itself.

    The consumers' warps share the chunks out as PackingJobs in pack.cuh does.
    """
    channel_lanes = 2 if channels % 32 else 4
    chunk_jobs, warps = filters * channel_lanes // 32, 4 * consumers
    jobs = [
        ceil(chunks * parts / warps) * chunk_jobs // parts
        for parts in range(1, chunk_jobs + 1)
        if chunk_jobs % parts == 0 and (warps % parts == 0 or chunks * parts <= warps)
    ]
    return min(jobs) * channels // channel_lanes


def holds_packed_weights(filters: int, channels: int, chunks: int, consumers: int) -> bool:
    """Whether the registers hold the weights that each thread packs where a block packs its weights itself."""
    return packed_weights(filters, channels, chunks, consumers) <= PACKED_WEIGHTS_HELD[consumers]
