"""Implicit GEMM with wgmma and tensor maps, channels last, for small outputs: a cluster shares a tile's reduction.

`nhwc_split.cu` has the kernel.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cache
from math import hypot, log2
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
from cuconv.algorithms.channels_last.pad_channels import Operands
from cuconv.algorithms.common.divider import packed_divisor
from cuconv.core.costs import constant
from cuconv.core.launch import Launch
from cuconv.core.problem import FLOAT_BYTES, HALF_BYTES, ConvProblem, UnsupportedProblem, ceil_div
from cuconv.device import H200, DeviceSpec

MIN_STAGES = 3
MOST_RESIDENT = 2  # blocks that the registers of an SM hold
MAX_BLOCKS_PER_SM = 4  # beyond that many the outputs are not few
SPLITS = (1, 2, 4, 8, 16)


@dataclass(frozen=True, slots=True)
class Costs(StageCosts):
    """The constants of the cost model, in microseconds; each says for what."""

    end: float = constant("a thread's time to finish 2**5 outputs")
    exchange: float = constant("a block's time to exchange 2**12 sums within a cluster")
    exchange_blocks: float = constant("added for each doubling of a cluster")
    warpgroup_sums: float = constant("a thread's time to add 2**5 sums of another warpgroup of the block")


@dataclass(frozen=True, slots=True)
class Tile:
    """A block's tile of pixels x filters; warpgroup_split_k warpgroups share the reduction for each 64 pixels."""

    pixels: int
    filters: int
    warpgroup_split_k: int

    @property
    def threads(self) -> int:
        """Threads of the block."""
        warpgroups = self.pixels // WARPGROUP_PIXELS * self.warpgroup_split_k
        return warpgroups * CONSUMER_THREADS + PRODUCER_THREADS

    def sums_bytes(self, split_k: int) -> int:
        """Shared memory for the sums from a cluster's blocks and the block's other warpgroups, in bytes."""
        parts = self.warpgroup_split_k - 1 + (split_k > 1)
        return FLOAT_BYTES * self.pixels * self.filters * parts

    def __str__(self) -> str:
        return f"{self.pixels}x{self.filters} warpgroups={self.pixels // WARPGROUP_PIXELS}x{self.warpgroup_split_k}"


TILES = (
    Tile(64, 16, 1),
    Tile(64, 32, 1),
    Tile(64, 32, 2),
    Tile(64, 64, 1),
    Tile(64, 64, 2),
    Tile(64, 128, 1),
    Tile(128, 64, 1),
    Tile(128, 128, 1),
)


@dataclass(frozen=True, slots=True)
class Config:
    """A launch configuration: the tile, the blocks of a cluster, the boxes of a stage, and the stages of the ring."""

    tile: Tile
    split_k: int
    boxes: Boxes
    stages: int
    resident: int
    blocks: int
    shared_bytes: int
    workspace_bytes: int = 0

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.tile.threads

    @property
    def variant(self) -> tuple[Tile, int, Boxes]:
        """The parts of a configuration by which its kernel variant is chosen."""
        return self.tile, self.split_k, self.boxes

    def __str__(self) -> str:
        return f"{self.tile} boxes={self.boxes} stages={self.stages} split_k={self.split_k} resident={self.resident}"


class NhwcSplit(ChannelsLast[Config, Costs]):
    """Implicit GEMM with wgmma and tensor maps, channels last, whose reduction a cluster shares, for Hopper."""

    source = Path(__file__).with_suffix(".cu")
    summary = "Implicit GEMM with wgmma and tensor maps, channels last, for Hopper; clusters share the reduction."
    costs_type = Costs

    def row_of(self, variant: tuple[Any, ...], grouped: bool) -> Macros:
        """The row of the list for a tile, the blocks of a cluster, and the boxes."""
        tile, split_k, boxes = variant
        common = channels_last.macros_of(grouped, boxes, tile.pixels, tile.filters)
        more = {"SPLIT_K": split_k, "WARPGROUP_SPLIT_K": tile.warpgroup_split_k, "MIN_BLOCKS_PER_SM": MOST_RESIDENT}
        return common | more

    def configurations(self, problem: ConvProblem, device: DeviceSpec) -> list[Config]:
        """Every tile, cluster and stage with few blocks, each of whose warpgroups has a stage at least."""
        p, found = problem, []
        all_stages = {boxes: boxes.stages(p) for boxes in BOXES}
        pixels = p.n * p.out_pixels
        tiles = {tile: ceil_div(pixels, tile.pixels) * channels_last.filter_tiles(p, tile.filters) for tile in TILES}
        for tile, split_k, boxes in _FORMS:
            blocks = tiles[tile] * split_k
            deep = split_k * tile.warpgroup_split_k <= all_stages[boxes]
            if not deep or split_k > device.max_cluster_blocks or blocks > MAX_BLOCKS_PER_SM * device.sm_count:
                continue
            most = ceil_div(ceil_div(all_stages[boxes], split_k), tile.warpgroup_split_k) * tile.warpgroup_split_k
            rings = _rings(tile, split_k, boxes, device)[: ceil_div(blocks, device.sm_count)]
            for resident, ring in enumerate(rings, 1):
                stages = min(ring, max(most, 2 * tile.warpgroup_split_k))
                shared = stages * (boxes.stage_bytes(tile.pixels + tile.filters) + 2 * BARRIER_BYTES)
                shared += tile.sums_bytes(split_k) + BARRIER_BYTES
                found.append(Config(tile, split_k, boxes, stages, resident, blocks, shared))
        if not found:
            raise UnsupportedProblem(
                f"{p.label}: {self.name} computes outputs of up to {MAX_BLOCKS_PER_SM} blocks an SM: use 'auto'"
            )
        return found

    def main_us(self, problem: ConvProblem, device: DeviceSpec, config: Config, costs: Costs) -> float:
        """The device time in microseconds: waves of as many clusters as the SMs hold.

        Copies of all SMs through the L2 cache, and the operands' way through device memory, overlap with them.
        """
        p, tile, boxes, split_k = problem, config.tile, config.boxes, config.split_k
        at_a_time = max(1, int(device.clusters_at_a_time(split_k)))
        blocks = ceil_div(config.blocks // split_k, at_a_time)  # on the busiest SM
        resident = min(config.resident, blocks)
        stages, rows = ceil_div(boxes.stages(p), split_k), tile.pixels + tile.filters
        stage = stage_times(
            costs, p, boxes,
            products=channels_last.products_of(boxes, tile.pixels, tile.filters), rows=rows,
            absent=channels_last.absent_filters(p, tile.filters), operands=2, ring=config.stages, stages=stages,
            step=costs.latency / tile.warpgroup_split_k,
            busy=config.blocks / device.sm_count, resident=resident,
        )  # fmt: skip
        shares = tile.warpgroup_split_k
        # The sums of a block, and of a thread before warpgroups share them. Blocks of an SM end side by side.
        block_sums, thread_sums = tile.pixels * tile.filters / 2**12, tile.filters / 2 / 2**5
        write = costs.write * p.element_bytes / HALF_BYTES + costs.write_single * (p.group_filters % 2)
        ends_us = block_sums * (write / split_k + costs.exchange * (split_k > 1))
        ends_us += thread_sums / shares * (costs.end / split_k + costs.warpgroup_sums * (shares - 1))
        ends_us += costs.exchange_blocks * log2(split_k)
        busy_us = ceil_div(blocks, resident) * (stages * stage.each + ends_us) + stage.first - stage.each
        traffic_us = costs.traffic * config.blocks * stages * boxes.stage_bytes(rows) / 2**20
        return costs.start + hypot(busy_us, traffic_us, costs.memory * p.min_bytes / 2**20)

    def summation(self, config: Config) -> Hashable | None:
        """None: the blocks of a cluster, and so the order of a sum, depend on the batch."""
        return None

    def main_launch(self, problem: ConvProblem, config: Config, options: CallOptions, operands: Operands) -> Launch:
        """The launch of the main kernel; operands: where it finds input and weight."""
        p, tile, boxes = problem, config.tile, config.boxes
        macros = self.row_of(config.variant, p.groups > 1) | channels_last.type_macro(p)
        pixels = channels_last.pixel_map(p, boxes, tile.pixels, operands)
        weights = channels_last.weight_map(p, boxes, tile.filters, operands)
        arguments = (
            pixels, weights,
            *channels_last.arguments_of(p, options, tile.filters),
            packed_divisor(p.filter_area), packed_divisor(p.kw),
            *channels_last.last_arguments(p, config.stages, options),
        )  # fmt: skip
        grid = (config.blocks, config.threads)
        return Launch(self.source, macros, self.name, *grid, arguments, config.shared_bytes, overlap=True)


@cache
def _rings(tile: Tile, split_k: int, boxes: Boxes, device: DeviceSpec) -> list[int]:
    """The stages of the ring of a block that has an SM for itself, and of one that shares it with another.

    Warpgroups that share the reduction have as many stages each, two at least.
    """
    stage_bytes, other_bytes = boxes.stage_bytes(tile.pixels + tile.filters), tile.sums_bytes(split_k) + BARRIER_BYTES
    shares = tile.warpgroup_split_k
    found = [channels_last.stages_that_fit(stage_bytes, other_bytes, device, blocks, shares) for blocks in (1, 2)]
    return [ring for ring in found if ring >= max(MIN_STAGES, 2 * shares)]


_FORMS = [
    (tile, split_k, boxes)
    for tile in TILES
    for split_k in SPLITS
    for boxes in BOXES
    if _rings(tile, split_k, boxes, H200) and tile.pixels * tile.filters // 4 >= split_k * CONSUMER_THREADS
]
