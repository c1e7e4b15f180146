"""Nodes of graphs of torch: what uses them, and what is known of their tensors and operands."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from cuconv.core.activation import NONE, Activation, named
from cuconv.nn.formats import format_of, laid_out
from cuconv.nn.layout import is_laid_out_in_example

aten = torch.ops.aten
ORDERS = (
    *(aten.unsqueeze.default, aten.clone.default, aten.view.default, aten._unsafe_view.default, aten.slice.Tensor),
    *(aten.unfold.default, aten.flip.default, aten.permute.default),
)
"""Operators that put the elements of a weight in another order, or pick some."""

Node = Any  # fx.Node, whose own annotations allow no more than to look at its arguments


class Operands(NamedTuple):
    """The arguments of `torch.ops.cuconv.conv2d`, in order."""

    input: Node
    weight: Node
    bias: Node
    stride: Any
    padding: Any
    dilation: Any
    groups: Any
    activation: str
    numbers: list[float]
    residual: Node
    precision: str

    @property
    def function(self) -> Activation:
        """The activation."""
        return named(self.activation, *self.numbers)

    @property
    def is_plain(self) -> bool:
        """Whether nothing follows the products and the bias."""
        return self.function == NONE and self.residual is None


def joined(node: Node) -> list[Node]:
    """The images whose channels a concatenation joins, where nothing else reads them; [] for all other nodes."""
    if node.target is not torch.ops.aten.cat.default or node.kwargs or node.meta["val"].dim() != 4:
        return []
    parts, dim = (*node.args, 0)[:2]
    is_apart = 1 < len(parts) == len(set(parts)) and all(only_user(part) is node for part in parts)
    same_type = all(part.meta["val"].dtype == node.meta["val"].dtype for part in parts)
    return [*parts] if dim in (1, -3) and is_apart and same_type else []


def is_row(node: Node) -> bool:
    """Whether a node is the view of a signal as an image of one row."""
    return node.target is aten.unsqueeze.default and node.args[1] == 2 and node.meta["val"].dim() == 4


def only_user(node: Node) -> Node | None:
    """The node that alone uses another one, if there is one."""
    return next(iter(node.users)) if len(node.users) == 1 else None


def kind_of(node: Node) -> tuple[Any, ...]:
    """The dtype, and the sizes as numbers and sympy expressions, of a node's tensor."""
    value = node.meta.get("val")
    if not isinstance(value, Tensor):
        return (node,)
    return (value.dtype, value.device, *(size if isinstance(size, int) else size.node.expr for size in value.shape))


def reordered(node: Node) -> Node:
    """The weight of a layer, from what a graph makes of it: images of one row, a copy in another order, or phases."""
    while node.target in ORDERS:
        node = node.args[0]
    return node


def laid_out_node(node: Node) -> Node:
    """A node in the memory format that cuConv computes: itself, or a copy, made where the graph inserts nodes."""
    value = node.meta["val"]
    if is_laid_out_in_example(value):
        return node
    copy = node.graph.call_function(aten.clone.default, (node,), {"memory_format": format_of(value)})
    copy.meta["val"] = laid_out(value)
    return copy
