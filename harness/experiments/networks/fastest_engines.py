"""A network whose convolutions run on cuDNN's fastest engines, with batch norm folded and all else compiled by torch.

torch does not always take the fastest engine that cuDNN has. Each convolution takes it here: on the first forward, all
plans of the contender `cudnn_engine` are timed, in FP32 and NCHW. Bias and activation are operations of their own.
"""

from __future__ import annotations

from functools import cache
from typing import cast
from weakref import WeakValueDictionary

import torch
from torch import nn
from torch.fx.experimental.optimization import fuse

from cuconv.core.problem import FP32, ConvProblem
from harness.contenders import base, cudnn_engines
from harness.contenders.base import Operands

WORKSPACE_LIMIT = 2**30  # bytes, that of the sweeps


def with_fastest_engines(model: nn.Module) -> nn.Module:
    """A copy of a model in eval mode in which batch norm is folded and convolutions run on cuDNN's fastest engines.

    Convolutions with another padding than zeros, or with a padding by name, stay torch's. The plans live as long as the
    copy. Raises what torch.fx raises where it cannot trace the model.
    """
    engines = Engines(_contender())
    fused: nn.Module = fuse(model)
    for name, layer in list(fused.named_modules()):
        if type(layer) is nn.Conv2d and layer.padding_mode == "zeros" and not isinstance(layer.padding, str):
            fused.set_submodule(name, Convolution(layer, engines))
    return fused


class Convolution(nn.Module):
    """A convolution on cuDNN's fastest engine for its input; the bias is added by an operation of its own."""

    def __init__(self, layer: nn.Conv2d, engines: Engines):
        super().__init__()
        self.weight, self.bias, self.engines = layer.weight, layer.bias, engines
        self.number = id(engines)
        self.geometry = [*map(int, (*layer.padding, *layer.stride, *layer.dilation)), layer.groups]

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """input: N x C x H x W, in FP32."""
        output: torch.Tensor = convolve(input, self.weight, self.geometry, self.number)
        return output if self.bias is None else output + self.bias[:, None, None]


@torch.library.custom_op("harness::convolve", mutates_args=())
def convolve(input: torch.Tensor, weight: torch.Tensor, geometry: list[int], engines: int) -> torch.Tensor:
    """The convolution; geometry has padding, stride and dilation, each of rows and of columns, and then groups.

    engines: the key of the engines in `_alive`, since an operator takes no objects.
    """
    return _alive[engines].convolve(input.contiguous(), weight.contiguous(), _problem(input, weight, geometry))


@convolve.register_fake
def _(input: torch.Tensor, weight: torch.Tensor, geometry: list[int], engines: int) -> torch.Tensor:
    return input.new_empty(_problem(input, weight, geometry).output_shape)


def _problem(input: torch.Tensor, weight: torch.Tensor, geometry: list[int]) -> ConvProblem:
    (n, c, h, w), (m, _, kh, kw) = map(int, input.shape), map(int, weight.shape)
    pad_h, pad_w, *others = geometry
    return ConvProblem(n, c, h, w, m, kh, kw, pad_h, pad_w, FP32, *others)


@cache
def _contender() -> cudnn_engines.Contender:
    return cast(cudnn_engines.Contender, base.load("cudnn_engine"))


class Engines:
    """The fastest plan of each problem, which is found on its first call."""

    def __init__(self, contender: cudnn_engines.Contender):
        self._contender = contender
        self._plans: dict[ConvProblem, cudnn_engines.Plan] = {}
        _alive[id(self)] = self

    def convolve(self, input: torch.Tensor, weight: torch.Tensor, problem: ConvProblem) -> torch.Tensor:
        """A new tensor with the convolution of dense NCHW tensors."""
        output = torch.empty(problem.output_shape, device=input.device)
        if problem not in self._plans:
            operands = Operands(input, weight, output)
            self._plans[problem] = self._contender.fastest(problem, operands, WORKSPACE_LIMIT)
        self._plans[problem](input, weight, output)
        return output


_alive: WeakValueDictionary[int, Engines] = WeakValueDictionary()
