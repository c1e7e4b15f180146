"""The limits of cuConv's kernels for tensors, which may have no data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from cuconv.conv import plan
from cuconv.core.geometry import Geometry
from cuconv.core.problem import UnsupportedProblem
from cuconv.device import DeviceSpec, device_spec
from cuconv.nn.formats import HALVES, TYPES
from cuconv.nn.layout import hint
from cuconv.nn.operator import is_supported


def check_operands(input: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """Raise UnsupportedProblem where operands have a type or device that cuConv does not take."""
    for name, value in (("input", input), ("weight", weight), ("bias", bias)):
        if value is not None and (value.dtype not in TYPES or value.dtype != input.dtype):
            raise UnsupportedProblem(f"its {name} is {value.dtype}")
    if not is_supported(input):
        on_another = f"it is on a device of type {input.device.type}"
        raise UnsupportedProblem("its GPU is not supported" if input.is_cuda else on_another)


def check_half(input: Tensor, filters: Sequence[Any], stride: Any, padding: Any, dilation: Any, groups: int) -> None:
    """Raise UnsupportedProblem where no kernel in half precision computes a convolution.

    Every problem in float32 is computed, or torch says what is wrong at the call. filters: the shape of the weight.
    Sizes that may vary count with the value of the example.
    """
    if input.dtype not in HALVES:
        return
    shape, sizes = (tuple(map(hint, one)) for one in (input.shape, filters))
    steps, pads, jumps = ((size[0], size[-1]) for size in (stride, padding, dilation))
    plan(Geometry(steps, pads, jumps, groups).problem(shape, sizes, HALVES[input.dtype]), spec_of(input))


def spec_of(tensor: Tensor) -> DeviceSpec:
    """The specification of a tensor's GPU."""
    return device_spec(tensor.device.index)
