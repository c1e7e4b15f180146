"""Group normalisation, and squeeze and excitation, of images in float32 in graphs: each is one kernel.

Torch computes the rest.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from cuconv.algorithms.planes import group_norm, squeeze_excite
from cuconv.algorithms.planes.group_norm import GroupNorm
from cuconv.algorithms.planes.squeeze_excite import Excitation
from cuconv.call_cache import ALIGNMENT
from cuconv.core.activation import NONE, Activation, named
from cuconv.core.problem import FP32, UnsupportedProblem
from cuconv.device import DeviceSpec
from cuconv.nn import limits
from cuconv.nn.activated import activated, activation_in
from cuconv.nn.formats import is_laid_out
from cuconv.nn.frozen import FrozenConv2d, Layers, Tensors, runs_now
from cuconv.nn.kernel_call import Planned, called
from cuconv.nn.layout import is_laid_out_in_example
from cuconv.nn.nodes import Node, kind_of, only_user
from cuconv.nn.operator import is_supported

aten = torch.ops.aten
PLAIN = ((1, 1), (0, 0), (1, 1), 1)  # stride, padding, dilation and groups of a matrix product
MEANS = ([2, 3], [3, 2], [-1, -2], [-2, -1])  # the axes of a plane


def group_normed(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    groups: int,
    epsilon: float,
    activation: str,
    numbers: list[float],
) -> Tensor:
    """activation(group_norm(input)) for images (N, C, H, W) and a weight and a bias (C,)."""
    function = named(activation, *numbers)
    if runs_now(input):
        try:
            return _group_normed(input, weight, bias, (groups, epsilon, function))
        except UnsupportedProblem:
            pass
    return activated(F.group_norm(input, groups, weight, bias, epsilon), function)


def _group_normed(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, options: tuple[int, float, Activation]
) -> Tensor:
    """The output of the kernel. Raises UnsupportedProblem for what it does not compute, and while it compiles."""
    _check(input)
    of_channels = [one for one in (weight, bias) if one is not None]
    if any(one.dtype != input.dtype or one.device != input.device or not one.is_contiguous() for one in of_channels):
        raise UnsupportedProblem("the weight or the bias of a group normalisation is not like its input")

    def planned(device: DeviceSpec) -> Planned:
        norm = GroupNorm((*input.shape,), *options)
        return Planned(group_norm.launch(norm, device), norm.input_shape, FP32, False)

    addresses = (0 if one is None else one.data_ptr() for one in (weight, bias))
    return called(("group_norm", *options), planned, input, *addresses)


def _check(input: Tensor) -> None:
    """Raise UnsupportedProblem for tensors that the kernels do not take."""
    is_plain = input.dtype == torch.float32 and input.dim() == 4 and is_laid_out(input) and not input.is_neg()
    if not is_plain or not is_supported(input) or input.data_ptr() % ALIGNMENT:
        raise UnsupportedProblem("kernels of planes take contiguous float32 that starts at a multiple of 16 bytes")


class FrozenExcitation(Layers):
    """x * second(first(mean of x over its planes)), of two layers that are matrix products with constant weights."""

    def __init__(self, first: FrozenConv2d, second: FrozenConv2d):
        super().__init__([first, second])
        self._packed: tuple[Tensor, Tensor] | None = None  # weights and biases of both

    def bind(self, tensors: Tensors) -> None:
        """Take the weights as they are now, and put those of both layers together, as the kernel takes them."""
        super().bind(tensors)
        first, second = (layer.weight.flatten(1) for layer in self.convolutions)
        biases = [
            layer.weight.new_zeros(layer.weight.shape[0]) if layer.bias is None else layer.bias
            for layer in self.convolutions
        ]
        self._packed = torch.cat([first.t().reshape(-1), second.reshape(-1)]), torch.cat(biases)

    @property
    def packed_bytes(self) -> int:
        """The device memory of the weights as the kernel takes them, and of the layers' packed weights, in bytes."""
        own = 0 if self._packed is None else sum(one.nbytes for one in self._packed)
        return own + super().packed_bytes

    def __call__(self, input: Tensor) -> Tensor:
        """The images, times their gates."""
        if runs_now(input):
            try:
                return self._excited(input)
            except UnsupportedProblem:
                pass
        first, second = self.convolutions
        return input * second(first(input.mean((2, 3), keepdim=True)))

    def _excited(self, input: Tensor) -> Tensor:
        """The output of the kernel. Raises UnsupportedProblem for what it does not compute, and while it compiles."""
        _check(input)
        first, second = self.convolutions
        options = (first.weight.shape[0], first.activation, second.activation)
        if (input.shape[1], *options[:1]) != (second.weight.shape[0], second.weight.shape[1]):
            raise UnsupportedProblem("the layers have other channels than the images")

        def planned(device: DeviceSpec) -> Planned:
            excitation = Excitation((*input.shape,), *options)
            return Planned(squeeze_excite.launch(excitation, device), excitation.input_shape, FP32, False)

        assert self._packed is not None, "layers are bound before they are called"
        return called(("squeeze_excite", *options), planned, input, *map(Tensor.data_ptr, self._packed))

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the weights, as of `FrozenConv2d`."""
        return {**self.__dict__, "_packed": None}


def fold_group_norms(graph: fx.Graph, constants: set[Node]) -> None:
    """Make one call of each group normalisation of images in float32 and the activation that follows it."""
    node: Node
    for node in list(graph.nodes):
        if node.target is not aten.native_group_norm.default or node.kwargs or node in constants:
            continue
        output = only_user(node)
        if output is None or output.target is not operator.getitem or output.args[1] != 0:
            continue
        input, weight, bias, *_, groups, epsilon = node.args
        value = input.meta["val"]
        if not _is_taken(value) or not is_laid_out_in_example(value):
            continue
        last, function = output, NONE
        if (user := only_user(output)) is not None and (found := activation_in(user)) is not None:
            last, function = user, found
        with graph.inserting_before(last):
            arguments = (input, weight, bias, groups, epsilon, function.name, list(function.numbers))
            call = graph.call_function(group_normed, arguments)
        call.meta = dict(last.meta)
        last.replace_all_uses_with(call)
        for old in dict.fromkeys((last, output, node)):
            graph.erase_node(old)


def _is_taken(value: Tensor) -> bool:
    """Whether the kernels compute tensors of a type and a number of dimensions, on their GPU."""
    return value.dtype == torch.float32 and value.dim() == 4 and is_supported(value) and limits.spec_of(value).is_hopper


def excited(node: Node) -> tuple[Node, Node, Node] | None:
    """The images, and the first and the second layer of the squeeze and excitation that ends with a node; else None.

    The layers are nodes, of which each is used once.
    """
    if node.target is not aten.mul.Tensor or node.kwargs or not all(isinstance(one, fx.Node) for one in node.args):
        return None
    for images, second in (node.args, node.args[::-1]):
        first = second.args[0] if second.op == "call_module" and len(second.args) == 1 else None
        means = first.args[0] if first is not None and first.op == "call_module" and len(first.args) == 1 else None
        if means is None or means.target is not aten.mean.dim or means.args[1:] not in [(axes, True) for axes in MEANS]:
            continue
        is_taken = _is_taken(images.meta["val"]) and kind_of(images) == kind_of(node)
        if is_taken and means.args[0] is images and all(only_user(one) for one in (second, first, means)):
            return images, first, second
    return None
