"""torch tensors and CuPy arrays behind one face: pointer, shape, stream, allocation, all zero-copy.

What every call needs is as short as Python can make it; what a first call needs is clear.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable
from functools import cache, partial
from math import prod
from operator import attrgetter
from typing import Any

from cuconv.problem import UnsupportedProblem


class TorchArrays:
    """float32 CUDA tensors of torch, on torch's current stream."""

    kind = "torch.Tensor"

    def __init__(self, torch: Any):
        self._torch = torch
        self._is_grad_enabled = torch.is_grad_enabled
        self.pointer: Callable[[Any], int] = torch.Tensor.data_ptr

    def signature(self, t: Any) -> Hashable:
        """All that decides whether a tensor can be used, and how, but its address: the shape, and what check() reads.

        Raises AttributeError for what is no tensor.
        """
        gradient = t.requires_grad and self._is_grad_enabled()
        return (type(t), t.shape, t.dtype, t.device, t.is_contiguous(), gradient)

    def owns(self, array: Any) -> bool:
        return isinstance(array, self._torch.Tensor)

    def check(self, name: str, tensor: Any) -> None:
        if not tensor.is_cuda:
            raise UnsupportedProblem(
                f"{name} is on {tensor.device}: move it to the GPU with .cuda(), or see cuconv.reference for the CPU"
            )
        if tensor.dtype != self._torch.float32:
            raise UnsupportedProblem(f"{name} is {tensor.dtype}: only torch.float32 is computed; convert with .float()")
        if not tensor.is_contiguous():
            raise UnsupportedProblem(
                f"{name} is not contiguous in the order of its dimensions (strides {tensor.stride()}): "
                "call .contiguous()"
            )
        if tensor.requires_grad and self._torch.is_grad_enabled():
            raise UnsupportedProblem(f"{name} requires a gradient, which cuConv does not compute: use torch.no_grad()")

    def device(self, tensor: Any) -> int:
        return tensor.device.index

    def current_stream(self, device: int) -> Callable[[], int]:
        """A function that gives the pointer of the device's current stream."""
        # torch.cuda.current_stream(device).cuda_stream, ten times as fast; what torch's own generated code calls.
        return partial(self._torch._C._cuda_getCurrentRawStream, device)

    def allocator(self, shape: tuple[int, ...], device: int) -> Callable[[], Any]:
        """A function that makes an uninitialised tensor on the device."""
        torch = self._torch
        strides = tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))
        # As above: torch.empty for the current device, a third of its time.
        on_current = partial(torch._C._dynamo.guards._empty_strided_cuda, shape, strides, torch.float32)
        current_device = torch._C._cuda_getDevice

        def empty() -> Any:
            # torch may count another device as current than CUDA does: one that nothing has run on yet.
            if current_device() == device:
                return on_current()
            return torch.empty(shape, dtype=torch.float32, device=torch.device("cuda", device))

        return empty


class CupyArrays:
    """float32 arrays of CuPy, on CuPy's current stream."""

    kind = "cupy.ndarray"

    def __init__(self, cupy: Any):
        self._cupy = cupy
        self.pointer: Callable[[Any], int] = attrgetter("data.ptr")

    def signature(self, a: Any) -> Hashable:
        """As of TorchArrays."""
        return (type(a), a.shape, a.dtype, a.flags.c_contiguous, a.data.device_id)

    def owns(self, array: Any) -> bool:
        return isinstance(array, self._cupy.ndarray)

    def check(self, name: str, array: Any) -> None:
        if array.dtype != self._cupy.float32:
            raise UnsupportedProblem(f"{name} is {array.dtype}: only float32 is computed; convert with .astype('f4')")
        if not array.flags.c_contiguous:
            raise UnsupportedProblem(
                f"{name} is not contiguous in the order of its dimensions (strides {array.strides}): "
                "use cupy.ascontiguousarray"
            )

    def device(self, array: Any) -> int:
        return array.data.device_id

    def current_stream(self, device: int) -> Callable[[], int]:
        """As of TorchArrays."""
        get_current_stream = self._cupy.cuda.get_current_stream
        return lambda: get_current_stream(device).ptr

    def allocator(self, shape: tuple[int, ...], device: int) -> Callable[[], Any]:
        """As of TorchArrays; the device must be the current one whenever the function is called."""
        return partial(self._cupy.empty, shape, self._cupy.float32)


def library_of(array: Any) -> TorchArrays | CupyArrays:
    """The library that an array belongs to; raises TypeError for anything that is no torch or CuPy array."""
    return _library_of_type(type(array))


@cache
def _library_of_type(kind: type) -> TorchArrays | CupyArrays:
    # An array's library has been imported by its owner.
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if torch is not None and issubclass(kind, torch.Tensor):
        return TorchArrays(torch)
    if cupy is not None and issubclass(kind, cupy.ndarray):
        return CupyArrays(cupy)
    raise TypeError(f"{kind.__module__}.{kind.__qualname__}: conv2d takes torch CUDA tensors or CuPy arrays")
