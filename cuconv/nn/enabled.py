"""Every convolution of a block of code by cuConv, without a change of the model.

Every convolution of torch ends in aten._convolution, whoever calls it: Python, TorchScript or C++. This module has the
only kernel of a dispatch key, and it is for that operation. A block adds the key to those of its thread. All other
operations fall through the key at no cost.

The usual ways would cost more or see less: a TorchDispatchMode sends every operation through Python, and a
TorchFunctionMode sees calls from Python alone.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from cuconv.call import NotReady
from cuconv.nn import operator
from cuconv.problem import FP32, UnsupportedProblem

_NAME = "TESTING_ONLY_GenericMode"  # torch has this key for modes like ours, above all others, and does not use it
_KEY = torch._C._dispatch_key_parse(_NAME)
TORCHS = torch.ops.aten._convolution.default


class _Block(threading.local):
    """The precision of the innermost block of a thread; threads of torch that compute for a block have the default."""

    precision = FP32


_block = _Block()


def _convolution(*arguments: Any) -> Tensor:
    """aten._convolution in a block: by cuConv where it can, by torch elsewhere."""
    input, weight, bias, stride, padding, dilation, transposed, _, groups = arguments[:9]
    if _is_for_autograd(input, weight, bias):  # traced TorchScript calls this operation by itself
        return torch.ops.aten.convolution(*arguments[:9])
    precision = _block.precision
    if (
        not transposed
        and input.dim() == 4
        and operator.qualifies(input, weight, bias)
        and not operator.autocasts(input)
    ):
        geometry = (tuple(stride), tuple(padding), tuple(dilation), groups)
        try:
            return operator._launch(input, weight, bias, *geometry, precision=precision)
        except NotReady:  # torch is no less precise meanwhile
            *others, allow_tf32 = arguments
            arguments = (*others, allow_tf32 and precision != FP32)
        except UnsupportedProblem:
            pass  # torch computes it, or says what is wrong
    with outside():
        return TORCHS(*arguments)


def _is_for_autograd(*operands: Tensor | None) -> bool:
    """Whether a derivative of this call is to be recorded, and autograd has not seen the call yet."""
    gradients = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in operands)
    if not gradients and forward_ad._current_level < 0:
        return False
    return not torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.AutogradFunctionality)


_fallthrough = torch.library.Library("_", "IMPL")
_fallthrough.fallback(torch.library.fallthrough_kernel, _NAME)
_kernel = torch.library.Library("aten", "IMPL")
_kernel.impl(TORCHS, _convolution, _NAME)


def outside() -> AbstractContextManager[Any]:
    """A context in which convolutions are torch's, whatever blocks there are around it."""
    found: AbstractContextManager[Any] = torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(_KEY))
    return found


@contextmanager
def enabled(precision: str = FP32) -> Iterator[None]:
    """Compute every convolution in the block by cuConv where it can, and by torch elsewhere.

    It reaches aten._convolution whoever calls it in this thread. Gradients are torch's own. precision: "fp32", or
    "tf32" for inputs and weights that may be rounded to TF32; ValueError for others.
    """
    operator.check_precision(precision)
    before, _block.precision = _block.precision, precision
    try:
        with torch._C._IncludeDispatchKeyGuard(_KEY):
            yield
    finally:
        _block.precision = before
