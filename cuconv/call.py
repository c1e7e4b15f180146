"""A call that is ready: operands checked, kernels loaded, and only addresses and the stream still to be filled in."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple, Protocol

from cuconv.core.activation import Activation
from cuconv.core.problem import FLOAT_BYTES, FP32, ConvProblem, UnsupportedProblem
from cuconv.operands import Target
from cuconv.runtime.arrays import CupyArrays, TorchArrays
from cuconv.runtime.driver import capture_of, context_reader
from cuconv.runtime.flags import SLOT_BYTES, flags_of
from cuconv.runtime.launch_sequence import LaunchSequence

GRAPH_ALIGNMENT = 256  # bytes, of each part of the temporary memory in a CUDA graph


class Options(NamedTuple):
    """The weights, geometry and choices of a call, by which its kernels are chosen and kept."""

    weight: Hashable  # its signature
    bias: Hashable  # its signature, or None
    stride: Any
    padding: Any
    dilation: Any
    groups: int
    activation: Activation
    algorithm: str
    precision: str


@dataclass(frozen=True, slots=True)
class Packing:
    """How a call wants constant weights to be packed, and the launch that packs them."""

    key: Hashable  # equal for calls that share packed weights
    size: int  # in bytes
    launches: LaunchSequence


class Layer(Protocol):
    """Constant weights, as `Call` reads them: what `prepare` returns."""

    options: Options
    lifetime: Any

    def packed(self, packing: Packing, capture: int) -> Any:
        """The packed weights; None where a capture is under way and they are not packed."""

    def plain(self, input: Any, residual: Any, out: Any) -> Any:
        """The output by `conv2d`, which packs the weights in the call."""


class NotReady(UnsupportedProblem):
    """The kernels of a call with algorithm="ready" are being compiled."""


class PendingCall:
    """Takes the place of a call whose kernels are being compiled. Calling it raises NotReady."""

    context, is_stale, is_final = None, False, False
    error: Exception | None = None

    @staticmethod
    def current_context() -> None:
        """No context, since nothing is launched."""

    def __call__(self, *operands: Any) -> Any:
        if self.error is not None:
            raise NotReady(f"the kernels of this call cannot be compiled: {self.error}") from self.error
        raise NotReady("the kernels of this call are being compiled: compute it in another way meanwhile")


class Call:
    """Everything that the calls of one signature share, checked and loaded, for one thread.

    is_final   whether these are the kernels of the plan; otherwise they stand in for kernels that are being compiled
    is_stale   whether the call is to be made again, as `background.StandIn` tells
    error      why those have not been compiled, or None
    """

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
        self.is_final, self.is_stale = True, False
        self.error: Exception | None = None
        self.device = device
        self.current_context = context_reader()
        self.context = self.current_context()
        self._library = library
        self._pointer = library.pointer
        self._current_stream = library.current_stream(device)
        element = problem.precision if problem.is_half else FP32
        self._new_output = library.allocator(problem.output_shape, device, element, problem.is_channels_last)
        self._output_shape = problem.output_shape
        self._new_workspace = None
        self._workspace_bytes = workspace_bytes
        if workspace_bytes:
            self._new_workspace = library.allocator((-(-workspace_bytes // FLOAT_BYTES),), device)
        self._enqueue = launches.enqueue
        # From the output's first element to its last.
        if problem.is_channels_last:
            elements = (problem.n * problem.out_pixels - 1) * target.channels + problem.m
        else:
            elements = ((problem.n - 1) * target.channels + problem.m) * problem.out_pixels
        self._output_bytes = problem.element_bytes * elements
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
        self._read_bytes = [(name, problem.element_bytes * prod(shape)) for name, shape in shapes.items()]

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
            if stream not in packed.lifetime.known:
                packed.lifetime.record_use(stream, capture)
        if layer is not None and stream not in layer.lifetime.known:
            layer.lifetime.record_use(stream, capture)
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
