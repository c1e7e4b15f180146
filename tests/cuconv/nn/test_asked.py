"""Graphs stand for the calls that a model's own questions allow, and the report counts the calls as they ran."""

import importlib.util
import operator
import os
from collections import OrderedDict, defaultdict

import pytest
import torch
from torch import is_grad_enabled as enabled
from torch import nn

import cuconv.nn
from tests.cuconv.nn.models import close
from tests.cuconv.nn.zoo.entries import Model, conv, images

X = images()


class Empty(nn.Module):
    """A model that asks a dictionary for what torch's guards do not check where the dictionary is empty."""

    def __init__(self, ask):
        super().__init__()
        self.conv, self.ask, self.options = conv(), ask, {}

    def forward(self, x):
        y = self.conv(x)
        return y * 2 if self.ask(self.options) else y


@pytest.mark.parametrize("ask", [bool, any, lambda d: d | {}, lambda d: str(d) != "{}", len, lambda d: d == {"a": 1}])
def test_an_empty_dictionary_is_guarded(on_a_gpu, ask):
    model = Empty(ask).eval()
    converted, report = cuconv.nn.convert(model, X)
    for options in ({}, {"a": 1}, {}):
        model.options, converted.options = dict(options), dict(options)
        assert close(converted(X), model(X))
    model.options["a"] = converted.options["a"] = 1
    assert close(converted(X), model(X)) and report.folded_calls


@pytest.mark.parametrize("kind", [OrderedDict, lambda *items: defaultdict(int, *items)])
def test_an_empty_dictionary_of_another_class_is_guarded(on_a_gpu, kind):
    model = Empty(bool).eval()
    model.options = kind()
    converted, report = cuconv.nn.convert(model, X)
    for options in ({}, {"a": 1}):
        model.options, converted.options = kind(options), kind(options)
        assert close(converted(X), model(X))
    assert report.folded_calls


def answered(options):
    try:
        return options["a"]
    except KeyError:
        return 0


def test_a_key_that_is_not_there_is_guarded(on_a_gpu, monkeypatch):
    model = Empty(lambda d: answered(d) or os.environ.get("CUCONV_TEST")).eval()
    model.options = {"b": 1}
    converted, report = cuconv.nn.convert(model, X)
    assert close(converted(X), model(X)) and report.folded_calls == 1
    model.options["a"] = converted.options["a"] = 1
    assert close(converted(X), model(X))
    del model.options["a"], converted.options["a"]
    monkeypatch.setenv("CUCONV_TEST", "1")
    assert close(converted(X), model(X))


class Asking(nn.Module):
    """A model that asks a tensor, or itself, for what no guard of torch checks."""

    def __init__(self, ask):
        super().__init__()
        self.conv, self.ask, self.name = conv(), ask, "_version"
        self.from_a_constructor = lambda: "extra" in self.__dict__

    def forward(self, x):
        return self.conv(x) * (2 if self.ask(self, x) else 1)


@pytest.mark.parametrize(
    "ask",
    [
        lambda model, x: x._version,
        lambda model, x: getattr(x, "_version"),  # noqa: B009
        lambda model, x: getattr(x, model.name),
        lambda model, x: operator.attrgetter("_version")(x),
        lambda model, x: torch.Tensor._version.__get__(x),
        lambda model, x: "extra" in model.__dict__,
        lambda model, x: "extra" in vars(model),
        lambda model, x: "extra" in model.__getstate__(),
        lambda model, x: model.from_a_constructor(),
    ],
)
def test_no_graph_answers_what_no_guard_checks(on_a_gpu, ask):
    model = Asking(ask).eval()
    converted, _ = cuconv.nn.convert(model, X)
    for one in (model, converted):
        one.extra = 1
    written = X.clone().add_(0)
    assert close(converted(written), model(written))


def test_a_folder_called_torch_holds_any_code(on_a_gpu, tmp_path):
    file = tmp_path / "torch" / "asking.py"
    file.parent.mkdir()
    file.write_text("def ask(model, x): return x._version\n")
    spec = importlib.util.spec_from_file_location("asking", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    test_no_graph_answers_what_no_guard_checks(on_a_gpu, module.ask)


def test_a_model_that_counts_its_own_attributes_is_given_back_as_it_was(on_a_gpu):
    model = Model(lambda model, x: model.conv(x) * len(object.__getattribute__(model, "__dict__")), conv=conv()).eval()
    assert close(cuconv.nn.convert(model, X)[0](X), model(X))


class Output:
    """As outputs of transformers are."""

    def __init__(self, value):
        self.value = value
        self.count = sum(1 for name in self.__dict__)


def test_what_an_object_holds_that_the_model_makes_needs_no_guard(on_a_gpu):
    model = Model(lambda model, x: (made := Output(model.conv(x))).value * made.count, conv=conv()).eval()
    converted, report = cuconv.nn.convert(model, X)
    assert close(converted(X), model(X)) and report.folded_calls


def checkpointed(model, x):
    """As layers of transformers do."""
    if model.training and torch.is_grad_enabled():
        x = x + 1
    return model.conv(x)


def by_mode(model, x):
    return model.conv(x) * (2 if torch.is_grad_enabled() and len(x) > 4 else 1)


def by_another_name(model, x):
    return model.conv(x) * answer(x)


def answer(x):
    print(end="")  # a break: this function has no graph
    return 2 if enabled() and len(x) > 4 else 1


@pytest.mark.parametrize(
    ("function", "mode", "folded"),
    [
        (checkpointed, torch.enable_grad, True),
        (checkpointed, torch.inference_mode, True),
        (by_mode, torch.enable_grad, False),
        (by_mode, torch.inference_mode, True),
        (by_mode, torch.no_grad, True),
        (by_another_name, torch.enable_grad, False),
    ],
)
def test_graphs_run_in_a_mode_that_the_code_does_not_ask_for(on_a_gpu, function, mode, folded):
    model = Model(function, conv=conv()).eval()
    converted, report = cuconv.nn.convert(model, X)
    for x in (X, torch.randn(5, *X.shape[1:])):
        with mode():
            assert close(converted(x), model(x))
    assert (report.folded_calls, report.own_calls) == ((2, 0) if folded else (0, 2))


def breaks(model, x):
    y = model.conv(x) * (2 if float(x.sum()) > 1e9 else 1)
    return model.other(y[:, :, :24] if model.crops and 20 < y.shape[2] < 40 else y)


def test_sizes_may_vary_after_a_graph_break_too(on_a_gpu):
    model = Model(breaks, conv=conv(), other=conv(), crops=False).eval()
    converted, report = cuconv.nn.convert(model, X)
    on_a_gpu.clear()
    with torch.no_grad():
        for sizes in ((1, 4, 20, 9), (3, 4, 8, 30), (2, 4, 17, 17)):
            x = torch.randn(sizes)
            assert close(converted(x), model(x))
    assert (report.folded_calls, report.partly_folded_calls, report.own_calls) == (3, 0, 0) and len(on_a_gpu) == 6


def test_a_call_that_left_its_graphs_at_a_break_is_told_apart(on_a_gpu):
    model = Model(breaks, conv=conv(), other=conv(), crops=True).eval()
    converted, report = cuconv.nn.convert(model, X)
    x = torch.randn(2, 4, 30, 31)
    on_a_gpu.clear()
    with torch.no_grad():
        assert close(converted(x), model(x))
    assert (report.folded_calls, report.partly_folded_calls, report.own_calls) == (0, 1, 0) and len(on_a_gpu) == 1
    assert "1 in part" in str(report)


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.other = conv(), conv()

    def forward(self, images):
        batch = self.conv(torch.stack(images))
        return list(self.other(batch * (2 if float(batch.sum()) > 1e9 else 1)))


def test_a_list_of_images_may_have_other_sizes(on_a_gpu):
    model = Detector().eval()
    converted, report = cuconv.nn.convert(model, ([torch.randn(4, 8, 9)],))
    with torch.no_grad():
        for rows, columns in ((8, 9), (8, 20), (8, 14)):
            image = torch.randn(4, rows, columns)
            assert close(converted([image])[0], model([image])[0])
    assert report.folded_calls == 3 and report.why_one_batch


def test_a_model_without_a_layer_of_cuconv_runs_its_own_code(on_a_gpu):
    model = nn.Sequential(nn.ConvTranspose2d(4, 4, 2, stride=3), nn.ReLU()).eval()
    converted, report = cuconv.nn.convert(model, X)
    assert not report.captured and report.why_not_captured and "stride 3" in report.left[0].reason
    assert torch.equal(converted(X), model(X)) and report.own_calls == 1
