"""The parts common to the algorithms for channels-last tensors: in half precision, and of float32 in TF32.

These are the limits, the boxes of a stage and their times, tensor maps, arguments and options.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

from cuconv.algorithms import base
from cuconv.algorithms.base import Algorithm, CallOptions, Configuration, Macros
from cuconv.algorithms.channels_last.pad_channels import VECTOR_CHANNELS, Operands, PadsChannels
from cuconv.algorithms.common.divider import packed_divisor
from cuconv.algorithms.common.limits import HOPPER_ARCH, MAX_INDEX, check_sizes, require_hopper
from cuconv.algorithms.common.listed import Forms, ListedVariants, least_slowdown, listed
from cuconv.core.costs import constant
from cuconv.core.launch import BIAS, OUTPUT, RESIDUAL, Address, TensorMap
from cuconv.core.problem import BF16, CHANNELS_LAST, HALVES, TF32_LAST, ConvProblem, UnsupportedProblem, ceil_div
from cuconv.device import DeviceSpec

WARPGROUP_PIXELS = 64  # rows of tile A of a wgmma instruction
CONSUMER_THREADS = 128  # a warpgroup
PRODUCER_THREADS = 64  # a warp for each operand
BARRIER_BYTES = 8
BF16_MACRO, TF32_MACRO, GROUPED_MACRO = "BF16", "TF32", "GROUPED"
MAX_STAGES = 16
VECTOR_BYTES = 16  # strides of a tensor map are multiples of them
TF32_CHANNELS = 4  # float32 of a vector
# wgmma multiplies 64 rows with N filters in N / 2 clocks, and reads them from shared memory in 16 + N / 4: together as
# long as products of about this many filters more.
READ_FILTERS = 21
MAX_STRIDE = 8  # the limit of a tensor map
# Bits of a corner, which is signed, and of a filter position in the filter, for a tensor map in im2col mode of four
# dimensions, and of five, where there are groups (CUDA driver API, cuTensorMapEncodeIm2col).
IM2COL_BITS, GROUPED_IM2COL_BITS = 8, 5


@dataclass(frozen=True, slots=True)
class Boxes:
    """A stage's copies of each operand: `count` boxes of `channels` channels in half precision, or half as many."""

    channels: int
    count: int

    @property
    def row_bytes(self) -> int:
        """Bytes of a pixel's, or filter's, channels in a box: also the width of its swizzle."""
        return VECTOR_BYTES // VECTOR_CHANNELS * self.channels

    def stage_bytes(self, rows: int) -> int:
        """Shared memory of a stage in bytes, of so many pixels and filters."""
        return self.count * self.row_bytes * rows

    def stages(self, problem: ConvProblem) -> int:
        """Stages of the whole reduction of a problem."""
        return ceil_div(problem.filter_area * ceil_div(problem.group_channels, self.elements(problem)), self.count)

    def elements(self, problem: ConvProblem) -> int:
        """The channels of a box, in a problem's type."""
        return self.row_bytes // problem.element_bytes

    def __str__(self) -> str:
        return f"{self.count}x{self.channels}"


BOXES = (Boxes(16, 4), Boxes(32, 2), Boxes(64, 1), Boxes(64, 2))


@dataclass(frozen=True, slots=True)
class StageCosts:
    """The constants that both cost models have, in microseconds; each says for what."""

    start: float = constant("a launch, and a block from start to end, without its stages and outputs")
    latency: float = constant("a stage's steps of a producer and a consumer")
    load: float = constant("a copy's latency where the ring is filled again, which its stages share")
    multiply: float = constant("an SM's time for 2**20 multiply-adds")
    box: float = constant("an SM's time to start the copy of a box")
    row: float = constant("an SM's time to copy 2**7 rows of boxes, without their bytes")
    inside: float = constant("added for 2**7 times 16 bytes of rows that exist")
    outside: float = constant("added for 2**7 times 16 bytes of rows behind the last channel")
    crowd: float = constant("the factor, less 1, by which copies take longer where all SMs copy")
    traffic: float = constant("2**20 bytes that all SMs copy, through the L2 cache")
    write: float = constant("an SM's time to write 2**12 outputs")
    write_single: float = constant("added to the writing of 2**12 outputs where threads write one at a time")
    memory: float = constant("2**20 bytes of operands through device memory")


class OfVariant(Configuration, Protocol):
    """A launch configuration that knows its kernel variant."""

    @property
    def variant(self) -> tuple[Any, ...]:
        """The parts of the configuration that a kernel variant is compiled for."""


Config = TypeVar("Config", bound=OfVariant)
Costs = TypeVar("Costs")


class FusesAll(Algorithm[base.Config, Costs]):
    """An algorithm, of half precision at least, that fuses bias, residual, activation and slices as a call asks for.

    Constant weights are not packed. Kernels read them before the kernel ahead ends, unless it copies them.
    """

    precisions: ClassVar[tuple[str, ...]] = HALVES
    fuses_residual = True
    writes_slices = True

    def fulfilled(self, problem: ConvProblem, config: base.Config, options: CallOptions) -> CallOptions:
        """The options as they are."""
        return options

    def _possible(self, problem: ConvProblem, options: CallOptions) -> CallOptions:
        return options


class ChannelsLast(PadsChannels[Config, Costs], FusesAll[Config, Costs], ListedVariants[Config, Costs]):
    """An algorithm for channels-last tensors, with bias, residual and activation in its main kernel.

    A subclass plans problems whose operands tensor maps can read; others are copied ahead (pad_channels.py). A row of
    the list stands for several variants, and has none of the macros in which they differ.
    """

    def variants(self, arch: str) -> list[Macros]:
        """The variants that the list stands for; none without Hopper's instructions."""
        return [one for row in listed(self.source) for one in self.of_row(row)] if arch == HOPPER_ARCH else []

    precisions = CHANNELS_LAST

    def of_row(self, macros: Macros) -> list[Macros]:
        """The kernel variants that a row of the list stands for: one for each type."""
        return [macros | of_type for of_type in ({BF16_MACRO: 0}, {BF16_MACRO: 1}, {TF32_MACRO: 1})]

    @abstractmethod
    def row_of(self, variant: tuple[Any, ...], grouped: bool) -> Macros:
        """The row of the list for the `variant` of a configuration, with groups or without."""

    def forms(self, problem: ConvProblem, config: Config, options: CallOptions) -> Forms:
        """The one row of a configuration."""
        return [(1.0, self.row_of(config.variant, problem.groups > 1))]

    def slowdown(self, problem: ConvProblem, device: DeviceSpec, config: Config, options: CallOptions) -> float:
        """1 where the list has the row of a configuration, inf otherwise: it has no slower form."""
        return _slowdown(self, config.variant, problem.groups > 1)

    def candidates(self, problem: ConvProblem, device: DeviceSpec) -> list[Config]:
        """Every configuration that can run; raises UnsupportedProblem where there is none."""
        check(problem, device)
        return super().candidates(problem, device)


@cache
def _slowdown(algorithm: ChannelsLast[Any, Any], variant: tuple[Any, ...], grouped: bool) -> float:
    """1 where an algorithm lists the row of a configuration's variant, inf otherwise."""
    return least_slowdown(algorithm.source, [(1.0, algorithm.row_of(variant, grouped))])


def longest(*times_us: float) -> float:
    """About the longest of times that overlap, but smooth: the norm of exponent 4."""
    return sum(us**4 for us in times_us) ** 0.25


class StageTimes(NamedTuple):
    """The times of a block's stages in microseconds.

    each   a stage among others, whose copies, products and steps overlap
    first  the first stage, whose products wait for its copies
    row    a copied row of all boxes of a stage
    """

    each: float
    first: float
    row: float


def products_of(boxes: Boxes, pixels: int, warpgroup_filters: int, filter_warpgroups: int = 1) -> int:
    """The multiply-adds of a stage, with as many as take the time in which wgmma reads the rows of pixels.

    TF32 has half as many in a box, and each takes twice as long.
    """
    return pixels * filter_warpgroups * (warpgroup_filters + READ_FILTERS) * boxes.channels * boxes.count


def stage_times(
    costs: StageCosts,
    problem: ConvProblem,
    boxes: Boxes,
    *,
    products: int,
    rows: int,
    absent: float,
    operands: int,
    ring: int,
    stages: int,
    step: float,
    busy: float,
    resident: int,
) -> StageTimes:
    """The times of a stage: each is about the longest of its products, its copies and its steps.

    products: as by `products_of`. rows: pixels and filters that are copied, of one or two operands; `absent` of them
    are filters behind the last one. ring: stages of the ring. stages: those of a block. Where a ring is filled again, a
    step waits for a copy that began a ring ago. step: the steps' own latency in microseconds. busy: the share of the
    SMs that copy. resident: blocks of an SM, which share its throughput.
    """
    crowd = 1 + costs.crowd * min(1.0, busy)
    crowded = resident * boxes.count * crowd
    row = crowded * _rows_us(costs, problem.group_channels * problem.element_bytes // VECTOR_BYTES, boxes) / 2**7
    absent_row = crowded * costs.outside * (boxes.row_bytes // VECTOR_BYTES) / 2**7  # zeros, as behind the last channel
    rows_us = (rows - absent) * row + absent * absent_row
    multiply, copy = costs.multiply * products / 2**20 * resident, rows_us + operands * costs.box * crowded
    latency = max(step, costs.load * crowd / ring if ring < stages else 0.0)
    return StageTimes(longest(multiply, copy, latency), multiply + copy + latency, row)


def _rows_us(costs: StageCosts, vectors: int, boxes: Boxes) -> float:
    """The time of an SM to copy 2**7 rows of boxes in microseconds, where no other SM copies.

    A pixel has so many vectors of 16 bytes; a row is filled with zeros behind the last one. Where they are odd in
    number, rows start at odd multiples of 16 bytes, and take twice as long.
    """
    of_row = boxes.row_bytes // VECTOR_BYTES
    inside, slowdown = vectors / ceil_div(vectors, of_row), 1 + vectors % 2
    outside = of_row - inside
    return slowdown * (costs.row + costs.inside * inside) + costs.outside * outside


def check(problem: ConvProblem, device: DeviceSpec) -> None:
    """Raise UnsupportedProblem for a problem that tensor maps and the kernels' integers do not reach."""
    require_hopper(problem, device)
    p = problem
    if not p.is_channels_last:
        raise UnsupportedProblem(f"{p.label}: precision={p.precision!r}, must be one of {', '.join(CHANNELS_LAST)}")
    if p.precision == TF32_LAST and p.group_channels % TF32_CHANNELS:
        raise UnsupportedProblem(
            f"{p.label}: {p.group_channels} channels in each of {p.groups} groups, and TF32 in channels last takes a "
            f"multiple of {TF32_CHANNELS}: make the tensors contiguous"
        )
    if p.is_half and p.groups > 1 and p.group_channels % VECTOR_CHANNELS:
        raise UnsupportedProblem(
            f"{p.label}: {p.group_channels} channels in each of {p.groups} groups, and half precision takes a multiple "
            f"of {VECTOR_CHANNELS} channels, in all, and in each group unless it has 2 or 4 and as many filters"
        )
    pixels = p.n * p.out_pixels
    sizes = [
        ("output pixels", pixels + 256),
        ("filters", p.m + 256),
        ("weights of a filter", p.filter_area * (p.group_channels + 64)),
    ]
    check_sizes(p, "channels last", [(what, size, MAX_INDEX) for what, size in sizes])
    lower, upper = corners_of(p)
    offsets = (p.kh - 1) * p.dilation_h, (p.kw - 1) * p.dilation_w
    limit = 2 ** (IM2COL_BITS if p.groups == 1 else GROUPED_IM2COL_BITS)
    within = min(*lower, *upper) >= -limit // 2 and max(*lower, *upper) < limit // 2
    if not within or max(offsets) >= limit or max(p.stride_h, p.stride_w) > MAX_STRIDE:
        what = "channels last" if p.groups == 1 else "channels last with groups"
        raise UnsupportedProblem(
            f"{p.label}: {what} is computed with strides up to {MAX_STRIDE}, filters of up to {limit} rows and "
            f"columns with their dilation, and padding and filters that reach up to {limit // 2 - 1} beyond an image's "
            "ends"
        )


def corners_of(problem: ConvProblem) -> tuple[tuple[int, int], tuple[int, int]]:
    """Where filters start, as (column, row): the first from the image's first pixel, the last from its last pixel."""
    p = problem
    columns, rows = (p.out_w - 1) * p.stride_w, (p.out_h - 1) * p.stride_h
    return (-p.pad_w, -p.pad_h), (columns - p.pad_w + 1 - p.w, rows - p.pad_h + 1 - p.h)


def pixel_map(problem: ConvProblem, boxes: Boxes, pixels: int, operands: Operands) -> TensorMap:
    """The map by which one filter position of `pixels` successive output pixels is copied.

    Groups are a fifth dimension. Copies then run on from image to image as from plane to plane of a 3D convolution, and
    write zeros for the channels behind those of the group.
    """
    p, pixel, row = problem, problem.element_bytes * operands.pixel, problem.element_bytes * operands.row
    sizes, strides = (p.group_channels, p.w, p.h, p.n), (pixel, row, row * p.h)
    group_bytes = p.element_bytes * p.group_channels
    groups, group_strides, images = ((p.groups,), (group_bytes,), (0,)) if p.groups > 1 else ((),) * 3
    (lower, upper), box = corners_of(p), (boxes.elements(p), pixels)
    return TensorMap(
        operands.input, p.precision, (*sizes, *groups), (*strides, *group_strides), box, boxes.row_bytes,
        ((*lower, *images), (*upper, *images)), (p.stride_w, p.stride_h),
    )  # fmt: skip


def weight_map(problem: ConvProblem, boxes: Boxes, filters: int, operands: Operands) -> TensorMap:
    """The map by which one filter position of `filters` successive filters is copied."""
    p, position = problem, problem.element_bytes * operands.position
    sizes, strides = (p.group_channels, p.filter_area, p.m), (position, position * p.filter_area)
    box = boxes.elements(p), 1, filters
    return TensorMap(operands.weight, p.precision, sizes, strides, box, boxes.row_bytes)


def output_map(problem: ConvProblem, box_filters: int, planes: int, address: Address = OUTPUT) -> TensorMap:
    """The map by which 64 pixels of `box_filters` filters of a group are copied to the output, or from a residual.

    planes: the channels of the tensor.
    """
    p = problem
    groups = ((p.groups, p.element_bytes * p.group_filters, 1),) if p.groups > 1 else ()
    pixels = (p.n * p.out_pixels, p.element_bytes * planes, WARPGROUP_PIXELS)
    sizes, strides, box = zip(*groups, pixels, strict=True)
    sizes, box = (p.group_filters, *sizes), (box_filters, *box)
    return TensorMap(address, p.precision, sizes, strides, box, p.element_bytes * box_filters)


def macros_of(grouped: bool, boxes: Boxes, pixels: int, warpgroup_filters: int, filter_warpgroups: int = 1) -> Macros:
    """The macros that all kernels of the family have, without that of the element."""
    return {
        GROUPED_MACRO: int(grouped),
        "PIXELS": pixels,
        "WARPGROUP_FILTERS": warpgroup_filters,
        "FILTER_WARPGROUPS": filter_warpgroups,
        "BOX_CHANNELS": boxes.channels,
        "BOXES": boxes.count,
    }


def type_macro(problem: ConvProblem) -> Macros:
    """The macro of a problem's type."""
    return {TF32_MACRO: 1} if problem.precision == TF32_LAST else {BF16_MACRO: int(problem.precision == BF16)}


def filter_tiles(problem: ConvProblem, filters: int) -> int:
    """The tiles of so many filters, of which each is of one group, over the filters of all groups."""
    return problem.groups * ceil_div(problem.group_filters, filters)


def absent_filters(problem: ConvProblem, filters: int) -> float:
    """The filters of a tile of so many that are behind the last one of a group, in the mean of the tiles."""
    return filters - problem.group_filters / ceil_div(problem.group_filters, filters)


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
    """Whether the filters of every pixel and group start at a multiple of 16 bytes, in output and residual.

    Then tensor maps may write and read them. Threads write TF32, whose pairs of neighbours are as wide as is fast.
    """
    residual, groups = (problem.m if options.residual else 0), (problem.group_filters if problem.groups > 1 else 0)
    starts = options.output_planes(problem), residual, groups
    return problem.is_half and options.aligned and all(start % VECTOR_CHANNELS == 0 for start in starts)


@lru_cache(maxsize=4096)
def stages_that_fit(stage_bytes: int, other_bytes: int, device: DeviceSpec, blocks: int, unit: int = 1) -> int:
    """The stages of a ring with which an SM holds a number of blocks: a multiple of `unit` up to MAX_STAGES."""
    fit = (device.shared_bytes_of(blocks) - other_bytes) // (stage_bytes + 2 * BARRIER_BYTES)
    return min(MAX_STAGES, fit) // unit * unit
