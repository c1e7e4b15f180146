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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ARCHITECTURES = ("sm_80", "sm_90a", "sm_100")  # what the tests compile for


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

    def __init__(self, source: Path, arch: str, macros: Mapping[str, int], name: str):
        import cupy

        module = cupy.RawModule(path=str(cubin(source, arch, macros)))
        self._kernel = module.get_function(name)  # keeps the module alive
        self._function = self._kernel.kernel.ptr
        self._launch = cupy.cuda.driver.launchKernel

    def __call__(self, blocks: int, threads: int, arguments: Iterable[int], shared_bytes: int, stream: int) -> None:
        """Enqueue on the stream; arguments are device pointers and integers in the kernel's order."""
        values = [ctypes.c_int64(value) for value in arguments]
        pointers = (ctypes.c_void_p * len(values))(*[ctypes.addressof(value) for value in values])
        self._launch(self._function, blocks, 1, 1, threads, 1, 1, shared_bytes, stream, ctypes.addressof(pointers), 0)


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
        arguments: Iterable[int],
        shared_bytes: int = 0,
    ) -> None:
        """Compile on first use, then enqueue one kernel; every argument is a pointer or an integer."""
        loaded = _load(source, self.arch, tuple(macros.items()), kernel, self.device)
        loaded(blocks, threads, arguments, shared_bytes, self.stream)


@cache
def _load(source: Path, arch: str, macros: tuple[tuple[str, int], ...], name: str, device: int) -> Kernel:
    """`device` keeps one loaded copy for each GPU."""
    return Kernel(source, arch, dict(macros), name)


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
