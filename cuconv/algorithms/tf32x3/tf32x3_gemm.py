"""Implicit GEMM with mma.sync at FP32 accuracy (3xTF32) or in TF32, for compute capability 8.0 and up.

A block computes a tile of filters x pixels. Its warps may share the reduction, and on GPUs with clusters so may up to
eight blocks. `tf32x3_gemm.cu` has the kernel, docs/tf32x3_gemm.md the design.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from functools import cache, cached_property
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from cuconv.algorithms.base import CallOptions, Macros
from cuconv.algorithms.common.implicit_gemm import (
    PRODUCTS,
    geometry_arguments,
    has_aligned_rows,
    is_pointwise,
    stages_of,
)
from cuconv.algorithms.common.many import ManyConfigurations
from cuconv.algorithms.tf32x3.tf32x3 import (
    MAX_FILTER_AREA,
    ClusterConfig,
    GridCosts,
    blocks_per_sm,
    check_indices,
    launchable,
    memory_us,
    reach_of,
    tiles_of,
)
from cuconv.core.costs import constant
from cuconv.core.launch import BIAS, INPUT, OUTPUT, WEIGHT, Address, Launch
from cuconv.core.problem import FLOAT_BYTES, ConvProblem, ceil_div
from cuconv.device import DeviceSpec

WEIGHT_PADDING = 4  # floats that follow a row of weights in shared memory, against bank conflicts
COLUMN_PADDING = 8  # the same for a row of columns or of sums
TAP_BYTES = 4  # an entry of the tap table: 6 bits for the filter position, the others for an offset into an image
LARGE_TAP_BYTES = 8  # the same for a filter of more than MAX_FILTER_AREA positions, and for a larger image
MAX_IMAGE, LARGE_MAX_IMAGE = 2**25 - 1, 2**31 - 1  # elements that the offsets of either kind reach
REGISTERS = {3: 128, 1: 88}  # a thread's, by products; as many blocks fit an SM as with the compiler's numbers


@dataclass(frozen=True, slots=True)
class Costs(GridCosts):
    """The constants of the cost model, in microseconds; each says for what."""

    taps: float = constant("the tap tables of a launch; a 1x1 filter without padding needs none")
    fetch: float = constant("latency of a stage, for each element of columns that a thread copies")
    fetch_pointwise: float = constant("the same for a 1x1 filter without padding")
    warps: float = constant("latency of a stage, for each four warps of the block")
    multiply: float = constant("an SM's time for 2**16 multiply-adds")
    columns: float = constant("an SM's time to copy 2**11 elements of columns")
    weights: float = constant("an SM's time to copy 2**11 weights")


@dataclass(frozen=True)
class Tile:
    """A block's tile of filters x pixels, its warps, and its pipeline.

    filter_warps, pixel_warps and warp_split_k are the warps over filters, over pixels and over the reduction.
    stage_depth is the part of the reduction that a stage holds; `stages` of them are in shared memory.
    """

    filters: int
    pixels: int
    filter_warps: int
    pixel_warps: int
    warp_split_k: int
    stage_depth: int
    stages: int

    @cached_property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.filter_warps * self.pixel_warps * self.warp_split_k

    @cached_property
    def pipeline_bytes(self) -> int:
        """Shared memory of all stages, in bytes."""
        weights = self.filters * (self.stage_depth + WEIGHT_PADDING)
        columns = self.stage_depth * (self.pixels + COLUMN_PADDING)
        return FLOAT_BYTES * self.stages * (weights + columns)

    @cached_property
    def sums_bytes(self) -> int:
        """Shared memory of every warp's sums, which take the place of the stages, in bytes."""
        return FLOAT_BYTES * self.warp_split_k * self.filters * (self.pixels + COLUMN_PADDING)

    def __str__(self) -> str:
        warps = f"{self.filter_warps}x{self.pixel_warps}x{self.warp_split_k}"
        return f"{self.filters}x{self.pixels}x{self.stage_depth} stages={self.stages} warps={warps}"


Config = ClusterConfig[Tile]

TILES = (
    Tile(32, 32, 1, 1, 8, 64, 3),
    Tile(32, 64, 1, 2, 4, 32, 4),
    Tile(32, 64, 1, 2, 4, 64, 3),
    Tile(32, 64, 1, 2, 8, 64, 3),
    Tile(64, 32, 2, 1, 4, 32, 4),
    Tile(64, 64, 2, 2, 2, 32, 4),
    Tile(64, 64, 2, 2, 4, 32, 4),
    Tile(64, 64, 2, 2, 1, 32, 4),
    Tile(128, 64, 4, 2, 1, 32, 3),
    Tile(64, 128, 2, 4, 1, 32, 3),
)

SPLIT_KS = {
    0: (1, 2, 8),
    1: (1, 8),
    2: (1, 2),
    3: (2,),
    4: (1, 4, 8),
    5: (2,),
    6: (2, 8),
    7: (1, 2, 8),
    8: (1, 2, 4, 8),
    9: (1, 2, 8),
}
"""The values of split_k for each tile, by its place in TILES, where there are clusters; elsewhere it is 1.

All values for all tiles would be 40 variants of a kind. These 24 lose 0.4% in the geometric mean and 23% at worst, by
the cost model on an H200, over all sweeps and 4000 random layers. Every GPU with clusters grants eight blocks.
"""

LARGE_SPLIT_KS = {0: (1,), 1: (1, 8), 8: (1,), 9: (1, 8)}
"""The same for large entries of the tap table, which few layers need; tile 1 leaves the most room for a table."""


class Tf32x3Gemm(ManyConfigurations[Config, Costs]):
    """Implicit GEMM with mma.sync at FP32 accuracy (3xTF32) or in TF32, for compute capability 8.0 and up."""

    source = Path(__file__).with_suffix(".cu")
    summary = "Implicit GEMM with mma.sync at FP32 accuracy (3xTF32) or in TF32, for compute capability 8.0 and up."
    precisions = tuple(PRODUCTS)
    fuses_residual = True
    writes_slices = True
    superseded_by = "tf32x3_wgmma"
    costs_type = Costs

    def variants(self, arch: str) -> list[Macros]:
        """All kernel variants: a layer's geometry, the alignment of its operands and its residual are arguments."""
        clusters = int(arch.strip("sm_af")) >= 90
        kinds = ((False, TAP_BYTES), (True, TAP_BYTES), (False, LARGE_TAP_BYTES))
        return [
            _macros(tile, split_k, pointwise, tap_bytes, products)
            for products, (pointwise, tap_bytes) in product(PRODUCTS.values(), kinds)
            for tile, split_k in _pairs(clusters, tap_bytes)
        ]

    def many(self, problem: ConvProblem, device: DeviceSpec) -> tuple[Config, Any]:
        """One configuration object with array fields, and an array that says which of its configurations can run.

        Raises UnsupportedProblem where none can.
        """
        check_indices(problem, LARGE_MAX_IMAGE)
        pointwise, products, tap_bytes = is_pointwise(problem), PRODUCTS[problem.precision], _tap_bytes(problem)
        tile, split_k = _every(device.has_clusters, tap_bytes)
        stages = stages_of(problem, tile.stage_depth)
        blocks = tiles_of(problem, tile.filters, tile.pixels) * split_k
        taps_bytes = 0 if pointwise else tap_bytes * ceil_div(stages, split_k) * tile.stage_depth
        shared_bytes = np.maximum(tile.pipeline_bytes + taps_bytes, tile.sums_bytes)
        found = ClusterConfig(tile, split_k, pointwise, blocks, shared_bytes, products)
        return found, launchable(found, split_k <= stages, problem, device)

    def estimate_us(self, problem: ConvProblem, device: DeviceSpec, config: Config, costs: Costs) -> float:
        """The device time in microseconds, by the cost model with the given constants.

        Blocks run in waves of as many as an SM holds. A wave lasts as long as the chain of stages of one block; in
        addition every block of the busiest SM takes its share of the SM's throughput.
        """
        tile, split_k = config.tile, config.split_k
        stages = stages_of(problem, tile.stage_depth, split_k)
        fetch_us = costs.fetch_pointwise if config.pointwise else costs.fetch
        latency_us = fetch_us * tile.pixels * tile.stage_depth / tile.threads + costs.warps * tile.threads / 128
        work_us = costs.multiply * tile.filters * tile.pixels * tile.stage_depth / 2**16
        work_us = work_us + (costs.columns * tile.pixels + costs.weights * tile.filters) * tile.stage_depth / 2**11
        outputs = tile.filters * tile.pixels / 2**12
        wave_us = costs.block + stages * latency_us + costs.cluster * (split_k > 1)
        block_us = stages * work_us + costs.write * outputs / split_k
        block_us = block_us + costs.exchange * outputs * tile.warp_split_k * (split_k > 1)
        blocks = blocks_per_sm(config, device)
        resident = device.resident_blocks(tile.threads, REGISTERS[config.products], config.shared_bytes)
        compute_us = ceil_div(blocks, resident) * wave_us + blocks * block_us
        start_us = costs.start if config.pointwise else costs.start + costs.taps
        return start_us + np.maximum(compute_us, memory_us(problem, costs.memory))

    def summation(self, config: Config) -> tuple[int, ...]:
        """The parts of the reduction: those of a block's warps and of a cluster's blocks."""
        return config.tile.stage_depth, config.tile.warp_split_k, config.split_k

    def kernels(self, problem: ConvProblem, config: Config, options: CallOptions) -> tuple[Launch, ...]:
        """The launch of the one kernel."""
        p = problem
        macros = _macros(config.tile, config.split_k, config.pointwise, _tap_bytes(p), config.products)
        sizes = (p.n, p.group_channels, p.h, p.w, p.group_filters, p.kh, p.kw, p.pad_h, p.pad_w, p.out_h, p.out_w)
        arguments: tuple[Address | int, ...] = (
            *(INPUT, WEIGHT, BIAS, OUTPUT, *sizes, *options.activation_arguments, options.output_planes(p)),
            *(*geometry_arguments(p), int(has_aligned_rows(p, options.aligned)), options.residual_argument),
        )
        return (Launch(self.source, macros, self.name, config.blocks, config.threads, arguments, config.shared_bytes),)


def _pairs(has_clusters: bool, tap_bytes: int) -> list[tuple[Tile, int]]:
    """The pairs of a tile and a split_k for which there are kernel variants with such entries of the tap table."""
    split_ks = SPLIT_KS if tap_bytes == TAP_BYTES else LARGE_SPLIT_KS
    if has_clusters:
        return [(TILES[place], split_k) for place, some in split_ks.items() for split_k in some]
    return [(TILES[place], 1) for place in split_ks]


@cache
def _every(has_clusters: bool, tap_bytes: int) -> tuple[Tile, Any]:
    """The pairs of tile and split_k as arrays."""
    *sizes, split_ks = np.array([(*astuple(tile), split_k) for tile, split_k in _pairs(has_clusters, tap_bytes)]).T
    return Tile(*sizes), split_ks


def _tap_bytes(problem: ConvProblem) -> int:
    """The bytes of an entry of the tap table; a 1x1 filter without padding, which has no table, counts as small."""
    small = is_pointwise(problem) or (problem.filter_area <= MAX_FILTER_AREA and reach_of(problem) <= MAX_IMAGE)
    return TAP_BYTES if small else LARGE_TAP_BYTES


def _macros(tile: Tile, split_k: int, pointwise: bool, tap_bytes: int, products: int) -> Macros:
    """The macros of a kernel variant."""
    return {
        "FILTERS": tile.filters,
        "PIXELS": tile.pixels,
        "FILTER_WARPS": tile.filter_warps,
        "PIXEL_WARPS": tile.pixel_warps,
        "WARP_SPLIT_K": tile.warp_split_k,
        "STAGE_DEPTH": tile.stage_depth,
        "STAGES": tile.stages,
        "WEIGHT_PADDING": WEIGHT_PADDING,
        "COLUMN_PADDING": COLUMN_PADDING,
        "TAP_BYTES": tap_bytes,
        "SPLIT_K": split_k,
        "POINTWISE": int(pointwise),
        "PRODUCTS": products,
    }
