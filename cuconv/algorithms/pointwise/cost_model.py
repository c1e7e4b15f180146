"""The cost model of fp16x3_pointwise: its constants, and the time of a configuration that follows from them.

For each chunk of channels the model finds four times: a consumer's latency, the SM's time for all consumers, that of
the copies, and at the end of a tile that of the output. They overlap, so the model takes their Euclidean norm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cuconv.algorithms.common.weight_packing import WeightPacking, WeightPackingCosts
from cuconv.algorithms.pointwise.registers import CONSUMERS
from cuconv.algorithms.pointwise.tiles import (
    VECTOR,
    WARPGROUP_PIXELS,
    Fp16x3PointwiseConfig,
    PixelLayout,
    filter_tile_count,
    grain_of,
    iterations,
    pixel_tile_count,
    producer_threads,
    weight_loads,
)
from cuconv.core.costs import constant
from cuconv.core.elementwise import Number, norm
from cuconv.core.problem import FLOAT_BYTES, ConvProblem, ceil_div

CACHED_MIB = 32  # an output of this size stays in an H200's L2 cache, about


@dataclass(frozen=True, slots=True)
class Costs(WeightPackingCosts):
    """The constants of the cost model, in microseconds; `not_hidden` is a share."""

    block: float = constant("both launches, and a block from start to end, without its chunks and tiles")
    block_packs: float = constant("the same with one launch, where blocks pack the weights themselves")
    pack_in_block: float = constant("a block's time to pack 2**13 weights itself")
    chunk: float = constant("a consumer's latency for a chunk of channels, whatever its size")
    decompose: float = constant("the same, in addition, for each 64 channels")
    decompose_shifted: float = constant("the same, in addition, in shifted layouts")
    accumulate: float = constant("a consumer's latency for a chunk, in addition, for each 64 filters")
    not_hidden: float = constant("share of a consumer's latency, without its products, that no other consumer hides")
    multiply: float = constant("an SM's time for 2**18 multiply-adds of FP32")
    pixels_latency: float = constant("latency of a chunk's pixels, shared by the chunks under way")
    copy: float = constant("a producer thread's time to copy 64 pixels of channels, four at a time")
    copy_shifted: float = constant("the same, in addition, in shifted layouts")
    copy_single: float = constant("an SM's time for 64 channels of a consumer's pixels that are copied one by one")
    copy_weights: float = constant("a block's time to copy 2**13 weights that are not resident")
    weights_latency: float = constant("latency of a chunk's weights that are not resident, shared by those under way")
    write: float = constant("a consumer's latency to write 2**12 outputs")
    write_sm: float = constant("an SM's time to write 2**14 outputs, four at a time")
    write_shifted: float = constant("the same, in addition, in shifted layouts")
    reduce: float = constant("a consumer's time to add 2**12 sums of the others, with split-K across warpgroups")
    publish: float = constant("a consumer's time to publish 2**12 partial sums for another block")
    accumulate_parts: float = constant("a consumer's time to add 2**12 partial sums of another block")
    memory: float = constant("2**20 bytes of operands through device memory")
    memory_shared: float = constant("2**20 bytes of output beyond L2, in addition, where tiles share sectors")
    memory_three: float = constant("2**20 bytes of output, in addition, where a block has three consumers")


class LayerTimes(NamedTuple):
    """The terms of the model that do not depend on the image's size, in microseconds unless it says otherwise.

    Each is a number for one configuration, or an array for many.
    """

    chunks: Number  # a count: those of a tile that one consumer multiplies
    chunk: Number  # a consumer's latency for a chunk
    sm_chunk: Number  # the SM's time for a chunk of every consumer
    copy: Number  # the copies of a chunk's pixels and weights
    write: Number  # a consumer's latency at the end of a tile
    sm_write: Number  # the SM's time for a tile's outputs
    publish: Number  # a tile's partial sums, where blocks share it
    add_parts: Number  # those of each other block
    start: Number  # launches, and the packing of weights ahead
    pack: Number  # the part of `start` that the packing kernel takes; 0 where blocks pack
    packs_in_block: bool  # whether any of the configurations does
    pack_in_block: Number  # a block that packs a filter tile's weights itself; 0 elsewhere
    written: Number  # added for 2**20 bytes of output
    shared: Number  # added for 2**20 bytes of output beyond L2


def estimate_us(problem: ConvProblem, config: Fp16x3PointwiseConfig, costs: Costs) -> Number:
    """The device time of all kernels of a call, in microseconds."""
    pixel_tiles = pixel_tile_count(problem, config.warpgroup_tiles, config.layout)
    filter_tiles = filter_tile_count(problem, config.filters)
    return size_us(problem, config, pixel_tiles, filter_tiles, layer_times(problem, config, costs), costs)


def packing_us(problem: ConvProblem, config: Fp16x3PointwiseConfig, costs: Costs) -> Number:
    """The time of the kernel that packs the weights ahead; 0 where the blocks pack them."""
    ahead_us = WeightPacking(config.filters, config.channels, config.products).predicted_us(problem, costs)
    return ahead_us * (config.packs_weights == 0)


def size_us(
    problem: ConvProblem,
    config: Fp16x3PointwiseConfig,
    pixel_tiles: Number,
    filter_tiles: Number,
    times: LayerTimes,
    costs: Costs,
) -> Number:
    """The device time of all kernels of a call, from the times of the layer.

    pixel_tiles, filter_tiles: the tiles with the same filters, and with the same pixels.
    """
    c, t, parts = config, times, config.tail_split_k
    tiles = ceil_div(pixel_tiles * filter_tiles, c.blocks)  # the busiest block's
    chunks = t.chunks * (tiles - 1) + ceil_div(t.chunks, parts)
    tiles_us = norm(chunks * t.chunk + tiles * t.write, chunks * t.sm_chunk, chunks * t.copy, tiles * t.sm_write)
    tiles_us = tiles_us + (parts > 1) * (t.publish + t.add_parts * (parts - 1))
    written_mib = FLOAT_BYTES * problem.n * problem.m * problem.out_pixels / 2**20
    memory_us = costs.memory * problem.min_bytes / 2**20 + t.written * written_mib
    if written_mib > CACHED_MIB:
        memory_us = memory_us + t.shared * (written_mib - CACHED_MIB)
    us = t.start + norm(tiles_us, memory_us)
    return us + t.pack_in_block * weight_loads(c, pixel_tiles, filter_tiles) if t.packs_in_block else us


def layer_times(problem: ConvProblem, c: Fp16x3PointwiseConfig, costs: Costs) -> LayerTimes:
    """The terms of the model that are the same for every number of images and every size of the same pixel layouts."""
    single = (problem.out_pixels % VECTOR > 0) & (c.layout == PixelLayout.PLAIN)  # pixels are moved one by one
    shifted, streamed = grain_of(c.layout) > 0, c.weights_resident == 0
    sums = c.filters * WARPGROUP_PIXELS / 2**12
    chunk_us = _chunk_us(c, shifted, streamed, costs)
    sm_chunk_us = costs.not_hidden * chunk_us + costs.multiply * c.filters * c.channels * WARPGROUP_PIXELS / 2**18
    pack_us, weights = packing_us(problem, c, costs), c.filters * c.channels * c.weight_stages
    return LayerTimes(
        chunks=iterations(problem, c),
        chunk=chunk_us,
        sm_chunk=(sm_chunk_us + costs.copy_single * single * c.channels / 64) * c.consumers,
        copy=_copy_us(c, shifted, streamed, costs),
        write=(costs.write / c.sharers + costs.reduce * c.warpgroup_split_k) * _outputs(problem, c) / 2**12,
        sm_write=_sm_write_us(problem, c, single, shifted, costs),
        publish=costs.publish * sums,
        add_parts=costs.accumulate_parts * sums,
        start=np.where(c.packs_weights, costs.block_packs, costs.block + pack_us),
        pack=pack_us,
        packs_in_block=bool(np.any(c.packs_weights)),
        pack_in_block=(c.packs_weights > 0) * costs.pack_in_block * weights / 2**13,
        written=costs.memory_three * (c.consumers - min(CONSUMERS)),
        # Tiles that share sectors meet in L2 as far as it reaches.
        shared=(single | (c.layout == PixelLayout.SHIFTED_4)) * costs.memory_shared,
    )


def _chunk_us(c: Fp16x3PointwiseConfig, shifted: Number, streamed: Number, costs: Costs) -> Number:
    """A consumer's latency for a chunk. streamed: whether weights are loaded again for each tile."""
    us = costs.chunk + (costs.decompose + costs.decompose_shifted * shifted) * c.channels / 64
    us = us + costs.accumulate * c.filters / 64
    return us + streamed * costs.weights_latency * c.sharers / (c.pixel_stages - 1)


def _copy_us(c: Fp16x3PointwiseConfig, shifted: Number, streamed: Number, costs: Costs) -> Number:
    """The time of a chunk's copies of pixels and weights."""
    us = costs.pixels_latency / (c.pixel_stages - 1)
    per_64_pixels = costs.copy + costs.copy_shifted * shifted
    threads = producer_threads(c.consumers)
    by_threads = c.layout != PixelLayout.WHOLE_IMAGES  # a bulk copy takes no thread's time
    us = us + by_threads * per_64_pixels * WARPGROUP_PIXELS * c.channels / threads / 64
    return us + streamed * costs.copy_weights * c.sharers * c.filters * c.channels / 2**13


def _sm_write_us(
    problem: ConvProblem, c: Fp16x3PointwiseConfig, single: Number, shifted: Number, costs: Costs
) -> Number:
    """The SM's time for a tile's outputs.

    A single element takes as long as four, and the more consumers there are, the more they delay each other.
    """
    slowdown = 1 + single * (VECTOR * c.consumers / 2 - 1)
    us = costs.write_sm * slowdown + costs.write_shifted * shifted
    return us * _outputs(problem, c) * c.consumers / c.sharers / 2**14


def _outputs(problem: ConvProblem, c: Fp16x3PointwiseConfig) -> Number:
    """The outputs of a warpgroup tile."""
    pixels = np.where(c.layout == PixelLayout.WHOLE_IMAGES, problem.out_pixels, WARPGROUP_PIXELS)
    return c.filters * pixels
