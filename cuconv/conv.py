"""conv2d and plan: the library's entry points.

The first call of a signature checks its operands, plans, and loads the kernels. The result is kept under a key that
holds everything it depends on: shapes, dtypes, devices, alignment and options. Every later call with the same key costs
the host a few microseconds besides the allocation and the launches.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Any

from cuconv import select
from cuconv.algorithms import ALGORITHMS
from cuconv.arrays import CupyArrays, TorchArrays, library_of
from cuconv.call import Call, check_operands, checked, cuda, keep, made_current, named, target_of
from cuconv.device import DeviceSpec, device_spec
from cuconv.geometry import Geometry, pair
from cuconv.jit import LaunchSequence
from cuconv.problem import FP32, ConvProblem, shown, truth, whole_number

ALIGNMENT = 16  # bytes; some kernels have a faster variant for operands that all start at a multiple of it


def algorithms() -> tuple[str, ...]:
    """The names that conv2d takes as `algorithm`, besides "auto"."""
    return tuple(ALGORITHMS)


def plan(
    problem: ConvProblem,
    device: DeviceSpec | int | None = None,
    algorithm: str = "auto",
    *,
    prepared: bool = False,
) -> select.LaunchPlan:
    """The algorithm and launch configuration that conv2d would use for a problem, without running anything.

    The plan prints as one line and has `workspace_bytes`. device: a DeviceSpec, a GPU's ordinal, or None for the
    current GPU. prepared: what `prepare` would use. Raises UnsupportedProblem and ValueError as conv2d does.
    """
    select.check_options(algorithm, FP32)
    if not isinstance(problem, ConvProblem):
        raise TypeError(f"problem={shown(problem)}: must be a ConvProblem")
    if isinstance(device, bool) or not isinstance(device, (DeviceSpec, int, type(None))):
        raise TypeError(f"device={shown(device)}: must be a DeviceSpec, a GPU's ordinal, or None")
    if device is None:
        device = cuda().runtime.getDevice()
    return select.plan(problem, device_spec(device) if isinstance(device, int) else device, algorithm, prepared)


def conv2d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: int | tuple[int, int] = 1,
    padding: int | str | tuple[int, int] = 0,
    dilation: int | tuple[int, int] = 1,
    groups: int = 1,
    *,
    relu: bool = False,
    residual: Any = None,
    algorithm: str = "auto",
    precision: str = FP32,
    out: Any = None,
) -> Any:
    """The convolution of CNN inference on a GPU, in float32 and contiguous NCHW.

    The first seven arguments have the order and meaning of torch.nn.functional.conv2d. A number stands for both axes,
    a pair is (vertical, horizontal).

    input      (N, C, H, W), or (C, H, W) for one image: a torch CUDA tensor or a CuPy array; the other operands are of
               the same library and GPU
    weight     (M, C / groups, KH, KW)
    bias       (M,), added to every output of its filter; None for no bias
    stride     rows and columns of the padded input from one output pixel to the next
    padding    rows and columns of zeros on each side: a number, a pair, "valid" (none) or "same" (odd filters and
               stride 1 only: the output has the input's size)
    dilation   rows and columns of the padded input from one filter position to the next
    groups     equal parts of the channels; each part of the filters, M / groups, reads one of them
    relu       whether outputs that are negative after bias and residual become 0; a NaN stays a NaN
    residual   (N, M, OH, OW), added to the output before ReLU; None for no residual
    algorithm  "auto" for the fastest by prediction, or a name of `algorithms()`; "batch_invariant" for the fastest of
               which an image's output is bit for bit the same in every batch, where all outputs are finite
    precision  "fp32": the accuracy of a plain FP32 sum; "tf32": input and weight may be rounded to TF32 (11 bits, a
               relative error of about 3e-4), which is faster for large problems
    out        (N, M, OH, OW) to write to, which shares no memory with the other operands: contiguous, or a slice of the
               channels of a contiguous array, such as `buffer[:, 64:128]`; None for a new array

    Returns (N, M, OH, OW), where OH = (H + 2*padding - dilation*(KH - 1) - 1) // stride + 1 and OW likewise, enqueued
    on the current stream of the operands' library; without N where the input has none. Bias, ReLU and, but for some
    algorithms, the residual are part of the last kernel. Operands are never copied; temporary memory, of
    `plan(...).workspace_bytes`, comes from the same library. After a first call of the same shape a call can be
    captured in a CUDA graph.

    Raises before any launch: TypeError for other kinds of array, UnsupportedProblem (a ValueError) for a problem that
    cannot be computed, ValueError for an unknown algorithm, ImportError where CuPy is not installed.
    """
    library = library_of(input)
    if type(stride) is not int:
        stride = pair("stride", stride)
    if type(padding) is not int and not isinstance(padding, str):
        padding = pair("padding", padding)
    if type(dilation) is not int:
        dilation = pair("dilation", dilation)
    if type(groups) is not int:
        groups = whole_number("groups", groups)
    relu = truth("relu", relu)
    try:
        signature = library.signature
        addresses = library.pointer(input) | library.pointer(weight) | (0 if out is None else library.pointer(out))
        bias_signature = None if bias is None else signature(bias)
        out_signature = None if out is None else library.output_signature(out)
        operands: tuple[Hashable, ...] = (signature(input), signature(weight), bias_signature, out_signature)
        if residual is not None:
            addresses |= library.pointer(residual)
            operands = (*operands, signature(residual))
        aligned = addresses % ALIGNMENT == 0  # a new output is always aligned
        key = (*operands, aligned, stride, padding, dilation, groups, relu, algorithm, precision)
        call = _thread.ready_calls.get(key)
    except Exception:
        present = named(input, weight, bias, out, residual)
        check_operands(library, present)  # raises if one of them cannot be used at all
        select.check_options(algorithm, precision)
        raise
    if call is None:
        if len(input.shape) == 3:
            options = (stride, padding, dilation, groups)
            batch_out = None if out is None else out[None]
            batch_residual = None if residual is None else residual[None]
            batch = conv2d(
                input[None], weight, bias, *options, relu=relu, residual=batch_residual, algorithm=algorithm,
                precision=precision, out=batch_out,
            )  # fmt: skip
            return batch[0] if out is None else out
        geometry = Geometry(stride, padding, dilation, groups)
        present = named(input, weight, bias, out, residual)
        call = _prepare(library, present, aligned, geometry, relu, algorithm, precision)
        keep(_thread.ready_calls, key, call)
    if call.current_context() == call.context:
        return call(input, weight, bias, out, residual)
    with made_current(call.device):
        return call(input, weight, bias, out, residual)


class _Thread(threading.local):
    """The ready calls of a thread. Threads do not share them, because a call writes to memory that it owns."""

    def __init__(self) -> None:
        self.ready_calls: dict[Hashable, Call] = {}


_thread = _Thread()


def _prepare(
    library: TorchArrays | CupyArrays,
    operands: dict[str, Any],
    aligned: bool,
    geometry: Geometry,
    relu: bool,
    algorithm: str,
    precision: str,
) -> Call:
    """The ready call for operands and options: checks them, plans, and loads the kernels."""
    problem, device = checked(library, operands, geometry, precision)
    launch_plan, spec = plan(problem, device, algorithm), device_spec(device)
    target = target_of(library, operands, problem, launch_plan)
    launches = select.launches_of(
        launch_plan, problem, aligned, relu, "residual" in operands, spec, target.channels if target.sliced else None
    )
    with made_current(device):
        sequence = LaunchSequence(launches, spec.arch, device)
        return Call(library, problem, device, sequence, launch_plan.workspace_bytes, target)
