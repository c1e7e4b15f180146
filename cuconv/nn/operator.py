"""torch.ops.cuconv.conv2d: the convolution as an operator of torch, with gradients and under torch.compile.

The operator is defined by torch.library.Library: torch.library.custom_op costs the host a few microseconds more a call,
and imports torch's compiler at the first one.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.autograd import forward_ad
from torch.utils.flop_counter import conv_flop_count, register_flop_formula

import cuconv
from cuconv.call import NotReady
from cuconv.core.activation import NONE, RELU, Activated, Activation, activation_of, named
from cuconv.core.geometry import Geometry, ends
from cuconv.core.problem import FP32, PRECISIONS, UnsupportedProblem
from cuconv.device import UnsupportedDevice, device_spec
from cuconv.nn.activated import activated
from cuconv.nn.dispatch import by_torch_in_fp32, convolutions_by
from cuconv.nn.formats import TYPES, empty, is_laid_out, laid_out, precision_of
from cuconv.nn.padding import convolved, each, for_operator, in_numbers, in_pairs, padded, unpadded
from cuconv.precompile import PlannedCall
from cuconv.select import READY

Pair = int | Sequence[int]
Pairs = Sequence[Sequence[int]]  # ((top, bottom), (left, right))
SCHEMA = (
    "conv2d(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] padding, SymInt[] dilation, "
    "SymInt groups, str activation, float[] numbers, Tensor? residual, str precision) -> Tensor"
)
PLAIN_TYPES = (Tensor, torch.nn.Parameter)  # exactly these types: a subclass may keep its data elsewhere


class _Thread(threading.local):
    """The blocks that a thread has entered, the innermost one last."""

    def __init__(self) -> None:
        self.recordings: list[set[PlannedCall]] = []  # the sets that `recorded` fills
        self.output_channels: list[int] = []  # the channels of the outputs that `writing_slices` is about


_thread = _Thread()


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Pair = 1,
    padding: Pair | Pairs | str = 0,
    dilation: Pair = 1,
    groups: int = 1,
    *,
    relu: bool = False,
    activation: Activated = None,
    residual: Tensor | float | None = None,
    precision: str = FP32,
) -> Tensor:
    """The convolution of torch.nn.functional.conv2d, and more: activation(conv(input) + bias + residual).

    cuConv computes it where it can: float32 in contiguous NCHW, float16 and bfloat16 in channels last, on one GPU.
    Everything else that torch accepts goes to torch: other types and layouts, CPU tensors, empty batches, autocast.
    torch also adds a residual of another shape or type than the output. Gradients are torch's
    (aten.convolution_backward).

    padding: as torch's, or ((top, bottom), (left, right)), of which torch computes a padded copy of the input.

    relu, activation: those of `cuconv.conv2d`. precision: that of float32 tensors, "fp32" or "tf32". Raises ValueError
    for other names.
    """
    check_precision(precision)
    function = activation_of(activation, relu)
    is_plain = is_plain_call(input, weight, bias, residual)  # first, since fx traces with what has no sizes
    is_taken = is_plain and input.dim() == weight.dim() == 4 and is_laid_out(input) and is_laid_out(weight)
    pads = in_numbers(weight, stride, padding, dilation) if is_taken else None
    if pads is None:
        return _by_torch(input, weight, bias, stride, padding, dilation, groups, function, residual)
    geometry = (each(stride, 2), for_operator(pads), each(dilation, 2), groups)
    if residual is None or (isinstance(residual, Tensor) and residual.dtype == input.dtype):
        return CONV2D(input, weight, bias, *geometry, function.name, list(function.numbers), residual, precision)
    return finished(CONV2D(input, weight, bias, *geometry, NONE.name, [], None, precision), function, residual)


def check_precision(precision: str) -> None:
    """Raise ValueError for a precision that cuConv does not have."""
    if precision not in PRECISIONS:
        raise ValueError(f"precision={precision!r}: must be one of {', '.join(PRECISIONS)}")


def _compute(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    activation: str,
    numbers: Sequence[float],
    residual: Tensor | None,
    precision: str,
) -> Tensor:
    """The operator on tensors with data: by cuConv where it can, by torch elsewhere."""
    geometry, function = (tuple(stride), in_pairs(padding), tuple(dilation), groups), named(activation, *numbers)
    if has_tangent(input, weight, bias, residual):
        raise NotImplementedError("torch.ops.cuconv.conv2d has no forward-mode derivative: use cuconv.nn.conv2d")
    if not qualifies(input, weight, bias):
        return laid_out(_by_torch(input, weight, bias, *geometry, function, residual))
    fused = residual if residual is not None and _is_fused(residual, input, weight, geometry) else None
    last = residual is None or fused is not None  # whether cuConv's kernel is the last one
    try:
        fusible = function if last else NONE
        output = _launch(input, weight, bias, *geometry, activation=fusible, residual=fused, precision=precision)
    except NotReady:
        with torch_in(precision):
            return laid_out(_by_torch(input, weight, bias, *geometry, function, residual))
    except UnsupportedProblem:
        return laid_out(_by_torch(input, weight, bias, *geometry, function, residual))
    if not last:
        output = laid_out(finished(output, function, residual))
    return output


def untraced(compute: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function, into which torch's compiler must not look when a graph break makes it an eager call.

    torch.compiler.disable imports the compiler, which takes most of a second: it is used only where that is imported.
    """
    disabled = cache(lambda: torch.compiler.disable(compute))

    def call(*operands: Any) -> Tensor:
        return (disabled() if "torch._dynamo" in sys.modules else compute)(*operands)

    return call


def _fake(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    activation: str,
    numbers: Sequence[float],
    residual: Tensor | None,
    precision: str,
) -> Tensor:
    """The operator's output without data; `recorded` collects the problem if cuConv computes this type."""
    shape = output_shape(input, weight, stride, padding, dilation)
    sizes = (*input.shape, *weight.shape)
    if _thread.recordings and input.dtype in TYPES and all(isinstance(size, int) for size in sizes):
        with suppress(UnsupportedProblem):  # torch computes it, or says what is wrong
            geometry = Geometry((stride[0], stride[1]), in_pairs(padding), (dilation[0], dilation[1]), groups)
            problem = geometry.problem(tuple(input.shape), tuple(weight.shape), precision_of(input, precision))
            outputs = _thread.output_channels
            is_slice = problem.n > 1 or problem.is_half  # one image's slice of float32 is dense
            channels = outputs[-1] if outputs and is_slice else None
            function = named(activation, *numbers)
            function = NONE if function == RELU else function  # their kernels are the same
            for found in _thread.recordings:
                found.add(PlannedCall(problem, residual is not None, channels, function))
    if residual is not None:
        shape = list(torch.broadcast_shapes(shape, residual.shape))
    return empty(shape, input)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    """Keep what the gradients need."""
    input, weight, bias, ctx.stride, ctx.padding, ctx.dilation, ctx.groups, *others = inputs
    activation, numbers, residual, ctx.precision = others
    ctx.activation = named(activation, *numbers)
    ctx.bias_sizes = None if bias is None else list(bias.shape)
    ctx.residual_shape = None if residual is None else residual.shape
    recomputes = ctx.activation not in (NONE, RELU)
    kept = (bias, residual) if recomputes else (None, None)
    ctx.save_for_backward(input, weight, output if ctx.activation == RELU else None, *kept)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients of input, weight, bias and residual.

    That of ReLU follows from the output. For other activations the convolution is computed again.
    """
    input, weight, output, bias, residual = ctx.saved_tensors
    geometry = (ctx.stride, ctx.padding, ctx.dilation, ctx.groups)
    if ctx.activation == RELU:
        gradient = torch.ops.aten.threshold_backward(gradient, output, 0)
    elif ctx.activation != NONE:
        before = CONV2D(input, weight, bias, *geometry, NONE.name, [], residual, ctx.precision)
        of_activation = torch.func.vjp(lambda sums: activated(sums, ctx.activation), before)[1]
        (gradient,) = of_activation(gradient)
    of_residual = None
    if ctx.residual_shape is not None:
        of_residual = gradient.sum_to_size(ctx.residual_shape)
        gradient = gradient.sum_to_size(output_shape(input, weight, ctx.stride, ctx.padding, ctx.dilation))
    mask = [ctx.needs_input_grad[0], ctx.needs_input_grad[1], ctx.bias_sizes is not None and ctx.needs_input_grad[2]]
    zeros_too, pads = padded(input, in_pairs(ctx.padding), 2)
    of_input, of_weight, of_bias = torch.ops.aten.convolution_backward(
        gradient, zeros_too, weight, ctx.bias_sizes, ctx.stride, pads, ctx.dilation, False, [0, 0], ctx.groups, mask
    )
    if of_input is not None:
        of_input = unpadded(of_input, in_pairs(ctx.padding), 2)
    return of_input, of_weight, of_bias, None, None, None, None, None, None, of_residual, None


_library = torch.library.Library("cuconv", "FRAGMENT")
_library.define(SCHEMA, tags=(torch.Tag.pt2_compliant_tag,))
_library.impl("conv2d", untraced(_compute), "CompositeExplicitAutograd")  # one function for every device
torch.library.register_fake("cuconv::conv2d", _fake, lib=_library)
torch.library.register_autograd("cuconv::conv2d", _backward, setup_context=_setup, lib=_library)
CONV2D = torch.ops.cuconv.conv2d.default


@register_flop_formula(torch.ops.cuconv.conv2d)
def _flops(
    input_shape: Sequence[int], weight_shape: Sequence[int], *_: Any, out_shape: Sequence[int], **__: Any
) -> int:
    """The operations of a call for torch.utils.flop_counter, as torch counts its own convolutions'."""
    return conv_flop_count(list(input_shape), list(weight_shape), list(out_shape))


def qualifies(input: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether cuConv takes these operands: plain tensors of one type, in its format, not empty, on one of its GPUs."""
    operands = (input, weight) if bias is None else (input, weight, bias)
    return (
        is_supported(input)
        and input.dtype in TYPES
        and all(
            type(t) in PLAIN_TYPES
            and t.dtype == input.dtype
            and is_laid_out(t)
            and t.numel() > 0
            and t.device == input.device
            and not t.is_neg()
            for t in operands
        )
    )


def is_supported(input: Tensor) -> bool:
    """Whether a tensor is on a GPU that cuConv's kernels are written for."""
    return input.is_cuda and _is_supported(input.device.index)


@cache
def _is_supported(index: int) -> bool:
    try:
        device_spec(index)
    except UnsupportedDevice:
        return False
    return True


def is_plain_call(*operands: Any) -> bool:
    """Whether the operator may compute the call: not for subclasses of Tensor, autocast and derivatives of torch.func.

    Tensors of torch's own tracers count as plain: the operator has an implementation for them.
    """
    tensors = [operand for operand in operands if isinstance(operand, Tensor) or hasattr(operand, "__torch_function__")]
    if not all(type(tensor) in (*PLAIN_TYPES, FakeTensor, FunctionalTensor) for tensor in tensors):
        return False
    if not isinstance(operands[0], Tensor) or autocasts(operands[0]):
        return False
    return torch.compiler.is_compiling() or not is_differentiated()


def is_differentiated() -> bool:
    """Whether a derivative of torch.func, torch.vmap or forward-mode differentiation is being computed."""
    return torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0


def has_tangent(*operands: Any) -> bool:
    """Whether an operand carries a derivative of forward-mode differentiation."""
    if forward_ad._current_level < 0:
        return False
    return any(isinstance(t, Tensor) and forward_ad.unpack_dual(t).tangent is not None for t in operands)


@contextmanager
def recorded() -> Iterator[set[PlannedCall]]:
    """Collect the calls that fake tensors make in this thread."""
    found: set[PlannedCall] = set()
    _thread.recordings.append(found)
    try:
        yield found
    finally:
        _thread.recordings.pop()


def is_recording() -> bool:
    """Whether the calls of this thread are collected."""
    return bool(_thread.recordings)


@contextmanager
def writing_slices(channels: int) -> Iterator[None]:
    """Collect the calls of this thread as those that write to slices of a tensor of that number of channels."""
    _thread.output_channels.append(channels)
    try:
        yield
    finally:
        _thread.output_channels.pop()


def _launch(*operands: Any, precision: str, **options: Any) -> Tensor:
    """cuconv.conv2d on operands whose gradients torch's operator takes care of, unless its kernels must compile."""
    with torch.no_grad():
        return cuconv.conv2d(*operands, **options, precision=precision_of(operands[0], precision), algorithm=READY)


def autocasts(input: Tensor) -> bool:
    """Whether torch computes convolutions of this device in another type, as torch.autocast asks for."""
    device = input.device.type
    return device in ("cuda", "cpu") and torch.is_autocast_enabled(device)


def _is_fused(residual: Tensor, input: Tensor, weight: Tensor, geometry: tuple[Any, ...]) -> bool:
    """Whether a residual is what the kernel adds: a tensor like the output, in its memory format."""
    stride, padding, dilation, _ = geometry
    shape = output_shape(input, weight, stride, padding, dilation)
    same = list(residual.shape) == shape and residual.dtype == input.dtype and residual.device == input.device
    return same and is_laid_out(residual)


def output_shape(
    input: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> list[int]:
    """(N, M, OH, OW), or (N, M, OL) for signals; its sizes may be symbols."""
    shape = [input.shape[0], weight.shape[0]]
    for axis, (before, behind) in enumerate(ends(padding, weight.dim() - 2)):
        reach = dilation[axis] * (weight.shape[2 + axis] - 1) + 1
        shape.append((input.shape[2 + axis] + before + behind - reach) // stride[axis] + 1)
    return shape


def _by_torch(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int,
    activation: Activation,
    residual: Tensor | float | None,
) -> Tensor:
    """The output by torch's convolution, after residual and activation."""
    return finished(convolved(2, input, weight, bias, stride, padding, dilation, groups), activation, residual)


def torch_in(precision: str) -> AbstractContextManager[None]:
    """Keep torch's convolutions from rounding to TF32, as they do by default, unless that is the precision asked for.

    It is for torch in the place of kernels that are being compiled, so that results are as exact as theirs.
    """
    return convolutions_by(by_torch_in_fp32) if precision == FP32 else nullcontext()


def finished(output: Tensor, activation: Activation, residual: Tensor | float | None) -> Tensor:
    """The output of a convolution after residual and activation, by torch."""
    return activated(output if residual is None else output + residual, activation)
