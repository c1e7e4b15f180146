"""Compiled kernels: cubins ship, or are in the compile cache, or NVRTC compiles them.

The name of a kernel variant covers the source, the headers that it includes, the macros and the architecture. An edited
header therefore recompiles what includes it, and nothing else. `cuconv.shipped` has cubins by this name;
`cuconv.runtime.cubins`, the compile cache, by this name and the compiler's version.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from cuconv import shipped
from cuconv.core.launch import KernelVariant
from cuconv.runtime import cubins
from cuconv.runtime.cubins import Cubin

INCLUDES = Path(__file__).parents[1] / "algorithms"  # #include "common/hopper.cuh" is relative to this folder


class CompileError(RuntimeError):
    """A kernel must be compiled, and NVRTC is missing or refused it; the message then has NVRTC's log."""


@dataclass(frozen=True, slots=True)
class Resources:
    """The assembler's report on a kernel: registers and spill bytes of a thread, static shared bytes of a block.

    serialized: whether each wgmma instruction waits for the one before it, since the assembler could not tell when the
    registers of one are written.
    """

    kernel: str
    registers: int
    shared_bytes: int
    spill_bytes: int
    serialized: bool


def cubin(variant: KernelVariant) -> Cubin:
    """The cubin of a kernel variant; compiles it where `find` has none."""
    name = variant_name(variant)
    compiled = _find(variant.arch, name)
    if compiled is None:
        compiled = _compile(variant)
        cubins.write(_name_in_cache(name), compiled)
    return compiled


def find(variant: KernelVariant) -> Cubin | None:
    """The cubin of a kernel variant that ships, or that is in the compile cache; None where it must be compiled."""
    return _find(variant.arch, variant_name(variant))


def _find(arch: str, name: str) -> Cubin | None:
    found = shipped.read(arch, name)
    if found is None and _compiler_version() is not None:
        found = cubins.read(_name_in_cache(name))
    return found


def variant_name(variant: KernelVariant) -> str:
    """The name of a kernel variant, which no other variant has, and no other content of its source and headers."""
    is_of_package = variant.source.is_relative_to(INCLUDES)  # the package's sources do not change while it runs
    content = (_package_content if is_of_package else _content)(variant.source)
    return f"{variant.source.stem}-{variant.arch}-{_digest(content, variant)}"


@lru_cache(maxsize=2**14)
def _digest(content: bytes, variant: KernelVariant) -> str:
    return hashlib.sha256(repr(_options(variant)).encode() + content).hexdigest()[:20]


def _name_in_cache(name: str) -> str:
    return f"{name}-nvrtc{_compiler_version()}"


def included_files(source: Path) -> list[Path]:
    """A CUDA source and every header that it includes by #include "...", directly or indirectly, each once.

    A header is looked for next to the file that includes it, next to the source, and in INCLUDES. An include under #if
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


def resources(variant: KernelVariant) -> list[Resources]:
    """The assembler's report on each kernel of a variant."""
    return _parse_report(cubin(variant).log)


def _include_folders(source: Path) -> tuple[Path, Path]:
    """The folders that the compiler searches for a header."""
    return source.parent, INCLUDES


def _options(variant: KernelVariant) -> list[str]:
    """The compiler's options but for the paths: the same package in another folder compiles to the same kernels."""
    defines = [f"-D{name}={value}" for name, value in variant.macros]
    return [f"--gpu-architecture={variant.arch}", "--std=c++17", "--ptxas-options=-v", *defines]


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


def _compile(variant: KernelVariant) -> Cubin:
    source = variant.source
    if _compiler_version() is None:
        raise CompileError(
            f"cuConv has no compiled {source.stem} for {variant.arch}, and NVRTC, which compiles it, is not found: "
            "run 'pip install cuda-bindings nvidia-cuda-nvrtc' for CUDA 13 or "
            "'pip install \"cuda-bindings<13\" nvidia-cuda-nvrtc-cu12' for CUDA 12"
        )
    from cuda.bindings import nvrtc

    options = [*_options(variant), *(f"--include-path={folder}" for folder in _include_folders(source))]
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
    serialized = set(re.findall(r"wgmma\.mma_async instructions are serialized .* function '(\w+)'", log))
    for entry in re.split(r"Compiling entry function '", log)[1:]:
        registers = re.search(r"Used (\d+) registers", entry)
        shared = re.search(r"(\d+) bytes smem", entry)
        spills = sum(int(n) for n in re.findall(r"(\d+) bytes spill", entry))
        kernel, shared_bytes = entry.split("'", 1)[0], int(shared[1]) if shared else 0
        report.append(
            Resources(kernel, int(registers[1]) if registers else 0, shared_bytes, spills, kernel in serialized)
        )
    return report
