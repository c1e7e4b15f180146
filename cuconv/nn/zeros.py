"""Zeros that a graph puts around the input of a convolution become the convolution's own padding, without a copy.

Autoencoders and models from TensorFlow have them ahead of convolutions of stride 2, and causal models of signals ahead
of all.
"""

from __future__ import annotations

import torch
from torch import fx

from cuconv.core.geometry import Pairs, ends, zeros
from cuconv.core.problem import UnsupportedProblem
from cuconv.nn.formats import as_row
from cuconv.nn.limits import check_half
from cuconv.nn.nodes import Node, is_row, laid_out_node, only_user
from cuconv.nn.operator import CONV2D
from cuconv.nn.padding import for_operator

aten = torch.ops.aten


def fold_zeros(graph: fx.Graph) -> None:
    """Make zeros around images and signals, which a convolution alone reads, its padding.

    It comes before `keep_rows`: a view of a signal as an image of one row then meets the view back.
    """
    for node in list(graph.nodes):
        while node.target is CONV2D and _folds(node):
            node.meta["folded"] = ("padding",)


def _folds(node: Node) -> bool:
    """Whether a convolution reads zeros that could be made its padding, and have been."""
    input, weight, bias, stride, padding, dilation, groups, *others = node.args
    copies = [input]  # from the convolution on, up to the one with the zeros
    while copies[-1].target is aten.clone.default or is_row(copies[-1]):
        copies.append(copies[-1].args[0])
    is_signal, around = any(map(is_row, copies)), _zeros(copies[-1])
    is_known = all(type(size) is int for size in padding)
    if around is None or not is_known or any(only_user(copy) is None for copy in copies):
        return False
    pads = zeros("padding", [(a + c, b + d) for (a, b), (c, d) in zip(ends(padding, 2), around, strict=True)])
    source = copies[-1].args[0]
    value = as_row(source.meta["val"]) if is_signal else source.meta["val"]
    try:
        check_half(value, weight.meta["val"].shape, stride, pads, dilation, groups)
    except UnsupportedProblem:
        return False
    with node.graph.inserting_before(node):
        if is_signal:
            source = node.graph.call_function(aten.unsqueeze.default, (source, 2))
            source.meta["val"] = value
        source = laid_out_node(source)
    node.args = (source, weight, bias, stride, for_operator(pads), dilation, groups, *others)
    for copy in copies:
        node.graph.erase_node(copy)
    return True


def _zeros(node: Node) -> Pairs | None:
    """The zeros ((above, below), (left, right)) that a node adds; None where it does anything else."""
    if node.target not in (aten.constant_pad_nd.default, aten.pad.default) or node.kwargs:
        return None
    input, sizes, *options = node.args  # the mode and the value, or the value alone
    axes = input.meta["val"].dim() - 2
    if any(isinstance(one, fx.Node) or one not in ("constant", None, 0) for one in options) or axes not in (1, 2):
        return None
    if any(type(size) is not int or size < 0 for size in sizes) or any(sizes[2 * axes :]):
        return None
    left, right, top, bottom = (*sizes, 0, 0, 0, 0)[:4]
    return (top, bottom), (left, right)
