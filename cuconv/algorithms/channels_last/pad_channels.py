"""Copies of the operands where a tensor map cannot read channels as they are, as those of a network's first layer.

A tensor map needs strides of whole 16 bytes. `pad_channels.cu` copies input and weights to the workspace, the input
first, with more channels, which are zeros. Where the channels are few, a copy by the map would move little: then the
pixels that a row of a filter reads, which are neighbours in memory, may become the channels of one wide pixel. So a 7x7
filter of 3 channels becomes one of 7x1 with 28 channels, and the windows of neighbouring outputs overlap in memory.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import lru_cache
from math import gcd
from pathlib import Path
from typing import TypeVar

from cuconv.algorithms.base import Algorithm, CallOptions, Configuration
from cuconv.algorithms.common.divider import packed_divisor
from cuconv.algorithms.common.limits import MAX_INDEX, check_sizes
from cuconv.core.launch import INPUT, WEIGHT, WORKSPACE, Address, Launch
from cuconv.core.problem import HALF_BYTES, ConvProblem, ceil_div
from cuconv.device import DeviceSpec

SOURCE = Path(__file__).with_suffix(".cu")
THREADS = 256
VECTOR_CHANNELS = 8  # 16 bytes: strides of a tensor map are multiples of them
MOST_LOADED = 4  # channels that a thread loads at once
WHOLE_ROW = 64  # channels of the widest box: pixels of as many are not joined
# Microseconds of the launch, and for 2**20 bytes that it writes, on an H100: guesses.
LAUNCH_US, US_PER_MIB = 1.5, 0.5

Config = TypeVar("Config", bound=Configuration)
Costs = TypeVar("Costs")


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

    of             the problem
    problem        the equal problem that the main kernel computes with them
    pixel          channels of a pixel
    left           pixels of zeros at the start of a row of the input
    input_vectors  vectors of eight elements in a row of the input
    weight_vectors the same in a row of a filter
    """

    of: ConvProblem
    problem: ConvProblem
    pixel: int
    left: int
    input_vectors: int
    weight_vectors: int

    @property
    def workspace_bytes(self) -> int:
        """The bytes of the copies."""
        return HALF_BYTES * VECTOR_CHANNELS * sum(self._all_vectors)

    @property
    def predicted_us(self) -> float:
        """The predicted time of the kernel in microseconds."""
        return LAUNCH_US + US_PER_MIB * self.workspace_bytes / 2**20

    @property
    def operands(self) -> Operands:
        """The operands of the main kernel."""
        behind = WORKSPACE + HALF_BYTES * VECTOR_CHANNELS * self._all_vectors[0]
        is_joined = self.problem.kw < self.of.kw
        pixel, position = (self.of.stride_w, self.of.kw) if is_joined else (1, 1)  # in pixels
        row, weights = self.input_vectors * VECTOR_CHANNELS, _vectors(position * self.pixel) * VECTOR_CHANNELS
        return Operands(WORKSPACE, behind, pixel * self.pixel, row, weights)

    def launch(self, aligned: bool) -> Launch:
        """The launch that makes the copies. aligned: whether the operands start at multiples of 16 bytes."""
        p = self.of
        arguments = (
            INPUT, WEIGHT, WORKSPACE, p.n * p.h, p.m * p.kh, p.c, self.pixel, packed_divisor(self.pixel), p.w, p.kw,
            self.left, self.input_vectors, packed_divisor(self.input_vectors), self.weight_vectors,
            packed_divisor(self.weight_vectors), gcd(MOST_LOADED, p.c) if aligned else 1,
        )  # fmt: skip
        blocks = ceil_div(sum(self._all_vectors), THREADS)
        return Launch(SOURCE, {}, "pad_channels", blocks, THREADS, arguments, overlap=True)

    @property
    def _all_vectors(self) -> tuple[int, int]:
        """The vectors of the input's copy, and of the weights'."""
        return self.of.n * self.of.h * self.input_vectors, self.of.m * self.of.kh * self.weight_vectors


@lru_cache(maxsize=1024)
def joined(problem: ConvProblem) -> Copies | None:
    """The copies whose pixels are joined where channels are few; None where a map reads the operands as they are.

    Raises UnsupportedProblem for more vectors than the kernel can count.
    """
    p = problem
    if p.c % VECTOR_CHANNELS == 0 or not p.is_half:
        return None
    shortest = VECTOR_CHANNELS // gcd(VECTOR_CHANNELS, p.stride_w)  # so that windows start at multiples of 16 bytes
    channels = ceil_div(p.c, shortest) * shortest
    if p.kw == 1 or p.dilation_w > 1 or channels >= WHOLE_ROW:
        return padded(p, _vectors(p.c))
    equal = replace(p, c=p.kw * channels, w=p.out_w, kw=1, pad_w=0, more_w=0, stride_w=1)
    pixels = (p.out_w - 1) * p.stride_w + p.kw
    return _checked(Copies(p, equal, channels, p.pad_w, _vectors(pixels * channels), _vectors(p.kw * channels)))


def padded(problem: ConvProblem, vectors: int) -> Copies:
    """The copies in which each pixel has so many vectors of eight channels; raises UnsupportedProblem as `joined`."""
    p, pixel = problem, vectors * VECTOR_CHANNELS
    return _checked(Copies(p, replace(p, c=pixel), pixel, 0, p.w * vectors, p.kw * vectors))


class PadsChannels(Algorithm[Config, Costs]):
    """An algorithm whose main kernel reads operands by tensor maps, behind the kernel that copies what these cannot."""

    @abstractmethod
    def configurations(self, problem: ConvProblem, device: DeviceSpec) -> list[Config]:
        """Every configuration of the main kernel; raises UnsupportedProblem where there is none."""

    @abstractmethod
    def main_us(self, problem: ConvProblem, device: DeviceSpec, config: Config, costs: Costs) -> float:
        """The device time of the main kernel in microseconds."""

    @abstractmethod
    def main_launch(self, problem: ConvProblem, config: Config, options: CallOptions, operands: Operands) -> Launch:
        """The launch of the main kernel; operands: where it finds input and weight."""

    def copies(self, problem: ConvProblem) -> Copies | None:
        """The copies that a problem needs, or None."""
        return joined(problem)

    def candidates(self, problem: ConvProblem, device: DeviceSpec) -> list[Config]:
        """Every configuration that can run; raises UnsupportedProblem where there is none."""
        copies = self.copies(problem)
        if copies is None:
            return self.configurations(problem, device)
        found = self.configurations(copies.problem, device)
        return [replace(one, workspace_bytes=copies.workspace_bytes) for one in found]  # type: ignore[type-var]

    def estimate_us(self, problem: ConvProblem, device: DeviceSpec, config: Config, costs: Costs) -> float:
        """The device time of all kernels in microseconds, by the cost model with the given constants."""
        copies = self.copies(problem)
        if copies is None:
            return self.main_us(problem, device, config, costs)
        return copies.predicted_us + self.main_us(copies.problem, device, config, costs)

    def kernels(self, problem: ConvProblem, config: Config, options: CallOptions) -> tuple[Launch, ...]:
        """The launch of the main kernel, which waits for the kernel ahead itself, behind that which copies operands."""
        copies = self.copies(problem)
        if copies is None:
            p = problem
            own = Operands(INPUT, WEIGHT, p.c, p.c * p.w, p.group_channels)
            return (self.main_launch(p, config, options, own),)
        unpacked = replace(options, packed=False)  # weights in the workspace are not constant
        main = self.main_launch(copies.problem, config, unpacked, copies.operands)
        return copies.launch(options.aligned), main


def variants() -> list[dict[str, int]]:
    """All kernel variants."""
    return [{}]


def _checked(copies: Copies) -> Copies:
    vectors = copies.workspace_bytes // (HALF_BYTES * VECTOR_CHANNELS)
    check_sizes(copies.of, "pad_channels", [("vectors of eight channels", vectors + THREADS, MAX_INDEX)])
    return copies


def _vectors(elements: int) -> int:
    """The vectors that hold a number of elements."""
    return ceil_div(elements, VECTOR_CHANNELS)
