"""Verification of an output against float64: some images element by element, all images through a weighted sum.

Convolution is linear in its input, so a random combination of all output images must equal the convolution of the same
combination of the inputs. That catches an image that is wrong, exchanged or never written, and takes one pass over the
output. ReLU is not linear: where it follows, all images are compared element by element.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cuconv import reference
from cuconv.core.problem import ConvProblem

# A wrong index gives an error of order 1, TF32 one of 3e-4. cuDNN's Winograd has 1.2e-3 at 5x5 and is accepted.
TOLERANCE = 1e-2
CHECKED_IMAGES = 4  # the most that are compared element by element


@dataclass(frozen=True, slots=True)
class Errors:
    """The errors of an output against float64: ||out - ref|| / ||ref|| and the largest absolute difference.

    Both are NaN where the output has a NaN.
    """

    rel_l2: float
    max_abs: float

    @property
    def acceptable(self) -> bool:
        """Whether the output counts as right."""
        return self.rel_l2 <= TOLERANCE  # False for NaN


class Verifier:
    """The float64 reference of one case, with which the outputs of its algorithms are compared."""

    def __init__(
        self,
        problem: ConvProblem,
        input: torch.Tensor,
        weight: torch.Tensor,
        generator: torch.Generator,
        bias: torch.Tensor | None = None,
        residual: torch.Tensor | None = None,
    ):
        """With a bias (M,) the output is relu(convolution + bias), or relu(convolution + bias + residual)."""
        n = problem.n
        self._is_linear = bias is None
        self._images = sorted({0, n // 3, n // 2, n - 1}) if self._is_linear else list(range(n))
        self._truth = reference.conv2d(input[self._images], weight, **problem.geometry)
        if bias is not None:
            self._truth += bias.double()[:, None, None]
            self._truth += 0 if residual is None else residual
            self._truth.relu_()
            return
        self._mix = torch.randn(n, generator=generator, device=input.device)
        mixed = torch.tensordot(self._mix, input, dims=1)
        self._mixed_truth = reference.conv2d(mixed[None], weight, **problem.geometry)[0]

    def errors(self, output: torch.Tensor) -> Errors:
        """The errors of a whole output (N, M, OH, OW). An error in any image shows in rel_l2."""
        difference = output[self._images].double() - self._truth
        rel_l2, max_abs = _norm_ratio(difference, self._truth), float(difference.abs().max())
        if not self._is_linear:
            return Errors(rel_l2, max_abs)
        mixed = torch.tensordot(self._mix, output.float(), dims=1).double()  # float() changes half precision alone
        whole_batch = _norm_ratio(mixed - self._mixed_truth, self._mixed_truth)
        if not whole_batch <= TOLERANCE:
            rel_l2 = whole_batch
        return Errors(rel_l2, max_abs)


def _norm_ratio(difference: torch.Tensor, truth: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(difference) / torch.linalg.vector_norm(truth))
