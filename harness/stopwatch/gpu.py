"""Memory and errors: whether a GPU or the host has room, and whether an error broke the CUDA context."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from harness.errors import GpuLost


def check_alive(what: str, error: Exception) -> None:
    """Raise GpuLost where an error broke the CUDA context of the current GPU.

    what: the call that failed, such as "cuconv fp16x3 on 7-1-3-384-192".
    """
    try:
        torch.cuda.synchronize()
    except Exception:
        raise GpuLost(f"{what} broke the CUDA context ({first_line(error)})") from error


def out_of_memory(error: Exception) -> bool:
    """Whether an error says that the memory of the GPU or of the host does not suffice."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or "can't allocate memory" in str(error)


def first_line(error: Exception) -> str:
    """The first line of an error's message, or "no message"."""
    return (str(error).strip() or "no message").splitlines()[0]


def available_bytes(device: torch.device) -> int | None:
    """The memory that a device has left, in bytes; None where it cannot be told, as on a host other than Linux."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None
