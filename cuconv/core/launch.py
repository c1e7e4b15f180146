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


OPERANDS = INPUT, WEIGHT, BIAS, OUTPUT, WORKSPACE, RESIDUAL, PACKED, FLAGS = tuple(
    map(Address, ("input", "weight", "bias", "output", "workspace", "residual", "packed", "flags"))
)


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch of a convolution: a kernel variant, its grid and block, and its arguments in order.

    Every argument has eight bytes. overlap: launch with programmatic stream serialization. The kernel may then start
    before the one ahead in the stream ends, and must execute griddepcontrol.wait (compute capability 9.0) before it
    touches global memory.
    """

    source: Path
    macros: Mapping[str, int]
    kernel: str
    blocks: int
    threads: int
    arguments: tuple[Address | int, ...]
    shared_bytes: int = 0
    overlap: bool = False

    def variant(self, arch: str) -> KernelVariant:
        """The kernel variant to compile for an architecture."""
        return KernelVariant.of(self.source, arch, self.macros)
