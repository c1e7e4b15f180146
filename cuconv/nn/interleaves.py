"""Batch norms and activations behind a transposed convolution move ahead of the interleave of its phases.

There, fusions find them at the ordinary convolutions that compute the phases. An activation computes each element by
itself, and a batch norm each channel; the factors of a channel are repeated for its phases.
"""

from __future__ import annotations

from typing import Any

from torch import fx

from cuconv.nn.activated import activation_in
from cuconv.nn.nodes import Node, only_user
from cuconv.nn.operator import CONV2D
from cuconv.nn.phases import INTERLEAVE, interleaved, repeated, transposed_by
from cuconv.nn.traced import BATCH_NORM


def move_ahead(graph: fx.Graph, constants: set[Node]) -> None:
    """Move batch norms and activations of interleaved phases to the phases, where they can be fused."""
    node: Node
    for node in list(graph.nodes):
        while node.target is INTERLEAVE and (user := only_user(node)) is not None and _moves(user, node, constants):
            node = _moved(user, node, constants)


def is_of_phases(node: Node) -> bool:
    """Whether a node is one of the ordinary convolutions of a transposed one."""
    user = only_user(node)
    return user is not None and user.target in (INTERLEAVE, interleaved)


def _moves(user: Node, interleave: Node, constants: set[Node]) -> bool:
    """Whether an operation can be fused into the convolutions of the phases."""
    parts = interleave.args[0]
    if user.target is BATCH_NORM and user.args[0] is interleave:
        fixed = [
            one for one in (*user.args[1:5], *(one for part in parts for one in part.args[1:3])) if one is not None
        ]
        is_number = not isinstance(user.args[5], fx.Node)
        return all(part.target is CONV2D for part in parts) and is_number and constants.issuperset(fixed)
    return activation_in(user) is not None and all(part.target in (CONV2D, BATCH_NORM) for part in parts)


def _moved(user: Node, interleave: Node, constants: set[Node]) -> Node:
    """The interleave of what an operation makes of each phase, in the place of the operation."""
    graph = user.graph
    parts, *sizes, groups = interleave.args
    with graph.inserting_before(user):
        found = []
        for part, phases in zip(parts, transposed_by(sizes, groups).phases, strict=True):
            operands = [_repeated(one, groups, phases, constants) for one in user.args[1:]]
            moved = graph.call_function(user.target, (part, *operands), user.kwargs)
            moved.meta = {**user.meta, "val": part.meta["val"]}
            found.append(moved)
        joined = graph.call_function(INTERLEAVE, (found, *sizes, groups))
    joined.meta = dict(interleave.meta)
    user.replace_all_uses_with(joined)
    graph.erase_node(user)
    graph.erase_node(interleave)
    return joined


def _repeated(operand: Any, groups: int, phases: int, constants: set[Node]) -> Any:
    """A tensor of the channels for those of stacked filters; other operands as they are."""
    if not isinstance(operand, fx.Node) or phases == 1:
        return operand
    made = operand.graph.call_function(repeated, (operand, groups, phases))
    made.meta["val"] = repeated(operand.meta["val"], groups, phases)
    constants.add(made)
    return made
