"""A converted model afterwards: copied, saved, changed, converted again and compiled."""

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cuconv.nn
from cuconv.nn import dispatch
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


def test_the_message_of_an_assertion_is_no_condition(monkeypatch):
    x = torch.randn(2, 4, 8, 9)
    converted, report = cuconv.nn.convert(Asserting().eval(), x)
    assert report.captured
    monkeypatch.setattr(Asserting, "forward", lambda model, x: pytest.fail("the model's own code runs"))
    with torch.no_grad():
        converted(torch.randn(3, 4, 11, 7))


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


@pytest.mark.parametrize("images_of_the_example", [1, 2])
def test_later_batches_and_sizes_run_in_graphs_and_compile_nothing(on_a_gpu, monkeypatch, images_of_the_example):
    model, x = made("fire")
    converted, report = cuconv.nn.convert(model, x[:images_of_the_example])
    graphs = len(report.graphs)
    with torch.no_grad():
        for sizes in ((1, 3, 12, 13), (2, 3, 12, 13), (5, 3, 9, 17), (1, 3, 20, 12)):
            other = torch.randn(sizes)
            assert close(converted(other), model(other))
    assert (report.folded_calls, report.own_calls, len(report.graphs)) == (4, 0, graphs)
    assert close(converted.double()(x.double()), model.double()(x.double()))
    assert (report.folded_calls, report.own_calls, len(report.graphs)) == (4, 1, graphs)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_graphs_run_in_each_mode(on_a_gpu, mode):
    model, x = made("block")
    converted, report = cuconv.nn.convert(model, x)
    with mode():
        assert close(converted(x.clone()), model(x))
    assert (report.folded_calls, report.own_calls) == (1, 0)


def test_a_loaded_model_makes_its_graphs_at_the_first_call(on_a_gpu, tmp_path):
    model, x = made("block")
    torch.save(cuconv.nn.convert(model, x)[0], tmp_path / "model.pt")
    loaded = torch.load(tmp_path / "model.pt", weights_only=False)
    on_a_gpu.clear()
    with torch.no_grad():
        for _ in range(2):
            assert close(loaded(x), model(x))
    assert loaded._graphs.folded == 2 and {call["kind"] for call in on_a_gpu} == {"prepared"}


def breaks(model, x):
    y = torch.relu(model.conv(x))
    return model.other(y * 2 if float(y.sum()) > 0 else y)


def test_a_graph_break_leaves_both_sides_folded_and_is_told(on_a_gpu):
    model = Model(breaks, conv=conv(), other=conv()).eval()
    converted, report = cuconv.nn.convert(model, X)
    on_a_gpu.clear()
    with torch.no_grad():
        for x in (X, -X.abs(), X):
            torch.testing.assert_close(converted(x), model(x), rtol=1e-4, atol=1e-5)
    assert len(report.replaced) == 2 and report.breaks and report.breaks[0] in str(report)
    assert [call["relu"] for call in on_a_gpu][:2] == [True, False]


class Inner(nn.Module):
    """A layer whose code is a function of its own for torch's compiler, since it breaks the graph inside."""

    def __init__(self):
        super().__init__()
        self.conv = conv()

    def forward(self, x):
        y = self.conv(x)
        torch._dynamo.graph_break()
        return self.conv(y)


def test_graphs_of_another_precision_do_not_run(on_a_gpu):
    model = nn.Sequential(nn.Sequential(Inner())).eval()
    converted = {precision: cuconv.nn.convert(model, X, precision=precision)[0] for precision in ("tf32", "fp32")}
    for precision, one in converted.items():
        on_a_gpu.clear()
        with torch.no_grad():
            one(X)
        assert [call["precision"] for call in on_a_gpu] == [precision] * 2


def test_graphs_of_many_models_may_follow_breaks_in_the_same_code(on_a_gpu):
    for _ in range(9):  # torch makes 8 graphs of one function by default
        _, report = cuconv.nn.convert(nn.Sequential(Inner()).eval(), X)
        assert len(report.replaced) == 2


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", ["block", "branches"])
def test_graphs_are_for_any_number_of_images(on_a_gpu, name, layout):
    model, x = made(name)
    converted, report = cuconv.nn.convert(model, x[:1].contiguous(memory_format=layout))
    with torch.no_grad():
        for images in (1, 2, 7):
            other = torch.randn(images, *x.shape[1:]).contiguous(memory_format=layout)
            assert close(converted(other), model(other))
    assert (report.folded_calls, report.own_calls) == (3, 0)


def test_a_block_around_a_call_holds_for_what_a_graph_leaves_to_torch(on_a_gpu):
    """Such as cuconv.nn.enabled(), or the one in which outputs are compared without TF32."""
    model = nn.Sequential(nn.Conv2d(4, 4, 1), nn.ConvTranspose2d(4, 4, 2)).eval()
    converted, report = cuconv.nn.convert(model, X)
    seen = []

    def kernel(*arguments):
        seen.append(arguments[6])  # whether it is transposed
        return dispatch.torchs(*arguments)

    with torch.no_grad(), dispatch.convolutions_by(kernel):
        converted(X)
    assert seen == [True] and report.folded_calls == 1


def scales(model, x):
    return model.conv(x) * (model.gain * 2).view(-1, 1, 1)


def test_what_depends_on_weights_alone_is_computed_once_and_without_a_warning(on_a_gpu):
    model = Model(scales, conv=conv(), gain=nn.Parameter(torch.randn(4))).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        converted, report = cuconv.nn.convert(model, X)
    with torch.no_grad():
        assert close(converted(X), model(X)) and report.folded_calls == 1
    assert str(report.graphs.of_calls()[0]).count("aten.mul") == 1


def squeezes(model, x):
    return model.conv(x).squeeze()


def test_sizes_of_one_are_told_apart_where_the_model_does(on_a_gpu):
    model = Model(squeezes, conv=conv()).eval()
    converted, _ = cuconv.nn.convert(model, X[:1])
    with torch.no_grad():
        for sizes in ((1, 8, 9), (2, 8, 9), (2, 3, 9), (1, 3, 3), (3, 8, 3)):
            x = torch.randn(sizes[0], X.shape[1], *sizes[1:])
            torch.testing.assert_close(converted(x), model(x), rtol=1e-4, atol=1e-5)


def picks(model, x):
    scores = model.conv(x).flatten()
    return scores.argsort()


def test_outputs_that_pick_are_not_refused(on_a_gpu):
    model = Model(picks, conv=conv(m=16)).eval()
    converted, report = cuconv.nn.convert(model, torch.randn(2, 4, 64, 64))
    assert report.captured and len(report.replaced) == 1
    assert converted(X).shape == model(X).shape


def test_hooks_come_and_go(on_a_gpu):
    """Also on copies, which share graphs."""
    model, x = made("block")
    converted, report = cuconv.nn.convert(model, x)
    other = copy.deepcopy(converted)
    with torch.no_grad():
        expected = converted(x)
        handle = converted.first[0].register_forward_hook(lambda module, inputs, output: output * 2)
        for _ in range(2):
            assert close(other(x), expected) and not close(converted(x), expected)
        handle.remove()
        assert close(converted(x), expected)
    assert (report.folded_calls, report.own_calls) == (4, 2)


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
