"""Copies of input and weights with more channels, where a tensor map cannot read theirs, such as 3 of a first layer.

A tensor map needs strides of whole 16 bytes. `pad_channels.cu` copies input and weights to the workspace, the input
first, and adds channels that are zero. A tensor map copies few channels slowly. So the pixels that a row of a filter
reads, which are neighbours in memory, may become the channels of one wide pixel. With stride 2, each pixel of 3
channels is padded to 4, and a 7x7 filter becomes a 7x1 filter of 7 x 4 = 28 channels. The wide pixels of neighbouring
outputs overlap in memory.
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
FULL_BOX = 64  # pixels of this many channels or more fill boxes of their own, so they are not joined
# Guesses, not fitted: microseconds of a launch, and for each MiB that it writes.
LAUNCH_US, US_PER_MIB = 1.5, 0.5

Config = TypeVar("Config", bound=Configuration)
Costs = TypeVar("Costs")


@dataclass(frozen=True, slots=True)
class Operands:
    """The main kernel's input and weight, and their strides in elements.

    pixel      between the first elements of neighbouring columns of the input
    row        between rows of the input
    position   between filter positions of the weights
    """

    input: Address
    weight: Address
    pixel: int
    row: int
    position: int


@dataclass(frozen=True, slots=True)
class Copies:
    """The copies of a problem's operands.

    original        the problem as it was given
    computed        the equal problem that the main kernel computes with the copies
    pixel_channels  channels of a pixel of the copies, before pixels are joined
    left            pixels of zeros at the start of a row of the input
    input_vectors   vectors of eight elements in a row of the input
    weight_vectors  the same in a row of a filter
    """

    original: ConvProblem
    computed: ConvProblem
    pixel_channels: int
    left: int
    input_vectors: int
    weight_vectors: int

    @property
    def vectors(self) -> int:
        """The vectors of both copies."""
        p = self.original
        return self._all_input_vectors + p.m * p.kh * self.weight_vectors

    @property
    def workspace_bytes(self) -> int:
        """The bytes of the copies."""
        return HALF_BYTES * VECTOR_CHANNELS * self.vectors

    @property
    def predicted_us(self) -> float:
        """The predicted time of the kernel in microseconds."""
        return LAUNCH_US + US_PER_MIB * self.workspace_bytes / 2**20

    @property
    def operands(self) -> Operands:
        """The operands of the main kernel."""
        p, weight = self.original, WORKSPACE + HALF_BYTES * VECTOR_CHANNELS * self._all_input_vectors
        is_joined = self.computed.kw < p.kw
        pixels_apart, position_pixels = (p.stride_w, p.kw) if is_joined else (1, 1)
        position = _vectors(position_pixels * self.pixel_channels) * VECTOR_CHANNELS
        row = self.input_vectors * VECTOR_CHANNELS
        return Operands(WORKSPACE, weight, pixels_apart * self.pixel_channels, row, position)

    def launch(self, aligned: bool) -> Launch:
        """The launch that makes the copies. aligned: whether the operands start at multiples of 16 bytes."""
        p, pixel = self.original, self.pixel_channels
        arguments = (
            INPUT, WEIGHT, WORKSPACE, p.n * p.h, p.m * p.kh, p.c, pixel, packed_divisor(pixel), p.w, p.kw, self.left,
            self.input_vectors, packed_divisor(self.input_vectors), self.weight_vectors,
            packed_divisor(self.weight_vectors), gcd(MOST_LOADED, p.c) if aligned else 1,
        )  # fmt: skip
        blocks = ceil_div(self.vectors, THREADS)
        return Launch(SOURCE, {}, "pad_channels", blocks, THREADS, arguments, overlap=True)

    @property
    def _all_input_vectors(self) -> int:
        """The vectors of the input's copy."""
        return self.original.n * self.original.h * self.input_vectors


@lru_cache(maxsize=1024)
def copies_of(problem: ConvProblem) -> Copies | None:
    """The copies that a problem needs, or None where tensor maps read its operands as they are.

    Pixels of a filter row are joined unless the filter has one column, a dilation along the row, or FULL_BOX channels
    and more. Raises UnsupportedProblem for more vectors than the kernel can count.
    """
    p = problem
    if p.c % VECTOR_CHANNELS == 0 or not p.is_half:
        return None
    shortest = VECTOR_CHANNELS // gcd(VECTOR_CHANNELS, p.stride_w)  # so that windows start at multiples of 16 bytes
    channels = ceil_div(p.c, shortest) * shortest
    if p.kw == 1 or p.dilation_w > 1 or channels >= FULL_BOX:
        return padded(p, _vectors(p.c))
    equal = replace(p, c=p.kw * channels, w=p.out_w, kw=1, pad_w=0, more_w=0, stride_w=1)
    pixels = (p.out_w - 1) * p.stride_w + p.kw
    return _checked(Copies(p, equal, channels, p.pad_w, _vectors(pixels * channels), _vectors(p.kw * channels)))


@lru_cache(maxsize=1024)
def padded(problem: ConvProblem, vectors: int) -> Copies:
    """The copies in which a pixel has so many vectors of eight channels; raises UnsupportedProblem as `copies_of`."""
    p, pixel = problem, vectors * VECTOR_CHANNELS
    return _checked(Copies(p, replace(p, c=pixel), pixel, 0, p.w * vectors, p.kw * vectors))


class PadsChannels(Algorithm[Config, Costs]):
    """An algorithm whose main kernel reads by tensor maps, after a kernel that copies what these cannot read."""

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
        return copies_of(problem)

    def candidates(self, problem: ConvProblem, device: DeviceSpec) -> list[Config]:
        """Every configuration that can run; raises UnsupportedProblem where there is none."""
        copies = self.copies(problem)
        if copies is None:
            return self.configurations(problem, device)
        found = self.configurations(copies.computed, device)
        return [replace(one, workspace_bytes=copies.workspace_bytes) for one in found]  # type: ignore[type-var]

    def estimate_us(self, problem: ConvProblem, device: DeviceSpec, config: Config, costs: Costs) -> float:
        """The device time of all kernels in microseconds, by the cost model with the given constants."""
        copies = self.copies(problem)
        if copies is None:
            return self.main_us(problem, device, config, costs)
        return copies.predicted_us + self.main_us(copies.computed, device, config, costs)

    def kernels(self, problem: ConvProblem, config: Config, options: CallOptions) -> tuple[Launch, ...]:
        """The launch that copies operands, if they need it, and that of the main kernel, which waits itself."""
        copies = self.copies(problem)
        if copies is None:
            p = problem
            own = Operands(INPUT, WEIGHT, p.c, p.c * p.w, p.group_channels)
            return (self.main_launch(p, config, options, own),)
        unpacked = replace(options, packed=False)  # weights in the workspace are not constant
        main = self.main_launch(copies.computed, config, unpacked, copies.operands)
        return copies.launch(options.aligned), main


def variants() -> list[dict[str, int]]:
    """All kernel variants."""
    return [{}]


def _checked(copies: Copies) -> Copies:
    """The copies; raises UnsupportedProblem where the kernel cannot count their vectors."""
    sizes = [("vectors of eight channels", copies.vectors + THREADS, MAX_INDEX)]
    check_sizes(copies.original, "pad_channels", sizes)
    return copies


def _vectors(elements: int) -> int:
    """The vectors that hold a number of elements."""
    return ceil_div(elements, VECTOR_CHANNELS)
