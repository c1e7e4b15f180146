"""The CUDA driver by ctypes, which is quick to import: GPUs, contexts, kernels, captures; each refusal is raised."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

# Values of the driver's enumerations CUdevice_attribute and CUstreamCaptureStatus.
MULTIPROCESSOR_COUNT = 16
COMPUTE_CAPABILITY_MAJOR = 75
COMPUTE_CAPABILITY_MINOR = 76
CAPTURE_ACTIVE = 1
MAX_NAME_BYTES = 256  # a GPU's name has fewer


class DriverError(RuntimeError):
    """The CUDA driver is missing, or refused a launch or another call."""


@cache
def library() -> ctypes.CDLL:
    """The driver's library, initialised; raises DriverError where it is missing or sees no GPU."""
    try:
        loaded = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise DriverError(
            f"the CUDA driver is not found ({error}): install NVIDIA's driver, or pass a described GPU, such as "
            "cuconv.device.H200, to what only plans or compiles"
        ) from error
    check(loaded.cuInit(0), loaded)
    return loaded


def check(status: int, loaded: ctypes.CDLL | None = None) -> None:
    """Raise DriverError for any status of the driver but success. loaded: the library, while it is not initialised."""
    if status:
        text = ctypes.c_char_p()
        (loaded or library()).cuGetErrorString(status, ctypes.byref(text))
        raise DriverError(f"the CUDA driver says: {(text.value or b'unknown error').decode()} ({status})")


def _written(kind: Any, function: str, *arguments: Any) -> Any:
    """The value that a function of the driver writes to where its first argument points."""
    value = kind()
    check(getattr(library(), function)(ctypes.byref(value), *arguments))
    return value.value


def gpu(ordinal: int) -> tuple[str, tuple[int, int], int]:
    """The name, compute capability and number of multiprocessors of a GPU."""
    handle = _written(ctypes.c_int, "cuDeviceGet", ordinal)
    name = ctypes.create_string_buffer(MAX_NAME_BYTES)
    check(library().cuDeviceGetName(name, MAX_NAME_BYTES, handle))
    major, minor, multiprocessors = (
        _written(ctypes.c_int, "cuDeviceGetAttribute", attribute, handle)
        for attribute in (COMPUTE_CAPABILITY_MAJOR, COMPUTE_CAPABILITY_MINOR, MULTIPROCESSOR_COUNT)
    )
    return name.value.decode(), (major, minor), multiprocessors


def context_reader() -> Callable[[], int]:
    """A function that returns the handle of the thread's current context, 0 for none; every call of conv2d uses it."""
    get, handle = library().cuCtxGetCurrent, ctypes.c_int64 * 1  # an array is passed faster than a reference

    def current_context() -> int:
        context = handle()
        status = get(context)
        if status:
            check(status)
        return context[0]

    return current_context


def current_gpu() -> int:
    """The ordinal of the thread's current GPU: 0 without a context, as for the CUDA runtime."""
    return _written(ctypes.c_int, "cuCtxGetDevice") if context_reader()() else 0


@cache
def _primary_context(ordinal: int) -> int:
    """The context of a GPU that the CUDA runtime, and so torch and CuPy, uses; it is kept until the process ends."""
    return _written(ctypes.c_void_p, "cuDevicePrimaryCtxRetain", _written(ctypes.c_int, "cuDeviceGet", ordinal))


@contextmanager
def made_current(ordinal: int) -> Iterator[None]:
    """Make a GPU current for this thread, with its primary context, until the block ends.

    If the thread had no context and the GPU is 0, the context stays current after the block: GPU 0 is the CUDA
    runtime's default, and later calls find the context.
    """
    before = context_reader()()
    check(library().cuCtxSetCurrent(ctypes.c_void_p(_primary_context(ordinal))))
    try:
        yield
    finally:
        if before or ordinal:
            check(library().cuCtxSetCurrent(ctypes.c_void_p(before)))


def load(code: bytes) -> int:
    """The handle of a cubin that is loaded on the current GPU until the process ends."""
    return _written(ctypes.c_void_p, "cuModuleLoadData", code)


def kernel_of(module: int, name: str) -> int:
    """The handle of a kernel of a loaded module."""
    return _written(ctypes.c_void_p, "cuModuleGetFunction", ctypes.c_void_p(module), name.encode())


def kernel_attribute(kernel: ctypes.c_void_p, attribute: int) -> int:
    """The value of an attribute of a kernel, of the enumeration CUfunction_attribute."""
    return _written(ctypes.c_int, "cuFuncGetAttribute", attribute, kernel)


def set_kernel_attribute(kernel: ctypes.c_void_p, attribute: int, value: int) -> None:
    """Set an attribute of a kernel."""
    check(library().cuFuncSetAttribute(kernel, attribute, value))


def clear(address: int, count: int, stream: int) -> None:
    """Set `count` numbers of four bytes at an address to 0, on a stream that is given by its pointer.

    The address's GPU must be current.
    """
    check(library().cuMemsetD32Async(ctypes.c_uint64(address), 0, ctypes.c_size_t(count), ctypes.c_void_p(stream)))


def capture_of(stream: int) -> int:
    """The number of the capture that is under way on a stream, given by its pointer; 0 for none.

    A context must be current.
    """
    if not stream:  # the legacy default stream cannot be captured
        return 0
    status, number = ctypes.c_int(), ctypes.c_uint64()
    code = library().cuStreamGetCaptureInfo_v2(
        ctypes.c_void_p(stream), ctypes.byref(status), ctypes.byref(number), None, None, None
    )
    check(code)
    return number.value if status.value == CAPTURE_ACTIVE else 0
