"""Exported programs whose convolutions are cuConv's, before and after they are saved."""

import io

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

import cuconv.nn
from cuconv.core.activation import activation_of
from tests.cuconv.nn.models import close, conv_bn
from tests.cuconv.nn.zoo.entries import Model
from tests.cuconv.test_activation import each_activation, truth_of

CONV2D = torch.ops.cuconv.conv2d.default


def test_a_result_may_be_a_layer_s_own(on_a_gpu):
    model, x = nn.Sequential(conv_bn(3, 4, 3, relu=True)).eval(), torch.randn(2, 3, 8, 9)
    program = cuconv.nn.fold(torch.export.export(model, (x,)))
    assert close(saved(program).module()(x), model(x)) and [call["activation"] for call in on_a_gpu] == ["relu"]


@torch.no_grad()
@each_activation
def test_activations_are_arguments_of_the_operator(on_a_gpu, given):
    model, x = Model(lambda model, x: truth_of(given, model.conv(x)), conv=nn.Conv2d(3, 4, 3)), torch.randn(2, 3, 8, 9)
    program = cuconv.nn.fold(torch.export.export(model.eval(), (x,)))
    assert close(saved(program).module()(x), model(x))
    assert [call["activation"] for call in on_a_gpu] == [str(activation_of(given))]


def eegnet():
    """Layers of EEGNet, from 6 electrodes and 64 samples to 2 classes: in time, across electrodes, and separable."""
    across = [nn.Conv2d(8, 16, (6, 1), groups=8, bias=False), nn.BatchNorm2d(16), nn.ELU(), nn.AvgPool2d((1, 4))]
    in_time = [nn.Conv2d(16, 16, (1, 16), padding=(0, 8), groups=16, bias=False), nn.Conv2d(16, 16, 1, bias=False)]
    last = [nn.BatchNorm2d(16), nn.ELU(0.5), nn.AvgPool2d((1, 8)), nn.Flatten(), nn.Linear(32, 2)]
    first = [nn.Conv2d(1, 8, (1, 32), padding="same", bias=False), nn.BatchNorm2d(8)]
    return nn.Sequential(*first, *across, *in_time, *last)


def to_images():
    """A decoder that ends in tanh behind a transposed convolution."""
    return nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.GELU(), nn.ConvTranspose2d(8, 3, 4, 2, 1), nn.Tanh())


@torch.no_grad()
@pytest.mark.parametrize(
    ("make", "names"),
    [(eegnet, ["none", "elu(1.0)", "none", "elu(0.5)"]), (to_images, ["gelu", "tanh"])],
)
def test_models_with_elu_and_tanh(on_a_gpu, make, names):
    torch.manual_seed(4)
    model, x = make(), torch.randn(2, 1, 6, 64)
    model(3 * torch.randn(8, 1, 6, 64) + 1)  # statistics of batch norms that are not 0 and 1
    program = cuconv.nn.fold(torch.export.export(model.eval(), (x,)))
    assert close(saved(program).module()(x), model(x)) and [call["activation"] for call in on_a_gpu] == names
    on_a_gpu.clear()
    converted, report = cuconv.nn.convert(model, x)
    folded = [("batch norm", "elu(1.0)"), ("batch norm", "elu(0.5)")] if make is eegnet else [("gelu",), ("tanh",)]
    assert close(converted(x), model(x)) and [row.folded for row in report.rows if row.folded][-2:] == folded


class Counting(nn.Module):
    """A residual block between convolutions, whose buffer counts the calls."""

    def __init__(self):
        super().__init__()
        self.stem, self.block = conv_bn(3, 8, 3, padding=1, relu=True), conv_bn(8, 8, 3, padding=1)
        self.up, self.last = nn.ConvTranspose2d(8, 4, 2, stride=2), weight_norm(nn.Conv2d(4, 5, 3, padding="same"))
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        y = self.stem(x)
        y = torch.relu(self.block(y) + y)
        self.calls += 1
        return self.last(self.up(y)) * self.calls


def exported():
    """The model, with statistics of batch norms that are not 0 and 1, and its program for images of any size."""
    torch.manual_seed(0)
    model = Counting()
    with torch.no_grad():
        model(torch.randn(4, 3, 9, 8))
    free = {place: torch.export.Dim.AUTO for place in (0, 2, 3)}
    return model.eval(), torch.export.export(model.eval(), (torch.randn(2, 3, 9, 8),), dynamic_shapes=(free,))


def saved(program):
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    return torch.export.load(file)


@pytest.mark.filterwarnings("ignore:.isinstance.treespec:FutureWarning")  # of torch
@pytest.mark.parametrize("kept", [lambda program: program, saved])
def test_a_program_computes_what_the_model_does(on_a_gpu, kept):
    model, program = exported()
    before = str(program)
    folded = kept(cuconv.nn.fold(program)).module()
    for shape in ((2, 3, 9, 8), (5, 3, 12, 20)):
        x = torch.randn(shape)
        with torch.no_grad():
            assert close(folded(x), model(x))
    assert [call["activation"] for call in on_a_gpu] == ["relu", "relu", "none", "none"] * 2
    assert [call["residual"] for call in on_a_gpu] == [False, True, False, False] * 2
    assert str(program) == before


def test_what_depends_on_weights_alone_is_not_in_the_graph(on_a_gpu):
    graph = cuconv.nn.fold(exported()[1]).graph
    called = [node.target for node in graph.nodes if node.op == "call_function"]
    assert called.count(CONV2D) == 4 and len(called) == 7  # and the interleave, the count and the product


def test_the_precision_is_the_operator_s(on_a_gpu):
    graph = cuconv.nn.fold(exported()[1], precision="tf32").graph
    assert {node.args[-1] for node in graph.nodes if node.target is CONV2D} == {"tf32"}
    with pytest.raises(ValueError, match="fp64"):
        cuconv.nn.fold(exported()[1], precision="fp64")
    with pytest.raises(TypeError, match="Counting"):
        cuconv.nn.fold(Counting())


class Named(nn.Module):
    """Folded results, and names that theirs could take: of buffers, of a module and of the input."""

    def __init__(self):
        super().__init__()
        self.conv, self.folded_1 = conv_bn(3, 4, 3), nn.Conv2d(4, 4, 1)
        self.register_buffer("folded_0", torch.full((1,), 3.0))

    def forward(self, folded_2):
        return self.folded_1(self.conv(folded_2)) * self.folded_0


@torch.no_grad()
def test_results_take_no_name_of_the_model(on_a_gpu):
    model, x = Named().eval(), torch.randn(2, 3, 8, 9)
    program = cuconv.nn.fold(torch.export.export(model, (x,)))
    again = cuconv.nn.fold(program)
    for one in (program, again, saved(again)):
        assert close(one.module()(x), model(x))


@torch.no_grad()
@pytest.mark.parametrize("padding", [1, "same"])
@pytest.mark.parametrize("kind", [nn.Conv1d, nn.Conv2d, nn.ConvTranspose1d, nn.ConvTranspose2d])
def test_one_image_or_signal_is_torch_s(on_a_gpu, kind, padding):
    if padding == "same" and kind in (nn.ConvTranspose1d, nn.ConvTranspose2d):
        pytest.skip("torch has no such padding")
    model, x = nn.Sequential(kind(3, 4, 3, padding=padding), nn.ReLU()), torch.randn(3, 9, 8)
    x = x if kind in (nn.Conv2d, nn.ConvTranspose2d) else x[..., 0]
    program = cuconv.nn.fold(torch.export.export(model.eval(), (x,)))
    assert torch.equal(program.module()(x), model(x)) and not on_a_gpu


def test_where_cuconv_computes_nothing_the_program_stays_torch_s():
    model, program = exported()
    x, folded = torch.randn(3, 3, 9, 8), cuconv.nn.fold(program)
    with torch.no_grad():
        assert close(folded.module()(x), model(x))
    assert all(node.target is not CONV2D for node in folded.graph.nodes)
