"""Networks on cuDNN's fastest engines, on a CPU: which layers are replaced, and what engines are asked for."""

import gc
import weakref

import pytest
import torch
from torch import nn

from cuconv import ConvProblem
from harness.contenders.base import NotRunnable
from harness.experiments.networks import fastest_engines
from harness.experiments.networks.fastest_engines import WORKSPACE_LIMIT, Convolution, with_fastest_engines


class Contender:
    """A contender whose fastest plan is torch's; `asked` has the problems and limits."""

    def __init__(self):
        self.asked = []

    def fastest(self, problem, operands, limit):
        self.asked.append((problem, limit))
        if problem.groups == 7:
            raise NotRunnable("unsupported", "no engine computes it")
        return lambda x, weight, output: output.copy_(torch.conv2d(x, weight, **problem.geometry))


@pytest.fixture
def contender(monkeypatch):
    found = Contender()
    monkeypatch.setattr(fastest_engines, "_contender", lambda: found)
    return found


class Model(nn.Module):
    """Convolutions of several kinds, with batch norm and without."""

    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, (3, 5), 2, (1, 2), bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.grouped = nn.Conv2d(8, 6, 3, padding=2, dilation=2, groups=2)
        self.same = nn.Conv2d(6, 6, 3, padding="same")
        self.reflecting = nn.Conv2d(6, 6, 3, padding=1, padding_mode="reflect")
        self.first[1].running_mean.normal_()
        self.first[1].running_var.uniform_(0.5, 2)

    def forward(self, x):
        x = self.grouped(self.first(x))
        return self.reflecting(self.same(x)) + x


@torch.no_grad()
def test_the_network_is_computed_with_batch_norm_folded(contender):
    model, x = Model().eval(), torch.randn(2, 3, 13, 10)
    replaced = with_fastest_engines(model)
    assert [name for name, layer in replaced.named_modules() if isinstance(layer, Convolution)] == [
        "first.0",
        "grouped",
    ]
    assert not any(isinstance(layer, nn.BatchNorm2d) for layer in replaced.modules())
    for images in (x, x.flip(0), x.contiguous(memory_format=torch.channels_last), x[:1]):
        assert torch.allclose(replaced(images), model(images), atol=1e-5)


@torch.no_grad()
def test_each_problem_is_asked_for_once(contender):
    replaced = with_fastest_engines(Model().eval())
    for batch in (2, 2, 3):
        replaced(torch.randn(batch, 3, 13, 10))
    first = ConvProblem(2, 3, 13, 10, 8, 3, 5, 1, 2, stride_h=2, stride_w=2)
    second = ConvProblem(2, 8, 7, 5, 6, 3, 3, 2, 2, dilation_h=2, dilation_w=2, groups=2)
    assert contender.asked[:2] == [(first, WORKSPACE_LIMIT), (second, WORKSPACE_LIMIT)]
    assert [problem.n for problem, _ in contender.asked] == [2, 2, 3, 3]


@torch.no_grad()
def test_the_plans_of_a_model_live_as_long_as_it(contender):
    first, second = (with_fastest_engines(Model().eval()) for _ in range(2))
    engines = weakref.ref(first.grouped.engines)
    first(torch.randn(2, 3, 13, 10))
    del first
    gc.collect()
    assert engines() is None
    second(torch.randn(2, 3, 13, 10))
    assert len(contender.asked) == 4, "each model has plans of its own"


@torch.no_grad()
def test_a_layer_that_no_engine_computes_is_an_error(contender):
    with pytest.raises(NotRunnable, match="no engine"):
        with_fastest_engines(nn.Sequential(nn.Conv2d(7, 7, 1, groups=7)).eval())(torch.randn(1, 7, 4, 4))
