"""Changes that torch neither guards nor counts: writes, hooks of a new layer, shared memory, replaced functions."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cuconv.nn
from tests.cuconv.nn.test_watched import X, doubled, made
from tests.cuconv.nn.zoo.entries import conv


def recalibrated(part):
    part.train()
    part(X * 3)
    part.eval()


# Writes that torch does not count, and functions that tools replace: what is done with a model, between two calls.
UNSEEN = {
    "statistics of a part": lambda model, patch: recalibrated(model[1]),
    "statistics of a layer": lambda model, patch: recalibrated(model[1].norm),
    "type of a part, there and back": lambda model, patch: model[0].half().float(),
    "memory": lambda model, patch: setattr(model[1].conv.weight, "data", torch.ones(4, 4, 1, 1)),
    "vector": lambda model, patch: nn.utils.vector_to_parameters(torch.ones(16), [model[1].conv.weight]),
    "convolution": lambda model, patch: patch.setattr(F, "conv2d", lambda *arguments: torch.conv2d(*arguments) * 2),
    "batch norm": lambda model, patch: patch.setattr(F, "batch_norm", lambda x, *_, **__: x * 2),
}  # fmt: skip


@pytest.mark.parametrize("change", UNSEEN)
def test_what_torch_does_not_count_is_seen(on_a_gpu, monkeypatch, change):
    model = made()
    converted, _ = cuconv.nn.convert(model, X)
    with torch.no_grad():
        converted(X)
        with monkeypatch.context() as patch:
            for one in (model, converted):
                UNSEEN[change](one, patch)
            torch.testing.assert_close(converted(X), model(X), rtol=1e-4, atol=1e-5)


def test_another_forward_of_the_class_runs(on_a_gpu, monkeypatch):
    class Once(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = conv()

        def forward(self, x):
            return self.conv(x)

    model = Once().eval()
    converted, _ = cuconv.nn.convert(model, X)
    monkeypatch.setattr(Once, "forward", lambda model, x: model.conv(x) * 2)
    with torch.no_grad():
        torch.testing.assert_close(converted(X), model(X))


class Pair:
    def __init__(self, first, second):
        self.first, self.second = first, second


class Writing(nn.Module):
    """A model that writes to memory which another of its inputs may share."""

    def __init__(self):
        super().__init__()
        self.conv, self.scale = conv(), nn.Buffer(torch.ones(4))

    def forward(self, pair):
        pair.first.add_(1)
        self.scale.mul_(2)
        return self.conv(pair.second) * self.scale[:, None, None]


def test_inputs_that_come_to_share_memory_are_written_as_by_torch(on_a_gpu):
    model = Writing().eval()
    converted, report = cuconv.nn.convert(model, (Pair(X.clone(), X.clone()),))
    with torch.no_grad():
        for shares in (False, True):
            results = []
            for one in (model, converted):
                x = X.clone()
                results.append(one(Pair(x, x[:] if shares else x.clone())))
            torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)
    assert report.folded_calls


def test_a_bias_in_memory_that_the_model_writes_is_read_at_each_call(on_a_gpu):
    model = Writing().eval()
    converted, _ = cuconv.nn.convert(model, (Pair(X.clone(), X.clone()),))
    for one in (model, converted):
        one.conv.bias = nn.Parameter(one.scale.view(4), requires_grad=False)
    with torch.no_grad():
        for _ in range(3):
            expected = model(Pair(X.clone(), X.clone()))
            torch.testing.assert_close(converted(Pair(X.clone(), X.clone())), expected, rtol=1e-4, atol=1e-5)


def test_the_hook_of_a_layer_that_is_put_into_the_model_later_runs(on_a_gpu):
    model = made()
    converted, _ = cuconv.nn.convert(model, X)
    layer = copy.deepcopy(model[1].norm)
    layer.register_forward_hook(doubled)
    with torch.no_grad():
        converted(X)
        model[1].norm = converted[1].norm = layer
        torch.testing.assert_close(converted(X), model(X), rtol=1e-4, atol=1e-5)
