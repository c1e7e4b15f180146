"""What implicit-GEMM algorithms share on the host: the reduction's size, tensor-core products, kernel arguments."""

from __future__ import annotations

from math import ceil
from typing import Any

from cuconv.jit import BIAS, INPUT, OUTPUT, WEIGHT, Address
from cuconv.problem import FP32, PRECISIONS, ConvProblem

VECTOR_FLOATS = 4  # weights of a 16-byte copy

# Tensor-core products for one product of a precision, and the parts of an operand: big and small, or the rounded one.
PRODUCTS = dict(zip(PRECISIONS, (3, 1), strict=True))
PARTS = {3: 2, 1: 1}


def grid_text(config: Any) -> str:
    """How a configuration's print ends: grid, shared memory of a block, and products where they are not FP32's."""
    products = "" if config.products == PRODUCTS[FP32] else f" products={config.products}"
    return f"grid={config.blocks} shared={config.shared_bytes}{products}"


def depth_of(problem: ConvProblem) -> int:
    """Length of the reduction."""
    return problem.c * problem.filter_area


def stages_of(problem: ConvProblem, stage_depth: int, split: int = 1) -> int:
    """Stages of the block that has most of them, where `split` blocks share the reduction."""
    return ceil(ceil(depth_of(problem) / stage_depth) / split)


def is_pointwise(problem: ConvProblem) -> bool:
    """A 1x1 filter without padding: the columns are the input as it lies."""
    return problem.filter_area == 1 and problem.pad_h == problem.pad_w == 0


def is_linear(problem: ConvProblem) -> bool:
    """One image and an output as wide as the input: pixels lie side by side, and so do the elements under a tap.

    The second condition is that of the kernels' divisions by multiplication.
    """
    return problem.n == 1 and problem.out_w == problem.w and problem.out_pixels * problem.out_w < 2**32


def has_aligned_rows(problem: ConvProblem, aligned: bool) -> bool:
    """Whether each filter starts at a multiple of 16 bytes, as copies of four weights need, if the first does."""
    return aligned and depth_of(problem) % VECTOR_FLOATS == 0


def arguments_of(problem: ConvProblem, relu: bool) -> tuple[Address | int, ...]:
    """The kernels' arguments, in order."""
    p = problem
    sizes = (p.n, p.c, p.h, p.w, p.m, p.kh, p.kw, p.pad_h, p.pad_w, p.out_h, p.out_w)
    return (INPUT, WEIGHT, BIAS, OUTPUT, *sizes, int(relu))
