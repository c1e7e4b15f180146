"""Temporary device memory for the contenders that call cuDNN directly."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch

from harness.contenders.base import NoMemory


class Workspace:
    """Buffers on the current GPU for the calls of one contender.

    A call keeps its buffer, so that a CUDA graph of it can always be replayed. Calls that live at once share a buffer
    that is large enough. It is freed with the last of them: a sweep holds no more memory than the call that it times.
    """

    def __init__(self) -> None:
        self._last: Callable[[], torch.Tensor | None] = lambda: None

    def reserve(self, size: int) -> torch.Tensor:
        """A buffer of at least `size` bytes. Raises NoMemory where the GPU has no room for it."""
        buffer = self._last()
        if buffer is None or buffer.numel() < size:
            try:
                buffer = torch.empty(size, dtype=torch.uint8, device="cuda")
            except torch.cuda.OutOfMemoryError:
                raise NoMemory(size) from None
            self._last = weakref.ref(buffer)
        return buffer
