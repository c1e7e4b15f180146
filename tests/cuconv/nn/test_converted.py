"""A converted model afterwards: copied, saved, changed, converted again and compiled."""

import copy

import pytest
import torch
from torch import nn

import cuconv.nn
from tests.cuconv.nn.models import close, made


@pytest.mark.parametrize("how", ["deepcopy", "save"])
@pytest.mark.parametrize("name", ["block", "untraceable"])
def test_a_converted_model_can_be_copied_and_saved(on_a_gpu, tmp_path, name, how):
    model, x = made(name)
    converted, _ = cuconv.nn.convert(model, x)
    with torch.no_grad():
        expected = converted(x)  # weights are packed from here on
        if how == "deepcopy":
            again = copy.deepcopy(converted)
        else:
            torch.save(converted, tmp_path / "model.pt")
            again = torch.load(tmp_path / "model.pt", weights_only=False)
        assert torch.equal(again(x), expected)
    assert not set(map(id, again.parameters())) & set(map(id, converted.parameters()))


@pytest.mark.parametrize(
    "change", ["weight", "layer", "move", "load", "load as a part", "load a layer", "refresh", "in place", "train"]
)
def test_a_changed_copy_computes_what_it_has_become(on_a_gpu, change):
    model, x = made("classifier")
    converted, _ = cuconv.nn.convert(model, x)
    other, _ = made("classifier")
    for parameter in other.parameters():
        parameter.data.mul_(1.5)
    if change == "weight":
        converted.last.weight = other.last.weight
        other, model.last.weight = model, other.last.weight
    elif change == "layer":
        converted.last = other.last
        other, model.last = model, other.last
    elif change == "move":
        converted, other, x = converted.double(), model.double(), x.double()
    elif change == "load":
        converted.load_state_dict(other.state_dict())
    elif change == "load as a part":
        nn.Sequential(converted).load_state_dict(nn.Sequential(other).state_dict())
    elif change == "load a layer":
        converted.last.load_state_dict(other.last.state_dict())
        other, model.last = model, other.last
    elif change == "refresh":
        converted.refresh(other)
    elif change == "in place":
        for parameter in converted.parameters():
            parameter.data.mul_(1.5)
        converted.refresh()
    else:
        converted.hidden[0].train()
        other = model
        other.hidden[0].train()
    with torch.no_grad():
        torch.manual_seed(1)
        ours = converted(x)
        torch.manual_seed(1)
        assert close(ours, other(x))


RUN = []  # a place for each time that the code of `Asserting` has run


class Asserting(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3)

    def forward(self, x):
        RUN.append(None)
        torch._assert(x.dim() == 4, f"images have four dimensions, not {x.shape}: " + str(x.shape[0]))
        return self.conv(x)


def test_the_message_of_an_assertion_is_no_condition():
    x = torch.randn(2, 4, 8, 9)
    converted, report = cuconv.nn.convert(Asserting().eval(), x)
    assert report.captured
    RUN.clear()
    with torch.no_grad():
        converted(torch.randn(3, 4, 11, 7))
    assert not RUN


def test_the_original_may_change_without_an_effect(on_a_gpu):
    model, x = made("block")
    converted, _ = cuconv.nn.convert(model, x)
    with torch.no_grad():
        before = converted(x)
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.mul_(2)
        assert torch.equal(converted(x), before)


def test_a_converted_model_is_converted_again_as_it_is(on_a_gpu):
    model, x = made("block")
    once, _ = cuconv.nn.convert(model, x)
    twice, report = cuconv.nn.convert(once, x)
    with torch.no_grad():
        assert torch.equal(once(x), twice(x)) and len(report.replaced) == 3


def test_a_converted_model_compiles_in_one_graph(on_a_gpu):
    model, x = made("block")
    converted, _ = cuconv.nn.convert(model, x)
    on_a_gpu.clear()
    torch._dynamo.reset()
    with torch.no_grad():
        compiled = torch.compile(converted, fullgraph=True, backend="eager")
        assert close(compiled(x), model(x))
    assert {call["kind"] for call in on_a_gpu} == {"plain"}
