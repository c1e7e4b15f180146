"""CUDA source to launches: compile with NVRTC, keep the cubin on disk, load it through CuPy, enqueue.

The cache key covers the source, every header beside it, the options and the compiler's version, so an edited
header never meets a stale kernel. The source and the compiler's report are kept beside the binary.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import struct
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path


class LaunchError(RuntimeError):
    """The driver refused a launch."""


INCLUDES = Path(__file__).parent / "algorithms"  # the folder that #include "..." starts from
SHARED_BYTES_BY_DEFAULT = 48 * 1024  # a kernel must ask for more
PORTABLE_CLUSTER = 8  # blocks; a kernel in larger clusters must ask for them
# Of the driver's enumerations CUfunction_attribute and CUlaunchAttributeID.
MAX_DYNAMIC_SHARED_SIZE_BYTES = 8
REQUIRED_CLUSTER_WIDTH = 11
NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 14
PROGRAMMATIC_STREAM_SERIALIZATION = 6


class CompileError(RuntimeError):
    """NVRTC refused a kernel; the message is its log."""


@dataclass(frozen=True, slots=True)
class Resources:
    """What the assembler gave a kernel, per thread (registers, spill bytes) and per block (static shared bytes)."""

    kernel: str
    registers: int
    shared_bytes: int
    spill_bytes: int


def cache_folder() -> Path:
    """Where cubins are kept: $CUCONV_CACHE_DIR, or ~/.cache/cuconv."""
    return Path(os.environ.get("CUCONV_CACHE_DIR") or Path.home() / ".cache" / "cuconv")


def cubin(source: Path, arch: str, macros: Mapping[str, int]) -> Path:
    """The compiled form of a .cu file for an architecture such as "sm_90a", from the cache or made now."""
    options = _options(source, arch, macros)
    binary = cache_folder() / f"{source.stem}-{arch}-{_key(source, options)}.cubin"
    if not binary.exists():
        code, log = _compile(source, options)
        _write_atomically(binary.with_suffix(".cu"), source.read_bytes())
        _write_atomically(binary.with_suffix(".log"), log.encode())
        _write_atomically(binary, code)  # last: its presence says that the others are there
    return binary


def included_files(source: Path) -> list[Path]:
    """A CUDA source and every header that it includes, directly or not, in order of their first inclusion.

    Conditional includes count whether or not they are taken: a change of any of them recompiles the source.
    """
    found = [source]
    for path in found:  # grows while it is walked
        for name in re.findall(r'^\s*#\s*include "([^"]+)"', path.read_text(), re.MULTILINE):
            header = INCLUDES / name
            if header not in found:
                found.append(header)
    return found


def resources(source: Path, arch: str, macros: Mapping[str, int]) -> list[Resources]:
    """The assembler's report for each kernel of a .cu file."""
    return _parse_report(cubin(source, arch, macros).with_suffix(".log").read_text())


@dataclass(frozen=True, slots=True)
class Address:
    """Where an operand of a convolution lies, as an argument of a kernel: known only when a call is made.

    `INPUT + n` is n bytes further on. The address of an operand that a call does not have is 0.
    """

    operand: str
    offset: int = 0

    def __add__(self, offset: int) -> Address:
        return Address(self.operand, self.offset + offset)


INPUT, WEIGHT, BIAS, OUTPUT, WORKSPACE = map(Address, ("input", "weight", "bias", "output", "workspace"))


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel of a convolution: a form of its source, its grid and block, and its arguments in the kernel's order.

    The driver is given eight bytes for each argument. overlap: the kernel may start before the one ahead of it in the
    stream ends, and waits by itself (griddepcontrol, compute capability 9.0) before it touches global memory.
    """

    source: Path
    macros: Mapping[str, int]
    kernel: str
    blocks: int
    threads: int
    arguments: tuple[Address | int, ...]
    shared_bytes: int = 0
    overlap: bool = False


class LaunchSequence:
    """Launches made ready for a GPU: kernels loaded, everything in its place but the addresses and the stream.

    The driver reads arguments from memory that the sequence owns, so that a sequence serves one thread at a time.
    """

    __slots__ = ("_configs", "_cuLaunchKernelEx", "_kernels", "_moved", "_ready", "_stream", "_values")

    def __init__(self, launches: Sequence[Launch], arch: str, device: int):
        """arch: such as "sm_90a". device: the GPU's ordinal, the current one. Compiles what was never compiled."""
        size = len(_OPERANDS) + sum(len(launch.arguments) for launch in launches)
        self._values = (ctypes.c_int64 * size)()  # the operands first, in common to all launches
        self._moved: list[tuple[int, int, int]] = []  # (place in values, place of its operand, offset in bytes)
        self._configs: list[_LaunchConfig] = []
        self._kernels: list[Kernel] = []  # kept loaded
        self._ready = []  # (configuration, kernel, pointers to the arguments), as the driver takes them
        self._stream = 0
        self._cuLaunchKernelEx = _driver().cuLaunchKernelEx
        free = len(_OPERANDS)
        for launch in launches:
            kernel = _load(launch.source, arch, tuple(launch.macros.items()), launch.kernel, device)
            kernel.allow_shared(launch.shared_bytes)
            config = _LaunchConfig(launch.blocks, 1, 1, launch.threads, 1, 1, launch.shared_bytes)
            config.attrs, config.numAttrs = ctypes.addressof(_OVERLAP), int(launch.overlap)
            self._configs.append(config)
            self._kernels.append(kernel)
            self._ready.append((ctypes.byref(config), kernel.handle, self._lay_out(launch.arguments, free)))
            free += len(launch.arguments)

    def _lay_out(self, arguments: Sequence[Address | int], free: int) -> ctypes.Array:
        """Put arguments into the places from `free` on; the pointers to them, in order."""
        start, pointers = ctypes.addressof(self._values), []
        for place, argument in enumerate(arguments, free):
            if isinstance(argument, int):
                self._values[place] = argument
            elif argument.offset:
                self._moved.append((place, _OPERANDS[argument.operand], argument.offset))
            else:
                place = _OPERANDS[argument.operand]
            pointers.append(start + 8 * place)
        return (ctypes.c_void_p * len(pointers))(*pointers)

    def enqueue(self, stream: int, input: int, weight: int, bias: int, output: int, workspace: int) -> None:
        """Launch on a stream, given by its pointer, with the addresses of the operands, 0 for those that are not."""
        values = self._values
        _write_operands(values, 0, input, weight, bias, output, workspace)
        for place, operand, offset in self._moved:
            values[place] = values[operand] + offset
        if stream != self._stream:
            for config in self._configs:
                config.hStream = stream
            self._stream = stream
        for config, kernel, arguments in self._ready:
            status = self._cuLaunchKernelEx(config, kernel, arguments, None)
            if status:
                _check(status)


_OPERANDS = {address.operand: place for place, address in enumerate((INPUT, WEIGHT, BIAS, OUTPUT, WORKSPACE))}
_write_operands = struct.Struct(f"={len(_OPERANDS)}q").pack_into


class Kernel:
    """A loaded kernel; `handle` is the driver's."""

    def __init__(self, source: Path, arch: str, macros: Mapping[str, int], name: str):
        import cupy

        module = cupy.RawModule(path=str(cubin(source, arch, macros)))
        self._kernel = module.get_function(name)  # keeps the module alive
        self.handle = ctypes.c_void_p(self._kernel.kernel.ptr)
        if self._attribute(REQUIRED_CLUSTER_WIDTH) > PORTABLE_CLUSTER:
            self._set_attribute(NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1)

    def allow_shared(self, shared_bytes: int) -> None:
        """Let blocks ask for this much shared memory; more, once allowed, stays so.

        The driver's function may have been given to another Kernel too, so that it is the driver that knows.
        """
        if shared_bytes <= SHARED_BYTES_BY_DEFAULT:
            return
        with _shared_limits:
            if shared_bytes > self._attribute(MAX_DYNAMIC_SHARED_SIZE_BYTES):
                self._set_attribute(MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes)

    def _attribute(self, attribute: int) -> int:
        value = ctypes.c_int()
        _check(_driver().cuFuncGetAttribute(ctypes.byref(value), attribute, self.handle))
        return value.value

    def _set_attribute(self, attribute: int, value: int) -> None:
        _check(_driver().cuFuncSetAttribute(self.handle, attribute, value))


_shared_limits = threading.Lock()  # held from reading a function's limit to raising it


@cache
def _load(source: Path, arch: str, macros: tuple[tuple[str, int], ...], name: str, device: int) -> Kernel:
    """`device` keeps one loaded copy for each GPU, the current one."""
    return Kernel(source, arch, dict(macros), name)


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


_OVERLAP = _LaunchAttribute(PROGRAMMATIC_STREAM_SERIALIZATION, 0, (1,))  # the driver only reads it


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _check(status: int) -> None:
    if status:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(status, ctypes.byref(text))
        raise LaunchError(f"the CUDA driver says: {(text.value or b'unknown error').decode()} ({status})")


def _options(source: Path, arch: str, macros: Mapping[str, int]) -> list[str]:
    defines = [f"-D{name}={value}" for name, value in sorted(macros.items())]
    return [
        f"--gpu-architecture={arch}",
        "--std=c++17",
        "--generate-line-info",
        "--ptxas-options=-v",
        f"--include-path={INCLUDES}",
        *defines,
    ]


def _key(source: Path, options: list[str]) -> str:
    named = [option for option in options if not option.startswith("--include-path")]  # wherever the package lies
    digest = hashlib.sha256(repr((named, _compiler_version())).encode())
    for path in included_files(source):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:20]


@cache
def _compiler_version() -> tuple[int, int]:
    from cuda.bindings import nvrtc

    _, major, minor = nvrtc.nvrtcVersion()
    return (major, minor)


def _compile(source: Path, options: list[str]) -> tuple[bytes, str]:
    from cuda.bindings import nvrtc

    status, program = nvrtc.nvrtcCreateProgram(source.read_bytes(), source.name.encode(), 0, [], [])
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise CompileError(f"NVRTC cannot start: {status.name}")
    try:
        status = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])[0]
        log = b" " * nvrtc.nvrtcGetProgramLogSize(program)[1]
        nvrtc.nvrtcGetProgramLog(program, log)
        text = log.rstrip(b"\0 ").decode()
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise CompileError(f"{source.name} does not compile with {' '.join(options)} ({status.name}):\n{text}")
        code = b" " * nvrtc.nvrtcGetCUBINSize(program)[1]
        nvrtc.nvrtcGetCUBIN(program, code)
        return code, text
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _write_atomically(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(content)
    os.replace(file.name, path)


def _parse_report(log: str) -> list[Resources]:
    report = []
    for entry in re.split(r"Compiling entry function '", log)[1:]:
        registers = re.search(r"Used (\d+) registers", entry)
        shared = re.search(r"(\d+) bytes smem", entry)
        spills = sum(int(n) for n in re.findall(r"(\d+) bytes spill", entry))
        report.append(
            Resources(
                entry.split("'", 1)[0],
                int(registers[1]) if registers else 0,
                int(shared[1]) if shared else 0,
                spills,
            )
        )
    return report
