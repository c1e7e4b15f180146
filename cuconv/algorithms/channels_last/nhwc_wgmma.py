"""Implicit GEMM with wgmma and tensor maps, for Hopper: channels-last tensors in FP16 or BF16, sums in FP32.

Blocks stay on their SM and compute one tile of pixels x filters after the other. `nhwc_wgmma.cu` has the kernel.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cache
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
)
from cuconv.algorithms.common.limits import HOPPER_ARCH
from cuconv.core.costs import constant
from cuconv.core.elementwise import norm
from cuconv.core.launch import Launch
from cuconv.core.problem import HALF_BYTES, ConvProblem, ceil_div
from cuconv.device import H200, DeviceSpec

MIN_STAGES = 3
WARPGROUPS = 2
SMALL_SUMS = 64  # of a thread: up to these an SM has registers for two blocks


@dataclass(frozen=True, slots=True)
class Costs:
    """The constants of the cost model, in microseconds of what each says."""

    start: float = constant("a launch, and the first tile's first stage")
    tile: float = constant("a tile from start to end, without its stages")
    latency: float = constant("a stage's steps of a producer and a consumer")
    box: float = constant("added for each box of a stage but the first")
    multiply: float = constant("an SM's time for 2**20 multiply-adds")
    fetch: float = constant("an SM's time to copy 2**14 bytes of a stage")
    traffic: float = constant("2**20 bytes that all SMs copy, through the L2 cache")
    write: float = constant("an SM's time to write 2**12 outputs")
    write_scalar: float = constant("added where threads write them")
    memory: float = constant("2**20 bytes of operands through device memory")


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
    *(Tile(256, filters, 1) for filters in (32, 64, 96, 128)),
)


@dataclass(frozen=True, slots=True)
class Config:
    """A launch configuration: the tile, the boxes of a stage, the stages of the ring, and the blocks of an SM."""

    tile: Tile
    boxes: Boxes
    stages: int
    resident: int
    blocks: int
    shared_bytes: int

    threads = WARPGROUPS * CONSUMER_THREADS + PRODUCER_THREADS
    workspace_bytes = 0

    def __str__(self) -> str:
        return f"{self.tile} boxes={self.boxes} stages={self.stages} blocks={self.blocks}"


class NhwcWgmma(ChannelsLast[Config, Costs]):
    """Implicit GEMM with wgmma and tensor maps in half precision, for Hopper."""

    source = Path(__file__).with_suffix(".cu")
    summary = "Implicit GEMM with wgmma and tensor maps in half precision, for Hopper; blocks stay for many tiles."
    costs_type = Costs

    def variants(self, arch: str) -> list[Macros]:
        """Every tile with all boxes, for each element and way to write; none without Hopper's instructions."""
        if arch != HOPPER_ARCH:
            return []
        return [
            {"BF16": bf16, "WHOLE": whole, **_macros(tile, boxes, *_ring(tile, boxes, H200))}
            for tile, boxes in _FORMS for bf16 in (0, 1) for whole in (0, 1)
        ]  # fmt: skip

    def candidates(self, problem: ConvProblem, device: DeviceSpec) -> list[Config]:
        """Every tile with all boxes, as many blocks as the SMs hold."""
        channels_last.check(problem, device)
        found = []
        for tile, boxes in _FORMS:
            tiles = ceil_div(problem.n * problem.out_pixels, tile.pixels) * ceil_div(problem.m, tile.filters)
            stages, resident = _ring(tile, boxes, device)
            shared = stages * (boxes.stage_bytes(tile.pixels, tile.filters) + 2 * BARRIER_BYTES) + tile.output_bytes
            found.append(Config(tile, boxes, stages, resident, min(tiles, resident * device.sm_count), shared))
        return found

    def estimate_us(self, problem: ConvProblem, device: DeviceSpec, config: Config, costs: Costs) -> float:
        """The device time in microseconds: the busiest SM's tiles, one after the other.

        A stage takes the longest of what its products, its copies and its steps take. Copies of all SMs share the L2
        cache, and the operands' way through device memory hides behind all that, unless both take long.
        """
        p, tile, boxes = problem, config.tile, config.boxes
        filter_tiles = ceil_div(p.m, tile.filters)
        tiles = ceil_div(p.n * p.out_pixels, tile.pixels) * filter_tiles
        blocks = ceil_div(tiles, device.sm_count)  # tiles of the busiest SM
        resident = min(config.resident, blocks)
        stages = boxes.stages(p)
        stage_bytes = boxes.stage_bytes(tile.pixels, tile.filters)
        depth = boxes.channels * boxes.count
        work = costs.multiply * tile.pixels * max(tile.filters, 32 * tile.filter_warpgroups) * depth / 2**20
        fetch = costs.fetch * stage_bytes / 2**14
        latency = (costs.latency + costs.box * (boxes.count - 1)) / resident
        whole = p.m % channels_last.VECTOR_CHANNELS == 0
        write = (costs.write + (0 if whole else costs.write_scalar)) * tile.pixels * tile.filters / 2**12
        stage_us = norm(norm(work, fetch), latency)
        busy_us = blocks * (stages * stage_us + write) + ceil_div(blocks, resident) * costs.tile
        traffic_us = costs.traffic * tiles * stages * stage_bytes / 2**20
        us: float = costs.start + norm(norm(busy_us, traffic_us), costs.memory * p.min_bytes / 2**20)
        return us

    def summation(self, config: Config) -> Hashable:
        """The channels of a box: they order the products of a sum."""
        return config.boxes.channels

    def kernels(self, problem: ConvProblem, config: Config, options: CallOptions) -> tuple[Launch, ...]:
        """The launch of the one kernel, which overlaps with the kernel ahead and waits for it itself."""
        p, tile, boxes = problem, config.tile, config.boxes
        whole = channels_last.has_whole_rows(p, options)
        filter_tiles = ceil_div(p.m, tile.filters)
        tiles = ceil_div(p.n * p.out_pixels, tile.pixels) * filter_tiles
        macros = _macros(tile, boxes, config.stages, config.resident)
        macros |= {"BF16": channels_last.is_bf16(p), "WHOLE": int(whole)}
        written = channels_last.output_map(p, tile.box_filters, options)
        arguments = (
            channels_last.pixel_map(p, boxes, tile.pixels), channels_last.weight_map(p, boxes, tile.filters),
            written if whole else channels_last.weight_map(p, boxes, tile.filters),  # a map that is not used
            *channels_last.arguments_of(p, options), filter_tiles, tiles,
            *channels_last.dividers_of(p, filter_tiles), *channels_last.flags_of(p, options),
        )  # fmt: skip
        grid = (config.blocks, config.threads)
        return (Launch(self.source, macros, self.name, *grid, arguments, config.shared_bytes, overlap=True),)


def _macros(tile: Tile, boxes: Boxes, stages: int, resident: int) -> Macros:
    """The macros of a kernel variant, without those of the element and of the way to write."""
    common = channels_last.macros_of(boxes, tile.pixels, tile.warpgroup_filters, tile.filter_warpgroups, stages)
    return common | {"MIN_BLOCKS_PER_SM": resident}


@cache
def _ring(tile: Tile, boxes: Boxes, device: DeviceSpec) -> tuple[int, int]:
    """The stages of a ring, and the blocks that an SM holds: two where registers and three stages of each allow it."""
    stage_bytes = boxes.stage_bytes(tile.pixels, tile.filters)
    for resident in (2, 1):
        stages = channels_last.stages_that_fit(stage_bytes, tile.output_bytes, device, resident)
        if stages >= MIN_STAGES and (resident == 1 or tile.sums <= SMALL_SUMS):
            break
    return stages, resident


_FORMS = [(tile, boxes) for tile in TILES for boxes in BOXES if _ring(tile, boxes, H200)[0] >= MIN_STAGES]
