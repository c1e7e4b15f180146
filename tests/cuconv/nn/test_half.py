"""Half precision in cuconv.nn on a CPU: which tensors cuConv takes, in which layout, and how exact models stay."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cuconv.nn
from cuconv.nn import backend
from cuconv.nn.formats import is_laid_out
from cuconv.nn.frozen import computed_by_torch
from tests.cuconv.nn.models import MODELS, close, made, operands
from tests.cuconv.nn.zoo.entries import Model

TYPES = {torch.float16: 3e-3, torch.bfloat16: 3e-2}  # and the largest relative L2 error of a small model
LAYOUTS = (torch.contiguous_format, torch.channels_last)
LEFT = {"classifier": ["last"]}  # layers that torch computes: 20 input features


pytestmark = pytest.mark.usefixtures("nothing_compiled")


@torch.no_grad()
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", MODELS)
def test_a_converted_model_computes_the_same(on_a_gpu, name, dtype, layout):
    model, x = made(name)
    model, x = model.to(dtype).to(memory_format=layout), x.to(dtype).contiguous(memory_format=layout)
    truth = copy.deepcopy(model).double()(x.double())
    converted, report = cuconv.nn.convert(model, x)
    assert close(converted(x.clone()), truth, TYPES[dtype])
    assert report.captured and on_a_gpu
    assert [row.name for row in report.left] == LEFT.get(name, [])
    assert {call["precision"] for call in on_a_gpu} == {"fp16" if dtype == torch.float16 else "bf16"}


@torch.no_grad()
@pytest.mark.parametrize("options", [{}, {"freeze": True, "precision": "tf32"}])
def test_a_compiled_model_computes_the_same(on_a_gpu, options):
    model, x = made("block")
    model, x = model.half(), x.half()
    ours = torch.compile(model, backend=backend.cuconv, dynamic=True, options=options or None)
    for images in (x, torch.cat([x, x, x])):
        on_a_gpu.clear()
        assert close(ours(images), copy.deepcopy(model).double()(images.double()), 3e-3)
        assert len(on_a_gpu) == 3 and {call["precision"] for call in on_a_gpu} == {"fp16"}


@torch.no_grad()
@pytest.mark.parametrize("layout", LAYOUTS)
def test_views_of_another_layout_are_copies_and_results_keep_their_strides(on_a_gpu, layout):
    def function(model, x):
        y = F.relu(model.conv(x))
        rows = y.permute(0, 2, 3, 1)
        rows = rows.view(2, -1, 8) if layout == torch.channels_last else y.view(2, -1)
        return y, rows, y.mean((2, 3)), y[:, ::2] + 1, F.interpolate(y, scale_factor=2).sum(1)

    model = Model(function, conv=nn.Conv2d(4, 8, 3)).eval().half().to(memory_format=layout)
    x = torch.randn(2, 4, 9, 11).half().contiguous(memory_format=layout)
    theirs = model(x)
    converted, report = cuconv.nn.convert(model, x)
    for one, other in zip(converted(x), theirs, strict=True):
        assert close(one, other, 3e-3) and one.stride() == other.stride()
    assert report.captured and on_a_gpu


def first_operand(model, x):
    """A sum in the format of its first operand, which is the input."""
    return (x + model.conv(x)).view(2, -1)


def by_strides(model, x):
    y = model.conv(x)
    return torch.as_strided(y, (2, 4), (y.stride(0), 2))


def of_two_types(model, x):
    return torch.cat([model.conv(x), model.precise(x.float())], 1)


def reshaped(model, x):
    return F.relu(model.gray(x[:, :1])).permute(0, 2, 3, 1).reshape(2, -1)


@torch.no_grad()
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("function", [first_operand, by_strides, of_two_types, reshaped])
def test_graphs_of_formats_and_types(on_a_gpu, function, layout):
    if function is first_operand and layout == torch.channels_last:
        pytest.skip("torch refuses this view")
    model = Model(function, conv=nn.Conv2d(4, 4, 1), gray=nn.Conv2d(1, 8, 3)).half()
    model.precise = nn.Conv2d(4, 4, 1)
    model = model.eval().to(memory_format=layout)
    x = torch.randn(2, 4, 6, 5).half().contiguous(memory_format=layout)
    theirs = model(x)
    for ours in (cuconv.nn.convert(model, x)[0], torch.compile(model, backend=backend.cuconv, dynamic=True)):
        output = ours(x)
        assert close(output, theirs, 3e-3) and output.dtype == theirs.dtype
    assert on_a_gpu


@torch.no_grad()
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layers_that_torch_computes_keep_the_graph_s_format(on_a_gpu, layout):
    model = Model(reshaped, gray=nn.Conv2d(1, 8, 3)).half().eval().to(memory_format=layout)
    x = torch.randn(2, 4, 6, 5).half().contiguous(memory_format=layout)
    converted, report = cuconv.nn.convert(model, x)
    with computed_by_torch():
        assert close(converted(x), model(x), 3e-3)
    assert report.captured


@torch.no_grad()
def test_a_batch_norm_in_float32_is_folded_in_the_convolution_s_type(on_a_gpu):
    model = nn.Sequential(nn.Conv2d(4, 8, 3).bfloat16(), nn.BatchNorm2d(8)).eval()
    model[1].running_mean.normal_()
    x = torch.randn(2, 4, 6, 5).bfloat16()
    converted, report = cuconv.nn.convert(model, x)
    assert report.captured and report.rows[0].folded == ("batch norm",)
    assert close(converted(x), copy.deepcopy(model).double()(x.double()), 3e-2) and converted(x).dtype == x.dtype


@torch.no_grad()
def test_a_view_of_the_input_stays_one(on_a_gpu):
    model = Model(lambda model, x: (x[:, :2], model.conv(x)), conv=nn.Conv2d(4, 4, 1)).half().eval()
    x = torch.randn(2, 4, 6, 5).half()
    view, _ = torch.compile(model, backend=backend.cuconv)(x)
    assert view.data_ptr() == x.data_ptr()


@torch.no_grad()
def test_branches_are_written_to_their_place(on_a_gpu):
    model, x = made("fire")
    _, report = cuconv.nn.convert(model.half(), x.half())
    assert report.captured and any(call.get("out") for call in on_a_gpu)


@torch.no_grad()
def test_the_report_says_why_a_layer_is_left(on_a_gpu):
    model = nn.Sequential(nn.Conv2d(8, 16, 3, groups=2), nn.Conv2d(16, 8, 1, stride=9), nn.Conv2d(8, 4, 1))
    _, report = cuconv.nn.convert(model.eval().half(), torch.randn(1, 8, 24, 24).half())
    assert [row.name for row in report.replaced] == ["2"]
    assert "groups" in report.left[0].reason and "strides" in report.left[1].reason


@pytest.mark.parametrize("dtype", TYPES)
def test_the_operator_takes_channels_last_alone(on_a_gpu, dtype):
    x, weight, bias = (tensor.to(dtype) for tensor in operands())
    with torch.no_grad():
        truth = F.conv2d(*(tensor.double() for tensor in (x, weight, bias)), stride=2, padding=1)
        assert close(cuconv.nn.conv2d(x, weight, bias, 2, 1), truth, TYPES[dtype]) and not on_a_gpu
        x, weight = (tensor.contiguous(memory_format=torch.channels_last) for tensor in (x, weight))
        output = cuconv.nn.conv2d(x, weight, bias, 2, 1, precision="tf32")
    assert close(output, truth, TYPES[dtype]) and is_laid_out(output) and len(on_a_gpu) == 1


def test_the_operator_passes_torchs_checks(on_a_gpu):
    x, weight, bias = (tensor.half().requires_grad_() for tensor in operands())
    x, weight = (one.detach().contiguous(memory_format=torch.channels_last).requires_grad_() for one in (x, weight))
    residual = torch.randn(2, 12, 5, 6).half().contiguous(memory_format=torch.channels_last).requires_grad_()
    arguments = (x, weight, bias, [2, 2], [1, 1], [1, 1], 1, "relu", [], residual, "fp32")
    torch.library.opcheck(torch.ops.cuconv.conv2d.default, arguments, rtol=1e-2, atol=1e-2)


@torch.no_grad()
def test_few_rows_of_a_fully_connected_layer_are_ours(on_a_gpu):
    model = nn.Sequential(nn.Conv2d(8, 8, 1), nn.Flatten(), nn.Linear(32, 24), nn.ReLU(), nn.Linear(24, 5)).eval()
    x = torch.randn(3, 8, 2, 2)
    converted, report = cuconv.nn.convert(model.half(), x.half())
    assert [row.kind for row in report.replaced] == ["conv", "linear", "linear"]
    truth = copy.deepcopy(model).double()(x.half().double())
    assert torch.linalg.norm(converted(x.half()).double() - truth) < 3e-3 * torch.linalg.norm(truth)


@torch.no_grad()
@pytest.mark.parametrize("sizes", [(44, 5), (2048, 2056)], ids=["features", "weights"])
def test_other_fully_connected_layers_are_torchs(on_a_gpu, sizes):
    model = nn.Sequential(nn.Conv2d(4, 4, 1), nn.Flatten(), nn.Linear(*sizes)).eval()
    x = torch.randn(2, 4, 1, sizes[0] // 4)
    converted, report = cuconv.nn.convert(model.half(), x.half())
    assert [row.kind for row in report.replaced] == ["conv"] and [row.name for row in report.left] == ["2"]
    torch.testing.assert_close(converted(x.half()), model(x.half()), rtol=1e-2, atol=1e-2)


@torch.no_grad()
@pytest.mark.parametrize("rows", [(), (3,), (2, 4), (33,)], ids=str)
def test_a_fully_connected_layer_outside_of_graphs(on_a_gpu, rows):
    layer, x = cuconv.nn.Linear(16, 6).half(), torch.randn(*rows, 16).half()
    expected = copy.deepcopy(layer).double()(x.double())
    torch.testing.assert_close(layer(x).double(), expected, rtol=1e-3, atol=1e-3)


@torch.no_grad()
def test_a_view_of_an_interpolated_image_may_be_a_copy(on_a_gpu):
    """torch's output is contiguous, which the view needs, and that of the graph is in channels_last."""

    def function(model, x):
        return model.fc(F.interpolate(model.conv(x), scale_factor=2.0).view(x.shape[0], -1))

    model = Model(function, conv=nn.Conv2d(3, 8, 3), fc=nn.Linear(8 * 144, 8)).eval().half()
    x = torch.randn(2, 3, 8, 8).half()
    converted, report = cuconv.nn.convert(model, x)
    assert report.captured and len(report.replaced) == 2
    assert close(converted(x), model(x), 1e-2)
