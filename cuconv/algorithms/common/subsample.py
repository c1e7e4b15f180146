"""A 1x1 convolution with a stride as one of stride 1, on a copy of the pixels that it reads.

Kernels that copy whole runs of pixels read the copy, which `subsample.cu` makes in the workspace. It moves few bytes
apart from the convolution: the copy is a quarter of the input at stride 2, and the convolution then finds it in L2.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil
from pathlib import Path

from cuconv.algorithms.common.implicit_gemm import is_pointwise, is_strided
from cuconv.core.elementwise import Number
from cuconv.core.launch import INPUT, WORKSPACE, Launch
from cuconv.core.problem import FLOAT_BYTES, ConvProblem, ceil_div
from cuconv.device import SECTOR_FLOATS

SOURCE = Path(__file__).with_suffix(".cu")
THREADS, ELEMENTS = 256, 4  # a block's threads, and the elements that each copies
ALIGNMENT = 128  # bytes; of the copy in the workspace
# Microseconds of the launch, and for 2**20 bytes that it moves, on an H200.
LAUNCH_US, US_PER_MIB = 1.8, 0.3


def is_subsampled(problem: ConvProblem) -> bool:
    """Whether a problem is a 1x1 convolution with a stride, without padding and groups."""
    return is_pointwise(problem) and is_strided(problem) and problem.groups == 1


@lru_cache(maxsize=1024)
def on_dense(problem: ConvProblem) -> ConvProblem:
    """The equal convolution of stride 1 on the copy."""
    p = problem
    return ConvProblem(p.n, p.c, p.out_h, p.out_w, p.m, 1, 1, precision=p.precision)


def copy_bytes(problem: ConvProblem) -> int:
    """The bytes of the copy."""
    return FLOAT_BYTES * problem.n * problem.c * problem.out_pixels


def aligned_bytes(workspace_bytes: Number) -> Number:
    """The offset of a copy that follows `workspace_bytes` in the workspace."""
    return ceil_div(workspace_bytes, ALIGNMENT) * ALIGNMENT


def launch(problem: ConvProblem, offset: int) -> Launch:
    """The launch that makes the copy, `offset` bytes after the start of the workspace."""
    p, elements = problem, copy_bytes(problem) // FLOAT_BYTES
    macros = {"ELEMENTS": ELEMENTS}
    arguments = (INPUT, WORKSPACE + offset, elements, p.h, p.w, p.out_h, p.out_w, p.stride_h, p.stride_w)
    blocks = ceil(elements / (THREADS * ELEMENTS))
    return Launch(SOURCE, macros, "subsample", blocks, THREADS, arguments, overlap=True)


def variants() -> list[dict[str, int]]:
    """All kernel variants."""
    return [{"ELEMENTS": ELEMENTS}]


def predicted_us(problem: ConvProblem) -> float:
    """The predicted time of the copy in microseconds: it reads whole sectors of every row that it reads from."""
    p = problem
    reads = min(SECTOR_FLOATS, p.stride_w) * copy_bytes(p)
    return LAUNCH_US + US_PER_MIB * (reads + copy_bytes(p)) / 2**20
