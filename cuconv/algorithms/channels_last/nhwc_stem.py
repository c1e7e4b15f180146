"""Convolution of few channels in half precision and channels last, as in the first layer of a network.

It multiplies windows (`windows.py`): boxes of image rows, which are read as lines of width x channels elements. No
padded copy of the input exists. `nhwc_stem.cu` has the kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from pathlib import Path

from cuconv.algorithms.base import CallOptions, Macros
from cuconv.algorithms.channels_last.channels_last import BF16_MACRO, VECTOR_BYTES, WARPGROUP_PIXELS, type_macro
from cuconv.algorithms.channels_last.pad_channels import VECTOR_CHANNELS
from cuconv.algorithms.channels_last.windows import (
    COLUMNS,
    FILTERS,
    STEP,
    Config,
    MultipliesWindows,
    Tile,
    bias_bytes,
    common_sizes,
    last_arguments,
    tile_arguments,
    write_us,
)
from cuconv.algorithms.common.divider import packed_divisor
from cuconv.algorithms.common.limits import HOPPER_ARCH, MAX_BOX, MAX_EXTENT, check_sizes
from cuconv.core.costs import constant
from cuconv.core.elementwise import norm
from cuconv.core.launch import BIAS, INPUT, OUTPUT, RESIDUAL, WEIGHT, Argument, Launch, TensorMap
from cuconv.core.problem import HALF_BYTES, ConvProblem, UnsupportedProblem, ceil_div
from cuconv.device import DeviceSpec

MAX_CHANNELS = 8
STEPS_UNIT = 2  # steps of the reduction are even in number
TABLE_BYTES = 8  # an entry, for a pair of elements
STAGE_ALIGNMENT = 128  # bytes; where a copy by a tensor map starts in shared memory


@dataclass(frozen=True, slots=True)
class Costs:
    """The constants of the cost model, in microseconds; each says for what."""

    start: float = constant("a launch, and a block from start to end, without its tiles")
    weights: float = constant("a block's time to spread 2**5 pairs of weights a thread")
    copy: float = constant("the latency of the copy of a window")
    step: float = constant("a warpgroup's latency of a step of the reduction")
    end: float = constant("a warpgroup's latency from the last step to the outputs")
    read: float = constant("an SM's time to read 2**6 warpgroups' tiles A from windows at even elements")
    multiply: float = constant("an SM's time for 2**20 multiply-adds")
    write: float = constant("an SM's time to write 2**12 outputs")
    write_narrow: float = constant("added to the writing of 2**12 outputs where a store has one")
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


class NhwcStem(MultipliesWindows[Costs]):
    """wgmma on the windows of an image of few channels, in half precision and channels last."""

    source = Path(__file__).with_suffix(".cu")
    summary = "wgmma on the image itself for up to 8 channels, as of a first layer, in half precision, channels last."
    costs_type = Costs
    most_filters = 96

    def variants(self, arch: str) -> list[Macros]:
        """All kernel variants; none without Hopper's instructions."""
        if arch != HOPPER_ARCH:
            return []
        choices = product(FILTERS, (0, 1), (0, 1))
        return [{"FILTERS": m, "ODD": odd, BF16_MACRO: bf16} for m, odd, bf16 in choices if m <= self.most_filters]

    def check(self, problem: ConvProblem) -> None:
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
        narrow, low = (self.tile(p, WARPGROUP_PIXELS, columns) for columns in (COLUMNS[0], COLUMNS[-1]))
        sizes = [
            ("elements of eight pixels' window", narrow.window_elements, MAX_BOX),
            ("rows of the filter", low.window_rows, MAX_BOX),
            ("elements of a row of the padded image", p.c * p.padded_w, MAX_EXTENT),
            *common_sizes(p),
        ]
        check_sizes(p, "nhwc_stem", sizes)

    def tile(self, problem: ConvProblem, pixels: int, columns: int) -> Tile:
        """The tile of so many pixels and columns."""
        p, rows = problem, pixels // columns
        elements = _left(p)[1] + ((columns - 1) * p.stride_w + p.kw) * p.c
        whole = ceil_div(elements, VECTOR_CHANNELS) * VECTOR_CHANNELS  # copies take multiples of 16 bytes
        return Tile(rows, columns, (rows - 1) * p.stride_h + p.kh, whole, STAGE_ALIGNMENT)

    def is_copied_at_once(self, problem: ConvProblem, tile: Tile) -> bool:
        """Whether the window of a tile is a box that a tensor map can copy: lines of elements."""
        return max(tile.window_rows, tile.window_elements) <= MAX_BOX

    def fixed_bytes(self, problem: ConvProblem, filters: int) -> int:
        """Shared memory of a block for what it keeps: weights, the table and bias, in bytes."""
        reduction = _reduction(problem)
        weights = HALF_BYTES * STEP * reduction.steps * filters
        return weights + TABLE_BYTES * reduction.pairs + bias_bytes(filters)

    def estimate_us(self, problem: ConvProblem, device: DeviceSpec, config: Config, costs: Costs) -> float:
        """The device time in microseconds, by the cost model with the given constants.

        After the first copy these times overlap: the latency of a block's tiles, what the warpgroups of an SM read
        from windows, the tensor cores with the writing of outputs, and device memory.
        """
        steps, pairs = _reduction(problem).steps, _reduction(problem).pairs
        weights_us = costs.weights * pairs * config.filters / config.threads / 2**5
        waiting_us = costs.copy / config.stages if config.stages < config.turns else 0.0
        latency_us = config.turns * max(steps * costs.step + costs.end, waiting_us)
        warpgroups = config.turns * ceil_div(config.blocks, device.sm_count) * config.warpgroups  # one after the other
        read_us = costs.read * (1 + _is_odd(problem)) * warpgroups * steps / 2**6
        outputs = warpgroups * WARPGROUP_PIXELS * config.filters
        write = write_us(problem, costs.write, costs.write_narrow)
        busy_us = costs.multiply * outputs * steps * STEP / 2**20 + write * outputs / 2**12
        memory_us = costs.memory * problem.min_bytes / 2**20
        return float(costs.start + weights_us + costs.copy + norm(latency_us, read_us, busy_us, memory_us))

    def kernels(self, problem: ConvProblem, config: Config, options: CallOptions) -> tuple[Launch, ...]:
        """The launch of the one kernel, which waits for the kernel ahead itself."""
        p, reduction = problem, _reduction(problem)
        arguments: tuple[Argument, ...] = (
            _window_map(p, config.tile), WEIGHT, BIAS, RESIDUAL, OUTPUT, options.output_planes(p), p.m, p.c, p.out_h,
            p.out_w, p.pad_h, *_left(p), p.kh, p.stride_h, p.stride_w,
            reduction.row_elements, reduction.row_pairs, packed_divisor(reduction.row_pairs), reduction.lead,
            reduction.steps, *tile_arguments(p, config), *last_arguments(p, options),
        )  # fmt: skip
        macros = {"FILTERS": config.filters, "ODD": _is_odd(p)} | type_macro(p)
        grid, shared = (config.blocks, config.threads), config.shared_bytes
        return (Launch(self.source, macros, self.name, *grid, arguments, shared, overlap=options.overlap),)


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
