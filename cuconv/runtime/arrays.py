"""One interface to torch tensors and CuPy arrays: pointer, signature, stream and allocation, without copies.

Every call of conv2d uses `signature`, `pointer` and the functions that `current_stream` and `allocator` return, so
these are as short as Python allows. The other methods serve the first call of each signature.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from math import prod
from operator import attrgetter
from typing import Any

from cuconv.core.problem import UnsupportedProblem
from cuconv.runtime import driver
from cuconv.runtime.streams import CupyLifetime, TorchLifetime


class TorchArrays:
    """float32 CUDA tensors of torch, on torch's current stream."""

    kind = "torch.Tensor"
    graphs_own_memory = True  # whether memory that is allocated in a capture stays the graph's

    def __init__(self, torch: Any):
        self._torch = torch
        self._is_grad_enabled = torch.is_grad_enabled
        self._forward_ad = torch.autograd.forward_ad
        self.pointer: Callable[[Any], int] = torch.Tensor.data_ptr

    def signature(self, t: Any) -> Hashable:
        """Everything but the address that decides whether and how a tensor is used: its shape and what check() reads.

        Raises AttributeError for anything that is not a tensor.
        """
        gradient = t.requires_grad and self._is_grad_enabled()
        if self._forward_ad._current_level >= 0:
            gradient = gradient or self._has_tangent(t)
        return (type(t), t.shape, t.dtype, t.device, t.is_contiguous(), t.is_neg(), gradient)

    def _has_tangent(self, t: Any) -> bool:
        """Whether a tensor carries a derivative of forward-mode differentiation, of which a level is entered."""
        return self._forward_ad.unpack_dual(t).tangent is not None

    def output_signature(self, t: Any) -> Hashable:
        """The signature of an output, which may be a slice of a larger tensor."""
        return (self.signature(t), t.stride())

    def strides(self, t: Any) -> tuple[int, ...]:
        """The elements from one index to the next on each axis."""
        return t.stride()

    def copy(self, source: Any, target: Any) -> None:
        """Copy a tensor into another one on the current stream."""
        target.copy_(source)

    def frozen(self, t: Any) -> Any:
        """A contiguous copy of a tensor that records no gradient."""
        return t.detach().clone(memory_format=self._torch.contiguous_format)

    def detached(self, t: Any) -> Any:
        """The tensor without its gradient, in the same memory."""
        return t.detach()

    def lifetime(self, arrays: list[Any], device: int) -> TorchLifetime:
        """Arrays whose memory outlasts the work of every stream that reads them."""
        return TorchLifetime(self._torch, arrays, device)

    def zeros(self, count: int, device: int) -> Any:
        """A new tensor of `count` zeros on the current GPU, for its current stream.

        In a capture the graph owns the memory.
        """
        tensor = self._torch.empty(count, dtype=self._torch.float32, device=self._torch.device("cuda", device))
        driver.clear(tensor.data_ptr(), count, self.current_stream(device)())  # torch's own kernel takes 7 ms to load
        return tensor

    def wants_equal_bits(self) -> bool:
        """Whether equal calls must give equal bits, as torch.use_deterministic_algorithms asks for."""
        return bool(self._torch.are_deterministic_algorithms_enabled())

    def synchronize(self, device: int) -> None:
        """Wait for the work of the GPU's current stream."""
        self._torch.cuda.current_stream(device).synchronize()

    def owns(self, array: Any) -> bool:
        """Whether an array is a tensor."""
        return isinstance(array, self._torch.Tensor)

    def check_plain(self, name: str, tensor: Any) -> None:
        """Raise TypeError for a subclass of Tensor, and UnsupportedProblem for a tensor that is no plain memory."""
        if type(tensor) not in (self._torch.Tensor, self._torch.nn.Parameter):
            kind = f"{type(tensor).__module__}.{type(tensor).__qualname__}"
            raise TypeError(
                f"{name} is a {kind}: conv2d takes torch.Tensor and torch.nn.Parameter, not other subclasses"
            )
        why = None
        if tensor.layout != self._torch.strided:
            why = f"has the layout {tensor.layout}"
        elif tensor.is_nested:
            why = "is a nested tensor"
        elif tensor.is_neg() or tensor.is_conj():
            why = "is a view that negates or conjugates its memory"
        elif tensor.device.type != "meta" and not _has_memory(tensor):
            why = "has no memory of its own, as in a torch.func transform or after its storage was freed"
        if why:
            raise UnsupportedProblem(f"{name} {why}: only plain dense tensors are computed; make it one")

    def check(self, name: str, tensor: Any, contiguous: bool = True) -> None:
        """Raise UnsupportedProblem unless a tensor is float32, on a GPU, records no gradient and is contiguous.

        contiguous: whether it must be. `operands.target_of` checks the layout of "out".
        """
        if not tensor.is_cuda:
            raise UnsupportedProblem(
                f"{name} is on {tensor.device}: move it to the GPU with .cuda(), or see cuconv.reference for the CPU"
            )
        if tensor.dtype != self._torch.float32:
            raise UnsupportedProblem(f"{name} is {tensor.dtype}: only torch.float32 is computed; convert with .float()")
        if contiguous and not tensor.is_contiguous():
            raise UnsupportedProblem(
                f"{name} is not contiguous in the order of its dimensions (strides {tensor.stride()}): "
                "call .contiguous()"
            )
        if tensor.requires_grad and self._torch.is_grad_enabled():
            raise UnsupportedProblem(f"{name} requires a gradient, which cuConv does not compute: use torch.no_grad()")
        if self._forward_ad._current_level >= 0 and self._has_tangent(tensor):
            raise UnsupportedProblem(f"{name} carries a derivative, which cuconv.nn.conv2d computes and conv2d not")

    def device(self, tensor: Any) -> int:
        """The ordinal of a tensor's GPU."""
        return tensor.device.index

    def current_stream(self, device: int) -> Callable[[], int]:
        """A function that returns the pointer of the GPU's current stream."""
        torch = self._torch
        raw_stream = _private(torch, "_C._cuda_getCurrentRawStream")
        if raw_stream is not None:  # ten times as fast as the public function; torch's generated code calls it
            return partial(raw_stream, device)
        return lambda: torch.cuda.current_stream(device).cuda_stream

    def allocator(self, shape: tuple[int, ...], device: int) -> Callable[[], Any]:
        """A function that returns a new, uninitialised tensor on the GPU."""
        torch = self._torch
        on_device = partial(torch.empty, shape, dtype=torch.float32, device=torch.device("cuda", device))
        empty_strided = _private(torch, "_C._dynamo.guards._empty_strided_cuda")
        if empty_strided is None:
            return on_device
        # A third of the time of torch.empty, but only for torch's current GPU; torch's generated code calls it too.
        strides = tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))
        on_current = partial(empty_strided, shape, strides, torch.float32)
        current_device = _private(torch, "_C._cuda_getDevice") or torch.cuda.current_device

        def empty() -> Any:
            # torch's current GPU may differ from CUDA's: torch may have chosen one on which nothing has run yet.
            return on_current() if current_device() == device else on_device()

        return empty


class CupyArrays:
    """float32 arrays of CuPy, on CuPy's current stream."""

    kind = "cupy.ndarray"
    graphs_own_memory = False

    def __init__(self, cupy: Any):
        self._cupy = cupy
        self.pointer: Callable[[Any], int] = attrgetter("data.ptr")

    def signature(self, a: Any) -> Hashable:
        """Everything but the address that decides whether and how an array is used, as for torch."""
        return (type(a), a.shape, a.dtype, a.flags.c_contiguous, a.data.device_id)

    def output_signature(self, a: Any) -> Hashable:
        """The signature of an output, which may be a slice of a larger array."""
        return (self.signature(a), a.strides)

    def strides(self, a: Any) -> tuple[int, ...]:
        """The elements from one index to the next on each axis."""
        return tuple(stride // a.itemsize for stride in a.strides)

    def copy(self, source: Any, target: Any) -> None:
        """Copy an array into another one on the current stream."""
        target[...] = source

    def frozen(self, a: Any) -> Any:
        """A contiguous copy of an array, on the current GPU, which must be the array's."""
        return a.copy()

    def detached(self, a: Any) -> Any:
        """The array itself: CuPy has no gradients."""
        return a

    def lifetime(self, arrays: list[Any], device: int) -> CupyLifetime:
        """Arrays whose memory outlasts the work of every stream that reads them."""
        return CupyLifetime(self._cupy, arrays, device)

    def zeros(self, count: int, device: int) -> Any:
        """A new array of `count` zeros on the current GPU, for its current stream."""
        return self._cupy.zeros(count, self._cupy.float32)

    @contextmanager
    def graph_memory(self, size: int, zeros: int, stream: int) -> Iterator[int]:
        """The address of `size` bytes of the CUDA graph into which a stream is captured, until the block ends.

        Each run of the graph sets the first `zeros` bytes to 0. Memory of CuPy's pool would go back to the pool after
        the capture, and to other arrays, which the graph would then overwrite.
        """
        runtime = self._cupy.cuda.runtime
        start = runtime.mallocAsync(size, stream)
        try:
            if zeros:
                runtime.memsetAsync(start, 0, zeros, stream)
            yield start
        finally:
            runtime.freeAsync(start, stream)

    def array_at(self, address: int, shape: tuple[int, ...], device: int) -> Any:
        """An array in memory that it does not own."""
        cuda = self._cupy.cuda
        memory = cuda.UnownedMemory(address, 4 * prod(shape), None, device)
        return self._cupy.ndarray(shape, self._cupy.float32, cuda.MemoryPointer(memory, 0))

    def wants_equal_bits(self) -> bool:
        """Whether equal calls must give equal bits; CuPy has no such option."""
        return False

    def synchronize(self, device: int) -> None:
        """Wait for the work of the GPU's current stream."""
        self._cupy.cuda.get_current_stream(device).synchronize()

    def owns(self, array: Any) -> bool:
        """Whether an array is one of CuPy's."""
        return isinstance(array, self._cupy.ndarray)

    def check_plain(self, name: str, array: Any) -> None:
        """Nothing: an array of CuPy is plain memory."""

    def check(self, name: str, array: Any, contiguous: bool = True) -> None:
        """Raise UnsupportedProblem unless an array is float32 and contiguous. contiguous: whether it must be."""
        if array.dtype != self._cupy.float32:
            raise UnsupportedProblem(f"{name} is {array.dtype}: only float32 is computed; convert with .astype('f4')")
        if contiguous and not array.flags.c_contiguous:
            raise UnsupportedProblem(
                f"{name} is not contiguous in the order of its dimensions (strides {array.strides}): "
                "use cupy.ascontiguousarray"
            )

    def device(self, array: Any) -> int:
        """The ordinal of an array's GPU."""
        return array.data.device_id

    def current_stream(self, device: int) -> Callable[[], int]:
        """A function that returns the pointer of the GPU's current stream."""
        get_current_stream = self._cupy.cuda.get_current_stream
        return lambda: get_current_stream(device).ptr

    def allocator(self, shape: tuple[int, ...], device: int) -> Callable[[], Any]:
        """A function that returns a new, uninitialised array on the current GPU, which must then be `device`."""
        return partial(self._cupy.empty, shape, self._cupy.float32)


def library_of(array: Any) -> TorchArrays | CupyArrays:
    """The library that an array belongs to; raises TypeError for anything but a torch tensor or a CuPy array."""
    return _library_of_type(type(array))  # type: ignore[arg-type]  # for mypy a type is no Hashable


def _has_memory(tensor: Any) -> bool:
    """Whether a tensor of elements has an address."""
    try:
        return tensor.data_ptr() != 0 or tensor.numel() == 0
    except RuntimeError:
        return False


def _private(module: Any, path: str) -> Any:
    """The object at a dotted path below a module, or None where this version of the module lacks it."""
    found = module
    for name in path.split("."):
        found = getattr(found, name, None)
    return found


@cache
def _library_of_type(kind: type) -> TorchArrays | CupyArrays:
    # Whoever made the array has imported its library, so this module imports neither.
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if torch is not None and issubclass(kind, torch.Tensor):
        return TorchArrays(torch)
    if cupy is not None and issubclass(kind, cupy.ndarray):
        return CupyArrays(cupy)
    raise TypeError(f"{kind.__module__}.{kind.__qualname__}: conv2d takes torch CUDA tensors or CuPy arrays")
