"""conv2d: checks, then a plan, then its launches.

A call on a shape seen before costs the host some ten microseconds, so nothing that depends on the shape alone is done
twice, and no library is imported or device entered without need.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, lru_cache
from math import prod
from typing import Any

from cuconv import select
from cuconv.algorithms import ALGORITHMS
from cuconv.arrays import library_of
from cuconv.device import DeviceSpec, device_spec
from cuconv.jit import Launcher, Pointers
from cuconv.problem import FLOAT_BYTES, ConvProblem, UnsupportedProblem

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
    out: Any = None,
) -> Any:
    """Convolution of CNN inference: stride 1, float32, contiguous NCHW, on a GPU.

    input   (N, C, H, W), weight (M, C, KH, KW): torch CUDA tensors, or CuPy arrays, of one device
    bias    optional (M,), added to every output of its filter
    padding rows and columns of zeros on each side: a number, (vertical, horizontal), "valid" (none) or
            "same" (odd filters: the output has the input's size)
    relu    whether negative outputs, after the bias, become 0; a NaN stays a NaN
    out     optional (N, M, OH, OW) to write to, apart from the other operands in memory

    Returns (N, M, OH, OW), OH = H + 2*pad - KH + 1, of the same library, enqueued on its current stream;
    after a first call of the same shape it can be captured in a CUDA graph. Bias and ReLU are part of the last
    kernel and cost no pass over the output. Nothing is copied; temporary memory comes from the same library
    (`plan(...)` says how much). Raises before any launch: TypeError for other kinds of array, UnsupportedProblem
    (a ValueError) for what cannot be computed, ValueError for an unknown algorithm.
    """
    library = library_of(input)
    operands = {"input": input, "weight": weight}
    if bias is not None:
        operands["bias"] = bias
    if out is not None:
        operands["out"] = out
    for name, array in operands.items():
        _check_operand(library, name, array)
    device = library.device(input)
    pads = _pads(padding, weight.shape)
    problem, launch_plan = _problem_and_plan(input.shape, weight.shape, pads, device, algorithm)
    _check_together(library, operands, problem, device)

    with _current(device):
        output = library.empty(problem.output_shape, input) if out is None else out
        workspace = None
        if launch_plan.workspace_bytes:
            workspace = library.empty((-(-launch_plan.workspace_bytes // FLOAT_BYTES),), input)
        pointers = Pointers(
            input=library.pointer(input),
            weight=library.pointer(weight),
            output=library.pointer(output),
            bias=0 if bias is None else library.pointer(bias),
            workspace=0 if workspace is None else library.pointer(workspace),
        )
        launcher = _launcher(device, library.stream(device))
        ALGORITHMS[launch_plan.algorithm].launch(problem, launch_plan.config, launcher, pointers, bool(relu))
    return output


def _check_operand(library: Any, name: str, array: Any) -> None:
    if not library.owns(array):
        raise TypeError(
            f"{name} is a {type(array).__module__}.{type(array).__qualname__}, input a {library.kind}: use one library"
        )
    rank, needed = RANKS[name]
    if len(array.shape) != rank:
        raise UnsupportedProblem(f"{name} has {len(array.shape)} dimensions {tuple(array.shape)}: {needed}")
    library.check(name, array)


@lru_cache(maxsize=4096)
def _problem_and_plan(
    input_shape: tuple[int, ...], weight_shape: tuple[int, ...], pads: tuple[int, int], device: int, algorithm: str
) -> tuple[ConvProblem, select.LaunchPlan]:
    problem = _problem(input_shape, weight_shape, pads)
    return problem, plan(problem, device, algorithm)


@lru_cache(maxsize=256)
def _launcher(device: int, stream: int) -> Launcher:
    return Launcher(device_spec(device).arch, device, stream)


def _problem(input_shape: tuple[int, ...], weight_shape: tuple[int, ...], pads: tuple[int, int]) -> ConvProblem:
    n, c, h, w = map(int, input_shape)
    m, weight_c, kh, kw = map(int, weight_shape)
    if weight_c != c:
        raise UnsupportedProblem(
            f"weight has {weight_c} channels, input {c}: they must be equal (groups are not supported)"
        )
    return ConvProblem(n, c, h, w, m, kh, kw, *pads)


def _pads(padding: int | str | tuple[int, int], weight_shape: tuple[int, ...]) -> tuple[int, int]:
    """(vertical, horizontal); whole numbers only, so that what they key in a cache is what was asked for."""
    if type(padding) is int:
        return padding, padding
    if padding == "valid":
        return 0, 0
    if padding == "same":
        kh, kw = weight_shape[2:]
        if kh % 2 == 0 or kw % 2 == 0:
            raise UnsupportedProblem(
                f"padding='same' with a filter of {kh}x{kw}: only odd sizes have equal padding on both sides"
            )
        return kh // 2, kw // 2
    if isinstance(padding, (tuple, list)) and len(padding) == 2 and all(type(pad) is int for pad in padding):
        return padding[0], padding[1]
    raise UnsupportedProblem(f"padding={padding!r}: must be a whole number, a pair of them, 'same' or 'valid'")


def _check_together(library: Any, operands: dict[str, Any], problem: ConvProblem, device: int) -> None:
    """One device for all, a bias for every filter, and an output of the right shape."""
    for name, array in operands.items():
        if library.device(array) != device:
            raise UnsupportedProblem(f"{name} is on GPU {library.device(array)}, input on GPU {device}: use one device")
    if "bias" in operands and tuple(operands["bias"].shape) != (problem.m,):
        shape = tuple(operands["bias"].shape)
        raise UnsupportedProblem(f"bias has shape {shape}: it must be {(problem.m,)}, a value for each filter")
    if "out" in operands:
        if tuple(operands["out"].shape) != problem.output_shape:
            raise UnsupportedProblem(f"out has shape {tuple(operands['out'].shape)}: it must be {problem.output_shape}")
        _check_apart(library, operands)


def _check_apart(library: Any, operands: dict[str, Any]) -> None:
    """The output shares no memory with what is read."""
    start, end = _extent(library, operands["out"])
    for name, array in operands.items():
        other_start, other_end = _extent(library, array)
        if name != "out" and start < other_end and other_start < end:
            raise UnsupportedProblem(f"out overlaps {name} in memory: give it memory of its own")


def _extent(library: Any, array: Any) -> tuple[int, int]:
    start = library.pointer(array)
    return start, start + FLOAT_BYTES * prod(array.shape)


@cache
def _cuda() -> Any:
    """cupy.cuda, imported by the first call that needs a GPU."""
    import cupy

    return cupy.cuda


_NOTHING_TO_DO = nullcontext()


def _current(device: int) -> AbstractContextManager[None]:
    """A context in which this thread can launch on a GPU."""
    cuda = _cuda()
    if cuda.runtime.getDevice() == device and cuda.driver.ctxGetCurrent():
        return _NOTHING_TO_DO
    return _made_current(device)


@contextmanager
def _made_current(device: int) -> Iterator[None]:
    """Not cupy.cuda.Device: a new thread counts GPU 0 as its own but has no context of it, and Device leaves it so."""
    runtime = _cuda().runtime
    before = runtime.getDevice()
    runtime.setDevice(device)
    try:
        yield
    finally:
        runtime.setDevice(before)
