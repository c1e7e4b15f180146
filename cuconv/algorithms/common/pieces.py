"""How one axis of a convolution of any stride and dilation is split into pieces of stride 1.

common/pieces.cuh has the formula.
"""

from __future__ import annotations

from math import ceil, gcd
from typing import NamedTuple

from cuconv.core.problem import ConvProblem


class Axis(NamedTuple):
    """One axis of a convolution, as convolutions of stride 1 without dilation of inputs that are `step` apart."""

    kernel: int
    stride: int
    dilation: int

    @property
    def phases(self) -> int:
        """The number of phases of the outputs: outputs i and i + phases are in the same one."""
        return self.dilation // gcd(self.stride, self.dilation)

    @property
    def tap_phases(self) -> int:
        """The number of phases of the taps: taps j and j + tap_phases are in the same one."""
        return self.stride // gcd(self.stride, self.dilation)

    @property
    def used(self) -> int:
        """The number of phases of the taps that have one."""
        return min(self.tap_phases, self.kernel)

    @property
    def step(self) -> int:
        """The inputs from one output of a phase to the next, and from one tap: lcm(stride, dilation)."""
        return self.phases * self.stride

    @property
    def taps(self) -> int:
        """The most taps of a phase."""
        return ceil(self.kernel / self.tap_phases)

    def pieces(self, size: int) -> int:
        """The number of pieces of `size` taps, over all phases of the taps."""
        return ceil(self.taps / size) * self.used


def axes(problem: ConvProblem) -> tuple[Axis, Axis]:
    """The rows and the columns of a problem."""
    p = problem
    return Axis(p.kh, p.stride_h, p.dilation_h), Axis(p.kw, p.stride_w, p.dilation_w)
