"""The common parts of the algorithms that multiply windows: tiles of output pixels, and launch configurations.

A block computes tiles of the output for the same filters, whose weights it keeps in shared memory. A tensor map copies
the input that a tile needs, its window, into a ring of stages, and threads read the windows of their pixels from there
as tile A of wgmma. `windows.cuh` has the common parts of the kernels.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Hashable
from dataclasses import dataclass
from itertools import product
from math import gcd, inf, prod
from typing import ClassVar, TypeVar

from cuconv.algorithms.base import CallOptions
from cuconv.algorithms.channels_last.channels_last import (
    BARRIER_BYTES,
    CONSUMER_THREADS,
    VECTOR_BYTES,
    WARPGROUP_PIXELS,
    FusesAll,
)
from cuconv.algorithms.channels_last.pad_channels import VECTOR_CHANNELS
from cuconv.algorithms.common.divider import packed_divisor
from cuconv.algorithms.common.limits import MAX_BOX, MAX_EXTENT, MAX_INDEX, require_fit, require_hopper
from cuconv.core.problem import FLOAT_BYTES, HALF_BYTES, ConvProblem, UnsupportedProblem, ceil_div
from cuconv.device import REGISTERS_PER_SM, THREADS_PER_SM, DeviceSpec

MAX_STAGES = 4  # windows of a ring
STEP = 16  # elements of the reduction that an instruction adds
WARPGROUPS = (1, 2)
COLUMNS = (8, 16, 32, 64)  # per tile: multiples of 8, so that windows of nhwc_stem start at multiples of 16 bytes
REGISTERS = {16: 64, 32: 64, 64: 80, 96: 128, 128: 128}  # per thread, by the filters of its block
FILTERS = tuple(REGISTERS)
SHAPES = 2  # tiles that are tried for the same number of pixels
WARP_PIXELS = 16


@dataclass(frozen=True, slots=True)
class Tile:
    """The shape of a tile: rows and columns of output pixels, and rows of its window with the elements of each.

    alignment: a stage, which holds a window, is rounded up to a multiple of so many bytes.
    """

    rows: int
    columns: int
    window_rows: int
    window_elements: int
    alignment: int

    @property
    def pitch(self) -> int:
        """Bytes of a row of the window."""
        return HALF_BYTES * self.window_elements

    @property
    def stage_bytes(self) -> int:
        """Shared memory of a stage in bytes."""
        return ceil_div(self.window_rows * self.pitch, self.alignment) * self.alignment

    def counts(self, problem: ConvProblem) -> tuple[int, int, int]:
        """The tiles of an output: images, and tiles down and along each."""
        p = problem
        return p.n, ceil_div(p.out_h, self.rows), ceil_div(p.out_w, self.columns)

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}"


@dataclass(frozen=True, slots=True)
class Config:
    """A launch configuration: the filters and warpgroups of a block, the tile, and the stages of the ring.

    turns: tiles of a block, one after the other.
    """

    filters: int
    warpgroups: int
    tile: Tile
    stages: int
    filter_blocks: int
    turns: int
    blocks: int
    shared_bytes: int
    workspace_bytes: int = 0

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return CONSUMER_THREADS * self.warpgroups

    def __str__(self) -> str:
        return (
            f"tile={self.tile} filters={self.filters} warpgroups={self.warpgroups} stages={self.stages} "
            f"grid={self.blocks}"
        )


Costs = TypeVar("Costs")


class MultipliesWindows(FusesAll[Config, Costs]):
    """An algorithm that multiplies windows with wgmma, in half precision and channels last, for Hopper."""

    most_filters: ClassVar[int]
    """The most filters of a block, one of FILTERS."""

    @abstractmethod
    def check(self, problem: ConvProblem) -> None:
        """Raise UnsupportedProblem for what the kernel does not compute."""

    @abstractmethod
    def tile(self, problem: ConvProblem, pixels: int, columns: int) -> Tile:
        """The tile of so many pixels and columns."""

    @abstractmethod
    def fixed_bytes(self, problem: ConvProblem, filters: int) -> int:
        """Shared memory of a block for what it keeps: weights, tables and bias, in bytes."""

    def slowdown(self, problem: ConvProblem, device: DeviceSpec, config: Config, options: CallOptions) -> float:
        """1 where operands start at multiples of 16 bytes, as tensor maps need of input and weight; inf elsewhere."""
        return 1.0 if options.aligned else inf

    def summation(self, config: Config) -> Hashable | None:
        """None: where the input starts, and the batch, decide which algorithm computes it."""
        return None

    def candidates(self, problem: ConvProblem, device: DeviceSpec) -> list[Config]:
        """A few tiles for each number of warpgroups and filters; raises UnsupportedProblem where there is none."""
        require_hopper(problem, device)
        self.check(problem)
        if not self._tiles(problem, WARPGROUP_PIXELS):
            raise UnsupportedProblem(
                f"{problem.label}: windows of {self.name} would have more than {MAX_BOX} elements on an axis, the "
                "limit of a tensor map: use 'auto'"
            )
        return require_fit(self.fitting(problem, device), problem, device, self.name)

    def fitting(self, problem: ConvProblem, device: DeviceSpec) -> list[Config]:
        """The candidates of a problem that passed the checks, without those that do not fit in shared memory."""
        found = [
            self._config(problem, device, filters, warpgroups, tile)
            for filters, warpgroups in product(self._filters_of(problem, device), WARPGROUPS)
            for tile in self._tiles(problem, WARPGROUP_PIXELS * warpgroups)
        ]
        return [*filter(None, found)]

    def _filters_of(self, problem: ConvProblem, device: DeviceSpec) -> list[int]:
        """The filters of a block that are tried: the fewest that make the fewest blocks, and the next two sizes below.

        Sizes whose weights do not fit in shared memory are left out.
        """
        sizes = [one for one in FILTERS if one <= self.most_filters]
        fitting = [one for one in sizes if self.fixed_bytes(problem, one) < device.shared_bytes_per_block]
        needed = ceil_div(problem.m, ceil_div(problem.m, max(fitting, default=1)))
        return fitting[: bisect_left(fitting, needed) + 1][-3:]

    def _tiles(self, problem: ConvProblem, pixels: int) -> list[Tile]:
        """The SHAPES best tiles of so many pixels that a tensor map can copy, by number, then by window."""
        tiles = [self.tile(problem, pixels, columns) for columns in COLUMNS]
        possible = [tile for tile in tiles if self.is_copied_at_once(problem, tile)]
        return sorted(possible, key=lambda tile: (prod(tile.counts(problem)), tile.stage_bytes))[:SHAPES]

    @abstractmethod
    def is_copied_at_once(self, problem: ConvProblem, tile: Tile) -> bool:
        """Whether the window of a tile is a box that a tensor map can copy."""

    def _config(
        self, problem: ConvProblem, device: DeviceSpec, filters: int, warpgroups: int, tile: Tile
    ) -> Config | None:
        """The configuration with as many blocks on an SM as registers and two stages of each allow, or None.

        A block that fits with a single stage is alone on its SM; there is none where that does not fit.
        """
        warps = warpgroups * CONSUMER_THREADS // 32
        fixed = self.fixed_bytes(problem, filters) + warps * WARP_PIXELS * (HALF_BYTES * filters + VECTOR_BYTES)
        stage = tile.stage_bytes + BARRIER_BYTES

        def fits(resident: int) -> int:
            return min(MAX_STAGES, (device.shared_bytes_of(resident) - fixed) // stage)

        if fits(1) < 1:
            return None
        most = min(THREADS_PER_SM, REGISTERS_PER_SM // REGISTERS[filters]) // (CONSUMER_THREADS * warpgroups)
        resident = next((blocks for blocks in range(most, 1, -1) if fits(blocks) >= 2), 1)
        filter_blocks, tiles = ceil_div(problem.m, filters), prod(tile.counts(problem))
        blocks = min(tiles, max(1, device.sm_count * resident // filter_blocks))
        turns = ceil_div(tiles, blocks)
        stages = min(turns, fits(resident))
        shared = fixed + stages * stage
        return Config(filters, warpgroups, tile, stages, filter_blocks, turns, filter_blocks * blocks, shared)


def tile_arguments(problem: ConvProblem, config: Config) -> tuple[int, ...]:
    """The kernels' arguments from `pitch` to `stages`."""
    tile = config.tile
    images, down, along = tile.counts(problem)
    return (
        tile.pitch, tile.window_rows, images * down * along, down, packed_divisor(down), along, packed_divisor(along),
        tile.rows, tile.columns.bit_length() - 1, config.filter_blocks, packed_divisor(config.filter_blocks),
        config.stages,
    )  # fmt: skip


def last_arguments(problem: ConvProblem, options: CallOptions) -> tuple[int, ...]:
    """The kernels' arguments `activation`, `numbers`, `vector` and `weights_early`."""
    vector = gcd(VECTOR_CHANNELS, options.output_planes(problem), problem.m) if options.aligned else 1
    return (*options.activation_arguments, vector, int(options.packed))


def write_us(problem: ConvProblem, write: float, narrow: float) -> float:
    """The time to write 2**12 outputs in microseconds; narrow: what stores of one element add."""
    stores = VECTOR_CHANNELS / gcd(VECTOR_CHANNELS, problem.m)
    return write + narrow * (stores - 1) / (VECTOR_CHANNELS - 1)


def common_sizes(problem: ConvProblem) -> list[tuple[str, int, int]]:
    """The sizes that both kernels limit, for `check_sizes`."""
    p = problem
    return [
        ("output pixels", p.n * p.out_pixels, MAX_INDEX // 2),
        ("rows of the padded image", p.padded_h, MAX_EXTENT),
        ("weights", prod(p.weight_shape), MAX_INDEX // 2),
        ("filters", p.m, MAX_INDEX // 2),
    ]


def bias_bytes(filters: int) -> int:
    """Shared memory of a block's bias in bytes."""
    return FLOAT_BYTES * filters
