"""Which tensors of a graph may share memory, and which nodes write to it, by the schemas of torch's operators."""

from __future__ import annotations

import operator as python_operator
from typing import Any

import torch
from torch import fx

aten = torch.ops.aten
# Operators made of others (CompositeImplicitAutograd) may return their input itself, which their schemas do not tell.
# These return new tensors always.
NEW = (
    aten.conv2d.default, aten.conv2d.padding, aten.convolution.default, aten.linear.default, aten.batch_norm.default,
    aten.matmul.default, aten.layer_norm.default, aten.group_norm.default, aten.softmax.int, aten.max_pool2d.default,
    aten.cat.default, aten.concat.default, aten.adaptive_avg_pool1d.default, aten.conv1d.default, aten.conv3d.default,
    aten.instance_norm.default,
)  # fmt: skip


class Aliases:
    """The roots of each node of a graph, the nodes whose memory it may use. Those of a common root may share memory."""

    def __init__(self, graph: fx.Graph):
        self._roots: dict[fx.Node, frozenset[fx.Node]] = {}
        self._order: dict[fx.Node, int] = {}
        self._writes: list[tuple[fx.Node, fx.Node]] = []  # (a node that writes, what it writes to), in order
        for place, node in enumerate(graph.nodes):
            self._order[node] = place
            self._roots[node] = self._find(node)
            self._writes += [(node, written) for written in self.written(node)]

    def roots(self, node: fx.Node) -> frozenset[fx.Node]:
        """The nodes whose memory a node may use, itself among them."""
        return self._roots[node]

    def add(self, node: fx.Node, instead_of: list[fx.Node], at: fx.Node) -> None:
        """Note a node that replaces others and returns a new tensor. They wrote to new tensors at most.

        at: the replaced node at whose position the new one reads its arguments.
        """
        self._roots[node] = self._roots[instead_of[-1]] | {node}
        self._order[node] = self._order[at]
        self._writes = [(writer, written) for writer, written in self._writes if writer not in instead_of]

    def written(self, node: fx.Node) -> list[fx.Node]:
        """The arguments that a node may write to."""
        if node.op != "call_function" or node.target in (python_operator.getitem,):
            return []
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            return [] if self._only_reads(node) else node.all_input_nodes
        if not isinstance(node.target, torch._ops.OpOverload):
            return []
        return [found for argument, found in _by_schema(node) if argument.alias_info and argument.alias_info.is_write]

    def _only_reads(self, node: fx.Node) -> bool:
        """Whether no operator in the graphs that a higher-order operator gets writes to anything."""
        targets = [str(one.target) for one in node.all_input_nodes if one.op == "get_attr"]
        parts = [getattr(node.graph.owning_module, target, None) for target in targets]
        graphs = [part.graph for part in parts if isinstance(part, fx.GraphModule)]
        return bool(graphs) and not any(self.written(one) for graph in graphs for one in graph.nodes)

    def written_between(self, first: fx.Node, last: fx.Node, tensor: Any) -> bool:
        """Whether a node between two others may write to a tensor's memory."""
        if not isinstance(tensor, fx.Node):
            return True
        return any(
            self._order[first] < self._order[writer] < self._order[last] and self._roots[written] & self._roots[tensor]
            for writer, written in self._writes
        )

    def _find(self, node: fx.Node) -> frozenset[fx.Node]:
        """A node's roots by those of its arguments."""
        if node.op != "call_function":
            return frozenset({node})
        sources = node.all_input_nodes
        if isinstance(node.target, torch._ops.OpOverload):
            shared = {
                name for one in node.target._schema.returns if one.alias_info for name in one.alias_info.before_set
            }
            if shared:
                pairs = _by_schema(node)
                sources = [found for one, found in pairs if one.alias_info and one.alias_info.before_set & shared]
            elif not _may_return_its_input(node.target):
                sources = []
        return frozenset({node}).union(*(self._roots[source] for source in sources))


def _may_return_its_input(operator: torch._ops.OpOverload) -> bool:
    """Whether an operator may return its input although its schema does not say so."""
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "CompositeImplicitAutograd")
    return composite and operator not in NEW


def _by_schema(node: fx.Node) -> list[tuple[Any, fx.Node]]:
    """The nodes among the arguments of a call of an operator, each with its argument in the operator's schema."""
    arguments = node.target._schema.arguments  # type: ignore[union-attr]
    named = {**dict(zip((one.name for one in arguments), node.args, strict=False)), **node.kwargs}
    return [(one, found) for one in arguments for found in _nodes(named.get(one.name))]


def _nodes(value: Any) -> list[fx.Node]:
    """The nodes in an argument."""
    if isinstance(value, fx.Node):
        return [value]
    return [one for one in value if isinstance(one, fx.Node)] if isinstance(value, (list, tuple)) else []
