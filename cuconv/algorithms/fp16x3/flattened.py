"""How images are flattened for fp16x3: whole, or in strips of columns for a filter that is multiplied in pieces.

A position of a flattened image is a pixel or a zero of the padding. Whole images share the padding between neighbouring
rows; a dilation is a longer way from tap to tap. A strip has its own padding, so that a piece of the filter may begin
anywhere. With a dilation it has the outputs of one phase alone, and with a stride a piece has taps of one phase
(common/pieces.cuh): docs/fp16x3.md.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from math import ceil
from typing import NamedTuple

from cuconv.algorithms.common.pieces import Axis, axes
from cuconv.core.problem import ConvProblem

CHANNELS = 16  # a chunk is as deep as a tensor-core instruction
SLOT = 128  # positions: the unit of a chunk's size in shared memory
MAX_SLOTS = 9
# What is multiplied at once, a filter or a piece of one. Longer rows would lose accuracy: a row is a chain of products.
MAX_ROWS, MAX_COLUMNS, MAX_TAPS = 7, 11, 49
MIN_PIECE = 3  # rows or columns: pieces of fewer are not tried, but equal pieces may come out smaller
# Positions of a row for which a strip's slots are counted; strips are then as wide as their slots allow. Longer rows
# have longer halos, which leave less shared memory for stages.
MAX_PITCH = 63


class Cut(NamedTuple):
    """The rows and columns of a piece of the filter, and the outputs in a row of a strip."""

    kh: int
    kw: int
    columns: int


class Flattened(NamedTuple):
    """A problem as the kernel computes it.

    kh, kw     the rows and columns of what it multiplies at once: the filter, or a piece of it
    pitch      positions of a row
    rows       of an image or a strip, with the padding that it does not share
    strips     of the outputs of one phase
    halo       positions from the first tap to the last one
    positions  those of all images, up to the last output; the last tile's halo reads what follows
    chunks     of channels, for all pieces
    """

    kh: int
    kw: int
    pitch: int
    rows: int
    strips: int
    halo: int
    positions: int
    chunks: int

    def slots(self, positions: int) -> int:
        """The slots of a chunk that hold a tile of positions with its halo."""
        return ceil((positions + self.halo) / SLOT)


@lru_cache(maxsize=4096)
def flattened(problem: ConvProblem, cut: Cut | None) -> Flattened:
    """The problem with whole images and filters, or cut."""
    p, chunks = problem, ceil(problem.c / CHANNELS)
    if cut is None:
        pitch = p.w + p.pad_w  # the padding on the right of a row is that on the left of the next
        positions = _positions(p.n, p.h + p.pad_h, pitch, p.out_h, p.out_w)
        halo = (p.kh - 1) * p.dilation_h * pitch + (p.kw - 1) * p.dilation_w
        return Flattened(p.kh, p.kw, pitch, p.h + p.pad_h, 1, halo, positions, chunks)
    (rows, columns), pitch = axes(p), cut.columns + cut.kw - 1
    strips = ceil(ceil(p.out_w / columns.phases) / cut.columns)
    out_rows = ceil(p.out_h / rows.phases)
    strip_rows = out_rows + cut.kh - 1
    phases = min(rows.phases, p.out_h) * min(columns.phases, p.out_w)  # phases with at least one output
    positions = _positions(p.n * phases * strips, strip_rows, pitch, out_rows, cut.columns)
    pieces = rows.pieces(cut.kh) * columns.pieces(cut.kw)
    halo = (cut.kh - 1) * pitch + cut.kw - 1
    return Flattened(cut.kh, cut.kw, pitch, strip_rows, strips, halo, positions, pieces * chunks)


def _positions(stretches: int, rows: int, pitch: int, out_rows: int, out_columns: int) -> int:
    """The positions of images, or strips, up to the last output of the last one."""
    return ((stretches - 1) * rows + out_rows - 1) * pitch + out_columns


def has_single_taps(problem: ConvProblem) -> bool:
    """Whether every tap of the filter is alone in its phase."""
    return all(axis.taps == 1 for axis in axes(problem))


def is_whole(problem: ConvProblem) -> bool:
    """Whether images can stay whole: no stride, a small filter, and less padding than it reaches over.

    The zeros below and right of an image are those above and left of its neighbours: there may be fewer, but not more.
    """
    p = problem
    is_small = p.kh <= MAX_ROWS and p.kw <= MAX_COLUMNS and p.filter_area <= MAX_TAPS
    shares_padding = p.pad_h <= (p.kh - 1) * p.dilation_h and p.pad_w <= (p.kw - 1) * p.dilation_w
    return p.stride_h == p.stride_w == 1 and is_small and shares_padding and max(p.more_h, p.more_w) <= 0


def may_be_cut(problem: ConvProblem) -> bool:
    """Whether `cuts` may find any: where images cannot stay whole, or have long halos."""
    return not is_whole(problem) or not problem.is_dense or problem.w + problem.pad_w > MAX_PITCH


def cuts(problem: ConvProblem, positions: int) -> list[Cut]:
    """The cuts for a tile of a number of positions; strips are as wide as the tile's slots allow, and equally wide."""
    if not may_be_cut(problem):
        return []
    found = []
    rows, columns = axes(problem)
    width = ceil(problem.out_w / columns.phases)
    for kh, kw in product(_sizes(rows, MAX_ROWS), _sizes(columns, MAX_COLUMNS)):
        slots = ceil((positions + (kh - 1) * MAX_PITCH + kw - 1) / SLOT)
        most = width  # columns of a strip
        if kh > 1:
            most = (slots * SLOT - positions - (kw - 1)) // (kh - 1) - (kw - 1)
        if slots <= MAX_SLOTS and 1 < kh * kw <= MAX_TAPS:
            found.append(Cut(kh, kw, ceil(width / ceil(width / most))))
    return found


def _sizes(axis: Axis, most: int) -> list[int]:
    """The rows, or columns, that a piece of a filter may have: the least of which so many pieces cover all taps."""
    if axis.taps <= MIN_PIECE:
        return [axis.taps]
    return sorted({ceil(axis.taps / ceil(axis.taps / size)) for size in range(MIN_PIECE, most + 1)})
