"""Zeros around images and signals, also where both ends of an axis have different numbers of them.

torch's convolutions have one number for each axis. Here an axis may also have a pair, (before, behind), as in
`cuconv.conv2d`. The operator `cuconv::conv2d`, whose schema has no pairs, takes two numbers for each axis then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from cuconv.core.geometry import ends, same
from cuconv.core.problem import UnsupportedProblem, shown

Sizes = int | Sequence[int]


def each(value: Any, axes: int) -> list[Any]:
    """A number, or a sequence of one or of a number for each axis, as the values of all axes."""
    if not isinstance(value, Sequence):
        return [value] * axes
    return [*value] * axes if len(value) == 1 else [*value]


def differs(padding: Any, axes: int) -> bool:
    """Whether a padding has two numbers for an axis, which torch's convolutions do not take.

    Raises UnsupportedProblem for one that has no pair for each axis, or a number below 0.
    """
    if not isinstance(padding, Sequence) or isinstance(padding, str):
        return False
    pairs = [padding] if axes == 1 and len(padding) == 2 else padding
    if not any(isinstance(one, Sequence) for one in pairs):
        return False
    if len(pairs) != axes or any(not isinstance(one, Sequence) or len(one) != 2 for one in pairs):
        raise UnsupportedProblem(f"padding={shown(padding)}: must have a pair, (before, behind), for each axis")
    if any(type(number) is int and number < 0 for one in pairs for number in one):  # symbols are not compared
        raise UnsupportedProblem(f"padding={shown(padding)}: padding must be 0 or more")
    return True


def for_operator(padding: Sequence[Any]) -> list[Any]:
    """A padding of two axes as the operator takes it: (vertical, horizontal) or (top, bottom, left, right)."""
    return [one for pair in ends(padding, 2) for one in pair] if differs(padding, 2) else [*padding]


def in_pairs(padding: Sequence[Any]) -> tuple[Any, ...]:
    """The operator's padding as `cuconv.conv2d` takes it: (vertical, horizontal) or ((top, bottom), (left, right))."""
    return tuple(padding) if len(padding) == 2 else tuple(ends(padding, 2))


def padded(input: Tensor, padding: Any, axes: int) -> tuple[Tensor, Any]:
    """An input and the padding that is left for torch's convolution: where ends differ, a padded copy and none."""
    if not differs(padding, axes):
        return input, padding
    return F.pad(input, [one for pair in reversed(ends(padding, axes)) for one in pair]), [0] * axes


def unpadded(gradient: Tensor, padding: Any, axes: int) -> Tensor:
    """The gradient of an input from that of what `padded` returns."""
    if not differs(padding, axes):
        return gradient
    return F.pad(gradient, [-one for pair in reversed(ends(padding, axes)) for one in pair])


def convolved(
    axes: int, input: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, *others: Any
) -> Tensor:
    """torch's convolution on one or two axes; others: dilation and groups."""
    convolve: Any = (F.conv1d, F.conv2d)[axes - 1]
    input, padding = padded(input, padding, axes)
    output: Tensor = convolve(input, weight, bias, stride, padding, *others)
    return output


def in_numbers(weight: Tensor, stride: Any, padding: Any, dilation: Any) -> list[Any] | None:
    """A padding for each axis of a weight, also one that is given by its name; None for one that torch refuses."""
    axes = weight.dim() - 2
    if not isinstance(padding, str):
        found = [*padding] if differs(padding, axes) else each(padding, axes)
        return found if len(found) == axes else None
    if padding == "valid":
        return [0] * axes
    if padding != "same" or each(stride, axes) != [1] * axes:
        return None
    counts = [(size - 1) * step for size, step in zip(weight.shape[2:], each(dilation, axes), strict=True)]
    if any(count % 2 for count in counts):
        return [same(count) for count in counts]
    return [count // 2 for count in counts]
