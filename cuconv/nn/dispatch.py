"""A way to every convolution of torch in a block of code, whoever calls it: Python, TorchScript or C++.

Every convolution of torch ends in aten._convolution. This module has the only kernel of a dispatch key, and it is for
that operation. A block adds the key to those of its thread. All other operations fall through the key at no cost, other
threads see nothing of it, and no setting of the process is touched.

The usual ways would cost more or see less: a TorchDispatchMode sends every operation through Python, and a
TorchFunctionMode sees calls from Python alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

_NAME = "TESTING_ONLY_GenericMode"  # torch has this key for modes like ours, above all others, and does not use it
_KEY = torch._C._dispatch_key_parse(_NAME)
_TORCHS = torch.ops.aten._convolution.default


def by_torch(*arguments: Any) -> Tensor:
    """aten._convolution by torch, in a block as elsewhere."""
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(_KEY)):
        output: Tensor = _TORCHS(*arguments)
    return output


Kernel = Callable[..., Tensor]
"""A function that computes aten._convolution from its arguments; the last argument allows TF32."""


class _Block(threading.local):
    """The kernel of the innermost block of a thread; threads of torch that compute for a block have the default."""

    kernel: Kernel = staticmethod(by_torch)
    is_left = False  # whether `outside` has left it


_block = _Block()


def _convolution(*arguments: Any) -> Tensor:
    if _is_for_autograd(*arguments[:3]):  # traced TorchScript calls this operation by itself
        output: Tensor = torch.ops.aten.convolution(*arguments[:9])
        return output
    return _block.kernel(*arguments)


def _is_for_autograd(*operands: Tensor | None) -> bool:
    """Whether a derivative of this call is to be recorded, and autograd has not seen the call yet."""
    gradients = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in operands)
    if not gradients and forward_ad._current_level < 0:
        return False
    return not torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.AutogradFunctionality)


_fallthrough = torch.library.Library("_", "IMPL")
_fallthrough.fallback(torch.library.fallthrough_kernel, _NAME)
_library = torch.library.Library("aten", "IMPL")
_library.impl(_TORCHS, _convolution, _NAME)


@contextmanager
def convolutions_by(kernel: Kernel) -> Iterator[None]:
    """Compute the convolutions of this thread by a kernel, below autograd and autocast."""
    before = _block.kernel
    _block.kernel = kernel
    try:
        with torch._C._IncludeDispatchKeyGuard(_KEY):
            yield
    finally:
        _block.kernel = before


@contextmanager
def outside() -> Iterator[None]:
    """Leave all blocks, such as for guards of torch's compiler, which compare dispatch keys. `inside` enters again."""
    if not torch._C._dispatch_tls_is_dispatch_key_included(_KEY):
        yield
        return
    included, excluded = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    before, _block.is_left = _block.is_left, True
    try:
        with torch._C._ForceDispatchKeyGuard(included - torch._C.DispatchKeySet(_KEY), excluded):
            yield
    finally:
        _block.is_left = before


def inside() -> AbstractContextManager[Any]:
    """In the block that `outside` has left, if it has left one."""
    return torch._C._IncludeDispatchKeyGuard(_KEY) if _block.is_left else nullcontext()


def by_torch_in_fp32(*arguments: Any) -> Tensor:
    """aten._convolution by torch, without TF32 even where torch's settings allow it."""
    return by_torch(*arguments[:-1], False)
