"""Activations by torch's own functions, where torch computes a convolution."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from cuconv.core.activation import Activation

_FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "relu": torch.relu,
    "relu6": F.relu6,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "gelu_tanh": lambda output: F.gelu(output, approximate="tanh"),
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "leaky_relu": F.leaky_relu,
    "hardtanh": F.hardtanh,
}


def activated(output: Tensor, activation: Activation) -> Tensor:
    """The activation of an output; the output itself where there is none."""
    return _FUNCTIONS[activation.name](output, *activation.numbers) if activation.name != "none" else output
