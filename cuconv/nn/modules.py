"""A module like torch.nn.Conv2d whose forward is cuConv's, with a residual and ReLU."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cuconv.nn.operator import conv2d
from cuconv.problem import FP32


class Conv2d(nn.Module):
    """relu(conv(input) + bias + residual); made from a torch.nn.Conv2d, whose weight and bias it takes over."""

    def __init__(self, conv: nn.Conv2d, *, relu: bool = False, precision: str = FP32):
        """Raises ValueError for what `why_not` names."""
        super().__init__()
        if reason := why_not(conv):
            raise ValueError(f"this convolution stays with torch: {reason}")
        self.weight, self.bias = conv.weight, conv.bias
        self.stride, self.padding, self.dilation, self.groups = conv.stride, conv.padding, conv.dilation, conv.groups
        self.relu, self.precision = relu, precision

    def forward(self, input: Tensor, residual: Tensor | None = None) -> Tensor:
        """The convolution of (N, C, H, W) or (C, H, W), plus a residual like the output."""
        geometry = (self.stride, self.padding, self.dilation, self.groups)
        options = {"relu": self.relu, "residual": residual, "precision": self.precision}
        return conv2d(input, self.weight, self.bias, *geometry, **options)  # type: ignore[arg-type]

    def extra_repr(self) -> str:
        """Sizes and options, as torch.nn.Conv2d prints them."""
        m, c, kh, kw = self.weight.shape
        text = f"{c * self.groups}, {m}, kernel_size=({kh}, {kw}), stride={self.stride}, padding={self.padding}"
        text += "" if self.dilation == (1, 1) else f", dilation={self.dilation}"
        text += "" if self.groups == 1 else f", groups={self.groups}"
        return text + (", relu" if self.relu else "") + ("" if self.precision == FP32 else f", {self.precision}")


def why_not(conv: nn.Module) -> str:
    """Why a module stays with torch; "" where cuConv takes it over."""
    if type(conv) is not nn.Conv2d:
        return f"it is a {type(conv).__name__}"
    if conv.padding_mode != "zeros":
        return f"its padding_mode is {conv.padding_mode!r}"
    if conv.weight.dtype != torch.float32:
        return f"its weight is {conv.weight.dtype}"
    return ""
