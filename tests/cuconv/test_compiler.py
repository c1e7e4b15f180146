"""The compiler and its cache: a few variants of every kernel compile, and an edit recompiles what depends on it."""

import os
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from cuconv import resources
from cuconv.algorithms import ALGORITHMS
from cuconv.core.launch import KernelVariant
from cuconv.resources import ARCHITECTURES
from cuconv.runtime import compiler, cubins
from cuconv.runtime.compiler import INCLUDES
from tests.cuconv.compilers import checks_registers

SAMPLES = 6  # kernel variants of an algorithm and architecture that are compiled; tests/kernels compiles all of them

SOURCE = """
#include "scale.cuh"
extern "C" __global__ void scale(float* x) { x[threadIdx.x] *= SCALE * FACTOR; }
"""


@pytest.fixture(scope="module")
def reports():
    """The compiler's reports to come, by algorithm and architecture; all cores work on them at once."""
    pool = ThreadPoolExecutor(os.cpu_count())  # NVRTC runs outside of Python's lock
    yield {
        (name, arch): [
            pool.submit(compiler.resources, KernelVariant.of(algorithm.source, arch, macros))
            for macros in variants[:: -(-len(variants) // SAMPLES) or 1]
        ]
        for name, algorithm in ALGORITHMS.items()
        for arch, variants in ((arch, algorithm.variants(arch)) for arch in ARCHITECTURES)
    }
    pool.shutdown(cancel_futures=True)


@checks_registers
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_kernels_compile_without_spills(reports, name, arch):
    for report in reports[name, arch]:
        assert report.result()
        for kernel in report.result():
            assert kernel.spill_bytes == 0 and not kernel.serialized, kernel
            assert 0 < kernel.registers <= 255, kernel


def cached(stem):
    """The files of the compile cache for the source of this stem; a pool may be compiling others."""
    return list(cubins.folder().glob(f"{stem}-*"))


@pytest.fixture
def kernel_file(tmp_path, monkeypatch):
    """A kernel with a header next to it, and an empty cache."""
    monkeypatch.setenv("CUCONV_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "scale.cuh").write_text("#define SCALE 2.0f\n")
    source = tmp_path / "scale.cu"
    source.write_text(SOURCE)
    return source


def test_the_cache_is_used_again(kernel_file, monkeypatch):
    binary = compiler.cubin(KernelVariant.of(kernel_file, "sm_90a", {"FACTOR": 3}))
    monkeypatch.setattr(compiler, "_compile", None)
    assert compiler.cubin(KernelVariant.of(kernel_file, "sm_90a", {"FACTOR": 3})) == binary
    assert binary.code[:4] == b"\x7fELF"


def test_the_cache_notices_source_header_macro_and_architecture(kernel_file):
    compiler.cubin(KernelVariant.of(kernel_file, "sm_90a", {"FACTOR": 3}))
    compiler.cubin(KernelVariant.of(kernel_file, "sm_90a", {"FACTOR": 4}))
    compiler.cubin(KernelVariant.of(kernel_file, "sm_80", {"FACTOR": 3}))
    (kernel_file.parent / "scale.cuh").write_text("#define SCALE 5.0f\n")
    compiler.cubin(KernelVariant.of(kernel_file, "sm_90a", {"FACTOR": 3}))
    kernel_file.write_text(SOURCE + "// edited\n")
    compiler.cubin(KernelVariant.of(kernel_file, "sm_90a", {"FACTOR": 3}))
    assert len(cached("scale")) == 5


def test_a_header_recompiles_what_includes_it_and_nothing_else(tmp_path, monkeypatch):
    """One source includes a.cuh by way of b.cuh in a folder; the other source includes neither."""
    monkeypatch.setenv("CUCONV_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "family").mkdir()
    header, between = tmp_path / "family" / "a.cuh", tmp_path / "family" / "b.cuh"
    header.write_text("#define SCALE 2.0f\n")
    between.write_text('#pragma once\n#  include "a.cuh"\n')
    scaled, plain = tmp_path / "scaled.cu", tmp_path / "plain.cu"
    scaled.write_text('#include "family/b.cuh"\nextern "C" __global__ void scaled(float* x) { *x *= SCALE; }')
    plain.write_text('extern "C" __global__ void plain(float* x) { *x *= 2.0f; }')
    assert compiler.included_files(scaled) == [scaled, between, header]
    assert compiler.included_files(plain) == [plain]

    for count, edited in enumerate((header, between, None), start=1):
        for source in (scaled, plain):
            compiler.cubin(KernelVariant.of(source, "sm_90a", {}))
        assert [len(cached(stem)) for stem in ("scaled", "plain")] == [count, 1]
        if edited:
            edited.write_text(edited.read_text() + "// edited\n")


def test_headers_of_the_library_are_found_from_any_source(kernel_file):
    """The kernels' headers are named from the folder of the algorithms."""
    kernel_file.write_text("""#include "common/convolution.cuh"
        extern "C" __global__ void rounded(float* x) { *x = round_to_tf32(*x); }""")
    assert compiler.included_files(kernel_file) == [
        kernel_file,
        compiler.INCLUDES / "common" / "convolution.cuh",
        compiler.INCLUDES / "common" / "geometry.cuh",
    ]
    assert compiler.cubin(KernelVariant.of(kernel_file, "sm_90a", {})).code


def test_an_include_that_is_not_taken_may_be_missing(kernel_file):
    kernel_file.write_text("""
#if 0
#include "missing.cuh"
#endif
extern "C" __global__ void empty() {}""")
    assert compiler.included_files(kernel_file) == [kernel_file]
    assert compiler.cubin(KernelVariant.of(kernel_file, "sm_90a", {})).code


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_header_of_the_kernels_is_known_to_the_cache(name):
    """Every header that a source includes, directly or not, is found in the package."""
    files = compiler.included_files(ALGORITHMS[name].source)
    named = {line.split('"')[1] for file in files for line in file.read_text().splitlines() if "#include" in line}
    assert {str(file.relative_to(compiler.INCLUDES)) for file in files[1:]} == named


def test_the_report_counts_spills(kernel_file):
    kernel_file.write_text("""
extern "C" __global__ __launch_bounds__(1024, 2) void spilling(volatile float* x) {
    float v[96];
#pragma unroll
    for (int i = 0; i < 96; ++i) v[i] = x[i * 32 + threadIdx.x];
#pragma unroll
    for (int i = 0; i < 96; ++i) x[i * 32 + threadIdx.x] = v[(i * 37) % 96] * v[i];
}""")
    (report,) = compiler.resources(KernelVariant.of(kernel_file, "sm_90a", {}))
    assert report.kernel == "spilling"
    assert report.registers <= 32 and report.spill_bytes > 0


def test_the_report_tells_when_products_wait_for_each_other(kernel_file):
    """The loop overwrites a tile in registers that a product may still read."""
    kernel_file.write_text("""
#define WGMMA_N 8
#define WGMMA_HALF f16
#include "common/wgmma.cuh"
extern "C" __global__ void waiting(float* out, const unsigned* in, uint64 tile, int count) {
    float sums[4] = {};
    for (int i = 0; i < count; ++i) {
        const unsigned values[4] = {in[i], in[i + 1], in[i + 2], in[i + 3]};
        wgmma_fence();
        wgmma_half(sums, values, tile, 1);
        wgmma_commit();
    }
    wgmma_wait(sums);
    for (int i = 0; i < 4; ++i) out[threadIdx.x * 4 + i] = sums[i];
}""")
    (report,) = compiler.resources(KernelVariant.of(kernel_file, "sm_90a", {}))
    assert report.kernel == "waiting" and report.serialized


def test_a_kernel_that_does_not_compile_says_where(kernel_file):
    kernel_file.write_text('extern "C" __global__ void broken() { undeclared = 1; }')
    with pytest.raises(compiler.CompileError, match=r"(?s)scale\.cu.*undeclared"):
        compiler.cubin(KernelVariant.of(kernel_file, "sm_90a", {}))
    assert not cached("scale")


def test_the_report_s_command_ends_with_the_reason_where_kernels_do_not_compile(monkeypatch):
    def refuse(variant):
        raise compiler.CompileError("NVRTC is not there")

    monkeypatch.setattr(compiler, "resources", refuse)
    monkeypatch.setattr("sys.argv", ["resources"])
    with pytest.raises(SystemExit, match="NVRTC is not there"):
        resources.main()


def test_no_kernel_has_a_generic_lambda():
    """NVRTC up to CUDA 13.0 refuses them: it takes their calls for functions of the host."""
    sources = sorted(path for path in INCLUDES.rglob("*") if path.suffix in (".cu", ".cuh"))
    assert len(sources) > 30
    for path in sources:
        assert not re.search(r"\]\s*\([^()]*\bauto\b[^()]*\)", path.read_text()), path.name
