"""The types and memory formats of the tensors that cuConv computes in torch.

Images and weights in float32 are contiguous in NCHW. Those in half precision have channels last. Signals (N, C, L) are
images of one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cuconv.core.problem import BF16, FP16

HALVES = {torch.float16: FP16, torch.bfloat16: BF16}
TYPES = (torch.float32, *HALVES)


def precision_of(tensor: Tensor, precision: str) -> str:
    """The precision of a convolution of a tensor: the one that was asked for, or the tensor's own in half precision."""
    return HALVES.get(tensor.dtype, precision)


def is_laid_out(tensor: Tensor) -> bool:
    """Whether a tensor has the memory format that cuConv computes."""
    return tensor.is_contiguous(memory_format=format_of(tensor))


def laid_out(tensor: Tensor) -> Tensor:
    """A tensor in the memory format that cuConv computes: itself, or a copy."""
    return tensor.contiguous(memory_format=format_of(tensor))


def empty(shape: Sequence[int], like: Tensor) -> Tensor:
    """A new tensor of a type and device, in the memory format that cuConv computes."""
    memory_format = _format(like.dtype, len(shape))
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=memory_format)


def format_of(tensor: Tensor) -> torch.memory_format:
    """The memory format in which cuConv computes a tensor of such a type and number of dimensions."""
    return _format(tensor.dtype, tensor.dim())


def _format(dtype: torch.dtype, dimensions: int) -> torch.memory_format:
    return torch.channels_last if dtype in HALVES and dimensions == 4 else torch.contiguous_format


def as_row(signal: Tensor) -> Tensor:
    """A signal (N, C, L), or the weights (M, C / groups, K) of a 1D convolution, as images of one row in its memory."""
    return signal.unsqueeze(2)


def in_a_plane(stride: Any, padding: Any, dilation: Any) -> tuple[Any, Any, Any]:
    """Stride, padding and dilation of a 1D convolution as those of images of one row.

    Each is a number or a sequence of one. A padding may also be (left, right), or a word, which stays as it is.
    """
    across, along, apart = (size[0] if isinstance(size, Sequence) else size for size in (stride, padding, dilation))
    if isinstance(padding, Sequence) and not isinstance(padding, str) and len(padding) == 2:
        return [1, across], [(0, 0), tuple(padding)], [1, apart]
    return [1, across], padding if isinstance(padding, str) else [0, along], [1, apart]
