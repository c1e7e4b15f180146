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

from cuconv.core.problem import BF16, FLOAT_BYTES, FP16, FP32, UnsupportedProblem
from cuconv.runtime import driver
from cuconv.runtime.streams import CupyLifetime, TorchLifetime


def dense_strides(shape: tuple[int, ...], channels_last: bool) -> tuple[int, ...]:
    """The strides in elements of a dense array, whose axes are in order or, if channels last, N, H, W, C."""
    if channels_last:
        _, c, h, w = shape
        return (h * w * c, 1, w * c, c)
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


def is_channels_last(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether an array of the shape (N, C, H, W) is dense in the order N, H, W, C.

    shape, strides: those of the array, in elements. An axis of one index may have any stride.
    """
    steps = dense_strides(shape, channels_last=True)
    return all(size == 1 or stride == step for size, stride, step in zip(shape, strides, steps, strict=True))


FIRST, LAST, EITHER = "NCHW", "channels last", "both"
"""Layouts of an array: channels ahead of the rows, behind the columns, or both where sizes of 1 leave no difference."""


class TorchArrays:
    """CUDA tensors of torch, on torch's current stream: float32 in either layout, half precision in channels_last."""

    kind = "torch.Tensor"
    graphs_own_memory = True  # whether memory that is allocated in a capture stays the graph's

    def __init__(self, torch: Any):
        self._torch = torch
        self._is_grad_enabled = torch.is_grad_enabled
        self._forward_ad = torch.autograd.forward_ad
        self.pointer: Callable[[Any], int] = torch.Tensor.data_ptr
        self._float32 = torch.float32
        self._types = {FP32: torch.float32, FP16: torch.float16, BF16: torch.bfloat16}
        self._names = {dtype: name for name, dtype in self._types.items()}

    def signature(self, t: Any) -> Hashable:
        """Everything but the address that decides whether and how a tensor is used: its shape and what check() reads.

        Raises AttributeError for anything that is not a tensor.
        """
        gradient = t.requires_grad and self._is_grad_enabled()
        if self._forward_ad._current_level >= 0:
            gradient = gradient or self._has_tangent(t)
        dtype = t.dtype
        layout = (dtype is self._float32 and t.is_contiguous()) or t.stride()
        return (type(t), t.shape, dtype, t.device, layout, t.is_neg(), gradient)

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

    def element(self, t: Any) -> str:
        """The type of a tensor's elements, as a precision: "fp32", "fp16" or "bf16"; otherwise torch's name of it."""
        return self._names.get(t.dtype) or str(t.dtype)

    def frozen(self, t: Any, last: bool = False) -> Any:
        """A copy of a tensor that records no gradient, in the layout that is computed.

        last: whether that is channels last in float32 too.
        """
        torch = self._torch
        last = t.dim() == 4 and (last or t.dtype != torch.float32)
        return t.detach().clone(memory_format=torch.channels_last if last else torch.contiguous_format)

    def layout(self, t: Any) -> str:
        """The layout of a dense tensor: FIRST, LAST or, where one memory is both, EITHER; "" for any other."""
        last = t.dim() == 4 and is_channels_last(tuple(t.shape), t.stride())
        return (EITHER if last else FIRST) if t.is_contiguous() else LAST if last else ""

    def as_row(self, t: Any) -> Any:
        """A tensor (..., L) as (..., 1, L) in the same memory."""
        return t.unsqueeze(-2)

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
        """Raise UnsupportedProblem unless a tensor can be computed: its type, device, gradient and layout.

        contiguous: whether the layout is checked. `operands.target_of` checks that of "out".
        """
        if not tensor.is_cuda:
            raise UnsupportedProblem(
                f"{name} is on {tensor.device}: move it to the GPU with .cuda(), or see cuconv.reference for the CPU"
            )
        if tensor.dtype not in self._names:
            raise UnsupportedProblem(
                f"{name} is {tensor.dtype}: torch.float32, torch.float16 and torch.bfloat16 are computed; convert with "
                ".float()"
            )
        if contiguous and tensor.dtype != self._float32 and tensor.dim() == 4:
            if not is_channels_last(tuple(tensor.shape), tensor.stride()):
                raise UnsupportedProblem(
                    f"{name} is {tensor.dtype} and not channels last (strides {tensor.stride()}): "
                    "call .to(memory_format=torch.channels_last), of a single image on image[None], and for conv1d "
                    ".mT.contiguous().mT"
                )
        elif contiguous and not self.layout(tensor):
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

    def allocator(
        self, shape: tuple[int, ...], device: int, element: str = FP32, channels_last: bool = False
    ) -> Callable[[], Any]:
        """A function that returns a new, uninitialised tensor on the GPU."""
        torch, dtype = self._torch, self._types[element]
        strides = dense_strides(shape, channels_last)
        gpu = torch.device("cuda", device)
        on_device = partial(torch.empty_strided, shape, strides, dtype=dtype, device=gpu)
        empty_strided = _private(torch, "_C._dynamo.guards._empty_strided_cuda")
        if empty_strided is None:
            return on_device
        # A third of the time of torch.empty, but only for torch's current GPU; torch's generated code calls it too.
        on_current = partial(empty_strided, shape, strides, dtype)
        current_device = _private(torch, "_C._cuda_getDevice") or torch.cuda.current_device

        def empty() -> Any:
            # torch's current GPU may differ from CUDA's: torch may have chosen one on which nothing has run yet.
            return on_current() if current_device() == device else on_device()

        return empty


class CupyArrays:
    """Arrays of CuPy, on CuPy's current stream: float32 in either layout, float16 in memory as channels last."""

    kind = "cupy.ndarray"
    graphs_own_memory = False

    def __init__(self, cupy: Any):
        self._cupy = cupy
        self.pointer: Callable[[Any], int] = attrgetter("data.ptr")

    def signature(self, a: Any) -> Hashable:
        """Everything but the address that decides whether and how an array is used, as for torch."""
        layout = (a.itemsize == FLOAT_BYTES and a.flags.c_contiguous) or a.strides
        return (type(a), a.shape, a.dtype, layout, a.data.device_id)

    def output_signature(self, a: Any) -> Hashable:
        """The signature of an output, which may be a slice of a larger array."""
        return (self.signature(a), a.strides)

    def strides(self, a: Any) -> tuple[int, ...]:
        """The elements from one index to the next on each axis."""
        return tuple(stride // a.itemsize for stride in a.strides)

    def copy(self, source: Any, target: Any) -> None:
        """Copy an array into another one on the current stream."""
        target[...] = source

    def element(self, a: Any) -> str:
        """The type of an array's elements, as a precision: "fp32" or "fp16"; otherwise numpy's name of it."""
        return {"float32": FP32, "float16": FP16}.get(a.dtype.name, a.dtype.name)

    def frozen(self, a: Any, last: bool = False) -> Any:
        """A copy of an array in the layout that is computed, on the current GPU, which must be the array's.

        last: as for torch.
        """
        if a.ndim == 4 and (last or a.dtype == self._cupy.float16):
            return a.transpose(0, 2, 3, 1).copy().transpose(0, 3, 1, 2)
        return a.copy()

    def layout(self, a: Any) -> str:
        """The layout of a dense array, as for torch."""
        last = a.ndim == 4 and is_channels_last(a.shape, self.strides(a))
        return (EITHER if last else FIRST) if a.flags.c_contiguous else LAST if last else ""

    def as_row(self, a: Any) -> Any:
        """An array (..., L) as (..., 1, L) in the same memory."""
        return a[..., None, :]

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
        """A float32 array in memory that it does not own."""
        cuda = self._cupy.cuda
        memory = cuda.UnownedMemory(address, FLOAT_BYTES * prod(shape), None, device)
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
        """Accept every array: those of CuPy are plain memory."""

    def check(self, name: str, array: Any, contiguous: bool = True) -> None:
        """Raise UnsupportedProblem unless an array can be computed: its type, and its layout where `contiguous`."""
        if array.dtype not in (self._cupy.float32, self._cupy.float16):
            raise UnsupportedProblem(
                f"{name} is {array.dtype}: float32 and float16 are computed; convert with .astype('f4')"
            )
        if contiguous and array.dtype == self._cupy.float16 and array.ndim == 4:
            if not is_channels_last(array.shape, self.strides(array)):
                raise UnsupportedProblem(
                    f"{name} is float16 and not channels last (strides {array.strides}): "
                    "use cupy.ascontiguousarray(a.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2), and for conv1d "
                    "cupy.ascontiguousarray(a.swapaxes(-2, -1)).swapaxes(-2, -1)"
                )
        elif contiguous and not self.layout(array):
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

    def allocator(
        self, shape: tuple[int, ...], device: int, element: str = FP32, channels_last: bool = False
    ) -> Callable[[], Any]:
        """A function that returns a new, uninitialised array on the current GPU, which must then be `device`."""
        cupy = self._cupy
        dtype = cupy.float32 if element == FP32 else cupy.float16
        if not channels_last:
            return partial(cupy.empty, shape, dtype)
        n, c, h, w = shape
        return lambda: cupy.empty((n, h, w, c), dtype).transpose(0, 3, 1, 2)


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
