"""Batch norms and activations behind joined outputs of convolutions move ahead of the join.

A join is the interleave of a transposed convolution's phases, or a concatenation along the channels. Ahead of it,
fusions find these operations at each convolution. An activation computes each element by itself, and a batch norm each
channel: its factors are repeated for phases, and cut for the parts of a concatenation.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor, fx

from cuconv.nn.activated import activation_in
from cuconv.nn.nodes import Node, Operands, joined, kind_of, only_user
from cuconv.nn.norms import takes_norm
from cuconv.nn.operator import CONV2D
from cuconv.nn.phases import INTERLEAVE, interleaved, repeated, transposed_by
from cuconv.nn.traced import BATCH_NORM

aten = torch.ops.aten


def move_ahead(graph: fx.Graph, constants: set[Node]) -> None:
    """Move batch norms and activations of joined outputs to these, where they can be fused."""
    node: Node
    for node in list(graph.nodes):
        while _is_join(node) and (user := only_user(node)) is not None and _moves(user, node, constants):
            node = _moved(user, node, constants)


def is_of_phases(node: Node) -> bool:
    """Whether a node is one of the ordinary convolutions of a transposed one."""
    user = only_user(node)
    return user is not None and user.target in (INTERLEAVE, interleaved)


def _is_join(node: Node) -> bool:
    """Whether a node joins outputs that nothing else reads, and whose channels it has."""
    if node.target is INTERLEAVE:
        return True
    values = [part.meta["val"] for part in joined(node)]
    return bool(values) and all(value.dim() == 4 and type(value.shape[1]) is int for value in values)


def _moves(user: Node, join: Node, constants: set[Node]) -> bool:
    """Whether an operation can be fused into all convolutions of a join."""
    if user.target is BATCH_NORM:
        is_moved = user.args[0] is join and kind_of(user) == kind_of(join)
        return is_moved and all(_is_fused(user, part, constants) for part in join.args[0])
    return activation_in(user) is not None and all(_is_fused(None, part, constants) for part in join.args[0])


def _is_fused(norm: Node | None, part: Node, constants: set[Node]) -> bool:
    """Whether a part is a convolution, into which a batch norm can be fused, or a batch norm that will be fused."""
    if part.target is BATCH_NORM and norm is None:
        norm, part = part, part.args[0]
        if only_user(part) is not norm or kind_of(part) != kind_of(norm):
            return False
    if part.target is not CONV2D:
        return False
    operands = Operands(*part.args)
    return operands.is_plain if norm is None else takes_norm(operands, norm, constants)


def _moved(user: Node, join: Node, constants: set[Node]) -> Node:
    """The join of what an operation makes of each part, in the place of the operation."""
    graph = user.graph
    parts, *others = join.args
    with graph.inserting_before(user):
        found = []
        for part, of_part in zip(parts, _of_parts(join), strict=True):
            operands = [_for_part(one, *of_part, constants) for one in user.args[1:]]
            moved = graph.call_function(user.target, (part, *operands), user.kwargs)
            moved.meta = {**user.meta, "val": part.meta["val"]}
            found.append(moved)
        moved_join = graph.call_function(join.target, (found, *others))
    moved_join.meta = dict(join.meta)
    user.replace_all_uses_with(moved_join)
    graph.erase_node(user)
    graph.erase_node(join)
    return moved_join


def _of_parts(join: Node) -> list[tuple[Callable[..., Any], tuple[Any, ...]]]:
    """For each part of a join, the function that makes its tensor of a tensor of the join's channels, and arguments."""
    parts, *others = join.args
    if join.target is INTERLEAVE:
        *sizes, groups = others
        return [(repeated, (groups, phases)) for phases in transposed_by(sizes, groups).phases]
    ends = accumulate(part.meta["val"].shape[1] for part in parts)
    return [(_between, places) for places in pairwise((0, *ends))]


def _between(values: Tensor, first: int, end: int) -> Tensor:
    return values[first:end]


def _for_part(operand: Any, function: Callable[..., Any], arguments: tuple[Any, ...], constants: set[Node]) -> Any:
    """A tensor of a part's channels, from that of a join's; other operands as they are."""
    if not isinstance(operand, fx.Node):
        return operand
    made = operand.graph.call_function(function, (operand, *arguments))
    made.meta["val"] = function(operand.meta["val"], *arguments)
    constants.add(made)
    return made
