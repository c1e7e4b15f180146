"""Implicit GEMM with wgmma at FP32 accuracy (3xTF32) or in TF32, for Hopper.

A block computes a tile of filters x pixels. Its warpgroups may share the reduction, and so may the blocks of a cluster.
`tf32x3_wgmma.cu` has the kernel, docs/tf32x3_wgmma.md the design, wgmma_model.py the configurations and their times.
"""

from __future__ import annotations

from functools import lru_cache
from math import inf
from pathlib import Path
from typing import Any

from cuconv.algorithms.base import CallOptions, Macros
from cuconv.algorithms.common import eviction
from cuconv.algorithms.common.divider import packed_divisor
from cuconv.algorithms.common.implicit_gemm import (
    PRODUCTS,
    arguments_of,
    depth_of,
    geometry_arguments,
    has_aligned_rows,
    is_linear,
    is_pointwise,
)
from cuconv.algorithms.common.limits import HOPPER_ARCH
from cuconv.algorithms.common.listed import Forms, ListedVariants, fastest_listed, listed, slowdowns
from cuconv.algorithms.common.many import ManyConfigurations
from cuconv.algorithms.tf32x3 import wgmma_model
from cuconv.algorithms.tf32x3.tf32x3 import MAX_FILTER_AREA
from cuconv.algorithms.tf32x3.wgmma_model import (
    FILLING_CLUSTER_SIZES,
    STAGE_DEPTH,
    TAP_BYTES,
    Config,
    Costs,
    Tile,
    every,
    has_pixel_pairs,
    inbox_bytes,
    is_general,
)
from cuconv.core.elementwise import Number
from cuconv.core.launch import Launch
from cuconv.core.problem import ConvProblem, UnsupportedProblem, ceil_div
from cuconv.device import DeviceSpec

MASK_BITS = 32  # a filter of more positions needs a wider mask (LARGE_FILTER)


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
        """The `slowdown` of each configuration that `many` made; layers of a kind have them in common."""
        layer = _layer_macros(problem, self._possible(problem, options), many.products)
        return _slowdowns(self.source, device.max_cluster_blocks, tuple(layer.items()))

    def many(self, problem: ConvProblem, device: DeviceSpec) -> tuple[Config, Any]:
        """One configuration object with array fields, and an array that says which of its configurations can run.

        Raises UnsupportedProblem where none can.
        """
        return wgmma_model.many(problem, device)

    def timed(self, problem: ConvProblem, device: DeviceSpec, prepared: bool) -> tuple[Config, Any, Any]:
        """The two results of `many`, and the predicted times, of which a layer of all sizes has most in common."""
        many, possible = wgmma_model.many(problem, device)
        return many, possible, wgmma_model.times_us(problem, device, many, self.costs(problem.precision))

    def estimate_us(self, problem: ConvProblem, device: DeviceSpec, config: Config, costs: Costs) -> float:
        """The device time in microseconds, by the cost model with the given constants."""
        us: float = wgmma_model.estimate_us(problem, device, config, costs)
        return us

    def least_us(self, problem: ConvProblem, device: DeviceSpec, prepared: bool) -> float:
        """The bound of the cost model, in microseconds; inf where there is no configuration."""
        try:
            wgmma_model.check(problem, device)
        except UnsupportedProblem:
            return inf
        return wgmma_model.least_us(problem, device, self.costs(problem.precision))

    def summation(self, config: Config) -> tuple[int, ...] | None:
        """The parts of the reduction: those of a block's warpgroups and of a cluster's blocks.

        None for sizes of a cluster that are candidates for small batches alone.
        """
        return None if config.split_k in FILLING_CLUSTER_SIZES else (config.tile.warpgroup_split_k, config.split_k)

    def kernels(self, problem: ConvProblem, config: Config, options: CallOptions) -> tuple[Launch, ...]:
        """The launch of the one kernel, which overlaps with the kernel ahead and waits for it itself."""
        layer = _layer_macros(problem, options, config.products)
        macros = _listed_form(self.source, config.tile, config.split_k, tuple(layer.items()))
        p = problem
        images = p.c * p.h * p.w, options.output_planes(p) * p.out_pixels
        groups = p.group_channels * p.h * p.w, p.group_filters * depth_of(p)
        filter_tiles = ceil_div(p.group_filters, config.tile.filters)
        group_tiles = filter_tiles * ceil_div(p.n * p.out_pixels, config.tile.pixels)
        arguments = (
            *arguments_of(p, options.activation), *geometry_arguments(p), *images, *groups,
            *map(packed_divisor, (group_tiles, filter_tiles, p.out_pixels, p.out_w)), _evict_first(p),
            *options.arguments,
        )  # fmt: skip
        grid = (config.blocks, config.threads)
        return (Launch(self.source, macros, self.name, *grid, arguments, config.shared_bytes, overlap=True),)


def _layer_macros(problem: ConvProblem, options: CallOptions, products: int) -> Macros:
    """The macros of the kernel variant that is specialised for a layer, without those of its tile."""
    pointwise, general, paired = is_pointwise(problem), is_general(problem), has_pixel_pairs(problem, options.aligned)
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
    return {
        "FILTERS": tile.filters,
        "PIXEL_WARPGROUPS": tile.pixel_warpgroups,
        "WARPGROUP_SPLIT_K": tile.warpgroup_split_k,
        "SPLIT_K": split_k,
        "INBOX_BYTES": inbox_bytes(tile, split_k),
        "TAP_BYTES": TAP_BYTES,
        "MIN_BLOCKS_PER_SM": tile.min_blocks_per_sm(split_k, layer["PRODUCTS"], bool(layer["GENERAL"])),
    }


def _forms(layer: Macros, tile: Tile, split_k: Number) -> Forms:
    """The variants that compute a layer, each after how many times as long it takes as the first.

    layer: macros of the most special one; the others do without some of what it specialises in. The factors were
    measured on an H200, on 290 layers of the sweeps. A form with more registers is as much slower as an SM holds fewer
    of its blocks, at most.
    """
    pointwise = layer["POINTWISE"]
    found = [(1.0, layer)]
    for name, slowdown in (("WHOLE", 1.003), ("LINEAR", 1.005 if pointwise else 1.035)):
        if layer[name]:
            found += [(factor * slowdown, macros | {name: 0}) for factor, macros in found]
    if not layer["GENERAL"]:
        general = {"GENERAL": 1, "KERNEL_H": 0, "KERNEL_W": 0, "STRIDE_H": 1, "STRIDE_W": 1, "GROUPED": 0}
        found += [(factor * (1.04 if pointwise else 1.08), macros | general) for factor, macros in found]
    forms = [(factor, macros | _tile_macros(tile, split_k, macros)) for factor, macros in found]
    blocks = forms[0][1]["MIN_BLOCKS_PER_SM"]
    return [(factor * blocks / macros["MIN_BLOCKS_PER_SM"], macros) for factor, macros in forms]


@lru_cache(maxsize=4096)
def _listed_form(source: Path, tile: Tile, split_k: int, layer: tuple[tuple[str, int], ...]) -> Macros:
    """The form that a call launches. layer: the macros of `_layer_macros`."""
    macros = fastest_listed(source, _forms(dict(layer), tile, split_k))
    return {name: int(value) for name, value in macros.items()}


@lru_cache(maxsize=1024)
def _slowdowns(source: Path, max_cluster_blocks: int, layer: tuple[tuple[str, int], ...]) -> Any:
    """The slowdown of every tile with every split_k. layer: the macros of `_layer_macros`."""
    macros = dict(layer)
    tile, split_k, _ = every(max_cluster_blocks, macros["PRODUCTS"])
    return slowdowns(source, _forms(macros, tile, split_k))


def _evict_first(problem: ConvProblem) -> int:
    """The eighths of the input that L2 evicts first; 0 for filters other than 1x1, which read it several times."""
    return eviction.evict_first(problem) if is_pointwise(problem) else 0
