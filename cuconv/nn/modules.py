"""Modules of converted models: convolutions with a residual and ReLU, concatenated ones, fully connected layers."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode

from cuconv.nn.operator import (
    autocasts,
    check_precision,
    conv2d,
    is_recording,
    output_shape,
    pads_of,
    writing_slices,
)
from cuconv.prepared import PreparedConv2d, prepare
from cuconv.problem import FP32, UnsupportedProblem

MAX_ROWS = 32  # of a fully connected layer's input; more have not been compared with cuBLAS
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


class Conv2d(nn.Module):
    """relu(conv(input) + bias + residual); made from a torch.nn.Conv2d, whose weight and bias it takes over.

    Without gradients it computes as `cuconv.prepare` does: weights are packed once, and again after a change. With
    gradients, or where torch.compile or another tool follows the call, it calls `cuconv.nn.conv2d`. A weight that is
    not contiguous, as in a channels_last model, is copied into a contiguous one.
    """

    bias: Tensor | None
    _prepared: tuple[Any, Any, PreparedConv2d] | None = None  # with the weight and bias that it is for

    def __init__(self, conv: nn.Conv2d, *, relu: bool = False, precision: str = FP32):
        """Raises ValueError for what `why_not` names, and for an unknown precision."""
        super().__init__()
        check_precision(precision)
        if reason := why_not(conv):
            raise ValueError(f"this convolution stays with torch: {reason}")
        self.weight = conv.weight
        self.register_parameter("bias", conv.bias)  # type: ignore[arg-type]
        if not self.weight.is_contiguous():
            self.weight = nn.Parameter(self.weight.detach().contiguous(), self.weight.requires_grad)
        self.in_channels, self.out_channels, self.kernel_size = conv.in_channels, conv.out_channels, conv.kernel_size
        self.stride, self.padding, self.dilation, self.groups = conv.stride, conv.padding, conv.dilation, conv.groups
        self.relu, self.precision = relu, precision

    def forward(self, input: Tensor, residual: Tensor | float | None = None) -> Tensor:
        """The convolution of (N, C, H, W) or (C, H, W), plus a residual like the output."""
        if runs_now(input) and (residual is None or type(residual) is Tensor):
            try:
                return self.prepared()(input, residual)
            except UnsupportedProblem:
                pass  # torch computes it, or says what is wrong
        options: dict[str, Any] = {"relu": self.relu, "residual": residual, "precision": self.precision}
        return conv2d(input, self.weight, self.bias, *self._geometry(), **options)

    def write(self, input: Tensor, out: Tensor) -> None:
        """Write what the call returns to a tensor of its shape, which may be a slice of channels."""
        try:
            self.prepared()(input, out=out)
        except UnsupportedProblem:
            out.copy_(self(input))

    def output_shape(self, input: Tensor) -> list[int]:
        """The shape of the output for an input (N, C, H, W)."""
        stride, pads, dilation, _ = self._geometry()
        return output_shape(input, self.weight, stride, pads, dilation)

    def prepared(self) -> PreparedConv2d:
        """The convolution with packed weights."""
        weight, bias, found = self._parameters["weight"], self._parameters["bias"], self._prepared
        if found is None or found[0] is not weight or found[1] is not bias:
            options: dict[str, Any] = {"relu": self.relu, "precision": self.precision}
            found = (weight, bias, prepare(weight, bias, *self._geometry(), **options))
            self._prepared = found
        return found[2]

    def _geometry(self) -> tuple[Any, ...]:
        """Stride, padding, dilation and groups, the padding in numbers."""
        pads = pads_of(self.padding, self.weight, self.stride, self.dilation)
        return self.stride, pads, self.dilation, self.groups

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the packed weights, which belong to this module alone."""
        return {name: value for name, value in self.__dict__.items() if name != "_prepared"}

    def extra_repr(self) -> str:
        """Sizes and options, as torch.nn.Conv2d prints them."""
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        text += f", padding={self.padding}"
        text += "" if self.dilation == (1, 1) else f", dilation={self.dilation}"
        text += "" if self.groups == 1 else f", groups={self.groups}"
        return text + (", relu" if self.relu else "") + ("" if self.precision == FP32 else f", {self.precision}")


class Concatenation(nn.Module):
    """torch.cat of the outputs of convolutions along the channels; the converted model has it where torch.cat was.

    Each convolution writes its channels to their place in the result.
    """

    def __init__(self, convolutions: Iterable[Conv2d]):
        super().__init__()
        self.convolutions = nn.ModuleList(convolutions)

    def forward(self, *inputs: Tensor) -> Tensor:
        """The outputs of each convolution for its own input, (N, M, OH, OW) each, as one tensor."""
        calls: list[tuple[Any, Tensor]] = list(zip(self.convolutions, inputs, strict=True))
        shapes = [conv.output_shape(input) for conv, input in calls if runs_now(input) and input.dim() == 4]
        sizes = {(shape[0], *shape[2:]) for shape in shapes}  # all but the channels
        if len(shapes) < len(calls) or len(sizes) > 1:
            return self._concatenated(calls)
        output = inputs[0].new_empty((shapes[0][0], sum(shape[1] for shape in shapes), *shapes[0][2:]))
        for (conv, input), part in zip(calls, output.split([shape[1] for shape in shapes], 1), strict=True):
            conv.write(input, part)
        return output

    def _concatenated(self, calls: list[tuple[Any, Tensor]]) -> Tensor:
        """The same by torch.cat; kernels that are to be compiled are those that write to places in the result."""
        if not is_recording():
            return torch.cat([conv(input) for conv, input in calls], 1)
        with writing_slices(sum(conv.out_channels for conv, _ in calls)):
            return torch.cat([conv(input) for conv, input in calls], 1)


class Linear(nn.Module):
    """relu(input @ weight.T + bias) for few rows: a 1x1 convolution of images of one pixel.

    Made from a torch.nn.Linear. An input of more than MAX_ROWS rows goes to torch.
    """

    def __init__(self, linear: nn.Linear, *, relu: bool = False, precision: str = FP32):
        """Raises ValueError for what `why_not` names, and for an unknown precision."""
        super().__init__()
        if reason := why_not(linear):
            raise ValueError(f"this layer stays with torch: {reason}")
        conv = nn.utils.skip_init(nn.Conv2d, linear.in_features, linear.out_features, 1)
        conv.weight = nn.Parameter(linear.weight.detach()[:, :, None, None], linear.weight.requires_grad)
        conv.bias = linear.bias
        self.conv = Conv2d(conv, relu=relu, precision=precision)
        self.in_features, self.out_features = linear.in_features, linear.out_features

    @property
    def weight(self) -> Tensor:
        """(M, K), for code that reads it as torch.nn.Linear's."""
        return self.conv.weight.flatten(1)

    @property
    def bias(self) -> Tensor | None:
        """(M,), or None."""
        return self.conv.bias

    def forward(self, input: Tensor) -> Tensor:
        """(..., M) for an input (..., K)."""
        rows = prod(input.shape[:-1])
        if not 0 < rows <= MAX_ROWS:
            output = F.linear(input, self.weight, self.bias)
            return output.relu() if self.conv.relu else output
        output = self.conv(input.reshape(rows, input.shape[-1], 1, 1))
        return output.reshape(*input.shape[:-1], output.shape[1])


def module_for(layer: nn.Conv2d | nn.Linear, relu: bool, precision: str) -> Conv2d | Linear:
    """cuConv's module for a layer of torch."""
    if isinstance(layer, nn.Linear):
        return Linear(layer, relu=relu, precision=precision)
    return Conv2d(layer, relu=relu, precision=precision)


def runs_now(input: Tensor) -> bool:
    """Whether a call is computed as it is made, on a GPU: no gradient is recorded, and no tool of torch follows it."""
    return (
        type(input) is Tensor
        and is_on_gpu(input)
        and not torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
        and torch._C._get_tracing_state() is None
        and torch._C._functorch.peek_interpreter_stack() is None
        and _get_current_dispatch_mode() is None
        and not autocasts(input)
    )


def is_on_gpu(tensor: Tensor) -> bool:
    """Whether a tensor is on an NVIDIA GPU."""
    return tensor.is_cuda


def why_not(conv: nn.Module) -> str:
    """Why a module stays with torch; "" where cuConv takes it over."""
    if type(conv) not in (nn.Conv2d, nn.Linear):
        return f"it is a {type(conv).__name__}"
    if conv.weight.dtype != torch.float32:
        return f"its weight is {conv.weight.dtype}"
    if hooked(conv):
        return "it has hooks"
    if not isinstance(conv, nn.Conv2d):
        return ""
    if conv.padding_mode != "zeros":
        return f"its padding_mode is {conv.padding_mode!r}"
    if pads_of(conv.padding, conv.weight, conv.stride, conv.dilation) is None:
        return f"padding={conv.padding!r} with this filter is not the same on both sides"
    return ""


def hooked(module: nn.Module) -> bool:
    """Whether calling a module runs more than its forward."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(hooks)


def is_batch_norm(module: nn.Module | None) -> bool:
    """Whether a module is a batch norm with fixed statistics, which can be folded into a convolution."""
    if type(module) is not nn.BatchNorm2d or hooked(module):
        return False
    return module.running_mean is not None and not module.training


def is_relu(module: nn.Module | None) -> bool:
    """Whether a module is a ReLU that can be folded into a convolution."""
    return type(module) is nn.ReLU and not hooked(module)
