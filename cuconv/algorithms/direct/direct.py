"""Direct convolution as plain FP32 sums on the CUDA cores: layers of few filters, and large filters of few channels.

A thread keeps the sums of a few filters, rows and columns in registers, and a block copies the input of its tile to
shared memory, some channels at a time. `direct.cu` has the kernel, docs/direct.md the design.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import product
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from cuconv.algorithms.base import CallOptions, Macros
from cuconv.algorithms.common.divider import packed_divisor
from cuconv.algorithms.common.implicit_gemm import depth_of
from cuconv.algorithms.common.limits import MAX_EXTENT, MAX_INDEX, check_sizes
from cuconv.algorithms.common.many import ManyConfigurations
from cuconv.core.costs import constant
from cuconv.core.elementwise import Number, norm
from cuconv.core.launch import BIAS, INPUT, OUTPUT, WEIGHT, Address, Launch
from cuconv.core.problem import FLOAT_BYTES, ConvProblem, UnsupportedProblem, ceil_div
from cuconv.device import BLOCKS_PER_SM, THREADS_PER_SM, DeviceSpec

COLUMNS = 4  # a thread computes a vector of outputs in each row
SIZES = (0, 1, 3, 5)  # square filters at stride 1 that have kernels of their own; 0 for all others
SHAPES = ((1, 4), (1, 1), (2, 4), (3, 4), (4, 4), (4, 1), (8, 2), (8, 1))  # filters and rows of a thread
THREADS = (128, 256)  # a block's
THREADS_X = (4, 8, 16, 32)  # side by side in a tile
SHARES = (1, 2, 4, 8, 16, 32)  # threads that share a sum
MAX_FILTERS = 64  # in a group; with more, tensor cores are faster
MAX_STRIDE = 2**16
CHUNK_BYTES = 24 * 1024  # a block copies about as much at a time, so that an SM holds several
WARP = 32  # lanes


@dataclass(frozen=True, slots=True)
class Costs:
    """The constants of the cost model, in microseconds."""

    start: float = constant("a launch, and a block from start to end, without what follows")
    chunk: float = constant("a block's latency of a chunk of channels: copies, and two barriers")
    chain: float = constant("a thread's latency of 2**8 multiply-adds")
    exchange: float = constant("a block's time to halve the number of threads that share a sum")
    multiply: float = constant("an SM's time for 2**16 multiply-adds")
    fetch: float = constant("an SM's time for 2**10 cycles of loads from shared memory")
    copy: float = constant("an SM's time to issue 2**10 copies of a warp to shared memory")
    place: float = constant("an SM's time to find the places of 2**10 copies of a warp, in all channels of a chunk")
    memory: float = constant("2**20 bytes of operands through device memory")
    cache: float = constant("2**20 bytes of copies through the L2 cache")


@dataclass(frozen=True, slots=True)
class DirectConfig:
    """A launch configuration. Its fields may be arrays, for many configurations.

    filters_of_thread, rows_of_thread: outputs of a thread, of COLUMNS columns each.
    threads_x, threads_y: threads of a tile. shares_c, shares_y: threads that share a sum, by channels and by the
    filter's rows. chunk: channels that a block copies at a time. buffers: 2 where it copies while it computes.
    overlap: whether the device lets the kernel start while the one ahead in the stream ends.
    """

    filters_of_thread: int
    rows_of_thread: int
    threads_x: int
    threads_y: int
    shares_c: int
    shares_y: int
    chunk: int
    buffers: int
    blocks: int
    shared_bytes: int
    overlap: bool
    workspace_bytes: int = 0

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.threads_x * self.threads_y * self.shares_c * self.shares_y

    def __str__(self) -> str:
        thread = f"thread={self.filters_of_thread}x{self.rows_of_thread}x{COLUMNS}"
        block = f"tile={self.threads_y}x{self.threads_x} shares={self.shares_c}x{self.shares_y} chunk={self.chunk}"
        return f"{thread} {block} grid={self.blocks} shared={self.shared_bytes}"


class Direct(ManyConfigurations[DirectConfig, Costs]):
    """Plain FP32 sums on the CUDA cores: layers of few filters, and large filters of few channels."""

    source = Path(__file__).with_suffix(".cu")
    summary = "Plain FP32 sums on the CUDA cores: layers of few filters, and large filters of few channels."
    fuses_residual = True
    writes_slices = True
    costs_type = Costs

    def variants(self, arch: str) -> list[Macros]:
        """All kernel variants; they are the same for every architecture."""
        return [_macros(*shape, size) for shape, size in product(SHAPES, SIZES)]

    def many(self, problem: ConvProblem, device: DeviceSpec) -> tuple[DirectConfig, Any]:
        """One configuration object with array fields, and an array that says which of its configurations can run.

        Raises UnsupportedProblem where none can.
        """
        _check(problem)
        p, (filters, rows, threads_x, shares, threads) = problem, _choices()
        shares_c = np.minimum(shares, _power_of_two(p.group_channels))
        shares_y = shares // shares_c
        threads_y = threads // (threads_x * shares)
        tile_h, tile_w = threads_y * rows, threads_x * COLUMNS
        channel_bytes = _channel_bytes(p, filters, tile_h, tile_w)
        fitting = np.maximum(1, CHUNK_BYTES // channel_bytes // shares_c) * shares_c
        chunk = np.minimum(fitting, ceil_div(p.group_channels, shares_c) * shares_c)
        buffers = np.where(chunk < p.group_channels, 2, 1)
        sums_bytes = (shares > 1) * FLOAT_BYTES * threads // 2 * filters * rows * COLUMNS
        shared_bytes = np.maximum(buffers * chunk * channel_bytes, sums_bytes)
        tiles = ceil_div(p.out_h, tile_h) * ceil_div(p.out_w, tile_w)
        blocks = p.n * p.groups * tiles * ceil_div(p.group_filters, filters)
        possible = (shared_bytes <= device.shared_bytes_per_block) & (blocks <= MAX_INDEX)
        # Tiles and threads of twice the outputs that there are only waste threads.
        possible &= (tile_w < 2 * p.out_w) | (threads_x == min(THREADS_X))
        possible &= (filters < 2 * p.group_filters) & ((rows < 2 * p.out_h) | (rows == 1))
        possible &= shares_y <= (ceil_div(p.kh, p.stride_h) if size_of(p) == 0 else 1)
        if not possible.any():
            raise UnsupportedProblem(
                f"{p.label}: no tile of direct with its {p.kh}x{p.kw} filter fits the grid, or the "
                f"{device.shared_bytes_per_block} bytes of shared memory of {device.name}"
            )
        sizes = (filters, rows, threads_x, threads_y, shares_c, shares_y, chunk, buffers, blocks, shared_bytes)
        many: Any = (*sizes, device.has_dependent_launch)
        return DirectConfig(*many), possible

    def estimate_us(self, problem: ConvProblem, device: DeviceSpec, config: DirectConfig, costs: Costs) -> float:
        """The device time in microseconds, by the cost model with the given constants.

        Four times overlap, so that their norm counts: the latency of a block, in as many waves as an SM needs for its
        blocks; the instructions that the SM issues; its shared memory; and device memory with the L2 cache.
        """
        p, c = problem, config
        outputs = c.filters_of_thread * c.rows_of_thread * COLUMNS
        positions = _columns(p, c.threads_x * COLUMNS) * _rows(p, c.threads_y * c.rows_of_thread)
        weights = c.filters_of_thread * p.filter_area
        chunks, shares = ceil_div(p.group_channels, c.chunk), c.shares_c * c.shares_y
        products = ceil_div(p.group_channels, c.shares_c) * outputs * p.filter_area / c.shares_y  # a thread's
        copies = p.group_channels * (positions + weights) / WARP  # a block's
        blocks = ceil_div(c.blocks, device.sm_count)  # an SM's
        waves = ceil_div(blocks, _resident_blocks(c, device))
        latency_us = costs.chunk * chunks + costs.chain * products / 2**8 + costs.exchange * np.log2(shares)
        issue_us = costs.multiply * c.threads * products / 2**16 + costs.copy * copies / 2**10
        issue_us = issue_us + costs.place * chunks * (positions + weights) / WARP / 2**10
        loads_us = costs.fetch * c.threads / WARP * _load_cycles(p, c) / 2**10
        copied = c.blocks * p.group_channels * (positions + weights)
        moved_us = (costs.memory * p.min_bytes + costs.cache * FLOAT_BYTES * copied) / 2**20
        us: float = costs.start + norm(waves * latency_us, blocks * issue_us, blocks * loads_us, moved_us)
        return us

    def least_us(self, problem: ConvProblem, device: DeviceSpec, prepared: bool) -> float:
        """The time of the operands or of the products in microseconds; inf for many filters, or a dilation."""
        p = problem
        if p.group_filters > MAX_FILTERS or p.dilation_h > 1 or p.dilation_w > 1:
            return inf
        costs = self.costs(p.precision)
        products_us = costs.multiply * p.flop / 2 / device.sm_count / 2**16
        return costs.start + max(products_us, super().least_us(p, device, prepared))

    def summation(self, config: DirectConfig) -> tuple[int, int]:
        """The threads that share a sum; each adds its channels in order, and of a channel its filter positions."""
        return config.shares_c, config.shares_y

    def kernels(self, problem: ConvProblem, config: DirectConfig, options: CallOptions) -> tuple[Launch, ...]:
        """The launch of the one kernel; where it overlaps with the kernel ahead it waits for that itself."""
        p, c = problem, config
        tile_h, tile_w = c.threads_y * c.rows_of_thread, c.threads_x * COLUMNS
        columns = _columns(p, tile_w)
        arguments: tuple[Address | int, ...] = (
            *(INPUT, WEIGHT, BIAS, OUTPUT, options.residual_argument),
            *(p.group_channels, p.h, p.w, p.group_filters, p.kh, p.kw, p.pad_h, p.pad_w, p.stride_h, p.stride_w),
            *(p.out_h, p.out_w, p.groups, options.output_planes(p), *options.activation_arguments),
            int(options.aligned and p.out_w % COLUMNS == 0),
            *(ceil_div(p.out_w, tile_w), ceil_div(p.out_h, tile_h), ceil_div(p.group_filters, c.filters_of_thread)),
            *(c.threads_x, c.threads_y, c.shares_c, c.shares_y, c.chunk, c.buffers),
            *(_rows(p, tile_h), columns, packed_divisor(columns), _pitch(p, tile_w), _slots(p)),
        )
        macros = _macros(c.filters_of_thread, c.rows_of_thread, size_of(p))
        return (Launch(self.source, macros, self.name, c.blocks, c.threads, arguments, c.shared_bytes, c.overlap),)


def size_of(problem: ConvProblem) -> int:
    """The size of the square filter that a kernel variant is compiled for; 0 where it takes any filter and stride."""
    p = problem
    return p.kh if p.kh == p.kw and p.kh in SIZES and p.stride_h == p.stride_w == 1 else 0


@cache
def _choices() -> Any:
    """Arrays of the filters and rows of a thread, of a tile's threads in X, of the shares and of a block's threads."""
    found = [
        (*shape, threads_x, shares, threads)
        for shape, threads_x, shares, threads in product(SHAPES, THREADS_X, SHARES, THREADS)
        if threads_x * shares <= threads
    ]
    return tuple(np.array(column) for column in zip(*found, strict=True))


def _power_of_two(number: int) -> int:
    """The largest power of two that is no more than a number."""
    return 1 << number.bit_length() - 1


def _phases(problem: ConvProblem) -> int:
    """The phases of the input's columns: those of equal remainder by the stride that the filter reads."""
    return min(problem.stride_w, problem.kw)


def _phase_taps(problem: ConvProblem) -> int:
    """The columns of the filter that read the first phase; no other phase has more."""
    return int(ceil_div(problem.kw, problem.stride_w))


def _slots(problem: ConvProblem) -> int:
    """The groups of weights that a row of the filter is divided into: of SIZE columns, or of up to four of a phase."""
    return 1 if size_of(problem) else _phases(problem) * int(ceil_div(_phase_taps(problem), COLUMNS))


def _rows(problem: ConvProblem, tile_h: Number) -> Number:
    """The rows of the input that a tile's outputs read."""
    return (tile_h - 1) * problem.stride_h + problem.kh


def _columns(problem: ConvProblem, tile_w: Number) -> Number:
    """The columns of the input that a block copies for a tile: equally many of each phase."""
    return _phases(problem) * (tile_w + _phase_taps(problem) - 1)


def _pitch(problem: ConvProblem, tile_w: Number) -> Number:
    """The floats of a row of a phase in shared memory: an odd number of vectors, so that rows begin in other banks."""
    vectors = tile_w // COLUMNS + ceil_div(_phase_taps(problem), COLUMNS)
    return COLUMNS * (vectors + (vectors % 2 == 0))


def _channel_bytes(problem: ConvProblem, filters: Number, tile_h: Number, tile_w: Number) -> Number:
    """The bytes of shared memory for a channel: the tile's input, and the weights of a thread's filters."""
    slot = COLUMNS * ceil_div(size_of(problem), COLUMNS) if size_of(problem) else COLUMNS
    weights = problem.kh * _slots(problem) * slot * filters
    return FLOAT_BYTES * (_rows(problem, tile_h) * _phases(problem) * _pitch(problem, tile_w) + weights)


def _load_cycles(problem: ConvProblem, config: DirectConfig) -> Number:
    """The cycles of shared memory for the loads of a warp: windows of the input, and weights.

    A step takes one window, of one or two vectors, and a vector of weights for each filter. The first step of a column
    takes the windows of all rows of a thread. A vector takes four cycles, or one where all lanes read the same.
    """
    p, c = problem, config
    channels, vectors = ceil_div(p.group_channels, c.shares_c), 1 if p.kw == 1 else 2
    steps = ceil_div(p.kh, c.shares_y)
    windows = _slots(p) * (steps + (c.rows_of_thread - 1) * np.minimum(p.stride_h, steps))
    weights = _slots(p) * steps * c.filters_of_thread * (2 if size_of(p) > COLUMNS else 1)
    return channels * (4 * vectors * windows + 2 * weights)


def _resident_blocks(config: DirectConfig, device: DeviceSpec) -> Number:
    """The blocks that an SM holds at a time."""
    filters, rows = config.filters_of_thread, config.rows_of_thread
    registers = np.where(filters < 3, 128, np.where(rows == 2, 184, 168))  # a thread's, about
    registers = np.where(filters * rows < 8, 96, registers)
    by_memory = device.resident_blocks(config.threads, registers, config.shared_bytes)
    return np.minimum(by_memory, np.minimum(THREADS_PER_SM // config.threads, BLOCKS_PER_SM))


def _check(problem: ConvProblem) -> None:
    """Raise UnsupportedProblem for what the kernel does not compute, whatever the device."""
    p = problem
    if p.dilation_h > 1 or p.dilation_w > 1:
        raise UnsupportedProblem(f"{p.label}: direct computes dilation 1 only")
    sizes = [
        ("filters in a group", p.group_filters, MAX_FILTERS),
        ("weights in a filter", depth_of(p), MAX_EXTENT),
        ("input elements in a plane", p.h * p.w, MAX_INDEX),
        ("output elements in a plane", p.out_pixels, MAX_INDEX),
        ("rows in the padded image", p.padded_h, MAX_EXTENT),
        ("columns in the padded image", p.padded_w, MAX_EXTENT),
        ("rows of stride", p.stride_h, MAX_STRIDE),
        ("columns of stride", p.stride_w, MAX_STRIDE),
    ]
    check_sizes(p, "direct", sizes)


def _macros(filters: int, rows: int, size: int) -> Macros:
    return {"FILTERS": filters, "ROWS": rows, "SIZE": size}
