"""The contender cutlass: its toolchain, cache and kernels, the ways to compute a layer, and CUTLASS where nvcc is."""

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
# An nvcc that counts its calls, and refuses kernels of nine stages; a real one takes six seconds a kernel.
NVCC = """#!/bin/sh
case "$*" in
    --version) echo "release 13.0, V13.0.88"; exit;;
    *STAGES=9*) echo "conv.h(3): error: no such kernel" >&2; exit 1;;
esac
echo "$@" >> {log}
while [ "$1" != "-o" ]; do shift; done
echo library > "$2"
"""


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with such an nvcc, and with a header of CUTLASS."""
    nvcc, header = tmp_path / "bin/nvcc", tmp_path / "include/cutlass/version.h"
    for path, text in ((nvcc, NVCC.format(log=tmp_path / "log")), (header, "#define CUTLASS_MAJOR 4\n")):
        path.parent.mkdir(parents=True)
        path.write_text(text)
    nvcc.chmod(0o755)
    monkeypatch.setenv("PATH", f"{nvcc.parent}:/usr/bin:/bin")
    for name, folder in (("CUDA_HOME", "nowhere"), ("CUTLASS_PATH", "."), ("CUCONV_CACHE_DIR", "cache")):
        monkeypatch.setenv(name, str(tmp_path / folder))
    return SimpleNamespace(folder=tmp_path, nvcc=nvcc, header=header, log=tmp_path / "log")


# The toolchain.


def test_without_nvcc_or_headers_it_is_unavailable(machine, monkeypatch):
    machine.header.unlink()
    with pytest.raises(Unavailable, match="CUTLASS_PATH=/"):
        Toolchain.find()
    monkeypatch.delenv("CUTLASS_PATH")
    monkeypatch.setattr(cutlass_library, "find_spec", lambda name: None)
    with pytest.raises(Unavailable, match="headers"):
        Toolchain.find()
    monkeypatch.setenv("PATH", str(machine.folder))
    with pytest.raises(Unavailable, match="nvcc"):
        Toolchain.find()


def test_an_older_gpu_is_unavailable(machine, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    with pytest.raises(Unavailable, match=r"7\.5"):
        load("cutlass")


def test_the_headers_of_the_wheel_and_nvcc_of_cuda_home(machine, monkeypatch):
    package = machine.folder / "wheel"
    (package / "source/include/cutlass").mkdir(parents=True)
    machine.header.rename(package / "source/include/cutlass/version.h")
    monkeypatch.delenv("CUTLASS_PATH")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("CUDA_HOME", str(machine.folder))
    spec = SimpleNamespace(submodule_search_locations=[str(package)])
    monkeypatch.setattr(cutlass_library, "find_spec", {"cutlass_library": spec}.get)
    found = Toolchain.find()
    assert (found.nvcc, found.includes) == (str(machine.nvcc), package / "source/include")
    assert (found.nvcc_version, found.cutlass_version) == ("13.0.88", "4.?.?")


def test_a_kernel_is_compiled_once_and_a_failure_is_an_error(machine):
    toolchain, other = Toolchain.find(), replace(KERNEL, stages=4)
    toolchain.compile_all([KERNEL, other, KERNEL], "sm_90")
    toolchain.compile_all([KERNEL, other], "sm_90")
    path = toolchain.compile(KERNEL, "sm_90")
    assert len(machine.log.read_text().splitlines()) == 2
    with pytest.raises(CompileFailed, match="no such kernel"):
        toolchain.compile_all([replace(KERNEL, stages=9)], "sm_90")
    assert path.read_text() == "library\n" and len(list(path.parent.iterdir())) == 2, "nothing else is left"


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
    strided = replace(LAYER, stride_h=2, dilation_w=2, pad_w=0)
    fields = {name: getattr(Sizes.of(strided, slices=4), name) for name, _ in Sizes._fields_}
    assert fields.pop("slices") == 4
    assert fields == {name: getattr(strided, name) for name in fields}


# The kernels and launches of a problem.


@pytest.mark.parametrize(
    ("c", "m", "alignments"), [(64, 32, (4, 4)), (16, 30, (4, 1)), (17, 32, (1, 4)), (8, 32, (4, 4)), (3, 31, (1, 1))]
)
def test_accesses_are_as_large_as_channels_and_filters_allow(c, m, alignments):
    kernels = kernels_for(replace(LAYER, c=c, m=m))
    assert {(kernel.input_alignment, kernel.output_alignment) for kernel in kernels} == {alignments}
    assert len(kernels) == len({kernel.name for kernel in kernels})
    assert any(kernel.iterator == "kFewChannels" for kernel in kernels) == (c < 16)


def test_split_k_until_the_gpu_is_full_twice():
    small = ConvProblem(1, 832, 7, 7, 64, 1, 1)  # 49 output pixels and 64 filters are one block
    assert KERNEL.split_counts(small, 132) == [1, 2, 4, 8, 16, 32]  # 64 slices would have less than 16 channels
    assert KERNEL.split_counts(small, 2) == [1, 2, 4]
    assert KERNEL.split_counts(replace(small, n=256, m=128), 132) == [1]
    assert replace(KERNEL, iterator="kFewChannels").split_counts(small, 132) == [1]


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


@pytest.mark.parametrize("problem", [replace(LAYER, groups=2), ConvProblem(1, 1 << 15, 128, 128, 4, 1, 1)], ids=str)
def test_groups_and_an_image_beyond_cutlass_are_unsupported(problem):
    with pytest.raises(NotRunnable) as refusal:
        cutlass.images_of_a_launch(problem)
    assert refusal.value.status == "unsupported"


# The ways to compute a layer.


class TorchLibrary:
    """A library whose kernels are torch's; it refuses those whose file names lack `accepted`."""

    def __init__(self, path, accepted):
        self.refuses = accepted not in path.name

    def workspace_bytes(self, sizes):
        return 4 * (sizes.slices - 1)

    def convolution(self, sizes, x, weight, y, workspace):
        if self.refuses:
            raise Refused("Error Misaligned Operand")
        assert all(tensor.is_contiguous(memory_format=torch.channels_last) for tensor in (x, weight, y))
        assert len(x) == len(y) == sizes.n
        return SimpleNamespace(run=lambda: y.copy_(torch.nn.functional.conv2d(x, weight, padding=1)))


@pytest.fixture
def ways(machine, monkeypatch):
    """A function that returns operands, the calls of all ways, and the reasons of the ways that CUTLASS refuses."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    properties = SimpleNamespace(multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)

    def ways(problem=LAYER, accepted=""):
        monkeypatch.setattr(cutlass, "load", lambda path: TorchLibrary(path, accepted))
        operands = Operands.random(problem, torch.Generator().manual_seed(1))
        (offer,) = load("cutlass").offers(problem, operands)
        assert (offer.provider, offer.algorithm, offer.precision) == ("cutlass", "fast_fp32", "fp32")
        prepared, refused = [], []
        for way in offer.ways:
            try:
                prepared.append(way())
            except NotRunnable as reason:
                refused.append(reason)
        return operands, prepared, refused

    return ways


@pytest.mark.parametrize("images", [2, 5])
def test_every_kernel_with_every_split_count_is_a_way_that_computes_the_whole_batch(ways, monkeypatch, images):
    monkeypatch.setattr(cutlass, "images_of_a_launch", lambda problem: 2)
    operands, prepared, _ = ways(replace(LAYER, n=images))
    expected = [(kernel, slices) for kernel in kernels_for(LAYER) for slices in kernel.split_counts(LAYER, 132)]
    assert len(prepared) == len(expected) > len(TILES)
    for one, (kernel, slices) in zip(prepared, expected, strict=True):
        assert f"{kernel.name} split-K {slices}," in one.detail and one.workspace_bytes == 4 * (slices - 1)
    truth = torch.nn.functional.conv2d(operands.input, operands.weight, padding=1)
    assert torch.allclose(prepared[2].call(), truth, atol=1e-4)


def test_a_kernel_that_refuses_is_a_reason_and_the_others_stay(ways):
    _, prepared, refused = ways(accepted="64x64x32")
    assert prepared and all("64x64x32" in one.detail for one in prepared)
    assert {reason.status for reason in refused} == {"unsupported"}
    assert all("Misaligned" in str(reason) for reason in refused)
    _, prepared, (reason,) = ways(replace(LAYER, groups=2))
    assert not prepared and reason.status == "unsupported"


def test_a_sweep_compiles_what_its_problems_need(ways, machine):
    problems = [LAYER, replace(LAYER, n=8), replace(LAYER, c=3, m=31)]
    load("cutlass").begin([*problems, replace(LAYER, groups=2)], None)
    assert len(machine.log.read_text().splitlines()) == len({one for each in problems for one in kernels_for(each)})


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
