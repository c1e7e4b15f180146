"""Activation functions: the names and numbers that a call may give, and what kernels compute for them."""

from __future__ import annotations

import ctypes
from math import e as EULER
from math import inf, isinf, log2, pi, sqrt
from numbers import Real
from typing import Any, NamedTuple

from cuconv.core.problem import shown, truth

# What a kernel computes of x with its two numbers, a and b (common/activation.cuh).
IDENTITY = 0
CLAMP = 1  # x, at least a and at most b
LEAKY = 2  # x, times a where it is negative
HARD, HARD_GATE = 3, 4  # x / 6 + 1/2, at least 0 and at most 1; and that times x
LOGISTIC, LOGISTIC_GATE = 5, 6  # 1 / (1 + 2^(a x + b x^3)); and that times x
ELU = 7  # x, or a (e^x - 1) where it is negative
TANH = 8
GELU = 9  # x (1 + erf(x / sqrt(2))) / 2
MAX_FLOAT = (2 - 2**-23) * 2.0**127  # the largest number of float32


class Activation(NamedTuple):
    """A function of each output, computed after bias and residual.

    name: that of torch.nn.functional, such as "silu"; "gelu" is torch's with erf, "gelu_tanh" that with
    approximate="tanh", and "none" the identity. kind, first, second: which formula a kernel computes, and its two
    numbers.
    """

    name: str
    kind: int
    first: float = 0.0
    second: float = 0.0

    @property
    def numbers(self) -> tuple[float, ...]:
        """The numbers that `conv2d` takes behind the name."""
        return (self.first, self.second)[: len(_WITH_NUMBERS[self.name].defaults)] if self.name in _WITH_NUMBERS else ()

    @property
    def packed_numbers(self) -> int:
        """Both numbers in FP32 as one argument of a kernel: the first one in the lower half."""
        return int.from_bytes((ctypes.c_float * 2)(self.first, self.second), "little", signed=True)

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.numbers))})" if self.numbers else self.name


_LINEAR, _CUBIC = -2 * sqrt(2 / pi) * log2(EULER), -2 * sqrt(2 / pi) * 0.044715 * log2(EULER)
_FIXED = {
    one.name: one
    for one in (
        Activation("none", IDENTITY),
        Activation("relu", CLAMP, 0.0, inf),
        Activation("relu6", CLAMP, 0.0, 6.0),
        Activation("sigmoid", LOGISTIC, -log2(EULER)),
        Activation("silu", LOGISTIC_GATE, -log2(EULER)),
        Activation("gelu_tanh", LOGISTIC_GATE, _LINEAR, _CUBIC),  # (1 + tanh(t)) / 2 = 1 / (1 + e^(-2 t))
        Activation("gelu", GELU),
        Activation("tanh", TANH),
        Activation("hardsigmoid", HARD),
        Activation("hardswish", HARD_GATE),
    )
}
NONE, RELU = _FIXED["none"], _FIXED["relu"]


class _Numbered(NamedTuple):
    """The kind of an activation that takes numbers, what these are, and torch's defaults."""

    kind: int
    meaning: str
    defaults: tuple[float, ...]


_WITH_NUMBERS = {
    "leaky_relu": _Numbered(LEAKY, "its slope", (0.01,)),
    "elu": _Numbered(ELU, "its alpha", (1.0,)),
    "hardtanh": _Numbered(CLAMP, "the least and the largest output", (-1.0, 1.0)),
}
NAMES = (*_FIXED, *_WITH_NUMBERS)


Activated = str | tuple[Any, ...] | None
"""How a call gives an activation: a name, a tuple of a name and its numbers, an Activation, or None."""


def activation_of(activation: Activated, relu: Any = False) -> Activation:
    """The activation that a call asks for: a name, a tuple of a name and its numbers, an Activation, or None.

    Raises ValueError for a name that is not known, for numbers that it does not take, and where `relu` asks for
    another activation; TypeError for what is none of these.
    """
    if activation is None:
        return RELU if (relu if relu is True or relu is False else truth("relu", relu)) else NONE
    if truth("relu", relu):
        raise ValueError(f"relu=True with activation={shown(activation)}: give one of the two")
    if type(activation) is Activation:
        return activation
    name, *numbers = (activation,) if isinstance(activation, str) else _parts(activation)
    return named(name, *numbers)


def _parts(activation: Any) -> tuple[Any, ...]:
    if isinstance(activation, tuple) and activation and isinstance(activation[0], str):
        numbers = activation[1:]
        if all(isinstance(one, Real) and not isinstance(one, bool) for one in numbers):
            return activation
    raise TypeError(
        f"activation={shown(activation)}: must be a name, such as 'silu', or a tuple of a name and its numbers, such "
        "as ('leaky_relu', 0.1)"
    )


def _is_taken(number: Any, kind: int) -> bool:
    """Whether a kernel can take a number: one of float32 that is finite, or for a clamp infinite."""
    try:
        value = float(number)
    except OverflowError:
        return False
    return abs(value) <= MAX_FLOAT or (kind == CLAMP and isinf(value))


def named(name: str, *numbers: float) -> Activation:
    """The activation of a name, with torch's default numbers where none are given.

    Equal functions are one Activation: hardtanh from 0 to 6 is relu6. Raises ValueError as `activation_of` does.
    """
    if not numbers and name in _FIXED:  # at once: the operator of torch asks in each call
        return _FIXED[name]
    if name not in NAMES:
        raise ValueError(f"activation={shown(name)}: must be one of {', '.join(NAMES)}")
    if name in _FIXED:
        raise ValueError(f"activation={shown((name, *numbers))}: {name} takes no numbers")
    kind, meaning, defaults = _WITH_NUMBERS[name]
    if numbers and (len(numbers) != len(defaults) or not all(_is_taken(one, kind) for one in numbers)):
        raise ValueError(f"activation={shown((name, *numbers))}: give {name} {meaning}, or no number for {defaults}")
    made = Activation(name, kind, *map(float, numbers or defaults))
    if kind == CLAMP and made.first > made.second:
        raise ValueError(f"activation={shown((name, *numbers))}: the least output is above the largest")
    return next((one for one in _FIXED.values() if one[1:] == made[1:]), made)
