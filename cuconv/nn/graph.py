"""The graph of a traced model, in which convolutions become cuConv's and take in what follows them."""

from __future__ import annotations

import operator as python_operator
from collections import Counter
from itertools import count

import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from cuconv.nn.modules import CONVOLUTIONS, Concatenation, Conv2d, is_batch_norm, is_relu, module_for, why_not
from cuconv.nn.operator import conv2d
from cuconv.nn.report import Converted, Report

RELU = (F.relu, torch.relu, torch.relu_)
ADD = (python_operator.add, python_operator.iadd, torch.add)
CONV2D = (F.conv2d, torch.conv2d)
OTHER_CONVOLUTIONS = (F.conv1d, F.conv3d, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
# The functions of `operator` that write to their first operand.
IN_PLACE = tuple(
    getattr(python_operator, name)
    for name in ("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor", "setitem")
)


class Rewriter:
    """Rewrites the graph of a traced model."""

    def __init__(self, model: fx.GraphModule, precision: str, report: Report):
        self._model, self._graph = model, model.graph
        self._precision, self._report = precision, report
        self._modules = dict(model.named_modules())
        self._uses = Counter(node.target for node in self._graph.nodes if node.op == "call_module")

    def run(self) -> fx.GraphModule:
        """Replace every convolution that cuConv takes over."""
        for node in list(self._graph.nodes):
            module = self._modules.get(str(node.target)) if node.op == "call_module" else None
            if isinstance(module, (*CONVOLUTIONS, nn.Linear)):
                self._convert(node)
            elif node.op == "call_function" and node.target in CONV2D:
                node.target, node.kwargs = conv2d, {**node.kwargs, "precision": self._precision}
                self._report.rows.append(Converted(node.name))
            elif node.op == "call_function" and node.target in OTHER_CONVOLUTIONS:
                self._report.rows.append(Converted(node.name, reason=f"it is a call of {node.target.__name__}"))
        for node in list(self._graph.nodes):
            if node.op == "call_function" and node.target in (torch.cat, torch.concat, torch.concatenate):
                self._concatenate(node)
        self._model.delete_all_unused_submodules()
        self._graph.lint()
        self._model.recompile()
        return self._model

    def _convert(self, node: fx.Node) -> None:
        """Replace one convolution or fully connected layer and what is folded into it, or report why it stays."""
        name = str(node.target)
        conv = self._modules[name]
        if reason := why_not(conv):
            self._report.rows.append(Converted(name, reason=reason))
            return
        assert isinstance(conv, (nn.Conv2d, nn.Linear))
        folded: list[str] = []
        chain, residual, before = [node], None, node
        if isinstance(conv, nn.Conv2d) and (norm := self._batch_norm_after(node)) is not None:
            conv = fuse_conv_bn_eval(conv.eval(), self._modules[str(norm.target)])
            folded.append("batch norm")
            chain.append(norm)
        add = self._sum_after(chain[-1]) if isinstance(conv, nn.Conv2d) else None
        if add is not None and not self._writes_between(node, add, chain):
            residual = next(operand for operand in add.args[:2] if operand is not chain[-1])
            folded.append("residual")
            chain.append(add)
            before = add
        if (relu := _only_user(chain[-1])) is not None and self._is_relu(relu):
            folded.append("relu")
            chain.append(relu)
        place = self._add_module(name, module_for(conv, "relu" in folded, self._precision))
        # Where the convolution was, since later nodes may write to its input; with a residual, where that is known.
        input = node.args[0] if node.args else node.kwargs["input"]
        with self._graph.inserting_before(before):
            fused = self._graph.call_module(place, (input,) if residual is None else (input, residual))
        chain[-1].replace_all_uses_with(fused)
        for replaced in reversed(chain):
            self._graph.erase_node(replaced)
        kind = "conv" if isinstance(conv, nn.Conv2d) else "linear"
        self._report.rows.append(Converted(name, tuple(folded), kind=kind))

    def _concatenate(self, cat: fx.Node) -> None:
        """Replace torch.cat along the channels where all that it joins are convolutions, of use to nothing else."""
        operands = {**dict(zip(("tensors", "dim"), cat.args, strict=False)), **cat.kwargs}
        tensors, dim = operands.get("tensors"), operands.get("dim")
        if len(operands) > 2 or dim not in (1, -3) or not isinstance(tensors, (list, tuple)):
            return
        if not all(map(self._is_to_join, tensors)):
            return
        first = next(node for node in self._graph.nodes if node in tensors)
        if len(set(tensors)) < len(tensors) or self._writes_between(first, cat, [*tensors]):
            return
        name = next(other for i in count() if (other := f"concatenation_{i}") not in self._modules)
        self._modules[name] = Concatenation(self._modules[str(node.target)] for node in tensors)
        self._model.add_submodule(name, self._modules[name])
        with self._graph.inserting_before(cat):
            cat.replace_all_uses_with(self._graph.call_module(name, tuple(node.args[0] for node in tensors)))
        for node in (cat, *tensors):
            self._graph.erase_node(node)

    def _is_to_join(self, node: object) -> bool:
        """Whether a node is a converted convolution without a residual, which one other node uses."""
        if not isinstance(node, fx.Node) or node.op != "call_module" or _only_user(node) is None:
            return False
        return isinstance(self._modules.get(str(node.target)), Conv2d) and len(node.args) == 1

    def _add_module(self, name: str, module: nn.Module) -> str:
        """Put a module in the place of a convolution, or beside it where the model calls that one several times."""
        place = name
        if self._uses[name] > 1:
            place = next(other for i in count() if (other := f"{name}_{i}") not in self._modules)
        parent, _, leaf = place.rpartition(".")
        setattr(self._model.get_submodule(parent), leaf, module)
        self._modules[place] = module
        return place

    def _batch_norm_after(self, node: fx.Node) -> fx.Node | None:
        """The batch norm of a node, if it is the only user of the node."""
        user = _only_user(node)
        if user is None or user.op != "call_module" or user.args != (node,):
            return None
        return user if is_batch_norm(self._modules.get(str(user.target))) else None

    def _sum_after(self, node: fx.Node) -> fx.Node | None:
        """The addition of a node and of another tensor, if it is the only user of the node."""
        user = _only_user(node)
        if user is None or user.kwargs or len(user.args) != 2:
            return None
        adds = (user.op == "call_function" and user.target in ADD) or (
            user.op == "call_method" and user.target in ("add", "add_")
        )
        tensors = all(isinstance(operand, fx.Node) for operand in user.args) and user.args[0] is not user.args[1]
        # What is added in place must be the convolution's own output.
        in_place = user.target in (python_operator.iadd, "add_")
        return user if adds and tensors and (not in_place or user.args[0] is node) else None

    def _writes_between(self, first: fx.Node, last: fx.Node, chain: list[fx.Node]) -> bool:
        """Whether a node between two, other than those of a chain, may write to its operand."""
        node = first.next
        while node is not last:
            if node not in chain and self._may_write(node):
                return True
            node = node.next
        return False

    def _may_write(self, node: fx.Node) -> bool:
        """Whether a node may write to an operand; a positional True may be the `inplace` of a function."""
        if node.op == "call_module":
            return bool(getattr(self._modules.get(str(node.target)), "inplace", False))
        if node.op not in ("call_function", "call_method"):
            return False
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "_")
        by_name = node.target in IN_PLACE or (name.endswith("_") and not name.endswith("__")) or name == "__setitem__"
        by_option = node.kwargs.get("inplace", False) or "out" in node.kwargs or any(arg is True for arg in node.args)
        return by_name or bool(by_option)

    def _is_relu(self, node: fx.Node) -> bool:
        """Whether a node is a ReLU of its only operand."""
        if node.op == "call_module":
            return is_relu(self._modules.get(str(node.target)))
        if node.op == "call_method":
            return node.target in ("relu", "relu_")
        return node.op == "call_function" and node.target in RELU


def _only_user(node: fx.Node) -> fx.Node | None:
    """The node that alone uses another one, if there is one."""
    return next(iter(node.users)) if len(node.users) == 1 else None
