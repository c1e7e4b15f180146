"""A call that is ready: operands checked, kernels loaded, and only addresses and the stream still to be filled in."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

from cuconv import select
from cuconv.arrays import CupyArrays, TorchArrays
from cuconv.device import import_cupy
from cuconv.geometry import Geometry
from cuconv.jit import LaunchSequence
from cuconv.problem import FLOAT_BYTES, ConvProblem, UnsupportedProblem

MAX_READY_CALLS = 4096  # of a thread, and of a prepared convolution

# The rank of each operand, and what the message says about any other rank.
RANKS = {
    "input": (4, "4 are needed, NCHW, or 3 for one image"),
    "weight": (4, "4 are needed, (M, C / groups, KH, KW)"),
    "bias": (1, "1 is needed, (M,)"),
    "out": (4, "4 are needed, NCHW"),
    "residual": (4, "4 are needed, NCHW"),
}


@dataclass(frozen=True, slots=True)
class Target:
    """Where a call writes: a tensor of its own, or a slice of a larger tensor's channels.

    channels: those of the tensor. sliced: whether the kernels write to a slice. copied: whether they write to temporary
    memory instead, which is then copied to the slice.
    """

    channels: int
    sliced: bool = False
    copied: bool = False


class Call:
    """Everything that the calls of one signature share, checked and loaded, for one thread."""

    def __init__(
        self,
        library: TorchArrays | CupyArrays,
        problem: ConvProblem,
        device: int,
        launches: LaunchSequence,
        workspace_bytes: int,
        target: Target,
    ):
        """device: the GPU's ordinal; it must be the current GPU."""
        self.device = device
        self.current_context = cuda().driver.ctxGetCurrent
        self.context = self.current_context()
        self._pointer = library.pointer
        self.current_stream = library.current_stream(device)
        self._new_output = library.allocator(problem.output_shape, device)
        self._new_workspace = None
        if workspace_bytes:
            self._new_workspace = library.allocator((-(-workspace_bytes // FLOAT_BYTES),), device)
        self._enqueue = launches.enqueue
        planes = (problem.n - 1) * target.channels + problem.m  # from the output's first to its last
        self._output_bytes = FLOAT_BYTES * planes * problem.out_pixels
        self._copy = library.copy if target.copied else None
        shapes: dict[str, tuple[int, ...]] = {
            "input": problem.input_shape,
            "weight": problem.weight_shape,
            "bias": (problem.m,),
            "residual": problem.output_shape,
        }
        self._read_bytes = [(name, FLOAT_BYTES * prod(shape)) for name, shape in shapes.items()]

    def __call__(self, input: Any, weight: Any, bias: Any, out: Any, residual: Any, *prepared: int) -> Any:
        """Allocate, launch and return the output; the call's context must be current.

        prepared: the addresses of packed weights and of flags, where the launches use them.
        """
        pointer, workspace, workspace_at = self._pointer, None, 0
        output = self._new_output() if out is None or self._copy else out
        input_at, weight_at, output_at = pointer(input), pointer(weight), pointer(output)
        bias_at = 0 if bias is None else pointer(bias)
        residual_at = 0 if residual is None else pointer(residual)
        if not (input_at and weight_at and output_at):
            raise UnsupportedProblem("an operand has the address 0: its memory was freed")
        if out is not None:
            self._check_apart(pointer(out), input_at, weight_at, bias_at, residual_at)
        if self._new_workspace is not None:
            workspace = self._new_workspace()  # once launched it may be freed: the allocator reuses it in stream order
            workspace_at = pointer(workspace)
        stream = self.current_stream()
        self._enqueue(stream, input_at, weight_at, bias_at, output_at, workspace_at, residual_at, *prepared)
        if self._copy is not None:
            self._copy(output, out)
            return out
        return output

    def _check_apart(self, output_at: int, *read_at: int) -> None:
        """Raise UnsupportedProblem if the output overlaps an operand; one at address 0 does not exist."""
        end = output_at + self._output_bytes
        for (name, size), start in zip(self._read_bytes, read_at, strict=True):
            if start < end and output_at < start + size:
                raise UnsupportedProblem(f"out overlaps {name} in memory: give it memory of its own")


def keep(ready_calls: dict[Hashable, Any], key: Hashable, call: Call) -> None:
    """Keep a ready call; beyond MAX_READY_CALLS the oldest is dropped."""
    if len(ready_calls) >= MAX_READY_CALLS:
        del ready_calls[next(iter(ready_calls))]
    ready_calls[key] = call


def checked(
    library: TorchArrays | CupyArrays, operands: dict[str, Any], geometry: Geometry, precision: str
) -> tuple[ConvProblem, int]:
    """The problem of operands, which are named by `named`, and the ordinal of their GPU.

    Raises TypeError for an operand of another library, and UnsupportedProblem for what cannot be computed.
    """
    check_operands(library, operands)
    input, weight = operands["input"], operands["weight"]
    problem = geometry.problem(tuple(map(int, input.shape)), tuple(map(int, weight.shape)), precision)
    _check_together(library, operands, problem, library.device(input))
    return problem, library.device(input)


def named(input: Any, weight: Any, bias: Any, out: Any, residual: Any) -> dict[str, Any]:
    """The operands by name, without a bias, an output or a residual that is None."""
    operands = {"input": input, "weight": weight, "bias": bias, "out": out, "residual": residual}
    return {name: array for name, array in operands.items() if array is not None or name in ("input", "weight")}


def check_operands(library: TorchArrays | CupyArrays, operands: dict[str, Any]) -> None:
    """Check each operand by itself: its library, rank, and what the library checks."""
    for name, array in operands.items():
        _check_operand(library, name, array)


def _check_operand(library: Any, name: str, array: Any) -> None:
    if not library.owns(array):
        raise TypeError(
            f"{name} is a {type(array).__module__}.{type(array).__qualname__}, input a {library.kind}: use one library"
        )
    library.check_plain(name, array)
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


def target_of(
    library: TorchArrays | CupyArrays, operands: dict[str, Any], problem: ConvProblem, plan: select.LaunchPlan
) -> Target:
    """Where a call of a plan writes, by the layout of `out`.

    Raises UnsupportedProblem where that is neither contiguous nor a slice of channels.
    """
    out, plane = operands.get("out"), problem.out_pixels
    if out is None:
        return Target(problem.m)
    strides = library.strides(out)
    steps = zip(problem.output_shape[1:], strides[1:], (plane, problem.out_w, 1), strict=True)
    image = strides[0] if problem.n > 1 else problem.m * plane
    if any(size > 1 and stride != step for size, stride, step in steps) or image < problem.m * plane or image % plane:
        raise UnsupportedProblem(
            f"out is neither contiguous nor a slice of the channels of a contiguous array (strides {strides}): "
            "leave it out, or make it so"
        )
    if image == problem.m * plane:
        return Target(problem.m)
    direct = select.writes_slices(plan, "residual" in operands)
    return Target(image // plane, sliced=direct, copied=not direct)


@cache
def cuda() -> Any:
    """The module cupy.cuda, imported by the first call that needs a GPU."""
    return import_cupy().cuda


@contextmanager
def made_current(device: int) -> Iterator[None]:
    """Make a GPU current for this thread, with a context, until the block ends.

    cupy.cuda.Device is not enough: a new thread has GPU 0 as its current GPU but no context of it, and Device(0) does
    not create one.
    """
    runtime = cuda().runtime
    before = runtime.getDevice()
    runtime.setDevice(device)
    try:
        yield
    finally:
        runtime.setDevice(before)
