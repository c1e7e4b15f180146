"""The README's examples on a CPU, as far as they go there; tests/gpu runs them whole."""

import sys
from types import ModuleType

import pytest
import torch
from torch import nn

import cuconv
from tests.docs.examples import examples

CONVERT, CALLS = examples("README.md")


def small_resnet() -> nn.Module:
    """A network with what resnet50 has: batch norm, ReLU and a fully connected layer after the last plane."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 7, 4, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)
    )


def test_a_model_is_converted_and_computes_the_same(monkeypatch):
    torchvision = ModuleType("torchvision")
    torchvision.models = ModuleType("torchvision.models")
    torchvision.models.resnet50 = small_resnet
    monkeypatch.setitem(sys.modules, "torchvision", torchvision)
    names = {}
    exec(CONVERT.replace('"cuda"', '"cpu"').replace(".cuda()", ""), names)
    expected = small_resnet().eval()(names["x"])
    torch.testing.assert_close(names["y"], expected)
    assert names["y"].shape == (8, 10) and len(names["report"].rows) == 2


def test_single_calls_are_refused_for_the_device_alone():
    with pytest.raises(cuconv.UnsupportedProblem, match="input is on cpu: move it to the GPU"):
        exec(CALLS.replace('device="cuda"', 'device="cpu"'), {})
