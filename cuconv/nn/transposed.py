"""torch's transposed convolutions, computed by cuConv as ordinary convolutions of stride 1 (phases.py)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from cuconv.core.activation import Activated, Activation, activation_of
from cuconv.core.problem import FP32, UnsupportedProblem
from cuconv.nn.activated import activated
from cuconv.nn.formats import as_row, is_laid_out
from cuconv.nn.limits import check_half, check_operands
from cuconv.nn.operator import check_precision, conv2d, is_plain_call
from cuconv.nn.padding import each
from cuconv.nn.phases import Transposed, transposed_by

Sizes = int | Sequence[int]


def conv_transpose2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
    *,
    relu: bool = False,
    activation: Activated = None,
    precision: str = FP32,
) -> Tensor:
    """The transposed convolution of torch.nn.functional.conv_transpose2d, and an activation of it.

    cuConv computes it as convolutions of stride 1. Output pixels of the same phase, their position modulo the stride,
    read their inputs through the same taps. The filters of phases with equally many taps are one convolution: a layer
    is one where the stride divides the filter size, and up to two per axis elsewhere. Copies of the output interleave
    the phases.

    Input and output have the memory formats of `cuconv.nn.conv2d`. torch computes what it computes there, and layers
    with, on some axis, both stride and dilation above 1, a stride larger than the filter, or a padding above
    dilation * (filter size - 1). The weight (C, M / groups, KH, KW) is reordered at each call; `convert` does it once.

    relu, activation, precision, and gradients are those of `cuconv.nn.conv2d`. Raises ValueError for unknown names.
    """
    function, sizes = activation_of(activation, relu), (stride, padding, output_padding, dilation)
    return _computed(2, input, weight, bias, sizes, groups, function, precision)


def conv_transpose1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
    *,
    relu: bool = False,
    activation: Activated = None,
    precision: str = FP32,
) -> Tensor:
    """The transposed convolution of torch.nn.functional.conv_transpose1d, and an activation of it.

    It is `cuconv.nn.conv_transpose2d` of images of one row, (N, C, 1, L), in the same memory. The memory formats are
    those of `cuconv.nn.conv1d`.
    """
    function, sizes = activation_of(activation, relu), (stride, padding, output_padding, dilation)
    return _computed(1, input, weight, bias, sizes, groups, function, precision)


def _computed(
    axes: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    sizes: tuple[Sizes, Sizes, Sizes, Sizes],
    groups: int,
    activation: Activation,
    precision: str,
) -> Tensor:
    """A transposed convolution on one or two axes; sizes: stride, padding, output_padding and dilation."""
    check_precision(precision)
    try:
        layer = transposed_call(axes, input, weight, bias, sizes, groups)
    except UnsupportedProblem:
        by_torch: Any = (F.conv_transpose1d, F.conv_transpose2d)[axes - 1]
        *others, dilation = sizes
        return activated(by_torch(input, weight, bias, *others, groups, dilation), activation)
    return on_images(layer, partial(conv2d, activation=activation, precision=precision), input, weight, bias)


def transposed_call(
    axes: int, input: Tensor, weight: Tensor, bias: Tensor | None, sizes: Sequence[Sizes], groups: int
) -> Transposed:
    """The layer of a call of torch's function on tensors; raises UnsupportedProblem where torch computes it."""
    if not is_plain_call(input, weight, bias):  # first, since fx traces with what has no sizes
        raise UnsupportedProblem("torch computes subclasses, autocast and derivatives of torch.func")
    if not input.dim() == weight.dim() == axes + 2:
        raise UnsupportedProblem(f"its input has {input.dim()} dimensions")
    if not is_laid_out(as_row(input) if axes == 1 else input):
        raise UnsupportedProblem("its input has another memory format")
    return transposed_layer(input, weight, bias, sizes, groups)


def transposed_layer(
    input: Tensor, weight: Tensor, bias: Tensor | None, sizes: Sequence[Sizes], groups: int
) -> Transposed:
    """The layer of operands, which may have no data, in any memory format.

    sizes: stride, padding, output_padding and dilation. Raises UnsupportedProblem where torch computes the layer, or
    refuses it.
    """
    check_operands(input, weight, bias)
    axes, channels = weight.dim() - 2, weight.shape[1] * groups
    numbers = [each(size, axes) for size in sizes]
    is_whole = all(type(one) is int for size in (*numbers, weight.shape) for one in size)
    counts = {len(size) for size in numbers}
    if not is_whole or counts != {axes} or min(numbers[0]) < 1 or min(numbers[3]) < 1 or groups < 1:
        raise UnsupportedProblem("torch takes or refuses such sizes")
    if input.shape[1] != weight.shape[0] or weight.shape[0] % groups or not weight.numel():
        raise UnsupportedProblem("torch refuses such a weight")
    if bias is not None and tuple(bias.shape) != (channels,):
        raise UnsupportedProblem("torch refuses such a bias")
    if axes == 1:
        input, weight = as_row(input), as_row(weight)
        numbers = [[neutral, *size] for neutral, size in zip((1, 0, 0, 1), numbers, strict=True)]
    layer = transposed_by((weight.shape[2:], *numbers), groups)
    for axis, size in zip(layer[:2], input.shape[2:], strict=True):
        if axis.outputs(1) < 1 and axis.outputs(size) < 1:  # the first alone makes no condition of a graph
            raise UnsupportedProblem("its output is empty")
    for shape, pads in zip(layer.shapes(weight), layer.paddings, strict=True):
        check_half(input, shape, (1, 1), pads, layer.dilation, groups)
    return layer


def on_images(
    layer: Transposed, convolve: Any, input: Tensor, weight: Tensor, bias: Tensor | None, interleave: Any = None
) -> Tensor:
    """`Transposed.computed` of images, or of signals as images of one row."""
    if weight.dim() == 4:
        return layer.computed(convolve, input, weight, bias, interleave)
    return layer.computed(convolve, as_row(input), as_row(weight), bias, interleave).squeeze(2)
