"""prepare: a convolution whose weights are constant, and are packed once instead of at every call."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Any

from cuconv import select
from cuconv.algorithms import ALGORITHMS
from cuconv.algorithms.common import weight_packing
from cuconv.arrays import CupyArrays, TorchArrays, library_of
from cuconv.call import Call, checked, keep, made_current, named, target_of
from cuconv.conv import ALIGNMENT, conv2d
from cuconv.device import device_spec
from cuconv.flags import Flags, capture_of, flags_of
from cuconv.geometry import Geometry
from cuconv.jit import Address, Launch, LaunchSequence
from cuconv.problem import FLOAT_BYTES, FP32


def prepare(
    weight: Any,
    bias: Any = None,
    stride: int | tuple[int, int] = 1,
    padding: int | str | tuple[int, int] = 0,
    dilation: int | tuple[int, int] = 1,
    groups: int = 1,
    *,
    relu: bool = False,
    algorithm: str = "auto",
    precision: str = FP32,
) -> PreparedConv2d:
    """A convolution with constant weights: call it with an input, and with a residual where there is one.

    The arguments are those of `conv2d`, and so is what is computed. Some algorithms decompose the weights before they
    multiply; here that is done at the first call of a shape, and not again. Raises TypeError for other kinds of array;
    what conv2d refuses is refused at the call.
    """
    return PreparedConv2d(weight, bias, (stride, padding, dilation, groups), bool(relu), algorithm, precision)


class PreparedConv2d:
    """A convolution whose weights are packed once; made by `prepare`. Threads may share it.

    A torch tensor that is written to in place is noticed at the next call, unless that was through `.data` or in
    inference mode. After such a change, after any change of a CuPy array, and before CUDA graphs are replayed with
    changed weights, call `update`. A CUDA graph uses the packed weights: it must not outlive this object.
    """

    def __init__(
        self, weight: Any, bias: Any, geometry: tuple[Any, ...], relu: bool, algorithm: str, precision: str
    ) -> None:
        self._library: TorchArrays | CupyArrays = library_of(weight)
        self._weight, self._bias = weight, bias
        self._geometry, self._relu = geometry, relu
        self._algorithm, self._precision = algorithm, precision
        self._lock = threading.RLock()
        self._thread = _Thread()
        self._packed: dict[Hashable, _PackedWeights] = {}  # by algorithm and packing
        self._moves = 0  # of the weight to another address
        self._note_weight()

    def __call__(self, input: Any, residual: Any = None, *, out: Any = None) -> Any:
        """relu(conv(input) + bias + residual): arguments, result and errors are those of `conv2d`.

        A CUDA graph uses packed weights if a call with operands of the same shapes came before its capture; otherwise
        it computes as conv2d does.
        """
        library, weight = self._library, self._weight
        pointer, signature = library.pointer, library.signature
        try:
            weight_at = pointer(weight)
            addresses = pointer(input) | weight_at | (0 if out is None else pointer(out))
            addresses |= 0 if residual is None else pointer(residual)
            out_signature = None if out is None else library.output_signature(out)
            others = (out_signature, None if residual is None else signature(residual))
            aligned, gradient = addresses % ALIGNMENT == 0, library.records_gradient(weight)
            operands = (signature(input), others, aligned, gradient)
        except (AttributeError, TypeError):
            return self._plain(input, residual, out)  # raises: one of them is no array of this library
        if weight_at != self._weight_at or library.version(weight) != self._version:
            if self._is_captured(input):
                return self._plain(input, residual, out)
            self.update()
        key = (*operands, self._moves)
        call = self._thread.ready_calls.get(key)
        if call is None:
            if len(input.shape) == 3:
                return self._unbatched(input, residual, out)
            call = self._prepare(input, residual, out, aligned)
            if call is None:
                return self._plain(input, residual, out)
            keep(self._thread.ready_calls, key, call)
        if call.current_context() == call.context:
            return self._run(call, input, residual, out)
        with made_current(call.device):
            return self._run(call, input, residual, out)

    def update(self) -> None:
        """Pack the weights again, after a change that went unnoticed. CUDA graphs then use the new ones too."""
        with self._lock:
            if self._library.pointer(self._weight) != self._weight_at:  # perhaps on another GPU
                self._moves, self._packed = self._moves + 1, {}
            self._note_weight()
            for packed in self._packed.values():
                packed.pack(self._weight_at)

    def _note_weight(self) -> None:
        """Remember where the weight is, and its version."""
        self._weight_at = self._library.pointer(self._weight)
        self._version = self._library.version(self._weight)

    def _is_captured(self, input: Any) -> bool:
        """Whether what is launched now becomes part of a CUDA graph."""
        return capture_of(self._library.current_stream(self._library.device(input))()) != 0

    def _plain(self, input: Any, residual: Any, out: Any) -> Any:
        """The same without packed weights."""
        options: dict[str, Any] = {"relu": self._relu, "algorithm": self._algorithm, "precision": self._precision}
        return conv2d(input, self._weight, self._bias, *self._geometry, residual=residual, out=out, **options)

    def _unbatched(self, input: Any, residual: Any, out: Any) -> Any:
        """The convolution of one image without N."""
        batch = self(input[None], None if residual is None else residual[None], out=None if out is None else out[None])
        return batch[0] if out is None else out

    def _prepare(self, input: Any, residual: Any, out: Any, aligned: bool) -> _ReadyCall | None:
        """The ready call for operands; None where weights must be packed first, and cannot be in a capture."""
        operands = named(input, self._weight, self._bias, out, residual)
        problem, device = checked(self._library, operands, Geometry(*self._geometry), self._precision)
        spec = device_spec(device)
        plan = select.plan(problem, spec, self._algorithm, prepared=True)
        target = target_of(self._library, operands, problem, plan)
        launches = select.launches_of(
            plan, problem, aligned, self._relu, residual is not None, spec, target.channels if target.sliced else None
        )
        once, launches = weight_packing.prepare(launches)
        if once is not None and self._is_captured(input):
            return None
        packing = ALGORITHMS[plan.algorithm].packing(problem, plan.config)
        packed_bytes = packing.workspace_bytes(problem) if packing else 0
        with made_current(device), self._lock:
            sequence = LaunchSequence(launches, spec.arch, device)
            workspace_bytes = _workspace_bytes(launches, plan.workspace_bytes, packed_bytes)
            call = _ReadyCall(self._library, problem, device, sequence, workspace_bytes, target)
            if once is not None:
                call.flags = flags_of(self._library, device)
                call.packed = self._packed.get((plan.algorithm, packing))
                if call.packed is None:
                    call.packed = _PackedWeights(self._library, once, packed_bytes, spec.arch, device)
                    call.packed.pack(self._weight_at)
                    self._packed[plan.algorithm, packing] = call.packed
            return call

    def _run(self, call: _ReadyCall, input: Any, residual: Any, out: Any) -> Any:
        if call.packed is None or call.flags is None:
            return call(input, self._weight, self._bias, out, residual)
        flags = call.flags.address(call.current_stream())
        if not flags:
            return self._plain(input, residual, out)
        return call(input, self._weight, self._bias, out, residual, call.packed.address, flags)


class _ReadyCall(Call):
    """A call whose launches may read packed weights."""

    packed: _PackedWeights | None = None
    flags: Flags | None = None


class _Thread(threading.local):
    """The ready calls of a thread. Threads do not share them, because a call writes to memory that it owns."""

    def __init__(self) -> None:
        self.ready_calls: dict[Hashable, _ReadyCall] = {}


class _PackedWeights:
    """Packed weights on a GPU, and the launch that packs them."""

    def __init__(self, library: TorchArrays | CupyArrays, launch: Launch, size: int, arch: str, device: int):
        """size: in bytes. The GPU must be the current one."""
        self._library, self._device = library, device
        self._sequence = LaunchSequence([launch], arch, device)
        self._memory = library.allocator((-(-size // FLOAT_BYTES),), device)()
        self._current_stream = library.current_stream(device)
        self.address = library.pointer(self._memory)

    def pack(self, weight_at: int) -> None:
        """Pack weights from an address, and wait until every stream may read them."""
        with made_current(self._device):
            self._sequence.enqueue(self._current_stream(), 0, weight_at, 0, 0, 0, packed=self.address)
            self._library.synchronize(self._device)


def _workspace_bytes(launches: tuple[Launch, ...], workspace_bytes: int, packed_bytes: int) -> int:
    """The workspace of launches that find packed weights elsewhere; all of it where a part has a fixed place in it."""
    arguments = [argument for launch in launches for argument in launch.arguments]
    fixed = any(isinstance(argument, Address) and argument.offset for argument in arguments)
    return workspace_bytes if fixed else workspace_bytes - packed_bytes
