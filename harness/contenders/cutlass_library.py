"""CUTLASS's 3xTF32 convolutions as shared libraries: the kernels there are, and how nvcc builds and ctypes calls them.

Each kernel is a library of its own, so that all cores compile. The libraries are kept in the folder of cuConv's cache.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import weakref
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from math import ceil
from pathlib import Path

import torch

from cuconv.core.problem import ConvProblem
from cuconv.runtime import cubins
from harness import progress
from harness.contenders.base import Unavailable
from harness.errors import UserError

SOURCE = Path(__file__).with_name("cutlass_conv2d.cu")
REMEDY = "pip install --no-deps nvidia-cutlass, or set CUTLASS_PATH to a checkout of CUTLASS"
# Block tile M x N x K, warps along M and N, stages: the tiles that CUTLASS's own library has for 3xTF32
# (cutlass_library/generator.py, GenerateSM80_TensorOp_1688_fast_fp32_math).
TILES = (
    (128, 128, 16, 4, 2, 4),
    (128, 128, 16, 4, 2, 3),
    (256, 64, 16, 4, 2, 3),
    (64, 256, 16, 2, 4, 3),
    (128, 64, 16, 2, 2, 4),
    (64, 128, 16, 2, 2, 4),
    (64, 64, 16, 2, 2, 3),
    (128, 128, 32, 4, 2, 3),
    (256, 64, 32, 4, 2, 3),
    (64, 256, 32, 2, 4, 3),
    (128, 64, 32, 2, 2, 3),
    (64, 128, 32, 2, 2, 3),
    (64, 64, 32, 2, 2, 3),
)
FEW_TILES = ((128, 128, 16, 4, 2, 3), (128, 64, 16, 2, 2, 4), (64, 64, 16, 2, 2, 3))  # for odd channels or filters


class CompileFailed(UserError):
    """nvcc refused CUTLASS's headers or the source; the message has its first error."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """An instance of CUTLASS's DefaultConv2dFprop.

    M counts output pixels of all images, N filters, K channels of one filter position. input_alignment is that of the
    channels of input and weight, output_alignment that of the filters, in elements of one access. iterator is a value
    of cutlass::conv::IteratorAlgorithm: kFewChannels packs several filter positions into a tile's K.
    """

    tile_m: int
    tile_n: int
    tile_k: int
    warps_m: int
    warps_n: int
    stages: int
    input_alignment: int = 4
    output_alignment: int = 4
    iterator: str = "kOptimized"

    @property
    def name(self) -> str:
        """The kernel in a word: block tile, stages, alignments and the iterator."""
        tile = f"{self.tile_m}x{self.tile_n}x{self.tile_k}"
        return f"{tile}_{self.stages}_align{self.input_alignment}{self.output_alignment}_{self.iterator}"

    @property
    def macros(self) -> dict[str, int | str]:
        """The macros of the source by name: the fields in capitals."""
        return {name.upper(): getattr(self, name) for name in self.__dataclass_fields__}

    def blocks(self, problem: ConvProblem) -> int:
        """The thread blocks of a launch without split-K."""
        return ceil(problem.n * problem.out_pixels / self.tile_m) * ceil(problem.m / self.tile_n)

    def split_counts(self, problem: ConvProblem, multiprocessors: int) -> list[int]:
        """The numbers of split-K slices worth a try: powers of two, until the blocks fill the GPU twice.

        Each slice has a tile of channels at least. CUTLASS splits no kFewChannels kernel.
        """
        counts = [1]
        if self.iterator == "kFewChannels":
            return counts
        blocks, limit = self.blocks(problem), problem.c // self.tile_k
        while 2 * counts[-1] <= limit and blocks * counts[-1] < 2 * multiprocessors:
            counts.append(2 * counts[-1])
        return counts


def kernels_for(problem: ConvProblem) -> list[Kernel]:
    """The kernels that compute a problem, by the largest accesses that its channels and filters allow."""
    input_alignment, output_alignment = (4 if count % 4 == 0 else 1 for count in (problem.c, problem.m))
    # A tile's K is one filter position alone in kOptimized, so that fewer channels than 16 leave a part of it idle.
    iterators = ("kOptimized", "kFewChannels") if problem.c < 16 else ("kOptimized",)
    tiles = TILES if input_alignment == output_alignment == 4 else FEW_TILES
    return [Kernel(*tile, input_alignment, output_alignment, iterator) for iterator in iterators for tile in tiles]


# Compiling.


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A path of nvcc, CUTLASS's folder of headers, and the versions of both."""

    nvcc: str
    includes: Path
    nvcc_version: str
    cutlass_version: str

    @classmethod
    def find(cls) -> Toolchain:
        """The toolchain of this machine. Raises Unavailable, with the remedy, where a part of it is missing."""
        toolkit = os.environ.get("CUDA_HOME", "/usr/local/cuda")
        nvcc = shutil.which("nvcc") or shutil.which("nvcc", path=f"{toolkit}/bin")
        if nvcc is None:
            raise Unavailable("nvcc, which compiles CUTLASS, is not found: install the CUDA toolkit, or add it to PATH")
        includes = _includes()
        told = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False).stdout
        release = re.search(r"V(\d+\.\d+\.\d+)", told)
        text = (includes / "cutlass" / "version.h").read_text()
        numbers = (re.search(rf"#define CUTLASS_{part} (\d+)", text) for part in ("MAJOR", "MINOR", "PATCH"))
        version = ".".join(number[1] if number else "?" for number in numbers)
        return cls(nvcc, includes, release[1] if release else "unknown", version)

    def command(self, kernel: Kernel, arch: str, output: Path) -> list[str]:
        """The command that compiles a kernel into a shared library; arch: such as "sm_90"."""
        return [self.nvcc, *_flags(kernel, arch), f"-I{self.includes}", "-o", str(output), str(SOURCE)]

    def library_path(self, kernel: Kernel, arch: str) -> Path:
        """The place of a kernel's library in the cache; its key covers source, flags and versions, and no paths."""
        digest = hashlib.sha256(SOURCE.read_bytes())
        digest.update(repr((_flags(kernel, arch), self.nvcc_version, self.cutlass_version)).encode())
        return cubins.folder() / "cutlass" / f"{kernel.name}-{arch}-{digest.hexdigest()[:20]}.so"

    def compile(self, kernel: Kernel, arch: str) -> Path:
        """The library of a kernel, compiled unless the cache has it. Raises CompileFailed."""
        path = self.library_path(kernel, arch)
        if path.exists():
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            made = Path(folder) / path.name
            done = subprocess.run(self.command(kernel, arch, made), capture_output=True, text=True, check=False)
            if done.returncode:
                raise CompileFailed(_why(kernel, done.stderr))
            os.replace(made, path)
        return path

    def compile_all(self, kernels: Iterable[Kernel], arch: str) -> None:
        """Compile the kernels that the cache lacks, several at once, with a progress bar. Raises CompileFailed."""
        missing = [kernel for kernel in dict.fromkeys(kernels) if not self.library_path(kernel, arch).exists()]
        if not missing:
            return
        with ThreadPoolExecutor(max(1, (os.cpu_count() or 2) - 1)) as threads:
            jobs = [threads.submit(self.compile, kernel, arch) for kernel in missing]
            try:
                for job in progress.counted(jobs, "compiling CUTLASS"):
                    job.result()
            finally:
                threads.shutdown(cancel_futures=True)


def _includes() -> Path:
    """CUTLASS's folder of headers: of $CUTLASS_PATH, or of the installed wheel nvidia-cutlass."""
    root, where = os.environ.get("CUTLASS_PATH"), "this environment"
    if root:
        folders = [Path(root) / "include"]
        where = f"CUTLASS_PATH={root}"
    else:
        wheel = find_spec("cutlass_library")  # found and not imported: it imports packages that nothing here needs
        folders = (
            [Path(place) / "source" / "include" for place in wheel.submodule_search_locations or ()] if wheel else []
        )
    for folder in folders:
        if (folder / "cutlass" / "version.h").is_file():
            return folder.resolve()
    raise Unavailable(f"CUTLASS's headers are not found in {where}: {REMEDY}")


def _flags(kernel: Kernel, arch: str) -> list[str]:
    defines = [f"-D{name}={value}" for name, value in kernel.macros.items()]
    return ["-shared", "-Xcompiler=-fPIC", "-O3", "-std=c++17", f"-arch={arch}", *defines]


def _why(kernel: Kernel, log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    first = next((line for line in lines if "error" in line), lines[-1] if lines else "it says nothing")
    return f"nvcc cannot compile CUTLASS's kernel {kernel.name}: {first}"


# Calling.


class Sizes(ctypes.Structure):
    """The structure Sizes of the source: a convolution of some images, and its split-K slices."""

    _fields_ = [
        (name, ctypes.c_int)
        for name in (
            "n", "c", "h", "w", "m", "kh", "kw", "pad_h", "pad_w", "stride_h", "stride_w",
            "dilation_h", "dilation_w", "out_h", "out_w", "slices",
        )
    ]  # fmt: skip

    @classmethod
    def of(cls, problem: ConvProblem, slices: int) -> Sizes:
        """The sizes of a problem with a number of split-K slices."""
        names = [name for name, *_ in cls._fields_ if name != "slices"]
        return cls(slices=slices, **{name: getattr(problem, name) for name in names})


class Refused(Exception):
    """CUTLASS's kernel does not compute a problem; the message is the text of its status."""


class Library:
    """A kernel's library, loaded."""

    def __init__(self, path: Path):
        self._c = ctypes.CDLL(str(path))
        pointer = ctypes.c_void_p
        self._c.status_text.restype = ctypes.c_char_p
        self._c.workspace_bytes.restype = ctypes.c_size_t
        self._c.create.argtypes = [pointer] * 7
        self._c.run.argtypes = [pointer] * 2
        self._c.destroy.argtypes = [pointer]
        self.run, self.destroy = self._c.run, self._c.destroy

    def workspace_bytes(self, sizes: Sizes) -> int:
        """The device memory that a convolution needs in addition to its tensors, in bytes."""
        return int(self._c.workspace_bytes(ctypes.byref(sizes)))

    def convolution(self, sizes: Sizes, *tensors: torch.Tensor) -> Convolution:
        """A convolution of input, weight, output and workspace, ready to run. Raises Refused.

        The tensors are on the current GPU and the first three contiguous in channels_last. The kernel's semaphores,
        in the workspace, are cleared on the current stream.
        """
        made = ctypes.c_void_p()
        addresses = [tensor.data_ptr() for tensor in tensors]
        stream = torch.cuda.current_stream().cuda_stream
        if status := self._c.create(ctypes.byref(sizes), *addresses, stream, ctypes.byref(made)):
            raise Refused(self.text(status))
        return Convolution(self, made, tensors)

    def text(self, status: int) -> str:
        """CUTLASS's text of a status that is not 0."""
        return str(self._c.status_text(status).decode())


class Convolution:
    """A convolution that a library has prepared on tensors, which it keeps; its host memory is freed with it."""

    def __init__(self, library: Library, handle: ctypes.c_void_p, tensors: tuple[torch.Tensor, ...]):
        self._library, self._handle, self._tensors = library, handle, tensors
        weakref.finalize(self, library.destroy, handle)

    def run(self) -> None:
        """Enqueue the convolution on the current stream."""
        if status := self._library.run(self._handle, torch.cuda.current_stream().cuda_stream):
            raise RuntimeError(f"CUTLASS says: {self._library.text(status)}")


@cache
def load(path: Path) -> Library:
    """The library of a path, loaded once in a process."""
    return Library(path)
