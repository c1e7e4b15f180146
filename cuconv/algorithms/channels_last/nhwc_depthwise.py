"""Depthwise convolution in half precision and channels last: plain FP32 sums, eight channels a thread.

A block computes tiles of the output for the same channels, whose weights it keeps in shared memory. A tensor map copies
the input that a tile needs, its window, into a ring of stages. `nhwc_depthwise.cu` has the kernel.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import prod, sqrt
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
from cuconv.core.problem import BF16, FLOAT_BYTES, HALF_BYTES, ConvProblem, UnsupportedProblem, ceil_div
from cuconv.device import REGISTERS_PER_SM, THREADS_PER_SM, DeviceSpec

MAX_WEIGHTS = 1536  # vectors of weights in shared memory: filter positions times a block's vectors of a pixel
MAX_STAGES = 4
MOST_VECTORS = (8, 4)  # per pixel of a block: eight are a cache line, and fewer make more blocks
WHOLE_VECTORS = 12  # a block may have a pixel of up to so many: its halves would be odd parts of cache lines
WORK = ((64, 1), (128, 1), (128, 2), (256, 1))  # a block's threads, and the strips of each in a tile
STAGE_ALIGNMENT = 128  # bytes; where a copy by a tensor map starts in shared memory


@dataclass(frozen=True, slots=True)
class Costs:
    """The constants of the cost model, in microseconds; each says for what."""

    start: float = constant("a launch, and a block from start to end, without its tiles")
    weights: float = constant("a block's time to spread 2**4 weights a thread")
    copy: float = constant("the latency of the copy of a window")
    row: float = constant("a thread's latency of a row of a strip's window")
    long: float = constant("the factor, less 1, by which a tile's latency is longer with the longest strips")
    multiply: float = constant("an SM's time for 2**16 multiply-adds")
    read: float = constant("an SM's time for 2**10 vectors that a warp's threads read from shared memory")
    pixel: float = constant("an SM's time to copy 2**7 pixels of windows")
    memory: float = constant("2**20 bytes of operands through device memory")


@dataclass(frozen=True, slots=True)
class Geometry:
    """A filter with dilation 1 that a kernel variant has as macros; all 0 for the variant of every geometry."""

    kernel_h: int = 0
    kernel_w: int = 0
    stride: int = 0


@dataclass(frozen=True, slots=True)
class Strip:
    """A thread's neighbouring output pixels of a row, and the most registers that its kernel variants take."""

    columns: int
    registers: int


ANY, LONGEST = Geometry(), 7
STRIPS = {  # most networks have planes of 7, 14, 28, 56 or 112 columns: strips of seven leave none of them half empty
    Geometry(3, 3, 1): (Strip(2, 80), Strip(4, 112), Strip(7, 128)),
    Geometry(3, 3, 2): (Strip(2, 80), Strip(4, 120), Strip(7, 128)),
    Geometry(5, 5, 1): (Strip(2, 80), Strip(4, 120), Strip(7, 152)),
    Geometry(5, 5, 2): (Strip(2, 104), Strip(4, 128), Strip(7, 160)),
    Geometry(7, 7, 1): (Strip(2, 80), Strip(4, 120), Strip(7, 168)),
    ANY: (Strip(1, 64), Strip(4, 104)),
}


@dataclass(frozen=True, slots=True)
class Tile:
    """The output pixels of a tile, whose columns are whole strips, and the rows and columns of its window."""

    images: int
    rows: int
    columns: int
    window_rows: int
    window_columns: int

    @property
    def window(self) -> int:
        """The input pixels of the tile."""
        return self.images * self.window_rows * self.window_columns

    def stage_bytes(self, vectors: int) -> int:
        """Shared memory of a stage in bytes, with so many vectors of each pixel."""
        return ceil_div(VECTOR_BYTES * vectors * self.window, STAGE_ALIGNMENT) * STAGE_ALIGNMENT

    def counts(self, problem: ConvProblem) -> tuple[int, int, int]:
        """The tiles of an output: groups of images, and tiles down and along each."""
        p = problem
        return ceil_div(p.n, self.images), ceil_div(p.out_h, self.rows), ceil_div(p.out_w, self.columns)

    def __str__(self) -> str:
        return f"{self.images}x{self.rows}x{self.columns}"


@dataclass(frozen=True, slots=True)
class Config:
    """A launch configuration: the tile, its strips, the vectors of a block, and the stages of the ring."""

    strip: Strip
    threads: int
    vectors: int
    tile: Tile
    stages: int
    channel_blocks: int
    turns: int
    blocks: int
    shared_bytes: int
    workspace_bytes: int = 0

    @property
    def positions(self) -> int:
        """The strips that a block computes at a time."""
        return self.threads // self.vectors

    @property
    def strips(self) -> int:
        """The strips of a tile."""
        return self.tile.images * self.tile.rows * self.tile.columns // self.strip.columns

    def __str__(self) -> str:
        return (
            f"tile={self.tile} strip={self.strip.columns} vectors={self.vectors} threads={self.threads} "
            f"stages={self.stages} grid={self.blocks}"
        )


class NhwcDepthwise(FusesAll[Config, Costs]):
    """Plain FP32 sums of depthwise layers in half precision and channels last."""

    source = Path(__file__).with_suffix(".cu")
    summary = "Plain FP32 sums of depthwise layers in half precision and channels last."
    costs_type = Costs

    def variants(self, arch: str) -> list[Macros]:
        """All kernel variants; none without Hopper, for which alone they are written."""
        if arch != HOPPER_ARCH:
            return []
        forms = [(geometry, strip) for geometry, strips in STRIPS.items() for strip in strips]
        return [_macros(*form) | {BF16_MACRO: bf16} for form, bf16 in product(forms, (0, 1))]

    def candidates(self, problem: ConvProblem, device: DeviceSpec) -> list[Config]:
        """Every strip with tiles of every size; raises UnsupportedProblem where there is none."""
        require_hopper(problem, device)
        _check(problem)
        most_columns = _most_pixels(reach(problem)[1], problem.stride_w)
        strips = [strip for strip in STRIPS[_geometry_of(problem)] if strip.columns <= most_columns]
        may_be_whole = MOST_VECTORS[0] < problem.c // VECTOR_CHANNELS <= WHOLE_VECTORS
        forms = product(strips, (WHOLE_VECTORS, *MOST_VECTORS) if may_be_whole else MOST_VECTORS, WORK)
        found = [_config(problem, device, strip, vectors, *work) for strip, vectors, work in forms]
        return require_fit([*dict.fromkeys(filter(None, found))], problem, device, "nhwc_depthwise")

    def estimate_us(self, problem: ConvProblem, device: DeviceSpec, config: Config, costs: Costs) -> float:
        """The device time in microseconds, by the cost model with the given constants.

        After the first copy four times overlap: the latency of a block's tiles, the instructions of an SM, the copies
        of an SM, and device memory. A tile takes as long as its copy where the ring hides less than that.
        """
        p, strip, tile = problem, config.strip, config.tile
        weights = costs.weights * VECTOR_CHANNELS * config.vectors * p.filter_area / config.threads / 2**4
        window = strip.columns * p.kw if _geometry_of(p) == ANY else (strip.columns - 1) * p.stride_w + p.kw
        products = strip.columns * p.filter_area * VECTOR_CHANNELS * 32
        reads = p.kh * window + p.filter_area  # a vector of weights is twice as long, but needs no conversion
        warp_us = costs.multiply * products / 2**16 + costs.read * reads / 2**10
        rounds = ceil_div(config.strips, config.positions)
        # A warp alone has a quarter of an SM's units.
        tile_us = rounds * (p.kh * costs.row + 4 * warp_us) * (1 + costs.long * (strip.columns == LONGEST))
        waiting_us = costs.copy / config.stages if config.stages < config.turns else 0.0
        latency_us = config.turns * max(tile_us, waiting_us)
        tiles = config.turns * ceil_div(config.blocks, device.sm_count)
        issue_us = tiles * rounds * config.threads / 32 * warp_us
        copy_us = tiles * costs.pixel * tile.window / 2**7
        memory_us = costs.memory * p.min_bytes / 2**20
        return float(costs.start + weights + costs.copy + norm(latency_us, issue_us, copy_us, memory_us))

    def summation(self, config: Config) -> Hashable:
        """An empty tuple: each sum is one chain in the order of the filter positions."""
        return ()

    def kernels(self, problem: ConvProblem, config: Config, options: CallOptions) -> tuple[Launch, ...]:
        """The launch of the one kernel, which waits for the kernel ahead itself."""
        p, tile = problem, config.tile
        groups, down, along = tile.counts(p)
        across = tile.columns // config.strip.columns
        whole = options.aligned and options.output_planes(p) % VECTOR_CHANNELS == 0
        copied = window_map(p, config.vectors, (tile.images, tile.window_rows, tile.window_columns))
        arguments = (
            copied, WEIGHT, BIAS, RESIDUAL, OUTPUT, options.output_planes(p), p.n, p.c,
            p.out_h, p.out_w, p.pad_h, p.pad_w, p.kh, p.kw, p.stride_h, p.stride_w, p.dilation_h, p.dilation_w,
            groups * down * along, down, packed_divisor(down), along, packed_divisor(along),
            tile.images, tile.rows, packed_divisor(tile.rows), across, packed_divisor(across),
            tile.window_rows, tile.window_columns, config.vectors, packed_divisor(config.vectors), config.positions,
            config.channel_blocks, packed_divisor(config.channel_blocks), config.stages,
            *options.activation_arguments, int(whole), int(options.packed),
        )  # fmt: skip
        macros = _macros(_geometry_of(p), config.strip) | {BF16_MACRO: int(p.precision == BF16)}
        grid, shared = (config.blocks, config.threads), config.shared_bytes
        return (Launch(self.source, macros, self.name, *grid, arguments, shared, overlap=options.overlap),)


def _geometry_of(problem: ConvProblem) -> Geometry:
    """The geometry whose variants compute a problem."""
    p = problem
    found = Geometry(p.kh, p.kw, p.stride_h)
    return found if found in STRIPS and p.stride_h == p.stride_w and p.dilation_h == p.dilation_w == 1 else ANY


def _macros(geometry: Geometry, strip: Strip) -> Macros:
    """The macros of a kernel variant, without that of the element."""
    return {
        "KERNEL_H": geometry.kernel_h,
        "KERNEL_W": geometry.kernel_w,
        "STRIDE": geometry.stride,
        "COLUMNS": strip.columns,
    }


def _balanced(total: int, most: int) -> int:
    """The size of parts of a total that are as few as with `most` each, but about equal."""
    return ceil_div(total, ceil_div(total, max(1, min(most, total))))


def _most_pixels(reach: int, stride: int) -> int:
    """The most output pixels on an axis whose window a tensor map's box can have; 0 where it cannot have any."""
    return max(0, MAX_BOX - reach + stride) // stride


def _tile(problem: ConvProblem, strip: Strip, strips: int, vectors: int) -> Tile:
    """A tile of up to `strips` strips, about as high as wide, for so many vectors of each pixel."""
    p, (reach_h, reach_w) = problem, reach(problem)
    most_rows = _most_pixels(reach_h, p.stride_h)
    most_across = _most_pixels(reach_w, p.stride_w) // strip.columns
    along = ceil_div(p.out_w, strip.columns)
    across = _balanced(along, min(most_across, round(sqrt(strips / strip.columns))))
    rows = _balanced(p.out_h, min(most_rows, strips // across))
    across = _balanced(along, min(most_across, strips // rows))  # wider, where the plane is low
    whole_plane = rows == p.out_h and across == along
    images = max(1, min(p.n, strips // (rows * across), MAX_BOX)) if whole_plane else 1
    columns = across * strip.columns
    window_columns = _without_conflicts((columns - 1) * p.stride_w + reach_w, p.stride_h, vectors)
    return Tile(images, rows, columns, (rows - 1) * p.stride_h + reach_h, window_columns)


def _without_conflicts(columns: int, stride_h: int, vectors: int) -> int:
    """A window's columns, with up to three more where that avoids bank conflicts.

    Eight threads read 128 bytes at once: the last vectors of a pixel, and the first of the pixel `stride_h` rows below.
    They lie in different banks if these rows start `vectors` vectors further, modulo the eight of 128 bytes.
    """
    found = range(columns, min(columns + 3, MAX_BOX) + 1)
    return next((more for more in found if (stride_h * more - 1) * vectors % 8 == 0), columns)


def _tiles(
    problem: ConvProblem, strip: Strip, most_vectors: int, threads: int, strips: int
) -> Iterator[tuple[int, Tile]]:
    """Ever fewer vectors of a pixel, each with its tile of `strips` strips a thread; then ever smaller tiles."""
    all_vectors, vectors = problem.c // VECTOR_CHANNELS, 2 * most_vectors
    while vectors > 1:
        vectors = ceil_div(all_vectors, ceil_div(all_vectors, vectors // 2))
        yield vectors, _tile(problem, strip, threads // vectors * strips, vectors)
    tile_strips = threads * strips
    while tile_strips > 1:
        tile_strips //= 2
        yield 1, _tile(problem, strip, tile_strips, 1)


def _weight_bytes(problem: ConvProblem, vectors: int) -> int:
    """Shared memory for the weights of so many vectors, as they come and as floats, in bytes."""
    return (HALF_BYTES + FLOAT_BYTES) * VECTOR_CHANNELS * problem.filter_area * vectors


def _stages_that_fit(problem: ConvProblem, tile: Tile, vectors: int, resident: int, device: DeviceSpec) -> int:
    """The most stages with which an SM holds a number of blocks, up to MAX_STAGES."""
    room = device.shared_bytes_of(resident) - _weight_bytes(problem, vectors) - BARRIER_BYTES
    return min(MAX_STAGES, room // (tile.stage_bytes(vectors) + BARRIER_BYTES))


def _config(
    problem: ConvProblem, device: DeviceSpec, strip: Strip, most_vectors: int, threads: int, strips: int
) -> Config | None:
    """The largest tile of which two stages fit, or one of which a single stage does; None where no tile fits.

    An SM holds as many blocks as its registers allow, if two stages of each fit.
    """
    most = max(1, min(most_vectors, MAX_WEIGHTS // problem.filter_area))
    shapes = [*_tiles(problem, strip, most, threads, strips)]
    fit = [_stages_that_fit(problem, tile, vectors, 1, device) for vectors, tile in shapes]
    least = min(2, max(fit))
    if least < 1:
        return None
    vectors, tile = next(shape for shape, stages in zip(shapes, fit, strict=True) if stages >= least)
    fits = partial(_stages_that_fit, problem, tile, vectors, device=device)
    most_resident = min(THREADS_PER_SM, REGISTERS_PER_SM // strip.registers) // threads
    resident = next((blocks for blocks in range(most_resident, 1, -1) if fits(blocks) >= least), 1)
    channel_blocks, tiles = ceil_div(problem.c, VECTOR_CHANNELS * vectors), prod(tile.counts(problem))
    blocks = min(tiles, max(1, device.sm_count * resident // channel_blocks))
    turns = ceil_div(tiles, blocks)
    stages = min(turns, fits(resident))
    shared = stages * (tile.stage_bytes(vectors) + BARRIER_BYTES) + _weight_bytes(problem, vectors) + BARRIER_BYTES
    return Config(strip, threads, vectors, tile, stages, channel_blocks, turns, channel_blocks * blocks, shared)


def _check(problem: ConvProblem) -> None:
    """Raise UnsupportedProblem for what the kernel does not compute."""
    p = problem
    if p.groups == 1 or p.group_channels > 1 or p.group_filters > 1 or p.c % VECTOR_CHANNELS:
        raise UnsupportedProblem(
            f"{p.label}: nhwc_depthwise computes layers with a filter for each channel, and a multiple of "
            f"{VECTOR_CHANNELS} channels"
        )
    check_window_sizes(p, "nhwc_depthwise", MAX_WEIGHTS)
