"""Implicit GEMM with wgmma at FP32 accuracy (3xTF32) or in TF32, for Hopper.

A block computes a tile of filters x pixels. Its warpgroups may share the reduction, and so may the blocks of a cluster.
`tf32x3_wgmma.cu` has the kernel, docs/tf32x3_wgmma.md the design.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from cuconv.algorithms.base import CallOptions, Macros
from cuconv.algorithms.common import eviction
from cuconv.algorithms.common.implicit_gemm import (
    PARTS,
    PRODUCTS,
    arguments_of,
    depth_of,
    geometry_arguments,
    has_aligned_rows,
    is_linear,
    is_pointwise,
    is_strided,
    stages_of,
)
from cuconv.algorithms.common.limits import HOPPER_ARCH, require_hopper
from cuconv.algorithms.common.listed import Forms, ListedVariants, first_listed, listed, slowdowns
from cuconv.algorithms.common.many import ManyConfigurations
from cuconv.algorithms.tf32x3.tf32x3 import (
    MAX_FILTER_AREA,
    ClusterConfig,
    GridCosts,
    blocks_per_sm,
    check_indices,
    launchable,
    memory_us,
    tiles_of,
)
from cuconv.costs import constant
from cuconv.device import REGISTERS_PER_SM, DeviceSpec
from cuconv.jit import Launch
from cuconv.numbers import Number, larger, norm, smaller
from cuconv.problem import FLOAT_BYTES, ConvProblem, ceil_div

WARPGROUP_PIXELS = 64  # rows of tile A of a wgmma instruction
STAGE_DEPTH = 32  # 128 bytes of a row of weights, as wide as the swizzle
PIECE_FILTERS = 2  # of a piece of the accumulators, which only one block of a cluster writes
TAP_BYTES = 8  # an entry of the tap table: an offset into an image, and a filter position
MAX_IMAGE = 2**29 - 1  # elements, so that offsets in bytes fit 31 bits
GENERAL_REGISTERS = 16  # more of a thread whose kernel has geometry or groups as arguments
MASK_BITS = 32  # a filter of more positions needs a wider mask (LARGE_FILTER)

# Strides by the size of a filter, of layers that kernels are specialised for; both are alike in both directions.
STRIDES = {1: (1, 2), 2: (2,), 3: (1, 2), 4: (4,), 5: (1,), 7: (1, 2), 11: (4,)}

CLUSTER_SIZES = (1, 2, 3, 4, 5, 6, 8, 14, 16)  # values of split_k
FILLING_CLUSTER_SIZES = (3, 5, 6, 14)  # fill the SMs better than a power of two, of use only where blocks are few
FEW_BLOCKS_PER_SM = 3  # up to which those sizes are candidates


@dataclass(frozen=True, slots=True)
class Costs(GridCosts):
    """The constants of the cost model, in microseconds of what each says."""

    traffic: float = constant("2**11 elements fetched for each SM at the same time, through the L2 cache")
    latency: float = constant("a warpgroup's latency of a stage")
    latency_filters: float = constant("added latency for each 64 filters")
    latency_warpgroups: float = constant("added latency for each warpgroup of the block")
    latency_pointwise: float = constant("added latency for a 1x1 filter without padding")
    work: float = constant("an SM's time for a warpgroup's stage, where other warpgroups hide the latency")
    work_filters: float = constant("added work for each 64 filters")
    work_unpaired: float = constant("added work where pixels are not loaded in pairs")
    work_unaligned: float = constant("added work for each 64 filters where rows of weights are not aligned")
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

    def registers(self, split_k: Number, products: int) -> Number:
        """Registers of a thread, about: enough for the accumulators, a chain of products and two stages of columns."""
        if products == 1:
            return 64 + self.filters + 16 * ((self.filters == 16) & (split_k == 1))
        return smaller(104 + self.filters - 8 * (self.filters == 32), REGISTERS_PER_SM // self.threads)

    def min_blocks_per_sm(self, split_k: Number, products: int, general: bool = False) -> Number:
        """Blocks that an SM's registers hold, as __launch_bounds__ tells the compiler; of a general variant fewer."""
        registers = self.registers(split_k, products) + GENERAL_REGISTERS * general
        return larger(1, REGISTERS_PER_SM // (self.threads * registers))

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


class Tf32x3Wgmma(ManyConfigurations[Config, Costs], ListedVariants[Config, Costs]):
    """Implicit GEMM with wgmma at FP32 accuracy (3xTF32) or in TF32, for Hopper."""

    source = Path(__file__).with_suffix(".cu")
    summary = "Implicit GEMM with wgmma at FP32 accuracy (3xTF32) or in TF32, for Hopper; the reduction is split-K."
    precisions = tuple(PRODUCTS)
    fuses_residual = True
    writes_slices = True
    costs_type = Costs

    def variants(self, arch: str) -> list[Macros]:
        """The listed variants; none without Hopper's instructions."""
        return listed(self.source) if arch == HOPPER_ARCH else []

    def forms(self, problem: ConvProblem, config: Config, options: CallOptions) -> Forms:
        """The variant that is specialised for a layer the most, and those that are less, with what they lose."""
        return _forms(_layer_macros(problem, options, config.products), config.tile, config.split_k)

    def slowdowns(self, problem: ConvProblem, device: DeviceSpec, many: Config, options: CallOptions) -> Any:
        """What `slowdown` is for each configuration that `many` made; layers of a kind have them in common."""
        layer = _layer_macros(problem, self._possible(problem, options), many.products)
        return _slowdowns(self.source, device.max_cluster_blocks, tuple(layer.items()))

    def many(self, problem: ConvProblem, device: DeviceSpec) -> tuple[Config, Any]:
        """One configuration object with array fields, and an array that says which of its configurations can run.

        Raises UnsupportedProblem where none can.
        """
        require_hopper(problem, device)
        check_indices(problem, MAX_IMAGE)
        pointwise, products = is_pointwise(problem), PRODUCTS[problem.precision]
        tile, split_k, shared_bytes = _every(device.max_cluster_blocks, products)
        stages = stages_of(problem, STAGE_DEPTH)
        blocks = tiles_of(problem, tile.filters, tile.pixels) * split_k
        if not pointwise:
            shared_bytes = shared_bytes + TAP_BYTES * STAGE_DEPTH * (ceil_div(stages, split_k) + 1)
        possible = split_k * tile.warpgroup_split_k <= stages
        possible &= (blocks <= FEW_BLOCKS_PER_SM * device.sm_count) | ~_FILLING[split_k]
        found = ClusterConfig(tile, split_k, pointwise, blocks, shared_bytes, products)
        return _with_even_occupancy(found, device), launchable(found, possible, problem, device)

    def estimate_us(self, problem: ConvProblem, device: DeviceSpec, config: Config, costs: Costs) -> float:
        """The device time in microseconds, by the cost model with the given constants.

        Blocks run in waves of as many as an SM holds. A stage takes its latency while an SM has few warpgroups, and its
        share of the SM's throughput where it has many: their norm goes from one to the other. What all blocks fetch
        through the L2 cache is added. Device memory hides behind all that, unless both take long: a norm again.
        """
        tile, stages = config.tile, stages_of(problem, STAGE_DEPTH, config.split_k)
        iterations = ceil_div(stages, tile.warpgroup_split_k)
        latency_us, work_us = _latency_us(config, costs), _work_us(problem, tile, costs)
        start_us = costs.block + costs.cluster * (config.split_k > 1)
        epilogue_us = _epilogue_us(config, costs)

        def wave_us(blocks: Number) -> Number:
            return start_us + iterations * norm(latency_us, blocks * work_us) + blocks * epilogue_us

        resident = _resident_blocks(config, device)
        blocks = _blocks_of_busiest_sm(blocks_per_sm(config, device), resident)
        waves, rest = blocks // resident, blocks % resident
        compute_us = waves * wave_us(resident) + (rest > 0) * wave_us(rest)
        traffic_us = costs.traffic * stages * STAGE_DEPTH * (tile.filters + tile.pixels) / 2**11
        compute_us = compute_us + traffic_us * config.blocks / device.sm_count
        return costs.start + norm(compute_us, memory_us(problem, costs.memory))

    def summation(self, config: Config) -> tuple[int, ...] | None:
        """The parts of the reduction: those of a block's warpgroups and of a cluster's blocks.

        None for sizes of a cluster that are candidates for small batches alone.
        """
        return None if config.split_k in FILLING_CLUSTER_SIZES else (config.tile.warpgroup_split_k, config.split_k)

    def kernels(self, problem: ConvProblem, config: Config, options: CallOptions) -> tuple[Launch, ...]:
        """The launch of the one kernel, which overlaps with the kernel ahead and waits for it itself."""
        layer = _layer_macros(problem, options, config.products)
        macros = _listed_form(self.source, config.tile, config.split_k, tuple(layer.items()))
        operands_and_sizes = arguments_of(problem, options.relu, options.output_planes(problem))
        arguments = (*operands_and_sizes, *geometry_arguments(problem), _evict_first(problem), *options.arguments)
        grid = (config.blocks, config.threads)
        return (Launch(self.source, macros, self.name, *grid, arguments, config.shared_bytes, overlap=True),)


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
def _every(max_cluster_blocks: int, products: int) -> tuple[Tile, Any, Any]:
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


def _has_pixel_pairs(problem: ConvProblem, aligned: bool) -> bool:
    """Whether pixels can be loaded and stored in pairs: a 1x1 filter, stride 1, planes of an even number of pixels.

    aligned: whether input, weight and output all start at a multiple of 16 bytes.
    """
    return aligned and is_pointwise(problem) and not is_strided(problem) and problem.out_pixels % 2 == 0


def _resident_blocks(config: Config, device: DeviceSpec) -> Number:
    """The occupancy: blocks of the configuration that an SM holds at a time."""
    registers = config.tile.registers(config.split_k, config.products)
    return device.resident_blocks(config.threads, registers, config.shared_bytes)


def _with_even_occupancy(many: Config, device: DeviceSpec) -> Config:
    """The configurations with enough shared memory that an SM holds no more than its even share of the blocks.

    Kernels overlap: the first SMs that the kernel ahead leaves would take as many blocks as they hold, while others
    idle. An SM that holds two even shares is left alone: then this launch fits beside the one ahead.
    """
    even_share, resident = blocks_per_sm(many, device), _resident_blocks(many, device)
    uneven = (even_share < resident) & (resident < 2 * even_share)
    least = device.shared_bytes_that_hold(even_share)
    shared_bytes: Any = np.where(uneven, larger(many.shared_bytes, least), many.shared_bytes)
    return replace(many, shared_bytes=shared_bytes)


def _blocks_of_busiest_sm(even_share: Number, resident: Number) -> Number:
    """The blocks that the busiest SM computes in a stream of kernels that overlap.

    They spread evenly where an SM has room for this launch beside the one ahead. Otherwise occupancy is uneven: blocks
    are placed as SMs empty, and the first of them is filled.
    """
    return larger(even_share, resident * (2 * even_share > resident))


def _latency_us(config: Config, costs: Costs) -> Number:
    """The latency of a stage, in microseconds."""
    filters, warpgroups = config.tile.filters / 64, config.tile.warpgroups
    latency_us = costs.latency + costs.latency_filters * filters + costs.latency_warpgroups * warpgroups
    return latency_us + costs.latency_pointwise * config.pointwise


def _work_us(problem: ConvProblem, tile: Tile, costs: Costs) -> Number:
    """The time of an SM's throughput that a stage of every warpgroup of a block takes, in microseconds."""
    filters = tile.filters / 64
    unpaired_us = 0.0 if _has_pixel_pairs(problem, aligned=True) else costs.work_unpaired
    work_us = (costs.work + costs.work_filters * filters + unpaired_us) * tile.warpgroups
    if has_aligned_rows(problem, aligned=True):
        return work_us
    return work_us + costs.work_unaligned * filters * tile.warpgroup_split_k


def _epilogue_us(config: Config, costs: Costs) -> Number:
    """The time of an SM's throughput to add up and write a block's share of a tile, in microseconds.

    Of the split_k parts of a block's sums one is its own, and the others are exchanged.
    """
    tile, split_k = config.tile, config.split_k
    outputs, shared_outputs = tile.filters * tile.pixels, shared_filters(tile.filters, split_k) * tile.pixels
    write_us = (costs.write + costs.exchange * (split_k - 1)) * shared_outputs / split_k / 2**12
    return write_us + costs.warpgroup_sums * (tile.warpgroup_split_k - 1) * outputs / 2**12


def _layer_macros(problem: ConvProblem, options: CallOptions, products: int) -> Macros:
    """The macros of the kernel variant that is specialised for a layer, without those of its tile."""
    pointwise, general, paired = is_pointwise(problem), _is_general(problem), _has_pixel_pairs(problem, options.aligned)
    return {
        "VECTOR": int(has_aligned_rows(problem, options.aligned)),
        "PRODUCTS": products,
        "GENERAL": int(general),
        "KERNEL_H": 0 if general else problem.kh,
        "KERNEL_W": 0 if general else problem.kw,
        "STRIDE_H": 1 if general else problem.stride_h,
        "STRIDE_W": 1 if general else problem.stride_w,
        "GROUPED": int(problem.groups > 1 and not general),
        "STAGE_DEPTH": STAGE_DEPTH,
        "POINTWISE": int(pointwise),
        "LARGE_FILTER": sum(problem.filter_area > most for most in (MASK_BITS, MAX_FILTER_AREA)),
        "LINEAR": int(is_linear(problem)),
        "WHOLE": int(pointwise and depth_of(problem) % STAGE_DEPTH == 0),
        "PAIRED": int(paired),
        "EVICT_FIRST": int(_evict_first(problem) > 0),
        "RESIDUAL": int(options.residual),
    }


def _tile_macros(tile: Tile, split_k: Number, layer: Macros) -> dict[str, Number]:
    """The macros of a variant's tile, from those of its layer; arrays for arrays of tiles."""
    general = bool(layer["GENERAL"] or layer["GROUPED"])
    return {
        "FILTERS": tile.filters,
        "PIXEL_WARPGROUPS": tile.pixel_warpgroups,
        "WARPGROUP_SPLIT_K": tile.warpgroup_split_k,
        "SPLIT_K": split_k,
        "INBOX_BYTES": inbox_bytes(tile, split_k),
        "TAP_BYTES": TAP_BYTES,
        "MIN_BLOCKS_PER_SM": tile.min_blocks_per_sm(split_k, layer["PRODUCTS"], general),
    }


def _forms(layer: Macros, tile: Tile, split_k: Number) -> Forms:
    """The variants that compute a layer, each after how many times as long it takes as the first.

    layer: macros of the most special one; the others have arguments in the place of some of them. The factors were
    measured on an H200, on 290 layers of the sweeps.
    """
    pointwise = layer["POINTWISE"]
    found = [(1.0, layer)]
    for name, slowdown in (("WHOLE", 1.003), ("LINEAR", 1.005 if pointwise else 1.035)):
        if layer[name]:
            found += [(factor * slowdown, macros | {name: 0}) for factor, macros in found]
    if not layer["GENERAL"]:
        general = {"GENERAL": 1, "KERNEL_H": 0, "KERNEL_W": 0, "STRIDE_H": 1, "STRIDE_W": 1, "GROUPED": 0}
        found += [(factor * (1.04 if pointwise else 1.08), macros | general) for factor, macros in found]
    found.sort(key=lambda form: form[0])
    return [(factor, macros | _tile_macros(tile, split_k, macros)) for factor, macros in found]


@lru_cache(maxsize=4096)
def _listed_form(source: Path, tile: Tile, split_k: int, layer: tuple[tuple[str, int], ...]) -> Macros:
    """The form that a call launches. layer: the macros of `_layer_macros`."""
    return first_listed(source, _forms(dict(layer), tile, split_k))


@lru_cache(maxsize=1024)
def _slowdowns(source: Path, max_cluster_blocks: int, layer: tuple[tuple[str, int], ...]) -> Any:
    """The slowdown of every tile with every split_k. layer: the macros of `_layer_macros`."""
    macros = dict(layer)
    tile, split_k, _ = _every(max_cluster_blocks, macros["PRODUCTS"])
    return slowdowns(source, _forms(macros, tile, split_k))


def _is_general(problem: ConvProblem) -> bool:
    """Whether the kernel takes the filter's size, stride and dilation as arguments, and not as constants."""
    p = problem
    plain = p.kh == p.kw and p.stride_h == p.stride_w and p.dilation_h == p.dilation_w == 1
    return not (plain and p.stride_h in STRIDES.get(p.kh, ()))


def _evict_first(problem: ConvProblem) -> int:
    """The eighths of the input that L2 evicts first; 0 for filters other than 1x1, which read it several times."""
    return eviction.evict_first(problem) if is_pointwise(problem) else 0
