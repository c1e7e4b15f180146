"""Copies of the operands where a tensor map cannot read channels as they are, as those of a network's first layer.

A tensor map needs strides of whole 16 bytes. `pad_channels.cu` copies input and weights to the workspace, the input
first, with more channels, which are zeros. Where the channels are few, a copy by the map would move little: then the
pixels that a row of a filter reads, which are neighbours in memory, become the channels of one wide pixel. So a 7x7
filter of 3 channels becomes one of 7x1 with 28 channels, and the windows of neighbouring outputs overlap in memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import gcd
from pathlib import Path

from cuconv.core.launch import INPUT, WEIGHT, WORKSPACE, Address, Launch
from cuconv.core.problem import HALF_BYTES, ConvProblem, ceil_div

SOURCE = Path(__file__).with_suffix(".cu")
THREADS = 256
VECTOR_CHANNELS = 8  # 16 bytes: strides of a tensor map are multiples of them
WHOLE_ROW = 64  # channels of the widest box: pixels of as many are not joined
# Microseconds of the launch, and for 2**20 bytes that it writes, on an H100: guesses.
LAUNCH_US, US_PER_MIB = 1.5, 0.5


@dataclass(frozen=True, slots=True)
class Operands:
    """Where the main kernel finds input and weight, and how they lie there, in elements.

    pixel      from where one filter reads its first column to where its neighbour in the row does, before the stride
    row        from one row of the input to the next
    position   from one filter position of the weights to the next
    """

    input: Address
    weight: Address
    pixel: int
    row: int
    position: int


@dataclass(frozen=True, slots=True)
class Copies:
    """The copies of a problem's operands.

    problem        the equal problem that the main kernel computes with them
    pixel          channels of a pixel
    left           pixels of zeros at the start of a row of the input
    input_vectors  vectors of eight elements in a row of the input
    weight_vectors the same in a row of a filter
    """

    problem: ConvProblem
    pixel: int
    left: int
    input_vectors: int
    weight_vectors: int


@lru_cache(maxsize=1024)
def copies_of(problem: ConvProblem) -> Copies | None:
    """The copies that a problem needs; None where a tensor map reads the operands as they are."""
    p = problem
    if p.c % VECTOR_CHANNELS == 0 or not p.is_half:
        return None
    shortest = VECTOR_CHANNELS // gcd(VECTOR_CHANNELS, p.stride_w)  # so that windows start at multiples of 16 bytes
    joined = ceil_div(p.c, shortest) * shortest
    if p.kw > 1 and p.dilation_w == 1 and joined < WHOLE_ROW:
        equal = replace(p, c=p.kw * joined, w=p.out_w, kw=1, pad_w=0, more_w=0, stride_w=1)
        pixels = (p.out_w - 1) * p.stride_w + p.kw
        return Copies(equal, joined, p.pad_w, _vectors(pixels * joined), _vectors(p.kw * joined))
    padded = _vectors(p.c) * VECTOR_CHANNELS
    return Copies(replace(p, c=padded), padded, 0, _vectors(p.w * padded), _vectors(p.kw * padded))


def computed(problem: ConvProblem) -> ConvProblem:
    """The equal problem that the main kernel computes; the problem itself where nothing is copied."""
    copies = copies_of(problem)
    return problem if copies is None else copies.problem


def workspace_bytes(problem: ConvProblem) -> int:
    """The bytes of the copies; 0 where nothing is copied."""
    copies = copies_of(problem)
    return 0 if copies is None else HALF_BYTES * VECTOR_CHANNELS * sum(_all_vectors(problem, copies))


def operands(problem: ConvProblem) -> Operands:
    """The operands of the main kernel: the copies, or the call's own."""
    p, copies = problem, copies_of(problem)
    if copies is None:
        return Operands(INPUT, WEIGHT, p.c, p.c * p.w, p.group_channels)
    input_vectors, _ = _all_vectors(p, copies)
    behind = WORKSPACE + HALF_BYTES * VECTOR_CHANNELS * input_vectors
    is_joined = copies.problem.kw < p.kw
    pixel, position = (p.stride_w, p.kw) if is_joined else (1, 1)  # in pixels
    return Operands(
        WORKSPACE, behind, pixel * copies.pixel, copies.input_vectors * VECTOR_CHANNELS,
        _vectors(position * copies.pixel) * VECTOR_CHANNELS,
    )  # fmt: skip


def launches(problem: ConvProblem) -> tuple[Launch, ...]:
    """The launch that makes the copies; none where nothing is copied."""
    p, copies = problem, copies_of(problem)
    if copies is None:
        return ()
    arguments = (
        INPUT, WEIGHT, WORKSPACE, p.n * p.h, p.m * p.kh, p.c, copies.pixel, p.w, p.kw, copies.left,
        copies.input_vectors, copies.weight_vectors,
    )  # fmt: skip
    blocks = ceil_div(sum(_all_vectors(p, copies)), THREADS)
    return (Launch(SOURCE, {}, "pad_channels", blocks, THREADS, arguments, overlap=True),)


def variants() -> list[dict[str, int]]:
    """All kernel variants."""
    return [{}]


def predicted_us(problem: ConvProblem) -> float:
    """The predicted time of the copies in microseconds; 0 where nothing is copied."""
    size = workspace_bytes(problem)
    return LAUNCH_US + US_PER_MIB * size / 2**20 if size else 0.0


def _vectors(elements: int) -> int:
    """The vectors that hold a number of elements."""
    return ceil_div(elements, VECTOR_CHANNELS)


def _all_vectors(problem: ConvProblem, copies: Copies) -> tuple[int, int]:
    """The vectors of the input's copy, and of the weights'."""
    return problem.n * problem.h * copies.input_vectors, problem.m * problem.kh * copies.weight_vectors
