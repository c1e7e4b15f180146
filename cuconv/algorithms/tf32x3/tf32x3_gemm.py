"""Implicit GEMM on the tensor cores at FP32 accuracy (3xTF32) or in TF32, split over warps and a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from pathlib import Path

from cuconv.algorithms.base import Algorithm, Macros
from cuconv.algorithms.common.implicit_gemm import PRODUCTS, arguments_of, has_aligned_rows, is_pointwise, stages_of
from cuconv.algorithms.tf32x3.tf32x3 import (
    SPLITS,
    ClusterConfig,
    GridCosts,
    blocks_of_an_sm,
    check_indices,
    memory_us,
    those_that_fit,
)
from cuconv.costs import constant
from cuconv.device import DeviceSpec
from cuconv.jit import Launch
from cuconv.problem import FLOAT_BYTES, ConvProblem

SOURCE = Path(__file__).with_suffix(".cu")
PRECISIONS = tuple(PRODUCTS)

TAP_BYTES = 4  # an entry of its tap table: 6 bits for the filter position, the others for an offset into an image
MAX_IMAGE = 2**25 - 1
REGISTERS = {3: 128, 1: 88}  # of a thread, by products; no variant for compute capability 9.0 takes more


@dataclass(frozen=True, slots=True)
class Costs(GridCosts):
    """The constants of its cost model."""

    taps: float = constant("a launch's tap tables, where there are any")
    fetch: float = constant("a thread's wait in a stage for an element of columns")
    pointwise_fetch: float = constant("the same where the columns are the input as it lies")
    warp_group: float = constant("a block's wait in a stage, for each four warps")
    multiply: float = constant("an SM's time for 2**16 multiply-adds")
    columns: float = constant("an SM's time to fetch 2**11 elements of columns")
    weights: float = constant("the same for weights")


@dataclass(frozen=True, slots=True)
class Tile:
    """A block's tile of bm filters x bn pixels, its wm x wn x wk warps (wk over the reduction), and its pipeline."""

    bm: int
    bn: int
    wm: int
    wn: int
    wk: int
    bk: int  # depth of a stage
    stages: int  # in flight

    @property
    def threads(self) -> int:
        return 32 * self.wm * self.wn * self.wk

    @property
    def pipeline_bytes(self) -> int:
        """Shared memory of the stages in flight; rows are padded against bank conflicts."""
        return FLOAT_BYTES * self.stages * (self.bm * (self.bk + 4) + self.bk * (self.bn + 8))

    @property
    def sums_bytes(self) -> int:
        """Shared memory of every warp's sums, in the place of the stages."""
        return FLOAT_BYTES * self.wk * self.bm * (self.bn + 8)

    def __str__(self) -> str:
        return f"{self.bm}x{self.bn}x{self.bk} stages={self.stages} warps={self.wm}x{self.wn}x{self.wk}"


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


class Tf32x3Gemm(Algorithm[ClusterConfig, Costs]):
    """Implicit GEMM on the tensor cores at FP32 accuracy (3xTF32) or in TF32, split over warps and a cluster."""

    source = SOURCE
    summary = "Implicit GEMM on the tensor cores at FP32 accuracy (3xTF32) or in TF32, split over warps and a cluster."
    precisions = PRECISIONS
    costs_type = Costs

    def variants(self, arch: str) -> list[Macros]:
        """Each tile once, and each other macro in each of its settings."""
        sample = [_macros(tile, split=1, pointwise=False, vector=True) for tile in TILES]
        for pointwise, vector in ((False, False), (True, False), (True, True)):
            sample.append(_macros(TILES[0], 1, pointwise, vector))
        sample += [_macros(tile, 1, pointwise=False, vector=True, products=1) for tile in TILES]
        if int(arch.strip("sm_af")) >= 90:
            sample += [_macros(TILES[0], split, pointwise=False, vector=True) for split in SPLITS[1:]]
            sample.append(_macros(TILES[-1], SPLITS[-1], pointwise=True, vector=True))
        return sample

    def candidates(self, problem: ConvProblem, device: DeviceSpec) -> list[ClusterConfig]:
        """The configurations that can run; raises UnsupportedProblem where there is none."""
        check_indices(problem, MAX_IMAGE)
        pointwise, products = is_pointwise(problem), PRODUCTS[problem.precision]
        found = []
        for tile in TILES:
            stages = stages_of(problem, tile.bk)
            tiles = ceil(problem.m / tile.bm) * ceil(problem.n * problem.out_pixels / tile.bn)
            for split in SPLITS if device.has_clusters else SPLITS[:1]:
                if split > stages:
                    break
                taps = 0 if pointwise else ceil(stages / split) * tile.bk
                shared_bytes = max(tile.pipeline_bytes + TAP_BYTES * taps, tile.sums_bytes)
                found.append(ClusterConfig(tile, split, pointwise, tiles * split, shared_bytes, products))
        return those_that_fit(found, problem, device)

    def estimate_us(self, problem: ConvProblem, device: DeviceSpec, config: ClusterConfig, costs: Costs) -> float:
        """Estimated device time in microseconds.

        Blocks come in rounds of those that an SM holds; a round waits for a block's chain of stages, and every block of the
        busiest SM adds its work.
        """
        tile, split = config.tile, config.split
        stages = stages_of(problem, tile.bk, split)
        fetch_us = costs.pointwise_fetch if config.pointwise else costs.fetch
        wait_us = fetch_us * tile.bn * tile.bk / tile.threads + costs.warp_group * tile.threads / 128
        work_us = costs.multiply * tile.bm * tile.bn * tile.bk / 2**16
        work_us += (costs.columns * tile.bn + costs.weights * tile.bm) * tile.bk / 2**11
        outputs = tile.bm * tile.bn / 2**12
        round_us = costs.block + stages * wait_us
        block_us = stages * work_us + costs.write * outputs / split
        if split > 1:
            round_us += costs.cluster
            block_us += costs.exchange * outputs * tile.wk
        of_an_sm = blocks_of_an_sm(config, device)
        rounds = ceil(of_an_sm / device.resident_blocks(tile.threads, REGISTERS[config.products], config.shared_bytes))
        compute_us = rounds * round_us + of_an_sm * block_us
        start_us = costs.start if config.pointwise else costs.start + costs.taps
        return start_us + max(compute_us, memory_us(problem, costs))

    def launches(self, problem: ConvProblem, config: ClusterConfig, aligned: bool, relu: bool) -> tuple[Launch, ...]:
        """The kernel."""
        macros = _macros(
            config.tile, config.split, config.pointwise, has_aligned_rows(problem, aligned), config.products
        )
        arguments = arguments_of(problem, relu)
        return (Launch(self.source, macros, self.name, config.blocks, config.threads, arguments, config.shared_bytes),)


def _macros(tile: Tile, split: int, pointwise: bool, vector: bool, products: int = 3) -> Macros:
    macros = {name.upper(): getattr(tile, name) for name in ("bm", "bn", "wm", "wn", "wk", "bk", "stages")}
    return macros | {"SPLIT": split, "POINTWISE": int(pointwise), "VECTOR": int(vector), "PRODUCTS": products}
