"""1D convolutions in cuconv.nn on a CPU: single calls, modules, blocks, exported programs, and converted vocoders."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cuconv.nn
from cuconv.nn import backend
from tests.cuconv.nn.models import Generator, close
from tests.cuconv.nn.zoo.entries import Model
from tests.cuconv.test_activation import truth_of

CONV2D = torch.ops.cuconv.conv2d.default
HALVES = {torch.float16: 3e-3, torch.bfloat16: 3e-2}  # and the largest relative L2 error of a small model
GEOMETRIES = [
    {},
    {"stride": 2, "padding": (1,)},
    {"padding": 6, "dilation": 3},
    {"padding": "same", "dilation": 2},
    {"padding": "valid", "groups": 4},
]


pytestmark = pytest.mark.usefixtures("nothing_compiled")


def operands(groups=1, length=3):
    generator = torch.Generator().manual_seed(3)
    shapes = ((2, 8, 37), (12, 8 // groups, length), (12,))
    return [torch.randn(shape, generator=generator) for shape in shapes]


def last_in_memory(t):
    """The same tensor with the channels of a position together in memory."""
    return t.mT.contiguous().mT


# Single calls


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
@pytest.mark.parametrize("activation", [None, "relu", ("leaky_relu", 0.2)])
def test_it_computes_what_torch_computes(on_a_gpu, geometry, activation):
    x, weight, bias = operands(geometry.get("groups", 1))
    truth = F.conv1d(x.double(), weight.double(), bias.double(), **geometry)
    residual = torch.randn(truth.shape)
    ours = cuconv.nn.conv1d(x, weight, bias, **geometry, activation=activation, residual=residual)
    truth = truth + residual
    assert close(ours, truth if activation is None else truth_of(activation, truth)) and ours.is_contiguous()
    assert len(on_a_gpu) == 1 and on_a_gpu[0]["residual"]


@pytest.mark.parametrize(
    "residual", [0.5, torch.ones(()), torch.ones(37), torch.randn(12, 1), torch.randn(3, 2, 12, 37)]
)
def test_a_residual_is_broadcast_as_torch_broadcasts_it(on_a_gpu, residual):
    x, weight, bias = operands()
    ours, theirs = cuconv.nn.conv1d(x, weight, bias, padding=1, residual=residual), F.conv1d(x, weight, bias, padding=1)
    assert close(ours, theirs + residual) and ours.shape == (theirs + residual).shape and len(on_a_gpu) == 1


def test_half_precision_with_channels_together_in_memory(on_a_gpu):
    x, weight, bias = (t.bfloat16() for t in operands())
    ours = cuconv.nn.conv1d(last_in_memory(x), last_in_memory(weight), bias, padding=1)
    assert close(ours, F.conv1d(x.double(), weight.double(), bias.double(), padding=1), 1e-2)
    assert ours.mT.is_contiguous() and [call["precision"] for call in on_a_gpu] == ["bf16"]


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 1e-30, 1e30])
def test_extreme_values_reach_the_outputs_that_read_them(on_a_gpu, value):
    x, weight, _ = operands()
    x[1, 3, 20] = value
    ours, truth = cuconv.nn.conv1d(x, weight, padding=1), F.conv1d(x.double(), weight.double(), padding=1)
    assert len(on_a_gpu) == 1
    torch.testing.assert_close(ours.double(), truth, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize(
    "change",
    {
        "half": lambda x, w, b: (x.bfloat16(), w.bfloat16(), b.bfloat16()),
        "double": lambda x, w, b: (x.double(), w.double(), b.double()),
        "channels together": lambda x, w, b: (last_in_memory(x), w, b),
        "empty batch": lambda x, w, b: (x[:0], w, b),
        "one signal": lambda x, w, b: (x[0], w, b),
    }.items(),
    ids=lambda item: item[0],
)
def test_what_cuconv_does_not_take_goes_to_torch(on_a_gpu, change):
    x, weight, bias = change[1](*operands())
    ours, theirs = (convolve(x, weight, bias, padding=1) for convolve in (cuconv.nn.conv1d, F.conv1d))
    torch.testing.assert_close(ours, theirs, check_stride=x.numel() > 0)
    assert on_a_gpu == []


@pytest.mark.parametrize("options", [{"stride": (1, 2)}, {"stride": 2, "padding": "same"}, {"padding": "full"}])
def test_what_torch_refuses_is_refused(on_a_gpu, options):
    for convolve in (cuconv.nn.conv1d, F.conv1d):
        with pytest.raises(RuntimeError):
            convolve(*operands(), **options)


@pytest.mark.parametrize("padding", [1, "same"])
@pytest.mark.parametrize("length", [3, 4])
def test_gradients_are_torchs(on_a_gpu, padding, length):
    ours, theirs = ([tensor.requires_grad_() for tensor in operands(length=length)] for _ in range(2))
    cuconv.nn.conv1d(*ours, padding=padding, activation="silu").square().sum().backward()
    F.silu(F.conv1d(*theirs, padding=padding)).square().sum().backward()
    for mine, his in zip(ours, theirs, strict=True):
        assert close(mine.grad, his.grad, 1e-4)


@torch.no_grad()
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("length", [1, 2, 5, 8])
def test_same_padding_that_differs_on_both_sides(on_a_gpu, length, dilation):
    """torch pads one more on the right, and so does cuConv, in every way to it."""
    torch.manual_seed(2)
    layer, x = nn.Conv1d(3, 5, length, padding="same", dilation=dilation).eval(), torch.randn(2, 3, 19)
    expected = layer(x)
    assert close(cuconv.nn.conv1d(x, layer.weight, layer.bias, padding="same", dilation=dilation), expected)
    with cuconv.nn.enabled():
        assert close(layer(x), expected)
    assert close(cuconv.nn.convert(layer, x)[0](x), expected)
    assert close(cuconv.nn.fold(torch.export.export(layer, (x,))).module()(x), expected)
    assert len(on_a_gpu) >= 4


# Layers and blocks of code


@torch.no_grad()
def test_modules_take_what_torchs_take(on_a_gpu):
    options = {"stride": 2, "padding": 3, "dilation": 2, "groups": 2}
    conv, layer = nn.Conv1d(4, 6, 3, **options), cuconv.nn.Conv1d(4, 6, 3, **options, precision="tf32")
    layer.load_state_dict(conv.state_dict())
    x = torch.randn(2, 4, 17)
    assert close(layer(x), conv(x)) and close(layer(x[0]), conv(x[0]))
    assert [call["precision"] for call in on_a_gpu] == ["tf32"]
    circular = cuconv.nn.Conv1d(4, 6, 3, padding=1, padding_mode="circular")
    assert torch.equal(circular(x), nn.Conv1d.forward(circular, x)) and len(on_a_gpu) == 1
    with pytest.raises(ValueError, match="precision"):
        cuconv.nn.Conv1d(1, 1, 1, precision="half")


@pytest.mark.parametrize("form", ["eager", "trace", "script"])
def test_a_block_reaches_1d_convolutions_whoever_calls_them(on_a_gpu, form):
    model, x = nn.Sequential(nn.Conv1d(4, 4, 1), nn.Conv1d(4, 4, 4, 2, 3, groups=2)), torch.randn(2, 4, 17)
    called = {"eager": model, "trace": torch.jit.trace(model, x), "script": torch.jit.script(model)}[form]
    x.requires_grad_()
    with cuconv.nn.enabled():
        ours = called(x)
        (gradient,) = torch.autograd.grad(ours.square().sum(), x)
    assert len(on_a_gpu) == 2 and close(ours, model(x))
    assert close(gradient, torch.autograd.grad(model(x).square().sum(), x)[0], 1e-4)


def test_a_block_leaves_other_1d_convolutions_to_torch(on_a_gpu):
    x = torch.randn(2, 4, 17)
    with torch.no_grad(), cuconv.nn.enabled():
        nn.ConvTranspose1d(4, 4, 2, stride=3)(x)
        nn.Conv1d(4, 4, 3)(last_in_memory(x))
        nn.Conv1d(4, 4, 3).double()(x.double())
    assert on_a_gpu == []


# Models


@torch.no_grad()
def test_a_vocoder_has_its_convolutions_replaced(on_a_gpu):
    torch.manual_seed(1)
    model, x = Generator().eval(), torch.randn(1, 10, 21)
    converted, report = cuconv.nn.convert(model, x)
    assert report.captured and len(report.replaced) == 20 and not report.left and report.share == 1
    assert {row.name for row in report.rows if row.kind == "conv_transpose"} == {"up.0", "up.1"}
    folded = {row.name: row.folded for row in report.replaced}
    first, second = ({found for name, found in folded.items() if part in name} for part in (".first.", ".second."))
    assert first == {("leaky_relu(0.1)",)} and ("residual",) in second and folded["first"] == ("leaky_relu(0.1)",)
    for signals in (x, torch.randn(3, 10, 34)):
        on_a_gpu.clear()
        assert close(converted(signals), model(signals)) and len(on_a_gpu) == 20
        assert {call["kind"] for call in on_a_gpu} == {"prepared"}  # weight norm is computed once
    assert (report.folded_calls, report.own_calls) == (2, 0)


@torch.no_grad()
@pytest.mark.parametrize("dtype", HALVES)
def test_a_vocoder_in_half_precision(on_a_gpu, dtype):
    torch.manual_seed(1)
    model, x = Generator().eval().to(dtype), torch.randn(2, 10, 21).to(dtype)
    converted, report = cuconv.nn.convert(model, x)
    assert report.captured and report.replaced
    ours, theirs = converted(x), model(x)
    assert close(ours, copy.deepcopy(model).double()(x.double()), HALVES[dtype]) and ours.stride() == theirs.stride()


def norms(*options):
    torch.manual_seed(4)
    layers = [nn.Conv1d(6, 8, 3, padding=1, bias=False), nn.BatchNorm1d(8), *options, nn.Conv1d(8, 4, 2)]
    layers[1].running_mean.normal_()
    layers[1].running_var.uniform_(0.5, 2)
    return nn.Sequential(*layers).eval()


@torch.no_grad()
@pytest.mark.parametrize("activation", [nn.ReLU(), nn.SiLU(), nn.Hardtanh(-0.5, 1), nn.LeakyReLU(0.2, inplace=True)])
def test_batch_norm_and_activation_are_folded(on_a_gpu, activation):
    model, x = norms(activation), torch.randn(2, 6, 23)
    converted, report = cuconv.nn.convert(model, x)
    assert report.rows[0].folded[0] == "batch norm" and len(report.rows[0].folded) == 2
    on_a_gpu.clear()
    assert close(converted(x), model(x))
    assert [call["activation"] != "none" for call in on_a_gpu] == [True, False]
    program = cuconv.nn.fold(torch.export.export(model, (x,)))
    targets = [node.target for node in program.graph.nodes if node.op == "call_function"]
    views = {torch.ops.aten.unsqueeze.default, torch.ops.aten.squeeze.dim}
    assert close(program.module()(x), model(x)) and [one for one in targets if one not in views] == [CONV2D] * 2
    assert len(targets) == 4  # one view of the input, and one of the output


@torch.no_grad()
def test_an_exported_vocoder_takes_signals_of_any_length(on_a_gpu):
    torch.manual_seed(1)
    model, x = Generator().eval(), torch.randn(2, 10, 21)
    free = {0: torch.export.Dim.AUTO, 2: torch.export.Dim.AUTO}
    program = cuconv.nn.fold(torch.export.export(model, (x,), dynamic_shapes=(free,)))
    assert sum(node.target is CONV2D for node in program.graph.nodes) == 20
    for signals in (x, torch.randn(3, 10, 34)):
        assert close(program.module()(signals), model(signals))


@torch.no_grad()
@pytest.mark.parametrize("options", [None, {"freeze": True, "precision": "tf32"}])
def test_a_compiled_model_computes_the_same(on_a_gpu, options):
    model, x = norms(nn.ReLU()), torch.randn(2, 6, 23)
    compiled = torch.compile(model, backend=backend.cuconv, dynamic=True, options=options)
    for signals in (x, torch.randn(3, 6, 31)):
        assert close(compiled(signals), model(signals))
    assert len(on_a_gpu) == 4


CASES = {
    "branches": lambda model, x: torch.cat([F.relu(model.conv(x)), model.other(x)], 1),
    "branches counted from the end": lambda model, x: torch.cat([F.relu(model.conv(x)), model.other(x)], -2),
    "branches along time": lambda model, x: torch.cat([model.conv(x), model.other(x)], 2),
    "a sum that is broadcast": lambda model, x: model.conv(x) + x.mean(2, keepdim=True),
    "a sum with a number": lambda model, x: F.relu(model.conv(x) + 1),
    "a scaled sum": lambda model, x: torch.add(model.conv(x), x, alpha=2),
    "a clamp by a tensor": lambda model, x: model.conv(x).clamp(x.mean()),
    "gates": lambda model, x: torch.sigmoid(model.conv(x)) * torch.tanh(model.other(x)),
    "features last": lambda model, x: F.layer_norm(model.conv(x).transpose(1, 2), (4,)).transpose(1, 2) + x,
    "features first in time": lambda model, x: model.conv(x.transpose(0, 2).transpose(0, 2).mT.contiguous().mT),
    "an image between": lambda model, x: F.relu(model.conv(x))[:, :, None].squeeze(2) + 1,
    "one signal": lambda model, x: F.relu(model.conv(x[0])) + model.other(x[1]),
    "twice the same": lambda model, x: (lambda y: y + y)(model.conv(x)),
    "a view": lambda model, x: model.conv(x).view(x.shape[0], -1),
    "one sample": lambda model, x: F.relu(model.conv(x[:, :, :1])) + model.other(x[:, :, :1]),
}


@torch.no_grad()
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("case", CASES)
def test_what_lies_around_a_layer(on_a_gpu, case, dtype):
    torch.manual_seed(6)
    conv, other = (nn.Conv1d(4, 4, 3, padding=1) for _ in range(2))
    model, x = Model(CASES[case], conv=conv, other=other).eval().to(dtype), torch.randn(2, 4, 16).to(dtype)
    converted, report = cuconv.nn.convert(model, x)
    assert report.captured and report.replaced
    for signals in (x, torch.randn(3, 4, 24).to(dtype)):
        ours, theirs = converted(signals), model(signals)
        assert close(ours, theirs, 1e-5 if dtype == torch.float32 else 3e-3)
        assert (ours.shape, ours.stride()) == (theirs.shape, theirs.stride())


@torch.no_grad()
def test_branches_write_to_their_places(on_a_gpu):
    model = Model(CASES["branches"], conv=nn.Conv1d(4, 6, 1), other=nn.Conv1d(4, 3, 1)).eval()
    converted, _ = cuconv.nn.convert(model, x := torch.randn(2, 4, 16))
    on_a_gpu.clear()
    assert close(converted(x), model(x)) and [call["out"] for call in on_a_gpu] == [True, True]
