"""Changes to dynamo's graph before it is traced: interpolation stays one operator, and results keep their strides.

In a folded graph images have the memory format of their type, since outputs of cuConv's convolutions have it. The
model's own results may have another one: those are converted where they leave the graph, once.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch.utils._python_dispatch import _disable_current_modes

from cuconv.nn.formats import HALVES, is_laid_out, laid_out

CHANNELS_LAST = [0, 2, 3, 1]  # the order of an image's dimensions in memory
SIGNAL_LAST = [0, 2, 1]  # the same of a signal (N, C, L) that has the memory of an image of one row
PARAMETERS = ("input", "size", "scale_factor", "mode", "align_corners", "recompute_scale_factor", "antialias")
DEFAULTS: dict[str, Any] = {**dict.fromkeys(PARAMETERS[1:]), "mode": "nearest", "antialias": False}

_library = torch.library.Library("cuconv", "FRAGMENT")


class Kept(NamedTuple):
    """A function of torch's that stays one operator: in dynamo's graph, and in the graph that is traced from it.

    There its output has the memory format of its type. In dynamo's graph it has torch's strides, which the views of
    that graph need; traced views that this format does not allow are copies.
    """

    in_dynamo: Any
    traced: Any


def kept(name: str, parameters: str, function: Callable[..., Tensor]) -> Kept:
    """The operators of a function of images. parameters: as in torch's schemas."""

    def traced(*arguments: Any) -> Tensor:
        return laid_out(function(*arguments))

    for one, implementation in ((name, function), (f"laid_out_{name}", traced)):
        _library.define(f"{one}({parameters}) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
        _library.impl(one, implementation, "CompositeExplicitAutograd")
        torch.library.register_fake(f"cuconv::{one}", implementation, lib=_library)
    return Kept(*(getattr(torch.ops.cuconv, one).default for one in (name, f"laid_out_{name}")))


def given(node: fx.Node, parameters: Sequence[str], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a node's call by their names."""
    return {**defaults, **dict(zip(parameters, node.args, strict=False)), **node.kwargs}


def replace(node: fx.Node, target: Any, arguments: tuple[Any, ...]) -> None:
    """Put the call of another function in the place of a node."""
    with node.graph.inserting_before(node):
        call = node.graph.call_function(target, arguments)
    call.meta = dict(node.meta)
    node.replace_all_uses_with(call)
    node.graph.erase_node(node)


INTERPOLATE = kept(
    "interpolate",
    "Tensor input, SymInt[]? size, float[]? scale_factor, str mode, bool? align_corners, "
    "bool? recompute_scale_factor, bool antialias",
    F.interpolate,
)


def _sampled(images: Tensor, grid: Tensor) -> Tensor:
    """The output, without data, of grid_sample by cuDNN; torch itself does not tell it for sizes that vary."""
    return images.new_empty((*images.shape[:2], *grid.shape[1:3]))


_torchs = torch.library.Library("aten", "IMPL")
torch.library.register_fake("aten::cudnn_grid_sampler", _sampled, lib=_torchs)


# As of torch 2.13; older ones ask for the remainder first, by which a graph with a pooling is for even sizes alone.
torch._meta_registrations.div_rtn = operator.floordiv


def keep_interpolation(graph: fx.Graph) -> None:
    """Make each call of torch.nn.functional.interpolate one operator.

    AOTAutograd would make of it what Inductor compiles, some twenty operations, each of which is a kernel here.
    """
    for node in list(graph.nodes):
        if node.target is not F.interpolate:
            continue
        options = given(node, PARAMETERS, DEFAULTS)
        dimensions = node.args[0].meta["example_value"].dim() - 2 if node.args else 0
        for name in ("size", "scale_factor"):
            value = options[name].meta["example_value"] if isinstance(options[name], fx.Node) else options[name]
            if value is not None and not isinstance(value, Sequence):
                options[name] = [options[name]] * dimensions
        scales = options["scale_factor"]
        if not node.args or isinstance(scales, fx.Node) or any(isinstance(one, fx.Node) for one in scales or ()):
            continue  # a factor that varies
        options["scale_factor"] = None if scales is None else [float(scale) for scale in scales]
        replace(node, INTERPOLATE.in_dynamo, tuple(options[name] for name in PARAMETERS))


def keep_strides(graph: fx.Graph) -> None:
    """Convert results to the order of strides that torch's own operations give them, if images may have another one.

    What reads memory by strides gets a tensor with those of torch, too.
    """
    if not any(_may_change(node.meta.get("example_value")) for node in graph.nodes):
        return
    for node in graph.nodes:
        if node.target in (torch.as_strided, "as_strided"):  # reads memory by the strides that a tensor has in torch
            with graph.inserting_before(node):
                tensor = node.args[0] if node.args else node.kwargs["input"]
                read = graph.call_function(in_order, (tensor, order(tensor.meta["example_value"])))
            node.replace_input_with(tensor, read)
    output = graph.output_node()
    with graph.inserting_before(output):
        converted = {
            node: graph.call_function(in_order, (node, order(node.meta["example_value"])))
            for node in output.all_input_nodes
            if isinstance(node.meta.get("example_value"), Tensor) and node.op != "placeholder"
        }
    output.args = fx.map_arg(output.args, lambda node: converted.get(node, node))


def _may_change(value: Any) -> bool:
    """Whether a value is like an image or signal, and channels last or of a type for which cuConv's outputs are."""
    if not isinstance(value, Tensor) or value.dim() not in (3, 4) or value.layout != torch.strided:
        return False
    return value.dtype in HALVES or order(value) in (CHANNELS_LAST, SIGNAL_LAST)


def is_viewed(tensor: Tensor, size: Sequence[Any]) -> bool:
    """Whether a tensor without data can be viewed in another size, for the sizes of the example."""
    example = _example(tensor)
    if example is None:
        return True
    with _disable_current_modes():
        try:
            example.view([hint(one) for one in size])
        except (RuntimeError, ValueError):  # torch's C++ raises the first, its Python code the second
            return False
    return True


def is_laid_out_in_example(tensor: Tensor) -> bool:
    """Whether a tensor without data has the memory format that cuConv computes, for the sizes of the example.

    torch 2.11 asks a tensor whose sizes may vary for a proof, and finds none.
    """
    example = _example(tensor)
    return is_laid_out(tensor if example is None else example)


def _example(tensor: Tensor) -> Tensor | None:
    """A tensor without data of the sizes and strides of the example; None for sizes that depend on data."""
    shape, strides = ([hint(one) for one in sizes] for sizes in (tensor.shape, tensor.stride()))
    if not all(shape):
        return None
    with _disable_current_modes():
        return torch.empty_strided(shape, strides, device="meta", dtype=tensor.dtype)


def order(value: Tensor) -> list[int]:
    """The dimensions of a tensor, from that with the largest stride to that with the smallest.

    A stride that may vary has the value of the example, since a comparison would make it a condition of the graph.
    """
    strides = [hint(stride) for stride in value.stride()]
    return sorted(range(value.dim()), key=lambda place: -strides[place])


def hint(size: Any) -> int:
    """The value of a size or stride in the example; 0 for one that depends on the example's data."""
    return size if isinstance(size, int) else int(size.node.hint or 0)


def in_order(tensor: Tensor, order: list[int]) -> Tensor:
    """A tensor whose strides decrease in an order of its dimensions: itself, such as a view, or a copy."""
    strides = [hint(tensor.stride(place)) for place in order if hint(tensor.shape[place]) != 1]
    if strides == sorted(strides, reverse=True):
        return tensor
    return tensor.permute(order).contiguous().permute([order.index(place) for place in range(len(order))])
