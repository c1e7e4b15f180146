"""Temporary device memory for the contenders that call cuDNN directly: one buffer serves all algorithms of one."""

from __future__ import annotations

import torch

from harness.contenders.base import NotRunnable, check_workspace


class Workspace:
    """A buffer on the current GPU, grown to the largest size reserved and kept.

    Growing moves the buffer, so a CUDA graph that was captured before must not be replayed after: prepare a call,
    capture and time it, then prepare the next.
    """

    def __init__(self) -> None:
        self._buffer: torch.Tensor | None = None

    def reserve(self, size: int, limit: int) -> None:
        """Have `size` bytes ready. Raises NotRunnable where that is over `limit` bytes or more than the GPU has."""
        check_workspace(size, limit)
        if size > (0 if self._buffer is None else self._buffer.numel()):
            self._buffer = None  # freed first, so that the old and the new buffer are never held together
            try:
                self._buffer = torch.empty(size, dtype=torch.uint8, device="cuda")
            except torch.cuda.OutOfMemoryError:
                raise NotRunnable("error", f"the GPU has no {size} bytes left for the workspace") from None

    @property
    def pointer(self) -> int:
        """Device address of the buffer; 0 as long as nothing was reserved."""
        return 0 if self._buffer is None else self._buffer.data_ptr()
