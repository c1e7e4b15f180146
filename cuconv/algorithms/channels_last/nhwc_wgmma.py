"""Implicit GEMM with wgmma and tensor maps, for Hopper: channels-last tensors in FP16 or BF16, sums in FP32.

Blocks stay on their SM and compute one tile of pixels x filters after the other. `nhwc_wgmma.cu` has the kernel.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

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
    longest,
    stage_us,
)
from cuconv.algorithms.channels_last.pad_channels import VECTOR_CHANNELS, Operands
from cuconv.algorithms.common.listed import Forms
from cuconv.core.costs import constant
from cuconv.core.launch import Launch
from cuconv.core.problem import HALF_BYTES, ConvProblem, ceil_div
from cuconv.device import DeviceSpec

MIN_STAGES = 3
WARPGROUPS = 2
SMALL_SUMS = 64  # of a thread: up to these an SM has registers for two blocks
SMALL_PIXELS = 128
WRITTEN_BY_THREADS = 1.3  # how many times as long a call takes whose threads write the output


@dataclass(frozen=True, slots=True)
class Costs(StageCosts):
    """The constants of the cost model, in microseconds of what each says."""

    depth: float = constant("added latency for 64 channels of a stage")
    write_scalar: float = constant("added to the writing of 2**12 outputs where threads write them")


@dataclass(frozen=True, slots=True)
class Tile:
    """A block's tile: pixels, and filters of a warpgroup; filter_warpgroups of the two are over the filters."""

    pixels: int
    warpgroup_filters: int
    filter_warpgroups: int

    @property
    def filters(self) -> int:
        """Filters of the tile."""
        return self.warpgroup_filters * self.filter_warpgroups

    @property
    def sums(self) -> int:
        """Sums of a thread."""
        return self.pixels * self.filters // (WARPGROUPS * CONSUMER_THREADS)

    @property
    def most_resident(self) -> int:
        """Blocks that the registers of an SM hold without spills."""
        return 2 if self.sums <= SMALL_SUMS and self.pixels <= SMALL_PIXELS else 1

    @property
    def box_filters(self) -> int:
        """Filters of a box of the output."""
        return next(size for size in (64, 32, 16) if self.warpgroup_filters % size == 0)

    @property
    def output_bytes(self) -> int:
        """Shared memory of two boxes of output for each warpgroup, in bytes."""
        return WARPGROUPS * 2 * WARPGROUP_PIXELS * self.box_filters * HALF_BYTES

    def __str__(self) -> str:
        return f"{self.pixels}x{self.filters}"


TILES = (
    *(Tile(64, filters, 2) for filters in (16, 32, 48, 64, 96, 128)),
    *(Tile(128, filters, 1) for filters in (16, 32, 48, 64, 96, 128, 192, 256)),
    *(Tile(256, filters, 1) for filters in (32, 64, 96)),
)


@dataclass(frozen=True, slots=True)
class Config:
    """A launch configuration.

    boxes: those of a stage. keeps: whether a block's weights stay in shared memory. ring: stages of the ring.
    resident: blocks of an SM.
    """

    tile: Tile
    boxes: Boxes
    keeps: bool
    ring: int
    resident: int
    blocks: int
    shared_bytes: int
    workspace_bytes: int = 0

    threads = WARPGROUPS * CONSUMER_THREADS + PRODUCER_THREADS

    def __str__(self) -> str:
        kept = " weights=kept" if self.keeps else ""
        return f"{self.tile} boxes={self.boxes}{kept} stages={self.ring} blocks={self.blocks}"


class NhwcWgmma(ChannelsLast[Config, Costs]):
    """Implicit GEMM with wgmma and tensor maps in half precision, for Hopper."""

    source = Path(__file__).with_suffix(".cu")
    summary = "Implicit GEMM with wgmma and tensor maps in half precision, for Hopper; blocks stay for many tiles."
    costs_type = Costs

    def forms(self, problem: ConvProblem, config: Config, options: CallOptions) -> Forms:
        """The variant of a configuration, and that whose threads write where a tensor map could."""
        macros = _macros(problem, config.tile, config.boxes, config.keeps)
        by_threads = (1.0, macros | {"WHOLE": 0})
        if not channels_last.has_whole_rows(problem, options):
            return [by_threads]
        return [(1.0, macros | {"WHOLE": 1}), (WRITTEN_BY_THREADS, by_threads[1])]

    def configurations(self, problem: ConvProblem, device: DeviceSpec) -> list[Config]:
        """Every tile with all boxes, as many blocks as the SMs hold; weights that stay where blocks have many tiles."""
        forms = product(TILES, BOXES, (False, True))
        return [config for form in forms for config in _configs(problem, device, *form)]

    def main_us(self, problem: ConvProblem, device: DeviceSpec, config: Config, costs: Costs) -> float:
        """The device time in microseconds: the busiest SM's tiles, one after the other.

        What all SMs copy through the L2 cache, and the operands' way through device memory,
        hide behind all that, unless they take long.
        """
        p, tile, boxes = problem, config.tile, config.boxes
        tiles, stages = _tiles(p, tile), boxes.stages(p)
        blocks = ceil_div(tiles, min(config.blocks, device.sm_count))  # tiles of the busiest SM
        resident = min(config.resident, blocks)
        rows = tile.pixels + (0 if config.keeps else tile.filters)
        copied, kept = boxes.stage_bytes(rows), stages * boxes.stage_bytes(tile.filters) if config.keeps else 0
        depth = boxes.channels * boxes.count
        one_us = stage_us(
            costs, p, boxes, products=tile.pixels * max(tile.filters, 32 * tile.filter_warpgroups) * depth, rows=rows,
            ring=config.ring, step=costs.latency + costs.depth * depth / 64 + costs.box * (boxes.count - 1),
            busy=tiles / device.sm_count, resident=resident,
        )  # fmt: skip
        write = costs.write + (0 if p.group_filters % VECTOR_CHANNELS == 0 else costs.write_scalar)
        busy_us = ceil_div(blocks, resident) * (stages * one_us + resident * write * tile.pixels * tile.filters / 2**12)
        traffic_us = costs.traffic * (tiles * stages * copied + config.blocks * kept) / 2**20
        return costs.start + longest(busy_us, traffic_us, costs.memory * p.min_bytes / 2**20)

    def summation(self, config: Config) -> Hashable:
        """The channels of a box: they order the products of a sum."""
        return config.boxes.channels

    def main_launch(self, problem: ConvProblem, config: Config, options: CallOptions, operands: Operands) -> Launch:
        """The launch of the main kernel; operands: where it finds input and weight."""
        p, tile, boxes = problem, config.tile, config.boxes
        macros = channels_last.launched(self.source, p, self.forms(p, config, options))
        written = channels_last.output_map(p, tile.box_filters, options)
        pixels = channels_last.pixel_map(p, boxes, tile.pixels, operands)
        weights = channels_last.weight_map(p, boxes, tile.filters, operands)
        arguments = (
            pixels, weights,
            written if macros["WHOLE"] else weights,  # a map that is not used
            *channels_last.arguments_of(p, options, tile.filters), _tiles(p, tile),
            *channels_last.last_arguments(p, config.ring, options),
        )  # fmt: skip
        grid = (config.blocks, config.threads)
        return Launch(self.source, macros, self.name, *grid, arguments, config.shared_bytes, overlap=True)


def _macros(problem: ConvProblem, tile: Tile, boxes: Boxes, keeps: bool) -> Macros:
    """The macros of a kernel variant, without those of the element and of the way to write."""
    common = channels_last.macros_of(problem, boxes, tile.pixels, tile.warpgroup_filters, tile.filter_warpgroups)
    return common | {"RESIDENT_WEIGHTS": int(keeps), "MIN_BLOCKS_PER_SM": tile.most_resident}


def _tiles(problem: ConvProblem, tile: Tile) -> int:
    """The tiles of an output."""
    return ceil_div(problem.n * problem.out_pixels, tile.pixels) * channels_last.filter_tiles(problem, tile.filters)


def _configs(problem: ConvProblem, device: DeviceSpec, tile: Tile, boxes: Boxes, keeps: bool) -> Iterator[Config]:
    """The configurations of a tile: with one block on an SM, whose ring is deep, and with two.

    The blocks of weights that stay are a multiple of the tiles over the filters, so that each has the same filters.
    """
    stages, tiles = boxes.stages(problem), _tiles(problem, tile)
    filter_tiles = channels_last.filter_tiles(problem, tile.filters)
    kept = stages * (boxes.stage_bytes(tile.filters) + BARRIER_BYTES) if keeps else 0
    stage_bytes = boxes.stage_bytes(tile.pixels + (0 if keeps else tile.filters))
    for resident in range(1, 1 + min(tile.most_resident, ceil_div(tiles, device.sm_count))):
        blocks = min(tiles, resident * device.sm_count)
        if keeps:
            blocks = blocks // filter_tiles * filter_tiles
        ring = channels_last.stages_that_fit(stage_bytes, tile.output_bytes + kept, device, resident)
        if ring >= MIN_STAGES and blocks and not (keeps and tiles <= blocks):
            ring = min(ring, stages * ceil_div(tiles, blocks))
            shared = ring * (stage_bytes + 2 * BARRIER_BYTES) + tile.output_bytes + kept
            yield Config(tile, boxes, keeps, ring, resident, blocks, shared)
