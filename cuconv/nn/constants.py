"""The part of a captured graph that computes with the model's own tensors alone, such as weight standardisation.

Weights are constant, so it need not run at each call. It becomes a program of its own, which runs when the weights are
taken over, and the rest of the graph reads what it returns.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from cuconv.nn.aliases import Aliases
from cuconv.nn.capture import Captured
from cuconv.nn.program import Program


def hoist_constants(captured: Captured) -> Program | None:
    """Take the constant part out of a graph; None where there is none.

    The graph's `tensors` get an entry for each result of the program that is returned, in order.
    """
    graph, aliases = captured.graph.graph, Aliases(captured.graph.graph)
    written = {root for node in graph.nodes for one in aliases.written(node) for root in aliases.roots(one)}
    returned = [one for node in graph.nodes if node.op == "output" for one in node.all_input_nodes]
    written |= {root for one in returned for root in aliases.roots(one)}  # by the caller, who owns what is returned
    constant: set[fx.Node] = set()
    for node in graph.nodes:
        is_tensor = node.op == "get_attr" and (node.target in captured.tensors or node.target in captured.constants)
        is_result = _is_pure(node) and constant.issuperset(node.all_input_nodes)
        if (is_tensor or is_result) and not aliases.roots(node) & written:
            constant.add(node)
    called = [node for node in graph.nodes if node in constant and node.op == "call_function"]
    results = [node for node in called if not constant.issuperset(node.users)]
    if not results:
        return None
    program = _program_of(captured, results)
    for place, node in enumerate(results):
        name = f"derived_{place}"
        captured.tensors[name] = f"<{name}>"  # no tensor of a model can have this name
        with graph.inserting_before(node):
            read = graph.create_node("get_attr", name)
        read.meta = dict(node.meta)
        node.replace_all_uses_with(read)
    for node in reversed(graph.nodes):
        if node in constant and not node.users:
            graph.erase_node(node)
    return program


def _is_pure(node: fx.Node) -> bool:
    """Whether a node is a call of an operator that returns a tensor, an equal one for equal tensors."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload) or not node.all_input_nodes:
        return False
    return isinstance(node.meta.get("val"), Tensor) and torch.Tag.nondeterministic_seeded not in node.target.tags


def _program_of(captured: Captured, results: list[fx.Node]) -> Program:
    """A program without arguments that returns the values of constant nodes."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    needed: set[fx.Node] = set()
    pending: list[Any] = list(results)
    while pending:
        node = pending.pop()
        if node not in needed:
            needed.add(node)
            pending += node.all_input_nodes
    for node in captured.graph.graph.nodes:
        if node in needed:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[node] for node in results))
    read = {str(node.target) for node in graph.nodes if node.op == "get_attr"}
    tensors = {name: target for name, target in captured.tensors.items() if name in read}
    return Program(graph, {}, tensors, {name: one for name, one in captured.constants.items() if name in read})
