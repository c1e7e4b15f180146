"""Activations that follow a convolution of a model: which are folded into it, under which name, and which are not."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cuconv.nn
from tests.cuconv.nn.models import close
from tests.cuconv.nn.zoo.entries import Model

ACTIVATIONS = {  # by the name in the report: what computes it
    "silu": [F.silu, lambda x: F.silu(x, inplace=True)],
    "sigmoid": [torch.sigmoid, torch.sigmoid_],
    "hardswish": [F.hardswish, lambda x: F.hardswish(x, inplace=True)],
    "hardsigmoid": [F.hardsigmoid, nn.Hardsigmoid(inplace=True)],
    "relu6": [F.relu6, nn.ReLU6(inplace=True), lambda x: x.clamp(0, 6)],
    "relu": [torch.relu_, lambda x: x.clamp_min(0.0), lambda x: x.clamp(min=0)],
    "leaky_relu(0.01)": [F.leaky_relu, F.leaky_relu_],
    "leaky_relu(0.2)": [nn.LeakyReLU(0.2, inplace=True)],
    "hardtanh(-1.0, 1.0)": [F.hardtanh, F.hardtanh_],
    "hardtanh(-0.5, 2.0)": [lambda x: x.clamp(-0.5, 2), lambda x: x.clamp_(-0.5, 2)],
    "hardtanh(-inf, 0.5)": [lambda x: x.clamp_max(0.5), lambda x: x.clamp(max=0.5)],
    "tanh": [torch.tanh, torch.tanh_, nn.Tanh()],
    "elu(1.0)": [F.elu, F.elu_],
    "elu(0.5)": [nn.ELU(0.5, inplace=True)],
    "gelu": [F.gelu, nn.GELU()],
    "gelu_tanh": [lambda x: F.gelu(x, approximate="tanh"), nn.GELU("tanh")],
}


@torch.no_grad()
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize(
    ("name", "function"), [(name, one) for name, functions in ACTIVATIONS.items() for one in functions]
)
def test_activations_are_folded_and_named(on_a_gpu, name, function, residual):
    model = Model(lambda model, x: function(model.conv(x) + x if residual else model.conv(x)), conv=nn.Conv2d(4, 4, 1))
    x = torch.randn(2, 4, 8, 9)
    truth = copy.deepcopy(model).double()(x.double())
    converted, report = cuconv.nn.convert(model.eval(), x)
    on_a_gpu.clear()
    assert close(converted(x.clone()), truth)
    assert [row.folded for row in report.rows] == [("residual", name) if residual else (name,)]
    assert [call["activation"] for call in on_a_gpu] == [name]


@torch.no_grad()
@pytest.mark.parametrize(
    "function",
    {
        "SELU": F.selu,
        "CELU": lambda x: F.celu(x, 0.5),
        "a bound that is a tensor": lambda x: x.clamp(max=x.mean()),
        "a least output above the largest": lambda x: x.clamp(2.0, 1.0),
        "after another": lambda x: F.silu(F.softplus(x)),
    }.items(),
    ids=lambda item: item[0],
)
def test_other_activations_stay_with_torch(on_a_gpu, function):
    model, x = Model(lambda model, x: function[1](model.conv(x)), conv=nn.Conv2d(4, 4, 1)), torch.randn(2, 4, 8, 9)
    truth = copy.deepcopy(model).double()(x.double())
    converted, report = cuconv.nn.convert(model.eval(), x)
    assert close(converted(x.clone()), truth)
    assert [row.folded for row in report.rows] == [()]


@torch.no_grad()
def test_a_second_activation_stays_with_torch(on_a_gpu):
    model, x = Model(lambda model, x: F.silu(F.relu6(model.conv(x))), conv=nn.Conv2d(4, 4, 1)), torch.randn(2, 4, 8, 9)
    converted, report = cuconv.nn.convert(model.eval(), x)
    assert close(converted(x), F.silu(F.relu6(model.conv(x)))) and [row.folded for row in report.rows] == [("relu6",)]
