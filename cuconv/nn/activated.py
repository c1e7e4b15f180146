"""Activations as torch has them: the functions that compute them, and the operators that a fold finds in a graph."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cuconv.core.activation import RELU, Activation, activation_of, named
from cuconv.nn.nodes import Node

aten = torch.ops.aten

_FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "relu": torch.relu,
    "relu6": F.relu6,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "tanh": torch.tanh,
    "gelu": F.gelu,
    "gelu_tanh": lambda output: F.gelu(output, approximate="tanh"),
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "leaky_relu": F.leaky_relu,
    "elu": F.elu,
    "hardtanh": F.hardtanh,
}


def activated(output: Tensor, activation: Activation) -> Tensor:
    """The activation of an output, by torch; the output itself where there is none."""
    return _FUNCTIONS[activation.name](output, *activation.numbers) if activation.name != "none" else output


def activation_in(node: Node) -> Activation | None:
    """The activation that a node computes of its first argument, where its numbers are constants."""
    of_arguments = _OPERATORS.get(node.target)
    if of_arguments is None:
        return None
    try:
        return of_arguments(*node.args[1:], **node.kwargs)
    except (TypeError, ValueError):  # numbers that depend on data, or that no kernel takes
        return None


def _clamped(min: float | None = None, max: float | None = None) -> Activation:
    return activation_of(("hardtanh", -inf if min is None else min, inf if max is None else max))


def _gelu(approximate: str = "none") -> Activation:
    return named("gelu_tanh" if approximate == "tanh" else "gelu")


def _elu(alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Activation | None:
    return activation_of(("elu", alpha)) if (scale, input_scale) == (1, 1) else None  # others are selu and celu


_OPERATORS: dict[Any, Callable[..., Activation | None]] = {
    aten.relu.default: lambda: RELU,
    aten.relu6.default: lambda: named("relu6"),
    aten.sigmoid.default: lambda: named("sigmoid"),
    aten.silu.default: lambda: named("silu"),
    aten.tanh.default: lambda: named("tanh"),
    aten.elu.default: _elu,
    aten.hardsigmoid.default: lambda: named("hardsigmoid"),
    aten.hardswish.default: lambda: named("hardswish"),
    aten.gelu.default: _gelu,
    aten.leaky_relu.default: lambda negative_slope=0.01: activation_of(("leaky_relu", negative_slope)),
    aten.hardtanh.default: lambda min_val=-1, max_val=1: _clamped(min_val, max_val),
    aten.clamp.default: _clamped,
    aten.clamp_min.default: _clamped,
    aten.clamp_max.default: lambda max: _clamped(None, max),
}
"""The activation that each operator of torch computes, by its arguments behind the tensor."""
