"""The graphs of a converted model: the calls that they stand for, in every mode and block, and after graph breaks."""

import copy
import warnings

import pytest
import torch
from torch import nn

import cuconv.nn
from cuconv.nn import comparison, dispatch, frozen
from tests.cuconv.nn.models import close, made
from tests.cuconv.nn.zoo.entries import Model, conv, images

X = images()


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
    assert [call["activation"] for call in on_a_gpu][:2] == ["relu", "none"]


class Asking(nn.Module):
    """A layer whose code asks what no guard of torch checks, between breaks of the graph."""

    def __init__(self):
        super().__init__()
        self.conv = conv()

    def forward(self, x):
        torch._dynamo.graph_break()
        y = self.conv(x)
        return y + x._version


def test_code_without_guards_costs_its_own_part_of_the_model(on_a_gpu):
    model = nn.Sequential(conv(), nn.ReLU(), Asking(), conv()).eval()
    converted, report = cuconv.nn.convert(model, X)
    assert {row.name for row in report.replaced} >= {"0", "2.conv"} and not report.why_not_captured
    with torch.no_grad():
        for _ in range(3):
            assert close(converted(X), model(X))
    assert (report.folded_calls, report.own_calls) == (3, 0)


class Options:
    """Attributes that may be missing, of an object that is made in a call or before."""

    def __init__(self, **given):
        self.__dict__.update(given)
        self.scale = self.__dict__.get("scale", 2.0)

    def shift(self):
        return self.__dict__.get("shift", 0.0)


def makes_options(model, x):
    return model.conv(x) * Options(shift=1.0).scale


def reads_options(model, x):
    return model.conv(x) + model.options.shift()


@pytest.mark.parametrize(("function", "calls"), [(makes_options, (2, 0)), (reads_options, (0, 2))])
def test_a_missing_attribute_is_known_of_an_object_that_the_call_makes(on_a_gpu, function, calls):
    model = Model(function, conv=conv(), options=Options()).eval()
    converted, report = cuconv.nn.convert(model, X)
    with torch.no_grad():
        for _ in range(2):
            assert close(converted(X), model(X))
            converted.options.shift, model.options.shift = lambda: 3.0, lambda: 3.0
    assert (report.folded_calls, report.own_calls) == calls


class Recording(nn.Module):
    """A model that notes a layer's output by a hook that its first call makes."""

    def __init__(self):
        super().__init__()
        self.conv, self.other, self.noted, self.is_hooked = conv(), conv(), [], False

    def forward(self, x):
        if not self.is_hooked:
            self.conv.register_forward_hook(lambda layer, inputs, output: self.noted.append(output))
            self.is_hooked = True
        self.noted.clear()
        return self.other(self.conv(x)), list(self.noted)


def test_hooks_that_a_call_makes_are_part_of_the_graphs(on_a_gpu):
    model = Recording().eval()
    converted, report = cuconv.nn.convert(model, X)
    with torch.no_grad():
        for images in (X, torch.cat([X, X]), X):
            ours, theirs = converted(images), model(images)
            assert close(ours[0], theirs[0]) and len(ours[1]) == len(theirs[1]) == 1
            assert close(ours[1][0], theirs[1][0])
    assert report.own_calls <= 1 and report.folded_calls >= 2


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
    """cuconv.nn.enabled() is such a block, and so is the one in which outputs are compared without TF32."""
    model = nn.Sequential(nn.Conv2d(4, 4, 1), nn.ConvTranspose2d(4, 4, 2, stride=3)).eval()
    converted, report = cuconv.nn.convert(model, X)
    seen = []

    def kernel(*arguments):
        seen.append(arguments[6])  # whether it is transposed
        return dispatch.by_torch(*arguments)

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


@pytest.mark.parametrize("pool", [nn.MaxPool2d(2), nn.AvgPool2d(3, 2), nn.MaxPool2d(3, 2, 1, ceil_mode=True)])
def test_poolings_are_for_even_and_odd_sizes(on_a_gpu, pool):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), pool, nn.Conv2d(4, 4, 1)).eval()
    converted, report = cuconv.nn.convert(model, torch.randn(2, 3, 16, 16))
    with torch.no_grad():
        for height, width in ((16, 17), (19, 18), (21, 23), (12, 16)):
            x = torch.randn(2, 3, height, width)
            assert close(converted(x), model(x))
    assert (report.folded_calls, report.own_calls) == (4, 0)


def asks_a_hundred_times(model, x):
    return model.conv(x) * sum(x.shape[2] != size for size in range(100, 200))


def test_a_size_that_many_conditions_are_about_is_the_example_s(on_a_gpu):
    model = Model(asks_a_hundred_times, conv=conv()).eval()
    converted, report = cuconv.nn.convert(model, X)
    assert report.captured
    with torch.no_grad():
        for x in (X, torch.randn(5, *X.shape[1:]), X.repeat(1, 1, 2, 1), X.repeat(1, 1, 40, 1)[:, :, :150]):
            assert close(converted(x), model(x))
    assert (report.folded_calls, report.own_calls) == (2, 2)


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


def test_graphs_that_raise_are_dropped_though_results_vary(on_a_gpu, monkeypatch):
    model = Model(lambda model, x: model.conv(x) > 0, conv=conv()).eval()

    def refuse(*arguments):
        raise RuntimeError("no kernel")

    def varies(ours, theirs, *others):
        return "two results differ"

    monkeypatch.setattr(comparison, "difference", varies)
    assert cuconv.nn.convert(model, X)[1].captured
    monkeypatch.setattr(frozen.FrozenConv2d, "__call__", refuse)
    converted, report = cuconv.nn.convert(model, X)
    assert "no kernel" in report.why_not_captured
    assert torch.equal(converted(X), model(X))


def attends(model, x):
    rows = model.conv(x).flatten(2).transpose(1, 2)
    return model.attention(rows, rows, rows)


def test_no_image_is_for_the_model_s_own_code(on_a_gpu):
    attention = nn.MultiheadAttention(4, 2, batch_first=True)  # returns other weights for no image
    model, x = Model(attends, conv=conv(), attention=attention).eval(), X
    converted, report = cuconv.nn.convert(model, x)
    with torch.no_grad():
        ours, theirs = converted(x[:0]), model(x[:0])
    assert report.captured and ours[0].shape == theirs[0].shape and type(ours[1]) is type(theirs[1])


@pytest.mark.filterwarnings("ignore")
def test_autocast_around_the_conversion_is_not_captured(on_a_gpu):
    model, x = made("classifier")
    with torch.autocast("cpu", torch.bfloat16):
        converted, report = cuconv.nn.convert(model, x)
    with torch.no_grad():
        assert report.captured and close(converted(x), copy.deepcopy(model).double()(x.double()))


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
