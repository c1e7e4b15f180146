"""Activations: the names and numbers of a call, and the formulas whose numbers kernels take, against torch."""

from math import inf, nan

import pytest
import torch
import torch.nn.functional as F

import cuconv
from cuconv.core import activation
from cuconv.core.activation import NONE, RELU, activation_of
from cuconv.nn.activated import activated

EACH = [
    *("relu", "relu6", "sigmoid", "silu", "hardsigmoid", "hardswish", "gelu_tanh", "leaky_relu", "hardtanh", "none"),
    *("tanh", "gelu", "elu", ("elu", 0.5), ("elu", -2)),
    *(("leaky_relu", 0.25), ("leaky_relu", -2), ("hardtanh", -3.5, 0.5), ("hardtanh", -inf, 2.0)),
]
TORCH = {
    "none": lambda x: x,
    "relu": torch.relu,
    "relu6": F.relu6,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "tanh": torch.tanh,
    "gelu": F.gelu,
    "elu": F.elu,
    "leaky_relu": F.leaky_relu,
    "hardtanh": F.hardtanh,
}
each_activation = pytest.mark.parametrize("given", EACH, ids=str)


def truth_of(given, x):
    """The result of torch for an activation as a call gives it."""
    name, *numbers = (given,) if isinstance(given, str) else given
    return TORCH[name](x, *numbers)


def formula(one, x):
    """The result of a kernel's formula for a kind and its numbers (common/activation.cuh)."""
    a, b = one.first, one.second
    return {
        activation.IDENTITY: lambda: x,
        activation.CLAMP: lambda: x.clamp(a, b),
        activation.LEAKY: lambda: torch.where(x < 0, a * x, x),
        activation.HARD: lambda: (x / 6 + 0.5).clamp(0, 1),
        activation.HARD_GATE: lambda: x * (x / 6 + 0.5).clamp(0, 1),
        activation.LOGISTIC: lambda: 1 / (1 + torch.exp2(a * x + b * x**3)),
        activation.LOGISTIC_GATE: lambda: x / (1 + torch.exp2(a * x + b * x**3)),
        activation.ELU: lambda: torch.where(x > 0, x, a * torch.expm1(x)),
        activation.TANH: lambda: -torch.expm1(-2 * x) / (torch.expm1(-2 * x) + 2),
        activation.GELU: lambda: x * torch.erfc(-x / 2**0.5) / 2,
    }[one.kind]()


@each_activation
def test_the_formula_of_kernels_is_torchs_function(given):
    x = torch.linspace(-12, 12, 4001, dtype=torch.float64)
    torch.testing.assert_close(formula(activation_of(given), x), truth_of(given, x), rtol=1e-12, atol=1e-12)


@each_activation
def test_what_a_call_gives_can_be_given_again(given):
    one = activation_of(given)
    assert activation_of((one.name, *one.numbers)) == activation_of(one) == one
    torch.testing.assert_close(activated(torch.arange(-9.0, 9.0), one), truth_of(given, torch.arange(-9.0, 9.0)))


def test_kernels_take_both_numbers_in_fp32():
    packed = activation_of(("hardtanh", -3.5, inf)).packed_numbers
    assert -(2**63) <= packed < 2**63
    numbers = torch.tensor([packed]).view(torch.float32)
    assert numbers.tolist() == [-3.5, inf]
    assert activation_of(("leaky_relu", -0.0)).packed_numbers == 0x80000000


def test_relu_and_equal_functions_are_one():
    assert activation_of(None) == activation_of(None, False) == NONE
    assert activation_of(None, True) == activation_of("relu") == activation_of(("hardtanh", 0, inf)) == RELU
    assert activation_of(("hardtanh", 0, 6)) == activation_of("relu6")


@pytest.mark.parametrize(
    "given",
    [
        "swish",
        ("relu", 1.0),
        ("tanh", 1.0),
        ("leaky_relu", 1, 2),
        ("elu", 1, 2),
        ("hardtanh", 2, 1),
        ("hardtanh", nan, 1),
    ],
)
def test_what_is_no_activation_is_refused(given):
    with pytest.raises(ValueError, match="activation="):
        activation_of(given)
    with pytest.raises(ValueError, match="activation="):
        cuconv.prepare(torch.ones(1, 1, 1, 1), activation=given)


@pytest.mark.parametrize("given", [1, (), ("leaky_relu", "0.1"), ["silu"], (0.1, "leaky_relu")])
def test_other_types_are_refused(given):
    with pytest.raises(TypeError, match="activation="):
        activation_of(given)


def test_relu_beside_another_activation_is_refused():
    with pytest.raises(ValueError, match="relu=True with activation='silu'"):
        activation_of("silu", True)


@pytest.mark.parametrize("name", ["leaky_relu", "elu"])
@pytest.mark.parametrize("number", [10**400, 1e300, inf, nan])
def test_numbers_beyond_float32_are_refused(name, number):
    with pytest.raises(ValueError, match=name):
        activation_of((name, number))
