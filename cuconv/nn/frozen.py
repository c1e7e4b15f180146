"""The layers of folded graphs, whose weights are constant."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cuconv.call import NotReady
from cuconv.core.activation import Activation
from cuconv.core.problem import UnsupportedProblem
from cuconv.device import UnsupportedDevice
from cuconv.nn.activated import activated
from cuconv.nn.formats import empty, laid_out, precision_of
from cuconv.nn.modules import as_images, is_small
from cuconv.nn.operator import conv2d, is_recording, output_shape, torch_in, writing_slices
from cuconv.nn.padding import convolved
from cuconv.prepared import PreparedConv2d, owned

Tensors = Callable[[str], Tensor]
"""The constant tensor of a graph by its name."""


class _Thread(threading.local):
    """How many `computed_by_torch` a thread has entered."""

    by_torch = 0


_thread = _Thread()


@contextmanager
def computed_by_torch() -> Iterator[None]:
    """Let torch compute the layers of graphs in calls of this thread, so that no kernel compiles.

    Which weights are folded, and the order of operations, stay.
    """
    _thread.by_torch += 1
    try:
        yield
    finally:
        _thread.by_torch -= 1


def runs_now(input: Tensor) -> bool:
    """Whether cuConv computes a layer of an input as it is called."""
    return type(input) is Tensor and is_on_gpu(input) and not _thread.by_torch


def is_on_gpu(tensor: Tensor) -> bool:
    """Whether a tensor is on an NVIDIA GPU."""
    return tensor.is_cuda


class FrozenConv2d:
    """activation(conv(input) + bias + residual) with constant weights, which `bind` takes by their names."""

    def __init__(
        self,
        weight: str,
        bias: str | None,
        geometry: tuple[Any, ...],
        activation: Activation,
        precision: str,
    ):
        """geometry: stride, padding, dilation and groups in numbers, as `cuconv.conv2d` takes them."""
        self.names = (weight, bias)
        self.geometry, self.activation, self.precision = geometry, activation, precision
        self.weight: Tensor = torch.empty(0)
        self.bias: Tensor | None = None
        self._prepared: PreparedConv2d | None = None
        self.is_written = True  # whether what writes the weights has ended

    def bind(self, tensors: Tensors) -> None:
        """Take the weights as they are now, as constants, for which no gradient is recorded."""
        weight, bias = tensors(self.names[0]).detach(), None
        if self.names[1] is not None:
            bias = tensors(self.names[1]).detach()
        with torch.no_grad():
            self.weight, self.bias = laid_out(self._shaped(weight)), None if bias is None else bias.contiguous()
        self._prepared = None

    def _shaped(self, weight: Tensor) -> Tensor:
        """The weights as (M, C, KH, KW)."""
        return weight

    def __call__(self, input: Tensor, residual: Tensor | None = None) -> Tensor:
        """The convolution of (N, C, H, W) or (C, H, W), plus a residual like the output."""
        if runs_now(input):
            try:
                return self.prepared()(input, residual)
            except NotReady:
                with torch_in(self.precision):
                    return self._by_torch(input, residual)
            except (UnsupportedProblem, UnsupportedDevice):
                pass  # torch computes it, or says what is wrong
        return self._by_torch(input, residual) if _thread.by_torch else self._by_operator(input, residual)

    def _by_torch(self, input: Tensor, residual: Tensor | None) -> Tensor:
        """The output by torch's convolution, in cuConv's memory format: the graph was traced for it."""
        output = convolved(2, input, self.weight, self.bias, *self.geometry)
        return activated(laid_out(output if residual is None else output + residual), self.activation)

    def _by_operator(self, input: Tensor, residual: Tensor | None) -> Tensor:
        """The output by `cuconv.nn.conv2d`, which takes weights that are not packed."""
        options: dict[str, Any] = {"activation": self.activation, "residual": residual, "precision": self.precision}
        return conv2d(input, self.weight, self.bias, *self.geometry, **options)

    def write(self, input: Tensor, out: Tensor) -> None:
        """Write what the call returns to a tensor of its shape, which may be a slice of channels."""
        try:
            self.prepared()(input, out=out)
        except NotReady:
            with torch_in(self.precision):
                out.copy_(self._by_torch(input, None))
        except (UnsupportedProblem, UnsupportedDevice):
            out.copy_(self(input))

    @property
    def packed_bytes(self) -> int:
        """The device memory of the packed weights, in bytes."""
        return 0 if self._prepared is None else self._prepared.packed_bytes

    def prepared(self) -> PreparedConv2d:
        """The convolution with packed weights; raises UnsupportedProblem where they may still be written."""
        if not self.is_written:
            raise UnsupportedProblem("constant weights in half precision that a capture writes are read like others")
        if self._prepared is None:
            options: dict[str, Any] = {
                "activation": self.activation,
                "precision": precision_of(self.weight, self.precision),
            }
            self._prepared = owned(self.weight, self.bias, *self.geometry, **options)
        return self._prepared

    def output_shape(self, input: Tensor) -> list[int]:
        """The shape of the output for an input (N, C, H, W)."""
        stride, padding, dilation, _ = self.geometry
        return output_shape(input, self.weight, stride, padding, dilation)

    def __getstate__(self) -> dict[str, Any]:
        """The state without the weights, which `bind` takes again from the model."""
        return {**self.__dict__, "weight": None, "bias": None, "_prepared": None}


class FrozenLinear(FrozenConv2d):
    """activation(input @ weight.T + bias) with constant weights; few rows are a 1x1 convolution of one-pixel images."""

    def _shaped(self, weight: Tensor) -> Tensor:
        return weight[:, :, None, None]

    def __call__(self, input: Tensor, residual: Tensor | None = None) -> Tensor:
        """(..., M) for an input (..., K)."""
        if _thread.by_torch or not is_small(input):
            return activated(F.linear(input, self.weight.flatten(1), self.bias), self.activation)
        output = super().__call__(as_images(input))
        return output.reshape(*input.shape[:-1], output.shape[1])


class Layers:
    """Convolutions with constant weights that are one call of a graph."""

    def __init__(self, convolutions: list[FrozenConv2d]):
        self.convolutions = convolutions

    def bind(self, tensors: Tensors) -> None:
        """Take the weights as they are now."""
        for convolution in self.convolutions:
            convolution.bind(tensors)

    @property
    def packed_bytes(self) -> int:
        """The device memory of the packed weights, in bytes."""
        return sum(convolution.packed_bytes for convolution in self.convolutions)


class Concatenation(Layers):
    """torch.cat of the outputs of convolutions along the channels, where each writes its channels to their place."""

    def __call__(self, *inputs: Tensor) -> Tensor:
        """The outputs of each convolution for its own input, (N, M, OH, OW) each, as one tensor."""
        calls = list(zip(self.convolutions, inputs, strict=True))
        if not all(map(runs_now, inputs)):
            return self._concatenated(calls)
        shapes = [convolution.output_shape(input) for convolution, input in calls]
        if len({(shape[0], *shape[2:]) for shape in shapes}) > 1:  # torch says what is wrong
            return self._concatenated(calls)
        output = empty((shapes[0][0], sum(shape[1] for shape in shapes), *shapes[0][2:]), inputs[0])
        for (convolution, input), part in zip(calls, output.split([shape[1] for shape in shapes], 1), strict=True):
            convolution.write(input, part)
        return output

    def _concatenated(self, calls: list[tuple[FrozenConv2d, Tensor]]) -> Tensor:
        """The outputs joined by torch.cat. Calls that are recorded are recorded as writes to slices of one tensor."""
        if not is_recording():
            return torch.cat([convolution(input) for convolution, input in calls], 1)
        with writing_slices(sum(convolution.weight.shape[0] for convolution, _ in calls)):
            return torch.cat([convolution(input) for convolution, input in calls], 1)
