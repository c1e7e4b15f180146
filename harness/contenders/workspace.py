"""Temporary device memory for the contenders that call cuDNN directly: one buffer for all of their algorithms."""

from __future__ import annotations

import torch

from harness.contenders import NotRunnable, check_workspace


class Workspace:
    """A buffer on the current GPU, grown to the largest size reserved and kept.

    Growing moves it, so what was captured in a CUDA graph before must not be replayed after: prepare a call,
    capture and time it, then prepare the next.
    """

    def __init__(self) -> None:
        self._buffer: torch.Tensor | None = None

    def reserve(self, size: int, limit: int) -> None:
        """Have `size` bytes ready. Raises NotRunnable where that is over `limit` (bytes) or more than the GPU has."""
        check_workspace(size, limit)
        if size > (0 if self._buffer is None else self._buffer.numel()):
            self._buffer = None  # first, so that old and new are never held together
            try:
                self._buffer = torch.empty(size, dtype=torch.uint8, device="cuda")
            except torch.cuda.OutOfMemoryError:
                raise NotRunnable("error", f"the GPU has no {size} bytes left for the workspace") from None

    @property
    def pointer(self) -> int:
        """Device address of the buffer; 0 as long as nothing was reserved."""
        return 0 if self._buffer is None else self._buffer.data_ptr()
