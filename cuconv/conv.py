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
from cuconv.jit import LaunchSequence
from cuconv.problem import FLOAT_BYTES, FP32, ConvProblem, UnsupportedProblem

ALIGNMENT = 16  # bytes; some kernels have a faster variant for operands that all start at a multiple of it
MAX_READY_CALLS = 4096  # prepared calls that a thread keeps

# The rank of each operand, and what the message says about any other rank.
RANKS = {
    "input": (4, "4 are needed, NCHW"),
    "weight": (4, "4 are needed, (M, C, KH, KW)"),
    "bias": (1, "1 is needed, (M,)"),
    "out": (4, "4 are needed, NCHW"),
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
    *,
    padding: int | str | tuple[int, int] = 0,
    relu: bool = False,
    algorithm: str = "auto",
    precision: str = FP32,
    out: Any = None,
) -> Any:
    """The convolution of CNN inference on a GPU: stride 1, float32, contiguous NCHW.

    input      (N, C, H, W): a torch CUDA tensor or a CuPy array; the other operands are of the same library and GPU
    weight     (M, C, KH, KW)
    bias       (M,), added to every output of its filter; None for no bias
    padding    rows and columns of zeros on each side: a number, (vertical, horizontal), "valid" (none) or "same" (odd
               filters only: the output has the input's size)
    relu       whether outputs that are negative after the bias become 0; a NaN stays a NaN
    algorithm  "auto" for the fastest by prediction, or a name of `algorithms()`
    precision  "fp32": the accuracy of a plain FP32 sum; "tf32": input and weight may be rounded to TF32 (11 bits, a
               relative error of about 3e-4), which is faster for large problems
    out        (N, M, OH, OW) to write to, which shares no memory with the other operands; None for a new array

    Returns (N, M, OH, OW), where OH = H + 2*pad - KH + 1 and OW likewise, enqueued on the current stream of the
    operands' library. Bias and ReLU are part of the last kernel. Operands are never copied; temporary memory, of
    `plan(...).workspace_bytes`, comes from the same library. After a first call of the same shape a call can be
    captured in a CUDA graph.

    Raises before any launch: TypeError for other kinds of array, UnsupportedProblem (a ValueError) for a problem that
    cannot be computed, ValueError for an unknown algorithm, ImportError where CuPy is not installed.
    """
    library = library_of(input)
    if type(padding) is not int and not isinstance(padding, str):
        padding = _pair(padding)
    relu = bool(relu)
    try:
        signature = library.signature
        addresses = library.pointer(input) | library.pointer(weight) | (0 if out is None else library.pointer(out))
        aligned = addresses % ALIGNMENT == 0  # a new output is always aligned
        bias_signature = None if bias is None else signature(bias)
        out_signature = None if out is None else signature(out)
        operands = (signature(input), signature(weight), bias_signature, out_signature)
        key = (*operands, aligned, padding, relu, algorithm, precision)
    except (AttributeError, TypeError):
        _check_operands(library, _named(input, weight, bias, out))  # raises if one of them is no array of this library
        raise
    call = _thread.ready_calls.get(key)
    if call is None:
        call = _prepare(library, _named(input, weight, bias, out), aligned, padding, relu, algorithm, precision)
        _keep(key, call)
    if call.current_context() == call.context:
        return call(input, weight, bias, out)
    with _made_current(call.device):
        return call(input, weight, bias, out)


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
        shapes = {"input": problem.input_shape, "weight": problem.weight_shape, "bias": (problem.m,)}
        self._read_bytes = [(name, FLOAT_BYTES * prod(shape)) for name, shape in shapes.items()]

    def __call__(self, input: Any, weight: Any, bias: Any, out: Any) -> Any:
        """Allocate, launch and return the output; the call's context must be current."""
        pointer, workspace, workspace_at = self._pointer, None, 0
        output = self._new_output() if out is None else out
        input_at, weight_at, output_at = pointer(input), pointer(weight), pointer(output)
        bias_at = 0 if bias is None else pointer(bias)
        if out is not None:
            self._check_apart(output_at, input_at, weight_at, bias_at)
        if self._new_workspace is not None:
            workspace = self._new_workspace()  # once launched it may be freed: the allocator reuses it in stream order
            workspace_at = pointer(workspace)
        self._enqueue(self._current_stream(), input_at, weight_at, bias_at, output_at, workspace_at)
        return output

    def _check_apart(self, output_at: int, *read_at: int) -> None:
        """Raise UnsupportedProblem if the output overlaps an operand; a bias at address 0 does not exist."""
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
    padding: int | str | tuple[int, int],
    relu: bool,
    algorithm: str,
    precision: str,
) -> _Call:
    """The prepared call for operands and options: checks them, plans, and loads the kernels."""
    _check_operands(library, operands)
    input, weight = operands["input"], operands["weight"]
    device = library.device(input)
    problem = _problem(input.shape, weight.shape, _pads(padding, weight.shape), precision)
    launch_plan = plan(problem, device, algorithm)
    _check_together(library, operands, problem, device)
    launches = ALGORITHMS[launch_plan.algorithm].launches(problem, launch_plan.config, aligned, relu)
    with _made_current(device):
        sequence = LaunchSequence(launches, device_spec(device).arch, device)
        return _Call(library, problem, device, sequence, launch_plan.workspace_bytes)


def _named(input: Any, weight: Any, bias: Any, out: Any) -> dict[str, Any]:
    """The operands by name, without a bias or an output that is None."""
    operands = {"input": input, "weight": weight, "bias": bias, "out": out}
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


def _problem(
    input_shape: tuple[int, ...], weight_shape: tuple[int, ...], pads: tuple[int, int], precision: str
) -> ConvProblem:
    n, c, h, w = map(int, input_shape)
    m, weight_c, kh, kw = map(int, weight_shape)
    if weight_c != c:
        raise UnsupportedProblem(
            f"weight has {weight_c} channels, input {c}: they must be equal (groups are not supported)"
        )
    return ConvProblem(n, c, h, w, m, kh, kw, *pads, precision)


def _pair(padding: Any) -> tuple[int, int]:
    """A padding as (vertical, horizontal).

    Only whole numbers are accepted. 1.0 and True equal 1 as keys of prepared calls, so whether they were accepted would
    depend on earlier calls.
    """
    if isinstance(padding, (tuple, list)) and len(padding) == 2 and type(padding[0]) is type(padding[1]) is int:
        return padding[0], padding[1]
    raise _bad_padding(padding)


def _pads(padding: int | str | tuple[int, int], weight_shape: tuple[int, ...]) -> tuple[int, int]:
    """The padding as (vertical, horizontal) rows and columns of zeros on each side."""
    if isinstance(padding, int):
        return padding, padding
    if isinstance(padding, tuple):
        return padding
    if padding == "valid":
        return 0, 0
    if padding != "same":
        raise _bad_padding(padding)
    kh, kw = weight_shape[2:]
    if kh % 2 == 0 or kw % 2 == 0:
        raise UnsupportedProblem(
            f"padding='same' with a filter of {kh}x{kw}: only odd sizes have equal padding on both sides"
        )
    return kh // 2, kw // 2


def _bad_padding(padding: Any) -> UnsupportedProblem:
    return UnsupportedProblem(f"padding={padding!r}: must be a whole number, a pair of them, 'same' or 'valid'")


def _check_together(library: Any, operands: dict[str, Any], problem: ConvProblem, device: int) -> None:
    """Check that all operands are on one GPU and that bias and output have the problem's shapes."""
    for name, array in operands.items():
        if library.device(array) != device:
            raise UnsupportedProblem(f"{name} is on GPU {library.device(array)}, input on GPU {device}: use one device")
    if "bias" in operands and tuple(operands["bias"].shape) != (problem.m,):
        shape = tuple(operands["bias"].shape)
        raise UnsupportedProblem(f"bias has shape {shape}: it must be {(problem.m,)}, a value for each filter")
    if "out" in operands and tuple(operands["out"].shape) != problem.output_shape:
        raise UnsupportedProblem(f"out has shape {tuple(operands['out'].shape)}: it must be {problem.output_shape}")


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
