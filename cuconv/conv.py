"""conv2d, conv1d and plan: the library's entry points."""

from __future__ import annotations

from typing import Any

from cuconv import select
from cuconv.algorithms import ALGORITHMS
from cuconv.call import Options
from cuconv.call_cache import convolve, refuse
from cuconv.core.activation import Activated, activation_of
from cuconv.core.geometry import Padding, in_a_row, pair, zeros
from cuconv.core.problem import FP32, ConvProblem, UnsupportedProblem, shown, whole_number
from cuconv.device import DeviceSpec, spec_given
from cuconv.operands import named
from cuconv.runtime.arrays import CupyArrays, TorchArrays, library_of


def algorithms() -> tuple[str, ...]:
    """The names of the algorithms, which conv2d takes as `algorithm`, besides "auto", "ready" and "batch_invariant"."""
    return tuple(ALGORITHMS)


def plan(
    problem: ConvProblem,
    device: DeviceSpec | int | None = None,
    algorithm: str = "auto",
    *,
    prepared: bool = False,
    residual: bool = False,
    activation: Activated = None,
) -> select.LaunchPlan:
    """The algorithm and launch configuration that conv2d would use for a problem, without running anything.

    The plan prints as one line and has `workspace_bytes`. device: a DeviceSpec, a GPU's ordinal, or None for the
    current GPU. prepared: what `prepare` would use. residual, activation: what a call with them would use; the plan is
    the same for all activations. Raises UnsupportedProblem and ValueError as conv2d does.
    """
    select.check_options(algorithm, FP32)
    activation_of(activation)
    if not isinstance(problem, ConvProblem):
        raise TypeError(f"problem={shown(problem)}: must be a ConvProblem")
    return select.plan(problem, spec_given(device), algorithm, prepared, residual)


def conv2d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: int | tuple[int, int] = 1,
    padding: Padding = 0,
    dilation: int | tuple[int, int] = 1,
    groups: int = 1,
    *,
    relu: bool = False,
    activation: Activated = None,
    residual: Any = None,
    algorithm: str = "auto",
    precision: str = FP32,
    out: Any = None,
) -> Any:
    """The convolution of CNN inference on a GPU, of tensors in float32 or half precision.

    The first seven arguments have the order and meaning of torch.nn.functional.conv2d. A number stands for both axes,
    a pair is (vertical, horizontal).

    input       (N, C, H, W), or (C, H, W) for one image: a torch CUDA tensor or a CuPy array; the other operands are of
                the same library, GPU, type and layout. Tensors in float32 are contiguous, or with precision="tf32"
                in torch's memory format channels_last; those in float16 or bfloat16 are in channels_last.
                channels_last needs a Hopper GPU
    weight      (M, C / groups, KH, KW)
    bias        (M,), added to every output of its filter; None for no bias
    stride      rows and columns of the padded input from one output pixel to the next
    padding     rows and columns of zeros on each side: a number, a pair, ((top, bottom), (left, right)), "valid" (none)
                or "same" (the output has the input's size, with stride 1; an odd zero is at the bottom or right)
    dilation    rows and columns of the padded input from one filter position to the next
    groups      equal parts of the channels; each part of the filters, M / groups, reads one of them
    relu        True for activation="relu"
    activation  the function of each output, after bias and residual: None, "relu", "relu6", "silu", "sigmoid",
                "hardswish", "hardsigmoid", "tanh", "gelu" (torch's with erf), "gelu_tanh" (torch's gelu with
                approximate="tanh"), "leaky_relu" or ("leaky_relu", slope), "elu" or ("elu", alpha), "hardtanh" or
                ("hardtanh", least, largest). A NaN stays a NaN
    residual    (N, M, OH, OW), added to the output before the activation; None for no residual
    algorithm   "auto" for the fastest by prediction, or a name of `algorithms()`; "batch_invariant" for the fastest of
                which an image's output is bit for bit the same in every batch, where all outputs are finite; "ready" is
                "auto", but raises NotReady where it would have to wait for kernels to compile
    precision   of float32 operands. "fp32": the accuracy of a plain FP32 sum; "tf32": input and weight may be rounded
                to TF32 (11 bits, a relative error of about 3e-4), which is faster for large problems. Operands in half
                precision are added up in FP32, and the output is rounded once
    out         (N, M, OH, OW) to write to, which shares no memory with the other operands: contiguous, or a slice of
                the channels of a contiguous array, such as `buffer[:, 64:128]`; None for a new array

    Returns (N, M, OH, OW), where OH = (H + top + bottom - dilation*(KH - 1) - 1) // stride + 1 and OW likewise, on the
    current stream of the operands' library; without N where the input has none. Bias, activation and, but for some
    algorithms, the residual are part of the last kernel. Operands are never copied, but for channels that half
    precision pads; temporary memory, of `plan(...).workspace_bytes`, comes from the same library. After a first call of
    the same shape a call can be captured in a CUDA graph, with the kernels that are there (`cuconv.wait_for_kernels`).

    Raises before any launch: TypeError for other kinds of array, UnsupportedProblem (a ValueError) for a problem that
    cannot be computed, NotReady (an UnsupportedProblem) as above, ValueError for an unknown algorithm or activation.
    """
    library = library_of(input)
    if type(stride) is not int:
        stride = pair("stride", stride)
    if type(padding) is not int and not isinstance(padding, str):
        padding = zeros("padding", padding)
    if type(dilation) is not int:
        dilation = pair("dilation", dilation)
    if type(groups) is not int:
        groups = whole_number("groups", groups)
    function = activation_of(activation, relu)
    try:
        weight_signature = library.signature(weight)
        bias_signature = None if bias is None else library.signature(bias)
    except Exception:
        unsigned = Options(None, None, stride, padding, dilation, groups, function, algorithm, precision)
        refuse(library, named(input, weight, bias, out, residual), unsigned)
        raise
    options = (weight_signature, bias_signature, stride, padding, dilation, groups, function, algorithm, precision)
    return convolve(library, options, input, weight, bias, out, residual)


SIGNALS = {
    "input": (3, "3 are needed, (N, C, L), or 2 for one signal"),
    "weight": (3, "3 are needed, (M, C / groups, K)"),
    "out": (3, "3 are needed, (N, M, OL)"),
    "residual": (3, "3 are needed, (N, M, OL)"),
}
"""The rank of each operand of conv1d, and what the message says about any other rank."""


def conv1d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: int | tuple[int] = 1,
    padding: int | str | tuple[int] | tuple[int, int] = 0,
    dilation: int | tuple[int] = 1,
    groups: int = 1,
    *,
    relu: bool = False,
    activation: Activated = None,
    residual: Any = None,
    algorithm: str = "auto",
    precision: str = FP32,
    out: Any = None,
) -> Any:
    """The convolution of signals (N, C, L) on a GPU, of tensors in float32 or half precision.

    It is `conv2d` of images of one row, (N, C, 1, L), in the same memory: nothing is copied. Arguments, errors and what
    follows a first call are those of conv2d, whose messages show the shapes of these images. The first seven arguments
    have the order and meaning of torch.nn.functional.conv1d. `prepare` takes a weight (M, C / groups, 1, K).

    input       (N, C, L), or (C, L) for one signal: a torch CUDA tensor or a CuPy array. Tensors in float32 are
                contiguous. Those in float16 or bfloat16 have the channels of a position together in memory, as
                x.mT.contiguous().mT has. So may those in float32 with precision="tf32"
    weight      (M, C / groups, K)
    bias        (M,), added to every output of its filter; None for no bias
    stride      elements of the padded input from one output to the next
    padding     zeros on each side: a number, (left, right), "valid" (none) or "same" (the output has the input's
                length, with stride 1; an odd zero is on the right). A causal convolution has ((K - 1) * dilation, 0)
    dilation    elements of the padded input from one filter position to the next
    groups      equal parts of the channels, as in conv2d
    residual    (N, M, OL), added to the output before the activation; None for no residual
    out         (N, M, OL) to write to, contiguous or a slice of the channels of a contiguous array; None for a new one

    relu, activation, algorithm and precision are those of conv2d. Returns (N, M, OL), where
    OL = (L + left + right - dilation*(K - 1) - 1) // stride + 1; without N where the input has none.
    """
    library = library_of(input)
    batched = input.ndim != 2
    names = {"input": input, "weight": weight, "residual": residual, "out": out}
    rows = {name: _as_row(library, name, array, batched or name == "weight") for name, array in names.items()}
    geometry = (in_a_row("stride", stride, 1), in_a_row("padding", padding, 0), in_a_row("dilation", dilation, 1))
    output = conv2d(
        rows["input"], rows["weight"], bias, *geometry, groups, relu=relu, activation=activation,
        residual=rows["residual"], algorithm=algorithm, precision=precision, out=rows["out"],
    )  # fmt: skip
    return output.squeeze(-2) if out is None else out


def _as_row(library: TorchArrays | CupyArrays, name: str, array: Any, batched: bool) -> Any:
    """An operand of conv1d as images of one row; conv2d says what is wrong with what is no array of the library."""
    if array is None or not library.owns(array):
        return array
    rank, needed = SIGNALS[name]
    try:
        if array.ndim == rank - (not batched):
            return library.as_row(array)
        shape = tuple(array.shape)
    except Exception:
        library.check_plain(name, array)  # such as a nested tensor, which has no shape
        raise
    raise UnsupportedProblem(f"{name} has {len(shape)} dimensions {shape}: {needed}")
