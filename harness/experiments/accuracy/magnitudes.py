"""The kinds of data of the accuracy experiment: normal input and weights, changed so that magnitudes differ.

The kinds of FACTORS multiply the operands by numbers that broadcast. The others change single elements, one channel,
or every element by a random power of two of its own. Outputs stay finite in FP32 in all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from cuconv.core.problem import ConvProblem

LARGE = 1e20  # a single large element, or the factor of a single channel
SUBNORMAL = 1e-41  # 7136 times the smallest positive FP32 number, 2^-149
DENSITY = 0.05  # the share of elements of sparse data that are not 0


@dataclass(frozen=True, slots=True)
class Data:
    """Input and weights in FP32, and the unit of the output for the norm-wise error, which broadcasts to the output."""

    input: torch.Tensor
    weight: torch.Tensor
    unit: torch.Tensor


@dataclass(frozen=True, slots=True)
class Factors:
    """The factors of normal input and weights, and the scale of the output: each broadcasts to its tensor."""

    input: torch.Tensor
    weight: torch.Tensor
    output: torch.Tensor


Make = Callable[[ConvProblem, torch.Tensor, torch.Tensor, torch.Generator], Data]
Change = Callable[[torch.Tensor, torch.Generator], torch.Tensor]  # changes one operand, which is NCHW or MCHW


def _powers(exponent: float, count: int, shape: tuple[int, ...]) -> torch.Tensor:
    """Powers of ten from -exponent to exponent, along the axis of `shape` that is -1."""
    return torch.logspace(-exponent, exponent, count).view(shape)


def _factors(
    input: float | torch.Tensor = 1.0, weight: float | torch.Tensor = 1.0, output: float | torch.Tensor = 1.0
) -> Factors:
    return Factors(*(torch.as_tensor(factor) for factor in (input, weight, output)))


CHANNELS, FILTERS, IMAGES, PLANES = (1, -1, 1, 1), (-1, 1, 1, 1), (-1, 1, 1, 1), (1, -1, 1, 1)
# The factors of a problem by name. "balanced": every channel contributes alike to the sum.
FACTORS: dict[str, Callable[[ConvProblem], Factors]] = {
    "ordinary": lambda p: _factors(),
    "input 1e30": lambda p: _factors(1e30, 1e-30),
    "input 1e-30": lambda p: _factors(1e-30, 1e30),
    "channels balanced": lambda p: _factors(_powers(18, p.c, CHANNELS), 1 / _powers(18, p.c, CHANNELS)),
    "channels of input": lambda p: _factors(_powers(4, p.c, CHANNELS)),
    "channels of weights": lambda p: _factors(1.0, _powers(4, p.c, CHANNELS)),
    "filters": lambda p: _factors(1.0, _powers(15, p.m, FILTERS), _powers(15, p.m, PLANES)),
    "images": lambda p: _factors(_powers(12, p.n, IMAGES), 1.0, _powers(12, p.n, IMAGES)),
}


def _multiplied(factors_of: Callable[[ConvProblem], Factors]) -> Make:
    """The kind that multiplies normal operands by factors."""

    def make(p: ConvProblem, x: torch.Tensor, weight: torch.Tensor, generator: torch.Generator) -> Data:
        factors = factors_of(p)
        unit = factors.output.to(x.device, torch.float64)
        return Data(x * factors.input.to(x.device), weight * factors.weight.to(x.device), unit)

    return make


def _changed(input: Change | None = None, weight: Change | None = None) -> Make:
    """The kind that changes normal operands; None leaves an operand normal."""

    def make(p: ConvProblem, x: torch.Tensor, w: torch.Tensor, generator: torch.Generator) -> Data:
        unit = torch.ones((), dtype=torch.float64, device=x.device)
        return Data(input(x, generator) if input else x, weight(w, generator) if weight else w, unit)

    return make


def _one_element(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    x = x.clone()
    x[0, x.shape[1] // 2, x.shape[2] // 2, x.shape[3] // 2] = LARGE
    return x


def _one_weight(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    x = x.clone()
    x[0, x.shape[1] // 2, 0, 0] = LARGE
    return x


def _one_channel(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    x = x.clone()
    x[:, x.shape[1] // 2] *= LARGE
    return x


def _relu(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return x.clamp(min=0)


def _sparse(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    kept = torch.rand(x.shape, generator=generator, device=x.device) < DENSITY
    return torch.where(kept, x, 0)


def _subnormal(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return x * SUBNORMAL


def _exponents(lowest: int, highest: int) -> Change:
    """The change that multiplies each element by 2^k, where k is uniform from lowest to highest, both included."""

    def change(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        k = torch.randint(lowest, highest + 1, x.shape, generator=generator, device=x.device)
        return (x * torch.exp2(k.double())).float()  # in float64, where the factor is exact on every device

    return change


# The data of a problem by name, from normal input, normal weights and a generator on their device.
MAGNITUDES: dict[str, Make] = {name: _multiplied(factors_of) for name, factors_of in FACTORS.items()} | {
    "one element": _changed(input=_one_element),
    "one channel": _changed(input=_one_channel),
    "ReLU": _changed(input=_relu),
    "sparse": _changed(input=_sparse),
    "exponents": _changed(input=_exponents(-126, 100)),
    "subnormal": _changed(input=_subnormal),
    "weight element": _changed(weight=_one_weight),
    "weight channel": _changed(weight=_one_channel),
    "sparse weights": _changed(weight=_sparse),
    "weight exponents": _changed(weight=_exponents(-126, 100)),
    "subnormal weights": _changed(weight=_subnormal),
    "both exponents": _changed(input=_exponents(-50, 50), weight=_exponents(-50, 50)),
}
