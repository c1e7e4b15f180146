"""Models in half precision on a GPU: as exact as torch's, in graphs, on several streams, and from the first call on."""

import copy
from importlib.util import find_spec

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cuconv.nn
from cuconv.nn import operator
from cuconv.nn.comparison import distance
from cuconv.nn.formats import is_laid_out
from cuconv.prepared import PreparedConv2d
from tests.cuconv.nn.models import MODELS, made

TYPES = (torch.float16, torch.bfloat16)
LAYOUTS = (torch.contiguous_format, torch.channels_last)


@pytest.fixture
def counted(monkeypatch):
    """The calls that cuConv computed, "plain" or "prepared"."""
    calls = []
    launch, run = operator._launch, PreparedConv2d.__call__
    monkeypatch.setattr(operator, "_launch", lambda *a, **k: calls.append("plain") or launch(*a, **k))
    monkeypatch.setattr(PreparedConv2d, "__call__", lambda *a, **k: calls.append("prepared") or run(*a, **k))
    return calls


def assert_as_exact(model, computed, x, times=1.5):
    """Check that a result is not much farther from float64 than torch's own in half precision."""
    truth = copy.deepcopy(model).double()(x.double())
    assert distance(computed, truth) <= times * distance(model(x.clone()), truth)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", MODELS)
def test_a_converted_model_is_as_exact_as_torchs(counted, name, dtype, layout):
    model, x = made(name)
    model = model.cuda().to(dtype).to(memory_format=layout)
    x = x.cuda().to(dtype).contiguous(memory_format=layout)
    converted, report = cuconv.nn.convert(model, x)
    counted.clear()
    for images in (x, torch.cat([x, x, x]), x):
        assert_as_exact(model, converted(images.clone()), images)
    assert report.captured and set(counted) == {"prepared"}


TORCHVISION = ("resnet18", "googlenet", "squeezenet1_1", "mobilenet_v2", "vgg11", "densenet121")


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", TORCHVISION if find_spec("torchvision") else ())
def test_torchvisions_models(name, dtype):
    import torchvision

    torch.manual_seed(0)
    options = {"init_weights": False, "aux_logits": False} if name == "googlenet" else {}
    model = torchvision.models.get_model(name, weights=None, **options).eval().cuda().to(dtype)
    x = torch.randn(2, 3, 224, 224, device="cuda", dtype=dtype)
    converted, report = cuconv.nn.convert(model, x)
    assert report.captured, report.why_not_captured
    assert not any(isinstance(model.get_submodule(row.name), nn.Conv2d) for row in report.left)
    assert_as_exact(model, converted(x), x)


def test_a_graph_of_a_converted_model_follows_its_input():
    model, x = made("block")
    model, x = model.cuda().half(), x.cuda().half()
    converted, _ = cuconv.nn.convert(model, x)
    converted(x)
    cuconv.wait_for_kernels()
    converted(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = converted(x)
    x.normal_()
    graph.replay()
    assert_as_exact(model, output, x)


def test_weights_that_have_just_been_written_are_those_of_the_call():
    model = nn.Sequential(*(nn.Conv2d(256, 256, 1, bias=False) for _ in range(3))).eval().cuda().half()
    model = model.to(memory_format=torch.channels_last)
    x = torch.randn(1, 256, 7, 7, device="cuda").half().contiguous(memory_format=torch.channels_last)
    converted, _ = cuconv.nn.convert(model, x)
    for _ in range(20):
        for one, other in zip(converted.parameters(), model.parameters(), strict=True):
            other.normal_(0, 0.1)
            one.copy_(other)
        assert_as_exact(model, converted(x), x)


@pytest.mark.parametrize("dtype", TYPES)
def test_enabled_and_the_operator_take_channels_last_alone(counted, dtype):
    x, weight = torch.randn(2, 8, 9, 11, device="cuda", dtype=dtype), torch.randn(12, 8, 3, 3, device="cuda").to(dtype)
    truth = F.conv2d(x.double(), weight.double(), padding=1)
    for layout, calls in ((torch.contiguous_format, 0), (torch.channels_last, 2)):
        counted.clear()
        x, weight = (one.contiguous(memory_format=layout) for one in (x, weight))
        with cuconv.nn.enabled():
            theirs = F.conv2d(x, weight, padding=1)
        ours = cuconv.nn.conv2d(x, weight, padding=1)
        assert len(counted) == calls
        for output in (theirs, ours):
            assert distance(output, truth) < (1e-2 if dtype == torch.bfloat16 else 1e-3)
        assert calls == 0 or (is_laid_out(ours) and is_laid_out(theirs))


def test_gradients_are_torchs(counted):
    with torch.enable_grad():
        x = torch.randn(2, 8, 9, 11, device="cuda").half().contiguous(memory_format=torch.channels_last)
        weight = torch.randn(12, 8, 3, 3, device="cuda").half().contiguous(memory_format=torch.channels_last)
        ours, theirs = ([one.clone().requires_grad_() for one in (x, weight)] for _ in range(2))
        cuconv.nn.conv2d(*ours, padding=1, relu=True).sum().backward()
        doubles = [one.detach().double().requires_grad_() for one in theirs]
        F.conv2d(*doubles, padding=1).relu().sum().backward()
    assert counted == ["plain"]
    assert all(distance(mine.grad, his.grad) < 2e-3 for mine, his in zip(ours, doubles, strict=True))
