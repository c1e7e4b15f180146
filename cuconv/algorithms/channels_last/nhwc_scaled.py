"""TF32 of float32 tensors in channels last by FP16 products with scales, for Hopper.

FP16 has the 11 bits of TF32 and twice its rate. `nhwc_scaled.cu` has the kernel, and `pack_scaled.cu` that which packs
the weights ahead of it.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from itertools import product
from math import hypot
from pathlib import Path

from cuconv.algorithms.base import CallOptions, Macros
from cuconv.algorithms.channels_last import channels_last, pack_scaled, pad_channels
from cuconv.algorithms.channels_last.channels_last import (
    BARRIER_BYTES,
    CONSUMER_THREADS,
    PRODUCER_THREADS,
    Boxes,
    FusesAll,
    longest,
)
from cuconv.algorithms.channels_last.pack_scaled import ScaledWeights, ScaledWeightsCosts
from cuconv.algorithms.common.limits import HOPPER_ARCH, require_fit
from cuconv.core.costs import constant
from cuconv.core.launch import Launch
from cuconv.core.problem import HALF_BYTES, TF32_LAST, ConvProblem, UnsupportedProblem, ceil_div
from cuconv.device import DeviceSpec

PACKING = ScaledWeights()
BOX = Boxes(64, 1)  # of pixels: 32 of float32
BOXES = (1, 2)
MIN_STAGES = 3
WARPGROUPS = 2
SMALL_SUMS = 32  # of a thread: up to these an SM has registers for two blocks
MIN_BLOCKS_MACRO = "MIN_BLOCKS_PER_SM"


@dataclass(frozen=True, slots=True)
class Costs(ScaledWeightsCosts):
    """The constants of the cost model, in microseconds of what each says."""

    start: float = constant("a launch, and a block from start to end, without its stages and outputs")
    latency: float = constant("a stage's steps of a producer and a consumer")
    multiply: float = constant("an SM's time for 2**20 multiply-adds")
    convert: float = constant("an SM's time to convert 2**12 numbers of pixels")
    pixels: float = constant("an SM's time to copy 2**7 pixels of 32 channels")
    weights: float = constant("an SM's time to copy 2**15 bytes of packed weights")
    write: float = constant("an SM's time to write 2**12 outputs")
    memory: float = constant("2**20 bytes of operands through device memory")


@dataclass(frozen=True, slots=True)
class Tile:
    """A block's tile of the output: pixels, shared by two warpgroups, and filters."""

    pixels: int
    filters: int

    @property
    def resident(self) -> int:
        """The most blocks that the registers of an SM hold without spills."""
        return 2 if self.pixels * self.filters <= SMALL_SUMS * WARPGROUPS * CONSUMER_THREADS else 1

    def stage_bytes(self, boxes: int) -> int:
        """Shared memory of a stage in bytes."""
        return boxes * (BOX.stage_bytes(self.pixels) + HALF_BYTES * pack_scaled.BOX_CHANNELS * self.filters)

    def count(self, problem: ConvProblem) -> int:
        """The tiles of an output."""
        return ceil_div(problem.n * problem.out_pixels, self.pixels) * ceil_div(problem.m, self.filters)

    def __str__(self) -> str:
        return f"{self.pixels}x{self.filters}"


# With the stages' boxes; others spill registers.
FORMS = (
    *product((Tile(128, filters) for filters in (64, 96, 128, 192)), BOXES),
    (Tile(128, 256), 1),
    (Tile(256, 64), 1),
    (Tile(256, 96), 1),
)


@dataclass(frozen=True, slots=True)
class Config:
    """A launch configuration: a tile, the boxes of a stage, the stages of the ring, and the blocks of an SM."""

    tile: Tile
    boxes: int
    ring: int
    resident: int
    blocks: int
    shared_bytes: int
    workspace_bytes: int

    threads = WARPGROUPS * CONSUMER_THREADS + PRODUCER_THREADS

    def __str__(self) -> str:
        return f"{self.tile} boxes={self.boxes} stages={self.ring} blocks={self.blocks}"


class NhwcScaled(FusesAll[Config, Costs]):
    """TF32 of float32 tensors in channels last by FP16 products with scales, for Hopper."""

    source = Path(__file__).with_suffix(".cu")
    summary = "TF32 of float32 tensors in channels last by FP16 products with scales, for Hopper: for large problems."
    precisions = (TF32_LAST,)
    costs_type = Costs

    def variants(self, arch: str) -> list[Macros]:
        """All kernel variants; none without Hopper's instructions."""
        return [_macros(*form) for form in FORMS] if arch == HOPPER_ARCH else []

    def candidates(self, problem: ConvProblem, device: DeviceSpec) -> list[Config]:
        """Every tile with as many stages as fit; raises UnsupportedProblem where there is none."""
        channels_last.check(problem, device)
        if problem.groups > 1:
            raise UnsupportedProblem(f"{problem.label}: nhwc_scaled computes one group only")
        found = []
        for tile, boxes in FORMS:
            tiles, stages = tile.count(problem), _stages(problem, boxes)
            for resident in range(1, 1 + min(tile.resident, ceil_div(tiles, device.sm_count))):
                blocks = min(tiles, resident * device.sm_count)
                ring = channels_last.stages_that_fit(tile.stage_bytes(boxes), 0, device, resident)
                if ring < MIN_STAGES:
                    continue
                used = min(ring, stages * ceil_div(tiles, blocks))
                shared = used * (tile.stage_bytes(boxes) + 2 * BARRIER_BYTES)
                found.append(Config(tile, boxes, used, resident, blocks, shared, PACKING.workspace_bytes(problem)))
        return require_fit(found, problem, device, self.name)

    def estimate_us(self, problem: ConvProblem, device: DeviceSpec, config: Config, costs: Costs) -> float:
        """The device time of both kernels in microseconds: the busiest SM's tiles, one after the other."""
        p, tile = problem, config.tile
        blocks = ceil_div(tile.count(p), min(config.blocks, device.sm_count))  # tiles of the busiest SM
        resident = min(config.resident, blocks)
        numbers = tile.pixels * pack_scaled.BOX_CHANNELS * config.boxes
        computing_us = costs.multiply * numbers * tile.filters / 2**20 + costs.convert * numbers / 2**12
        copying_us = costs.pixels * tile.pixels * config.boxes / 2**7
        copying_us += costs.weights * config.boxes * HALF_BYTES * pack_scaled.BOX_CHANNELS * tile.filters / 2**15
        stage_us = longest(resident * computing_us, resident * copying_us, costs.latency)
        tile_us = _stages(p, config.boxes) * stage_us + resident * costs.write * tile.pixels * tile.filters / 2**12
        busy_us = ceil_div(blocks, resident) * tile_us
        main_us = costs.start + hypot(busy_us, costs.memory * p.min_bytes / 2**20)
        return main_us + PACKING.predicted_us(p, costs)

    def packing(self, problem: ConvProblem, config: Config) -> ScaledWeights:
        """How the kernel ahead of the main one packs the weights."""
        return PACKING

    def summation(self, config: Config) -> Hashable:
        """The boxes of a stage, after each of which a sum may be rescaled."""
        return config.boxes

    def kernels(self, problem: ConvProblem, config: Config, options: CallOptions) -> tuple[Launch, ...]:
        """The packing of the weights and the main kernel, which waits for the kernel ahead itself."""
        p, tile = problem, config.tile
        arguments = (
            channels_last.pixel_map(p, BOX, tile.pixels, pad_channels.operands(p)),
            PACKING.address(options.packed), PACKING.rows(p), PACKING.boxes_at(p),
            *channels_last.arguments_of(p, options, tile.filters), tile.count(p),
            *channels_last.last_arguments(p, config.ring, options),
        )  # fmt: skip
        macros, grid = _macros(tile, config.boxes), (config.blocks, config.threads)
        main = Launch(self.source, macros, self.name, *grid, arguments, config.shared_bytes, overlap=True)
        return (PACKING.launch(p, options.packed), main)


def _macros(tile: Tile, boxes: int) -> Macros:
    """The macros of a kernel variant."""
    common = channels_last.macros_of(False, Boxes(BOX.channels, boxes), tile.pixels, tile.filters)
    return common | {channels_last.TF32_MACRO: 1, "RESIDENT_WEIGHTS": 0, MIN_BLOCKS_MACRO: tile.resident}


def _stages(problem: ConvProblem, boxes: int) -> int:
    """The stages of the whole reduction."""
    return ceil_div(problem.filter_area * ceil_div(problem.c, pack_scaled.BOX_CHANNELS), boxes)
