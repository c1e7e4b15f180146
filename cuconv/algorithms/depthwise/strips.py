"""The strip of outputs that a thread of `depthwise` computes, and what it costs: registers, loads, vectors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, gcd
from typing import NamedTuple

from cuconv.problem import ConvProblem

MAX_BAND_WEIGHTS = 64  # that a thread holds at a time
STAGED_REGISTERS = 80  # of a thread at least, where a block copies planes
WARP = 32  # lanes


@dataclass(frozen=True, slots=True)
class Strip:
    """The outputs of a thread: rows x columns of `filters` planes, whose filters read the same group."""

    rows: int
    columns: int
    filters: int

    def units(self, problem: ConvProblem) -> int:
        """The blocks of `filters` filters, in all images."""
        return problem.n * problem.m // self.filters

    def grid(self, problem: ConvProblem) -> tuple[int, int]:
        """The strips down a plane and along a row."""
        return ceil(problem.out_h / self.rows), ceil(problem.out_w / self.columns)

    def count(self, problem: ConvProblem) -> int:
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


def vectors_of(problem: ConvProblem, strip: Strip, aligned: bool) -> tuple[int, int]:
    """The elements of a row that a strip loads, and that it stores, at a time.

    These are the first of `all_vectors` that the rows of input and output and the padding allow. aligned: whether the
    planes that it reads and writes start at a multiple of 16 bytes.
    """
    p, geometry = problem, geometry_of(problem)
    if not aligned or geometry is None:
        return 1, 1
    return next(
        (loaded, stored)
        for loaded, stored in all_vectors(geometry, strip)
        if p.w % loaded == p.out_w % stored == (p.pad_w - geometry.pad) % loaded == 0
    )


def cycles_of_load(problem: ConvProblem, strip: Strip, staged: bool) -> int:
    """The cycles for which a warp's load of a window occupies the L1 cache or shared memory.

    The lanes' elements spread over so many lines of the cache, or meet in a bank of shared memory so many times.
    """
    distance = strip.columns * problem.stride_w
    return gcd(distance, WARP) if staged else min(distance, WARP)


def registers_of(problem: ConvProblem, strip: Strip, staged: bool) -> int:
    """An estimate of a thread's registers: its sums, its weights, and nearly all windows of a channel at once."""
    return max(STAGED_REGISTERS if staged else 0, _registers(_layer_of(problem), strip))


def window_loads_of(problem: ConvProblem, strip: Strip, vector: int) -> int:
    """A thread's loads of windows of the input, of so many elements each."""
    return _window_loads(_layer_of(problem), strip, vector)


def band_of(kh: int, kw: int, filters: int) -> int:
    """The rows of the filter whose weights a thread holds at a time: as many as registers allow of those that divide.

    All rows of a filter together read each row of the input once; single rows read it again for each. filters: of a
    strip.
    """
    fitting = (rows for rows in range(kh, 0, -1) if filters * rows * kw <= MAX_BAND_WEIGHTS)
    return next((rows for rows in fitting if kh % rows == 0), 1)


class _Layer(NamedTuple):
    """The part of a layer that decides a thread's instructions. Layers of all sizes have it in common."""

    kh: int
    kw: int
    stride_h: int
    stride_w: int
    dilation_h: int
    dilation_w: int
    pad_w: int
    group_channels: int


def _layer_of(problem: ConvProblem) -> _Layer:
    p = problem
    return _Layer(p.kh, p.kw, p.stride_h, p.stride_w, p.dilation_h, p.dilation_w, p.pad_w, p.group_channels)


@lru_cache(maxsize=2**14)
def _registers(layer: _Layer, strip: Strip) -> int:
    """An estimate of the registers of a thread that stages nothing."""
    band = band_of(layer.kh, layer.kw, strip.filters)
    columns = _chunks(strip.columns, layer.kw, layer.stride_w, layer.dilation_w)
    rows = _chunks(strip.rows, band, layer.stride_h, layer.dilation_h)
    values = strip.filters * (strip.rows * strip.columns + band * layer.kw) + columns * rows * 9 // 10
    return values + (44 if layer.group_channels > 1 else 14)


@lru_cache(maxsize=2**14)
def _window_loads(layer: _Layer, strip: Strip, vector: int) -> int:
    band = band_of(layer.kh, layer.kw, strip.filters)
    rows = _chunks(strip.rows, band, layer.stride_h, layer.dilation_h) * layer.kh // band
    lead = -layer.pad_w % vector
    return (
        layer.group_channels * rows * _chunks(strip.columns, layer.kw, layer.stride_w, layer.dilation_w, lead, vector)
    )


def _chunks(outputs: int, kernel: int, stride: int, dilation: int, lead: int = 0, vector: int = 1) -> int:
    """The chunks of `vector` positions of the padded input that neighbouring outputs read on one axis.

    The first position that they read is the chunk's number `lead`.
    """
    positions = {output * stride + k * dilation for output in range(outputs) for k in range(kernel)}
    return len({(lead + position) // vector for position in positions})
