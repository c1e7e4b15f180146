"""The libcudnn that torch has loaded."""

from __future__ import annotations

import ctypes
import re
from ctypes import c_size_t
from pathlib import Path


def loaded() -> tuple[str, int] | None:
    """The path and version of that library, such as 91900 for 9.19.0; None where torch has loaded none."""
    import torch

    if torch.backends.cudnn.is_available():
        torch.backends.cudnn.version()  # loads it where it is not yet loaded
    maps = Path("/proc/self/maps")
    text = maps.read_text(encoding="utf-8", errors="surrogateescape") if maps.exists() else ""
    found = re.search(r"^[^/]*(/.*/libcudnn\.so[.\d]*)$", text, re.MULTILINE)
    if found is None:
        return None
    version = ctypes.CDLL(found[1]).cudnnGetVersion
    version.argtypes, version.restype = (), c_size_t
    return found[1], version()
