"""CUDA source to loaded kernel: compile with NVRTC, keep the cubin on disk, load it through CuPy.

The cache key covers the source, every header beside it, the options and the compiler's version, so an edited
header never meets a stale kernel. The source and the compiler's report are kept beside the binary.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ARCHITECTURES = ("sm_80", "sm_90a", "sm_100")  # what the tests compile for


class LaunchError(RuntimeError):
    """The driver refused a launch."""


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


def resources(source: Path, arch: str, macros: Mapping[str, int]) -> list[Resources]:
    """The assembler's report for each kernel of a .cu file."""
    return _parse_report(cubin(source, arch, macros).with_suffix(".log").read_text())


class Kernel:
    """A loaded kernel. Call it with a grid and block size, arguments of eight bytes each, and a stream pointer."""

    def __init__(self, source: Path, arch: str, macros: Mapping[str, int], name: str, overlap: bool = False):
        """overlap: the kernel may start before the one ahead of it in the stream ends, and waits by itself
        (griddepcontrol, compute capability 9.0) before it touches global memory."""
        import cupy

        module = cupy.RawModule(path=str(cubin(source, arch, macros)))
        self._kernel = module.get_function(name)  # keeps the module alive
        self._function = ctypes.c_void_p(self._kernel.kernel.ptr)
        self._attributes = (_LaunchAttribute * 1)()
        self._attributes[0].id, self._attributes[0].value[0] = PROGRAMMATIC_STREAM_SERIALIZATION, 1
        self._attribute_list = (ctypes.addressof(self._attributes), int(overlap))
        self._shared_limit = SHARED_BYTES_BY_DEFAULT
        cluster = ctypes.c_int()
        _check(_driver().cuFuncGetAttribute(ctypes.byref(cluster), REQUIRED_CLUSTER_WIDTH, self._function))
        if cluster.value > PORTABLE_CLUSTER:
            _check(_driver().cuFuncSetAttribute(self._function, NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1))

    def __call__(self, blocks: int, threads: int, arguments: Sequence[int], shared_bytes: int, stream: int) -> None:
        """Enqueue on the stream; arguments are device pointers and integers in the kernel's order."""
        if shared_bytes > self._shared_limit:
            _check(_driver().cuFuncSetAttribute(self._function, MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes))
            self._shared_limit = shared_bytes
        config = _LaunchConfig(blocks, 1, 1, threads, 1, 1, shared_bytes, stream, *self._attribute_list)
        values = (ctypes.c_int64 * len(arguments))(*arguments)
        start = ctypes.addressof(values)
        pointers = (ctypes.c_void_p * len(arguments))(*range(start, start + 8 * len(arguments), 8))
        _check(_driver().cuLaunchKernelEx(ctypes.byref(config), self._function, pointers, None))


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


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _check(status: int) -> None:
    if status:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(status, ctypes.byref(text))
        raise LaunchError(f"the CUDA driver says: {(text.value or b'unknown error').decode()} ({status})")


@dataclass(frozen=True, slots=True)
class Pointers:
    """Device addresses of a convolution's operands; bias and workspace are 0 where there is none."""

    input: int
    weight: int
    output: int
    bias: int = 0
    workspace: int = 0


@dataclass(frozen=True, slots=True)
class Launcher:
    """Where kernels run: the compiler's target, the GPU's ordinal (the current one) and the stream's pointer."""

    arch: str
    device: int
    stream: int

    def __call__(
        self,
        source: Path,
        macros: Mapping[str, int],
        kernel: str,
        blocks: int,
        threads: int,
        arguments: Sequence[int],
        shared_bytes: int = 0,
        overlap: bool = False,
    ) -> None:
        """Compile on first use, then enqueue one kernel; every argument is a pointer or an integer.

        overlap: as of Kernel, for kernels that wait by themselves.
        """
        loaded = _load(source, self.arch, tuple(macros.items()), kernel, overlap, self.device)
        loaded(blocks, threads, arguments, shared_bytes, self.stream)


@cache
def _load(
    source: Path, arch: str, macros: tuple[tuple[str, int], ...], name: str, overlap: bool, device: int
) -> Kernel:
    """`device` keeps one loaded copy for each GPU."""
    return Kernel(source, arch, dict(macros), name, overlap)


def _options(source: Path, arch: str, macros: Mapping[str, int]) -> list[str]:
    defines = [f"-D{name}={value}" for name, value in sorted(macros.items())]
    return [
        f"--gpu-architecture={arch}",
        "--std=c++17",
        "--generate-line-info",
        "--ptxas-options=-v",
        f"--include-path={source.parent}",
        *defines,
    ]


def _key(source: Path, options: list[str]) -> str:
    digest = hashlib.sha256(repr((options, _compiler_version())).encode())
    for path in (source, *sorted(source.parent.glob("*.cuh"))):
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
