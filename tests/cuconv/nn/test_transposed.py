"""Transposed convolutions in cuconv.nn on a CPU: single calls, blocks, converted models and exported programs."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cuconv.nn
from cuconv import UnsupportedProblem
from cuconv.nn import backend, operator
from cuconv.nn.padding import convolved
from cuconv.nn.phases import INTERLEAVE, transposed_by
from cuconv.nn.transposed import transposed_layer
from tests.cuconv.nn.models import close
from tests.cuconv.nn.zoo.entries import Model
from tests.cuconv.test_activation import truth_of

CONV2D = torch.ops.cuconv.conv2d.default
MEMORY_FORMATS = {torch.float32: torch.contiguous_format, torch.bfloat16: torch.channels_last}
OPCHECKS = ("test_schema", "test_autograd_registration", "test_faketensor")
LAYERS = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d}
OURS = {1: cuconv.nn.conv_transpose1d, 2: cuconv.nn.conv_transpose2d}
THEIRS = {1: F.conv_transpose1d, 2: F.conv_transpose2d}

# (filter size, other options, ordinary convolutions)
SIGNALS = [
    (3, {}, 1),
    (3, {"padding": 2, "dilation": 2}, 1),
    (4, {"padding": 1, "dilation": 3, "output_padding": 2}, 1),
    (4, {"stride": 2, "padding": 1}, 1),
    (16, {"stride": 8, "padding": 4}, 1),
    (11, {"stride": 5, "padding": (3,), "output_padding": (1,)}, 2),
    (7, {"stride": 3, "padding": 6}, 2),
    (3, {"stride": 3, "groups": 4}, 1),
    (5, {"stride": 2, "padding": 1, "output_padding": 1, "groups": 2}, 2),
]
IMAGES = [
    ((3, 3), {"padding": 1}, 1),
    ((2, 2), {"stride": 2}, 1),
    ((4, 4), {"stride": 2, "padding": 1}, 1),
    ((3, 3), {"stride": 2, "padding": 1, "output_padding": 1}, 4),
    ((3, 4), {"stride": (3, 1), "padding": (0, 2)}, 1),
    ((5, 3), {"stride": (2, 3), "padding": (2, 1), "output_padding": (0, 2), "groups": 2}, 2),
    ((8, 3), {"stride": (8, 1), "padding": (5, 2), "dilation": (1, 2)}, 1),
    ((7, 2), {"stride": 2, "padding": (5, 1), "groups": 4}, 2),
]
CASES = [(1, *case) for case in SIGNALS] + [(2, *case) for case in IMAGES]
cases = pytest.mark.parametrize(("axes", "size", "options", "count"), CASES, ids=str)


pytestmark = pytest.mark.usefixtures("nothing_compiled")


def operands(axes, size, groups=1):
    """An input of odd sizes, a weight and a bias."""
    generator = torch.Generator().manual_seed(5)
    filters = (size,) if axes == 1 else size
    shapes = ((2, 8, *(7, 5)[:axes]), (8, 12 // groups, *filters), (12,))
    return [torch.randn(shape, generator=generator) for shape in shapes]


def laid_out(t):
    """A tensor with the channels of a pixel together in memory."""
    return t.mT.contiguous().mT if t.dim() == 3 else t.to(memory_format=torch.channels_last)


# Single calls


@cases
@pytest.mark.parametrize("activation", [None, "silu"])
def test_it_computes_what_torch_computes(on_a_gpu, axes, size, options, count, activation):
    x, weight, bias = operands(axes, size, options.get("groups", 1))
    ours = OURS[axes](x, weight, bias, **options, activation=activation)
    truth = THEIRS[axes](x.double(), weight.double(), bias.double(), **options)
    assert close(ours, truth_of(activation, truth) if activation else truth) and ours.is_contiguous()
    assert [call["activation"] for call in on_a_gpu] == [activation or "none"] * count
    without = OURS[axes](x, weight, **options)
    assert close(without, THEIRS[axes](x.double(), weight.double(), **options))


@cases
def test_half_precision_with_channels_last(on_a_gpu, axes, size, options, count):
    x, weight, bias = (t.bfloat16() for t in operands(axes, size))
    options = {**options, "groups": 1}
    ours = OURS[axes](laid_out(x), laid_out(weight), bias, **options)
    assert close(ours, THEIRS[axes](x.double(), weight.double(), bias.double(), **options), 1e-2)
    assert ours.stride() == laid_out(ours).stride() and len(on_a_gpu) == count


@cases
@pytest.mark.parametrize("value", [torch.nan, torch.inf, 1e-30, 1e30])
def test_extreme_values_reach_the_outputs_that_read_them(on_a_gpu, axes, size, options, count, value):
    x, weight, bias = operands(axes, size, options.get("groups", 1))
    x[1, 3, 2], x[0, 7, -1] = value, value
    ours = OURS[axes](x, weight, bias, **options)
    truth = THEIRS[axes](x.double(), weight.double(), bias.double(), **options)
    assert len(on_a_gpu) == count
    torch.testing.assert_close(ours.double(), truth, rtol=1e-5, atol=1e-5, equal_nan=True)


@cases
def test_gradients_are_torchs(on_a_gpu, axes, size, options, count):
    ours, theirs = ([t.requires_grad_() for t in operands(axes, size, options.get("groups", 1))] for _ in range(2))
    OURS[axes](*ours, **options, relu=True).square().sum().backward()
    THEIRS[axes](*theirs, **options).relu().square().sum().backward()
    for mine, his in zip(ours, theirs, strict=True):
        assert close(mine.grad, his.grad, 1e-4)


@pytest.mark.parametrize(
    "options",
    [{"stride": 4}, {"padding": 3}, {"stride": 2, "dilation": 2}],
    ids=["a stride larger than the filter", "a negative padding of the ordinary one", "stride and dilation"],
)
def test_geometries_of_torch(on_a_gpu, options):
    x, weight, bias = operands(2, (3, 3))
    ours, theirs = (convolve(x, weight, bias, **options) for convolve in (OURS[2], THEIRS[2]))
    assert torch.equal(ours, theirs) and on_a_gpu == []


@pytest.mark.parametrize(
    "change",
    {
        "half": lambda x, w, b: (x.bfloat16(), w.bfloat16(), b.bfloat16()),
        "double": lambda x, w, b: (x.double(), w.double(), b.double()),
        "channels last": lambda x, w, b: (laid_out(x), w, b),
        "empty batch": lambda x, w, b: (x[:0], w, b),
        "one image": lambda x, w, b: (x[0], w, b),
    }.items(),
    ids=lambda item: item[0],
)
def test_what_cuconv_does_not_take_goes_to_torch(on_a_gpu, change):
    x, weight, bias = change[1](*operands(2, (4, 4)))
    ours, theirs = (convolve(x, weight, bias, stride=2) for convolve in (OURS[2], THEIRS[2]))
    torch.testing.assert_close(ours, theirs)
    assert on_a_gpu == []


def test_without_a_gpu_torch_computes():
    x, weight, bias = operands(1, 4)
    assert torch.equal(cuconv.nn.conv_transpose1d(x, weight, bias, 2, 1), F.conv_transpose1d(x, weight, bias, 2, 1))


@pytest.mark.parametrize(
    "wrong",
    [
        {"stride": (1, 2, 3)},
        {"stride": 0},
        {"stride": ()},
        {"padding": -1},
        {"output_padding": 2, "stride": 2},
        {"groups": 3},
        {"groups": 0},
        {"bias": torch.ones(5)},
        {"weight": torch.ones(7, 12, 3, 3)},
        {"input": torch.ones(1, 8, 1, 1), "padding": 2},
    ],
    ids=str,
)
def test_what_torch_refuses_is_refused(on_a_gpu, wrong):
    x, weight, bias = operands(2, (3, 3))
    call = {"input": x, "weight": weight, "bias": bias, **wrong}
    for convolve in (OURS[2], THEIRS[2]):
        with pytest.raises((RuntimeError, TypeError)):
            convolve(**call)
    with pytest.raises(ValueError, match="precision"):
        OURS[2](x, weight, precision="fp64")


# Blocks of code


@pytest.mark.parametrize("size", [1.5, (1, 2.0)])
def test_sizes_that_are_no_whole_numbers_are_torch_s_to_refuse(on_a_gpu, size):
    x, weight, _ = operands(2, (3, 3))
    with pytest.raises(UnsupportedProblem):
        transposed_layer(x, weight, None, (size, 0, 0, 1), 1)


@cases
def test_a_block_reaches_transposed_convolutions(on_a_gpu, axes, size, options, count):
    x, weight, bias = operands(axes, size, options.get("groups", 1))
    x.requires_grad_()
    with cuconv.nn.enabled():
        ours = THEIRS[axes](x, weight, bias, **options)
        (gradient,) = torch.autograd.grad(ours.square().sum(), x)
    theirs = THEIRS[axes](x, weight, bias, **options)
    assert len(on_a_gpu) == count and close(ours, theirs) and ours.stride() == theirs.stride()
    assert close(gradient, torch.autograd.grad(theirs.square().sum(), x)[0], 1e-4)


# Models


def norms(axes, size, options, *others):
    """A transposed convolution, batch norm, an activation, and a convolution."""
    torch.manual_seed(4)
    conv, norm = ((nn.Conv1d, nn.BatchNorm1d), (nn.Conv2d, nn.BatchNorm2d))[axes - 1]
    layers = [LAYERS[axes](8, 12, size, **options, bias=False), norm(12), *others, conv(12, 4, 1)]
    layers[1].running_mean.normal_()
    layers[1].running_var.uniform_(0.5, 2)
    nn.init.normal_(layers[1].weight)
    nn.init.normal_(layers[1].bias)
    return nn.Sequential(*layers).eval()


@torch.no_grad()
@cases
def test_batch_norm_and_activation_are_folded(on_a_gpu, axes, size, options, count):
    model, x = norms(axes, size, options, nn.LeakyReLU(0.2)), operands(axes, size)[0]
    converted, report = cuconv.nn.convert(model, x)
    assert report.captured and [row.name for row in report.replaced] == ["0", "3"] and report.share == 1
    assert report.rows[0].folded == ("batch norm", "leaky_relu(0.2)")
    for images in (x, torch.randn(3, 8, *(11, 6)[:axes])):
        on_a_gpu.clear()
        assert close(converted(images), model(images))
        assert {call["kind"] for call in on_a_gpu} == {"prepared"}
        assert [call["activation"] for call in on_a_gpu] == ["leaky_relu(0.2)"] * count + ["none"]
    assert (report.folded_calls, report.own_calls) == (2, 0)


@torch.no_grad()
@cases
def test_an_exported_program(on_a_gpu, axes, size, options, count):
    model, x = norms(axes, size, options, nn.ReLU()), operands(axes, size)[0]
    free = {place: torch.export.Dim.AUTO for place in (0, *range(2, x.dim()))}
    program = cuconv.nn.fold(torch.export.export(model, (x,), dynamic_shapes=(free,)))
    assert sum(node.target is CONV2D for node in program.graph.nodes) == count + 1
    for images in (x, torch.randn(3, 8, *(11, 6)[:axes])):
        on_a_gpu.clear()
        assert close(program.module()(images), model(images))
        assert [call["activation"] for call in on_a_gpu] == ["relu"] * count + ["none"]
    with torch.enable_grad():
        x.requires_grad_()
        ours, theirs = (torch.autograd.grad(f(x).square().sum(), x)[0] for f in (program.module(), model))
    assert close(ours, theirs, 1e-4)


@torch.no_grad()
def test_phases_are_padded_at_the_ends_that_need_it(on_a_gpu, monkeypatch):
    computed, launch = [], operator._launch
    monkeypatch.setattr(operator, "_launch", lambda *a, **o: computed.append(launch(*a, **o)) or computed[-1])
    x, weight, options = torch.randn(2, 8, 5, 6), torch.randn(8, 4, 3, 3), {"stride": 2, "padding": 1}
    ours, theirs = (
        convolve(x, weight, output_padding=1, **options)
        for convolve in (cuconv.nn.conv_transpose2d, F.conv_transpose2d)
    )
    assert close(ours, theirs) and sum(one.numel() for one in computed) == ours.numel()


@pytest.mark.parametrize("images", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("geometry", [([1, 4], [1, 2], [0, 0]), ([3, 3], [2, 2], [1, 1]), ([1, 2], [1, 2], [0, 0])])
def test_the_interleave_keeps_what_torch_asks_of_an_operator(geometry, dtype, images):
    layer = transposed_by((*geometry, [0, 0], [1, 1]), 1)
    x, weight = torch.randn(images, 8, 1, 5), torch.randn(8, 8, *geometry[0])
    outputs = [
        convolved(2, x, filters, None, 1, pads)
        .to(dtype)
        .contiguous(memory_format=MEMORY_FORMATS[dtype])
        .requires_grad_()
        for filters, pads in zip(layer.weights(weight), layer.paddings, strict=True)
    ]
    torch.library.opcheck(INTERLEAVE, (outputs, *layer.geometry), test_utils=OPCHECKS)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("place", [3, 4, 11, 12])
def test_a_model_in_half_precision(on_a_gpu, dtype, place):
    axes, size, options, count = CASES[place]
    model, x = norms(axes, size, options, nn.ReLU()).to(dtype), operands(axes, size)[0].to(dtype)
    converted, report = cuconv.nn.convert(model, x)
    assert report.captured and len(report.replaced) == 2, str(report)
    on_a_gpu.clear()
    ours, theirs = converted(x), model(x)
    assert len(on_a_gpu) == count + 1 and ours.stride() == theirs.stride()
    assert close(ours, copy.deepcopy(model).double()(x.double()), 4e-3 if dtype == torch.float16 else 3e-2)


@torch.no_grad()
@pytest.mark.parametrize("options", [None, {"freeze": True, "precision": "tf32"}])
def test_a_compiled_model_computes_the_same(on_a_gpu, options):
    model, x = norms(2, (3, 3), {"stride": 2, "padding": 1}, nn.ReLU()), operands(2, (3, 3))[0]
    compiled = torch.compile(model, backend=backend.cuconv, dynamic=True, options=options)
    for images in (x, torch.randn(3, 8, 6, 9)):
        on_a_gpu.clear()
        assert close(compiled(images), model(images)) and len(on_a_gpu) == 5


def test_the_call_itself_compiles(on_a_gpu):
    x, weight, bias = operands(1, 4)
    compiled = torch.compile(cuconv.nn.conv_transpose1d, backend="eager", fullgraph=True)
    assert close(compiled(x, weight, bias, stride=2, padding=1), F.conv_transpose1d(x, weight, bias, 2, 1))


AROUND = {
    "two users": lambda model, x: (lambda y: F.relu(y) + y)(model.up(x)),
    "a sum": lambda model, x: F.relu(model.up(x) + 1),
    "two activations": lambda model, x: torch.sigmoid(F.relu(model.up(x))),
    "batch norm behind an activation": lambda model, x: model.norm(F.relu(model.up(x))),
    "twice": lambda model, x: model.up(x) + F.relu(model.up(x * 2)),
    "concatenated": lambda model, x: torch.cat([model.up(x), F.relu(model.up(x))], 1),
    "the result itself": lambda model, x: model.up(x),
}


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("case", AROUND)
def test_what_lies_around_a_layer(on_a_gpu, case, dtype):
    torch.manual_seed(6)
    up, norm = nn.ConvTranspose2d(8, 8, 4, 2, 1), nn.BatchNorm2d(8)
    norm.running_mean.normal_()
    model, x = Model(AROUND[case], up=up, norm=norm).eval().to(dtype), torch.randn(2, 8, 5, 7).to(dtype)
    converted, report = cuconv.nn.convert(model, x)
    assert report.captured and len(report.replaced) in (1, 2)
    for images in (x, torch.randn(1, 8, 6, 4).to(dtype)):
        ours, theirs = converted(images), model(images)
        assert close(ours, theirs, 1e-5 if dtype == torch.float32 else 3e-3)
        assert (ours.shape, ours.stride()) == (theirs.shape, theirs.stride())
