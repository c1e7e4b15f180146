"""A converted model afterwards: copied, saved, changed, converted again and compiled."""

import copy
import gc

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cuconv.nn
from cuconv.nn.operator import PLAIN_TYPES
from tests.cuconv.nn.models import close, made
from tests.cuconv.nn.zoo.entries import Model, conv, images

X = images()


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


class Asserting(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3)

    def forward(self, x):
        torch._assert(x.dim() == 4, f"images have four dimensions, not {x.shape}: " + str(x.shape[0]))
        return self.conv(x)


def test_the_message_of_an_assertion_is_no_condition(on_a_gpu):
    x = torch.randn(2, 4, 8, 9)
    converted, report = cuconv.nn.convert(Asserting().eval(), x)
    with torch.no_grad():
        converted(torch.randn(3, 4, 11, 7))
    assert report.own_calls == 0


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
    torch._dynamo.reset()
    with torch.no_grad():
        compiled = torch.compile(converted, fullgraph=True, backend="eager")
        assert close(compiled(x), model(x))


def updates_its_mean(model, x, update=False):
    y = model.conv(x)
    if update:
        model.mean.copy_(y.mean((0, 2, 3)))
    return F.batch_norm(y, model.mean, model.variance)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_model_that_writes_to_its_buffers_in_some_calls(on_a_gpu, mode):
    model = Model(
        updates_its_mean, conv=conv(), mean=nn.Buffer(torch.zeros(4)), variance=nn.Buffer(torch.ones(4))
    ).eval()
    converted, report = cuconv.nn.convert(model, X)
    assert report.captured
    with mode():
        for call in ({}, {"update": True}, {}):
            torch.testing.assert_close(converted(X, **call), model(X, **call), rtol=1e-4, atol=1e-5)


def views_its_pixels(model, x):
    y = model.conv(x).permute(0, 2, 3, 1)
    return y.reshape(-1, 4) if x.is_contiguous() else y.view(-1, 4)


@pytest.mark.parametrize("example", [X, X.contiguous(memory_format=torch.channels_last)])
@pytest.mark.parametrize("function", [lambda model, x: model.conv(x), views_its_pixels])
def test_results_lie_in_memory_as_those_of_the_model(on_a_gpu, function, example):
    model = Model(function, conv=conv(k=3)).eval()
    converted, _ = cuconv.nn.convert(model, example)
    for x in (X, X.contiguous(memory_format=torch.channels_last)):
        with torch.no_grad():
            torch.testing.assert_close(converted(x), model(x), rtol=1e-4, atol=1e-5, check_stride=True)


class OfOneSize(nn.Module):
    """A model that makes its grid anew for each size."""

    def __init__(self):
        super().__init__()
        self.conv, self.shape = conv(), None

    def forward(self, x):
        if self.shape != x.shape:
            self.grid, self.shape = torch.ones(x.shape), x.shape
        return self.conv(x) + self.grid


def weights_like(parameter):
    """The number of tensors of the shape of a parameter that have memory of their own."""
    gc.collect()
    tensors = [one for one in gc.get_objects() if isinstance(one, torch.Tensor) and type(one) in PLAIN_TYPES]
    return len({one.data_ptr() for one in tensors if one.shape == parameter.shape})


def test_no_copy_of_the_weights_stays_after_the_conversion_or_after_a_copy_is_gone(on_a_gpu):
    model = nn.Sequential(nn.Conv2d(4, 6, 3), nn.Flatten(), nn.Linear(6 * 6 * 7, 37), nn.ReLU()).eval()
    x = torch.randn(2, 4, 8, 9)
    converted, report = cuconv.nn.convert(model, x)
    with torch.no_grad():
        converted(x)
        assert report.folded_calls == 1 and weights_like(model[2].weight) == 2
        copied = copy.deepcopy(converted)
        copied(x)
    assert report.folded_calls == 2 and weights_like(model[2].weight) == 3
    del copied
    assert weights_like(model[2].weight) == 2


def test_a_capture_is_in_use_after_the_conversion(on_a_gpu):
    model = OfOneSize().eval()
    with torch.no_grad():
        model(X)
        converted, report = cuconv.nn.convert(model, X)
        torch.testing.assert_close(converted(X), model(X), rtol=1e-4, atol=1e-5)
        assert report.captured and converted._graphs is not None
        other = images(3)
        torch.testing.assert_close(converted(other), model(other), rtol=1e-4, atol=1e-5)


def test_a_string_by_the_name_of_a_method_is_no_method(on_a_gpu):
    model = nn.Sequential(conv(), nn.ReLU()).eval()
    model[0].type = "Conv2d"
    assert cuconv.nn.convert(model, X)[1].captured


def test_an_activation_in_place_after_an_instance_norm(on_a_gpu):
    model = nn.Sequential(conv(), nn.InstanceNorm2d(4, affine=True), nn.LeakyReLU(0.1, inplace=True)).eval()
    converted, report = cuconv.nn.convert(model, X)
    with torch.no_grad():
        torch.testing.assert_close(converted(X), model(X), rtol=1e-4, atol=1e-5)
    assert report.captured


class Stored:
    """A descriptor whose values are under another name."""

    def __get__(self, model, kind):
        return self if model is None else model.__dict__.get("_scale", 1.0)

    def __set__(self, model, value):
        model.__dict__["_scale"] = value


class Scaled(nn.Module):
    scale = Stored()

    def __init__(self):
        super().__init__()
        self.conv = conv()

    def forward(self, x):
        return self.conv(x) * self.scale


def test_an_attribute_that_is_stored_under_another_name(on_a_gpu):
    model = Scaled().eval()
    converted, _ = cuconv.nn.convert(model, X)
    model.scale = converted.scale = 3.0
    with torch.no_grad():
        torch.testing.assert_close(converted(X), model(X), rtol=1e-4, atol=1e-5)


class Shared(nn.Sequential):
    """A model whose copies are itself."""

    def __deepcopy__(self, memo):
        return self


def test_a_model_that_cannot_be_copied_stays_what_it_is():
    model = nn.Sequential(Shared(conv())).eval()
    with pytest.raises(cuconv.nn.ConversionError, match="a copy of 0 is the same module"):
        cuconv.nn.convert(model, X)
    assert all(parameter.requires_grad for parameter in model.parameters())


DOORS = {
    "vars": lambda module: vars(module).update(doubles=True),
    "__dict__": lambda module: module.__dict__.__setitem__("doubles", True),
    "object.__setattr__": lambda module: object.__setattr__(module, "doubles", True),
    "_modules": lambda module: module.__dict__.__setitem__("_modules", module._modules | {"conv": nn.Identity()}),
    "_parameters": lambda module: module.conv.__dict__.__setitem__(
        "_parameters", module.conv._parameters | {"weight": nn.Parameter(torch.ones(4, 4, 1, 1))}
    ),
    "class attribute": lambda module: setattr(type(module), "triples", True),
}


class Doubling(nn.Module):
    triples = False

    def __init__(self):
        super().__init__()
        self.conv, self.doubles = conv(), False

    def forward(self, x):
        y = self.conv(x) * (2 if self.doubles else 1)
        return y * 3 if self.triples else y


@pytest.mark.parametrize("door", DOORS)
def test_changes_that_pass_torchs_own_setters_by(on_a_gpu, monkeypatch, door):
    monkeypatch.setattr(Doubling, "triples", False)
    torch.manual_seed(3)
    model = nn.Sequential(Doubling()).eval()
    converted, _ = cuconv.nn.convert(model, X)
    with torch.no_grad():
        before = converted(X)
        for one in (model, converted):
            DOORS[door](one[0])
        torch.testing.assert_close(converted(X), model(X), rtol=1e-4, atol=1e-5)
        assert not close(converted(X), before)
