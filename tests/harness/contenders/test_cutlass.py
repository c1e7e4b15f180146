"""The contender cutlass without a GPU: kernels, the compiler's command line, the cache, the ways to compute a layer."""

import ctypes
import re
import subprocess
from dataclasses import replace
from math import prod
from types import SimpleNamespace

import pytest
import torch

from cuconv import ConvProblem
from harness.contenders import cutlass, cutlass_library
from harness.contenders.base import NotRunnable, Operands, Unavailable, load
from harness.contenders.cutlass_library import (
    FEW_TILES,
    SOURCE,
    TILES,
    CompileFailed,
    Kernel,
    Refused,
    Sizes,
    Toolchain,
    kernels_for,
)

LAYER = ConvProblem(2, 64, 9, 7, 32, 3, 3, 1, 1)
KERNEL = Kernel(64, 64, 16, 2, 2, 3)
NVCC = """#!/bin/sh
case "$1" in --version) echo "release 13.0, V13.0.88"; exit 0;; esac
echo "$@" >> {log}
case "$*" in *STAGES=9*) echo "note"; echo "conv.h(3): error: no such kernel" >&2; exit 1;; esac
while [ "$1" != "-o" ]; do shift; done
echo library > "$2"
"""


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with an nvcc that writes what it is called with into the file log, and with CUTLASS's headers."""
    for name in ("bin", "cutlass/include/cutlass"):
        (tmp_path / name).mkdir(parents=True)
    log, nvcc = tmp_path / "log", tmp_path / "bin/nvcc"
    nvcc.write_text(NVCC.format(log=log))
    nvcc.chmod(0o755)
    header = tmp_path / "cutlass/include/cutlass/version.h"
    header.write_text("#define CUTLASS_MAJOR 4\n#define CUTLASS_MINOR 2\n#define CUTLASS_PATCH 0\n")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "nowhere"))
    monkeypatch.setenv("CUTLASS_PATH", str(tmp_path / "cutlass"))
    monkeypatch.setenv("CUCONV_CACHE_DIR", str(tmp_path / "cache"))
    log.touch()
    return SimpleNamespace(folder=tmp_path, nvcc=nvcc, header=header, log=log)


# The toolchain.


def test_without_nvcc(machine, monkeypatch):
    monkeypatch.setenv("PATH", str(machine.folder))
    with pytest.raises(Unavailable, match=r"^nvcc, .* is not found: install the CUDA toolkit, or add it to PATH$"):
        Toolchain.find()
    monkeypatch.setenv("CUDA_HOME", str(machine.folder))
    assert Toolchain.find().nvcc == str(machine.nvcc)


def test_without_headers(machine, monkeypatch):
    machine.header.unlink()
    with pytest.raises(Unavailable, match=r"^CUTLASS's headers are not found in CUTLASS_PATH=/.*: pip install"):
        Toolchain.find()
    monkeypatch.delenv("CUTLASS_PATH")
    monkeypatch.setattr(cutlass_library, "find_spec", lambda name: None)
    with pytest.raises(Unavailable, match=r"^CUTLASS's headers are not found in this environment: pip install"):
        Toolchain.find()


def test_the_headers_of_the_wheel(machine, monkeypatch):
    package = machine.folder / "cutlass_library"
    (package / "source/include/cutlass").mkdir(parents=True)
    machine.header.rename(package / "source/include/cutlass/version.h")
    monkeypatch.delenv("CUTLASS_PATH")
    spec = SimpleNamespace(submodule_search_locations=[str(package)])
    monkeypatch.setattr(cutlass_library, "find_spec", {"cutlass_library": spec}.get)
    assert Toolchain.find().includes == package / "source/include"


def test_the_command_line_of_the_compiler(machine):
    toolchain = Toolchain.find()
    assert (toolchain.nvcc_version, toolchain.cutlass_version) == ("13.0.88", "4.2.0")
    assert toolchain.command(KERNEL, "sm_90", machine.folder / "out.so") == [
        str(machine.nvcc), "-shared", "-Xcompiler=-fPIC", "-O3", "-std=c++17", "-arch=sm_90",
        "-DTILE_M=64", "-DTILE_N=64", "-DTILE_K=16", "-DWARPS_M=2", "-DWARPS_N=2", "-DSTAGES=3",
        "-DINPUT_ALIGNMENT=4", "-DOUTPUT_ALIGNMENT=4", "-DITERATOR=kOptimized",
        f"-I{machine.folder / 'cutlass/include'}", "-o", str(machine.folder / "out.so"), str(SOURCE),
    ]  # fmt: skip


def test_a_kernel_is_compiled_once(machine):
    toolchain, other = Toolchain.find(), replace(KERNEL, stages=4)
    toolchain.compile_all([KERNEL, other, KERNEL], "sm_90")
    toolchain.compile_all([KERNEL, other], "sm_90")
    path = toolchain.compile(KERNEL, "sm_90")
    assert path.read_text() == "library\n" and path.parent == machine.folder / "cache/cutlass"
    assert len(machine.log.read_text().splitlines()) == 2
    assert len(list(path.parent.iterdir())) == 2, "nothing but the two libraries is left"


def test_a_kernel_that_does_not_compile_is_told_by_the_first_error(machine):
    with pytest.raises(
        CompileFailed, match=r"kernel 64x64x16_9_align44_kOptimized: conv.h\(3\): error: no such kernel$"
    ):
        Toolchain.find().compile_all([replace(KERNEL, stages=9)], "sm_90")
    assert not list((machine.folder / "cache/cutlass").iterdir())


def test_another_version_or_kernel_is_another_library_and_another_path_is_not():
    toolchain = Toolchain("nvcc", SOURCE.parent, "13.0.88", "4.2.0")
    others = [replace(toolchain, nvcc_version="13.1.0"), replace(toolchain, cutlass_version="4.3.0")]
    paths = {one.library_path(KERNEL, "sm_90") for one in [toolchain, *others]}
    paths |= {toolchain.library_path(KERNEL, "sm_80"), toolchain.library_path(replace(KERNEL, stages=4), "sm_90")}
    assert len(paths) == 5
    assert replace(toolchain, nvcc="/opt/nvcc", includes=SOURCE).library_path(KERNEL, "sm_90") in paths


def test_the_macros_and_sizes_are_those_of_the_source():
    text = SOURCE.read_text()
    assert all(re.search(rf"\b{name}\b", text) for name in KERNEL.macros)
    declared = re.search(r"struct Sizes \{\s*int ([^;]*);", text)[1]
    assert [name for name, _ in Sizes._fields_] == re.split(r",\s*", declared)


# The kernels of a problem.


@pytest.mark.parametrize(
    ("c", "m", "alignments", "tiles", "iterators"),
    [
        (64, 32, (4, 4), TILES, ["kOptimized"]),
        (16, 30, (4, 1), FEW_TILES, ["kOptimized"]),
        (17, 32, (1, 4), FEW_TILES, ["kOptimized"]),
        (8, 32, (4, 4), TILES, ["kOptimized", "kFewChannels"]),
        (3, 31, (1, 1), FEW_TILES, ["kOptimized", "kFewChannels"]),
    ],
)
def test_accesses_are_as_large_as_channels_and_filters_allow(c, m, alignments, tiles, iterators):
    kernels = kernels_for(replace(LAYER, c=c, m=m))
    assert {(kernel.input_alignment, kernel.output_alignment) for kernel in kernels} == {alignments}
    assert len(kernels) == len(set(kernels)) == len(tiles) * len(iterators)
    assert list(dict.fromkeys(kernel.iterator for kernel in kernels)) == iterators


def test_kernels_have_names_of_their_own():
    problems = [replace(LAYER, c=c, m=m) for c in (3, 8, 17, 64) for m in (31, 32)]
    kernels = {kernel for problem in problems for kernel in kernels_for(problem)}
    assert len({kernel.name for kernel in kernels}) == len(kernels)


def test_split_k_until_the_gpu_is_full_twice():
    small = ConvProblem(1, 832, 7, 7, 64, 1, 1)  # 49 output pixels and 64 filters are one block
    assert KERNEL.blocks(small) == 1
    assert KERNEL.split_counts(small, 132) == [1, 2, 4, 8, 16, 32]  # 64 slices would have less than 16 channels
    assert KERNEL.split_counts(small, 2) == [1, 2, 4]
    assert KERNEL.split_counts(replace(small, n=256, m=128), 132) == [1]
    assert KERNEL.split_counts(replace(small, c=31), 132) == [1]
    assert replace(KERNEL, iterator="kFewChannels").split_counts(small, 132) == [1]


# The problems.


def test_sizes():
    strided = replace(LAYER, stride_h=2, dilation_w=2, pad_w=0)
    sizes = Sizes.of(strided, slices=4)
    fields = {name: getattr(sizes, name) for name, _ in Sizes._fields_}
    assert fields.pop("slices") == 4
    assert fields == {name: getattr(strided, name) for name in fields}
    assert (sizes.out_h, sizes.out_w) == (5, 3)


def test_groups_are_unsupported():
    with pytest.raises(NotRunnable, match="one group only") as refusal:
        cutlass.images_of_a_launch(replace(LAYER, groups=2))
    assert refusal.value.status == "unsupported"


@pytest.mark.parametrize(
    ("problem", "images"),
    [
        (LAYER, 2),
        (ConvProblem(256, 64, 112, 112, 64, 1, 1), 256),
        (ConvProblem(256, 64, 224, 224, 64, 3, 3, 1, 1), 128),  # 12.8 MB an image: two launches of equal size
        (ConvProblem(256, 3, 224, 224, 64, 3, 3, 1, 1), 128),  # the output counts as well
    ],
    ids=str,
)
def test_large_batches_are_launched_in_equal_parts(problem, images):
    assert cutlass.images_of_a_launch(problem) == images
    assert 4 * images * max(prod(problem.input_shape), prod(problem.output_shape)) // problem.n < 1 << 31


def test_an_image_beyond_cutlass_is_unsupported():
    with pytest.raises(NotRunnable, match="at most 2147483647 bytes") as refusal:
        cutlass.images_of_a_launch(ConvProblem(1, 1 << 15, 128, 128, 4, 1, 1))
    assert refusal.value.status == "unsupported"


# The choice.


@pytest.fixture
def contender(machine, monkeypatch):
    """The contender on a made-up GPU of 132 multiprocessors. Its kernels are torch's convolution."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    properties = SimpleNamespace(multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    return load("cutlass")


class FakeLibrary:
    """A library of a kernel that needs 4 bytes of workspace for each further slice, and refuses what `refuses` says."""

    def __init__(self, path, refuses):
        self.path, self.refuses = path, refuses

    def workspace_bytes(self, sizes):
        return 4 * (sizes.slices - 1)

    def convolution(self, sizes, x, weight, y, workspace):
        if self.refuses(self.path.name):
            raise Refused("Error Misaligned Operand")
        assert all(tensor.is_contiguous(memory_format=torch.channels_last) for tensor in (x, weight, y))
        assert len(x) == len(y) == sizes.n
        return SimpleNamespace(run=lambda: y.copy_(torch.nn.functional.conv2d(x, weight, padding=1)))


def ways(contender, monkeypatch, refuses=lambda name: False, problem=LAYER):
    """The calls of all ways that CUTLASS does not refuse, the operands, and the reasons of those that it refuses."""
    monkeypatch.setattr(cutlass, "load", lambda path: FakeLibrary(path, refuses))
    operands = Operands.random(problem, torch.Generator().manual_seed(1))
    (offer,) = contender.offers(problem, operands)
    assert (offer.provider, offer.algorithm, offer.precision) == ("cutlass", "fast_fp32", "fp32")
    prepared, refused = [], []
    for way in offer.ways:
        try:
            prepared.append(way())
        except NotRunnable as reason:
            refused.append(reason)
    return prepared, operands, refused


def test_every_kernel_with_every_split_count_is_a_way(contender, monkeypatch):
    prepared, operands, _ = ways(contender, monkeypatch)
    wanted = [(kernel, slices) for kernel in kernels_for(LAYER) for slices in kernel.split_counts(LAYER, 132)]
    assert len(prepared) == len(wanted) > len(TILES)
    assert prepared[2].detail == (
        "CUTLASS 4.2.0, nvcc 13.0.88: 128x128x16_4_align44_kOptimized split-K 4, operands in channels_last"
    )
    assert prepared[2].workspace_bytes == 12
    output = prepared[2].call()
    truth = torch.nn.functional.conv2d(operands.input, operands.weight, padding=1)
    assert output.shape == truth.shape and torch.allclose(output, truth, atol=1e-4)


def test_a_kernel_that_refuses_says_why(contender, monkeypatch):
    prepared, _, refused = ways(contender, monkeypatch, lambda name: "64x64x32" not in name)
    assert prepared and all("64x64x32" in one.detail for one in prepared)
    assert {reason.status for reason in refused} == {"unsupported"}
    assert all(str(reason).endswith("says: Error Misaligned Operand") for reason in refused)


def test_a_layer_with_groups_is_refused(contender, monkeypatch):
    prepared, _, (reason,) = ways(contender, monkeypatch, problem=replace(LAYER, groups=2))
    assert not prepared and reason.status == "unsupported" and "one group only" in str(reason)


@pytest.mark.parametrize("pixels", [1, 56, 224])
def test_a_split_gpu_needs_kilobytes_of_workspace(pixels):
    """So no limit, which is a MiB at least, changes the choice: a semaphore of four bytes for each block."""
    problem = replace(LAYER, h=pixels, w=pixels, c=4096)
    split = [kernel for kernel in kernels_for(problem) if len(kernel.split_counts(problem, 132)) > 1]
    assert all(4 * kernel.blocks(problem) < 4 * 2 * 132 for kernel in split)


def test_a_batch_that_is_launched_in_parts_is_whole(contender, monkeypatch):
    monkeypatch.setattr(cutlass, "images_of_a_launch", lambda problem: 2)
    (prepared, *_), operands, _ = ways(contender, monkeypatch, problem=replace(LAYER, n=5))
    truth = torch.nn.functional.conv2d(operands.input, operands.weight, padding=1)
    assert torch.allclose(prepared.call(), truth, atol=1e-4)


def test_a_sweep_compiles_what_its_problems_need(contender, machine):
    contender.begin([LAYER, replace(LAYER, n=8), replace(LAYER, c=3, m=31), replace(LAYER, groups=2)], None)
    assert len(machine.log.read_text().splitlines()) == len(TILES) + 2 * len(FEW_TILES)


def test_an_older_gpu_is_unavailable(machine, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    with pytest.raises(Unavailable, match=r"compute capability 8.0 or higher, this one has 7.5"):
        load("cutlass")


# CUTLASS itself, where nvcc and the headers are.


@pytest.fixture
def toolchain():
    try:
        return Toolchain.find()
    except Unavailable as reason:
        pytest.skip(str(reason))


def test_a_library_of_cutlass(toolchain, monkeypatch):
    """One kernel is compiled, and called as far as a machine without a GPU can."""
    library = cutlass_library.Library(toolchain.compile(KERNEL, "sm_90"))
    blocks = KERNEL.blocks(LAYER)
    assert library.workspace_bytes(Sizes.of(LAYER, 1)) == 0
    assert library.workspace_bytes(Sizes.of(LAYER, 2)) == ctypes.sizeof(ctypes.c_int) * blocks
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
    tensors = [torch.empty(0)] * 4
    assert library.convolution(Sizes.of(LAYER, 1), *tensors)  # so little shared memory needs no call of a GPU
    for wrong in (replace(LAYER, c=63), replace(LAYER, m=30), replace(LAYER, n=1 << 18)):
        with pytest.raises(Refused, match=r"^Error "):
            library.convolution(Sizes.of(wrong, 1), *tensors)


ON_THE_HOST = """
#include "{source}"
#include <cutlass/util/reference/host/convolution.h>
extern "C" void convolve(const Sizes* sizes, const float* input, const float* weight, float* output) {{
    const auto given = arguments(*sizes, input, weight, output);
    cutlass::reference::host::Conv2dFprop<float, Layout, float, Layout, float, Layout, float, float>(
        given.problem_size, given.ref_A, given.ref_B, given.ref_C, given.ref_D, 1.0f, 0.0f);
}}
"""


def test_the_arguments_by_a_reference_of_cutlass_on_the_host(toolchain, tmp_path, monkeypatch):
    utilities = toolchain.includes.parent / "tools/util/include"
    if not utilities.is_dir():
        pytest.skip(f"{utilities}, CUTLASS's references on the host, is not there")
    source = tmp_path / "reference.cu"
    source.write_text(ON_THE_HOST.format(source=SOURCE))
    monkeypatch.setattr(cutlass_library, "SOURCE", source)
    command = [*toolchain.command(KERNEL, "sm_90", tmp_path / "reference.so"), f"-I{utilities}"]
    subprocess.run(command, check=True, capture_output=True)
    library = ctypes.CDLL(str(tmp_path / "reference.so"))
    for problem in (
        ConvProblem(2, 5, 9, 7, 6, 3, 3, 1, 1),
        ConvProblem(3, 4, 15, 11, 6, 3, 5, 4, 2, stride_h=2, stride_w=1, dilation_h=3, dilation_w=1),
        ConvProblem(2, 1, 5, 6, 4, 1, 1),
    ):
        operands = Operands.random(problem, torch.Generator().manual_seed(1))
        tensors = cutlass._in_channels_last(problem, operands)
        addresses = [ctypes.c_void_p(t.data_ptr()) for t in (tensors.input, tensors.weight, tensors.output)]
        library.convolve(ctypes.byref(Sizes.of(problem, 1)), *addresses)
        truth = torch.nn.functional.conv2d(operands.input, operands.weight, **problem.geometry)
        assert torch.allclose(tensors.output, truth, atol=1e-4), problem.label
