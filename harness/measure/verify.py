"""Is an output right? Against float64: some images element by element, and all of them through a weighted sum.

Convolution is linear in its input, so a random combination of all output images must equal the convolution of
the same combination of the inputs. That catches an image that is wrong, exchanged or never written, at the
price of one pass over the output.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cuconv import reference
from cuconv.problem import ConvProblem
from harness.contenders import Operands

# A wrong index gives an error of order 1, TF32 3e-4; cuDNN's Winograd reaches 1.2e-3 at 5x5 and counts as it is.
TOLERANCE = 1e-2


@dataclass(frozen=True, slots=True)
class Errors:
    """Of an output against float64: ||out - ref|| / ||ref|| and the largest absolute difference; NaN where NaN."""

    rel_l2: float
    max_abs: float

    @property
    def acceptable(self) -> bool:
        return self.rel_l2 <= TOLERANCE  # False for NaN


class Verifier:
    """The float64 reference of one case; compare outputs of its algorithms with it."""

    def __init__(self, problem: ConvProblem, operands: Operands, generator: torch.Generator):
        n = problem.n
        padding = (problem.pad_h, problem.pad_w)
        self._images = sorted({0, n // 3, n // 2, n - 1})
        self._truth = reference.conv2d(operands.input[self._images], operands.weight, padding)
        self._mix = torch.randn(n, generator=generator, device=operands.input.device)
        mixed = torch.tensordot(self._mix, operands.input, dims=1)
        self._mixed_truth = reference.conv2d(mixed[None], operands.weight, padding)[0]

    def errors(self, output: torch.Tensor) -> Errors:
        """Compare a whole output (N, M, OH, OW); an error in any image shows in rel_l2."""
        difference = output[self._images].double() - self._truth
        rel_l2 = _norm_ratio(difference, self._truth)
        mixed = torch.tensordot(self._mix, output, dims=1).double()
        whole_batch = _norm_ratio(mixed - self._mixed_truth, self._mixed_truth)
        if not whole_batch <= TOLERANCE:
            rel_l2 = whole_batch
        return Errors(rel_l2, float(difference.abs().max()))


def _norm_ratio(difference: torch.Tensor, truth: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(difference) / torch.linalg.vector_norm(truth))
