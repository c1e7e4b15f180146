"""Stride, padding, dilation and groups as a caller writes them, and the ConvProblem that they make of two shapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cuconv.core.problem import ConvProblem, UnsupportedProblem, shown, whole_number

Pairs = tuple[tuple[int, int], tuple[int, int]]
"""((above, below), (left, right)) of an image."""
Padding = int | str | tuple[int, int] | Pairs
"""A padding as conv2d takes it."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """Arguments of conv2d besides the operands; a number stands for both axes, a pair is (vertical, horizontal).

    Padding may also be ((above, below), (left, right)).
    """

    stride: int | tuple[int, int] = 1
    padding: Padding = 0
    dilation: int | tuple[int, int] = 1
    groups: int = 1

    def checked(self) -> Geometry:
        """The same with whole numbers and pairs of them alone; raises UnsupportedProblem for anything else."""
        padding = self.padding
        if not isinstance(padding, str) or padding not in ("same", "valid"):
            padding = zeros("padding", padding)
        groups = whole_number("groups", self.groups)
        return Geometry(pair("stride", self.stride), padding, pair("dilation", self.dilation), groups)

    def problem(self, input_shape: tuple[int, ...], weight_shape: tuple[int, ...], precision: str) -> ConvProblem:
        """The convolution of an input (N, C, H, W) with weights (M, C / groups, KH, KW).

        Raises UnsupportedProblem where the channels of both do not fit each other, and for what ConvProblem refuses.
        """
        n, c, h, w = _four("input", input_shape)
        m, channels, kh, kw = _four("weight", weight_shape)
        groups = whole_number("groups", self.groups)
        if channels * groups != c:
            raise UnsupportedProblem(
                f"weight has {channels} channels, input {c}, groups={groups}: the input needs {channels} for each group"
            )
        stride_h, stride_w = pair("stride", self.stride)
        dilation_h, dilation_w = pair("dilation", self.dilation)
        (top, bottom), (left, right) = self._pads(kh, kw)
        return ConvProblem(
            n, c, h, w, m, kh, kw, top, left, precision, stride_h, stride_w, dilation_h, dilation_w, groups,
            bottom - top, right - left,
        )  # fmt: skip

    def _pads(self, kh: int, kw: int) -> Pairs:
        """The rows and columns of zeros at both ends of each axis."""
        if not isinstance(self.padding, str):
            rows, columns = ends(zeros("padding", self.padding), 2)
            return rows, columns
        if self.padding == "valid":
            return (0, 0), (0, 0)
        if self.padding != "same":
            raise _wrong("padding", self.padding)
        if pair("stride", self.stride) != (1, 1):
            raise UnsupportedProblem(f"padding='same' with stride={self.stride}: it exists for stride 1 only")
        dilation_h, dilation_w = pair("dilation", self.dilation)
        return same((kh - 1) * dilation_h), same((kw - 1) * dilation_w)


def same(count: int) -> tuple[int, int]:
    """The zeros at both ends of an axis where padding="same" has so many: an odd one is the last, as in torch."""
    return count // 2, count - count // 2


def zeros(name: str, value: Any) -> tuple[int, int] | Pairs:
    """A padding in numbers: a pair where both ends of each axis have equally many, and otherwise a pair of pairs."""
    values = value if isinstance(value, (tuple, list)) else (value,)
    if not any(isinstance(one, (tuple, list)) for one in values):
        return pair(name, value)
    try:
        (top, bottom), (left, right) = ((whole_number(name, number) for number in axis) for axis in values)
    except (UnsupportedProblem, TypeError, ValueError):
        raise _wrong(name, value) from None
    if min(top, bottom, left, right) < 0:
        raise UnsupportedProblem(f"{name}={shown(value)}: padding must be 0 or more")
    return (top, left) if (top, left) == (bottom, right) else ((top, bottom), (left, right))


def ends(padding: Sequence[Any], axes: int) -> list[tuple[Any, Any]]:
    """The zeros (before, behind) of each axis.

    padding: a number or a pair for each axis, or two numbers for each axis. Numbers may be symbols.
    """
    if len(padding) == 2 * axes:
        return list(zip(padding[::2], padding[1::2], strict=True))
    return [(one[0], one[1]) if isinstance(one, Sequence) else (one, one) for one in padding]


def pair(name: str, value: Any) -> tuple[int, int]:
    """The value of an argument as (vertical, horizontal): a number, a pair, or one number in a tuple or list.

    Only whole numbers are accepted. 1.0 and True equal 1 as keys of ready calls, so whether they were accepted would
    depend on earlier calls.
    """
    values = value if isinstance(value, (tuple, list)) else (value,)
    if len(values) not in (1, 2):
        raise _wrong(name, value)
    try:
        return whole_number(name, values[0]), whole_number(name, values[-1])
    except UnsupportedProblem:
        raise _wrong(name, value) from None


def in_a_row(name: str, value: Any, other: int) -> Any:
    """An argument of conv1d as conv2d takes it, with `other` as the value of the vertical axis.

    A word, such as "same", stays as it is. Padding may be (left, right). Raises UnsupportedProblem for what is neither
    a whole number nor a tuple or list of one.
    """
    if isinstance(value, str):
        return value
    values = value if isinstance(value, (tuple, list)) else (value,)
    try:
        if name == "padding" and len(values) == 2:
            left, right = (whole_number(name, number) for number in values)
            return (other, other), (left, right)
        (number,) = values
        return other, whole_number(name, number)
    except (UnsupportedProblem, ValueError):
        words = ", (left, right), 'same' or 'valid'" if name == "padding" else ""
        raise UnsupportedProblem(f"{name}={shown(value)}: must be a whole number{words}") from None


def _four(name: str, shape: Any) -> tuple[int, int, int, int]:
    """The four sizes of an operand."""
    if not isinstance(shape, (tuple, list)) or len(shape) != 4:
        raise UnsupportedProblem(f"the {name}'s shape is {shown(shape)}: four sizes are needed")
    n, c, h, w = (whole_number(f"a size of the {name}", size) for size in shape)
    return n, c, h, w


def _wrong(name: str, value: Any) -> UnsupportedProblem:
    words = (
        ", a pair of them, ((top, bottom), (left, right)), 'same' or 'valid'"
        if name == "padding"
        else " or a pair of them"
    )
    return UnsupportedProblem(f"{name}={shown(value)}: must be a whole number{words}")
