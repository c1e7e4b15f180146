"""Padding that differs at both ends of an axis: the operator, and zeros in a model that become a convolution's own."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cuconv.nn
from cuconv import UnsupportedProblem
from cuconv.nn import operator
from tests.cuconv.nn.models import close, operands
from tests.cuconv.nn.zoo.entries import Model

PADDINGS = [((0, 1), (0, 1)), ((2, 0), (1, 3)), [[1, 1], [0, 2]]]
PADS = (torch.ops.aten.constant_pad_nd.default, torch.ops.aten.pad.default)


def with_zeros(x, padding):
    rows, columns = padding
    return F.pad(x, (*columns, *rows))


@pytest.fixture
def launched(on_a_gpu, monkeypatch):
    """The input and the padding of each call that cuConv computes."""
    found, launch = [], operator._launch

    def note(input, weight, bias, stride, padding, *others, **options):
        found.append((input, padding))
        return launch(input, weight, bias, stride, padding, *others, **options)

    monkeypatch.setattr(operator, "_launch", note)
    return found


# The operator


@pytest.mark.parametrize("padding", PADDINGS, ids=str)
@pytest.mark.parametrize("stride", [1, (2, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernels_pad(launched, padding, stride, dtype):
    x, weight, bias = (one.to(dtype) for one in operands())
    if dtype == torch.bfloat16:
        x, weight = (one.to(memory_format=torch.channels_last) for one in (x, weight))
    ours = cuconv.nn.conv2d(x, weight, bias, stride, padding, relu=True)
    truth = F.conv2d(with_zeros(x.double(), padding), weight.double(), bias.double(), stride).relu()
    assert ours.shape == truth.shape and close(ours, truth, 1e-5 if dtype == torch.float32 else 1e-2)
    ((input, pads),) = launched
    assert input is x and pads == tuple(map(tuple, padding))


def test_the_odd_zero_of_an_even_filter_is_no_copy(launched):
    x, weight, _ = operands()
    cuconv.nn.conv2d(x, weight[:, :, :2, :2].contiguous(), padding="same")
    cuconv.nn.conv2d(x, weight, padding="same")
    assert all(input is x for input, _ in launched) and [pads for _, pads in launched] == [((0, 1), (0, 1)), (1, 1)]


@pytest.mark.parametrize("padding", PADDINGS, ids=str)
@pytest.mark.parametrize("activation", [None, "relu", "silu"])
def test_gradients_are_torchs(on_a_gpu, padding, activation):
    ours, theirs = ([tensor.requires_grad_() for tensor in operands()] for _ in range(2))
    cuconv.nn.conv2d(*ours, 2, padding, activation=activation).square().sum().backward()
    output = F.conv2d(with_zeros(theirs[0], padding), *theirs[1:], 2)
    (output if activation is None else getattr(F, activation)(output)).square().sum().backward()
    for mine, his in zip(ours, theirs, strict=True):
        assert close(mine.grad, his.grad, 1e-4)


def test_second_derivatives():
    tensors = [torch.randn(s, dtype=torch.double, requires_grad=True) for s in ((1, 2, 4, 4), (2, 2, 3, 3), (2,))]
    convolve = torch.ops.cuconv.conv2d.default
    assert torch.autograd.gradgradcheck(
        lambda *a: convolve(*a, [1, 1], [0, 2, 1, 0], [1, 1], 1, "silu", [], None, "fp32"), tensors
    )


@pytest.mark.parametrize("activation", [("none", []), ("silu", [])])
def test_it_passes_torchs_checks_of_an_operator(activation):
    x, weight, bias = (tensor.requires_grad_() for tensor in operands())
    arguments = (x, weight, bias, [2, 2], [0, 1, 2, 0], [1, 1], 1, *activation, None, "fp32")
    torch.library.opcheck(torch.ops.cuconv.conv2d.default, arguments)


def test_on_a_cpu_torch_pads():
    x, weight, bias = (one.double() for one in operands())
    expected = F.conv2d(with_zeros(x, PADDINGS[1]), weight, bias)
    assert torch.equal(cuconv.nn.conv2d(x, weight, bias, padding=PADDINGS[1]), expected)
    signals = cuconv.nn.conv1d(x[:, :, 0], weight[:, :, 0], bias, padding=(2, 0))
    assert close(signals, F.conv1d(F.pad(x[:, :, 0], (2, 0)), weight[:, :, 0], bias))


@pytest.mark.parametrize("padding", [(0, 1, 0, 1), (1, 2, 3), "full"])
def test_what_torch_refuses_is_refused(on_a_gpu, padding):
    for convolve in (cuconv.nn.conv2d, F.conv2d):
        with pytest.raises(RuntimeError):
            convolve(*operands(), padding=padding)
    assert on_a_gpu == []


@pytest.mark.parametrize("device", ["cpu", "gpu"])
@pytest.mark.parametrize(
    "padding", [((1, 2, 3), (4, 5, 6)), ((1, 2),), (1, (2, 3)), ((1,), (2,)), ((-1, 0), (0, 0))], ids=str
)
def test_pairs_are_one_for_each_axis_and_not_below_0(request, device, padding):
    if device == "gpu":
        request.getfixturevalue("on_a_gpu")
    with pytest.raises(UnsupportedProblem):
        cuconv.nn.conv2d(*operands(), padding=padding)
    x, weight, bias = operands()
    with pytest.raises(UnsupportedProblem):
        cuconv.nn.conv1d(x[:, :, 0].contiguous(), weight[:, :, 0].contiguous(), bias, padding=(-1, 0))


def test_signals(launched):
    x, weight, bias = operands()
    x, weight = x[:, :, 0].contiguous(), weight[:, :, 0].contiguous()
    ours = cuconv.nn.conv1d(x, weight, bias, padding=(4, 0), dilation=2)
    assert close(ours, F.conv1d(F.pad(x, (4, 0)), weight, bias, dilation=2))
    ((input, pads),) = launched
    assert input.data_ptr() == x.data_ptr() and pads == ((0, 0), (4, 0))


# The fold


class Causal(nn.Module):
    """Causal convolutions with a shortcut, as in models of speech."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv1d(8, 8, 3, dilation=2), nn.Conv1d(8, 8, 3)

    def forward(self, x):
        y = F.silu(self.first(F.pad(x, (4, 0))))
        return F.relu(self.second(F.pad(y, (2, 0))) + x)


MODELS = {  # by name: the model, the shape of an input, and what is folded
    "autoencoder": (
        lambda: nn.Sequential(nn.ZeroPad2d((0, 1, 0, 1)), nn.Conv2d(8, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 4, 1)),
        (2, 8, 9, 10),
        [("padding", "relu"), ()],
    ),
    "zeros and padding": (
        lambda: nn.Sequential(nn.ZeroPad2d((2, 0, 0, 3)), nn.ConstantPad2d((0, 1, 0, 0), 0), nn.Conv2d(8, 8, 3, 1, 1)),
        (2, 8, 9, 10),
        [("padding",)],
    ),
    "causal": (Causal, (2, 8, 19), [("padding", "silu"), ("padding", "residual", "relu")]),
}


def made(name, dtype=torch.float32):
    torch.manual_seed(4)
    factory, shape, folded = MODELS[name]
    x = torch.randn(shape).to(dtype)
    return factory().eval().to(dtype), x.to(memory_format=torch.channels_last) if x.dim() == 4 else x, folded


@torch.no_grad()
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_zeros_become_padding_in_a_converted_model(on_a_gpu, name, dtype):
    model, x, folded = made(name, dtype)
    converted, report = cuconv.nn.convert(model, x)
    assert [row.folded for row in report.rows] == folded and not report.left
    assert close(converted(x), model.double()(x.double()), 1e-5 if dtype == torch.float32 else 1e-2)
    assert on_a_gpu


@torch.no_grad()
@pytest.mark.parametrize("name", MODELS)
def test_zeros_become_padding_in_an_exported_program(launched, name):
    model, x, _ = made(name)
    program = cuconv.nn.fold(torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim.AUTO},)))
    assert not any(node.target in PADS for node in program.graph.nodes)
    assert close(program.module()(x), model(x)) and close(program.module()(x[:1]), model(x[:1]))
    assert any(isinstance(pads[0], tuple) or isinstance(pads[1], tuple) for _, pads in launched)


@torch.no_grad()
@pytest.mark.parametrize("name", MODELS)
def test_zeros_become_padding_under_torch_compile(on_a_gpu, name):
    model, x, _ = made(name)
    compiled = torch.compile(model, backend="cuconv", dynamic=True)
    assert close(compiled(x), model(x)) and on_a_gpu


def pads(*sizes, mode="constant", value=0.0):
    return lambda model, x: model.conv(F.pad(x, sizes, mode, value))


def pads_for_two(model, x):
    padded = F.pad(x, (1, 0, 0, 1))
    return model.conv(padded) + padded[:, :, 1:-1, 1:-1]


OTHERS = {
    "ones": pads(0, 1, 0, 1, value=1.0),
    "pixels": pads(1, 1, 1, 1, mode="reflect"),
    "a crop": pads(-1, 2, 0, 1),
    "images": pads(0, 1, 0, 1, 0, 0, 1, 0),
    "another reader": pads_for_two,
    "zeros of a result": lambda model, x: F.pad(model.conv(x), (0, 1, 0, 1)),
}


@torch.no_grad()
@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_padding_of_a_convolution_stays(on_a_gpu, name):
    torch.manual_seed(5)
    model, x = Model(OTHERS[name], conv=nn.Conv2d(8, 8, 3)).eval(), torch.randn(2, 8, 9, 10)
    converted, report = cuconv.nn.convert(model, x)
    assert "padding" not in report.rows[0].folded and not report.left
    assert close(converted(x), model(x))
    program = cuconv.nn.fold(torch.export.export(model, (x,)))
    assert close(program.module()(x), model(x))
