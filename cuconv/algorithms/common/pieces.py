"""Filters in pieces, on one axis, whatever the stride and the dilation. pieces.cuh has the formula."""

from __future__ import annotations

from math import ceil, gcd
from typing import NamedTuple

from cuconv.core.problem import ConvProblem


class Axis(NamedTuple):
    """One axis of a convolution as convolutions of stride 1 without dilation, of inputs that are `step` apart."""

    kernel: int
    stride: int
    dilation: int

    @property
    def phases(self) -> int:
        """The phases of the outputs: those of one phase read through the same taps."""
        return self.dilation // gcd(self.stride, self.dilation)

    @property
    def tap_phases(self) -> int:
        """The phases of the taps: those of one phase read neighbours among the inputs of all outputs of a phase."""
        return self.stride // gcd(self.stride, self.dilation)

    @property
    def used(self) -> int:
        """The phases that have a tap."""
        return min(self.tap_phases, self.kernel)

    @property
    def step(self) -> int:
        """The distance of these neighbours."""
        return self.phases * self.stride

    @property
    def taps(self) -> int:
        """The most taps of a phase."""
        return ceil(self.kernel / self.tap_phases)

    def pieces(self, size: int) -> int:
        """The pieces of `size` taps of all phases."""
        return ceil(self.taps / size) * self.used


def axes(problem: ConvProblem) -> tuple[Axis, Axis]:
    """The rows and the columns of a problem."""
    p = problem
    return Axis(p.kh, p.stride_h, p.dilation_h), Axis(p.kw, p.stride_w, p.dilation_w)
