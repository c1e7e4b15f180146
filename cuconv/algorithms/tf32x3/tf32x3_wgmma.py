"""Implicit GEMM on Hopper's warpgroup tensor cores at FP32 accuracy (3xTF32) or in TF32, split over a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from pathlib import Path

from cuconv.algorithms.base import Algorithm, Macros
from cuconv.algorithms.common import eviction
from cuconv.algorithms.common.implicit_gemm import (
    PARTS,
    PRODUCTS,
    arguments_of,
    depth_of,
    has_aligned_rows,
    is_linear,
    is_pointwise,
    stages_of,
)
from cuconv.algorithms.common.limits import HOPPER_ARCH, require_hopper
from cuconv.algorithms.tf32x3.tf32x3 import (
    Block,
    ClusterConfig,
    OverlapCosts,
    check_indices,
    end_us,
    overlapped_us,
    spread,
    those_that_fit,
)
from cuconv.costs import constant
from cuconv.device import REGISTERS_PER_SM, DeviceSpec
from cuconv.jit import Launch
from cuconv.problem import FLOAT_BYTES, ConvProblem

SOURCE = Path(__file__).with_suffix(".cu")
PRECISIONS = tuple(PRODUCTS)

SPLITS = (1, 2, 3, 4, 5, 6, 8, 14, 16)  # blocks of a cluster that share a tile
FILLING_SPLITS = (3, 5, 6, 14)  # of these, what fills the SMs better; of no use where there are blocks enough
FILLED = 3  # blocks an SM
PORTABLE_SPLIT = 8
PIECE_FILTERS = 2  # a block of a cluster writes whole pieces of the accumulators
PIXELS = 64  # that a warpgroup computes
STAGE_DEPTH = 32
TAP_BYTES = 8  # an entry of the tap table: an offset into an image and a filter position
MAX_IMAGE = 2**29 - 1
SMALL_FILTER_AREA = 32  # of more, the kernel keeps a wider mask of filter positions


@dataclass(frozen=True, slots=True)
class Costs(OverlapCosts):
    """The constants of its cost model."""

    unaligned: float = constant("an SM's time for 64 filters of a stage, in addition, where rows are not aligned")
    gather: float = constant("an SM's time to add 2**12 sums of another warpgroup of the block")


@dataclass(frozen=True, slots=True)
class Tile:
    """A block's tile of bf filters x 64 * wp pixels, and its wp x wk warpgroups (wk over the reduction)."""

    bf: int
    wp: int
    wk: int

    @property
    def pixels(self) -> int:
        return PIXELS * self.wp

    @property
    def threads(self) -> int:
        return 128 * self.wp * self.wk

    def pipeline_bytes(self, products: int) -> int:
        """Shared memory of two stages of weights of each of the wk warpgroups; then of their sums."""
        return FLOAT_BYTES * self.wk * 2 * PARTS[products] * self.bf * STAGE_DEPTH

    def registers(self, split: int, products: int) -> int:
        """Of a thread, about: the compiler is told how many blocks of so many an SM is to hold."""
        if products == 1:
            return 96 if self.bf == 16 and split == 1 else 64 + self.bf
        return min(128 if self.bf == 32 else 104 + self.bf, REGISTERS_PER_SM // self.threads)

    def resident(self, split: int, products: int) -> int:
        """Blocks that an SM's registers hold."""
        return max(1, REGISTERS_PER_SM // (self.threads * self.registers(split, products)))

    def __str__(self) -> str:
        return f"{self.bf}x{self.pixels}x{STAGE_DEPTH} warpgroups={self.wp}x{self.wk}"


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


class Tf32x3Wgmma(Algorithm[ClusterConfig, Costs]):
    """Implicit GEMM on Hopper's warpgroup tensor cores at FP32 accuracy (3xTF32) or in TF32, split over a cluster."""

    source = SOURCE
    summary = (
        "Implicit GEMM on Hopper's warpgroup tensor cores at FP32 accuracy (3xTF32) or in TF32, split over a cluster."
    )
    precisions = PRECISIONS
    costs_type = Costs

    def variants(self, arch: str) -> list[Macros]:
        """Each tile once, and each other macro in each of its settings."""
        if arch != HOPPER_ARCH:
            return []
        small, large = TILES[0], TILES[-1]
        one, many = ConvProblem(1, 32, 9, 9, 8, 3, 3, 1, 1), ConvProblem(2, 32, 9, 9, 8, 3, 3)
        pointwise, uneven = ConvProblem(1, 32, 9, 9, 8, 1, 1), ConvProblem(2, 33, 9, 9, 8, 1, 1)
        paired, large_filter = ConvProblem(2, 32, 9, 8, 8, 1, 1), ConvProblem(1, 32, 9, 9, 8, 7, 7, 3, 3)
        sample = [_macros(problem, tile, split=1, aligned=True) for tile in TILES for problem in (one, many)]
        for problem, aligned in ((one, False), (pointwise, True), (uneven, False), (large_filter, True)):
            sample += [_macros(problem, tile, 1, aligned) for tile in (small, large)]
        sample += [_macros(paired, tile, split, aligned=True) for tile in TILES for split in (1, PORTABLE_SPLIT)]
        sample += [_macros(one, tile, PORTABLE_SPLIT, aligned=True) for tile in TILES]
        sample += [_macros(one, tile, FILLING_SPLITS[0], aligned=False) for tile in TILES]
        sample += [_macros(many, large, split, aligned=True) for split in SPLITS[1:]]
        sample.append(_macros(large_filter, large, SPLITS[-1], aligned=False))
        sample += [_macros(many, tile, split, aligned=True, products=1) for tile in TILES for split in (1, SPLITS[-2])]
        for problem, aligned in ((pointwise, False), (paired, True)):
            sample += [_macros(problem, tile, 1, aligned, products=1) for tile in (small, large)]
        pixels = [_macros(problem, tile, 1, aligned=True) for problem in (uneven, paired) for tile in (small, large)]
        return sample + [macros | {"EVICT_FIRST": 5} for macros in pixels]

    def candidates(self, problem: ConvProblem, device: DeviceSpec) -> list[ClusterConfig]:
        """The configurations that can run; raises UnsupportedProblem where there is none."""
        check_device_and_indices(problem, device)
        pointwise, products = is_pointwise(problem), PRODUCTS[problem.precision]
        stages = stages_of(problem, STAGE_DEPTH)
        splits = [split for split in SPLITS if split <= device.max_cluster_blocks]
        found = []
        for tile in TILES:
            tiles = ceil(problem.m / tile.bf) * ceil(problem.n * problem.out_pixels / tile.pixels)
            for split in splits:
                if split * tile.wk > stages or split * PIECE_FILTERS > tile.bf:
                    break
                if split in FILLING_SPLITS and tiles * split > FILLED * device.sm_count:
                    continue
                taps = 0 if pointwise else (ceil(stages / split) + 1) * STAGE_DEPTH
                shared_bytes = (
                    tile.pipeline_bytes(products) + inbox_bytes(tile.bf, tile.pixels, split) + TAP_BYTES * taps
                )
                config = ClusterConfig(tile, split, pointwise, tiles * split, shared_bytes, products)
                found.append(spread(config, device, tile.registers(split, products)))
        return those_that_fit(found, problem, device)

    def estimate_us(self, problem: ConvProblem, device: DeviceSpec, config: ClusterConfig, costs: Costs) -> float:
        """Estimated device time in microseconds."""
        tile, split = config.tile, config.split
        stages = stages_of(problem, STAGE_DEPTH, split)
        warpgroups, filters, outputs = tile.wp * tile.wk, tile.bf / 64, tile.bf * tile.pixels
        shares = shared_filters(tile.bf, split) * tile.pixels
        wait_us = costs.turn + costs.turn_filters * filters + costs.turn_warpgroup * warpgroups
        wait_us += costs.pointwise_turn if config.pointwise else 0.0
        single_us = 0.0 if has_pairs(problem, aligned=True) else costs.work_single
        work_us = (costs.work + costs.work_filters * filters + single_us) * warpgroups
        work_us += 0.0 if has_aligned_rows(problem, aligned=True) else costs.unaligned * filters * tile.wk
        block = Block(
            resident=device.resident_blocks(tile.threads, tile.registers(split, config.products), config.shared_bytes),
            turns=ceil(stages / tile.wk),
            wait_us=wait_us,
            work_us=work_us,
            end_us=end_us(costs, shares, split) + costs.gather * (tile.wk - 1) * outputs / 2**12,
            traffic_us=costs.traffic * stages * STAGE_DEPTH * (tile.bf + tile.pixels) / 2**11,
        )
        return overlapped_us(problem, device, config, costs, block)

    def launches(self, problem: ConvProblem, config: ClusterConfig, aligned: bool, relu: bool) -> tuple[Launch, ...]:
        """The kernel; it may start while the one ahead of it in the stream ends, and waits by itself."""
        macros = _macros(problem, config.tile, config.split, aligned, config.products)
        grid = (config.blocks, config.threads)
        return (
            Launch(
                self.source, macros, self.name, *grid, arguments_of(problem, relu), config.shared_bytes, overlap=True
            ),
        )


def has_pairs(problem: ConvProblem, aligned: bool) -> bool:
    """Whether pixels can be loaded and stored in pairs: those of a 1x1 filter, of planes of an even number."""
    return aligned and is_pointwise(problem) and problem.out_pixels % 2 == 0


def layer_macros(problem: ConvProblem, aligned: bool) -> Macros:
    """What the kernels are compiled for of a layer: it decides how they find the columns."""
    pointwise = is_pointwise(problem)
    return {
        "KERNEL_H": problem.kh,
        "KERNEL_W": problem.kw,
        "POINTWISE": int(pointwise),
        "LARGE_FILTER": int(problem.filter_area > SMALL_FILTER_AREA),
        "LINEAR": int(is_linear(problem)),
        "WHOLE": int(pointwise and depth_of(problem) % STAGE_DEPTH == 0),
        "PAIRED": int(has_pairs(problem, aligned)),
        "EVICT_FIRST": eviction.evict_first(problem) if pointwise else 0,
    }


def shared_filters(bf: int, split: int) -> int:
    """A tile's filters, rounded up to equal shares of whole pieces for each block of a cluster."""
    return ceil(bf / PIECE_FILTERS / split) * PIECE_FILTERS * split


def inbox_bytes(bf: int, pixels: int, split: int) -> int:
    """Shared memory in which a block of a cluster receives sums: those of its share, places of pixels, a barrier."""
    return FLOAT_BYTES * shared_filters(bf, split) * pixels + 8 * pixels + 16 if split > 1 else 0


def check_device_and_indices(problem: ConvProblem, device: DeviceSpec) -> None:
    """Raises UnsupportedProblem for another architecture, and where a size does not fit the kernel's integers."""
    require_hopper(problem, device)
    check_indices(problem, MAX_IMAGE)


def _macros(problem: ConvProblem, tile: Tile, split: int, aligned: bool, products: int = 3) -> Macros:
    vector = int(has_aligned_rows(problem, aligned))
    macros = {"BF": tile.bf, "WP": tile.wp, "WK": tile.wk, "SPLIT": split, "VECTOR": vector}
    macros |= {"RESIDENT": tile.resident(split, products), "PRODUCTS": products}
    return macros | layer_macros(problem, aligned)
