"""Kernels compiled ahead: those of the launches, each once, into the cache on disk."""

import pytest

from cuconv import ConvProblem, UnsupportedProblem, jit, plan, precompile
from cuconv.algorithms import ALGORITHMS
from cuconv.algorithms.base import CallOptions
from cuconv.device import H200
from cuconv.precompile import PlannedCall, computed, precompile_calls

LAYERS = [ConvProblem(1, 64, 7, 7, 32, 1, 1), ConvProblem(2, 64, 7, 7, 32, 1, 1, groups=64 // 32)]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CUCONV_CACHE_DIR", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("residual", [False, True])
def test_what_calls_launch_is_in_the_cache(cache, residual):
    said = []
    number = precompile(LAYERS, H200, residual=residual, progress=lambda *counts: said.append(counts))
    assert said == [(done, number) for done in range(1, number + 1)] and number >= 2
    for problem in LAYERS:
        chosen = plan(problem, H200, residual=residual)
        algorithm = ALGORITHMS[chosen.algorithm]
        launches = algorithm.launches(problem, chosen.config, CallOptions(relu=True))
        if residual:
            launches = algorithm.launches(problem, chosen.config, CallOptions(relu=True, residual=True))
        assert all(jit.find(launch.source, H200.arch, launch.macros) for launch in launches)
    assert precompile(LAYERS, H200, residual=residual) == 0


def test_kernels_of_equal_layers_are_compiled_once(cache):
    precompile([LAYERS[0]] * 5, H200, algorithm="tf32x3_gemm")
    assert len(list(cache.glob("*.cubin"))) == 1


def test_what_conv2d_refuses_is_refused(cache):
    with pytest.raises(UnsupportedProblem):
        precompile([ConvProblem(1, 1, 3, 3, 1, 1, 1)], H200, algorithm="depthwise")
    with pytest.raises(ValueError, match="algorithm='magic'"):
        precompile(LAYERS, H200, algorithm="magic")


def test_calls_that_write_to_slices_have_the_same_kernels(cache):
    calls = [PlannedCall(LAYERS[0], output_channels=channels) for channels in (None, 40, 64)]
    assert precompile_calls(calls, H200, algorithm="tf32x3_gemm") == 1


def test_calls_that_torch_computes_are_left_out():
    calls = [PlannedCall(LAYERS[0]), PlannedCall(ConvProblem(1, 3, 64, 64, 8, 32, 32, stride_h=32, stride_w=32))]
    assert computed(calls, H200) == calls[:1]
