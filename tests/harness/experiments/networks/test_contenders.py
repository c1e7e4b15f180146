"""The contenders of whole networks on a CPU: what they compute, and how they call torch and cuConv."""

import sys
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from harness.experiments.networks import fastest_engines
from harness.experiments.networks.contenders import CONTENDERS, of_precision, set_torch
from harness.experiments.networks.rows import TORCH_CONTENDERS
from tests.harness.experiments.networks.toy_networks import ToyModel


class Engines:
    """torch in the place of cuDNN's engines."""

    def fastest(self, problem, operands, limit):
        return lambda x, weight, output: output.copy_(torch.conv2d(x, weight, **problem.geometry))


@pytest.fixture
def calls(monkeypatch):
    """A made-up cuconv.nn and torch.compile; returns what was called."""
    found = []

    def convert(model, example, *, precision):
        found.append(("convert", precision, tuple(example.shape)))
        return model, "a report"

    @contextmanager
    def enabled(precision):
        found.append(("enabled", precision))
        yield

    def compile(model, mode="default", options=None):
        found.append(("compile", options or mode))
        return model

    monkeypatch.setattr(fastest_engines, "_contender", Engines)
    monkeypatch.setitem(sys.modules, "cuconv.nn", SimpleNamespace(convert=convert, enabled=enabled))
    monkeypatch.setattr(torch, "compile", compile)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return found


@pytest.fixture
def settings_of_torch():
    """torch's settings, put back after the test."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.benchmark, cudnn.benchmark_limit, cudnn.allow_tf32, matmul.allow_tf32
    yield
    cudnn.benchmark, cudnn.benchmark_limit, cudnn.allow_tf32, matmul.allow_tf32 = before


@pytest.mark.parametrize("name", CONTENDERS)
def test_each_computes_the_model(calls, name):
    model, images = ToyModel().eval(), torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        expected = model(images)
        prepared = CONTENDERS[name](model, images, "tf32")
        assert torch.allclose(prepared.forward(), expected, atol=1e-6)
    frozen = {"freezing": True}
    assert calls == {"torch_compile": [("compile", "default")],
                     "torch_fastest_engines": [("compile", "default")],
                     "torch_compile_frozen": [("compile", frozen)],
                     "torch_frozen_channels_last": [("compile", frozen)], "cuconv": [("convert", "tf32", (2, 3, 8, 8))],
                     "cuconv_enabled": [("enabled", "tf32")]}.get(name, [])  # fmt: skip


@pytest.mark.parametrize("name", CONTENDERS)
@pytest.mark.parametrize("shape", [(2, 3, 9), (2, 2, 3, 8, 8)], ids=["signals", "pairs of images"])
def test_an_input_that_is_no_batch_of_images(calls, name, shape):
    layers = [torch.nn.Conv1d(3, 4, 3)] if len(shape) == 3 else [torch.nn.Flatten(0, 1), torch.nn.Conv2d(3, 4, 3)]
    model, x = torch.nn.Sequential(*layers), torch.randn(shape)
    with torch.no_grad():
        expected = model(x)
        assert torch.allclose(CONTENDERS[name](model, x, "fp16").forward(), expected, atol=1e-6)


def test_what_detail_says(calls):
    model, images = ToyModel().eval(), torch.randn(2, 3, 8, 8)
    details = {name: CONTENDERS[name](model, images, "fp32").detail for name in CONTENDERS}
    assert details.pop("cuconv").startswith("convert 0.")
    assert not any(details.values())


@pytest.mark.parametrize("name", ["torch_channels_last", "torch_frozen_channels_last"])
def test_channels_last_input_and_weights(calls, name):
    seen = []

    class Model(ToyModel):
        def forward(self, x):
            seen.append((x.stride(), self.conv.weight.stride()))
            return super().forward(x)

    CONTENDERS[name](Model(), torch.randn(2, 3, 8, 8), "fp32").forward()
    assert seen == [((192, 1, 24, 3), (27, 1, 9, 3))]


@pytest.mark.parametrize(("precision", "allowed"), [("fp32", False), ("tf32", True)])
def test_the_precision_is_torch_s_for_convolutions_and_products(settings_of_torch, precision, allowed):
    set_torch(precision)
    assert torch.backends.cudnn.benchmark and torch.backends.cudnn.benchmark_limit == 0
    assert torch.backends.cudnn.allow_tf32 is torch.backends.cuda.matmul.allow_tf32 is allowed


def test_cudnns_fastest_engines_are_measured_in_fp32_alone_and_models_alone_in_fp16():
    assert of_precision(CONTENDERS, "fp32") == list(CONTENDERS)
    assert set(CONTENDERS) - set(of_precision(CONTENDERS, "tf32")) == {"torch_fastest_engines"}
    assert set(of_precision(CONTENDERS, "fp16")) == {*TORCH_CONTENDERS, "cuconv"}
