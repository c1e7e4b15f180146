"""The cost model of fp16x3_pointwise: its constants, and the time of a configuration that follows from them.

For each chunk of channels the model finds four times: a consumer's latency, the SM's time for all consumers, that of
the copies, and at the end of a tile that of the output. They overlap, so the model takes their Euclidean norm.
"""

from __future__ import annotations

from dataclasses import dataclass

from cuconv.algorithms.common.weight_packing import WeightPacking, WeightPackingCosts
from cuconv.algorithms.pointwise.registers import CONSUMERS
from cuconv.algorithms.pointwise.tiles import (
    PRODUCER_THREADS,
    VECTOR,
    WARPGROUP_PIXELS,
    Fp16x3PointwiseConfig,
    PixelLayout,
    grain_of,
    iterations,
    tile_count,
    weight_loads,
)
from cuconv.costs import constant
from cuconv.numbers import Number, either, norm
from cuconv.problem import FLOAT_BYTES, ConvProblem, ceil_div

CACHED_MIB = 32  # of an output, about what an H200's L2 cache keeps


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


def estimate_us(problem: ConvProblem, config: Fp16x3PointwiseConfig, costs: Costs) -> Number:
    """The device time of all kernels of a call, in microseconds."""
    c = config
    chunks, tiles = iterations(problem, c), ceil_div(tile_count(problem, c), c.blocks)
    chunks = chunks * (tiles - 1) + ceil_div(chunks, c.tail_split_k)  # of the busiest block
    chunk_us = _chunk_us(c, costs)
    tiles_us = norm(
        chunks * chunk_us + tiles * _write_us(problem, c, costs),
        chunks * _sm_chunk_us(problem, c, costs, chunk_us),
        chunks * _copy_us(c, costs),
        tiles * _sm_write_us(problem, c, costs),
    )
    parts_us = costs.publish + costs.accumulate_parts * (c.tail_split_k - 1)
    tiles_us = tiles_us + (c.tail_split_k > 1) * parts_us * c.filters * WARPGROUP_PIXELS / 2**12
    return _start_us(problem, c, costs) + norm(tiles_us, _memory_us(problem, c, costs))


def packing_us(problem: ConvProblem, config: Fp16x3PointwiseConfig, costs: Costs) -> Number:
    """The time of the kernel that packs the weights ahead; 0 where the blocks pack them."""
    ahead_us = WeightPacking(config.filters, config.channels, config.products).predicted_us(problem, costs)
    return ahead_us * (config.packs_weights == 0)


def _chunk_us(c: Fp16x3PointwiseConfig, costs: Costs) -> Number:
    """A consumer's latency for a chunk."""
    per_64_channels = costs.decompose + costs.decompose_shifted * (grain_of(c.layout) > 0)
    us = costs.chunk + per_64_channels * c.channels / 64
    us = us + costs.accumulate * c.filters / 64
    return us + (c.weights_resident == 0) * costs.weights_latency * c.sharers / (c.pixel_stages - 1)


def _sm_chunk_us(problem: ConvProblem, c: Fp16x3PointwiseConfig, costs: Costs, chunk_us: Number) -> Number:
    """The SM's time for a chunk of every consumer."""
    us = costs.not_hidden * chunk_us + costs.multiply * c.filters * c.channels * WARPGROUP_PIXELS / 2**18
    return (us + costs.copy_single * _is_single(problem, c) * c.channels / 64) * c.consumers


def _copy_us(c: Fp16x3PointwiseConfig, costs: Costs) -> Number:
    """The time of a chunk's copies of pixels and weights."""
    us = costs.pixels_latency / (c.pixel_stages - 1)
    per_64_pixels = costs.copy + costs.copy_shifted * (grain_of(c.layout) > 0)
    threads = either(c.consumers == 2, PRODUCER_THREADS[2], PRODUCER_THREADS[3])
    by_threads = c.layout != PixelLayout.WHOLE_IMAGES  # a bulk copy takes no thread's time
    us = us + by_threads * per_64_pixels * WARPGROUP_PIXELS * c.channels / threads / 64
    return us + (c.weights_resident == 0) * costs.copy_weights * c.sharers * c.filters * c.channels / 2**13


def _write_us(problem: ConvProblem, c: Fp16x3PointwiseConfig, costs: Costs) -> Number:
    """A consumer's latency at the end of a tile."""
    return (costs.write / c.sharers + costs.reduce * c.warpgroup_split_k) * _outputs(problem, c) / 2**12


def _sm_write_us(problem: ConvProblem, c: Fp16x3PointwiseConfig, costs: Costs) -> Number:
    """The SM's time for a tile's outputs.

    A single element takes as long as four, and the more consumers there are, the more they delay each other.
    """
    slowdown = 1 + _is_single(problem, c) * (VECTOR * c.consumers / 2 - 1)
    us = costs.write_sm * slowdown + costs.write_shifted * (grain_of(c.layout) > 0)
    return us * _outputs(problem, c) * c.consumers / c.sharers / 2**14


def _start_us(problem: ConvProblem, c: Fp16x3PointwiseConfig, costs: Costs) -> Number:
    """The time of launches and of weight packing, in a kernel ahead or in the blocks."""
    weights = c.filters * c.channels * c.weight_stages
    in_block_us = costs.block_packs + costs.pack_in_block * weight_loads(problem, c) * weights / 2**13
    return either(c.packs_weights, in_block_us, costs.block + packing_us(problem, c, costs))


def _memory_us(problem: ConvProblem, c: Fp16x3PointwiseConfig, costs: Costs) -> Number:
    """The time of the operands in device memory."""
    written_mib = FLOAT_BYTES * problem.n * problem.m * problem.out_pixels / 2**20
    us = costs.memory * problem.min_bytes / 2**20 + costs.memory_three * (c.consumers - min(CONSUMERS)) * written_mib
    sharing = _is_single(problem, c) | (c.layout == PixelLayout.SHIFTED_4)  # tiles share sectors, which meet in L2
    return us + sharing * costs.memory_shared * max(0, written_mib - CACHED_MIB)  # as far as it reaches


def _is_single(problem: ConvProblem, c: Fp16x3PointwiseConfig) -> Number:
    """Whether pixels are copied and written one by one."""
    return (problem.out_pixels % VECTOR > 0) & (c.layout == PixelLayout.PLAIN)


def _outputs(problem: ConvProblem, c: Fp16x3PointwiseConfig) -> Number:
    """The outputs of a warpgroup tile."""
    pixels = either(c.layout == PixelLayout.WHOLE_IMAGES, problem.out_pixels, WARPGROUP_PIXELS)
    return c.filters * pixels
