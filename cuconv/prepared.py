"""prepare: a convolution whose weights are constant, and are packed once instead of at every call."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from dataclasses import astuple
from itertools import count
from typing import Any

from cuconv import select
from cuconv.call import Options, Packing
from cuconv.call_cache import convolve
from cuconv.conv import conv2d
from cuconv.core.activation import Activated, Activation, activation_of
from cuconv.core.geometry import Geometry, Padding
from cuconv.core.problem import FLOAT_BYTES, FP32, TF32, UnsupportedProblem
from cuconv.operands import check_frozen
from cuconv.runtime.arrays import FIRST, LAST, CupyArrays, TorchArrays, library_of
from cuconv.runtime.driver import capture_of, made_current

MAX_PACKED = 2  # packed layouts of a layer that are kept, besides those that CUDA graphs read


def prepare(
    weight: Any,
    bias: Any = None,
    stride: int | tuple[int, int] = 1,
    padding: Padding = 0,
    dilation: int | tuple[int, int] = 1,
    groups: int = 1,
    *,
    relu: bool = False,
    activation: Activated = None,
    algorithm: str = "auto",
    precision: str = FP32,
) -> PreparedConv2d:
    """A convolution with constant weights: call it with an input, and with a residual where there is one.

    The arguments are those of `conv2d`, and so is what is computed. Weight and bias are copied: later changes of theirs
    change nothing. In TF32 the first input in channels last makes one more copy. Some algorithms decompose the weights
    before they multiply. Here the result is kept for later calls, for the two packed layouts that were used last.

    Raises, as conv2d does, TypeError and UnsupportedProblem for a weight, a bias or options that cannot be used at all.
    What does not fit the input is refused at the call.
    """
    library = library_of(weight)
    geometry = Geometry(stride, padding, dilation, groups).checked()
    function = activation_of(activation, relu)
    select.check_options(algorithm, precision)
    device = check_frozen(library, weight, bias)
    with made_current(device):
        if capture_of(library.current_stream(device)()):
            raise UnsupportedProblem("prepare copies the weights: call it before a capture, not in it")
        weight, bias = library.frozen(weight), None if bias is None else library.frozen(bias)
        library.synchronize(device)  # the copies are there for every stream
    return PreparedConv2d(weight, bias, geometry, function, algorithm, precision)


def owned(
    weight: Any,
    bias: Any,
    stride: tuple[int, int],
    padding: Padding,
    dilation: tuple[int, int],
    groups: int,
    *,
    activation: Activation,
    precision: str,
) -> PreparedConv2d:
    """`prepare` for weight and bias that the caller owns and never changes: without a copy, and checked at the call.

    Calls raise NotReady while their kernels compile. What writes the weights has ended: kernels in half precision read
    them early.
    """
    geometry = Geometry(stride, padding, dilation, groups)
    return PreparedConv2d(weight, bias, geometry, activation, select.READY, precision)


class PreparedConv2d:
    """A convolution with constant weights, made by `prepare`. Threads and streams may share it.

    It can be copied and pickled. A CUDA graph reads its memory: the graph must not outlive it. It records no gradients.
    """

    def __init__(
        self, weight: Any, bias: Any, geometry: Geometry, activation: Activation, algorithm: str, precision: str
    ) -> None:
        """Take weight and bias without a copy: arrays that never change."""
        self._arguments = (weight, bias, geometry, activation, algorithm, precision)
        library: TorchArrays | CupyArrays = library_of(weight)
        self._library = library
        self._weight, self._bias = library.detached(weight), None if bias is None else library.detached(bias)
        self._device = library.device(weight)
        self.options = Options(
            library.signature(self._weight), None if bias is None else library.signature(self._bias),
            geometry.stride, geometry.padding, geometry.dilation, geometry.groups, activation, algorithm, precision,
        )  # fmt: skip
        self._key = _keys.setdefault(self.options, _Key())
        self.lifetime = library.lifetime(
            [array for array in (self._weight, self._bias) if array is not None], self._device
        )
        self._lock = threading.RLock()  # only around changes of packed layouts, and of the layer for channels last
        self._packed: dict[Hashable, _PackedWeights] = {}
        self._may_be_last = precision == TF32 and library.layout(self._weight) == FIRST
        self._in_last: PreparedConv2d | None = None  # the same layer for float32 in channels last

    def __call__(self, input: Any, residual: Any = None, *, out: Any = None) -> Any:
        """activation(conv(input) + bias + residual): arguments, result and errors are those of `conv2d`.

        A CUDA graph uses packed weights if a call with operands of the same shapes came before its capture; otherwise
        it computes as conv2d does.
        """
        if self._may_be_last and self._is_last(input):
            return self._of_last()(input, residual, out=out)
        return convolve(self._library, self._key, input, self._weight, self._bias, out, residual, self)

    def _is_last(self, input: Any) -> bool:
        """Whether an input is in channels last; False for what `convolve` refuses."""
        try:
            return self._library.layout(input[None] if input.ndim == 3 else input) == LAST
        except Exception:  # no array, or a tensor without strides
            return False

    def _of_last(self) -> PreparedConv2d:
        """The layer for inputs in channels last, whose weights are copied at the first one."""
        with self._lock, made_current(self._device):
            if self._in_last is None:
                if capture_of(self._library.current_stream(self._device)()):
                    raise UnsupportedProblem("a first input in channels last copies the weights: call before a capture")
                weight = self._library.frozen(self._weight, last=True)
                self._library.synchronize(self._device)  # the copy is there for every stream
                self._in_last = PreparedConv2d(weight, self._bias, *self._arguments[2:])
            return self._in_last

    @property
    def packed_bytes(self) -> int:
        """The device memory of the packed weights, in bytes. Copies of weight and bias come on top."""
        return sum(packed.size for packed in list(self._packed.values()))

    def packed(self, packing: Packing, capture: int) -> _PackedWeights | None:
        """The weights as a call wants them packed; None in a capture, given by its number, where they are not.

        The call's context must be current.
        """
        found = self._packed.get(packing.key)
        if capture:
            return found if found is not None and self._pin(packing.key, found) else None
        if found is None:
            found = self._pack(packing)
        found.used = next(_clock)
        return found

    def plain(self, input: Any, residual: Any, out: Any) -> Any:
        """The output by `conv2d`, which packs the weights in the call."""
        _, _, geometry, activation, algorithm, precision = self._arguments
        return conv2d(
            input, self._weight, self._bias, *astuple(geometry), activation=activation, residual=residual,
            algorithm=algorithm, precision=precision, out=out,
        )  # fmt: skip

    def _pack(self, packing: Packing) -> _PackedWeights:
        """Pack the weights, and drop the packed layout that was not used for longest.

        Two threads, or a call in the middle of another one, may pack the same layout: the first result is kept.
        """
        made = _PackedWeights(self._library, self._device, packing, self._weight)
        with self._lock:
            found = self._packed.setdefault(packing.key, made)
            found.used = next(_clock)
            loose = sorted((packed.used, key) for key, packed in self._packed.items() if not packed.pinned)
            for _, key in loose[:-MAX_PACKED]:
                del self._packed[key]
        return found

    def _pin(self, key: Hashable, found: _PackedWeights) -> bool:
        """Keep a packed layout for good, as a CUDA graph reads it; false where it has just been dropped."""
        with self._lock:
            found.pinned = self._packed.get(key) is found
        return found.pinned

    def __copy__(self) -> PreparedConv2d:
        return self

    def __getstate__(self) -> tuple[Any, ...]:
        """The state that `__init__` takes, without what it derives: packed weights, ready calls and locks."""
        return (self._weight, self._bias, *self._arguments[2:])

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.__init__(*state)  # type: ignore[misc]
        with made_current(self._device):
            self._library.synchronize(self._device)  # the copies are there for every stream


class _Key:
    """Stands for the options of a layer in the keys of ready calls, since it is hashed faster."""


_keys: dict[tuple[Any, ...], _Key] = {}  # layers of the same options share their ready calls
_clock = count(1)  # numbers the uses of packed weights


class _PackedWeights:
    """Packed weights on a GPU."""

    def __init__(self, library: TorchArrays | CupyArrays, device: int, packing: Packing, weight: Any):
        """Pack a weight on the current stream, and wait until every stream may read the result."""
        self._memory = library.allocator((-(-packing.size // FLOAT_BYTES),), device)()
        self.size = packing.size
        self.address = library.pointer(self._memory)
        self.lifetime = library.lifetime([self._memory], device)
        self.used = 0  # when, by the clock
        self.pinned = False  # whether a CUDA graph reads them
        stream = library.current_stream(device)()
        packing.launches.enqueue(stream, 0, library.pointer(weight), 0, 0, 0, packed=self.address)
        library.synchronize(device)
