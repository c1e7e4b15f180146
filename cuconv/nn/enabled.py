"""Every convolution of a block of code by cuConv, without a change of the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from cuconv.nn import operator
from cuconv.problem import FP32, UnsupportedProblem

# Their first nine arguments are the same. Traced TorchScript has the second one.
CONVOLUTIONS = (torch.ops.aten.convolution.default, torch.ops.aten._convolution.default)
# Under torch.inference_mode these reach the mode whole; elsewhere autograd has made them aten.convolution.
COMPOSITES = (
    torch.ops.aten.conv2d.default,
    torch.ops.aten.conv2d.padding,
    torch.ops.aten._convolution_mode.default,
)


class _Mode(TorchDispatchMode):
    """Sends aten.convolution to cuConv. It stands below autograd, so that gradients are torch's own.

    A TorchFunctionMode would see only calls from Python: no convolutions of TorchScript or of C++ code, and those of
    nn.Conv2d, F.conv2d and torch.convolution each by another name.
    """

    def __init__(self, precision: str):
        super().__init__()
        self._precision = precision

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in COMPOSITES:
            with self:
                return func.decompose(*args, **(kwargs or {}))
        if func in CONVOLUTIONS and not kwargs:
            input, weight, bias, stride, padding, dilation, transposed, _, groups = args[:9]
            if not transposed and input.dim() == 4 and operator.qualifies(input, weight, bias):
                geometry = (tuple(stride), tuple(padding), tuple(dilation), groups)
                try:
                    return operator._launch(input, weight, bias, *geometry, precision=self._precision)
                except UnsupportedProblem:
                    pass  # torch computes it, or says what is wrong
        return func(*args, **(kwargs or {}))


@contextmanager
def enabled(precision: str = FP32) -> Iterator[None]:
    """Compute every convolution in the block by cuConv where it can, and by torch elsewhere.

    It reaches aten.convolution whoever calls it. Gradients are torch's own. Every operation of the block costs the host
    10 us and more, so capture the model in a CUDA graph, or convert it. torch.compile does not compile inside the
    block. precision: "fp32", or "tf32" for inputs and weights that may be rounded to TF32; ValueError for others.
    """
    operator.check_precision(precision)
    with _Mode(precision):
        yield
