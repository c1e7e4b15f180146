"""torch.ops.cuconv.max_pool2d: max pooling in half precision and channels_last as an operator, which graphs call.

Modules outside of graphs stay torch's.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx

from cuconv.algorithms.channels_last.max_pool import windows_along
from cuconv.algorithms.channels_last.pad_channels import VECTOR_CHANNELS
from cuconv.core.problem import UnsupportedProblem
from cuconv.nn.formats import HALVES, empty, laid_out
from cuconv.nn.frozen import runs_now
from cuconv.nn.layout import CHANNELS_LAST, hint, is_laid_out_in_example, order
from cuconv.nn.nodes import Node
from cuconv.nn.operator import CONV2D, has_tangent, is_supported, untraced
from cuconv.nn.pool_call import pooled

aten = torch.ops.aten
# torch's defaults of stride, padding, dilation and ceil_mode; an empty stride is the filter's size.
DEFAULTS: tuple[Any, ...] = ([], 0, 1, False)


def max_pool2d(
    input: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> Tensor:
    """The largest element of each window, in the memory format of the type: by cuConv where it can, else by torch.

    Each sequence has two numbers. Graphs call this function, which costs the host less than the operator.
    """
    if runs_now(input) and is_supported(input):
        try:
            return pooled(input, kernel_size, stride, padding, dilation, ceil_mode)
        except UnsupportedProblem:
            pass  # torch computes it, or says what is wrong
    geometry = (list(one) for one in (kernel_size, stride, padding, dilation))
    return laid_out(F.max_pool2d(input, *geometry, ceil_mode))  # type: ignore[call-overload]


def _compute(input: Tensor, *options: Any) -> Tensor:
    """The operator on tensors with data."""
    if has_tangent(input):
        raise NotImplementedError("torch.ops.cuconv.max_pool2d has no forward-mode derivative: use F.max_pool2d")
    return max_pool2d(input, *options)


def _fake(
    input: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> Tensor:
    """The operator's output without data; its sizes may be symbols."""
    windows = zip(input.shape[-2:], kernel_size, stride, padding, dilation, strict=True)
    return empty([*input.shape[:-2], *(windows_along(*one, ceil_mode, torch.sym_min) for one in windows)], input)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    """Keep what the gradient needs."""
    input, *ctx.options = inputs
    ctx.save_for_backward(input)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    """The gradient of the input, which is torch's: it finds the largest elements again."""
    (input,) = ctx.saved_tensors
    _, indices = aten.max_pool2d_with_indices(input, *ctx.options)
    of_input = aten.max_pool2d_with_indices_backward(gradient, input, *ctx.options, indices)
    return (of_input, *[None] * len(ctx.options))


_library = torch.library.Library("cuconv", "FRAGMENT")
_library.define(
    "max_pool2d(Tensor input, int[2] kernel_size, int[2] stride, int[2] padding, int[2] dilation, bool ceil_mode) "
    "-> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_library.impl("max_pool2d", untraced(_compute), "CompositeExplicitAutograd")
torch.library.register_fake("cuconv::max_pool2d", _fake, lib=_library)
torch.library.register_autograd("cuconv::max_pool2d", _backward, setup_context=_setup, lib=_library)
MAX_POOL2D = torch.ops.cuconv.max_pool2d.default


def fold_pools(graph: fx.Graph, constants: set[Node]) -> None:
    """Make cuConv's operator of each max pooling in a functional graph that its kernel takes.

    The others, and those of constant tensors, stay torch's.
    """
    node: Node
    for node in list(graph.nodes):
        result = _result(node)
        if result is None or node in constants or node.kwargs or not _is_taken(node.args[0]):
            continue
        input, size, stride, padding, dilation, ceil_mode = tuple(node.args) + DEFAULTS[len(node.args) - 2 :]
        geometry = (one if isinstance(one, Sequence) else [one] for one in (size, stride or size, padding, dilation))
        with graph.inserting_before(node):
            pairs = ((one[0], one[-1]) for one in geometry)
            call = graph.call_function(MAX_POOL2D, (input, *pairs, ceil_mode))
        value = result.meta["val"]  # torch may take it for contiguous where sizes vary
        call.meta = {**result.meta, "val": value if is_laid_out_in_example(value) else laid_out(value)}
        copies = [user for user in result.users if _is_copy_for_convolutions(user)]
        for old in dict.fromkeys((*copies, result, node)):
            old.replace_all_uses_with(call)
            graph.erase_node(old)


def _is_copy_for_convolutions(node: Node) -> bool:
    """Whether a node makes a tensor channels last, and cuConv's convolutions alone use the result."""
    if node.target is not aten.clone.default or node.kwargs != {"memory_format": torch.channels_last}:
        return False
    return all(user.target is CONV2D for user in node.users)


def _result(node: Node) -> Node | None:
    """The node with the output of a max pooling; None for other nodes, and where something reads the indices."""
    if node.target is aten.max_pool2d.default:
        return node
    if node.target is not aten.max_pool2d_with_indices.default or len(node.users) != 1:
        return None
    (user,) = node.users
    return user if user.target is operator.getitem and user.args[1] == 0 else None


def _is_taken(input: Node) -> bool:
    """Whether the kernel takes images, for the sizes of the example."""
    images = input.meta["val"]
    if images.dim() != 4 or images.dtype not in HALVES or not is_supported(images):
        return False
    is_last = order(images) == CHANNELS_LAST  # an image of one pixel has every format, and torch's output another one
    return is_last and is_laid_out_in_example(images) and hint(images.shape[1]) % VECTOR_CHANNELS == 0
