"""torch's 1D convolution, computed by cuConv as a 2D convolution of images of one row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from cuconv.core.activation import Activated, activation_of
from cuconv.core.problem import FP32
from cuconv.nn.formats import as_row, in_a_plane, is_laid_out
from cuconv.nn.operator import check_precision, conv2d, finished, is_plain_call
from cuconv.nn.padding import convolved, differs

Single = int | Sequence[int]


def conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Single = 1,
    padding: Single | str = 0,
    dilation: Single = 1,
    groups: int = 1,
    *,
    relu: bool = False,
    activation: Activated = None,
    residual: Tensor | float | None = None,
    precision: str = FP32,
) -> Tensor:
    """The convolution of torch.nn.functional.conv1d, and more: activation(conv(input) + bias + residual).

    It is `cuconv.nn.conv2d` of images of one row, (N, C, 1, L), in the same memory. cuConv computes contiguous float32,
    and float16 and bfloat16 with the channels of a position together in memory, as x.mT.contiguous().mT has; so is the
    output then. padding may be (left, right). The other arguments, gradients, and what goes to torch are those of
    conv2d.
    """
    check_precision(precision)
    function = activation_of(activation, relu)
    is_plain = is_plain_call(input, weight, bias, residual)  # first, since fx traces with what has no sizes
    are_numbers = all(map(_is_single, (stride, dilation))) and (_is_single(padding) or differs(padding, 1))
    if not is_plain or not _are_rows(input, weight) or not are_numbers:
        return finished(convolved(1, input, weight, bias, stride, padding, dilation, groups), function, residual)
    if isinstance(residual, Tensor) and residual.dim() > 1:
        residual = residual.unsqueeze(-2)
    rows, geometry = (as_row(input), as_row(weight)), in_a_plane(stride, padding, dilation)
    options: dict[str, Any] = {"activation": function, "residual": residual, "precision": precision}
    return conv2d(*rows, bias, *geometry, groups, **options).squeeze(-2)


def _are_rows(input: Tensor, weight: Tensor) -> bool:
    """Whether cuConv takes signals and weights as images of one row, in the same memory."""
    return input.dim() == weight.dim() == 3 and is_laid_out(as_row(input)) and is_laid_out(as_row(weight))


def _is_single(size: Single | str) -> bool:
    """Whether a size is one number, or a word; torch refuses others."""
    return isinstance(size, str) or not isinstance(size, Sequence) or len(size) == 1
