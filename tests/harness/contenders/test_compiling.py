"""Kernels compiled ahead of a sweep."""

from cuconv import ConvProblem
from cuconv.device import A100, H200
from cuconv.runtime import compiler
from harness.contenders.compiling import compile_for

PROBLEM = ConvProblem(1, 64, 14, 14, 64, 3, 3, 1, 1)


def recorded(monkeypatch):
    compiled = []
    monkeypatch.setattr(compiler, "cubin", compiled.append)
    return compiled


def test_each_kernel_variant_is_compiled_once_for_the_device(monkeypatch):
    compiled = recorded(monkeypatch)
    count = compile_for([PROBLEM, PROBLEM], H200, ("two_stage", "tf32x3_wgmma"))
    assert count == len(compiled) == 2
    assert {(variant.source.stem, variant.arch) for variant in compiled} == {
        ("two_stage", "sm_90a"),
        ("tf32x3_wgmma", "sm_90a"),
    }


def test_what_an_algorithm_does_not_compute_is_left_out(monkeypatch):
    compiled = recorded(monkeypatch)
    assert compile_for([PROBLEM], A100, ("tf32x3_wgmma", "two_stage")) == 1
    assert [variant.source.stem for variant in compiled] == ["two_stage"]
