"""Sums of convolutions that read the same input become one convolution, as RepVGG and MobileOne do for inference.

A convolution is linear in its weight, so the sum has the sum of the branches' weights. A batch norm of the input itself
is a branch, too: a 1x1 convolution by the identity.

    conv 3x3 + conv 1x1 + batch norm:   a b c   . . .   . . .   a   b     c
                                        d e f + . g . + . h . = d e+g+h   f
                                        i j k   . . .   . . .   i   j     k

All taps of a branch must be taps of the largest filter, by padding and dilation. So each output reads the inputs that
it read before, and NaN and infinity reach the same outputs. An output may be infinite that was NaN: where branches add
infinities of both signs, or one multiplies infinity by zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor, fx

from cuconv.core.geometry import ends
from cuconv.nn.layout import is_laid_out_in_example
from cuconv.nn.nodes import Node, Operands, kind_of, only_user
from cuconv.nn.norms import exact, normalised, rounded_node
from cuconv.nn.operator import CONV2D
from cuconv.nn.traced import BATCH_NORM

aten = torch.ops.aten
SAME = (aten.clone.default, aten.unsqueeze.default, aten.squeeze.dim)
"""Operators that give elements in their order: as a copy, or as images of one row and back."""
Places = tuple[slice, slice]
"""Where the taps of a smaller filter lie in the largest one: slices of its rows and of its columns."""
Branch = tuple[Operands, Places]
"""A convolution, and the places of its taps among those of the convolution that is to compute it, too."""


def merge_branches(graph: fx.Graph, constants: set[Node]) -> None:
    """Make one convolution of those in a sum that read the same input, and of batch norms of that input.

    Batch norms of convolutions have been folded. In such a sum, and in one with a zero, the convolutions come first and
    zeros are left out, so that it may be rounded otherwise than before.
    """
    roots = [node for node in graph.nodes if _is_sum(node) and not _is_inner(node)]
    for root in [node for node in roots if is_laid_out_in_example(node.meta["val"])]:
        operands = _addends(root)
        with graph.inserting_before(root):
            merged = _merged_addends(operands, kind_of(root), constants)
            if len(merged) == len(operands):
                continue
            total = merged[0]  # a convolution: a sum has the format of its first operand
            for operand in merged[1:]:
                total = graph.call_function(aten.add.Tensor, (total, operand))
                total.meta = dict(root.meta)
        root.replace_all_uses_with(total)
        _erase(root)


def _is_sum(node: Any) -> bool:
    return isinstance(node, fx.Node) and node.target is aten.add.Tensor and not node.kwargs


def _is_inner(node: Any) -> bool:
    """Whether an operand is a sum that another sum like it reads, once, and nothing else."""
    user = only_user(node) if _is_sum(node) else None
    return user is not None and _is_sum(user) and kind_of(user) == kind_of(node) and user.args.count(node) == 1


def _addends(root: Node) -> list[Any]:
    """The addends of a sum; those of inner sums stand in their place."""
    found, rest = [], [*reversed(root.args)]
    while rest:
        operand = rest.pop()
        if _is_inner(operand):
            rest += reversed(operand.args)
        else:
            found.append(operand)
    return found


def _merged_addends(operands: list[Any], kind: tuple[Any, ...], constants: set[Node]) -> list[Any]:
    """The addends of a sum, convolutions first, in which branches are one convolution; without any, they stay."""
    convolutions = [one for one in operands if _is_read_here(one, kind) and one.target is CONV2D]
    if not convolutions:
        return operands
    convolutions.sort(key=lambda one: prod(one.args[1].meta["val"].shape[2:]), reverse=True)
    others = [one for one in operands if one not in convolutions and (isinstance(one, fx.Node) or one != 0)]
    found = [*convolutions, *others]
    for base in convolutions:
        if base in found:
            found = _with_branches_merged(base, found, constants)
    return found


def _is_read_here(operand: Any, kind: tuple[Any, ...]) -> bool:
    """Whether an operand of a sum is a tensor of a kind that nothing else reads."""
    return isinstance(operand, fx.Node) and only_user(operand) is not None and kind_of(operand) == kind


def _with_branches_merged(base: Node, operands: list[Any], constants: set[Node]) -> list[Any]:
    """The addends of a sum, in which a convolution and its branches are one convolution, the first addend."""
    others = [*operands]
    others.remove(base)
    whole = _branch(base, base, constants)
    branches = [None if whole is None else _branch(one, base, constants) for one in others]
    found = [branch for branch in branches if branch is not None]
    if whole is None or not found:
        return [base, *others]
    call = base.graph.call_function(CONV2D, tuple(_sum_of([whole, *found], base.graph, constants)))
    layers = [one for one, branch in zip(others, branches, strict=True) if branch and one.target is CONV2D]
    layers = [one for one in layers if one is not base]  # as in x + x
    for layer in layers:
        layer.meta["kind"] = "branch"
    words = f"{len(found)} branch{'es' if len(found) > 1 else ''}"
    call.meta = {**base.meta, "folded": (*base.meta.get("folded", ()), words), "branches": layers}
    return [call, *(one for one, branch in zip(others, branches, strict=True) if branch is None)]


def _sum_of(branches: list[Branch], graph: fx.Graph, constants: set[Node]) -> Operands:
    """The operands of the convolution that computes the sum of branches, the first of which has all taps."""
    whole, _ = branches[0]
    weights = [exact(branch.weight) for branch, _ in branches]
    places = [one for _, one in branches]
    weight = rounded_node(summed_weight, (weights, places), whole.weight.meta["val"], graph, constants)
    biases = [branch.bias for branch, _ in branches if branch.bias is not None]
    bias = None
    if biases:
        bias = rounded_node(summed_bias, ([*map(exact, biases)],), biases[0].meta["val"], graph, constants)
    return whole._replace(weight=weight, bias=bias)


def _branch(operand: Any, base: Node, constants: set[Node]) -> Branch | None:
    """An operand of a sum as a convolution, and the places of its taps among those of another; None for others."""
    if not _is_read_here(operand, kind_of(base)):
        return None
    whole = Operands(*base.args)
    found = Operands(*operand.args) if operand.target is CONV2D else _of_identity(operand, whole, constants)
    if found is None or not found.is_plain or _source(found.input) is not _source(whole.input):
        return None
    fixed = [one for one in (found.weight, found.bias) if one is not None]
    if kind_of(found.input) != kind_of(whole.input) or not constants.issuperset(fixed):
        return None
    places = _places(found, whole) if (found.groups, found.precision) == (whole.groups, whole.precision) else None
    return None if places is None else (found, places)


def _of_identity(operand: Node, base: Operands, constants: set[Node]) -> Operands | None:
    """A batch norm of a convolution's input as a convolution of 1x1, in as many groups; None for anything else."""
    is_row = operand.target is aten.unsqueeze.default and operand.args[1] == 2
    norm = operand.args[0] if is_row else operand
    if norm.target is not BATCH_NORM or only_user(norm) is None or kind_of(operand) != kind_of(base.input):
        return None
    if _source(norm.args[0]) is not _source(base.input):
        return None
    weight = norm.graph.call_function(identity, (base.weight,))
    weight.meta["val"] = base.weight.meta["val"][:, :, :1, :1]
    constants.add(weight)
    pixel = base._replace(weight=weight, bias=None, stride=[1, 1], padding=[0, 0], dilation=[1, 1])
    return normalised(pixel, norm, constants)


def _source(node: Node) -> Node:
    """The node whose elements a node has, in their order."""
    while node.target in SAME:
        node = node.args[0]
    return node


def _places(branch: Operands, base: Operands) -> Places | None:
    """The places of a convolution's taps among those of another one; None where one of its taps is not there.

    Taps are the same where they read the same input for each output.
    """
    found = []
    for one, other in zip(_axes(branch), _axes(base), strict=True):
        if any(type(number) is not int for number in (*one, *other)):  # a size may vary
            return None
        (taps, stride, before, dilation), (all_taps, same_stride, all_before, all_dilation) = one, other
        first, between = divmod(all_before - before, all_dilation)
        step, beside = divmod(dilation, all_dilation) if taps > 1 else (1, 0)
        last = first + (taps - 1) * step
        if stride != same_stride or between or beside or first < 0 or last >= all_taps:
            return None
        found.append(slice(first, last + 1, step))
    return found[0], found[1]


def _axes(operands: Operands) -> list[tuple[Any, ...]]:
    """The taps, stride, zeros before the first input, and dilation of a convolution on each axis."""
    before = [zeros for zeros, _ in ends(operands.padding, 2)]
    taps = operands.weight.meta["val"].shape[2:]
    return list(zip(taps, operands.stride, before, operands.dilation, strict=True))


def _erase(root: Node) -> None:
    """Erase a node that nothing reads, and what it alone has read."""
    rest, erased = [root], set()
    while rest:
        node = rest.pop()
        if node not in erased and not node.users and node.op == "call_function":
            rest += node.all_input_nodes
            node.graph.erase_node(node)
            erased.add(node)


def identity(weight: Tensor) -> Tensor:
    """The weight (C, C / groups, 1, 1) of the convolution that returns its input, by another one of as many groups."""
    outputs, channels, *_ = weight.shape
    one_group = torch.eye(channels, dtype=weight.dtype, device=weight.device)
    return one_group.repeat(outputs // channels, 1)[:, :, None, None]


def summed_weight(weights: Sequence[Tensor], places: Sequence[Places]) -> Tensor:
    """The sum of weights (M, C, KH, KW), the first of which is the largest, at places of its taps, in float64."""
    total = torch.zeros_like(weights[0], dtype=torch.float64)
    for weight, (rows, columns) in zip(weights, places, strict=True):
        total[:, :, rows, columns] += weight
    return total


def summed_bias(biases: Sequence[Tensor]) -> Tensor:
    """The sum of biases (M,) in float64."""
    return torch.stack([bias.double() for bias in biases]).sum(0)
