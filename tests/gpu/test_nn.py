"""cuConv in torch on a GPU: the operator, graphs, converted models, and what falls through."""

import copy
from importlib.util import find_spec

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cuconv.nn
from cuconv.nn import comparison, operator
from cuconv.prepared import PreparedConv2d
from cuconv.reference import round_to_tf32
from tests.cuconv.nn.models import MODELS, close, made
from tests.cuconv.nn.zoo.entries import Model


@pytest.fixture(autouse=True)
def no_tf32(monkeypatch):
    """Keep torch's own convolutions in FP32."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.fixture
def counted(monkeypatch):
    """The calls that cuConv computed, "plain" or "prepared"."""
    calls = []
    launch, run = operator._launch, PreparedConv2d.__call__
    monkeypatch.setattr(operator, "_launch", lambda *a, **k: calls.append("plain") or launch(*a, **k))
    monkeypatch.setattr(PreparedConv2d, "__call__", lambda *a, **k: calls.append("prepared") or run(*a, **k))
    return calls


def operands():
    generator = torch.Generator("cuda").manual_seed(3)
    shapes = ((2, 8, 9, 11), (12, 8, 3, 3), (12,))
    return [torch.randn(shape, generator=generator, device="cuda") for shape in shapes]


def test_the_operator_passes_torchs_checks():
    with torch.enable_grad():
        x, weight, bias = (tensor.requires_grad_() for tensor in operands())
        residual = torch.randn(2, 12, 5, 6, device="cuda", requires_grad=True)
        arguments = (x, weight, bias, [2, 2], [1, 1], [1, 1], 1, "silu", [], residual, "fp32")
        torch.library.opcheck(torch.ops.cuconv.conv2d.default, arguments)


def test_gradients(counted):
    with torch.enable_grad():
        ours, theirs = ([tensor.requires_grad_() for tensor in operands()] for _ in range(2))
        cuconv.nn.conv2d(*ours, stride=2, padding=1, relu=True).square().sum().backward()
        doubles = [tensor.detach().double().requires_grad_() for tensor in theirs]
        F.conv2d(*doubles, stride=2, padding=1).relu().square().sum().backward()
    assert counted
    assert all(close(mine.grad, his.grad, 1e-5) for mine, his in zip(ours, doubles, strict=True))


def test_torch_compile_in_one_graph(counted):
    x, weight, bias = operands()
    compiled = torch.compile(lambda x: cuconv.nn.conv2d(x, weight, bias, padding=1, relu=True) * 2, fullgraph=True)
    assert close(compiled(x), 2 * F.conv2d(x.double(), weight.double(), bias.double(), padding=1).relu())
    assert counted


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_converted_model_on_the_gpu(name, layout):
    model, x = made(name)
    model, x = model.cuda(), x.cuda().to(memory_format=layout)
    truth = copy.deepcopy(model).double()(x.double())
    converted, report = cuconv.nn.convert(model, x)
    assert report.replaced and not report.why_not_compared
    assert close(converted(x.clone()), truth)


def test_a_converted_model_in_a_graph(counted):
    model, x = made("block")
    model, x = model.cuda(), x.cuda()
    converted, _ = cuconv.nn.convert(model, x)
    counted.clear()
    converted(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = converted(x)
    for seed in (1, 2):
        torch.manual_seed(seed)
        x.copy_(torch.randn_like(x))
        graph.replay()
        assert close(out, copy.deepcopy(model).double()(x.double()))
    assert set(counted) == {"prepared"}


def test_branches_are_written_to_their_place(counted):
    model, x = made("fire")
    model, x = model.cuda(), x.cuda()
    converted, _ = cuconv.nn.convert(model, x[:1])
    assert all("self.layer_cat" in str(graph) for graph in converted._graphs.of_calls())
    counted.clear()
    for images in (x[:1], x):
        assert close(converted(images), copy.deepcopy(model).double()(images.double()))
    assert set(counted) == {"prepared"}


def test_changed_weights_of_a_converted_model(counted):
    model, x = made("block")
    converted, _ = cuconv.nn.convert(model.cuda(), x.cuda())
    before = converted(x.cuda())
    for parameter in model.parameters():
        parameter.mul_(1.5)
    assert torch.equal(converted(x.cuda()), before), "the weights are constant"
    counted.clear()
    for take_over in (converted.refresh, lambda model: converted.load_state_dict(model.state_dict())):
        take_over(model)
        assert close(converted(x.cuda()), copy.deepcopy(model).double()(x.cuda().double()))
        model.first[0].weight.mul_(0.5)
    assert set(counted) == {"prepared"}


@pytest.mark.parametrize("recording", [torch.no_grad, torch.inference_mode])
def test_enabled(counted, recording):
    model, x = made("block")
    model, x = model.cuda(), x.cuda()
    with recording(), cuconv.nn.enabled():
        out = model(x)
    assert counted == ["plain"] * 3
    assert close(out, copy.deepcopy(model).double()(x.double()))


@pytest.mark.parametrize("kind", ["half", "channels_last", "empty"])
def test_what_cuconv_does_not_take(counted, kind):
    x, weight, bias = operands()
    x, weight, bias = {
        "half": lambda: (x.half(), weight.half(), bias.half()),
        "channels_last": lambda: (x.to(memory_format=torch.channels_last), weight, bias),
        "empty": lambda: (x[:0], weight, bias),
    }[kind]()
    theirs = F.conv2d(x, weight, bias, padding=1)
    for ours in (cuconv.nn.conv2d(x, weight, bias, padding=1), _enabled(x, weight, bias)):
        torch.testing.assert_close(ours, theirs, check_stride=False, rtol=1e-3, atol=1e-3)
    assert counted == []


def _enabled(x, weight, bias):
    with cuconv.nn.enabled():
        return F.conv2d(x, weight, bias, padding=1)


TORCHVISION = ("resnet18", "googlenet", "squeezenet1_1", "mobilenet_v3_small", "densenet121")


@pytest.mark.parametrize("name", TORCHVISION if find_spec("torchvision") else ())
def test_torchvisions_models(name):
    import torchvision

    torch.manual_seed(0)
    options = {"init_weights": False, "aux_logits": False} if name == "googlenet" else {}
    model = torchvision.models.get_model(name, weights=None, **options).eval().cuda()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_var.uniform_(0.5, 2)
            module.running_mean.normal_(0, 0.1)
    x = torch.randn(2, 3, 224, 224, device="cuda")
    truth = copy.deepcopy(model).double()(x.double())
    converted, report = cuconv.nn.convert(model, x)
    assert report.captured and not report.left
    assert close(converted(x), truth, 1e-5)
    with cuconv.nn.enabled():
        assert close(model(x), truth, 1e-5)


class Differences(nn.Module):
    """A convolution whose output is nearly constant, and what varies in it: rounding that is small becomes large."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(128, 128, 3, bias=False)

    def forward(self, x):
        y = self.conv(x)
        return y - y.mean((2, 3), keepdim=True)


def test_a_model_that_magnifies_rounding_is_converted_in_tf32():
    generator = torch.Generator("cuda").manual_seed(3)
    x = 1 + 0.003 * torch.randn(2, 128, 32, 32, generator=generator, device="cuda")
    model = Differences().eval().cuda()
    truth = copy.deepcopy(model).double()(x.double())
    converted, report = cuconv.nn.convert(model, x, precision="tf32")
    ours = converted(x)
    model.conv.weight.copy_(round_to_tf32(model.conv.weight))
    theirs = model.double()(round_to_tf32(x).double())
    assert not close(theirs, truth, 1e-2)
    assert report.captured
    assert comparison.distance(ours, truth) <= 3 * comparison.distance(theirs, truth)


def test_grid_sample_is_part_of_a_graph_for_other_sizes():
    def forward(model, x, grid):
        return model.second(F.grid_sample(model.first(x), grid, align_corners=True))

    model = Model(forward, first=nn.Conv2d(3, 8, 3), second=nn.Conv2d(8, 4, 3)).eval().cuda()
    converted, report = cuconv.nn.convert(model, (torch.randn(1, 3, 9, 8).cuda(), torch.rand(1, 7, 6, 2).cuda()))
    x, grid = torch.randn(2, 3, 12, 20).cuda(), torch.rand(2, 10, 9, 2).cuda()
    assert close(converted(x, grid), model(x, grid))
    assert report.breaks == [] and (report.folded_calls, report.own_calls) == (1, 0)
