"""Kernel launches as plain data: what an algorithm plans, and the runtime carries out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class KernelVariant:
    """A CUDA source with the macros that it is compiled with, for an architecture such as "sm_90a"."""

    source: Path
    arch: str
    macros: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, source: Path, arch: str, macros: Mapping[str, int]) -> KernelVariant:
        """The variant with macros in any order."""
        return cls(source, arch, tuple(sorted(macros.items())))


@dataclass(frozen=True, slots=True)
class Address:
    """The address of an operand, as a kernel's argument that is filled in at each call; 0 where there is no operand.

    `INPUT + n` is n bytes after the start of the input, and 0 too where there is none.
    """

    operand: str
    offset: int = 0

    def __add__(self, offset: int) -> Address:
        return Address(self.operand, self.offset + offset)


@dataclass(frozen=True, slots=True)
class TensorMap:
    """An operand and the box of it that one instruction copies, as a kernel's argument: the driver's CUtensorMap.

    address   the operand, which starts at a multiple of 16 bytes
    element   the type of an element, "fp16", "bf16", or "tf32_channels_last" of float32 that the copy rounds to TF32
    sizes     elements of each dimension, the innermost first
    strides   bytes from one index to the next of every dimension but the innermost, multiples of 16
    box       elements of each dimension that a copy takes; in im2col mode channels and pixels
    swizzle   bytes of a row of the box in shared memory: 32, 64 or 128; 0 for rows of any width, without a swizzle
    corners   in im2col mode: from the image's first pixel to the first that a copy may start at, and from its last
              pixel to the last one, by (column, row), and 0 for the image where groups are a fifth dimension; None for
              a copy of a plain box
    steps     in im2col mode: columns and rows from one output pixel to the next
    """

    address: Address
    element: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int
    corners: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    steps: tuple[int, int] = (1, 1)


Argument = Address | int | TensorMap
"""An argument of a kernel. All have eight bytes but tensor maps, which have 128."""

OPERANDS = INPUT, WEIGHT, BIAS, OUTPUT, WORKSPACE, RESIDUAL, PACKED, FLAGS = tuple(
    map(Address, ("input", "weight", "bias", "output", "workspace", "residual", "packed", "flags"))
)


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch of a convolution: a kernel variant, its grid and block, and its arguments in order.

    overlap: launch with programmatic stream serialization. The kernel may then start
    before the one ahead in the stream ends, and must execute griddepcontrol.wait (compute capability 9.0) before it
    touches global memory that a kernel ahead may write or read; constant weights may be read earlier.
    """

    source: Path
    macros: Mapping[str, int]
    kernel: str
    blocks: int
    threads: int
    arguments: tuple[Argument, ...]
    shared_bytes: int = 0
    overlap: bool = False

    def variant(self, arch: str) -> KernelVariant:
        """The kernel variant to compile for an architecture."""
        return KernelVariant.of(self.source, arch, self.macros)
