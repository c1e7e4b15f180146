"""Every kernel compiles for every architecture promised; the cache notices what changes."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from cuconv import jit
from cuconv.algorithms import ALGORITHMS
from cuconv.resources import ARCHITECTURES

SOURCE = """
#include "scale.cuh"
extern "C" __global__ void scale(float* x) { x[threadIdx.x] *= SCALE * FACTOR; }
"""


@pytest.fixture
def kernel_file(tmp_path, monkeypatch):
    monkeypatch.setenv("CUCONV_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "scale.cuh").write_text("#define SCALE 2.0f\n")
    source = tmp_path / "scale.cu"
    source.write_text(SOURCE)
    return source


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_variant_compiles_without_spills(name, arch):
    algorithm = ALGORITHMS[name]
    variants = algorithm.variants(arch)
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # they are many; the compiler runs outside of Python's lock
        reports = list(pool.map(lambda macros: jit.resources(algorithm.SOURCE, arch, macros), variants))
    for macros, report in zip(variants, reports, strict=True):
        assert report, macros
        for kernel in report:
            assert kernel.spill_bytes == 0, (macros, kernel)
            assert 0 < kernel.registers <= 255


def test_the_cache_is_used_again(kernel_file):
    binary = jit.cubin(kernel_file, "sm_90a", {"FACTOR": 3})
    made = binary.stat().st_mtime_ns
    assert jit.cubin(kernel_file, "sm_90a", {"FACTOR": 3}) == binary
    assert binary.stat().st_mtime_ns == made
    assert binary.read_bytes()[:4] == b"\x7fELF"


def test_the_cache_notices_source_header_macro_and_architecture(kernel_file):
    binaries = {jit.cubin(kernel_file, "sm_90a", {"FACTOR": 3})}
    binaries.add(jit.cubin(kernel_file, "sm_90a", {"FACTOR": 4}))
    binaries.add(jit.cubin(kernel_file, "sm_80", {"FACTOR": 3}))
    (kernel_file.parent / "scale.cuh").write_text("#define SCALE 5.0f\n")
    binaries.add(jit.cubin(kernel_file, "sm_90a", {"FACTOR": 3}))
    kernel_file.write_text(SOURCE + "// edited\n")
    binaries.add(jit.cubin(kernel_file, "sm_90a", {"FACTOR": 3}))
    assert len(binaries) == 5


def test_the_report_counts_spills(kernel_file):
    kernel_file.write_text("""
extern "C" __global__ __launch_bounds__(1024, 2) void crowded(volatile float* x) {
    float v[96];
#pragma unroll
    for (int i = 0; i < 96; ++i) v[i] = x[i * 32 + threadIdx.x];
#pragma unroll
    for (int i = 0; i < 96; ++i) x[i * 32 + threadIdx.x] = v[(i * 37) % 96] * v[i];
}""")
    (report,) = jit.resources(kernel_file, "sm_90a", {})
    assert report.kernel == "crowded"
    assert report.registers <= 32 and report.spill_bytes > 0


def test_a_kernel_that_does_not_compile_says_where(kernel_file):
    kernel_file.write_text('extern "C" __global__ void broken() { undeclared = 1; }')
    with pytest.raises(jit.CompileError, match=r"(?s)scale\.cu.*undeclared"):
        jit.cubin(kernel_file, "sm_90a", {})
    assert not list(jit.cache_folder().glob("*.cubin"))
