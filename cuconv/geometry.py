"""Stride, padding, dilation and groups as a caller writes them, and the ConvProblem that they make of two shapes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cuconv.problem import ConvProblem, UnsupportedProblem


@dataclass(frozen=True, slots=True)
class Geometry:
    """Arguments of conv2d besides the operands; a number stands for both axes, a pair is (vertical, horizontal)."""

    stride: int | tuple[int, int] = 1
    padding: int | str | tuple[int, int] = 0
    dilation: int | tuple[int, int] = 1
    groups: int = 1

    def problem(self, input_shape: tuple[int, ...], weight_shape: tuple[int, ...], precision: str) -> ConvProblem:
        """The convolution of an input (N, C, H, W) with weights (M, C / groups, KH, KW).

        Raises UnsupportedProblem where the channels of both do not fit each other, and for what ConvProblem refuses.
        """
        n, c, h, w = input_shape
        m, channels, kh, kw = weight_shape
        if channels * self.groups != c:
            raise UnsupportedProblem(
                f"weight has {channels} channels, input {c}, groups={self.groups}: the input needs {channels} for each "
                "group"
            )
        stride_h, stride_w = _both(self.stride)
        dilation_h, dilation_w = _both(self.dilation)
        pad_h, pad_w = self._pads(kh, kw)
        return ConvProblem(
            n, c, h, w, m, kh, kw, pad_h, pad_w, precision, stride_h, stride_w, dilation_h, dilation_w, self.groups
        )

    def _pads(self, kh: int, kw: int) -> tuple[int, int]:
        """The padding as (vertical, horizontal) rows and columns of zeros on each side."""
        if not isinstance(self.padding, str):
            return _both(self.padding)
        if self.padding == "valid":
            return 0, 0
        if self.padding != "same":
            raise _wrong("padding", self.padding)
        if _both(self.stride) != (1, 1):
            raise UnsupportedProblem(f"padding='same' with stride={self.stride}: it exists for stride 1 only")
        if kh % 2 == 0 or kw % 2 == 0:
            raise UnsupportedProblem(
                f"padding='same' with a filter of {kh}x{kw}: only odd sizes have equal padding on both sides"
            )
        dilation_h, dilation_w = _both(self.dilation)
        return kh // 2 * dilation_h, kw // 2 * dilation_w


def pair(name: str, value: Any) -> tuple[int, int]:
    """The value of an argument that is no number, as (vertical, horizontal): a pair, or one number in a tuple or list.

    Only whole numbers are accepted. 1.0 and True equal 1 as keys of ready calls, so whether they were accepted would
    depend on earlier calls.
    """
    if isinstance(value, (tuple, list)) and len(value) in (1, 2) and all(type(number) is int for number in value):
        return value[0], value[-1]
    raise _wrong(name, value)


def _both(value: int | tuple[int, int]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else value


def _wrong(name: str, value: Any) -> UnsupportedProblem:
    words = ", a pair of them, 'same' or 'valid'" if name == "padding" else " or a pair of them"
    return UnsupportedProblem(f"{name}={value!r}: must be a whole number{words}")
