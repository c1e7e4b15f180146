"""From CUDA source to launches: cubins ship, or NVRTC compiles them; the driver loads and launches.

The name of a kernel variant covers the source, the headers that it includes, the macros and the architecture. An edited
header therefore recompiles what includes it, and nothing else. `cuconv.shipped` has cubins by this name;
`cuconv.cubins`, the compile cache, by this name and the compiler's version.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
import struct
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from cuconv import cubins, driver, shipped
from cuconv.cubins import Cubin
from cuconv.device import PORTABLE_CLUSTER_BLOCKS

INCLUDES = Path(__file__).parent / "algorithms"  # #include "common/hopper.cuh" is relative to this folder
SHARED_BYTES_BY_DEFAULT = 48 * 1024  # a kernel that needs more dynamic shared memory must ask the driver for it
# Values of the driver's enumerations CUfunction_attribute and CUlaunchAttributeID.
MAX_DYNAMIC_SHARED_SIZE_BYTES = 8
REQUIRED_CLUSTER_WIDTH = 11
NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 14
PROGRAMMATIC_STREAM_SERIALIZATION = 6
MAX_FOUND = 32  # cubins that were read and not loaded yet


class CompileError(RuntimeError):
    """A kernel must be compiled, and NVRTC is missing or refused it; the message then has NVRTC's log."""


@dataclass(frozen=True, slots=True)
class Resources:
    """The assembler's report on a kernel: registers and spill bytes of a thread, static shared bytes of a block."""

    kernel: str
    registers: int
    shared_bytes: int
    spill_bytes: int


def is_at_hand(source: Path, arch: str, macros: Mapping[str, int], device: int) -> bool:
    """Whether a kernel variant need not be compiled: it is loaded on the GPU, ships, or is in the compile cache."""
    variant = source, arch, tuple(macros.items())
    if (*variant, device) in _loaded or variant in _found:
        return True
    found = find(source, arch, macros)
    if found is not None:
        if len(_found) >= MAX_FOUND:
            _found.clear()
        _found[variant] = found  # who asks loads it next, and need not read it again
    return found is not None


def cubin(source: Path, arch: str, macros: Mapping[str, int]) -> Cubin:
    """The cubin of a .cu file for an architecture such as "sm_90a"; compiles the file where `find` has none."""
    name = variant_name(source, arch, macros)
    compiled = _find(arch, name)
    if compiled is None:
        compiled = _compile(source, arch, macros)
        cubins.write(_name_in_cache(name), compiled)
    return compiled


def find(source: Path, arch: str, macros: Mapping[str, int]) -> Cubin | None:
    """The cubin of a kernel variant that ships, or that is in the compile cache; None where it must be compiled."""
    return _find(arch, variant_name(source, arch, macros))


def _find(arch: str, name: str) -> Cubin | None:
    found = shipped.read(arch, name)
    if found is None and _compiler_version() is not None:
        found = cubins.read(_name_in_cache(name))
    return found


def variant_name(source: Path, arch: str, macros: Mapping[str, int]) -> str:
    """The name of a kernel variant, which no other variant has, and no other content of its source and headers."""
    is_of_package = source.is_relative_to(INCLUDES)  # which does not change while it runs
    content = (_package_content if is_of_package else _content)(source)
    return f"{source.stem}-{arch}-{_digest(content, arch, tuple(sorted(macros.items())))}"


@lru_cache(maxsize=2**14)
def _digest(content: bytes, arch: str, macros: tuple[tuple[str, int], ...]) -> str:
    return hashlib.sha256(repr(_options(arch, dict(macros))).encode() + content).hexdigest()[:20]


def _name_in_cache(name: str) -> str:
    return f"{name}-nvrtc{_compiler_version()}"


def included_files(source: Path) -> list[Path]:
    """A CUDA source and every header that it includes by #include "...", directly or indirectly, each once.

    A header is looked for beside the file that includes it, beside the source, and in INCLUDES. An include under #if
    counts whether or not it is taken. A header that does not exist is left out: it may be under such an #if, and if
    it is needed the compiler says so.
    """
    found = [source]
    for path in found:  # the loop also walks what it appends
        for name in re.findall(r'^\s*#\s*include\s*"([^"]+)"', path.read_text(), re.MULTILINE):
            places = (folder / name for folder in (path.parent, *_include_folders(source)))
            header = next((place for place in places if place.is_file()), None)
            if header is not None and header not in found:
                found.append(header)
    return found


def resources(source: Path, arch: str, macros: Mapping[str, int]) -> list[Resources]:
    """The assembler's report on each kernel of a .cu file."""
    return _parse_report(cubin(source, arch, macros).log)


@dataclass(frozen=True, slots=True)
class Address:
    """The address of an operand, as a kernel's argument that is filled in at each call; 0 where there is no operand.

    `INPUT + n` is n bytes after the start of the input, and 0 too where there is none.
    """

    operand: str
    offset: int = 0

    def __add__(self, offset: int) -> Address:
        return Address(self.operand, self.offset + offset)


OPERANDS = INPUT, WEIGHT, BIAS, OUTPUT, WORKSPACE, RESIDUAL, PACKED, FLAGS = tuple(
    map(Address, ("input", "weight", "bias", "output", "workspace", "residual", "packed", "flags"))
)


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch of a convolution: a kernel variant, its grid and block, and its arguments in order.

    Every argument has eight bytes. overlap: launch with programmatic stream serialization. The kernel may then start
    before the one ahead in the stream ends, and must execute griddepcontrol.wait (compute capability 9.0) before it
    touches global memory.
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
    """Launches prepared for a GPU: the kernels are loaded, and only addresses and stream are still to be filled in.

    The driver reads the arguments from memory that the sequence owns. A sequence must therefore not be shared by
    threads. A signal handler or a finaliser may call it in the middle of another call of its thread: that call gets a
    sequence of its own.
    """

    __slots__ = (
        *("_busy", "_configs", "_cuLaunchKernelEx", "_made_of", "_moved", "_ready", "_spare", "_stream", "_values"),
    )

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
        self._configs: list[_LaunchConfig] = []
        self._ready: list[tuple[Any, ctypes.c_void_p, ctypes.Array]] = []  # cuLaunchKernelEx: config, kernel, arguments
        self._stream = 0
        self._cuLaunchKernelEx = driver.library().cuLaunchKernelEx
        free = len(_OPERANDS)
        for launch in launches:
            kernel = _load(launch.source, arch, tuple(launch.macros.items()), launch.kernel, device)
            kernel.allow_shared(launch.shared_bytes)
            config = _LaunchConfig(launch.blocks, 1, 1, launch.threads, 1, 1, launch.shared_bytes)
            config.attrs, config.numAttrs = ctypes.addressof(_OVERLAP), int(launch.overlap)
            self._configs.append(config)
            self._ready.append((ctypes.byref(config), kernel.handle, self._lay_out(launch.arguments, free)))
            free += len(launch.arguments)

    def _lay_out(self, arguments: Sequence[Address | int], free: int) -> ctypes.Array:
        """Pointers to the arguments, in order; numbers and offset addresses take the values' places from `free` on."""
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


class Kernel:
    """A kernel of a module that is loaded on the current GPU; `handle` is its CUfunction."""

    def __init__(self, module: int, name: str):
        self.handle = ctypes.c_void_p(driver.kernel_of(module, name))
        if driver.kernel_attribute(self.handle, REQUIRED_CLUSTER_WIDTH) > PORTABLE_CLUSTER_BLOCKS:
            driver.set_kernel_attribute(self.handle, NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1)

    def allow_shared(self, shared_bytes: int) -> None:
        """Raise the kernel's limit of dynamic shared memory to this many bytes; never lower it.

        Two kernels may share a CUfunction, so the current limit is read from the driver.
        """
        if shared_bytes <= SHARED_BYTES_BY_DEFAULT:
            return
        with _shared_limits:
            if shared_bytes > driver.kernel_attribute(self.handle, MAX_DYNAMIC_SHARED_SIZE_BYTES):
                driver.set_kernel_attribute(self.handle, MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes)


_shared_limits = threading.RLock()  # makes reading and raising a limit one step, also for a call within a call


@cache
def _load(source: Path, arch: str, macros: tuple[tuple[str, int], ...], name: str, device: int) -> Kernel:
    """The loaded kernel, one for each GPU; `device` must be the current one."""
    return Kernel(_module(source, arch, macros, device), name)


@cache
def _module(source: Path, arch: str, macros: tuple[tuple[str, int], ...], device: int) -> int:
    """The loaded cubin, one for each GPU; `device` must be the current one."""
    found = _found.pop((source, arch, macros), None) or cubin(source, arch, dict(macros))
    module = driver.load(found.code)
    _loaded.add((source, arch, macros, device))
    return module


_loaded: set[tuple[Path, str, tuple[tuple[str, int], ...], int]] = set()  # what `_module` has loaded
_found: dict[tuple[Path, str, tuple[tuple[str, int], ...]], Cubin] = {}  # what `is_at_hand` has read


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


def _include_folders(source: Path) -> tuple[Path, Path]:
    """The folders that the compiler searches for a header."""
    return source.parent, INCLUDES


def _options(arch: str, macros: Mapping[str, int]) -> list[str]:
    """The compiler's options but for the paths: the same package in another folder compiles to the same kernels."""
    defines = [f"-D{name}={value}" for name, value in sorted(macros.items())]
    return [f"--gpu-architecture={arch}", "--std=c++17", "--ptxas-options=-v", *defines]


def _content(source: Path) -> bytes:
    """A digest of the contents of a source and of the headers that it includes."""
    digest = hashlib.sha256()
    for path in included_files(source):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.digest()


_package_content = cache(_content)


@cache
def _compiler_version() -> str | None:
    """NVRTC's version, such as "13.0"; None where NVRTC or cuda-bindings is not installed."""
    try:
        from cuda.bindings import nvrtc

        _, major, minor = nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError):
        return None
    return f"{major}.{minor}"


def _compile(source: Path, arch: str, macros: Mapping[str, int]) -> Cubin:
    if _compiler_version() is None:
        raise CompileError(
            f"cuConv has no compiled {source.stem} for {arch}, and NVRTC, which compiles it, is not found: "
            "run 'pip install cuda-bindings nvidia-cuda-nvrtc' for CUDA 13 or "
            "'pip install \"cuda-bindings<13\" nvidia-cuda-nvrtc-cu12' for CUDA 12"
        )
    from cuda.bindings import nvrtc

    options = [*_options(arch, macros), *(f"--include-path={folder}" for folder in _include_folders(source))]
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
        return Cubin(code, text)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


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
