"""conv2d: checks, then a plan, then its launches.

A call like one before costs the host a few microseconds besides the allocation and the launch: everything that
follows from shapes and options is found once, and kept under a key that has all that it follows from.
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
from cuconv.device import DeviceSpec, device_spec
from cuconv.jit import LaunchSequence
from cuconv.problem import FLOAT_BYTES, FP32, ConvProblem, UnsupportedProblem

ALIGNMENT = 16  # bytes: what some kernels make use of where the operands have it
MAX_READY_CALLS = 4096  # of a thread

# The rank of each operand, and what to say of another one.
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
    """What conv2d would launch for a problem: printable, with its `workspace_bytes`; nothing runs.

    device is a DeviceSpec, a GPU's ordinal, or None for the current GPU. Raises as conv2d does.
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
    """Convolution of CNN inference: stride 1, float32, contiguous NCHW, on a GPU.

    input   (N, C, H, W), weight (M, C, KH, KW): torch CUDA tensors, or CuPy arrays, of one device
    bias    optional (M,), added to every output of its filter
    padding rows and columns of zeros on each side: a number, (vertical, horizontal), "valid" (none) or
            "same" (odd filters: the output has the input's size)
    relu    whether negative outputs, after the bias, become 0; a NaN stays a NaN
    precision "fp32": the accuracy of a plain FP32 sum, whatever computes it; "tf32": input and weight may be rounded
            to TF32 (11 bits, a relative error of about 3e-4), which is faster where there is much work
    out     optional (N, M, OH, OW) to write to, apart from the other operands in memory

    Returns (N, M, OH, OW), OH = H + 2*pad - KH + 1, of the same library, enqueued on its current stream;
    after a first call of the same shape it can be captured in a CUDA graph. Bias and ReLU are part of the last
    kernel and cost no pass over the output. Nothing is copied; temporary memory comes from the same library
    (`plan(...)` says how much). Raises before any launch: TypeError for other kinds of array, UnsupportedProblem
    (a ValueError) for what cannot be computed, ValueError for an unknown algorithm.
    """
    library = library_of(input)
    if type(padding) is not int and not isinstance(padding, str):
        padding = _pair(padding)
    relu = bool(relu)
    try:
        signature = library.signature
        addresses = library.pointer(input) | library.pointer(weight) | (0 if out is None else library.pointer(out))
        aligned = addresses % ALIGNMENT == 0  # an output of our own is
        bias_signature = None if bias is None else signature(bias)
        out_signature = None if out is None else signature(out)
        operands = (signature(input), signature(weight), bias_signature, out_signature)
        key = (*operands, aligned, padding, relu, algorithm, precision)
    except (AttributeError, TypeError):
        _check_operands(library, _named(input, weight, bias, out))  # one of them is no array of this library
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
    """What all calls of one key have in common, checked and made ready, for one thread."""

    def __init__(
        self,
        library: TorchArrays | CupyArrays,
        problem: ConvProblem,
        device: int,
        launches: LaunchSequence,
        workspace_bytes: int,
    ):
        """The device must be the current one."""
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
        """In the call's context."""
        pointer, workspace, workspace_at = self._pointer, None, 0
        output = self._new_output() if out is None else out
        input_at, weight_at, output_at = pointer(input), pointer(weight), pointer(output)
        bias_at = 0 if bias is None else pointer(bias)
        if out is not None:
            self._check_apart(output_at, input_at, weight_at, bias_at)
        if self._new_workspace is not None:
            workspace = self._new_workspace()  # held until the launch, then free for what follows on the stream
            workspace_at = pointer(workspace)
        self._enqueue(self._current_stream(), input_at, weight_at, bias_at, output_at, workspace_at)
        return output

    def _check_apart(self, output_at: int, *read_at: int) -> None:
        """The output shares no memory with what is read, a bias at 0 being none."""
        end = output_at + self._output_bytes
        for (name, size), start in zip(self._read_bytes, read_at, strict=True):
            if start < end and output_at < start + size:
                raise UnsupportedProblem(f"out overlaps {name} in memory: give it memory of its own")


class _Thread(threading.local):
    """The calls that a thread has made ready; not shared, because a call writes to memory of its own."""

    def __init__(self) -> None:
        self.ready_calls: dict[Hashable, _Call] = {}


_thread = _Thread()


def _keep(key: Hashable, call: _Call) -> None:
    """Keep a call for the thread; the oldest gives way."""
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
    """Check everything that the key of a call stands for, plan, and load the kernels."""
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
    """The operands that there are, by name."""
    operands = {"input": input, "weight": weight, "bias": bias, "out": out}
    return {name: array for name, array in operands.items() if array is not None or name in ("input", "weight")}


def _check_operands(library: TorchArrays | CupyArrays, operands: dict[str, Any]) -> None:
    """Each by itself."""
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
    """(vertical, horizontal); whole numbers only, so that what they are a key of is what was asked for."""
    if isinstance(padding, (tuple, list)) and len(padding) == 2 and type(padding[0]) is type(padding[1]) is int:
        return padding[0], padding[1]
    raise _bad_padding(padding)


def _pads(padding: int | str | tuple[int, int], weight_shape: tuple[int, ...]) -> tuple[int, int]:
    """(vertical, horizontal)."""
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
    """One device for all, a bias for every filter, and an output of the right shape."""
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
    """cupy.cuda, imported by the first call that needs a GPU."""
    import cupy

    return cupy.cuda


@contextmanager
def _made_current(device: int) -> Iterator[None]:
    """A context in which this thread can launch on a GPU.

    Not cupy.cuda.Device: a new thread counts GPU 0 as its own but has no context of it, and Device leaves it so.
    """
    runtime = _cuda().runtime
    before = runtime.getDevice()
    runtime.setDevice(device)
    try:
        yield
    finally:
        runtime.setDevice(before)
