"""Layers of converted models that torch's compiler reads as single operators; to everything else they are torch's."""

import copy
import pickle

import pytest
import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import cuconv.nn
from cuconv.nn import traced
from tests.cuconv.nn.models import close, made
from tests.cuconv.nn.zoo.entries import Model, conv, images

X = images()
LAYOUTS = [torch.contiguous_format, torch.channels_last]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("groups, stride, padding, dilation", [(1, 1, 0, 1), (2, 2, 1, 1), (1, (2, 1), (0, 2), (1, 2))])
def test_outputs_without_data_are_like_those_with_data(layout, groups, stride, padding, dilation):
    layer = nn.Conv2d(4, 6, 3, stride, padding, dilation, groups).to(memory_format=layout)
    x = torch.randn(2, 4, 11, 12).contiguous(memory_format=layout)
    operands = (x, layer.weight.detach(), layer.bias.detach())
    geometry = (layer.stride, layer.padding, layer.dilation, groups)
    norm = (torch.ones(6), None, torch.zeros(6), torch.ones(6), 1e-5)
    output = traced.CONVOLUTION(*operands, *geometry)
    with FakeTensorMode() as mode:
        without = traced.CONVOLUTION(*map(mode.from_tensor, operands), *geometry)
        normed = traced.BATCH_NORM(without, *(mode.from_tensor(one) if torch.is_tensor(one) else one for one in norm))
    torch.testing.assert_close(output, layer(x).detach())
    for ours, theirs in ((without, output), (normed, traced.BATCH_NORM(output, *norm))):
        assert (ours.shape, ours.stride(), ours.dtype) == (theirs.shape, theirs.stride(), theirs.dtype)


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("length", [1, 3])
def test_signals_without_data_are_like_those_with_data(together, length):
    layer, x = nn.Conv1d(4, 6, length, 2, 1, 2), torch.randn(2, 4, 11)
    x = x.mT.contiguous().mT if together else x
    operands = (x, layer.weight.detach(), layer.bias.detach(), layer.stride, layer.padding, layer.dilation, 1)
    output = traced.CONVOLUTION(*operands)
    with FakeTensorMode() as mode:
        without = traced.CONVOLUTION(*map(mode.from_tensor, operands[:3]), *operands[3:])
    torch.testing.assert_close(output, layer(x).detach())
    assert (without.shape, without.stride(), without.dtype) == (output.shape, output.stride(), output.dtype)


def test_layers_are_torchs_to_other_tools(on_a_gpu):
    model, x = made("block")
    converted, report = cuconv.nn.convert(model, x)
    assert report.captured and repr(converted) == repr(model)
    for copied in (converted, copy.deepcopy(converted), pickle.loads(pickle.dumps(converted))):
        assert type(copied.first[0]) is traced.Conv2d and type(copied.first[1]) is traced.BatchNorm2d
        with torch.no_grad():
            assert close(copied(x), model(x)) and close(copied.first(x), model.first(x))
    nodes = fx.symbolic_trace(converted.first).graph.nodes
    assert [node.target for node in nodes if node.op == "call_module"] == ["0", "1", "2"]
    converted.train()
    model.train()
    assert close(converted(x), model(x)) and close(converted.first[1].running_var, model.first[1].running_var)


def asks_for_writes(model, x):
    return model.conv(x) + x._version


def test_layers_of_a_model_without_graphs_are_torchs(on_a_gpu):
    converted, report = cuconv.nn.convert(Model(asks_for_writes, conv=conv()).eval(), X)
    assert not report.captured and type(converted.conv) is nn.Conv2d


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(4, 8, 3, padding="same"),
        nn.Conv2d(4, 8, 4, padding="same"),
        nn.Conv2d(4, 8, 2, padding="same", dilation=2),
        nn.Conv2d(4, 8, 3, padding=1, padding_mode="reflect"),
        nn.Sequential(nn.BatchNorm2d(4, track_running_stats=False), nn.Conv2d(4, 4, 1)),
        nn.Sequential(nn.BatchNorm2d(4, affine=False), nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4, affine=False)),
    ],
    ids=["same", "same, uneven", "same, even by dilation", "reflect", "no statistics", "no weights"],
)
def test_other_options_of_layers(on_a_gpu, layer):
    model = nn.Sequential(layer, nn.ReLU()).eval()
    converted, report = cuconv.nn.convert(model, X)
    with torch.no_grad():
        assert report.captured and close(converted(X), model(X)) and report.folded_calls == 1
    assert close(converted.double()(X.double()), model.double()(X.double()))
