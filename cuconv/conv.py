"""conv2d and plan: the library's entry points.

The first call of a signature checks its operands, plans, and loads the kernels. The result is kept under a key that
holds everything it depends on: shapes, dtypes, devices, alignment and options. Every later call with the same key costs
the host a few microseconds besides the allocation and the launches.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from functools import cache
from math import prod
from typing import Any

from cuconv import select
from cuconv.algorithms import ALGORITHMS
from cuconv.arrays import CupyArrays, TorchArrays, library_of
from cuconv.device import DeviceSpec, device_spec, import_cupy
from cuconv.geometry import Geometry, pair
from cuconv.jit import LaunchSequence
from cuconv.problem import FLOAT_BYTES, FP32, ConvProblem, UnsupportedProblem

ALIGNMENT = 16  # bytes; some kernels have a faster variant for operands that all start at a multiple of it
MAX_READY_CALLS = 4096  # prepared calls that a thread keeps

# The rank of each operand, and what the message says about any other rank.
RANKS = {
    "input": (4, "4 are needed, NCHW, or 3 for one image"),
    "weight": (4, "4 are needed, (M, C / groups, KH, KW)"),
    "bias": (1, "1 is needed, (M,)"),
    "out": (4, "4 are needed, NCHW"),
    "residual": (4, "4 are needed, NCHW"),
}


def algorithms() -> tuple[str, ...]:
    """The names that conv2d takes as `algorithm`, besides "auto"."""
    return tuple(ALGORITHMS)


def plan(problem: ConvProblem, device: DeviceSpec | int | None = None, algorithm: str = "auto") -> select.LaunchPlan:
    """The algorithm and launch configuration that conv2d would use for a problem, without running anything.

    The plan prints as one line and has `workspace_bytes`. device: a DeviceSpec, a GPU's ordinal, or None for the
    current GPU. Raises UnsupportedProblem and ValueError as conv2d does.
    """
    if device is None:
        device = _cuda().runtime.getDevice()
    return select.plan(problem, device_spec(device) if isinstance(device, int) else device, algorithm)


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
    algorithm  "auto" for the fastest by prediction, or a name of `algorithms()`
    precision  "fp32": the accuracy of a plain FP32 sum; "tf32": input and weight may be rounded to TF32 (11 bits, a
               relative error of about 3e-4), which is faster for large problems
    out        (N, M, OH, OW) to write to, which shares no memory with the other operands; None for a new array

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
        raise UnsupportedProblem(f"groups={groups!r}: must be a whole number")
    relu = bool(relu)
    try:
        signature = library.signature
        addresses = library.pointer(input) | library.pointer(weight) | (0 if out is None else library.pointer(out))
        bias_signature = None if bias is None else signature(bias)
        out_signature = None if out is None else signature(out)
        operands: tuple[Hashable, ...] = (signature(input), signature(weight), bias_signature, out_signature)
        if residual is not None:
            addresses |= library.pointer(residual)
            operands = (*operands, signature(residual))
        aligned = addresses % ALIGNMENT == 0  # a new output is always aligned
        key = (*operands, aligned, stride, padding, dilation, groups, relu, algorithm, precision)
    except (AttributeError, TypeError):
        _check_operands(
            library, _named(input, weight, bias, out, residual)
        )  # raises if one of them is no array of this library
        raise
    call = _thread.ready_calls.get(key)
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
        named = _named(input, weight, bias, out, residual)
        call = _prepare(library, named, aligned, geometry, relu, algorithm, precision)
        _keep(key, call)
    if call.current_context() == call.context:
        return call(input, weight, bias, out, residual)
    with _made_current(call.device):
        return call(input, weight, bias, out, residual)


class _Call:
    """A prepared call: everything that the calls of one key share, checked and loaded, for one thread."""

    def __init__(
        self,
        library: TorchArrays | CupyArrays,
        problem: ConvProblem,
        device: int,
        launches: LaunchSequence,
        workspace_bytes: int,
    ):
        """Prepare a call; `device`, the GPU's ordinal, must be the current GPU."""
        self.device = device
        self.current_context = _cuda().driver.ctxGetCurrent
        self.context = self.current_context()
        self._pointer = library.pointer
        self._current_stream = library.current_stream(device)
        self._new_output = library.allocator(problem.output_shape, device)
        self._new_workspace = None
        if workspace_bytes:
            self._new_workspace = library.allocator((-(-workspace_bytes // FLOAT_BYTES),), device)
        self._enqueue = launches.enqueue
        self._output_bytes = FLOAT_BYTES * prod(problem.output_shape)
        shapes: dict[str, tuple[int, ...]] = {
            "input": problem.input_shape,
            "weight": problem.weight_shape,
            "bias": (problem.m,),
            "residual": problem.output_shape,
        }
        self._read_bytes = [(name, FLOAT_BYTES * prod(shape)) for name, shape in shapes.items()]

    def __call__(self, input: Any, weight: Any, bias: Any, out: Any, residual: Any) -> Any:
        """Allocate, launch and return the output; the call's context must be current."""
        pointer, workspace, workspace_at = self._pointer, None, 0
        output = self._new_output() if out is None else out
        input_at, weight_at, output_at = pointer(input), pointer(weight), pointer(output)
        bias_at = 0 if bias is None else pointer(bias)
        residual_at = 0 if residual is None else pointer(residual)
        if out is not None:
            self._check_apart(output_at, input_at, weight_at, bias_at, residual_at)
        if self._new_workspace is not None:
            workspace = self._new_workspace()  # once launched it may be freed: the allocator reuses it in stream order
            workspace_at = pointer(workspace)
        stream = self._current_stream()
        self._enqueue(stream, input_at, weight_at, bias_at, output_at, workspace_at, residual_at)
        return output

    def _check_apart(self, output_at: int, *read_at: int) -> None:
        """Raise UnsupportedProblem if the output overlaps an operand; one at address 0 does not exist."""
        end = output_at + self._output_bytes
        for (name, size), start in zip(self._read_bytes, read_at, strict=True):
            if start < end and output_at < start + size:
                raise UnsupportedProblem(f"out overlaps {name} in memory: give it memory of its own")


class _Thread(threading.local):
    """The prepared calls of a thread. Threads do not share them, because a call writes to memory that it owns."""

    def __init__(self) -> None:
        self.ready_calls: dict[Hashable, _Call] = {}


_thread = _Thread()


def _keep(key: Hashable, call: _Call) -> None:
    """Keep a prepared call for this thread; beyond MAX_READY_CALLS the oldest is dropped."""
    ready = _thread.ready_calls
    if len(ready) >= MAX_READY_CALLS:
        del ready[next(iter(ready))]
    ready[key] = call


def _prepare(
    library: TorchArrays | CupyArrays,
    operands: dict[str, Any],
    aligned: bool,
    geometry: Geometry,
    relu: bool,
    algorithm: str,
    precision: str,
) -> _Call:
    """The prepared call for operands and options: checks them, plans, and loads the kernels."""
    _check_operands(library, operands)
    input, weight = operands["input"], operands["weight"]
    device = library.device(input)
    problem = geometry.problem(tuple(map(int, input.shape)), tuple(map(int, weight.shape)), precision)
    launch_plan = plan(problem, device, algorithm)
    _check_together(library, operands, problem, device)
    chosen = ALGORITHMS[launch_plan.algorithm]
    if "residual" in operands:
        launches = chosen.launches_with_residual(problem, launch_plan.config, aligned, relu, device_spec(device))
    else:
        launches = chosen.launches(problem, launch_plan.config, aligned, relu)
    with _made_current(device):
        sequence = LaunchSequence(launches, device_spec(device).arch, device)
        return _Call(library, problem, device, sequence, launch_plan.workspace_bytes)


def _named(input: Any, weight: Any, bias: Any, out: Any, residual: Any) -> dict[str, Any]:
    """The operands by name, without a bias, an output or a residual that is None."""
    operands = {"input": input, "weight": weight, "bias": bias, "out": out, "residual": residual}
    return {name: array for name, array in operands.items() if array is not None or name in ("input", "weight")}


def _check_operands(library: TorchArrays | CupyArrays, operands: dict[str, Any]) -> None:
    """Check each operand by itself: its library, rank, and what the library checks."""
    for name, array in operands.items():
        _check_operand(library, name, array)


def _check_operand(library: Any, name: str, array: Any) -> None:
    if not library.owns(array):
        raise TypeError(
            f"{name} is a {type(array).__module__}.{type(array).__qualname__}, input a {library.kind}: use one library"
        )
    rank, needed = RANKS[name]
    if len(array.shape) != rank:
        raise UnsupportedProblem(f"{name} has {len(array.shape)} dimensions {tuple(array.shape)}: {needed}")
    library.check(name, array)


def _check_together(library: Any, operands: dict[str, Any], problem: ConvProblem, device: int) -> None:
    """Check that all operands are on one GPU and that bias and output have the problem's shapes."""
    for name, array in operands.items():
        if library.device(array) != device:
            raise UnsupportedProblem(f"{name} is on GPU {library.device(array)}, input on GPU {device}: use one device")
    if "bias" in operands and tuple(operands["bias"].shape) != (problem.m,):
        shape = tuple(operands["bias"].shape)
        raise UnsupportedProblem(f"bias has shape {shape}: it must be {(problem.m,)}, a value for each filter")
    for name in ("out", "residual"):
        if name in operands and tuple(operands[name].shape) != problem.output_shape:
            shape = tuple(operands[name].shape)
            raise UnsupportedProblem(f"{name} has shape {shape}: it must be {problem.output_shape}")


@cache
def _cuda() -> Any:
    """The module cupy.cuda, imported by the first call that needs a GPU."""
    return import_cupy().cuda


@contextmanager
def _made_current(device: int) -> Iterator[None]:
    """Make a GPU current for this thread, with a context, until the block ends.

    cupy.cuda.Device is not enough: a new thread has GPU 0 as its current GPU but no context of it, and Device(0) does
    not create one.
    """
    runtime = _cuda().runtime
    before = runtime.getDevice()
    runtime.setDevice(device)
    try:
        yield
    finally:
        runtime.setDevice(before)
