"""The parts common to the algorithms for channels-last tensors in half precision.

These are the limits, the boxes of a stage and their times, tensor maps, arguments and options.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from math import gcd
from pathlib import Path
from typing import Any, TypeVar

from cuconv.algorithms.base import CallOptions, Macros
from cuconv.algorithms.channels_last import pad_channels
from cuconv.algorithms.channels_last.pad_channels import VECTOR_CHANNELS, on_padded
from cuconv.algorithms.common.divider import packed_divisor
from cuconv.algorithms.common.limits import HOPPER_ARCH, MAX_INDEX, check_sizes, require_hopper
from cuconv.algorithms.common.listed import Forms, ListedVariants, fastest_listed, listed
from cuconv.core.costs import constant
from cuconv.core.launch import BIAS, OUTPUT, RESIDUAL, Address, Launch, TensorMap
from cuconv.core.problem import BF16, HALF_BYTES, HALVES, ConvProblem, UnsupportedProblem, ceil_div
from cuconv.device import DeviceSpec

WARPGROUP_PIXELS = 64  # rows of tile A of a wgmma instruction
CONSUMER_THREADS = 128  # of a warpgroup
PRODUCER_THREADS = 64  # a warp for each operand
BARRIER_BYTES = 8
BF16_MACRO, GROUPED_MACRO = "BF16", "GROUPED"
LINE_BYTES = 128  # of the L2 cache
MAX_STAGES = 16
MAX_STRIDE = 8  # of a tensor map
# Bits of a corner, which is signed, and of a filter position in the filter, for a tensor map in im2col mode of four
# dimensions, and of five, where there are groups (CUDA driver API, cuTensorMapEncodeIm2col).
IM2COL_BITS, GROUPED_IM2COL_BITS = 8, 5


@dataclass(frozen=True, slots=True)
class Boxes:
    """A stage's copies of each operand: `count` boxes of `channels` channels."""

    channels: int
    count: int

    @property
    def row_bytes(self) -> int:
        """Bytes of a pixel's, or filter's, channels in a box: also the width of its swizzle."""
        return HALF_BYTES * self.channels

    def stage_bytes(self, rows: int) -> int:
        """Shared memory of a stage in bytes, of so many pixels and filters."""
        return self.count * self.row_bytes * rows

    def requests(self, problem: ConvProblem, rows: int) -> float:
        """The lines of the L2 cache that a stage's copies of so many pixels and filters touch, on average."""
        group_bytes = HALF_BYTES * problem.group_channels
        return self.count * rows * _lines(min(self.row_bytes, group_bytes), group_bytes)

    def stages(self, problem: ConvProblem) -> int:
        """Stages of the whole reduction of a problem."""
        return ceil_div(problem.filter_area * ceil_div(problem.group_channels, self.channels), self.count)

    def __str__(self) -> str:
        return f"{self.count}x{self.channels}"


@cache
def _lines(width: int, pitch: int) -> float:
    """The mean number of cache lines that a row of `width` bytes touches, where rows start at multiples of `pitch`."""
    starts = range(0, LINE_BYTES, gcd(pitch, LINE_BYTES))
    return sum(ceil_div(start + width, LINE_BYTES) for start in starts) / len(starts)


BOXES = (Boxes(16, 4), Boxes(32, 2), Boxes(32, 4), Boxes(64, 1), Boxes(64, 2))


@dataclass(frozen=True, slots=True)
class StageCosts:
    """The constants that both cost models have, in microseconds of what each says."""

    start: float = constant("a launch, and a block from start to end, without its stages and outputs")
    latency: float = constant("a stage's steps of a producer and a consumer")
    box: float = constant("added latency for each box of a stage but the first")
    load: float = constant("a copy's latency, which the stages of the ring share")
    load_bytes: float = constant("added latency of a copy for 2**14 bytes")
    multiply: float = constant("an SM's time for 2**20 multiply-adds")
    request: float = constant("an SM's time to copy 2**7 cache lines")
    crowd: float = constant("added to that where all SMs copy")
    traffic: float = constant("2**20 bytes that all SMs copy, through the L2 cache")
    write: float = constant("an SM's time to write 2**12 outputs")
    memory: float = constant("2**20 bytes of operands through device memory")


Config = TypeVar("Config")
Costs = TypeVar("Costs")


class ChannelsLast(ListedVariants[Config, Costs]):  # type: ignore[type-var]
    """An algorithm for channels-last tensors in half precision, with bias, residual and activation in its main kernel.

    A subclass plans problems whose channels are a multiple of 8; others are padded ahead (pad_channels.py). Files list
    variants of both types at once, without the macro BF16.
    """

    precisions = HALVES
    fuses_residual = True
    fuses_activations = True
    writes_slices = True

    def variants(self, arch: str) -> list[Macros]:
        """The listed variants for each element; none without Hopper's instructions."""
        if arch != HOPPER_ARCH:
            return []
        return [macros | {BF16_MACRO: bf16} for macros in listed(self.source) for bf16 in (0, 1)]

    @abstractmethod
    def configurations(self, problem: ConvProblem, device: DeviceSpec) -> list[Config]:
        """Every configuration of the main kernel; raises UnsupportedProblem where there is none."""

    @abstractmethod
    def main_us(self, problem: ConvProblem, device: DeviceSpec, config: Config, costs: Costs) -> float:
        """The device time of the main kernel in microseconds."""

    @abstractmethod
    def main_launch(
        self, problem: ConvProblem, config: Config, options: CallOptions, operands: tuple[Address, Address]
    ) -> Launch:
        """The launch of the main kernel; operands: where it finds input and weight."""

    def candidates(self, problem: ConvProblem, device: DeviceSpec) -> list[Config]:
        """Every configuration that can run; raises UnsupportedProblem where there is none."""
        check(problem, device)
        found = self.configurations(on_padded(problem), device)
        more = pad_channels.workspace_bytes(problem)
        return [replace(one, workspace_bytes=more) for one in found] if more else found  # type: ignore[type-var]

    def estimate_us(self, problem: ConvProblem, device: DeviceSpec, config: Config, costs: Costs) -> float:
        """The device time of all kernels in microseconds, by the cost model with the given constants."""
        return self.main_us(on_padded(problem), device, config, costs) + pad_channels.predicted_us(problem)

    def kernels(self, problem: ConvProblem, config: Config, options: CallOptions) -> tuple[Launch, ...]:
        """The launch of the main kernel, which waits for the kernel ahead itself, behind that which pads channels."""
        padding = pad_channels.launches(problem)
        if padding:  # weights in the workspace are not constant
            options = replace(options, packed=False)
        main = self.main_launch(on_padded(problem), config, options, pad_channels.operands(problem))
        return (*padding, main)

    def fulfilled(self, problem: ConvProblem, config: Config, options: CallOptions) -> CallOptions:
        """The options as they are: constant weights are not packed, but read before the kernel ahead ends."""
        return options

    def _possible(self, problem: ConvProblem, options: CallOptions) -> CallOptions:
        return options


def longest(*times_us: float) -> float:
    """About the longest of times that overlap, but smooth: the norm of exponent 4."""
    return sum(us**4 for us in times_us) ** 0.25


def stage_us(
    costs: StageCosts,
    problem: ConvProblem,
    boxes: Boxes,
    *,
    products: int,
    rows: int,
    ring: int,
    step: float,
    busy: float,
    resident: int,
) -> float:
    """The time of a stage in microseconds: about the longest of its products, its copies and its steps.

    products: multiply-adds. rows: pixels and filters that are copied. ring: stages of the ring. A step waits for a copy
    that began as many stages ago. step: the steps' own latency in microseconds. busy: the share of the SMs that copy.
    resident: blocks of an SM, which share its throughput.
    """
    copy = costs.request * boxes.requests(problem, rows) / 2**7 * (1 + costs.crowd * min(1.0, busy))
    waiting = (costs.load + costs.load_bytes * boxes.stage_bytes(rows) / 2**14) / ring
    return longest(costs.multiply * products / 2**20 * resident, copy * resident, max(step, waiting))


def check(problem: ConvProblem, device: DeviceSpec) -> None:
    """Raise UnsupportedProblem for a problem that tensor maps and the kernels' integers do not reach."""
    require_hopper(problem, device)
    p = problem
    if not p.is_half:
        raise UnsupportedProblem(f"{p.label}: precision={p.precision!r}, must be one of {', '.join(HALVES)}")
    if p.groups > 1 and p.group_channels % VECTOR_CHANNELS:
        raise UnsupportedProblem(
            f"{p.label}: {p.group_channels} channels in each of {p.groups} groups, and half precision is computed with "
            f"one group, or with a multiple of {VECTOR_CHANNELS} channels in each"
        )
    pixels = p.n * p.out_pixels
    sizes = [
        ("output pixels", pixels + 256),
        ("filters", p.m + 256),
        ("weights of a filter", p.filter_area * (p.group_channels + 64)),
    ]
    check_sizes(p, "half precision", [(what, size, MAX_INDEX) for what, size in sizes])
    lower, upper = corners_of(p)
    offsets = (p.kh - 1) * p.dilation_h, (p.kw - 1) * p.dilation_w
    limit = 2 ** (IM2COL_BITS if p.groups == 1 else GROUPED_IM2COL_BITS)
    within = min(*lower, *upper) >= -limit // 2 and max(*lower, *upper) < limit // 2
    if not within or max(offsets) >= limit or max(p.stride_h, p.stride_w) > MAX_STRIDE:
        precision = "half precision" if p.groups == 1 else "half precision with groups"
        raise UnsupportedProblem(
            f"{p.label}: {precision} is computed with strides up to {MAX_STRIDE}, filters of up to {limit} rows and "
            f"columns with their dilation, and padding and filters that reach up to {limit // 2 - 1} beyond an image's "
            "ends"
        )


def corners_of(problem: ConvProblem) -> tuple[tuple[int, int], tuple[int, int]]:
    """Where filters start, as (column, row): the first from the image's first pixel, the last from its last pixel."""
    p = problem
    columns, rows = (p.out_w - 1) * p.stride_w, (p.out_h - 1) * p.stride_h
    return (-p.pad_w, -p.pad_h), (columns - p.pad_w + 1 - p.w, rows - p.pad_h + 1 - p.h)


def pixel_map(problem: ConvProblem, boxes: Boxes, pixels: int, of: Address) -> TensorMap:
    """The map by which one filter position of `pixels` successive output pixels is copied.

    Groups are a fifth dimension. Copies then run on from image to image as from plane to plane of a 3D convolution, and
    write zeros for the channels behind those of the group.
    """
    p = problem
    pixel = HALF_BYTES * p.c
    sizes, strides = (p.group_channels, p.w, p.h, p.n), (pixel, pixel * p.w, pixel * p.w * p.h)
    groups, group_strides, images = ((p.groups,), (HALF_BYTES * p.group_channels,), (0,)) if p.groups > 1 else ((),) * 3
    lower, upper = corners_of(p)
    return TensorMap(
        of, p.precision, (*sizes, *groups), (*strides, *group_strides), (boxes.channels, pixels), boxes.row_bytes,
        ((*lower, *images), (*upper, *images)), (p.stride_w, p.stride_h),
    )  # fmt: skip


def weight_map(problem: ConvProblem, boxes: Boxes, filters: int, of: Address) -> TensorMap:
    """The map by which one filter position of `filters` successive filters is copied."""
    p = problem
    position = HALF_BYTES * p.group_channels
    sizes, strides = (p.group_channels, p.filter_area, p.m), (position, position * p.filter_area)
    return TensorMap(of, p.precision, sizes, strides, (boxes.channels, 1, filters), boxes.row_bytes)


def output_map(problem: ConvProblem, box_filters: int, options: CallOptions) -> TensorMap:
    """The map by which 64 pixels of `box_filters` filters of a group are copied to the output."""
    p = problem
    groups = ((p.groups, HALF_BYTES * p.group_filters, 1),) if p.groups > 1 else ()
    pixels = (p.n * p.out_pixels, HALF_BYTES * options.output_planes(p), WARPGROUP_PIXELS)
    sizes, strides, box = zip(*groups, pixels, strict=True)
    sizes, box = (p.group_filters, *sizes), (box_filters, *box)
    return TensorMap(OUTPUT, p.precision, sizes, strides, box, HALF_BYTES * box_filters)


def macros_of(
    problem: ConvProblem, boxes: Boxes, pixels: int, warpgroup_filters: int, filter_warpgroups: int = 1
) -> Macros:
    """The macros that all kernels of the family have, without that of the element."""
    return {
        GROUPED_MACRO: int(problem.groups > 1),
        "PIXELS": pixels,
        "WARPGROUP_FILTERS": warpgroup_filters,
        "FILTER_WARPGROUPS": filter_warpgroups,
        "BOX_CHANNELS": boxes.channels,
        "BOXES": boxes.count,
    }


def launched(source: Path, problem: ConvProblem, forms: Forms) -> Macros:
    """The macros of the fastest form that is listed, or of the first, for the type of a problem."""
    return fastest_listed(source, forms) | {BF16_MACRO: int(problem.precision == BF16)}


def filter_tiles(problem: ConvProblem, filters: int) -> int:
    """The tiles of so many filters, of which each is of one group, over the filters of all groups."""
    return problem.groups * ceil_div(problem.group_filters, filters)


def arguments_of(problem: ConvProblem, options: CallOptions, filters: int) -> tuple[Any, ...]:
    """The kernels' arguments from `bias` to `by_group_tiles`; filters: those of a tile."""
    p = problem
    tiles = filter_tiles(p, filters), ceil_div(p.group_filters, filters)
    dividers = map(packed_divisor, (p.out_pixels, p.out_w, *tiles))
    return (
        BIAS, RESIDUAL, OUTPUT, options.output_planes(p), p.n * p.out_pixels, p.m, p.group_filters, p.group_channels,
        p.kh, p.kw, p.stride_h, p.stride_w, p.pad_h, p.pad_w, p.dilation_h, p.dilation_w, p.out_pixels, p.out_w,
        *tiles, *dividers,
    )  # fmt: skip


def last_arguments(problem: ConvProblem, ring: int, options: CallOptions) -> tuple[int, ...]:
    """The kernels' arguments `ring_stages`, `activation`, `numbers`, `paired` and `weights_early`."""
    even = problem.group_filters % 2 == 0 and options.output_planes(problem) % 2 == 0
    kind, numbers = options.activation_arguments
    return ring, kind, numbers, int(options.aligned and even), int(options.packed)


def has_whole_rows(problem: ConvProblem, options: CallOptions) -> bool:
    """Whether the filters of every pixel and group start at a multiple of 16 bytes, so that a tensor map may write."""
    starts = options.output_planes(problem), problem.group_filters if problem.groups > 1 else 0
    return options.aligned and all(start % VECTOR_CHANNELS == 0 for start in starts)


@lru_cache(maxsize=4096)
def stages_that_fit(stage_bytes: int, other_bytes: int, device: DeviceSpec, blocks: int, unit: int = 1) -> int:
    """The stages of a ring with which an SM holds a number of blocks: a multiple of `unit` up to MAX_STAGES."""
    room = device.shared_bytes_per_sm // blocks - (device.shared_bytes_per_sm - device.shared_bytes_per_block)
    return min(MAX_STAGES, (room - other_bytes) // (stage_bytes + 2 * BARRIER_BYTES)) // unit * unit
