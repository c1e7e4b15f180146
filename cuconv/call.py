"""Calls that are ready: operands checked, kernels loaded, and only addresses and the stream still to be filled in.

The first call of a signature checks its operands, plans, and loads the kernels. The result is kept under a key that
holds everything it depends on: shapes, dtypes, devices, alignment and options. Every later call with the same key costs
the host a few microseconds besides the allocation and the launches.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

from cuconv import leaving, select
from cuconv.algorithms import ALGORITHMS
from cuconv.algorithms.base import CallOptions
from cuconv.arrays import CupyArrays, TorchArrays
from cuconv.device import device_spec
from cuconv.driver import capture_of, context_reader, made_current
from cuconv.flags import SLOT_BYTES, flags_of
from cuconv.geometry import Geometry
from cuconv.jit import Address, Launch, LaunchSequence
from cuconv.problem import FLOAT_BYTES, ConvProblem, UnsupportedProblem

MAX_READY_CALLS = 4096  # of a thread
ALIGNMENT = 16  # bytes; some kernels have a faster variant for operands that all start at a multiple of it
GRAPH_ALIGNMENT = 256  # bytes, of each part of the temporary memory in a CUDA graph

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


@dataclass(frozen=True, slots=True)
class Packing:
    """How a call wants constant weights to be packed, and the launch that packs them."""

    key: Hashable  # equal for calls that share packed weights
    size: int  # in bytes
    launches: LaunchSequence


class Layer(Protocol):
    """Constant weights, as `Call` reads them: what `prepare` returns."""

    options: tuple[Any, ...]
    kept: Any

    def packed(self, packing: Packing, capture: int) -> Any:
        """The packed weights; None where a capture is under way and they are not packed."""

    def plain(self, input: Any, residual: Any, out: Any) -> Any:
        """The same result by `conv2d`, which packs the weights in the call."""


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
        packing: Packing | None = None,
    ):
        """device: the GPU's ordinal; it must be the current GPU. packing: where the launches read packed weights."""
        self.device = device
        self.current_context = context_reader()
        self.context = self.current_context()
        self._library = library
        self._pointer = library.pointer
        self._current_stream = library.current_stream(device)
        self._new_output = library.allocator(problem.output_shape, device)
        self._output_shape = problem.output_shape
        self._new_workspace = None
        self._workspace_bytes = workspace_bytes
        if workspace_bytes:
            self._new_workspace = library.allocator((-(-workspace_bytes // FLOAT_BYTES),), device)
        self._enqueue = launches.enqueue
        planes = (problem.n - 1) * target.channels + problem.m  # from the output's first to its last
        self._output_bytes = FLOAT_BYTES * planes * problem.out_pixels
        self._copy = library.copy if target.copied else None
        self._packing = packing
        self._flags = None if packing is None else flags_of(library, device)
        temporary = packing is not None or workspace_bytes > 0 or target.copied
        # Whether a call asks if it is captured.
        self._asks = packing is not None or (temporary and not library.graphs_own_memory)
        shapes: dict[str, tuple[int, ...]] = {
            "input": problem.input_shape,
            "weight": problem.weight_shape,
            "bias": (problem.m,),
            "residual": problem.output_shape,
        }
        self._read_bytes = [(name, FLOAT_BYTES * prod(shape)) for name, shape in shapes.items()]

    def __call__(self, input: Any, weight: Any, bias: Any, out: Any, residual: Any, layer: Layer | None) -> Any:
        """Allocate, launch and return the output; the call's context must be current.

        layer: whose constant weights these are; None for weights that may change.
        """
        pointer, copy, stream = self._pointer, self._copy, self._current_stream()
        capture = capture_of(stream) if self._asks else 0
        packed = None
        if self._packing is not None and layer is not None:
            packed = layer.packed(self._packing, capture)
            if packed is None:
                return layer.plain(input, residual, out)
        in_graph = capture and not self._library.graphs_own_memory
        output = out
        if out is None or (copy and not in_graph):
            output = self._new_output()
        input_at, weight_at, output_at = pointer(input), pointer(weight), pointer(output)
        bias_at = 0 if bias is None else pointer(bias)
        residual_at = 0 if residual is None else pointer(residual)
        if not (input_at and weight_at and output_at):
            raise UnsupportedProblem("an operand has the address 0: its memory was freed")
        if out is not None:
            self._check_apart(pointer(out), input_at, weight_at, bias_at, residual_at)
        if in_graph:
            packed_at = 0 if packed is None else packed.address
            self._enqueue_in_graph(stream, input_at, weight_at, bias_at, output, residual_at, packed_at)
            return output
        workspace, workspace_at = None, 0
        if self._new_workspace is not None:
            workspace = self._new_workspace()  # once launched it may be freed: the allocator reuses it in stream order
            workspace_at = pointer(workspace)
        if packed is None:
            self._enqueue(stream, input_at, weight_at, bias_at, output_at, workspace_at, residual_at)
        else:
            flags_at = self._flags.address(stream, capture)  # type: ignore[union-attr]
            self._enqueue(
                stream, input_at, weight_at, bias_at, output_at, workspace_at, residual_at, packed.address, flags_at
            )
            if stream not in packed.kept.known:
                packed.kept.read_by(stream, capture)
        if layer is not None and stream not in layer.kept.known:
            layer.kept.read_by(stream, capture)
        if copy is not None:
            copy(output, out)
            return out
        return output

    def _enqueue_in_graph(
        self, stream: int, input_at: int, weight_at: int, bias_at: int, output: Any, residual_at: int, packed_at: int
    ) -> None:
        """Launch with temporary memory that belongs to the CUDA graph into which the stream is captured."""
        library: Any = self._library
        flags = SLOT_BYTES if self._packing is not None else 0
        workspace = -(-self._workspace_bytes // GRAPH_ALIGNMENT) * GRAPH_ALIGNMENT
        copied = self._output_bytes if self._copy is not None else 0
        with library.graph_memory(max(1, flags + workspace + copied), flags, stream) as start:
            output_at = start + flags + workspace if copied else self._pointer(output)
            workspace_at = start + flags if workspace else 0
            self._enqueue(
                stream, input_at, weight_at, bias_at, output_at, workspace_at, residual_at, packed_at, flags and start
            )
            if self._copy is not None:
                self._copy(library.array_at(output_at, self._output_shape, self.device), output)

    def _check_apart(self, output_at: int, *read_at: int) -> None:
        """Raise UnsupportedProblem if the output overlaps an operand; one at address 0 does not exist."""
        end = output_at + self._output_bytes
        for (name, size), start in zip(self._read_bytes, read_at, strict=True):
            if start < end and output_at < start + size:
                raise UnsupportedProblem(f"out overlaps {name} in memory: give it memory of its own")


class _Thread(threading.local):
    """The ready calls of a thread. Threads do not share them, because a call writes to memory that it owns."""

    def __init__(self) -> None:
        self.ready_calls: dict[Hashable, Call] = {}
        if threading.current_thread().daemon:
            leaving.watch()


_thread = _Thread()


def convolve(
    library: TorchArrays | CupyArrays,
    options: Hashable,
    input: Any,
    weight: Any,
    bias: Any,
    out: Any,
    residual: Any,
    layer: Layer | None = None,
) -> Any:
    """The convolution of operands by the ready call for them, which is made if there is none.

    options: everything else that decides what is launched, and that `_made` reads where there is no layer. layer: whose
    constant weights these are.
    """
    try:
        signature, pointer = library.signature, library.pointer
        addresses = pointer(input) | pointer(weight)
        out_signature = residual_signature = None
        if out is not None:
            addresses |= pointer(out)
            out_signature = library.output_signature(out)
        if residual is not None:
            addresses |= pointer(residual)
            residual_signature = signature(residual)
        aligned = addresses % ALIGNMENT == 0  # a new output is always aligned
        key = (options, signature(input), out_signature, residual_signature, aligned)
        call = _thread.ready_calls.get(key)
    except Exception:
        names: Any = options if layer is None else layer.options
        refuse(library, named(input, weight, bias, out, residual), *names[-2:])
        raise
    if call is None:
        if len(input.shape) == 3:
            batch_out = None if out is None else out[None]
            batch_residual = None if residual is None else residual[None]
            batch = convolve(library, options, input[None], weight, bias, batch_out, batch_residual, layer)
            return batch[0] if out is None else out
        operands = named(input, weight, bias, out, residual)
        call = _made(library, operands, aligned, options if layer is None else layer.options, layer is not None)
        _keep(_thread.ready_calls, key, call)
    if leaving.begun:
        leaving.stop_daemons()
    if call.current_context() == call.context:
        return call(input, weight, bias, out, residual, layer)
    with made_current(call.device):
        return call(input, weight, bias, out, residual, layer)


def refuse(library: TorchArrays | CupyArrays, operands: dict[str, Any], algorithm: Any, precision: Any) -> None:
    """Raise what is wrong with operands or names of which no key can be made."""
    check_operands(library, operands)
    select.check_options(algorithm, precision)


def _made(
    library: TorchArrays | CupyArrays, operands: dict[str, Any], aligned: bool, options: Any, constant: bool
) -> Call:
    """The ready call for operands and options: checks them, plans, and loads the kernels.

    options: the signatures of weight and bias, stride, padding, dilation, groups, relu, algorithm, precision.
    constant: whether weight and bias are those of a layer.
    """
    _, _, stride, padding, dilation, groups, relu, algorithm, precision = options
    problem, device = checked(library, operands, Geometry(stride, padding, dilation, groups), precision)
    spec = device_spec(device)
    plan = select.plan(problem, spec, algorithm, prepared=constant, residual="residual" in operands)
    target = target_of(library, operands, problem, plan)
    output_channels = target.channels if target.sliced else None
    overlap = spec.has_dependent_launch
    wanted = CallOptions(aligned, relu, "residual" in operands, output_channels, constant, overlap)
    launches = select.launches_of(plan, problem, wanted)
    algorithm_of_plan = ALGORITHMS[plan.algorithm]
    once, size, workspace_bytes = None, 0, plan.workspace_bytes
    packing = algorithm_of_plan.packing(problem, plan.config) if constant else None
    if packing is not None:
        once = algorithm_of_plan.packing_launch(problem, plan.config, wanted)
        size = packing.workspace_bytes(problem)
        workspace_bytes = workspace_beside(launches, workspace_bytes, size)
    with made_current(device):
        sequence = LaunchSequence(launches, spec.arch, device)
        how = None
        if once is not None:
            how = Packing((plan.algorithm, packing), size, LaunchSequence([once], spec.arch, device))
        return Call(library, problem, device, sequence, workspace_bytes, target, how)


def workspace_beside(launches: tuple[Launch, ...], workspace_bytes: int, packed_bytes: int) -> int:
    """The workspace of launches that find packed weights elsewhere; all of it where a part has a fixed place in it."""
    arguments = [argument for launch in launches for argument in launch.arguments]
    fixed = any(isinstance(argument, Address) and argument.offset for argument in arguments)
    return workspace_bytes if fixed else workspace_bytes - packed_bytes


def _keep(ready_calls: dict[Hashable, Any], key: Hashable, call: Call) -> None:
    """Keep a ready call; beyond MAX_READY_CALLS the oldest is dropped."""
    if len(ready_calls) >= MAX_READY_CALLS:
        with suppress(RuntimeError):  # a call of a signal handler was first
            ready_calls.pop(next(iter(ready_calls)), None)
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
        _check_operand(library, name, array, contiguous=name != "out")


def check_frozen(library: TorchArrays | CupyArrays, weight: Any, bias: Any) -> int:
    """Check weight and bias by themselves and together, in any layout; returns the ordinal of their GPU."""
    _check_operand(library, "weight", weight, contiguous=False)
    if bias is not None:
        _check_operand(library, "bias", bias, contiguous=False)
        _check_bias(bias, int(weight.shape[0]))
        if library.device(bias) != library.device(weight):
            raise UnsupportedProblem(
                f"bias is on GPU {library.device(bias)}, weight on GPU {library.device(weight)}: use one device"
            )
    return library.device(weight)


def _check_operand(library: Any, name: str, array: Any, contiguous: bool) -> None:
    """Check an operand by itself. contiguous: whether it must be."""
    if not library.owns(array):
        beside = "weight" if name == "bias" and not contiguous else "input"
        raise TypeError(
            f"{name} is a {type(array).__module__}.{type(array).__qualname__}, {beside} a {library.kind}: "
            "use one library"
        )
    library.check_plain(name, array)
    rank, needed = RANKS[name]
    if len(array.shape) != rank:
        raise UnsupportedProblem(f"{name} has {len(array.shape)} dimensions {tuple(array.shape)}: {needed}")
    library.check(name, array, contiguous)


def _check_bias(bias: Any, filters: int) -> None:
    if tuple(bias.shape) != (filters,):
        raise UnsupportedProblem(
            f"bias has shape {tuple(bias.shape)}: it must be {(filters,)}, a value for each filter"
        )


def _check_together(library: Any, operands: dict[str, Any], problem: ConvProblem, device: int) -> None:
    """Check that all operands are on one GPU and that bias and output have the problem's shapes."""
    for name, array in operands.items():
        if library.device(array) != device:
            raise UnsupportedProblem(f"{name} is on GPU {library.device(array)}, input on GPU {device}: use one device")
    if "bias" in operands:
        _check_bias(operands["bias"], problem.m)
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
