"""Copies of float32 rows in FP16, each with a factor: of the images and the filters that nhwc_scaled multiplies.

`scale_rows.cu` has the kernel. Images are copied at each call, filters too unless they are constant.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cuconv.algorithms.common.limits import HOPPER_ARCH
from cuconv.algorithms.common.weight_packing import KERNEL
from cuconv.core.launch import INPUT, WEIGHT, Address, Launch
from cuconv.core.problem import FLOAT_BYTES, HALF_BYTES, ConvProblem, ceil_div
from cuconv.device import H200

SOURCE = Path(__file__).with_suffix(".cu")
THREADS = 512
VECTOR = 8  # numbers of a row, and of a block's slice, are a multiple of it
CLUSTERS = (1, 2, 4, 8, 16)  # blocks
RESIDENT = 2  # blocks of an SM
LEAST_SLICE = 4096  # numbers of a block, where there are several
STATIC_BYTES = 128  # the kernel's maxima take less
ALIGNMENT = 1024  # bytes
ENOUGH = RESIDENT * H200.sm_count  # blocks that fill a GPU
ROOM = H200.shared_bytes_of(RESIDENT) - STATIC_BYTES


class CopyingCosts(Protocol):
    """The constants of the cost model that concern these kernels, in microseconds."""

    @property
    def copy(self) -> float:
        """A kernel, without its bytes."""

    @property
    def copy_bytes(self) -> float:
        """2**20 bytes that it reads or writes."""


@dataclass(frozen=True, slots=True)
class ScaledRows:
    """Rows of so many elements each, and the memory of their factors and copies."""

    rows: int
    elements: int

    @property
    def copies_at(self) -> int:
        """The bytes of the factors, behind which the copies begin."""
        return ceil_div(FLOAT_BYTES * self.rows, ALIGNMENT) * ALIGNMENT

    @property
    def bytes(self) -> int:
        """The bytes of the factors and copies."""
        return self.copies_at + ceil_div(HALF_BYTES * self.rows * self.elements, ALIGNMENT) * ALIGNMENT

    def launch(self, kernel: str, source: Address, to: Address) -> Launch:
        """The launch that copies from an address to another one."""
        clusters = [one for one in CLUSTERS if one == 1 or self.elements >= one * LEAST_SLICE]
        enough = (one for one in clusters if self.rows * one >= ENOUGH and self._slice(one) * FLOAT_BYTES <= ROOM)
        blocks = next(enough, clusters[-1])
        part = self._slice(blocks)
        kept = part * FLOAT_BYTES <= ROOM
        arguments = (source, to, self.elements, part, int(kept), self.copies_at)
        shared = part * FLOAT_BYTES if kept else 0
        return Launch(SOURCE, {"BLOCKS": blocks}, kernel, self.rows * blocks, THREADS, arguments, shared, overlap=True)

    def predicted_us(self, costs: CopyingCosts) -> float:
        """The predicted time of the kernel in microseconds."""
        return costs.copy + costs.copy_bytes * self.rows * self.elements * (FLOAT_BYTES + HALF_BYTES) / 2**20

    def _slice(self, blocks: int) -> int:
        """The numbers of a block's slice."""
        return ceil_div(ceil_div(self.elements, blocks), VECTOR) * VECTOR


@dataclass(frozen=True, slots=True)
class ScaledWeights:
    """How nhwc_scaled has its weights packed. There is one way, for all configurations."""

    def workspace_bytes(self, problem: ConvProblem) -> int:
        """The bytes of the packed weights."""
        return filters(problem).bytes

    def predicted_us(self, problem: ConvProblem, costs: CopyingCosts) -> float:
        """The predicted time of the kernel that packs them, in microseconds."""
        return filters(problem).predicted_us(costs)


def images(problem: ConvProblem) -> ScaledRows:
    """The rows of the input."""
    return ScaledRows(problem.n, problem.c * problem.h * problem.w)


def filters(problem: ConvProblem) -> ScaledRows:
    """The rows of the weights."""
    return ScaledRows(problem.m, problem.c * problem.filter_area)


def launches(problem: ConvProblem, input_at: Address, weight_at: Address) -> tuple[Launch, Launch]:
    """The launches that copy the filters, and then the images."""
    return (
        filters(problem).launch(KERNEL, WEIGHT, weight_at),
        images(problem).launch("scale_rows", INPUT, input_at),
    )


def variants(arch: str) -> list[dict[str, int]]:
    """All kernel variants of an architecture."""
    return [{"BLOCKS": blocks} for blocks in CLUSTERS] if arch == HOPPER_ARCH else []
