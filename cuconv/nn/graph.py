"""The graph of a captured model, in which convolutions become cuConv's and take in what follows them."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor, fx, nn

from cuconv.nn.aliases import Aliases
from cuconv.nn.capture import Captured
from cuconv.nn.constants import hoist_constants
from cuconv.nn.modules import LAYERS, why_not, why_not_linear
from cuconv.nn.operator import pads_of
from cuconv.nn.program import Concatenation, FrozenConv2d, FrozenLinear, Layer, Norm, Program
from cuconv.nn.questions import CaptureError
from cuconv.nn.report import Converted

aten = torch.ops.aten
Node = Any  # fx.Node, whose own annotations allow no more than to look at its arguments
CONV2D = (aten.conv2d.default, aten.conv2d.padding, aten.convolution.default, torch.ops.cuconv.conv2d.default)
LINEAR = (aten.linear.default,)
# Convolutions that stay with torch, but count among the layers of a model.
OTHERS = (
    aten.conv1d.default, aten.conv1d.padding, aten.conv3d.default, aten.conv3d.padding,
    aten.conv_transpose1d.default, aten.conv_transpose2d.input, aten.conv_transpose3d.input,
)  # fmt: skip
RELU = (aten.relu.default, aten.relu_.default)
ADD = (aten.add.Tensor, aten.add_.Tensor)
IN_PLACE = (aten.add_.Tensor,)
# Their only effect is on tensors in training mode, or to check what the conditions of the graph say already.
IDENTITIES = (aten.dropout.default, aten.dropout_.default, aten.feature_dropout.default, aten.alpha_dropout.default)
CHECKS = (aten._assert_tensor_metadata.default,)
DEFAULTS: tuple[Any, ...] = ([1, 1], [0, 0], [1, 1], 1)  # stride, padding, dilation and groups


class Rewriter:
    """Makes a program of a captured graph. It changes the graph."""

    def __init__(self, captured: Captured, model: nn.Module, precision: str):
        self._captured, self._model, self._precision = captured, model, precision
        self._graph = captured.graph.graph
        self._modules = dict(model.named_modules())
        self._layers: dict[str, Layer] = {}
        self.rows: list[Converted] = []

    def run(self) -> Program:
        """The program. Raises CaptureError where the model calls torch.func, or writes to its own tensors."""
        self._refuse_levels()
        self._inline_modes()
        self._remove_identities()
        constants = hoist_constants(self._captured)
        self._aliases = Aliases(self._graph)
        self._refuse_writes()
        for node in list(self._graph.nodes):
            if node.op == "call_function" and node.target in (*CONV2D, *LINEAR):
                self._convert(node)
            elif node.op == "call_function" and node.target in OTHERS:
                self._leave(node, f"it is {node.target._schema.name.removeprefix('aten::')}")
        for node in list(self._graph.nodes):
            if node.op == "call_function" and node.target in (aten.cat.default, aten.concat.default):
                self._concatenate(node)
        called = {row.name for row in self.rows}
        for name, module in self._modules.items():
            if isinstance(module, LAYERS) and name not in called:
                self.rows.append(
                    Converted(name, reason=why_not(module) or "the captured model has no call of it alone")
                )
        for node in reversed(self._graph.nodes):
            if node.op == "get_attr" and not node.users:
                self._graph.erase_node(node)
        read = {str(node.target) for node in self._graph.nodes if node.op == "get_attr"}
        tensors = {name: target for name, target in self._captured.tensors.items() if name in read}
        others: dict[str, Any] = {name: one for name, one in self._captured.constants.items() if name in read}
        others |= {name: part for name, part in self._captured.graph.named_children() if name in read}
        return Program(self._graph, self._layers, tensors, others, constants)

    def _refuse_levels(self) -> None:
        """Raise CaptureError for torch.vmap and torch.func.

        Their statements have sizes of the example as constants, and an error between them would leave torch in a level.
        """
        for part in self._captured.graph.modules():
            for node in part.graph.nodes if isinstance(part, fx.GraphModule) else ():
                if str(getattr(node.target, "__module__", "")).startswith("torch._functorch"):
                    raise CaptureError("the model calls torch.vmap or torch.func")

    def _inline_modes(self) -> None:
        """Inline blocks that switch gradients or autocast off: they are off wherever the program runs."""
        nested = False
        for node in list(self._graph.nodes):
            if node.target is torch.ops.higher_order.wrap_with_set_grad_enabled:
                part, arguments = node.args[1], node.args[2:]
            elif node.target is torch.ops.higher_order.wrap_with_autocast and node.args[2] is False:
                part, arguments = node.args[4], node.args[5:]
            else:
                continue
            inner = getattr(self._captured.graph, part.target)
            inputs = [one for one in inner.graph.nodes if one.op == "placeholder"]
            copies = dict(zip(inputs, arguments, strict=True))
            with self._graph.inserting_before(node):
                results: Any = self._graph.graph_copy(inner.graph, copies)
            for one in [one for one in inner.graph.nodes if one.op == "get_attr"]:  # a block in the block
                copies[one].target = f"{part.target}_{one.target}"
                setattr(self._captured.graph, copies[one].target, getattr(inner, one.target))
                nested = True
            for user in list(node.users):  # each takes one result
                user.replace_all_uses_with(results[user.args[1]])
                self._graph.erase_node(user)
            self._graph.erase_node(node)
        if nested:
            self._inline_modes()

    def _remove_identities(self) -> None:
        """Remove what only does something in training mode."""
        for node in list(self._graph.nodes):
            if node.target in IDENTITIES and node.args[2] is False:
                node.replace_all_uses_with(node.args[0])
            elif node.target not in CHECKS:
                continue
            self._graph.erase_node(node)

    def _refuse_writes(self) -> None:
        """Raise CaptureError where the model writes to its own tensors, which must stay constant."""
        for node in self._graph.nodes:
            for written in self._aliases.written(node):
                if any(root.op == "get_attr" for root in self._aliases.roots(written)):
                    raise CaptureError(f"the model writes to its own tensors ({node.target})")

    def _convert(self, node: Node) -> None:
        """Replace one convolution or fully connected layer and what is folded into it, or report why it stays."""
        is_linear = node.target in LINEAR
        if reason := self._why_not(node):
            self._leave(node, reason)
            return
        input, weight, bias = (*node.args, None)[:3]
        assert isinstance(weight, fx.Node)
        chain, folded = [node], []
        norm = None if is_linear else self._batch_norm_after(node)
        if norm is not None:
            chain.append(norm)
            folded.append("batch norm")
        residual, before = None, node
        if not is_linear and (add := self._sum_after(chain, input)) is not None:
            residual = next(operand for operand in add.args[:2] if operand is not chain[-1])
            folded.append("residual")
            chain.append(add)
            before = add
        if (relu := _only_user(chain[-1])) is not None and relu.target in RELU:
            folded.append("relu")
            chain.append(relu)
        kind = FrozenLinear if is_linear else FrozenConv2d
        layer = kind(
            self._captured.tensors[str(weight.target)],
            None if bias is None else self._captured.tensors[str(bias.target)],
            ((1, 1), (0, 0), (1, 1), 1) if is_linear else _geometry(node) or (),
            None if norm is None else self._norm(norm),
            "relu" in folded,
            self._precision,
        )
        kind_of_layer = "linear" if is_linear else "conv"
        self.rows.append(Converted(self._name(node), tuple(folded), kind=kind_of_layer, flop=_flop(node)))
        # Where the convolution was, since later nodes may write to its input; with a residual, where that is known.
        self._replace(chain, before, layer, (input,) if residual is None else (input, residual))

    def _replace(self, chain: list[Node], before: Node, layer: Layer, arguments: tuple[Any, ...]) -> None:
        """Put the call of a layer in the place of a chain of nodes."""
        name = f"layer_{len(self._layers)}"
        self._layers[name] = layer
        with self._graph.inserting_before(before):
            call = self._graph.create_node("call_module", name, arguments)
        call.meta = dict(chain[-1].meta)
        self._aliases.add(call, chain, before)
        chain[-1].replace_all_uses_with(call)
        for node in reversed(chain):
            self._graph.erase_node(node)

    def _leave(self, node: Node, reason: str) -> None:
        self.rows.append(Converted(self._name(node), reason=reason, flop=_flop(node)))

    def _name(self, node: Node) -> str:
        """The name of the layer that made a node, or the node's own."""
        stack = list((node.meta.get("nn_module_stack") or {"": ("", "")}).values())
        name = str(stack[-1][0])
        return name if isinstance(self._modules.get(name), LAYERS) else node.name

    def _why_not(self, node: Node) -> str:
        """Why a layer stays with torch; "" where cuConv takes it over."""
        input, weight, bias = (*node.args, None)[:3]
        if not all(isinstance(operand, fx.Node) for operand in (input, weight)):
            return "it has no input"
        for operand in (weight, bias):
            if operand is None:
                continue
            if operand.op != "get_attr" or str(operand.target) not in self._captured.tensors:
                return "its weight is computed from other tensors"
        for name, operand in (("input", input), ("weight", weight), ("bias", bias)):
            if operand is not None and operand.meta["val"].dtype != torch.float32:
                return f"its {name} is {operand.meta['val'].dtype}"
        if weight.meta["val"].numel() == 0:
            return "it has no weights"
        if node.target in LINEAR:
            return why_not_linear(weight.meta["val"], None if bias is None else bias.meta["val"])
        if node.target is torch.ops.cuconv.conv2d.default and (node.args[7] or node.args[8] is not None):
            return "it is cuConv's already, with ReLU or a residual"
        if input.meta["val"].dim() != 4:
            return f"its input has {input.meta['val'].dim()} dimensions"
        if node.target is aten.convolution.default and (node.args[6] or weight.meta["val"].dim() != 4):
            return "it is no two-dimensional convolution"
        return "" if _geometry(node) else "its padding is not the same on both sides"

    def _batch_norm_after(self, node: Node) -> Node | None:
        """The batch norm of a node with fixed statistics, if it is the only user of the node."""
        user = _only_user(node)
        if user is None or user.target is not aten.batch_norm.default or user.args[0] is not node:
            return None
        constant = all(operand is None or self._is_tensor(operand) for operand in user.args[1:5])
        return user if constant and user.args[3] is not None and not user.args[5] else None

    def _is_tensor(self, operand: Any) -> bool:
        return isinstance(operand, fx.Node) and str(operand.target) in self._captured.tensors

    def _norm(self, node: Node) -> Norm:
        weight, bias, mean, variance = (
            None if one is None else self._captured.tensors[str(one.target)] for one in node.args[1:5]
        )
        assert mean is not None and variance is not None
        return Norm(weight, bias, mean, variance, float(node.args[7]))

    def _sum_after(self, chain: list[Node], input: Any) -> Node | None:
        """The addition of a tensor to a convolution, if the convolution may be computed in its place.

        The addition must be the only user of the chain of nodes that starts with the convolution. What is added in
        place must be the chain's own output, and nothing may write to the convolution's input meanwhile.
        """
        convolution, node = chain[0], chain[-1]
        user = _only_user(node)
        if user is None or user.target not in ADD or user.kwargs or len(user.args) != 2:
            return None
        first, second = user.args
        if first is second or not (isinstance(first, fx.Node) and isinstance(second, fx.Node)):
            return None
        if user.target in IN_PLACE and first is not node:
            return None
        if _shape(first) != _shape(second) or first.meta["val"].dtype != second.meta["val"].dtype:
            return None
        return None if self._aliases.written_between(convolution, user, input) else user

    def _concatenate(self, cat: Node) -> None:
        """Replace torch.cat along the channels where all that it joins are convolutions, of use to nothing else."""
        parts, dim = (*cat.args, *cat.kwargs.values(), 0)[:2]
        if not isinstance(parts, (list, tuple)) or cat.meta["val"].dim() != 4 or dim not in (1, -3):
            return
        layers = [self._layers.get(str(part.target)) for part in parts if isinstance(part, fx.Node)]
        if len(layers) < len(parts) or len(set(parts)) < len(parts) or len(parts) < 2:
            return
        convolutions = [layer for layer in layers if type(layer) is FrozenConv2d]
        if len(convolutions) < len(parts) or not all(len(part.args) == 1 and _only_user(part) for part in parts):
            return
        if any(self._aliases.written_between(part, cat, part.args[0]) for part in parts):
            return
        inputs = tuple(part.args[0] for part in parts)
        for part in parts:
            del self._layers[str(part.target)]
        self._layers[f"concatenation_{cat.name}"] = Concatenation(convolutions)
        with self._graph.inserting_before(cat):
            call = self._graph.create_node("call_module", f"concatenation_{cat.name}", inputs)
        call.meta = dict(cat.meta)
        self._aliases.add(call, [*parts, cat], cat)
        cat.replace_all_uses_with(call)
        for node in (cat, *parts):
            self._graph.erase_node(node)


def _geometry(node: Node) -> tuple[Any, ...] | None:
    """Stride, padding, dilation and groups of a convolution; None where the padding is not the same on both sides."""
    given = list(node.args[3:])
    if node.target is aten.convolution.default:
        del given[3:5]  # whether it is transposed, and the padding of its output
    stride, padding, dilation, groups = (*given, *DEFAULTS[len(given) :])[:4]
    if isinstance(padding, str):
        padding = pads_of(padding, node.args[1].meta["val"], stride, dilation)
        if padding is None:
            return None
    return (*((one[0], one[-1]) for one in (stride, padding, dilation)), groups)


def _only_user(node: Node) -> Node | None:
    """The node that alone uses another one, if there is one."""
    return next(iter(node.users)) if len(node.users) == 1 else None


def _shape(node: Node) -> tuple[Any, ...]:
    """The sizes of a tensor, as numbers and sympy expressions."""
    value = node.meta.get("val")
    if not isinstance(value, Tensor):
        return (node,)
    return tuple(size if isinstance(size, int) else size.node.expr for size in value.shape)


def _flop(node: Node) -> int:
    """The floating-point operations of a layer for the sizes of the example; 0 where they depend on its data."""
    weight, value = node.args[1], node.meta.get("val")
    if not isinstance(weight, fx.Node) or not isinstance(value, Tensor):
        return 0
    sizes = (*value.shape, *weight.meta["val"].shape[1:])
    known = [size if isinstance(size, int) else size.node.hint for size in sizes]
    return 0 if None in known else 2 * prod(map(int, known))
