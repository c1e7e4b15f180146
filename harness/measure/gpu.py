"""Errors of a GPU: whether one broke the CUDA context, and whether one means that memory does not suffice."""

from __future__ import annotations

import torch

from harness.errors import GpuLost

__all__ = ["GpuLost", "check_alive", "first_line", "out_of_memory"]


def check_alive(what: str, error: Exception) -> None:
    """Raise GpuLost where an error broke the CUDA context of the current GPU.

    what: the call that failed, such as "cuconv fp16x3 on 7-1-3-384-192". Rows written before it are kept.
    """
    try:
        torch.cuda.synchronize()
    except Exception:
        raise GpuLost(f"{what} broke the CUDA context ({first_line(error)}): the rows so far are kept") from error


def out_of_memory(error: Exception) -> bool:
    """Whether an error says that the memory of the GPU or of the host does not suffice."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "can't allocate memory" in str(error)


def first_line(error: Exception) -> str:
    """The first line of an error's message, or "no message"."""
    return (str(error).strip() or "no message").splitlines()[0]
