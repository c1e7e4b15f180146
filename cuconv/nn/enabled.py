"""Every convolution of a block of code by cuConv, without a change of the model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor

from cuconv.call import NotReady
from cuconv.core.problem import FP32, UnsupportedProblem
from cuconv.nn import operator
from cuconv.nn.dispatch import by_torch, by_torch_in_fp32, convolutions_by
from cuconv.nn.formats import as_row, in_a_plane
from cuconv.nn.transposed import transposed_layer


@contextmanager
def enabled(precision: str = FP32) -> Iterator[None]:
    """Compute every convolution in the block by cuConv where it can, and by torch elsewhere.

    It reaches aten._convolution whoever calls it in this thread. Gradients are torch's own. precision: "fp32", or
    "tf32" for inputs and weights that may be rounded to TF32; ValueError for others.
    """
    operator.check_precision(precision)
    with convolutions_by(partial(_convolution, precision)):
        yield


def _convolution(precision: str, *arguments: Any) -> Tensor:
    """aten._convolution by cuConv where it can, by torch elsewhere."""
    input, weight, bias, stride, padding, dilation, transposed, output_padding, groups = arguments[:9]
    is_signal = input.dim() == weight.dim() == 3
    images, filters = (as_row(input), as_row(weight)) if is_signal else (input, weight)
    if images.dim() != 4 or not operator.qualifies(images, filters, bias) or operator.autocasts(input):
        return by_torch(*arguments)
    convolve = partial(operator._launch, precision=precision)
    try:
        if transposed:
            layer = transposed_layer(input, weight, bias, (stride, padding, output_padding, dilation), groups)
            output = layer.computed(convolve, images, filters, bias)
        else:
            if is_signal:
                stride, padding, dilation = in_a_plane(stride, padding, dilation)
            output = convolve(images, filters, bias, stride, padding, dilation, groups)
        return _as_torchs(output.squeeze(2), weight) if is_signal else output
    except NotReady:  # torch is no less precise meanwhile
        return (by_torch_in_fp32 if precision == FP32 else by_torch)(*arguments)
    except UnsupportedProblem:  # torch computes it, or says what is wrong
        return by_torch(*arguments)


def _as_torchs(signal: Tensor, weight: Tensor) -> Tensor:
    """The output of a 1D convolution with torch's strides, which are those of a contiguous tensor if the weight is one.

    In half precision that may be a copy.
    """
    return signal.contiguous() if weight.is_contiguous() else signal
