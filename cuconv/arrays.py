"""torch tensors and CuPy arrays behind one face: pointer, shape, stream, allocation, all zero-copy."""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

from cuconv.problem import UnsupportedProblem


class TorchArrays:
    """float32 CUDA tensors of torch, on torch's current stream."""

    kind = "torch.Tensor"

    def __init__(self, torch: Any):
        self._torch = torch

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

    def pointer(self, tensor: Any) -> int:
        return tensor.data_ptr()

    def stream(self, device: int) -> int:
        # torch.cuda.current_stream(device).cuda_stream, ten times as fast; what torch's own generated code calls.
        return self._torch._C._cuda_getCurrentRawStream(device)

    def empty(self, shape: tuple[int, ...], beside: Any) -> Any:
        """Of the type and on the device of another tensor."""
        return beside.new_empty(shape)


class CupyArrays:
    """float32 arrays of CuPy, on CuPy's current stream."""

    kind = "cupy.ndarray"

    def __init__(self, cupy: Any):
        self._cupy = cupy

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

    def pointer(self, array: Any) -> int:
        return array.data.ptr

    def stream(self, device: int) -> int:
        return self._cupy.cuda.get_current_stream(device).ptr

    def empty(self, shape: tuple[int, ...], beside: Any) -> Any:
        """Of the type of another array, on the current device, which must be that array's."""
        return self._cupy.empty(shape, beside.dtype)


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
