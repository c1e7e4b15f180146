"""The strip of outputs that a thread of `depthwise` computes, and what it costs: registers, loads, vectors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import gcd
from typing import NamedTuple

from cuconv.core.elementwise import Number
from cuconv.core.problem import ConvProblem, ceil_div

MAX_BAND_WEIGHTS = 64  # a thread holds no more at a time
STAGED_REGISTERS = 80  # a thread's at least, where a block copies planes
GENERAL_AT_ONCE = {1: 8, 4: 3}  # rows of a strip of the general kernel, and the filter positions it loads for at a time
GENERAL_REGISTERS = 64  # a thread's at most, in the general kernel
# Instructions of the general kernel's threads in units of a listed kernel's multiply-add, from the compiled code and
# times of 41 layers: for a product, for a filter position, and for a thread.
GENERAL_PRODUCT, GENERAL_POSITION, GENERAL_THREAD = 2.2, 5.0, 68.0
WARP = 32  # lanes


@dataclass(frozen=True, slots=True)
class Strip:
    """The outputs of a thread: rows x columns of `filters` planes, whose filters read the same group.

    Its fields may be arrays, for many strips.
    """

    rows: int
    columns: int
    filters: int

    def units(self, problem: ConvProblem) -> Number:
        """The blocks of `filters` filters, in all images."""
        return problem.n * problem.m // self.filters

    def grid(self, problem: ConvProblem) -> tuple[Number, Number]:
        """The strips down a plane and along a row."""
        return ceil_div(problem.out_h, self.rows), ceil_div(problem.out_w, self.columns)

    def count(self, problem: ConvProblem) -> Number:
        """The strips of a layer."""
        down, along = self.grid(problem)
        return self.units(problem) * down * along


@dataclass(frozen=True, slots=True)
class Geometry:
    """A geometry that has kernel variants of its own: a square filter, equal strides, no dilation."""

    kernel: int
    stride: int
    group_channels: int

    @property
    def pad(self) -> int:
        """The padding of the variants that load vectors; other paddings load single elements."""
        return self.kernel // 2


STRIPS = {
    Geometry(kernel, stride, channels): [
        *((Strip(rows, columns, filters), False) for rows, columns, filters in direct),
        *((Strip(rows, columns, 1), True) for rows, columns in staged),
    ]
    for kernel, stride, channels, direct, staged in (
        (
            *(3, 1, 1),
            ((1, 2, 1), (2, 2, 1), (2, 4, 1), (4, 1, 1), (4, 2, 1), (4, 4, 1), (7, 2, 1), (7, 4, 1)),
            ((1, 7), (7, 4), (7, 7)),
        ),
        (3, 2, 1, ((1, 2, 1), (2, 1, 1), (4, 1, 1), (4, 2, 1), (7, 1, 1), (7, 2, 1)), ()),
        (
            *(5, 1, 1),
            ((2, 2, 1), (2, 4, 1), (4, 1, 1), (4, 4, 1), (7, 2, 1), (7, 4, 1)),
            ((2, 7), (4, 4), (4, 7), (7, 4), (7, 7)),
        ),
        (5, 2, 1, ((1, 1, 1), (2, 1, 1), (2, 2, 1), (4, 2, 1), (7, 1, 1), (7, 2, 1)), ((2, 7),)),
        (7, 1, 1, ((2, 1, 1), (2, 2, 1), (2, 4, 1), (4, 4, 1), (7, 2, 1), (7, 4, 1)), ((4, 7), (7, 4))),
        (7, 2, 1, ((2, 1, 1), (4, 2, 1), (7, 1, 1)), ()),
        (3, 1, 4, ((2, 4, 2), (4, 4, 4)), ()),
        (3, 1, 8, ((2, 4, 1), (4, 4, 4)), ()),
        (3, 2, 8, ((4, 4, 4), (4, 2, 4)), ()),
    )
}
"""The strips of each listed geometry, each with whether blocks stage planes for it."""


def geometry_of(problem: ConvProblem) -> Geometry | None:
    """The listed geometry of a layer; None where the general kernel computes it.

    The strips of a group of several channels have up to four filters, and need as many in a group.
    """
    p = problem
    found = Geometry(p.kh, p.stride_h, p.group_channels)
    if (p.kw, p.stride_w, p.dilation_h, p.dilation_w) != (p.kh, p.stride_h, 1, 1) or found not in STRIPS:
        return None
    return found if all(p.group_filters % strip.filters == 0 for strip, _ in STRIPS[found]) else None


def all_vectors(geometry: Geometry, strip: Strip) -> list[tuple[int, int]]:
    """The elements of a row that variants of a strip load, and store, at a time; from most to least."""
    columns, distance = strip.columns, strip.columns * geometry.stride
    whole = (gcd(distance, 4) if columns != 7 else 1, gcd(columns, 4))
    half = [(2, 2)] if whole == (4, 4) and geometry.group_channels == 1 else []
    return list(dict.fromkeys([whole, *half, (1, 1)]))


class Kind(NamedTuple):
    """The part of a layer that decides what a thread does for a strip. Layers of many sizes have it in common.

    row, output_row: the lengths of a row of the input and of the output, modulo four.
    geometry: the listed one; None where the general kernel computes the layer.
    """

    kh: int
    kw: int
    stride_h: int
    stride_w: int
    dilation_h: int
    dilation_w: int
    pad_w: int
    group_channels: int
    row: int
    output_row: int
    geometry: Geometry | None


def kind_of(problem: ConvProblem) -> Kind:
    """The kind of a layer."""
    p = problem
    window = (p.kh, p.kw, p.stride_h, p.stride_w, p.dilation_h, p.dilation_w, p.pad_w, p.group_channels)
    return Kind(*window, p.w % 4, p.out_w % 4, geometry_of(p))


class Work(NamedTuple):
    """The work of a thread for a strip, or arrays for many strips.

    windows: loads of windows of the input. products: all multiply-adds. stores: of output. instructions: for each
    product. cycles: for which a warp's load of a window occupies the L1 cache or shared memory: the number of lines
    that the lanes' elements spread over, or of times that they meet in a bank. registers: of the thread.
    """

    windows: Number
    products: Number
    stores: Number
    instructions: Number
    cycles: Number
    registers: Number


@lru_cache(maxsize=2**14)
def work_of(kind: Kind, strip: Strip, staged: bool) -> Work:
    """The work of a thread for a strip whose operands are aligned. staged: whether blocks stage planes."""
    outputs, distance = strip.rows * strip.columns, strip.columns * kind.stride_w
    products = outputs * strip.filters * kind.group_channels * kind.kh * kind.kw
    cycles = gcd(distance, WARP) if staged else min(distance, WARP)
    if kind.geometry is None:  # every product loads its operand
        at_once = GENERAL_AT_ONCE[strip.rows]
        positions = kind.group_channels * at_once * ceil_div(kind.kh * kind.kw, at_once)
        issued = positions * (GENERAL_PRODUCT * outputs + GENERAL_POSITION) + GENERAL_THREAD
        return Work(products, products, outputs, issued / products, cycles, GENERAL_REGISTERS)
    vector, out_vector = vectors_of(kind, strip, aligned=True)
    registers = max(STAGED_REGISTERS if staged else 0, _registers(kind, strip))
    stores = outputs * strip.filters // out_vector
    return Work(_window_loads(kind, strip, vector), products, stores, 1, cycles, registers)


def vectors_of(kind: Kind, strip: Strip, aligned: bool) -> tuple[int, int]:
    """The elements of a row that a strip loads, and that it stores, at a time.

    These are the first of `all_vectors` that the rows of input and output and the padding allow. aligned: whether
    input and output start at a multiple of 16 bytes, or the block stages planes in shared memory.
    """
    if not aligned or kind.geometry is None:
        return 1, 1
    shift = kind.pad_w - kind.geometry.pad
    return next(
        (loaded, stored)
        for loaded, stored in all_vectors(kind.geometry, strip)
        if kind.row % loaded == kind.output_row % stored == shift % loaded == 0
    )


def band_of(kh: int, kw: int, filters: int) -> int:
    """The rows of the filter whose weights a thread holds at a time: as many as registers allow of those that divide.

    All rows of a filter together read each row of the input once; single rows read it again for each. filters: of a
    strip.
    """
    fitting = (rows for rows in range(kh, 0, -1) if filters * rows * kw <= MAX_BAND_WEIGHTS)
    return next((rows for rows in fitting if kh % rows == 0), 1)


def _registers(kind: Kind, strip: Strip) -> int:
    """An estimate of a thread's registers: its sums, its weights, and nearly all windows of a channel at once."""
    band = band_of(kind.kh, kind.kw, strip.filters)
    columns = _chunks(strip.columns, kind.kw, kind.stride_w, kind.dilation_w)
    rows = _chunks(strip.rows, band, kind.stride_h, kind.dilation_h)
    values = strip.filters * (strip.rows * strip.columns + band * kind.kw) + columns * rows * 9 // 10
    return values + (44 if kind.group_channels > 1 else 14)


def _window_loads(kind: Kind, strip: Strip, vector: int) -> int:
    band = band_of(kind.kh, kind.kw, strip.filters)
    rows = _chunks(strip.rows, band, kind.stride_h, kind.dilation_h) * kind.kh // band
    lead = -kind.pad_w % vector
    return kind.group_channels * rows * _chunks(strip.columns, kind.kw, kind.stride_w, kind.dilation_w, lead, vector)


def _chunks(outputs: int, kernel: int, stride: int, dilation: int, lead: int = 0, vector: int = 1) -> int:
    """The chunks of `vector` positions of the padded input that neighbouring outputs read on one axis.

    The first position that they read is the chunk's number `lead`.
    """
    positions = {output * stride + k * dilation for output in range(outputs) for k in range(kernel)}
    return len({(lead + position) // vector for position in positions})
