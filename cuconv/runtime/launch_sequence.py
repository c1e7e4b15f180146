"""From compiled kernels to launches: the driver loads cubins, and launches what a sequence has prepared."""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Sequence
from functools import cache
from typing import Any

from cuconv.core.launch import OPERANDS, Argument, KernelVariant, Launch, TensorMap
from cuconv.device import PORTABLE_CLUSTER_BLOCKS
from cuconv.runtime import compiler, driver
from cuconv.runtime.cubins import Cubin
from cuconv.runtime.tensor_maps import EncodedMap

SHARED_BYTES_BY_DEFAULT = 48 * 1024  # a kernel that needs more shared memory in all must ask the driver for it
# Values of the driver's enumerations CUfunction_attribute and CUlaunchAttributeID.
SHARED_SIZE_BYTES, MAX_DYNAMIC_SHARED_SIZE_BYTES = 1, 8  # static shared memory; a limit of dynamic
REQUIRED_CLUSTER_WIDTH = 11
NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 14
PROGRAMMATIC_STREAM_SERIALIZATION = 6
MAX_FOUND = 32  # cubins that were read and not loaded yet


class LaunchSequence:
    """Launches prepared for a GPU: the kernels are loaded, and only addresses and stream are still to be filled in.

    The driver reads the arguments from memory that the sequence owns. A sequence must therefore not be shared by
    threads. A signal handler or a finaliser may call it in the middle of another call of its thread: that call gets a
    sequence of its own.
    """

    __slots__ = (
        "_busy", "_configs", "_cuLaunchKernelEx", "_made_of", "_maps", "_moved", "_ready", "_spare", "_stream",
        "_values",
    )  # fmt: skip

    def __init__(self, launches: Sequence[Launch], arch: str, device: int):
        """Load the kernels, and compile those that the compile cache lacks.

        arch: the GPU's architecture, such as "sm_90a". device: the GPU's ordinal; it must be the current GPU.
        """
        self._busy = False
        self._made_of = launches, arch, device
        self._spare: LaunchSequence | None = None
        size = len(_OPERANDS) + sum(len(launch.arguments) for launch in launches)
        self._values = (ctypes.c_int64 * size)()  # first the operands, which all launches share
        self._moved: list[tuple[int, int, int]] = []  # (place in values, place of its operand, offset in bytes)
        self._maps: list[tuple[EncodedMap, int, int]] = []  # (map, place of its operand, offset in bytes)
        self._configs: list[_LaunchConfig] = []
        self._ready: list[tuple[Any, ctypes.c_void_p, ctypes.Array]] = []  # cuLaunchKernelEx: config, kernel, arguments
        self._stream = 0
        self._cuLaunchKernelEx = driver.library().cuLaunchKernelEx
        free = len(_OPERANDS)
        for launch in launches:
            kernel = _load(launch.variant(arch), launch.kernel, device)
            kernel.allow_shared(launch.shared_bytes)
            config = _LaunchConfig(launch.blocks, 1, 1, launch.threads, 1, 1, launch.shared_bytes)
            config.attrs, config.numAttrs = ctypes.addressof(_OVERLAP), int(launch.overlap)
            self._configs.append(config)
            self._ready.append((ctypes.byref(config), kernel.handle, self._lay_out(launch.arguments, free)))
            free += len(launch.arguments)

    def _lay_out(self, arguments: Sequence[Argument], free: int) -> ctypes.Array:
        """Pointers to the arguments, in order; numbers and offset addresses take the values' places from `free` on."""
        start, pointers = ctypes.addressof(self._values), []
        for place, argument in enumerate(arguments, free):
            if isinstance(argument, TensorMap):
                encoded, address = EncodedMap(argument), argument.address
                self._maps.append((encoded, _OPERANDS[address.operand], address.offset))
                pointers.append(encoded.pointer)
                continue
            if isinstance(argument, int):
                self._values[place] = argument
            elif argument.offset:
                self._moved.append((place, _OPERANDS[argument.operand], argument.offset))
            else:
                place = _OPERANDS[argument.operand]
            pointers.append(start + 8 * place)
        return (ctypes.c_void_p * len(pointers))(*pointers)

    def enqueue(
        self,
        stream: int,
        input: int,
        weight: int,
        bias: int,
        output: int,
        workspace: int,
        residual: int = 0,
        packed: int = 0,
        flags: int = 0,
    ) -> None:
        """Launch all kernels on a stream, given by its pointer; the address of an operand that is not used is 0."""
        if self._busy:
            self._spare = self._spare or LaunchSequence(*self._made_of)
            self._spare.enqueue(stream, input, weight, bias, output, workspace, residual, packed, flags)
            return
        self._busy = True
        try:
            values = self._values
            _write_operands(values, 0, input, weight, bias, output, workspace, residual, packed, flags)
            for place, operand, offset in self._moved:
                values[place] = values[operand] and values[operand] + offset
            for encoded, operand, offset in self._maps:
                encoded.move(values[operand] + offset)
            if stream != self._stream:
                for config in self._configs:
                    config.hStream = stream
                self._stream = stream
            for ready_config, kernel, arguments in self._ready:
                status = self._cuLaunchKernelEx(ready_config, kernel, arguments, None)
                if status:
                    driver.check(status)
        finally:
            self._busy = False


_OPERANDS = {address.operand: place for place, address in enumerate(OPERANDS)}
_write_operands = struct.Struct(f"={len(_OPERANDS)}q").pack_into


def is_available(variant: KernelVariant, device: int) -> bool:
    """Whether a kernel variant need not be compiled: it is loaded on the GPU, ships, or is in the compile cache."""
    if (variant, device) in _loaded or variant in _found:
        return True
    found = compiler.find(variant)
    if found is not None:
        if len(_found) >= MAX_FOUND:
            _found.clear()
        _found[variant] = found  # who asks loads it next, and need not read it again
    return found is not None


class Kernel:
    """A kernel of a module that is loaded on the current GPU; `handle` is its CUfunction."""

    def __init__(self, module: int, name: str):
        self.handle = ctypes.c_void_p(driver.kernel_of(module, name))
        if driver.kernel_attribute(self.handle, REQUIRED_CLUSTER_WIDTH) > PORTABLE_CLUSTER_BLOCKS:
            driver.set_kernel_attribute(self.handle, NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1)

    def allow_shared(self, shared_bytes: int) -> None:
        """Raise the kernel's limit of dynamic shared memory to this many bytes; never lower it.

        Two kernels may share a CUfunction, so the current limit is read from the driver. The 48 KiB by default include
        static shared memory, but the driver may report them for dynamic memory alone.
        """
        if not shared_bytes:
            return
        with _shared_limits:
            first = SHARED_BYTES_BY_DEFAULT - driver.kernel_attribute(self.handle, SHARED_SIZE_BYTES)
            limit = driver.kernel_attribute(self.handle, MAX_DYNAMIC_SHARED_SIZE_BYTES)
            if shared_bytes > (limit if limit > SHARED_BYTES_BY_DEFAULT else first):
                most = max(shared_bytes, limit)
                driver.set_kernel_attribute(self.handle, MAX_DYNAMIC_SHARED_SIZE_BYTES, most)


_shared_limits = threading.RLock()  # makes reading and raising a limit one step, also for a call within a call


@cache
def _load(variant: KernelVariant, name: str, device: int) -> Kernel:
    """The loaded kernel, one for each GPU; `device` must be the current one."""
    return Kernel(_module(variant, device), name)


@cache
def _module(variant: KernelVariant, device: int) -> int:
    """The loaded cubin, one for each GPU; `device` must be the current one."""
    found = _found.pop(variant, None) or compiler.cubin(variant)
    module = driver.load(found.code)
    _loaded.add((variant, device))
    return module


_loaded: set[tuple[KernelVariant, int]] = set()  # what `_module` has loaded
_found: dict[KernelVariant, Cubin] = {}  # what `is_available` has read


class _LaunchConfig(ctypes.Structure):
    """CUlaunchConfig of the driver's interface."""

    _fields_ = [
        *(
            (name, ctypes.c_uint)
            for name in ("gridDimX", "gridDimY", "gridDimZ", "blockDimX", "blockDimY", "blockDimZ")
        ),
        ("sharedMemBytes", ctypes.c_uint),
        ("hStream", ctypes.c_void_p),
        ("attrs", ctypes.c_void_p),
        ("numAttrs", ctypes.c_uint),
    ]


class _LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute of the driver's interface: an identifier and a union of 64 bytes."""

    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_int * 16)]


_OVERLAP = _LaunchAttribute(PROGRAMMATIC_STREAM_SERIALIZATION, 0, (1,))  # shared by all launches: it is only read
