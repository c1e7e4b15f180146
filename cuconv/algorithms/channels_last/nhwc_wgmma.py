"""Implicit GEMM with wgmma and tensor maps, for Hopper: channels-last tensors in FP16, BF16 or TF32, sums in FP32.

Blocks stay on their SM and compute one tile of pixels x filters after the other. `nhwc_wgmma.cu` has the kernel.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from itertools import product
from math import hypot
from pathlib import Path
from typing import Any

from cuconv.algorithms.base import CallOptions, Macros
from cuconv.algorithms.channels_last import channels_last
from cuconv.algorithms.channels_last.channels_last import (
    BARRIER_BYTES,
    BOXES,
    CONSUMER_THREADS,
    PRODUCER_THREADS,
    WARPGROUP_PIXELS,
    Boxes,
    ChannelsLast,
    StageCosts,
    stage_times,
)
from cuconv.algorithms.channels_last.pad_channels import VECTOR_CHANNELS, Operands
from cuconv.core.costs import constant
from cuconv.core.launch import RESIDUAL, Launch
from cuconv.core.problem import HALF_BYTES, ConvProblem, ceil_div
from cuconv.device import DeviceSpec

MIN_STAGES = 3
MAX_BOX_FILTERS = 64  # in an output box
SMALL_SUMS = 64  # per thread: up to these an SM has registers for two blocks
SMALL_PIXELS = 128
THREE_WARPGROUPS = 192  # pixels of a tile
WHOLE_MACRO, MIN_BLOCKS_MACRO = "WHOLE", "MIN_BLOCKS_PER_SM"


@dataclass(frozen=True, slots=True)
class Costs(StageCosts):
    """The constants of the cost model, in microseconds; each says for what."""

    write_box: float = constant("added to the writing of 2**12 outputs for each box that 64 filters take beyond one")
    write_pair: float = constant("added to the writing of 2**12 outputs where threads write two at a time")


@dataclass(frozen=True, slots=True)
class Tile:
    """A block's tile: pixels, and filters of a warpgroup; filter_warpgroups of its warpgroups are over the filters."""

    pixels: int
    warpgroup_filters: int
    filter_warpgroups: int

    @property
    def warpgroups(self) -> int:
        """The warpgroups that multiply."""
        return 3 if self.pixels == THREE_WARPGROUPS else 2

    @property
    def threads(self) -> int:
        """Threads of a block. Beside three warpgroups the producers are a whole one, to give them registers."""
        return self.warpgroups * CONSUMER_THREADS + (CONSUMER_THREADS if self.warpgroups == 3 else PRODUCER_THREADS)

    @property
    def filters(self) -> int:
        """Filters of the tile."""
        return self.warpgroup_filters * self.filter_warpgroups

    @property
    def sums(self) -> int:
        """Sums of a thread."""
        return self.pixels * self.filters // (self.warpgroups * CONSUMER_THREADS)

    def most_resident(self, is_half: bool) -> int:
        """Blocks that the registers of an SM hold without spills; in TF32, pairs of outputs take twice as many."""
        return 2 if self.sums <= (SMALL_SUMS if is_half else SMALL_SUMS // 2) and self.pixels <= SMALL_PIXELS else 1

    @property
    def box_filters(self) -> int:
        """Filters of a box of the output."""
        return next(size for size in (MAX_BOX_FILTERS, 32, 16) if self.warpgroup_filters % size == 0)

    @property
    def box_bytes(self) -> int:
        """Bytes of a box of the output, or of a residual."""
        return WARPGROUP_PIXELS * self.box_filters * HALF_BYTES

    @property
    def output_bytes(self) -> int:
        """Shared memory of two boxes of output for each warpgroup, in bytes."""
        return self.warpgroups * 2 * self.box_bytes

    def residual_stages(self, stage_bytes: int) -> int:
        """The stages of the ring, of so many bytes, that the boxes of a residual take."""
        return ceil_div(self.pixels * self.filters * HALF_BYTES // self.box_bytes, stage_bytes // self.box_bytes)

    def __str__(self) -> str:
        return f"{self.pixels}x{self.filters}"


TILES = (
    *(Tile(64, filters, 2) for filters in (16, 32, 48, 64, 96, 128)),
    *(Tile(128, filters, 1) for filters in (16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 192, 256)),
    *(Tile(192, filters, 1) for filters in (32, 64, 80, 96, 112, 128, 144, 160, 192)),
    *(Tile(256, filters, 1) for filters in (32, 64, 96, 112, 128)),
)


@dataclass(frozen=True, slots=True)
class Config:
    """A launch configuration.

    boxes: those of a stage. keeps: whether a block's weights stay in shared memory. ring: stages of the ring, which has
    room for `spare` more where a residual takes some. resident: blocks of an SM.
    """

    tile: Tile
    boxes: Boxes
    keeps: bool
    ring: int
    spare: int
    resident: int
    blocks: int
    shared_bytes: int
    workspace_bytes: int = 0

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.tile.threads

    @property
    def stage_bytes(self) -> int:
        """Shared memory of a stage of the ring in bytes."""
        return self.boxes.stage_bytes(self.tile.pixels + (0 if self.keeps else self.tile.filters))

    @property
    def variant(self) -> tuple[Tile, Boxes, bool]:
        """The parts of a configuration by which its kernel variant is chosen."""
        return self.tile, self.boxes, self.keeps

    def __str__(self) -> str:
        kept = " weights=kept" if self.keeps else ""
        return f"{self.tile} boxes={self.boxes}{kept} stages={self.ring} blocks={self.blocks}"


class NhwcWgmma(ChannelsLast[Config, Costs]):
    """Implicit GEMM with wgmma and tensor maps of tensors in channels last, for Hopper."""

    source = Path(__file__).with_suffix(".cu")
    summary = "Implicit GEMM with wgmma and tensor maps, channels last, for Hopper; blocks stay for many tiles."
    costs_type = Costs

    def of_row(self, macros: Macros) -> list[Macros]:
        """The kernel variants that a row of the list stands for: for each type, and for both ways to write."""
        *halves, tf32 = super().of_row(macros)
        tile = Tile(macros["PIXELS"], macros["WARPGROUP_FILTERS"], macros["FILTER_WARPGROUPS"])
        written = [one | {WHOLE_MACRO: whole} for one in halves for whole in (0, 1)]
        return [*written, tf32 | {WHOLE_MACRO: 0, MIN_BLOCKS_MACRO: tile.most_resident(is_half=False)}]

    def row_of(self, variant: tuple[Any, ...], grouped: bool) -> Macros:
        """The row of the list for a tile, its boxes, and whether weights stay."""
        tile, boxes, keeps = variant
        common = channels_last.macros_of(grouped, boxes, tile.pixels, tile.warpgroup_filters, tile.filter_warpgroups)
        return common | {"RESIDENT_WEIGHTS": int(keeps), MIN_BLOCKS_MACRO: tile.most_resident(is_half=True)}

    def configurations(self, problem: ConvProblem, device: DeviceSpec) -> list[Config]:
        """Every tile with all boxes, as many blocks as the SMs hold; weights that stay where blocks have many tiles."""
        stages = [(boxes, boxes.stages(problem)) for boxes in BOXES]
        found: list[Config] = []
        for tile in TILES:
            tiles, filter_tiles = _tiles(problem, tile), channels_last.filter_tiles(problem, tile.filters)
            for (boxes, reduction), keeps in product(stages, (False, True)):
                most = min(tile.most_resident(problem.is_half), ceil_div(tiles, device.sm_count))
                found += _configs(device, tile, boxes, keeps, reduction, tiles, filter_tiles, most)
        return found

    def main_us(self, problem: ConvProblem, device: DeviceSpec, config: Config, costs: Costs) -> float:
        """The device time in microseconds: the busiest SM's tiles, one after the other.

        Copies of all SMs through the L2 cache, and the operands' way through device memory, overlap with them.
        """
        p, tile, boxes = problem, config.tile, config.boxes
        tiles, stages = _tiles(p, tile), boxes.stages(p)
        blocks = ceil_div(tiles, min(config.blocks, device.sm_count))  # tiles of the busiest SM
        resident = min(config.resident, blocks)
        rows = tile.pixels + (0 if config.keeps else tile.filters)
        stage = stage_times(
            costs, p, boxes,
            products=channels_last.products_of(boxes, tile.pixels, tile.warpgroup_filters, tile.filter_warpgroups),
            rows=rows, absent=0 if config.keeps else channels_last.absent_filters(p, tile.filters),
            operands=1 if config.keeps else 2, ring=config.ring,
            stages=stages * ceil_div(blocks, resident), step=costs.latency,
            busy=tiles / device.sm_count, resident=resident,
        )  # fmt: skip
        ends_us = resident * tile.pixels / 2**12 * _filter_us(costs, p, tile)
        busy_us = ceil_div(blocks, resident) * (stages * stage.each + ends_us) + stage.first - stage.each
        kept = stages * tile.filters if config.keeps else 0
        busy_us += kept * stage.row
        copied = tiles * stages * boxes.stage_bytes(rows) + config.blocks * kept * boxes.stage_bytes(1)
        return costs.start + hypot(busy_us, costs.traffic * copied / 2**20, costs.memory * p.min_bytes / 2**20)

    def summation(self, config: Config) -> Hashable:
        """The channels of a box: they order the products of a sum."""
        return config.boxes.channels

    def main_launch(self, problem: ConvProblem, config: Config, options: CallOptions, operands: Operands) -> Launch:
        """The launch of the main kernel; operands: where it finds input and weight."""
        p, tile, boxes = problem, config.tile, config.boxes
        whole = channels_last.has_whole_rows(p, options)
        macros = self.row_of(config.variant, p.groups > 1) | channels_last.type_macro(p) | {WHOLE_MACRO: int(whole)}
        macros |= {MIN_BLOCKS_MACRO: tile.most_resident(p.is_half)}
        adds = whole and options.residual
        more = min(config.spare, tile.residual_stages(config.stage_bytes)) if adds else 0
        pixels = channels_last.pixel_map(p, boxes, tile.pixels, operands)
        weights = channels_last.weight_map(p, boxes, tile.filters, operands)
        # Weights stand for maps that are not used.
        written = channels_last.output_map(p, tile.box_filters, options.output_planes(p)) if whole else weights
        added = channels_last.output_map(p, tile.box_filters, p.m, RESIDUAL) if adds else weights
        arguments = (
            pixels, weights, written, added,
            *channels_last.arguments_of(p, options, tile.filters), _tiles(p, tile),
            *channels_last.last_arguments(p, config.ring + more, options),
        )  # fmt: skip
        shared = config.shared_bytes + more * (config.stage_bytes + 2 * BARRIER_BYTES)
        grid = (config.blocks, config.threads)
        return Launch(self.source, macros, self.name, *grid, arguments, shared, overlap=True)


def _filter_us(costs: Costs, problem: ConvProblem, tile: Tile) -> float:
    """The time of an SM to write 2**12 pixels of a tile in microseconds; threads skip filters that do not exist."""
    filters, write = problem.group_filters, costs.write * problem.element_bytes / HALF_BYTES
    if filters % VECTOR_CHANNELS == 0:
        return (write + costs.write_box * (MAX_BOX_FILTERS / tile.box_filters - 1)) * tile.filters
    one_us = write + (costs.write_single if filters % 2 else costs.write_pair)
    return one_us * filters / ceil_div(filters, tile.filters)


def _tiles(problem: ConvProblem, tile: Tile) -> int:
    """The tiles of an output."""
    return ceil_div(problem.n * problem.out_pixels, tile.pixels) * channels_last.filter_tiles(problem, tile.filters)


def _configs(
    device: DeviceSpec, tile: Tile, boxes: Boxes, keeps: bool, stages: int, tiles: int, filter_tiles: int, most: int
) -> Iterator[Config]:
    """The configurations of a tile: with one block on an SM, whose ring is deep, and with two.

    The blocks of weights that stay are a multiple of the tiles over the filters, so that each has the same filters.
    stages: those of the reduction. tiles, filter_tiles: those of the output, and those over the filters. most: blocks
    of an SM.
    """
    kept = stages * (boxes.stage_bytes(tile.filters) + BARRIER_BYTES) if keeps else 0
    if kept > device.shared_bytes_per_block:
        return
    stage_bytes = boxes.stage_bytes(tile.pixels + (0 if keeps else tile.filters))
    other_bytes = tile.output_bytes + kept
    for resident in range(1, 1 + most):
        blocks = min(tiles, resident * device.sm_count)
        if keeps:
            blocks = blocks // filter_tiles * filter_tiles
        ring = channels_last.stages_that_fit(stage_bytes, other_bytes, device, resident)
        if ring >= MIN_STAGES and blocks and not (keeps and tiles <= blocks):
            used = min(ring, stages * ceil_div(tiles, blocks))
            shared = used * (stage_bytes + 2 * BARRIER_BYTES) + other_bytes
            yield Config(tile, boxes, keeps, used, ring - used, resident, blocks, shared)
