"""The fold: a functional ATen graph becomes one with cuConv's operators, into which what follows them is fused.

A functional graph has no writes and no aliases that matter, so an operation may move to where its result is needed. A
graph comes from torch.compile or torch.export; it has been traced with `decompositions`, which make each convolution
that cuConv computes a `torch.ops.cuconv.conv2d`. Each entry of FUSIONS then takes one more operation into it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from cuconv.nn.modules import linear, why_not_linear
from cuconv.nn.operator import is_supported

aten = torch.ops.aten
CONV2D = torch.ops.cuconv.conv2d.default
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
    relu: bool
    residual: Node
    precision: str


def decompositions(precision: str) -> dict[Any, Callable[..., Any]]:
    """The decompositions to trace a graph with: they make a convolution cuConv's operator, where cuConv computes it.

    The operator takes contiguous images, and its output is contiguous, also where torch's would have channels last.
    Later operations, such as views, are traced for this layout.
    """

    def convolution(
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        stride: Any,
        padding: Any,
        dilation: Any,
        transposed: bool,
        output_padding: Any,
        groups: int,
    ) -> Any:
        operands = (input, weight) if bias is None else (input, weight, bias)
        is_ours = not transposed and input.dim() == weight.dim() == 4 and is_supported(input)
        if not is_ours or any(operand.dtype != torch.float32 for operand in operands):
            return NotImplemented
        geometry = ([size[0], size[-1]] for size in (stride, padding, dilation))
        contiguous = (None if operand is None else operand.contiguous() for operand in (input, weight, bias))
        return CONV2D(*contiguous, *geometry, groups, False, None, precision)

    return {aten.convolution.default: convolution}


def fold(graph: fx.Graph, constants: set[Node], precision: str) -> None:
    """Fuse what follows cuConv's convolutions into them, and find fully connected layers.

    constants: the nodes with constant tensors, such as weights. Nodes that depend on them alone are added. A batch norm
    is fused where it and the weights are constant, since its factors are multiplied into the weights.
    """
    add_constants(graph, constants)
    for node in list(graph.nodes):
        if node.target in (aten.addmm.default, aten.mm.default):
            _make_linear(node, constants, precision)
    for node in list(graph.nodes):
        if node.target is not CONV2D:
            continue
        for fusion in FUSIONS:
            if (user := only_user(node)) is not None and (operands := fusion(node, user, constants)) is not None:
                node = _replaced(node, user, operands)
    for node in list(graph.nodes):
        if node.target is aten._native_batch_norm_legit_no_training.default:
            _make_batch_norm(node)
    graph.eliminate_dead_code()


def add_constants(graph: fx.Graph, constants: set[Node]) -> None:
    """Add the nodes that compute tensors from constant ones alone, but for those that a caller could write to."""
    returned = set(_returned(graph))
    for node in graph.nodes:
        if node.op != "call_function" or node in returned or not node.all_input_nodes:
            continue
        if isinstance(node.meta.get("val"), Tensor) and _is_pure(node) and constants.issuperset(node.all_input_nodes):
            constants.add(node)


def _is_pure(node: Node) -> bool:
    """Whether a node is a call of an operator that returns an equal tensor for equal tensors."""
    return isinstance(node.target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded not in node.target.tags


def _returned(graph: fx.Graph) -> list[Node]:
    """The nodes that share memory with a result of the graph."""
    found = list(graph.output_node().all_input_nodes)
    for node in found:  # more are found meanwhile
        schema = getattr(node.target, "_schema", None)
        if schema is not None and any(result.alias_info is not None for result in schema.returns):
            found += node.all_input_nodes
    return found


# Fusions: each returns the operands of the convolution that computes both, or None where there is none


def _batch_norm(node: Node, user: Node, constants: set[Node]) -> Operands | None:
    """The batch norm with fixed statistics of a convolution's output."""
    if user.target is not aten._native_batch_norm_legit_no_training.default or user.args[0] is not node:
        return None
    operands = Operands(*node.args)
    if operands.relu or operands.residual is not None or not isinstance(user.args[6], float):
        return None
    norm = [one for one in user.args[1:5] if one is not None]
    weights = [one for one in (operands.weight, operands.bias) if one is not None]
    first = only_user(user)
    if not constants.issuperset((*norm, *weights)) or first is None or first.args != (user, 0):
        return None
    graph = node.graph
    with graph.inserting_before(user):
        weight = graph.call_function(scaled_weight, (operands.weight, user.args[1], user.args[4], user.args[6]))
        bias = graph.call_function(shifted_bias, (operands.bias, *user.args[1:5], user.args[6]))
    weight.meta["val"] = operands.weight.meta["val"]
    bias.meta["val"] = user.args[3].meta["val"]
    constants |= {weight, bias}
    return operands._replace(weight=weight, bias=bias)


def _residual(node: Node, user: Node, constants: set[Node]) -> Operands | None:
    """The sum of a convolution's output and another tensor like it."""
    if user.target is not aten.add.Tensor or user.kwargs or node.args[8] is not None or node.args[7]:
        return None
    others = [one for one in user.args if one is not node]
    if len(others) != 1 or not isinstance(others[0], fx.Node) or _kind(others[0]) != _kind(node):
        return None
    return Operands(*node.args)._replace(residual=others[0])


def _relu(node: Node, user: Node, constants: set[Node]) -> Operands | None:
    """The ReLU of a convolution's output."""
    return Operands(*node.args)._replace(relu=True) if user.target is aten.relu.default else None


FUSIONS = (_batch_norm, _residual, _relu)
"""The fusions, in the order in which a kernel computes them after the products."""


def _replaced(node: Node, user: Node, operands: Operands) -> Node:
    """The convolution with other operands in the place of a node and its user."""
    last: Node = user if isinstance(user.meta["val"], Tensor) else only_user(user)  # of a tuple, its first result
    with node.graph.inserting_before(last):
        call = node.graph.call_function(CONV2D, tuple(operands))
    call.meta = dict(node.meta)
    last.replace_all_uses_with(call)
    for old in dict.fromkeys((last, user, node)):
        node.graph.erase_node(old)
    return call


def _make_linear(node: Node, constants: set[Node], precision: str) -> None:
    """Make a product with constant weights the fully connected layer that it was."""
    bias, input, transposed = (None, *node.args) if node.target is aten.mm.default else node.args
    if node.kwargs or transposed not in constants or not _is_transpose(transposed):
        return
    weight = transposed.args[0]
    weights = [weight] if bias is None else [weight, bias]
    if not constants.issuperset(weights) or not is_supported(input.meta["val"]):
        return
    values = [one.meta["val"] for one in weights]
    if any(value.dtype != torch.float32 or value.numel() == 0 for value in values):
        return
    if why_not_linear(values[0], None if bias is None else values[1]):
        return
    user = only_user(node)
    last = user if user is not None and user.target is aten.relu.default else node
    with node.graph.inserting_before(last):
        call = node.graph.call_function(fully_connected, (input, weight, bias, last is user, precision))
    call.meta = dict(node.meta)
    last.replace_all_uses_with(call)
    for old in dict.fromkeys((last, node)):
        node.graph.erase_node(old)


def _make_batch_norm(node: Node) -> None:
    """Make a batch norm that is left what torch calls outside of its compiler, which takes a faster kernel."""
    result = only_user(node)
    if result is None or result.args != (node, 0):
        return
    with node.graph.inserting_before(node):
        call = node.graph.call_function(batch_norm, node.args)
    call.meta = dict(result.meta)
    result.replace_all_uses_with(call)
    for old in (result, node):
        node.graph.erase_node(old)


def batch_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    variance: Tensor,
    momentum: float,
    eps: float,
) -> Tensor:
    """torch's batch norm with fixed statistics."""
    return F.batch_norm(input, mean, variance, weight, bias, False, momentum, eps)


def _is_transpose(node: Node) -> bool:
    """Whether a node is a transposed matrix."""
    if node.target is aten.t.default:
        return True
    if node.target is aten.permute.default:
        return [place % 2 for place in node.args[1]] == [1, 0]
    return node.target is aten.transpose.int and (node.args[1] - node.args[2]) % 2 == 1


def fully_connected(input: Tensor, weight: Tensor, bias: Tensor | None, relu: bool, precision: str) -> Tensor:
    """relu(input @ weight.T + bias), by cuConv for few rows."""
    output = linear(input, weight, bias, precision)
    return output.relu() if relu else output


def scaled_weight(weight: Tensor, gain: Tensor | None, variance: Tensor, eps: float) -> Tensor:
    """The weight (M, ...) of a convolution with the factors of a batch norm of its output."""
    return (weight.double() * _scale(gain, variance, eps).reshape(-1, *[1] * (weight.dim() - 1))).to(weight.dtype)


def shifted_bias(
    bias: Tensor | None, gain: Tensor | None, shift: Tensor | None, mean: Tensor, variance: Tensor, eps: float
) -> Tensor:
    """The bias (M,) of a convolution with the summands of a batch norm of its output."""
    moved = -mean.double() if bias is None else bias.double() - mean.double()
    moved = moved * _scale(gain, variance, eps)
    return (moved if shift is None else moved + shift.double()).to(mean.dtype)


def _scale(gain: Tensor | None, variance: Tensor, eps: float) -> Tensor:
    scale = (variance.double() + eps).rsqrt()
    return scale if gain is None else scale * gain.double()


def only_user(node: Node) -> Node | None:
    """The node that alone uses another one, if there is one."""
    return next(iter(node.users)) if len(node.users) == 1 else None


def _kind(node: Node) -> tuple[Any, ...]:
    """The dtype, and the sizes as numbers and sympy expressions, of a node's tensor."""
    value = node.meta.get("val")
    if not isinstance(value, Tensor):
        return (node,)
    return (value.dtype, value.device, *(size if isinstance(size, int) else size.node.expr for size in value.shape))
