"""Convolution of few channels in half precision and channels last, as in the first layer of a network.

A block computes tiles of the output for the same filters, whose weights it keeps in shared memory. A tensor map copies
the input that a tile needs, its window, into a ring of stages, and threads read the windows of their pixels from there
as tile A of wgmma. No padded copy of the input exists. `nhwc_stem.cu` has the kernel.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from itertools import product
from math import inf, prod
from pathlib import Path

from cuconv.algorithms.base import CallOptions, Macros
from cuconv.algorithms.channels_last.channels_last import (
    BARRIER_BYTES,
    BF16_MACRO,
    CONSUMER_THREADS,
    WARPGROUP_PIXELS,
    FusesAll,
    type_macro,
)
from cuconv.algorithms.channels_last.pad_channels import VECTOR_CHANNELS
from cuconv.algorithms.common.divider import packed_divisor
from cuconv.algorithms.common.limits import HOPPER_ARCH, MAX_INDEX, check_sizes, require_fit, require_hopper
from cuconv.core.costs import constant
from cuconv.core.elementwise import norm
from cuconv.core.launch import BIAS, INPUT, OUTPUT, RESIDUAL, WEIGHT, Launch, TensorMap
from cuconv.core.problem import FLOAT_BYTES, HALF_BYTES, ConvProblem, UnsupportedProblem, ceil_div
from cuconv.device import SYSTEM_SHARED_BYTES, DeviceSpec

MAX_CHANNELS = 8
MAX_EXTENT = 2**30  # rows, and elements of a row, of the padded image
MAX_BOX = 256  # elements of a tensor map's box on each axis
MAX_STAGES = 4
STEPS_UNIT, STEP = 2, 16  # steps of the reduction are even in number; elements of a step
TABLE_BYTES = 8  # an entry, for a pair of elements
VECTOR_BYTES = HALF_BYTES * VECTOR_CHANNELS
STAGE_ALIGNMENT = 128  # bytes; where a copy by a tensor map starts in shared memory
REGISTERS = {16: 64, 32: 64, 64: 80, 96: 128}  # the most a thread takes, by the filters of a block
WARPGROUPS = (1, 2)
COLUMNS = (8, 16, 32, 64)  # a tile's: eight neighbouring pixels of a row lie in different banks
SHAPES = 2  # tiles that are tried for the same number of pixels
WARP_PIXELS = 16
SM_THREADS, SM_REGISTERS = 2048, 2**16


@dataclass(frozen=True, slots=True)
class Costs:
    """The constants of the cost model, in microseconds of what each says."""

    start: float = constant("a launch, and a block from start to end, without its tiles")
    weights: float = constant("a block's time to spread 2**5 pairs of weights a thread")
    copy: float = constant("the latency of the copy of a window")
    step: float = constant("a warpgroup's latency of a step of the reduction")
    end: float = constant("a warpgroup's latency from the last step to the outputs")
    read: float = constant("an SM's time to read 2**6 warpgroups' tiles A from windows at even elements")
    multiply: float = constant("an SM's time for 2**20 multiply-adds")
    write: float = constant("an SM's time to write 2**12 outputs")
    memory: float = constant("2**20 bytes of operands through device memory")


@dataclass(frozen=True, slots=True)
class Reduction:
    """The products of an output: elements of a filter's row, which are read in pairs, and its rows.

    lead: 1 where the first pair of a row has one element, 0 elsewhere.
    """

    rows: int
    row_elements: int
    lead: int

    @property
    def row_pairs(self) -> int:
        """The pairs of a filter's row, the last of which may have one element."""
        return ceil_div(self.lead + self.row_elements, 2)

    @property
    def steps(self) -> int:
        """The steps of 16 elements."""
        return ceil_div(2 * self.rows * self.row_pairs, STEPS_UNIT * STEP) * STEPS_UNIT

    @property
    def pairs(self) -> int:
        """The pairs of all steps."""
        return self.steps * STEP // 2


@dataclass(frozen=True, slots=True)
class Tile:
    """The output pixels of a tile, and the rows and elements of a row of its window."""

    rows: int
    columns: int
    window_rows: int
    window_elements: int

    @property
    def pitch(self) -> int:
        """Bytes of a row of the window."""
        return HALF_BYTES * self.window_elements

    @property
    def stage_bytes(self) -> int:
        """Shared memory of a stage in bytes."""
        return ceil_div(self.window_rows * self.pitch, STAGE_ALIGNMENT) * STAGE_ALIGNMENT

    def counts(self, problem: ConvProblem) -> tuple[int, int, int]:
        """The tiles of an output: images, and tiles down and along each."""
        p = problem
        return p.n, ceil_div(p.out_h, self.rows), ceil_div(p.out_w, self.columns)

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}"


@dataclass(frozen=True, slots=True)
class Config:
    """A launch configuration: the filters and warpgroups of a block, the tile, and the stages of the ring."""

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


class NhwcStem(FusesAll[Config, Costs]):
    """wgmma on the windows of an image of few channels, in half precision and channels last."""

    source = Path(__file__).with_suffix(".cu")
    summary = "wgmma on the image itself for up to 8 channels, as of a first layer, in half precision, channels last."
    costs_type = Costs

    def variants(self, arch: str) -> list[Macros]:
        """All kernel variants; none without Hopper's instructions."""
        if arch != HOPPER_ARCH:
            return []
        return [{"FILTERS": filters, "ODD": odd, BF16_MACRO: bf16} for filters in REGISTERS for odd, bf16 in BITS]

    def slowdown(self, problem: ConvProblem, device: DeviceSpec, config: Config, options: CallOptions) -> float:
        """1, and inf where the input may start where no tensor map can: nhwc_wgmma copies it first."""
        return 1.0 if options.aligned else inf

    def candidates(self, problem: ConvProblem, device: DeviceSpec) -> list[Config]:
        """A few tiles for each number of warpgroups and filters; raises UnsupportedProblem where there is none."""
        require_hopper(problem, device)
        _check(problem)
        forms = product(_filters_of(problem), WARPGROUPS)
        found = [
            _config(problem, device, filters, warpgroups, tile)
            for filters, warpgroups in forms
            for tile in _tiles(problem, WARPGROUP_PIXELS * warpgroups)
        ]
        return require_fit([*filter(None, found)], problem, device, "nhwc_stem")

    def estimate_us(self, problem: ConvProblem, device: DeviceSpec, config: Config, costs: Costs) -> float:
        """The device time in microseconds, by the cost model with the given constants.

        Behind the first copy these times overlap: the latency of a block's tiles, what the warpgroups of an SM read
        from windows, the tensor cores with the writing of outputs, and device memory.
        """
        steps, pairs = _reduction(problem).steps, _reduction(problem).pairs
        weights_us = costs.weights * pairs * config.filters / config.threads / 2**5
        waiting_us = costs.copy / config.stages if config.stages < config.turns else 0.0
        latency_us = config.turns * max(steps * costs.step + costs.end, waiting_us)
        warpgroups = config.turns * ceil_div(config.blocks, device.sm_count) * config.warpgroups  # one after the other
        read_us = costs.read * (1 + _is_odd(problem)) * warpgroups * steps / 2**6
        outputs = warpgroups * WARPGROUP_PIXELS * config.filters
        busy_us = costs.multiply * outputs * steps * STEP / 2**20 + costs.write * outputs / 2**12
        memory_us = costs.memory * problem.min_bytes / 2**20
        return float(costs.start + weights_us + costs.copy + norm(latency_us, read_us, busy_us, memory_us))

    def summation(self, config: Config) -> Hashable | None:
        """None: where an input starts decides whether this algorithm computes it."""
        return None

    def kernels(self, problem: ConvProblem, config: Config, options: CallOptions) -> tuple[Launch, ...]:
        """The launch of the one kernel, which waits for the kernel ahead itself."""
        p, tile, reduction = problem, config.tile, _reduction(problem)
        _, down, along = tile.counts(p)
        whole = options.aligned and options.output_planes(p) % VECTOR_CHANNELS == 0
        arguments = (
            _window_map(p, tile), WEIGHT, BIAS, RESIDUAL, OUTPUT, options.output_planes(p), p.m, p.c, p.out_h, p.out_w,
            p.pad_h, *_left(p), p.kh, p.stride_h, p.stride_w,
            reduction.row_elements, reduction.row_pairs, packed_divisor(reduction.row_pairs), reduction.lead,
            reduction.steps,
            tile.pitch, tile.window_rows, p.n * down * along, down, packed_divisor(down), along, packed_divisor(along),
            tile.rows, tile.columns.bit_length() - 1, config.filter_blocks, packed_divisor(config.filter_blocks),
            config.stages, *options.activation_arguments, int(whole), int(options.packed),
        )  # fmt: skip
        macros = {"FILTERS": config.filters, "ODD": _is_odd(p)} | type_macro(p)
        grid, shared = (config.blocks, config.threads), config.shared_bytes
        return (Launch(self.source, macros, self.name, *grid, arguments, shared, overlap=options.overlap),)


BITS = ((0, 0), (0, 1), (1, 0), (1, 1))


def _is_odd(problem: ConvProblem) -> int:
    """1 where every second output pixel of a row starts at an odd element of the window, 0 elsewhere."""
    return problem.stride_w * problem.c % 2


def _reduction(problem: ConvProblem) -> Reduction:
    """The products of an output of a problem."""
    lead = 0 if _is_odd(problem) else _left(problem)[1] % 2
    return Reduction(problem.kh, problem.kw * problem.c, lead)


def _left(problem: ConvProblem) -> tuple[int, int]:
    """The elements of padding that a window of a row's first tile has, and how many of these no filter reads.

    A copy must start at a multiple of 16 bytes; with these, those of all tiles do, which have multiples of 8 columns.
    """
    padding = problem.pad_w * problem.c
    left = ceil_div(padding, VECTOR_CHANNELS) * VECTOR_CHANNELS
    return left, left - padding


def _window_map(problem: ConvProblem, tile: Tile) -> TensorMap:
    """The map by which a tile's window is copied: a row of the image is a line of its columns' channels."""
    p, row = problem, HALF_BYTES * problem.c * problem.w
    box = tile.window_elements, tile.window_rows, 1
    return TensorMap(INPUT, p.precision, (p.c * p.w, p.h, p.n), (row, row * p.h), box, swizzle=0)


def _filters_of(problem: ConvProblem) -> list[int]:
    """The filters of a block: those that make the fewest blocks, and the next fewer, which make more of them."""
    most = max(REGISTERS)
    needed = ceil_div(problem.m, ceil_div(problem.m, most))
    smaller = [filters for filters in REGISTERS if filters < needed]
    return [next(filters for filters in REGISTERS if filters >= needed), *smaller[-1:]]


def _tile(problem: ConvProblem, pixels: int, columns: int) -> Tile:
    """The tile of so many pixels and columns."""
    p, rows = problem, pixels // columns
    elements = _left(p)[1] + ((columns - 1) * p.stride_w + p.kw) * p.c
    whole = ceil_div(elements, VECTOR_CHANNELS) * VECTOR_CHANNELS  # copies take multiples of 16 bytes
    return Tile(rows, columns, (rows - 1) * p.stride_h + p.kh, whole)


def _tiles(problem: ConvProblem, pixels: int) -> list[Tile]:
    """The tiles of so many pixels that a tensor map can copy: the fewest, and of these the smallest windows, first."""
    tiles = [_tile(problem, pixels, columns) for columns in COLUMNS]
    possible = [tile for tile in tiles if max(tile.window_rows, tile.window_elements) <= MAX_BOX]
    return sorted(possible, key=lambda tile: (prod(tile.counts(problem)), tile.stage_bytes))[:SHAPES]


def _fixed_bytes(problem: ConvProblem, filters: int, warpgroups: int) -> int:
    """Shared memory of a block without its stages, in bytes: weights, table, bias and outputs."""
    reduction, warps = _reduction(problem), warpgroups * CONSUMER_THREADS // 32
    weights = HALF_BYTES * STEP * reduction.steps * filters
    outputs = warps * WARP_PIXELS * (HALF_BYTES * filters + VECTOR_BYTES)
    return weights + TABLE_BYTES * reduction.pairs + FLOAT_BYTES * filters + outputs


def _config(problem: ConvProblem, device: DeviceSpec, filters: int, warpgroups: int, tile: Tile) -> Config | None:
    """The configuration with as many blocks on an SM as registers and two stages of each allow; None where none fits.

    A block that fits with a single stage is alone on its SM.
    """
    fixed, stage = _fixed_bytes(problem, filters, warpgroups), tile.stage_bytes + BARRIER_BYTES

    def fits(resident: int) -> int:
        room = device.shared_bytes_per_sm // resident - SYSTEM_SHARED_BYTES - fixed
        return min(MAX_STAGES, room // stage)

    if fits(1) < 1:
        return None
    most = min(SM_THREADS, SM_REGISTERS // REGISTERS[filters]) // (CONSUMER_THREADS * warpgroups)
    resident = next((blocks for blocks in range(most, 1, -1) if fits(blocks) >= 2), 1)
    filter_blocks, tiles = ceil_div(problem.m, filters), prod(tile.counts(problem))
    blocks = min(tiles, max(1, device.sm_count * resident // filter_blocks))
    turns = ceil_div(tiles, blocks)
    stages = min(turns, fits(resident))
    shared = fixed + stages * stage
    return Config(filters, warpgroups, tile, stages, filter_blocks, turns, filter_blocks * blocks, shared)


def _check(problem: ConvProblem) -> None:
    """Raise UnsupportedProblem for what the kernel does not compute."""
    p = problem
    if p.groups > 1 or p.c > MAX_CHANNELS or max(p.dilation_h, p.dilation_w) > 1:
        raise UnsupportedProblem(
            f"{p.label}: nhwc_stem computes up to {MAX_CHANNELS} channels in one group, with dilation 1"
        )
    if HALF_BYTES * p.c * p.w % VECTOR_BYTES:
        raise UnsupportedProblem(
            f"{p.label}: a row of the image has {HALF_BYTES * p.c * p.w} bytes, nhwc_stem needs a multiple of "
            f"{VECTOR_BYTES}"
        )
    narrow, low = (_tile(p, WARPGROUP_PIXELS, columns) for columns in (COLUMNS[0], COLUMNS[-1]))
    sizes = [
        ("elements of eight pixels' window", narrow.window_elements, MAX_BOX),
        ("rows of the filter", low.window_rows, MAX_BOX),
        ("output pixels", p.n * p.out_pixels, MAX_INDEX // 2),
        ("rows of the padded image", p.h + 2 * p.pad_h, MAX_EXTENT),
        ("elements of a row of the padded image", p.c * (p.w + 2 * p.pad_w), MAX_EXTENT),
        ("weights", prod(p.weight_shape), MAX_INDEX // 2),
        ("filters", p.m, MAX_INDEX // 2),
    ]
    check_sizes(p, "nhwc_stem", sizes)
