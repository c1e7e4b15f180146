"""The fold: a functional ATen graph becomes one with cuConv's operators, into which what follows them is fused.

A functional graph has no writes and no aliases that matter, so an operation may move to where its result is needed. A
graph comes from torch.compile or torch.export; it has been traced with `decompositions`, which make each convolution
that cuConv computes a `torch.ops.cuconv.conv2d`. Each entry of FUSIONS then takes one more operation into it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor, fx

from cuconv.core.activation import NONE
from cuconv.core.problem import UnsupportedProblem
from cuconv.nn.activated import activation_in
from cuconv.nn.branches import merge_branches
from cuconv.nn.formats import as_row, in_a_plane, laid_out
from cuconv.nn.joins import is_of_phases, move_ahead
from cuconv.nn.layout import INTERPOLATE, hint, is_laid_out_in_example, is_viewed
from cuconv.nn.limits import check_half, check_operands
from cuconv.nn.modules import linear, why_not_linear
from cuconv.nn.nodes import Node, Operands, kind_of, laid_out_node, only_user, reordered
from cuconv.nn.norms import normalised
from cuconv.nn.operator import CONV2D, is_supported
from cuconv.nn.padding import for_operator
from cuconv.nn.phases import INTERLEAVE, interleaved
from cuconv.nn.planes import GROUP_NORM, fold_group_norms
from cuconv.nn.pooling import MAX_POOL2D, fold_pools, max_pool2d
from cuconv.nn.report import Converted
from cuconv.nn.rows import keep_rows
from cuconv.nn.traced import BATCH_NORM, CONVOLUTION, batch_norm
from cuconv.nn.transposed import on_images, transposed_layer
from cuconv.nn.zeros import fold_zeros

aten = torch.ops.aten
PLAIN_FUNCTIONS = {BATCH_NORM: batch_norm, MAX_POOL2D: max_pool2d, INTERLEAVE: interleaved}
"""Functions in the place of operators that a graph calls: they cost less, and have no other meaning."""


def decompositions(precision: str) -> dict[Any, Callable[..., Any]]:
    """The decompositions to trace a graph with: they make a convolution cuConv's operator, where cuConv computes it.

    The operator takes images in the memory format of their type, and so is its output, also where torch's would have
    another one. Later operations are traced for this format; a view that it does not allow is a copy.
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
        if why_not_convolved(input, weight, bias, stride, padding, dilation, transposed, output_padding, groups):
            return NotImplemented
        if transposed:
            layer = transposed_layer(input, weight, bias, (stride, padding, output_padding, dilation), groups)
            return on_images(layer, laid, input, weight, bias, INTERLEAVE)
        if weight.dim() == 3:
            sizes = in_a_plane(stride, padding, dilation)
            rows = (as_row(input), as_row(weight), bias)
            return convolution(*rows, *sizes, transposed, output_padding, groups).squeeze(2)
        return laid(input, weight, bias, stride, padding, dilation, groups)

    def laid(
        input: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any, groups: int
    ) -> Tensor:
        stride, padding, dilation = ([size[0], size[-1]] for size in (stride, padding, dilation))
        operands = (None if operand is None else laid_out(operand) for operand in (input, weight, bias))
        geometry = (stride, for_operator(padding), dilation, groups)
        output: Tensor = CONV2D(*operands, *geometry, NONE.name, [], None, precision)
        return output

    def traced(input: Tensor, weight: Tensor, bias: Tensor | None, *geometry: Any) -> Any:
        *sizes, groups = geometry
        operands = (input, weight, bias, *sizes, False, [0] * (weight.dim() - 2), groups)
        output = convolution(*operands)
        return aten.convolution.default(*operands) if output is NotImplemented else output

    def norm(
        input: Tensor, weight: Any, bias: Any, mean: Tensor, variance: Tensor, momentum: float, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        unused = mean.new_empty(0)
        return BATCH_NORM(input, weight, bias, mean, variance, eps), unused, unused

    def view(input: Tensor, size: Any) -> Any:
        return NotImplemented if is_viewed(input, size) else input.reshape(size)

    return {
        aten.view.default: view,
        aten.convolution.default: convolution,
        CONVOLUTION: traced,
        **{one.in_dynamo: one.traced for one in (INTERPOLATE, GROUP_NORM)},
        aten._native_batch_norm_legit_no_training.default: norm,
    }


def fold(graph: fx.Graph, constants: set[Node], precision: str) -> list[tuple[Converted, Node]]:
    """Fuse what follows cuConv's convolutions into them, find fully connected layers, and tell what became of each.

    Returns a row of the report, and the node of the weight, for each layer.

    constants: the nodes with constant tensors, such as weights. Nodes that depend on them alone are added. A batch norm
    is fused where it and the weights are constant, since its factors are multiplied into the weights.
    """
    fold_zeros(graph)
    keep_rows(graph)
    for place, node in enumerate(graph.nodes):
        node.meta["place"] = place  # where the model's code has it
        if node.target in (CONV2D, aten.convolution.default):
            node.meta |= {"weight": reordered(node.args[1]), "flop": _flop(node)}
        elif node.target is INTERLEAVE:
            node.meta["weight"] = node.args[0][0].meta["weight"]
    add_constants(graph, constants)
    for node in list(graph.nodes):
        if node.target in (aten.addmm.default, aten.mm.default):
            _make_linear(node, constants, precision)
    fold_pools(graph, constants)
    fold_group_norms(graph, constants)
    fold_convolutions(graph, constants)
    for node in graph.nodes:
        node.target = PLAIN_FUNCTIONS.get(node.target, node.target)
    graph.eliminate_dead_code()
    kinds = (CONV2D, fully_connected, aten.convolution.default, interleaved)
    layers = [node for node in graph.nodes if node.target in kinds and not is_of_phases(node)]
    layers += [branch for node in layers for branch in node.meta.get("branches", ())]
    return [(_row(node), node.meta["weight"]) for node in sorted(layers, key=lambda node: node.meta["place"])]


def fold_convolutions(graph: fx.Graph, constants: set[Node]) -> None:
    """Fuse what follows cuConv's convolutions into them. `add_constants` comes first."""
    move_ahead(graph, constants)
    _fuse(graph, constants, [_batch_norm])
    merge_branches(graph, constants)
    _fuse(graph, constants, [*FUSIONS])


def _fuse(graph: fx.Graph, constants: set[Node], fusions: list[Fusion]) -> None:
    """Try fusions, in order, on each of cuConv's convolutions."""
    for node in list(graph.nodes):
        if node.target is not CONV2D:
            continue
        for fusion in fusions:
            if (user := only_user(node)) is not None and (operands := fusion(node, user, constants)) is not None:
                node = _replaced(node, user, operands)
                node.meta["folded"] = (*node.meta.get("folded", ()), FUSIONS[fusion] or str(operands.function))


def _row(node: Node) -> Converted:
    """The report's row of a convolution or fully connected layer."""
    stack = list((node.meta.get("nn_module_stack") or {"": ("", "")}).values())
    name = str(stack[-1][0]).partition("']")[2].lstrip(".") or node.name
    if node.target is aten.convolution.default:
        return Converted(name, reason=_why_left(node), flop=node.meta["flop"])
    if node.target is interleaved:
        phases = [phase.meta for phase in node.args[0]]
        flop = sum(phase["flop"] for phase in phases)
        return Converted(name, phases[0].get("folded", ()), "", "conv_transpose", flop)
    return Converted(name, node.meta.get("folded", ()), "", node.meta.get("kind", "conv"), node.meta["flop"])


def _why_left(node: Node) -> str:
    """Why torch computes a convolution."""
    return why_not_convolved(*(one.meta["val"] if isinstance(one, fx.Node) else one for one in node.args))


def why_not_convolved(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> str:
    """Why torch computes a convolution of tensors without data; "" where cuConv does."""
    dimensions = weight.dim() - 2
    if dimensions not in (1, 2):
        return f"it is conv{'_transpose' if transposed else ''}{dimensions}d"
    if input.dim() != weight.dim():
        return f"its input has {input.dim()} dimensions"
    try:
        if transposed:
            transposed_layer(input, weight, bias, (stride, padding, output_padding, dilation), groups)
            return ""
        check_operands(input, weight, bias)
        if dimensions == 1:
            input, weight = as_row(input), as_row(weight)
            stride, padding, dilation = in_a_plane(stride, padding, dilation)
        check_half(input, weight.shape, stride, padding, dilation, groups)
    except UnsupportedProblem as error:
        return str(error)
    return ""


def _flop(node: Node) -> int:
    """The floating-point operations of a layer for the sizes of the example; 0 where they depend on its data."""
    value, weight = node.meta["val"], node.args[1].meta["val"]
    if node.target is aten.convolution.default and node.args[6]:  # transposed: each input is multiplied by all filters
        value = node.args[0].meta["val"]
    return 2 * prod(map(hint, (*value.shape, *weight.shape[1:])))


def add_constants(graph: fx.Graph, constants: set[Node]) -> None:
    """Add the nodes that compute tensors from constant ones alone, but for those that a caller could write to."""
    returned = set(_returned(graph))
    for node in graph.nodes:
        if node.op != "call_function" or node in returned or not node.all_input_nodes:
            continue
        if not constants.issuperset(node.all_input_nodes):
            continue
        value = node.meta.get("val")
        results = list(node.users) if isinstance(value, (tuple, list)) else [node]
        tensors = all(isinstance(result.meta.get("val"), Tensor) for result in results)
        if tensors and _is_pure(node) and returned.isdisjoint(results):  # such as the two results of weight norm
            constants.add(node)


def _is_pure(node: Node) -> bool:
    """Whether a node is a call of an operator that returns equal tensors for equal ones, or picks one of these."""
    if node.target is operator.getitem:
        return True
    return isinstance(node.target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded not in node.target.tags


def _returned(graph: fx.Graph) -> list[Node]:
    """The nodes that share memory with a result of the graph."""
    found = list(graph.output_node().all_input_nodes)
    for node in found:  # more are found meanwhile
        schema = getattr(node.target, "_schema", None)
        if schema is not None and any(result.alias_info is not None for result in schema.returns):
            found += node.all_input_nodes
    return found


Fusion = Callable[[Node, Node, set[Node]], Operands | None]

# Fusions: each returns the operands of the convolution that computes both, or None where there is none


def _batch_norm(node: Node, user: Node, constants: set[Node]) -> Operands | None:
    """The batch norm with fixed statistics of a convolution's output."""
    if user.target is not BATCH_NORM or user.args[0] is not node or kind_of(user) != kind_of(node):
        return None
    with node.graph.inserting_before(user):
        return normalised(Operands(*node.args), user, constants)


def _residual(node: Node, user: Node, constants: set[Node]) -> Operands | None:
    """The sum of a convolution's output and another tensor like it."""
    operands = Operands(*node.args)
    if user.target is not aten.add.Tensor or user.kwargs or not operands.is_plain:
        return None
    others = [one for one in user.args if one is not node]
    if len(others) != 1 or not isinstance(others[0], fx.Node) or kind_of(others[0]) != kind_of(node):
        return None
    if not is_laid_out_in_example(user.meta["val"]):  # a sum has the format of its first operand
        return None
    with node.graph.inserting_before(user):
        return operands._replace(residual=laid_out_node(others[0]))


def _activation(node: Node, user: Node, constants: set[Node]) -> Operands | None:
    """The activation of a convolution's output."""
    operands, found = Operands(*node.args), activation_in(user)
    if found is None or operands.function != NONE:
        return None
    return operands._replace(activation=found.name, numbers=list(found.numbers))


FUSIONS: dict[Fusion, str] = {_batch_norm: "batch norm", _residual: "residual", _activation: ""}
"""The fusions, in the order in which a kernel computes them after the products, and their names in reports.

An activation has its own name.
"""


def _replaced(node: Node, user: Node, operands: Operands) -> Node:
    """The convolution with other operands in the place of a node and its user."""
    with node.graph.inserting_before(user):
        call = node.graph.call_function(CONV2D, tuple(operands))
    call.meta = dict(node.meta)
    user.replace_all_uses_with(call)
    for old in (user, node):
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
    is_of_a_type = input.meta["val"].dtype == values[0].dtype
    if not is_of_a_type or values[0].numel() == 0 or why_not_linear(values[0], *values[1:] or [None]):
        return
    user = only_user(node)
    last = user if user is not None and user.target is aten.relu.default else node
    with node.graph.inserting_before(last):
        call = node.graph.call_function(fully_connected, (input, weight, bias, last is user, precision))
    call.meta = {**node.meta, "weight": weight, "folded": ("relu",) if last is user else (), "kind": "linear"}
    call.meta["flop"] = _flop(call)
    last.replace_all_uses_with(call)
    for old in dict.fromkeys((last, node)):
        node.graph.erase_node(old)


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
