"""Convolution with groups of few channels in half precision and channels last, by mma.sync on windows of the input.

A block computes tiles of the output for the same groups, whose weights it keeps in shared memory. A tensor map copies
the window of a tile into a ring of stages. `nhwc_grouped.cu` has the kernel.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path

from cuconv.algorithms.base import CallOptions, Macros
from cuconv.algorithms.channels_last.channels_last import BARRIER_BYTES, BF16_MACRO, VECTOR_BYTES, FusesAll
from cuconv.algorithms.channels_last.pad_channels import VECTOR_CHANNELS
from cuconv.algorithms.channels_last.vector_windows import check_window_sizes, reach, window_map
from cuconv.algorithms.common.divider import packed_divisor
from cuconv.algorithms.common.limits import HOPPER_ARCH, MAX_BOX, require_fit, require_hopper
from cuconv.core.costs import constant
from cuconv.core.elementwise import norm
from cuconv.core.launch import BIAS, OUTPUT, RESIDUAL, WEIGHT, Launch
from cuconv.core.problem import BF16, FLOAT_BYTES, ConvProblem, UnsupportedProblem, ceil_div
from cuconv.device import REGISTERS_PER_SM, THREADS_PER_SM, DeviceSpec

GROUP_CHANNELS = (2, 4, 8, 16, 32)
VECTORS = (8, 4)  # a channel block has so many: a row of the swizzle's 128 or 64 bytes
THREADS = (256, 128)
TILE_COLUMNS, TILE_PIXELS = (8, 16, 32), (64, 128, 256)
MMA_PIXELS = 16
M_TILES = {1: 4, 2: 2, 4: 2}  # a warp's, by the vectors of a group
# The most registers per thread, by the vectors of a group, and whether groups share one.
REGISTERS = {(1, 0): 64, (2, 0): 64, (4, 0): 104, (1, 1): 80}
MAX_STAGES = 4
STAGE_ALIGNMENT = 1024  # bytes, after which the swizzle repeats
MAX_TAPS = 1024


@dataclass(frozen=True, slots=True)
class Costs:
    """The constants of the cost model, in microseconds; each says for what."""

    start: float = constant("a launch, and a block from start to end, without its tiles")
    weights: float = constant("a block's time to load 2**4 vectors of weights a thread")
    copy: float = constant("the latency of the copy of a window")
    step: float = constant("a warp's latency of two chunks")
    multiply: float = constant("an SM's time for 2**7 times two chunks of 16 pixels")
    write: float = constant("an SM's time to write 2**10 vectors")
    pixel: float = constant("an SM's time to copy 2**7 pixels of windows")
    memory: float = constant("2**20 bytes of operands through device memory")


@dataclass(frozen=True, slots=True)
class Tile:
    """The output pixels of a tile, and the rows and columns of its window."""

    rows: int
    columns: int
    window_rows: int
    window_columns: int

    @property
    def window(self) -> int:
        """The input pixels of the tile."""
        return self.window_rows * self.window_columns

    def stage_bytes(self, vectors: int) -> int:
        """Shared memory of a stage in bytes, with so many vectors of each pixel."""
        return ceil_div(VECTOR_BYTES * vectors * self.window, STAGE_ALIGNMENT) * STAGE_ALIGNMENT

    def counts(self, problem: ConvProblem) -> tuple[int, int, int]:
        """The tiles of an output: images, and tiles down and along each."""
        p = problem
        return p.n, ceil_div(p.out_h, self.rows), ceil_div(p.out_w, self.columns)

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}"


@dataclass(frozen=True, slots=True)
class Config:
    """A launch configuration: the tile, the vectors and threads of a block, and the stages of the ring.

    turns: tiles of a block, one after the other.
    """

    threads: int
    vectors: int
    tile: Tile
    stages: int
    channel_blocks: int
    turns: int
    blocks: int
    shared_bytes: int
    workspace_bytes: int = 0

    def __str__(self) -> str:
        return f"tile={self.tile} vectors={self.vectors} threads={self.threads} stages={self.stages} grid={self.blocks}"


class NhwcGrouped(FusesAll[Config, Costs]):
    """Groups of 2 to 32 channels, and as many filters, in half precision and channels last."""

    source = Path(__file__).with_suffix(".cu")
    summary = "Groups of 2 to 32 channels in half precision and channels last, by mma.sync."
    costs_type = Costs

    def variants(self, arch: str) -> list[Macros]:
        """All kernel variants; none without Hopper, for which alone they are written."""
        if arch != HOPPER_ARCH:
            return []
        choices = product(VECTORS, REGISTERS, (0, 1))
        return [_macros(vectors, *kind) | {BF16_MACRO: bf16} for vectors, kind, bf16 in choices]

    def candidates(self, problem: ConvProblem, device: DeviceSpec) -> list[Config]:
        """Tiles of every shape and size; raises UnsupportedProblem where there is none."""
        require_hopper(problem, device)
        _check(problem)
        tiles = {tile for shape in product(TILE_PIXELS, TILE_COLUMNS) if (tile := _tile(problem, *shape))}
        sizes = product(sorted(tiles, key=str), VECTORS, THREADS)
        found = [_config(problem, device, *one) for one in sizes if _has_warps(problem, *one[1:])]
        return require_fit([*filter(None, found)], problem, device, "nhwc_grouped")

    def estimate_us(self, problem: ConvProblem, device: DeviceSpec, config: Config, costs: Costs) -> float:
        """The device time in microseconds, by the cost model with the given constants.

        Five times overlap after the first copy: the latency of a block's tiles, and an SM's products, stores and
        copies, and device memory. A tile takes at least the latency of a copy divided by the stages, if the ring is
        filled more than once.
        """
        p, tile, group_vectors = problem, config.tile, _group_vectors(problem)
        groups = config.vectors // group_vectors
        weight_vectors = VECTOR_CHANNELS * config.vectors * p.filter_area * group_vectors
        pixels, steps = tile.rows * tile.columns, ceil_div(p.filter_area * group_vectors, 2)
        weights_us = costs.weights * weight_vectors / config.threads / 2**4
        passes = ceil_div(pixels * groups, config.threads // 32 * MMA_PIXELS * M_TILES[group_vectors])
        waiting_us = costs.copy / config.stages if config.stages < config.turns else 0.0
        latency_us = config.turns * max(passes * steps * costs.step, waiting_us)
        tiles = config.turns * ceil_div(config.blocks, device.sm_count)
        # A load of pixels counts as much as their products with eight filters.
        products = steps * ceil_div(pixels, MMA_PIXELS) * groups * (1 + group_vectors) / 2
        issue_us = tiles * costs.multiply * products / 2**7
        write_us = tiles * costs.write * pixels * config.vectors / 2**10
        copy_us = tiles * costs.pixel * tile.window * config.vectors / VECTORS[0] / 2**7
        memory_us = costs.memory * p.min_bytes / 2**20
        return float(costs.start + weights_us + costs.copy + norm(latency_us, issue_us, write_us, copy_us, memory_us))

    def summation(self, config: Config) -> Hashable:
        """An empty tuple: each sum is one chain in the order of the filter positions."""
        return ()

    def kernels(self, problem: ConvProblem, config: Config, options: CallOptions) -> tuple[Launch, ...]:
        """The launch of the one kernel, which waits for the kernel ahead itself."""
        p, tile = problem, config.tile
        images, down, along = tile.counts(p)
        paired = options.aligned and options.output_planes(p) % 2 == 0
        copied = window_map(
            p, config.vectors, (1, tile.window_rows, tile.window_columns), VECTOR_BYTES * config.vectors
        )
        arguments = (
            copied, WEIGHT, BIAS, RESIDUAL, OUTPUT, options.output_planes(p), p.c, p.out_h, p.out_w,
            p.pad_h, p.pad_w, p.kh, p.kw, p.stride_h, p.stride_w, p.dilation_h, p.dilation_w,
            images * down * along, down, packed_divisor(down), along, packed_divisor(along),
            tile.rows, tile.columns.bit_length() - 1, tile.window_rows, tile.window_columns,
            config.channel_blocks, packed_divisor(config.channel_blocks), config.stages,
            *options.activation_arguments, int(paired), int(options.packed), p.group_channels,
        )  # fmt: skip
        macros = _macros(config.vectors, *_group_kind(p)) | {BF16_MACRO: int(p.precision == BF16)}
        grid, shared = (config.blocks, config.threads), config.shared_bytes
        return (Launch(self.source, macros, self.name, *grid, arguments, shared, overlap=options.overlap),)


def _macros(vectors: int, group_vectors: int, small: int) -> Macros:
    """The macros of a kernel variant, without that of the element."""
    return {"VECTORS": vectors, "CHUNKS": group_vectors, "SMALL": small}


def _group_kind(problem: ConvProblem) -> tuple[int, int]:
    """The vectors of a group, and whether groups share one."""
    return _group_vectors(problem), int(problem.group_channels < VECTOR_CHANNELS)


def _group_vectors(problem: ConvProblem) -> int:
    """The vectors of a group; 1 where groups share one."""
    return ceil_div(problem.group_channels, VECTOR_CHANNELS)


def _tile(problem: ConvProblem, pixels: int, columns: int) -> Tile | None:
    """A tile of up to so many pixels, whose rows divide the plane evenly; None where no copy takes its window."""
    p, (reach_h, reach_w) = problem, reach(problem)
    rows = ceil_div(p.out_h, ceil_div(p.out_h, pixels // columns))
    window = (rows - 1) * p.stride_h + reach_h, (columns - 1) * p.stride_w + reach_w
    return Tile(rows, columns, *window) if max(window) <= MAX_BOX else None


def _has_warps(problem: ConvProblem, vectors: int, threads: int) -> bool:
    """Whether a block has at least one warp for each of its groups."""
    return threads // 32 * _group_vectors(problem) >= vectors


def _fixed_bytes(problem: ConvProblem, vectors: int) -> int:
    """Shared memory for weights and the places of filter positions, in bytes."""
    pitch = problem.filter_area * _group_vectors(problem) | 1  # an odd number of vectors, against bank conflicts
    return VECTOR_BYTES * VECTOR_CHANNELS * vectors * pitch + FLOAT_BYTES * problem.filter_area


def _config(problem: ConvProblem, device: DeviceSpec, tile: Tile, vectors: int, threads: int) -> Config | None:
    """The configuration with as many blocks on an SM as registers and two stages of each allow, or None."""
    fixed, stage = _fixed_bytes(problem, vectors), tile.stage_bytes(vectors) + BARRIER_BYTES

    def fits(resident: int) -> int:
        return min(MAX_STAGES, (device.shared_bytes_of(resident) - fixed) // stage)

    if fits(1) < 1:
        return None
    registers = REGISTERS[_group_kind(problem)]
    most = min(THREADS_PER_SM, REGISTERS_PER_SM // registers) // threads
    resident = next((blocks for blocks in range(most, 1, -1) if fits(blocks) >= 2), 1)
    channel_blocks, tiles = ceil_div(problem.c, VECTOR_CHANNELS * vectors), prod(tile.counts(problem))
    blocks = min(tiles, max(1, device.sm_count * resident // channel_blocks))
    turns = ceil_div(tiles, blocks)
    stages = min(turns, fits(resident))
    return Config(
        threads, vectors, tile, stages, channel_blocks, turns, channel_blocks * blocks, fixed + stages * stage
    )


def _check(problem: ConvProblem) -> None:
    """Raise UnsupportedProblem for what the kernel does not compute."""
    p = problem
    if p.groups == 1 or p.group_channels not in GROUP_CHANNELS or p.group_filters != p.group_channels:
        raise UnsupportedProblem(
            f"{p.label}: nhwc_grouped computes groups of {', '.join(map(str, GROUP_CHANNELS))} channels, and as many "
            "filters"
        )
    if p.c % VECTOR_CHANNELS:
        raise UnsupportedProblem(
            f"{p.label}: nhwc_grouped computes a multiple of {VECTOR_CHANNELS} channels, not {p.c}"
        )
    check_window_sizes(p, "nhwc_grouped", MAX_TAPS)
