"""torch.compile's max-autotune on one convolution: the fastest of cuDNN's choice and Inductor's Triton templates.

Optional: a sweep measures it where --provider names it, because each case is compiled and tuned by itself.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F

from cuconv.problem import ConvProblem
from harness.contenders import base
from harness.contenders.base import Offer, Operands, Prepared, Unavailable, measured_workspace, temporarily
from harness.precision import FP32, IN_TORCH

MODE = "max-autotune-no-cudagraphs"  # the harness captures the graph itself, for every contender alike


def _computing_in(precision: str) -> AbstractContextManager[None]:
    """The precision of torch's convolutions and matrix products; the ones before are restored at the end.

    cuDNN reads that of cudnn.conv, and Inductor those of cudnn and matmul when it makes kernels of its templates.
    """
    backends: Any = torch.backends
    places = (backends.cudnn, backends.cudnn.conv, backends.cuda.matmul)
    return temporarily(*((place, "fp32_precision", IN_TORCH[precision]) for place in places))


class Contender(base.Contender):
    """torch.compile. Raises Unavailable without Triton, which compiles its kernels."""

    def __init__(self, precision: str = FP32) -> None:
        super().__init__(precision)
        if find_spec("triton") is None:
            raise Unavailable("torch.compile's kernels need Triton, which is not installed: pip install triton")

    def offers(self, problem: ConvProblem, operands: Operands) -> list[Offer]:
        """The one algorithm, max_autotune, for every case."""
        prepare = partial(_prepare, self.precision, problem, operands)
        return [Offer("torch_compile", "max_autotune", prepare, self.precision)]


def _prepare(precision: str, problem: ConvProblem, operands: Operands) -> Prepared:
    torch.compiler.reset()  # or torch would compile for all cases at once, and give up after some

    @partial(torch.compile, mode=MODE, dynamic=False)
    def convolve(input: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.conv2d(input, weight, **problem.geometry)

    def call() -> torch.Tensor:
        with _computing_in(precision):
            return convolve(operands.input, operands.weight)

    call()  # compiles and tunes
    return Prepared(call, measured_workspace(call), f"mode={MODE}")
