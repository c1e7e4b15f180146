"""The views of 1D convolutions in a graph: images of one row stay images from one convolution to the next.

A 1D convolution is a 2D convolution between two views: (N, C, L) -> (N, C, 1, L), and back. Operations that are fused
into convolutions, or lie between them, have the same result on images of one row. So a view back moves behind them, and
fusions find them at the convolution; where it meets a view of the next convolution, both vanish.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from cuconv.nn.activated import activation_in
from cuconv.nn.formats import as_row
from cuconv.nn.layout import is_laid_out_in_example
from cuconv.nn.nodes import Node, is_row, kind_of, only_user
from cuconv.nn.operator import CONV2D
from cuconv.nn.phases import INTERLEAVE
from cuconv.nn.traced import BATCH_NORM

aten = torch.ops.aten


def keep_rows(graph: fx.Graph) -> None:
    """Move each view of an image as a signal behind the operations that fusions look for, and erase views that cancel.

    A view stays ahead of an operation whose result, strides included, would differ on images, and where a second node
    reads the signal.
    """
    node: Node
    for node in list(graph.nodes):
        if node.target in (CONV2D, INTERLEAVE):
            view = only_user(node)
            while view is not None and _is_signal(view) and (user := only_user(view)) is not None:
                if not _is_the_same_on_rows(user, view):
                    break
                view = _behind(user)
    for node in list(graph.nodes):
        if not is_row(node):
            continue
        (signal, _) = node.args
        # A view that stayed, since its signal has other readers; this one reads an activation of the signal.
        if only_user(signal) is node and activation_in(signal) is not None and _is_signal(signal.args[0]):
            signal = _behind(signal)
        if _is_signal(signal):
            node.replace_all_uses_with(signal.args[0])
    for node in reversed(graph.nodes):
        if not node.users and (_is_signal(node) or is_row(node)):
            graph.erase_node(node)


def _is_signal(node: Node) -> bool:
    """Whether a node is the view of an image of one row as a signal."""
    return node.target is aten.squeeze.dim and node.args[1] == 2 and _dimensions(node) == 3


def _is_the_same_on_rows(user: Node, signal: Node) -> bool:
    """Whether an operation on a signal, and on others like it, is the same on images of one row."""
    if _dimensions(user) != 3 or not is_laid_out_in_example(as_row(user.meta["val"])):  # strides would differ
        return False
    if user.target is aten.add.Tensor:
        return all(isinstance(one, fx.Node) and kind_of(one) == kind_of(signal) for one in user.args)
    if user.target is aten.cat.default:
        return len(user.args) == 2 and user.args[1] in (1, -2) and all(_dimensions(one) == 3 for one in user.args[0])
    return user.args[0] is signal and (user.target is BATCH_NORM or activation_in(user) is not None)


def _dimensions(node: Any) -> int:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return value.dim() if isinstance(value, Tensor) else 0


def _behind(user: Node) -> Node:
    """An operation on images of one row in the place of one on signals; returns the view of its result as a signal."""
    graph = user.graph
    # Channels are axis 1 of both; counted from the end, axis -2 of signals would be the row of images.
    args = (user.args[0], 1) if user.target is aten.cat.default else user.args
    with graph.inserting_before(user):
        moved = graph.call_function(user.target, fx.map_arg(args, _rows_of), user.kwargs)
        view = graph.call_function(aten.squeeze.dim, (moved, 2))
    moved.meta, view.meta = {**user.meta, "val": as_row(user.meta["val"])}, dict(user.meta)
    user.replace_all_uses_with(view)
    graph.erase_node(user)
    return view


def _rows_of(node: Node) -> Node:
    """A signal as an image of one row, ahead of the node that is being made; other tensors as they are."""
    if _dimensions(node) != 3:
        return node
    if _is_signal(node):
        return node.args[0]
    row = node.graph.call_function(aten.unsqueeze.default, (node, 2))
    row.meta["val"] = as_row(node.meta["val"])
    return row
