"""Host-side helpers of the implicit-GEMM algorithms: sizes of the reduction, predicates on a problem, arguments.

An implicit GEMM multiplies the filters, as a matrix of M rows, by the input's columns: for each output pixel the
elements under the filter. The columns are never stored. The reduction has length C * KH * KW. Groups are as many
products of matrices, of M / groups rows and C / groups channels.
"""

from __future__ import annotations

from typing import Protocol

from cuconv.core.activation import Activation
from cuconv.core.elementwise import Number
from cuconv.core.launch import BIAS, INPUT, OUTPUT, WEIGHT, Address
from cuconv.core.problem import FP32, TF32, ConvProblem, ceil_div

VECTOR_FLOATS = 4  # weights of a 16-byte copy

PRODUCTS = {FP32: 3, TF32: 1}
"""Tensor-core products for one FP32 product in each precision."""

PARTS = {3: 2, 1: 1}
"""Parts of an operand by the number of products: a high and a low part, or the rounded operand alone."""


class TensorCoreConfiguration(Protocol):
    """A launch configuration of an algorithm that computes on the tensor cores."""

    @property
    def blocks(self) -> int:
        """Blocks of the main kernel's grid."""

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block of the main kernel, in bytes."""

    @property
    def products(self) -> int:
        """Tensor-core products for one FP32 product, a value of PRODUCTS."""


def grid_text(config: TensorCoreConfiguration) -> str:
    """The end of a configuration's str(): grid, shared bytes of a block, and products where they differ from FP32's."""
    products = "" if config.products == PRODUCTS[FP32] else f" products={config.products}"
    return f"grid={config.blocks} shared={config.shared_bytes}{products}"


def depth_of(problem: ConvProblem) -> int:
    """The length of the reduction: channels that a filter reads, times KH * KW."""
    return problem.group_channels * problem.filter_area


def stages_of(problem: ConvProblem, stage_depth: Number, split_k: Number = 1) -> Number:
    """The pipeline stages of the busiest block, where `split_k` blocks share the reduction."""
    return ceil_div(ceil_div(depth_of(problem), stage_depth), split_k)


def is_pointwise(problem: ConvProblem) -> bool:
    """Whether the filter is 1x1 without padding: then each column is a pixel of the input as it lies in memory."""
    return problem.filter_area == 1 and not problem.is_padded


def is_strided(problem: ConvProblem) -> bool:
    """Whether neighbouring output pixels read input elements that are no neighbours."""
    return problem.stride_h > 1 or problem.stride_w > 1


def is_linear(problem: ConvProblem) -> bool:
    """Whether neighbouring output pixels read neighbouring input elements at every filter position.

    This holds with stride 1 for one image whose output is as wide as its input. The bound on sizes is that of the
    kernels, which divide by the width with a multiplication.
    """
    in_step = not is_strided(problem) and problem.out_w == problem.w
    return problem.n == 1 and in_step and problem.out_pixels * problem.out_w < 2**32


def geometry_arguments(problem: ConvProblem) -> tuple[int, ...]:
    """The arguments of stride, dilation and groups of a kernel that has no macros for them, in its order."""
    p = problem
    return (p.stride_h, p.stride_w, p.dilation_h, p.dilation_w, p.groups)


def has_aligned_rows(problem: ConvProblem, aligned: bool) -> bool:
    """Whether the weights of each filter start at a multiple of 16 bytes, as copies of four weights need.

    aligned: whether those of the first filter do.
    """
    return aligned and depth_of(problem) % VECTOR_FLOATS == 0


def arguments_of(problem: ConvProblem, activation: Activation) -> tuple[Address | int, ...]:
    """The first arguments of a main kernel, in its order: operands, sizes, and the activation.

    Channels and filters are those of one group.
    """
    p = problem
    sizes = (p.n, p.group_channels, p.h, p.w, p.group_filters, p.kh, p.kw, p.pad_h, p.pad_w, p.out_h, p.out_w)
    return (INPUT, WEIGHT, BIAS, OUTPUT, *sizes, activation.kind, activation.packed_numbers)
