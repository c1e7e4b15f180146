"""Layers of a converted model that torch's compiler reads as one operator each; elsewhere they are torch's own.

torch runs what it compiles on tensors without data first. There its own convolution selects a kernel, by conditions on
sizes such as whether 32 bits count all elements: each becomes a guard of a graph that is for many sizes, and those of
GoogleNet took half of a call's host time. Its own batch norm is a dozen operations there.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import local
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cuconv.nn.formats import TYPES
from cuconv.nn.layout import CHANNELS_LAST, SIGNAL_LAST, order
from cuconv.nn.operator import autocasts, output_shape

# Tools that count calls replace these functions; layers then call theirs.
torchs_convolutions, torchs_batch_norm = (F.conv1d, F.conv2d), F.batch_norm

_library = torch.library.Library("cuconv", "FRAGMENT")
_library.define(
    "convolution(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] padding, SymInt[] dilation, "
    "SymInt groups) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_library.define(
    "batch_norm(Tensor input, Tensor? weight, Tensor? bias, Tensor mean, Tensor variance, float eps) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def convolution(input: Tensor, weight: Tensor, *options: Any) -> Tensor:
    """torch's 2D convolution of images, or its 1D convolution of signals; the weights tell which."""
    output: Tensor = (F.conv1d if weight.dim() == 3 else F.conv2d)(input, weight, *options)
    return output


def _output_of_convolution(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """An output without data in the layout of torch's: channels last, where the input or the weights are.

    Of signals, the weights alone decide: torch makes the input contiguous.
    """
    shape = output_shape(input, weight, stride, padding, dilation)
    last, deciding = (SIGNAL_LAST, (weight,)) if weight.dim() == 3 else (CHANNELS_LAST, (input, weight))
    if last in map(order, deciding):
        return torch.empty_permuted(shape, last, dtype=input.dtype, device=input.device)
    return input.new_empty(shape)


def batch_norm(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, variance: Tensor, eps: float
) -> Tensor:
    """torch's batch norm with fixed statistics."""
    return F.batch_norm(input, mean, variance, weight, bias, False, 0.0, eps)


def _output_of_batch_norm(input: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(input)


for _name, _function, _without_data in (
    ("convolution", convolution, _output_of_convolution),
    ("batch_norm", batch_norm, _output_of_batch_norm),
):
    _library.impl(_name, _function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"cuconv::{_name}", _without_data, lib=_library)
CONVOLUTION, BATCH_NORM = torch.ops.cuconv.convolution.default, torch.ops.cuconv.batch_norm.default


class _Layers(local):
    """Whether a convolution of this thread has run outside of graphs, since somebody set it to False."""

    ran = False


layers = _Layers()


class _Traced(nn.Module):
    """A layer whose `__module__` is torch's, so that tools take it for torch's. Copies keep its class."""

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _rebuilt, (_class_of_torch(self),), self.__getstate__()


def _rebuilt(kind: type[nn.Module]) -> nn.Module:
    """A layer without its state, for copies and pickles."""
    return TRACED[kind].__new__(TRACED[kind])


def _class_of_torch(layer: nn.Module) -> type[nn.Module]:
    """torch's own class of a traced layer."""
    return next(kind for kind, traced in TRACED.items() if type(layer) is traced)


class _TracedConvolution(_Traced, nn.modules.conv._ConvNd):
    """A convolution of torch, which its compiler reads as CONVOLUTION where cuConv may compute its type."""

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The convolution."""
        if not torch.compiler.is_dynamo_compiling():
            layers.ran = True
        elif _is_plain(self, input, weight):
            output: Tensor = CONVOLUTION(input, weight, bias, self.stride, self.padding, self.dilation, self.groups)
            return output
        return super()._conv_forward(input, weight, bias)


class Conv1d(_TracedConvolution, nn.Conv1d):
    """A torch.nn.Conv1d whose call torch's compiler reads as one operator."""

    __module__ = nn.Conv1d.__module__


class Conv2d(_TracedConvolution, nn.Conv2d):
    """A torch.nn.Conv2d whose call torch's compiler reads as one operator."""

    __module__ = nn.Conv2d.__module__


def _is_plain(layer: nn.modules.conv._ConvNd, input: Tensor, weight: Tensor) -> bool:
    """Whether CONVOLUTION computes a call of a layer."""
    if (F.conv1d, F.conv2d) != torchs_convolutions or autocasts(input):
        return False
    if layer.padding_mode != "zeros" or isinstance(layer.padding, str):
        return False
    return input.dim() == weight.dim() and input.dtype == weight.dtype and input.dtype in TYPES


class _TracedNorm(_Traced, nn.modules.batchnorm._BatchNorm):
    """A batch norm of torch, which torch's compiler reads as BATCH_NORM where the statistics are fixed."""

    def forward(self, input: Tensor) -> Tensor:
        """The batch norm."""
        is_patched = F.batch_norm is not torchs_batch_norm
        if not torch.compiler.is_dynamo_compiling() or self.training or self.running_mean is None or is_patched:
            return super().forward(input)
        self._check_input_dim(input)
        output: Tensor = BATCH_NORM(input, self.weight, self.bias, self.running_mean, self.running_var, self.eps)
        return output


class BatchNorm1d(_TracedNorm, nn.BatchNorm1d):
    """A torch.nn.BatchNorm1d whose call torch's compiler reads as one operator."""

    __module__ = nn.BatchNorm1d.__module__


class BatchNorm2d(_TracedNorm, nn.BatchNorm2d):
    """A torch.nn.BatchNorm2d whose call torch's compiler reads as one operator."""

    __module__ = nn.BatchNorm2d.__module__


TRACED: dict[type[nn.Module], type[nn.Module]] = {
    nn.Conv1d: Conv1d,
    nn.Conv2d: Conv2d,
    nn.BatchNorm1d: BatchNorm1d,
    nn.BatchNorm2d: BatchNorm2d,
}


def trace(model: nn.Module) -> list[nn.Module]:
    """Make layers of a model those of this module, and return them. `untrace` makes them torch's again."""
    found = [module for module in model.modules() if type(module) in TRACED]
    for layer in found:
        layer.__class__ = TRACED[type(layer)]
    return found


def untrace(traced: list[nn.Module]) -> None:
    """Make layers torch's again."""
    for layer in traced:
        layer.__class__ = _class_of_torch(layer)
