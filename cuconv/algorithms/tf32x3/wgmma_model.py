"""The launch configurations of tf32x3_wgmma as arrays, and their predicted times.

A configuration is a tile of filters x pixels, and the blocks of a cluster that share the reduction. A layer keeps
what does not depend on its images' number and size, so that a new size takes few operations.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from functools import cache, cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np

from cuconv.algorithms.common.implicit_gemm import (
    PARTS,
    PRODUCTS,
    VECTOR_FLOATS,
    depth_of,
    is_pointwise,
    is_strided,
)
from cuconv.algorithms.common.limits import require_hopper
from cuconv.algorithms.tf32x3.tf32x3 import (
    ClusterConfig,
    GridCosts,
    blocks_per_sm,
    check_indices,
    launchable,
    memory_us,
)
from cuconv.core.costs import constant
from cuconv.core.elementwise import Number, norm
from cuconv.core.problem import FLOAT_BYTES, ConvProblem, ceil_div
from cuconv.device import REGISTERS_PER_SM, DeviceSpec

WARPGROUP_PIXELS = 64  # rows of tile A of a wgmma instruction
STAGE_DEPTH = 32  # 128 bytes of a row of weights, as wide as the swizzle
PIECE_FILTERS = 2  # filters of a piece of the accumulators, which one block of a cluster writes
TAP_BYTES = 8  # an entry of the tap table: an offset into an image, and a filter position
MAX_IMAGE = 2**29 - 1  # elements, so that offsets in bytes fit 31 bits
GENERAL_REGISTERS = 16  # more of a thread whose kernel has the geometry as arguments

CLUSTER_SIZES = (1, 2, 3, 4, 5, 6, 8, 14, 16)  # values of split_k
FILLING_CLUSTER_SIZES = (3, 5, 6, 14)  # fill the SMs better than a power of two, of use only where blocks are few
FEW_BLOCKS_PER_SM = 3  # up to which those sizes are candidates

# Kernels are specialised for square filters of these sizes with these strides, equal in both directions.
STRIDES = {1: (1, 2), 2: (2,), 3: (1, 2), 4: (4,), 5: (1,), 7: (1, 2), 11: (4,)}


@dataclass(frozen=True, slots=True)
class Costs(GridCosts):
    """The constants of the cost model, in microseconds; each says for what."""

    traffic: float = constant("2**11 elements fetched for each SM at the same time, through the L2 cache")
    latency: float = constant("a warpgroup's latency of a stage")
    latency_filters: float = constant("added latency for each 64 filters")
    latency_warpgroups: float = constant("added latency for each warpgroup of the block")
    latency_pointwise: float = constant("added latency for a 1x1 filter without padding")
    work: float = constant("an SM's time for a warpgroup's stage, where other warpgroups hide the latency")
    work_filters: float = constant("added work for each 64 filters")
    work_unpaired: float = constant("added work where pixels are not loaded in pairs")
    work_unaligned: float = constant("added work for each 64 filters where rows of weights are not aligned")
    write_unpaired: float = constant("an SM's time, in addition, to write 2**12 outputs that are not stored in pairs")
    warpgroup_sums: float = constant("an SM's time to add 2**12 sums of another warpgroup of the block")


@dataclass(frozen=True)
class Tile:
    """A block's tile of filters x pixels, and its warpgroups.

    pixel_warpgroups of them divide the pixels, 64 each, and warpgroup_split_k of them share the reduction for each 64.
    """

    filters: int
    pixel_warpgroups: int
    warpgroup_split_k: int

    @cached_property
    def pixels(self) -> int:
        """Pixels of the tile."""
        return WARPGROUP_PIXELS * self.pixel_warpgroups

    @cached_property
    def warpgroups(self) -> int:
        """Warpgroups of the block."""
        return self.pixel_warpgroups * self.warpgroup_split_k

    @cached_property
    def threads(self) -> int:
        """Threads of the block."""
        return 128 * self.warpgroups

    def pipeline_bytes(self, products: int) -> int:
        """Shared memory of two stages of weights for each share of the reduction, in bytes; sums take their place."""
        return FLOAT_BYTES * self.warpgroup_split_k * 2 * PARTS[products] * self.filters * STAGE_DEPTH

    def registers(self, split_k: Number, products: int, general: bool) -> Number:
        """Registers of a thread, about: enough for the accumulators, a chain of products and two stages of columns.

        general: whether the kernel has the geometry as arguments.
        """
        more = GENERAL_REGISTERS * general
        if products == 1:
            return 64 + self.filters + 16 * ((self.filters == 16) & (split_k == 1)) + more
        return np.minimum(104 + self.filters - 8 * (self.filters == 32) + more, REGISTERS_PER_SM // self.threads)

    def min_blocks_per_sm(self, split_k: Number, products: int, general: bool) -> Number:
        """Blocks that an SM's registers hold, as __launch_bounds__ tells the compiler."""
        return np.maximum(1, REGISTERS_PER_SM // (self.threads * self.registers(split_k, products, general)))

    def __str__(self) -> str:
        warpgroups = f"{self.pixel_warpgroups}x{self.warpgroup_split_k}"
        return f"{self.filters}x{self.pixels}x{STAGE_DEPTH} warpgroups={warpgroups}"


Config = ClusterConfig[Tile]

TILES = (
    Tile(16, 1, 1),
    Tile(16, 1, 2),
    Tile(32, 1, 1),
    Tile(32, 1, 2),
    Tile(32, 1, 3),
    Tile(48, 1, 1),
    Tile(48, 1, 2),
    Tile(48, 1, 3),
    Tile(64, 1, 1),
    Tile(64, 1, 2),
    Tile(64, 1, 3),
    Tile(96, 1, 1),
    Tile(96, 1, 2),
    Tile(128, 2, 1),
    Tile(128, 1, 2),
)


def many(problem: ConvProblem, device: DeviceSpec) -> tuple[Config, Any]:
    """Every configuration as one of arrays, and an array that says which can run.

    Raises UnsupportedProblem where none can.
    """
    check(problem, device)
    rows = _rows(_layer(problem), device)
    tiles = ceil_div(problem.n * problem.out_pixels, rows.tile.pixels) * rows.filter_tiles
    blocks = tiles * rows.split_k
    possible = rows.deep & ((blocks <= FEW_BLOCKS_PER_SM * device.sm_count) | rows.usual)
    shared_bytes = _with_even_occupancy(rows.shared_bytes, rows.resident, ceil_div(tiles, rows.at_a_time), device)
    products, pointwise = PRODUCTS[problem.precision], is_pointwise(problem)
    found = ClusterConfig(rows.tile, rows.split_k, pointwise, blocks, shared_bytes, products)
    return found, launchable(found, possible, problem, device)


def check(problem: ConvProblem, device: DeviceSpec) -> None:
    """Raise UnsupportedProblem where there is no configuration."""
    require_hopper(problem, device)
    check_indices(problem, MAX_IMAGE)


def times_us(problem: ConvProblem, device: DeviceSpec, found: Config, costs: Costs) -> Any:
    """The predicted times of the configurations that `many` made for the same problem, in microseconds."""
    return _size_us(problem, device, found, _times(_layer(problem), device, costs), costs)


def estimate_us(problem: ConvProblem, device: DeviceSpec, config: Config, costs: Costs) -> Number:
    """The predicted time of one configuration or of many, in microseconds.

    Blocks run in waves of as many as an SM holds. A stage takes its latency while an SM has few warpgroups, and its
    share of the SM's throughput where it has many: their norm goes from one to the other. What all blocks fetch through
    the L2 cache is added. Device memory hides behind all that, unless both take long: a norm again.
    """
    times = _layer_times(_layer(problem), config.tile, config.split_k, device, costs)
    return _size_us(problem, device, config, times, costs)


def least_us(problem: ConvProblem, device: DeviceSpec, costs: Costs) -> float:
    """A lower bound of every configuration's predicted time in microseconds.

    It is the start cost plus the norm of the least compute time of all pixels and the memory's time.
    """
    pixels_us = problem.n * problem.out_pixels * _least_work(_layer(problem), device, costs)
    us: float = costs.start + norm(pixels_us, memory_us(problem, costs.memory))
    return us


@lru_cache(maxsize=1024)
def _least_work(layer: _Layer, device: DeviceSpec, costs: Costs) -> float:
    """The shortest compute time of an output pixel over all configurations, in microseconds, with all SMs evenly busy.

    It leaves out latencies.
    """
    rows, times = _rows(layer, device), _times(layer, device, costs)
    block_us = (times.work + times.epilogue) / device.sm_count + times.traffic
    return float((rows.filter_tiles * rows.split_k * block_us / rows.tile.pixels)[rows.deep].min())


def shared_filters(filters: Number, split_k: Number) -> Number:
    """A tile's filters, rounded up to equal shares of whole pieces for each block of a cluster."""
    return ceil_div(filters, PIECE_FILTERS * split_k) * PIECE_FILTERS * split_k


def inbox_bytes(tile: Tile, split_k: Number) -> Number:
    """The shared memory in which a block of a cluster receives sums, in bytes; 0 where the cluster is one block.

    It holds the sums of the block's share of the filters from every block, the output places of the pixels, and an
    mbarrier with as many bytes of padding.
    """
    received = FLOAT_BYTES * shared_filters(tile.filters, split_k) * tile.pixels + 8 * tile.pixels + 16
    return received * (split_k > 1)


@cache
def every(max_cluster_blocks: int, products: int) -> tuple[Tile, Any, Any]:
    """Every tile with every split_k, as arrays, and the shared memory of each without its tap table, in bytes."""
    pairs = [
        (*astuple(tile), split_k)
        for tile in TILES
        for split_k in CLUSTER_SIZES
        if split_k <= max_cluster_blocks and split_k * PIECE_FILTERS <= tile.filters
    ]
    *sizes, split_ks = np.array(pairs).T
    tile = Tile(*sizes)
    return tile, split_ks, tile.pipeline_bytes(products) + inbox_bytes(tile, split_ks)


# Whether a size of a cluster is one of FILLING_CLUSTER_SIZES, by the size.
_FILLING = np.isin(np.arange(max(CLUSTER_SIZES) + 1), FILLING_CLUSTER_SIZES)


def has_pixel_pairs(problem: ConvProblem, aligned: bool) -> bool:
    """Whether pixels can be loaded and stored in pairs: a 1x1 filter, stride 1, planes of an even number of pixels.

    aligned: whether input, weight and output all start at a multiple of 16 bytes.
    """
    return aligned and is_pointwise(problem) and not is_strided(problem) and problem.out_pixels % 2 == 0


def is_general(problem: ConvProblem) -> bool:
    """Whether the kernel takes the filter's size, stride and dilation as arguments, and not as constants."""
    p = problem
    plain = p.kh == p.kw and p.stride_h == p.stride_w and p.dilation_h == p.dilation_w == 1
    return not (plain and p.stride_h in STRIDES.get(p.kh, ()))


class _Layer(NamedTuple):
    """All that the configurations and times depend on, except the images' number and size."""

    depth: int
    groups: int
    group_filters: int
    pointwise: bool
    paired: bool  # `has_pixel_pairs`
    general: bool  # `is_general`
    products: int


class _Rows(NamedTuple):
    """Every tile with every split_k as arrays, for a layer.

    deep, usual: whether the reduction has a stage for each share, and whether split_k is for grids of any size.
    shared_bytes: of a block, before occupancy is lowered. resident: the blocks that an SM then holds.
    at_a_time: the clusters that the GPU runs.
    """

    tile: Tile
    split_k: Any
    filter_tiles: Any
    deep: Any
    usual: Any
    shared_bytes: Any
    resident: Any
    at_a_time: Any


class _LayerTimes(NamedTuple):
    """The terms of the cost model that do not depend on the images' number and size, in microseconds of a block.

    start, epilogue: before and after its stages. latency: of all its stages.
    work: the time of the SM's throughput that all its stages take.
    traffic: what each block of the grid adds to an SM's time. registers: of the block, a count and no time.
    """

    start: Number
    latency: Number
    work: Number
    epilogue: Number
    traffic: Number
    registers: Number


def _layer(problem: ConvProblem) -> _Layer:
    p = problem
    sizes = (depth_of(p), p.groups, p.group_filters, is_pointwise(p))
    return _Layer(*sizes, has_pixel_pairs(p, aligned=True), is_general(p), PRODUCTS[p.precision])


@lru_cache(maxsize=1024)
def _rows(layer: _Layer, device: DeviceSpec) -> _Rows:
    tile, split_k, shared_bytes = every(device.max_cluster_blocks, layer.products)
    stages = ceil_div(layer.depth, STAGE_DEPTH)
    if not layer.pointwise:
        shared_bytes = shared_bytes + TAP_BYTES * STAGE_DEPTH * (ceil_div(stages, split_k) + 1)
    return _Rows(
        tile,
        split_k,
        filter_tiles=layer.groups * ceil_div(layer.group_filters, tile.filters),
        deep=split_k * tile.warpgroup_split_k <= stages,
        usual=~_FILLING[split_k],
        shared_bytes=shared_bytes,
        resident=device.resident_blocks(
            tile.threads, tile.registers(split_k, layer.products, layer.general), shared_bytes
        ),
        at_a_time=np.maximum(1, device.clusters_at_a_time(split_k)),
    )


@lru_cache(maxsize=1024)
def _times(layer: _Layer, device: DeviceSpec, costs: Costs) -> _LayerTimes:
    rows = _rows(layer, device)
    return _layer_times(layer, rows.tile, rows.split_k, device, costs)


def _layer_times(layer: _Layer, tile: Tile, split_k: Number, device: DeviceSpec, costs: Costs) -> _LayerTimes:
    stages = ceil_div(ceil_div(layer.depth, STAGE_DEPTH), split_k)
    iterations = ceil_div(stages, tile.warpgroup_split_k)
    return _LayerTimes(
        start=costs.block + costs.cluster * (split_k > 1),
        latency=iterations * _latency_us(layer, tile, costs),
        work=iterations * _work_us(layer, tile, costs),
        epilogue=_epilogue_us(layer, tile, split_k, costs),
        traffic=costs.traffic * stages * STAGE_DEPTH * (tile.filters + tile.pixels) / 2**11 / device.sm_count,
        registers=tile.threads * tile.registers(split_k, layer.products, layer.general),
    )


def _size_us(problem: ConvProblem, device: DeviceSpec, config: Config, times: _LayerTimes, costs: Costs) -> Number:
    """The device time in microseconds, from the times of the layer."""

    def wave_us(blocks: Number) -> Number:
        return times.start + norm(times.latency, blocks * times.work) + blocks * times.epilogue

    resident = device.resident_blocks(1, times.registers, config.shared_bytes)
    blocks = _blocks_of_busiest_sm(blocks_per_sm(config, device), resident)
    waves = blocks // resident
    rest = blocks - waves * resident
    compute_us = waves * wave_us(resident) + (rest > 0) * wave_us(rest) + times.traffic * config.blocks
    return costs.start + norm(compute_us, memory_us(problem, costs.memory))


def _with_even_occupancy(shared_bytes: Number, resident: Number, even_share: Number, device: DeviceSpec) -> Any:
    """The shared memory of a block with which an SM holds no more than its even share of the blocks, in bytes.

    Kernels overlap: the first SMs that the kernel ahead leaves would take as many blocks as they hold, while others
    idle. An SM that holds two even shares is left alone: then this launch fits next to the one ahead.
    """
    uneven = (even_share < resident) & (resident < 2 * even_share)
    if not uneven.any():
        return shared_bytes
    return np.where(uneven, np.maximum(shared_bytes, device.shared_bytes_that_hold(even_share)), shared_bytes)


def _blocks_of_busiest_sm(even_share: Number, resident: Number) -> Number:
    """The blocks that the busiest SM computes in a stream of kernels that overlap.

    They spread evenly where an SM has room for this launch next to the one ahead. Otherwise occupancy is uneven: blocks
    are placed as SMs empty, and the first of them is filled.
    """
    return np.maximum(even_share, resident * (2 * even_share > resident))


def _latency_us(layer: _Layer, tile: Tile, costs: Costs) -> Number:
    """The latency of a stage, in microseconds."""
    latency_us = costs.latency + costs.latency_filters * tile.filters / 64 + costs.latency_warpgroups * tile.warpgroups
    return latency_us + costs.latency_pointwise * layer.pointwise


def _work_us(layer: _Layer, tile: Tile, costs: Costs) -> Number:
    """The time of an SM's throughput that a stage of every warpgroup of a block takes, in microseconds."""
    filters, unpaired_us = tile.filters / 64, 0.0 if layer.paired else costs.work_unpaired
    work_us = (costs.work + costs.work_filters * filters + unpaired_us) * tile.warpgroups
    unaligned = layer.depth % VECTOR_FLOATS > 0
    return work_us + unaligned * costs.work_unaligned * filters * tile.warpgroup_split_k


def _epilogue_us(layer: _Layer, tile: Tile, split_k: Number, costs: Costs) -> Number:
    """The time of an SM's throughput to add up and write a block's share of a tile, in microseconds.

    Of the split_k parts of a block's sums one is its own, and the others are exchanged.
    """
    outputs, shared_outputs = tile.filters * tile.pixels, shared_filters(tile.filters, split_k) * tile.pixels
    unpaired_us = 0.0 if layer.paired else costs.write_unpaired
    write_us = (costs.write + unpaired_us + costs.exchange * (split_k - 1)) * shared_outputs / split_k / 2**12
    return write_us + costs.warpgroup_sums * (tile.warpgroup_split_k - 1) * outputs / 2**12
