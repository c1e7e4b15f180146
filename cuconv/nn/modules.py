"""torch's convolution and fully connected layer, computed by cuConv, with weights that may change at any time."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cuconv.algorithms.channels_last.pad_channels import VECTOR_CHANNELS
from cuconv.core.problem import FP32
from cuconv.nn.formats import HALVES, TYPES
from cuconv.nn.operator import check_precision, conv2d
from cuconv.nn.signals import conv1d

MAX_ROWS = 32  # inputs of fully connected layers with more rows have not been compared with cuBLAS
MAX_HALF_WEIGHTS = 2**22  # in half precision cuBLAS is faster where a layer has more
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
LAYERS = (*CONVOLUTIONS, nn.Linear)


class _InAPrecision(nn.Module):
    """A layer that takes the precision of its calls besides torch's own arguments."""

    def __init__(self, *arguments: Any, precision: str = FP32, **options: Any):
        check_precision(precision)
        super().__init__(*arguments, **options)
        self.precision = precision


class Conv1d(_InAPrecision, nn.Conv1d):
    """torch.nn.Conv1d whose forward is `cuconv.nn.conv1d`; otherwise as `cuconv.nn.Conv2d`.

    In half precision torch computes it unless input and weight have the channels of a position together in memory, as
    x.mT.contiguous().mT has.
    """

    def forward(self, input: Tensor) -> Tensor:
        """The convolution of (N, C, L) or (C, L)."""
        if self.padding_mode != "zeros":
            return super().forward(input)
        options = (self.stride, self.padding, self.dilation, self.groups)
        return conv1d(input, self.weight, self.bias, *options, precision=self.precision)


class Conv2d(_InAPrecision, nn.Conv2d):
    """torch.nn.Conv2d whose forward is `cuconv.nn.conv2d`: arguments, attributes, state and gradients are torch's.

    The weights are read at each call, so the layer may be trained. What cuConv does not compute goes to torch.
    precision: "fp32", or "tf32" for inputs and weights that may be rounded to TF32; raises ValueError for others.
    """

    def forward(self, input: Tensor) -> Tensor:
        """The convolution of (N, C, H, W) or (C, H, W)."""
        if self.padding_mode != "zeros":
            return super().forward(input)
        options = (self.stride, self.padding, self.dilation, self.groups)
        return conv2d(input, self.weight, self.bias, *options, precision=self.precision)


class Linear(_InAPrecision, nn.Linear):
    """torch.nn.Linear, for inputs of at most 32 rows computed as a 1x1 convolution of images of one pixel."""

    def forward(self, input: Tensor) -> Tensor:
        """(..., M) for an input (..., K)."""
        return linear(input, self.weight, self.bias, self.precision)


def linear(input: Tensor, weight: Tensor, bias: Tensor | None, precision: str) -> Tensor:
    """torch.nn.functional.linear, by cuConv for few rows."""
    if not is_small(input) or why_not_linear(weight, bias) or input.shape[-1] != weight.shape[1]:
        return F.linear(input, weight, bias)
    output = conv2d(as_images(input), weight[:, :, None, None], bias, precision=precision)
    return output.reshape(*input.shape[:-1], output.shape[1])


def why_not_linear(weight: Tensor, bias: Tensor | None) -> str:
    """Why torch computes a fully connected layer with these tensors; "" where the weight is (M, K) and the bias (M,).

    torch takes a weight (K,), and a bias of any shape that can be added. In half precision K must be a multiple of 8.
    """
    if weight.dtype not in TYPES:
        return f"its weight is {weight.dtype}"
    if weight.dim() != 2:
        return f"its weight has {weight.dim()} dimensions"
    if bias is not None and (bias.shape != weight.shape[:1] or bias.dtype != weight.dtype):
        return f"its bias is {bias.dtype} of the shape {tuple(bias.shape)}"
    if weight.dtype not in HALVES:
        return ""
    if weight.shape[1] % VECTOR_CHANNELS:
        return f"its {weight.shape[1]} input features are no multiple of {VECTOR_CHANNELS}"
    if weight.numel() > MAX_HALF_WEIGHTS:
        return f"it has {weight.numel():,} weights in half precision"
    return ""


def is_small(input: Tensor) -> bool:
    """Whether cuConv computes a fully connected layer of this input; under torch.export any size of batch may come."""
    if not isinstance(input, Tensor) or input.dim() == 0 or torch.compiler.is_exporting():
        return False
    return all(type(size) is int for size in input.shape) and 0 < prod(input.shape[:-1]) <= MAX_ROWS


def as_images(input: Tensor) -> Tensor:
    """The rows of a fully connected layer's input as images of one pixel."""
    return input.reshape(prod(input.shape[:-1]), input.shape[-1], 1, 1)
