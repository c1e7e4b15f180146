"""Batch norms in the weights of convolutions. Weights that a fold computes are in float64, and rounded once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from cuconv.nn.nodes import Node, Operands


def takes_norm(operands: Operands, norm: Node, constants: set[Node]) -> bool:
    """Whether a batch norm with fixed statistics of a convolution's output can be multiplied into the weights."""
    fixed = [one for one in (operands.weight, operands.bias, *norm.args[1:5]) if one is not None]
    is_number = not isinstance(norm.args[5], fx.Node)
    return operands.is_plain and is_number and constants.issuperset(fixed)


def normalised(operands: Operands, norm: Node, constants: set[Node]) -> Operands | None:
    """The operands of the convolution that computes a batch norm, too; None where there is none.

    Their nodes are made where the graph inserts nodes.
    """
    if not takes_norm(operands, norm, constants):
        return None
    _, gain, shift, mean, variance, eps = norm.args
    bias = None if operands.bias is None else exact(operands.bias)
    example = operands.weight.meta["val"]
    made = norm.graph, constants
    weight = rounded_node(scaled_weight, (exact(operands.weight), gain, variance, eps), example, *made)
    of_filters = mean.meta["val"].to(example.dtype)
    bias = rounded_node(shifted_bias, (bias, gain, shift, mean, variance, eps), of_filters, *made)
    return operands._replace(weight=weight, bias=bias)


def rounded_node(
    function: Any, arguments: tuple[Any, ...], example: Tensor, graph: fx.Graph, constants: set[Node]
) -> Node:
    """A constant that a function computes in float64, rounded to the type of an example, whose shape it has."""
    unrounded = graph.call_function(function, arguments)
    node = graph.call_function(rounded, (unrounded, example.dtype))
    node.meta["val"] = example
    constants |= {unrounded, node}
    return node


def exact(node: Node) -> Node:
    """The constant of a node before it was rounded, where a fold has computed it."""
    return node.args[0] if node.target is rounded else node


def rounded(value: Tensor, dtype: torch.dtype) -> Tensor:
    """A value in another type."""
    return value.to(dtype)


def scaled_weight(weight: Tensor, gain: Tensor | None, variance: Tensor, eps: float) -> Tensor:
    """The weight (M, ...) of a convolution with the factors of a batch norm of its output, in float64."""
    return weight.double() * _scale(gain, variance, eps).reshape(-1, *[1] * (weight.dim() - 1))


def shifted_bias(
    bias: Tensor | None, gain: Tensor | None, shift: Tensor | None, mean: Tensor, variance: Tensor, eps: float
) -> Tensor:
    """The bias (M,) of a convolution with the summands of a batch norm of its output, in float64."""
    moved = -mean.double() if bias is None else bias.double() - mean.double()
    moved = moved * _scale(gain, variance, eps)
    return moved if shift is None else moved + shift.double()


def _scale(gain: Tensor | None, variance: Tensor, eps: float) -> Tensor:
    scale = (variance.double() + eps).rsqrt()
    return scale if gain is None else scale * gain.double()
