"""Group normalisation, and squeeze and excitation, of images in graphs: each is one kernel, in float32, FP16 and BF16.

Torch computes the rest.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from cuconv.algorithms.planes import group_norm, nhwc_group_norm, nhwc_squeeze_excite, squeeze_excite
from cuconv.algorithms.planes.group_norm import GroupNorm
from cuconv.algorithms.planes.squeeze_excite import Excitation
from cuconv.call_cache import ALIGNMENT
from cuconv.core.activation import NONE, Activation, named
from cuconv.core.launch import KernelVariant
from cuconv.core.problem import BF16, FP32, UnsupportedProblem
from cuconv.device import DeviceSpec
from cuconv.nn import limits
from cuconv.nn.activated import activated, activation_in
from cuconv.nn.formats import HALVES, TYPES, is_laid_out, laid_out, precision_of
from cuconv.nn.frozen import FrozenConv2d, Layers, Tensors, runs_now
from cuconv.nn.kernel_call import Planned, called
from cuconv.nn.layout import given, hint, is_laid_out_in_example, kept, replace
from cuconv.nn.nodes import Node, kind_of, laid_out_node, only_user
from cuconv.nn.operator import is_supported

aten = torch.ops.aten
MATRIX_PRODUCT = ((1, 1), (0, 0), (1, 1), 1)  # stride, padding, dilation and groups of a matrix product
MEANS = ([2, 3], [3, 2], [-1, -2], [-2, -1])  # the axes of a plane
PARAMETERS = ("input", "num_groups", "weight", "bias", "eps")  # torch's names and order
DEFAULTS: dict[str, Any] = {"weight": None, "bias": None, "eps": 1e-5}


def group_normed(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    groups: int,
    epsilon: float,
    activation: str,
    numbers: list[float],
) -> Tensor:
    """activation(group_norm(input)) for images (N, C, H, W), and a weight and a bias (C,), where there are any."""
    function = named(activation, *numbers)
    if runs_now(input):
        try:
            return _group_normed(input, weight, bias, (groups, epsilon, function))
        except UnsupportedProblem:
            pass
    return activated(laid_out(_normed(input, weight, bias, groups, epsilon)), function)


def _normed(input: Tensor, weight: Tensor | None, bias: Tensor | None, groups: int, epsilon: float) -> Tensor:
    """torch's group normalisation."""
    return F.group_norm(input, groups, weight, bias, epsilon)


GROUP_NORM = kept("group_norm", "Tensor input, Tensor? weight, Tensor? bias, int groups, float epsilon", _normed)


def _group_normed(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, options: tuple[int, float, Activation]
) -> Tensor:
    """The output of the kernel. Raises UnsupportedProblem for what it does not compute, and while it compiles."""
    _check(input)
    of_channels = [one for one in (weight, bias) if one is not None]
    if any(one.dtype != input.dtype or one.device != input.device or not one.is_contiguous() for one in of_channels):
        raise UnsupportedProblem("the weight or the bias of a group normalisation is not like its input")

    is_half, precision = input.dtype in HALVES, precision_of(input, FP32)

    def planned(device: DeviceSpec) -> Planned:
        norm = GroupNorm((*input.shape,), *options, precision)
        launch = (nhwc_group_norm if is_half else group_norm).launch(norm, device)
        return Planned(launch, norm.input_shape, precision, is_half)

    addresses = (0 if one is None else one.data_ptr() for one in (weight, bias))
    return called(("group_norm", *options), planned, input, *addresses)


def _check(input: Tensor) -> None:
    """Raise UnsupportedProblem for tensors that the kernels do not take."""
    is_plain = input.dtype in TYPES and input.dim() == 4 and is_laid_out(input) and not input.is_neg()
    if not is_plain or not is_supported(input) or input.data_ptr() % ALIGNMENT:
        raise UnsupportedProblem("kernels of planes take images in the format of their type, aligned to 16 bytes")


class FrozenExcitation(Layers):
    """x * second(first(mean of x over its planes)), of two layers that are matrix products with constant weights."""

    def __init__(self, first: FrozenConv2d, second: FrozenConv2d):
        super().__init__([first, second])
        self._packed: tuple[Tensor, Tensor] | None = None  # weights and biases of both, in float32

    def bind(self, tensors: Tensors) -> None:
        """Take the weights as they are now, and put those of both layers together, as the kernel takes them."""
        super().bind(tensors)
        first, second = (layer.weight.flatten(1) for layer in self.convolutions)
        biases = [
            layer.weight.new_zeros(layer.weight.shape[0]) if layer.bias is None else layer.bias
            for layer in self.convolutions
        ]
        self._packed = torch.cat([first.t().reshape(-1), second.reshape(-1)]).float(), torch.cat(biases).float()

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

        is_half, precision = input.dtype in HALVES, precision_of(input, FP32)

        def planned(device: DeviceSpec) -> Planned:
            excitation = Excitation((*input.shape,), *options, precision)
            launch = (nhwc_squeeze_excite if is_half else squeeze_excite).launch(excitation, device)
            return Planned(launch, excitation.input_shape, precision, is_half)

        assert self._packed is not None, "layers are bound before they are called"
        return called(("squeeze_excite", *options), planned, input, *map(Tensor.data_ptr, self._packed))

    def __getstate__(self) -> dict[str, Any]:
        """The state without the weights, which `bind` takes again from the model."""
        return {**self.__dict__, "_packed": None}


def plane_kernels(kinds: set[Any], types: Collection[torch.dtype], arch: str) -> list[KernelVariant]:
    """The kernel variants for tensors of these types, of a graph that calls some functions and kinds of layers."""
    halves = [int(HALVES[dtype] == BF16) for dtype in types if dtype in HALVES]
    of_kinds = {group_normed: (group_norm, nhwc_group_norm), FrozenExcitation: (squeeze_excite, nhwc_squeeze_excite)}
    found = []
    for plain, half in (of_kinds[kind] for kind in of_kinds if kind in kinds):
        found += [(plain.SOURCE, macros) for macros in plain.variants(arch) if torch.float32 in types]
        found += [(half.SOURCE, macros) for macros in half.variants(arch) if macros["BF16"] in halves]
    return [KernelVariant.of(source, arch, macros) for source, macros in found]


def keep_group_norms(graph: fx.Graph) -> None:
    """Make each group normalisation in dynamo's graph one operator.

    Torch's own output is contiguous on GPUs: AOTAutograd would copy channels-last images ahead of it and behind it.
    """
    for node in list(graph.nodes):
        if node.target not in (F.group_norm, torch.group_norm):
            continue
        options = given(node, PARAMETERS, DEFAULTS)
        value = options["input"].meta["example_value"]
        if not _is_taken(value) or node.meta["example_value"].dtype != value.dtype:  # autocast computes it in float32
            continue
        names = ("input", "weight", "bias", "num_groups", "eps")
        replace(node, GROUP_NORM.in_dynamo, tuple(options[name] for name in names))


def fold_group_norms(graph: fx.Graph, constants: set[Node]) -> None:
    """Make one call of each group normalisation of images and the activation that follows it."""
    node: Node
    for node in list(graph.nodes):
        if node.target is not GROUP_NORM.traced or node in constants:
            continue
        last, function = node, NONE
        if (user := only_user(node)) is not None and (found := activation_in(user)) is not None:
            last, function = user, found
        input, *others = node.args
        with graph.inserting_before(last):
            arguments = (laid_out_node(input), *others, function.name, list(function.numbers))
            call = graph.call_function(group_normed, arguments)
        call.meta = dict(last.meta)
        last.replace_all_uses_with(call)
        for old in dict.fromkeys((last, node)):
            graph.erase_node(old)


def _is_taken(value: Tensor) -> bool:
    """Whether the kernels compute tensors of a type and a number of dimensions, on their GPU."""
    return value.dtype in TYPES and value.dim() == 4 and is_supported(value) and limits.spec_of(value).is_hopper


def excited(node: Node) -> tuple[Node, tuple[Node, Node], list[Node]] | None:
    """The images, the two layers and the means of the squeeze and excitation that ends with a node; None for others.

    The layers and the means are nodes, of which each is used once. The means come in the order from the layers on.
    """
    if node.target is not aten.mul.Tensor or node.kwargs or not all(isinstance(one, fx.Node) for one in node.args):
        return None
    for images, second in (node.args, node.args[::-1]):
        first = second.args[0] if second.op == "call_module" and len(second.args) == 1 else None
        if first is None or first.op != "call_module" or len(first.args) > 1:
            continue
        means = _means(first.args[0])
        if not means or means[-1].args[0] is not images or kind_of(images) != kind_of(node):
            continue
        value = images.meta["val"]
        is_taken = _is_taken(value) and is_laid_out_in_example(value)
        if is_taken and all(only_user(one) for one in (second, first, *means)):
            return images, (first, second), means
    return None


def _means(node: Node) -> list[Node]:
    """The nodes that compute the means of planes, from the last one on; [] where a node is something else.

    torch's adaptive pooling of channels-last images changes the strides of what has one pixel.
    """
    found = [node]
    if node.target is aten.as_strided.default and len(node.args) == 3 and kind_of(node) == kind_of(node.args[0]):
        strides = [list(map(hint, one.meta["val"].stride()[:2])) for one in (node, node.args[0])]
        found += [node.args[0]] if strides[0] == strides[1] else []
    last = found[-1]
    is_mean = last.target is aten.mean.dim and last.args[1:] in [(axes, True) for axes in MEANS] and not last.kwargs
    return found if is_mean else []
