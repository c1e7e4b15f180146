"""Kernels compiled ahead: those of the launches, each once, into the cache on disk."""

import sys
from contextlib import nullcontext
from dataclasses import replace

import pytest

from cuconv import ConvProblem, UnsupportedProblem, plan, precompile
from cuconv.algorithms import ALGORITHMS
from cuconv.algorithms.base import CallOptions
from cuconv.core.activation import RELU
from cuconv.core.launch import KernelVariant
from cuconv.device import H200
from cuconv.precompile import PlannedCall, computed, load_for_other_sizes, precompile_calls
from cuconv.runtime import compiler, launch_sequence

ahead = sys.modules["cuconv.precompile"]  # cuconv.precompile is the function
LAYERS = [ConvProblem(1, 64, 7, 7, 32, 1, 1), ConvProblem(2, 64, 7, 7, 32, 1, 1, groups=64 // 32)]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("CUCONV_CACHE_DIR", str(tmp_path))
    return tmp_path


def test_an_activation_needs_no_kernels_of_its_own(cache):
    assert precompile(LAYERS, H200) >= 2
    assert precompile(LAYERS, H200, activation="silu") == precompile(LAYERS, H200, activation="relu") == 0


@pytest.mark.parametrize("residual", [False, True])
def test_what_calls_launch_is_in_the_cache(cache, residual):
    said = []
    number = precompile(LAYERS, H200, residual=residual, progress=lambda *counts: said.append(counts))
    assert said == [(done, number) for done in range(1, number + 1)] and number >= 2
    for problem in LAYERS:
        chosen = plan(problem, H200, residual=residual)
        algorithm = ALGORITHMS[chosen.algorithm]
        launches = algorithm.launches(problem, chosen.config, CallOptions(activation=RELU))
        if residual:
            launches = algorithm.launches(problem, chosen.config, CallOptions(activation=RELU, residual=True))
        assert all(compiler.find(KernelVariant.of(launch.source, H200.arch, launch.macros)) for launch in launches)
    assert precompile(LAYERS, H200, residual=residual) == 0


def test_kernels_of_equal_layers_are_compiled_once(cache):
    precompile([LAYERS[0]] * 5, H200, algorithm="tf32x3_gemm")
    assert len(list(cache.glob("*.cubin"))) == 1


def test_what_conv2d_refuses_is_refused(cache):
    with pytest.raises(UnsupportedProblem):
        precompile([ConvProblem(1, 1, 3, 3, 1, 1, 1)], H200, algorithm="depthwise")
    with pytest.raises(ValueError, match="algorithm='magic'"):
        precompile(LAYERS, H200, algorithm="magic")


@pytest.mark.parametrize("device", [True, "H200"])
def test_a_device_is_checked_even_without_problems(device):
    with pytest.raises(TypeError, match=f"device={device!r}"):
        precompile([], device)


def test_calls_that_write_to_slices_have_the_same_kernels(cache):
    calls = [PlannedCall(LAYERS[0], output_channels=channels) for channels in (None, 40, 64)]
    assert precompile_calls(calls, H200, algorithm="tf32x3_gemm") == 1


def test_calls_that_torch_computes_are_left_out():
    calls = [PlannedCall(LAYERS[0]), PlannedCall(ConvProblem(1, 3, 64, 64, 8, 32, 32, stride_h=32, stride_w=32))]
    assert computed(calls, H200) == calls[:1]


@pytest.fixture
def loaded(monkeypatch):
    """The launches that are loaded on a GPU on which the kernels of fp16x3 alone must be compiled."""
    found = []
    monkeypatch.setattr(ahead, "device_spec", lambda device: H200)
    monkeypatch.setattr(ahead.driver, "made_current", lambda device: nullcontext())
    monkeypatch.setattr(launch_sequence, "is_available", lambda variant, device: variant.source.stem != "fp16x3")
    monkeypatch.setattr(launch_sequence, "LaunchSequence", lambda launches, arch, device: found.extend(launches))
    monkeypatch.setattr(compiler, "_compile", None)
    return found


def test_kernels_of_other_image_sizes_are_loaded_where_they_are_at_hand(loaded):
    layer = ConvProblem(1, 128, 28, 28, 128, 3, 3, 1, 1)
    load_for_other_sizes([PlannedCall(layer)] * 2, 0, prepared=True)
    wanted = set()
    for size in (14, 21, 42, 56, 84):  # half the size to three times
        problem = replace(layer, h=size, w=size)
        chosen = plan(problem, H200, prepared=True)
        options = CallOptions(packed=True, overlap=True)
        launches = ALGORITHMS[chosen.algorithm].launches(problem, chosen.config, options)
        wanted |= {(one.source.stem, tuple(one.macros.items())) for one in launches}
    assert {stem for stem, _ in wanted} > {"fp16x3"}, "otherwise this tests nothing"
    assert {(one.source.stem, tuple(one.macros.items())) for one in loaded} == {
        kernel for kernel in wanted if kernel[0] != "fp16x3"
    }
    assert len(loaded) == len({(one.kernel, tuple(one.macros.items())) for one in loaded}), "each once"


def test_layers_of_one_pixel_and_images_too_small_for_a_filter_have_no_other_size(loaded):
    load_for_other_sizes([PlannedCall(ConvProblem(8, 512, 1, 1, 1000, 1, 1))], 0, prepared=True)
    assert loaded == []
    load_for_other_sizes([PlannedCall(ConvProblem(1, 8, 5, 5, 8, 5, 5))], 0, prepared=False)
    assert loaded, "5x5 filters at 8x8 and above"
