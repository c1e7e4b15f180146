"""A 1x1 convolution as a matrix product: cuBLAS through torch.bmm, or torch.mm where an image is one pixel."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from cuconv.core.problem import ConvProblem
from harness.contenders import base
from harness.contenders.base import NotRunnable, Offer, Operands, Prepared, measured_workspace, temporarily
from harness.precision import IN_TORCH


class Contender(base.Contender):
    """cuBLAS, which is not cuDNN, but which a user could call instead."""

    def offers(self, problem: ConvProblem, operands: Operands) -> list[Offer]:
        """The one algorithm, bmm, for every case; it runs on 1x1 filters only."""
        prepare = partial(_prepare, self.precision, problem, operands)
        return [Offer("cublas", "bmm", prepare, self.precision)]


def _prepare(precision: str, problem: ConvProblem, operands: Operands) -> Prepared:
    if problem.filter_area != 1:
        raise NotRunnable("unsupported", "only a 1x1 filter is a plain matrix product")
    if not problem.is_dense:
        raise NotRunnable("unsupported", "a product of matrices computes stride 1, dilation 1 and one group only")
    if problem.pad_h or problem.pad_w:
        raise NotRunnable("unsupported", "a padded input is not a plain matrix")
    multiply = _product(problem, operands)

    def call() -> torch.Tensor:
        with temporarily((torch.backends.cuda.matmul, "fp32_precision", IN_TORCH[precision])):
            multiply()
        return operands.output

    call()  # on the first call cuBLAS allocates its lasting workspace, which is not that of a call
    return Prepared(call, measured_workspace(call), "beside the lasting workspace of cuBLAS")


def _product(problem: ConvProblem, operands: Operands) -> Callable[[], object]:
    if problem.out_pixels == 1:  # output (n, m) = input (n, c) times weights (m, c) transposed
        images, filters = operands.input.flatten(1), operands.weight.flatten(1)
        return partial(torch.mm, images, filters.T, out=operands.output.view(problem.n, problem.m))
    # For each image n: output (m, pixels) = weights (m, c) times input (c, pixels).
    weights = operands.weight.flatten(1).expand(problem.n, problem.m, problem.c)
    products = operands.output.view(problem.n, problem.m, problem.out_pixels)
    return partial(torch.bmm, weights, operands.input.flatten(2), out=products)
