"""cuConv in torch on a CPU: what is folded and replaced, and that everything goes to torch where cuConv cannot."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cuconv.nn
from cuconv import reference
from cuconv.nn import operator
from cuconv.problem import ConvProblem

GEOMETRIES = [
    {},
    {"stride": 2, "padding": 1},
    {"stride": (2, 1), "padding": (0, 2), "dilation": (1, 2)},
    {"padding": "same"},
    {"padding": "valid", "groups": 2},
    {"padding": (1,), "groups": 4},
]


@pytest.fixture
def on_a_gpu(monkeypatch):
    """Take CPU tensors for a GPU's; returns the options of each call of cuconv.conv2d, which float64 computes."""
    calls = []

    def launch(input, weight, bias, stride, padding, dilation, groups, *, relu=False, residual=None, precision="fp32"):
        calls.append({"relu": relu, "residual": residual is not None, "precision": precision})
        output = reference.conv2d(input, weight, padding, bias, stride=stride, dilation=dilation, groups=groups)
        output = output if residual is None else output + residual.double()
        return (output.relu() if relu else output).float()

    def qualifies(input, weight, bias):
        return input.dtype == torch.float32 and input.is_contiguous() and weight.is_contiguous() and input.numel() > 0

    monkeypatch.setattr(operator, "_launch", launch)
    monkeypatch.setattr(operator, "qualifies", qualifies)
    return calls


def operands(groups=1):
    generator = torch.Generator().manual_seed(3)
    shapes = ((2, 8, 9, 11), (12, 8 // groups, 3, 3), (12,))
    return [torch.randn(shape, generator=generator) for shape in shapes]


def close(ours, theirs, tolerance=1e-5):
    return torch.linalg.vector_norm(ours.double() - theirs.double()) <= tolerance * torch.linalg.vector_norm(
        theirs.double()
    )


# The operator


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
@pytest.mark.parametrize("relu", [False, True])
def test_it_computes_what_torch_computes(on_a_gpu, geometry, relu):
    x, weight, bias = operands(geometry.get("groups", 1))
    truth = F.conv2d(x.double(), weight.double(), bias.double(), **geometry)
    residual = torch.randn(truth.shape)
    truth = truth + residual
    ours = cuconv.nn.conv2d(x, weight, bias, **geometry, relu=relu, residual=residual)
    assert close(ours, truth.relu() if relu else truth)
    assert on_a_gpu == [{"relu": relu, "residual": True, "precision": "fp32"}]


@pytest.mark.parametrize("relu", [False, True])
def test_it_passes_torchs_checks_of_an_operator(relu):
    x, weight, bias = (tensor.requires_grad_() for tensor in operands())
    residual = torch.randn(2, 12, 5, 6, requires_grad=True)
    arguments = (x, weight, bias, [2, 2], [1, 1], [1, 1], 1, relu, residual, "fp32")
    torch.library.opcheck(torch.ops.cuconv.conv2d.default, arguments)
    torch.library.opcheck(
        torch.ops.cuconv.conv2d.default, (x, weight, None, [1, 1], [0, 0], [2, 2], 1, relu, None, "fp32")
    )


def test_gradients_are_torchs(on_a_gpu):
    ours, theirs = ([tensor.requires_grad_() for tensor in operands()] for _ in range(2))
    residuals = [torch.full((2, 12, 5, 6), 0.1, requires_grad=True) for _ in range(2)]
    cuconv.nn.conv2d(*ours, stride=2, padding=1, relu=True, residual=residuals[0]).square().sum().backward()
    (F.conv2d(*theirs, stride=2, padding=1) + residuals[1]).relu().square().sum().backward()
    for mine, his in zip([*ours, residuals[0]], [*theirs, residuals[1]], strict=True):
        assert close(mine.grad, his.grad, 1e-4)


def test_it_compiles_in_one_graph(on_a_gpu):
    x, weight, bias = operands()
    compiled = torch.compile(
        lambda x: cuconv.nn.conv2d(x, weight, bias, padding=1, relu=True) * 2, fullgraph=True, backend="eager"
    )
    assert close(compiled(x), 2 * F.conv2d(x, weight, bias, padding=1).relu())


@pytest.mark.parametrize(
    "change",
    {
        "half": lambda x, w, b: (x.bfloat16(), w.bfloat16(), b.bfloat16()),
        "double": lambda x, w, b: (x.double(), w.double(), b.double()),
        "channels last": lambda x, w, b: (x.to(memory_format=torch.channels_last), w, b),
        "empty batch": lambda x, w, b: (x[:0], w, b),
        "one image": lambda x, w, b: (x[0], w, b),
        "even filter": lambda x, w, b: (x, w[:, :, :2, :2].contiguous(), b),
    }.items(),
    ids=lambda item: item[0],
)
def test_what_cuconv_does_not_take_goes_to_torch(on_a_gpu, change):
    x, weight, bias = change[1](*operands())
    torch.testing.assert_close(
        cuconv.nn.conv2d(x, weight, bias, padding="same"), F.conv2d(x, weight, bias, padding="same"), check_stride=False
    )
    assert on_a_gpu == []


def test_a_residual_that_is_broadcast_is_added_by_torch(on_a_gpu):
    x, weight, bias = operands()
    residual = torch.randn(1, 12, 1, 1)
    ours = cuconv.nn.conv2d(x, weight, bias, residual=residual, relu=True)
    assert close(ours, (F.conv2d(x, weight, bias) + residual).relu())
    assert on_a_gpu == [{"relu": False, "residual": False, "precision": "fp32"}]


# Models


def conv_bn(*sizes, relu=False, **options):
    layers = [nn.Conv2d(*sizes, bias=False, **options), nn.BatchNorm2d(sizes[1])]
    return nn.Sequential(*layers, *([nn.ReLU(inplace=True)] if relu else []))


class Block(nn.Module):
    """A residual block as torchvision writes it, with a shortcut."""

    def __init__(self):
        super().__init__()
        self.first, self.second = conv_bn(8, 16, 3, stride=2, padding=1, relu=True), conv_bn(16, 16, 3, padding=1)
        self.shortcut = conv_bn(8, 16, 1, stride=2)

    def forward(self, x):
        out = self.second(self.first(x))
        out += self.shortcut(x)
        return F.relu(out)


class Branches(nn.Module):
    """Branches that are concatenated, a convolution with two users, and one that is called twice."""

    def __init__(self):
        super().__init__()
        self.stem, self.a, self.b = (
            nn.Conv2d(3, 8, 3),
            nn.Conv2d(8, 8, 1),
            conv_bn(8, 8, 3, padding=1, groups=8, relu=True),
        )

    def forward(self, x):
        x = self.stem(x)
        return torch.cat([torch.relu(self.a(x)), self.a(x * 2), self.b(x), x], 1)


class Untraceable(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = conv_bn(3, 8, 3, relu=True)
        self.last = nn.Conv2d(8, 4, 1)

    def forward(self, x):
        x = self.features(x)
        return self.last(x) if x.sum() > -1e9 else x


class WritesItsInput(nn.Module):
    """Writes to the convolution's input between the convolution and the sum."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 1)

    def forward(self, x):
        x = x + 1
        out = self.conv(x)
        return out + F.relu(x, inplace=True)


MODELS = {
    "sequential": (lambda: nn.Sequential(conv_bn(3, 8, 3, relu=True), nn.MaxPool2d(2), nn.Conv2d(8, 4, 1)), 3),
    "block": (Block, 8),
    "branches": (Branches, 3),
    "untraceable": (Untraceable, 3),
    "writes its input": (WritesItsInput, 4),
}


def made(name):
    torch.manual_seed(1)
    make, channels = MODELS[name]
    model = make().eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            for values in (module.weight.data, module.running_var):
                values.uniform_(0.5, 2)
            for values in (module.bias.data, module.running_mean):
                values.normal_()
    return model, torch.randn(2, channels, 12, 13)


@pytest.mark.parametrize("name", MODELS)
def test_a_converted_model_computes_the_same(on_a_gpu, name):
    model, x = made(name)
    before = copy.deepcopy(model.state_dict())
    with torch.no_grad():
        truth = copy.deepcopy(model).double()(x.double())
        converted, report = cuconv.nn.convert(model)
        assert close(converted(x.clone()), truth)
    assert on_a_gpu and not report.left
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items()), "the model is unchanged"


@pytest.mark.parametrize(
    ("name", "folded"),
    [
        ("sequential", [("batch norm", "relu"), ()]),
        ("block", [("batch norm", "relu"), ("batch norm", "residual", "relu"), ("batch norm",)]),
        ("branches", [(), ("relu",), (), ("batch norm", "relu")]),
        ("untraceable", [("batch norm", "relu"), ()]),
        ("writes its input", [()]),
    ],
)
def test_the_report_tells_what_was_folded(name, folded):
    model, _ = made(name)
    _, report = cuconv.nn.convert(model)
    assert [row.folded for row in report.rows] == folded
    assert str(report).startswith(f"{len(folded)} of {len(folded)} convolutions replaced")
    assert report.traced == (name != "untraceable")


def test_what_stays_with_torch_is_told():
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"), nn.Conv2d(4, 4, 1).double(), nn.ReLU())
    converted, report = cuconv.nn.convert(model.eval())
    assert [row.reason for row in report.left] == ["its padding_mode is 'reflect'", "its weight is torch.float64"]
    assert [type(module) for module in converted.children()] == [nn.Conv2d, nn.Conv2d, nn.ReLU]


def test_a_model_in_training_mode_is_refused():
    with pytest.raises(ValueError, match=r"the model is in training mode.*call model\.eval\(\) first"):
        cuconv.nn.convert(nn.Conv2d(3, 4, 1).train())


def test_the_precision_reaches_the_kernels(on_a_gpu):
    model, x = made("block")
    with torch.no_grad():
        cuconv.nn.convert(model, precision="tf32")[0](x)
    assert {call["precision"] for call in on_a_gpu} == {"tf32"}


def test_fake_tensors_record_the_problems():
    model, x = made("sequential")
    converted, _ = cuconv.nn.convert(model)
    from torch._subclasses.fake_tensor import FakeTensorMode

    with torch.no_grad(), operator.recorded() as calls, FakeTensorMode(allow_non_fake_inputs=True) as mode:
        converted(mode.from_tensor(x))
    assert calls == {(ConvProblem(2, 3, 12, 13, 8, 3, 3), False), (ConvProblem(2, 8, 5, 5, 4, 1, 1), False)}


def test_enabled_sends_every_convolution(on_a_gpu):
    model, x = made("block")
    with torch.no_grad(), cuconv.nn.enabled(precision="tf32"):
        ours = model(x)
    with torch.no_grad():
        assert close(ours, model(x))
    assert on_a_gpu == [{"relu": False, "residual": False, "precision": "tf32"}] * 3


def test_enabled_keeps_gradients_and_what_cuconv_does_not_take(on_a_gpu):
    conv, transposed = nn.Conv2d(3, 4, 3), nn.ConvTranspose2d(4, 3, 3)
    x = torch.randn(1, 3, 8, 8, requires_grad=True)
    with cuconv.nn.enabled():
        transposed(conv(x)).sum().backward()
        conv.double()(x.detach().double())
    assert len(on_a_gpu) == 1 and x.grad is not None and conv.weight.grad is not None
