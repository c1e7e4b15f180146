"""Flags by which blocks of a kernel hand partial sums to each other, for prepared weights.

A kernel finds all flags 0 and leaves them 0. Kernels that may run at the same time therefore need flags of their own:
each stream has some, and each capture of a CUDA graph, which may be replayed beside what its stream computes.
"""

from __future__ import annotations

import ctypes
import threading
from functools import cache
from typing import Any

from cuconv import jit
from cuconv.problem import FLOAT_BYTES

SLOT_BYTES = 8192  # more than the flags of a kernel: 12 bytes for each block of a grid that fills a GPU once
SLOTS = 128  # that are allocated at a time
ACTIVE = 1  # CU_STREAM_CAPTURE_STATUS_ACTIVE


class Flags:
    """The flags of one GPU: 8 KiB for each stream and for each capture. Threads may share it."""

    def __init__(self, library: Any, device: int):
        self._library, self._device = library, device
        self._lock = threading.Lock()
        self._slots: dict[tuple[int, int], int] = {}  # by stream and capture
        self._memory: list[Any] = []
        self._free: list[int] = []
        self._pointer = library.pointer

    def address(self, stream: int) -> int:
        """The address of the flags for a launch on a stream; 0 where there are none left for a capture.

        Memory cannot be allocated during a capture, so outside of one there are always some left.
        """
        key = (stream, capture_of(stream))
        return self._slots.get(key) or self._assign(key)

    def _assign(self, key: tuple[int, int]) -> int:
        with self._lock:
            if key not in self._slots:
                if len(self._free) <= SLOTS // 2 and not key[1]:
                    self._allocate()
                if not self._free:
                    return 0
                self._slots[key] = self._free.pop()
            return self._slots[key]

    def _allocate(self) -> None:
        memory = self._library.zeros(SLOTS * SLOT_BYTES // FLOAT_BYTES, self._device)
        self._memory.append(memory)
        start = self._pointer(memory)
        self._free += range(start, start + SLOTS * SLOT_BYTES, SLOT_BYTES)


def capture_of(stream: int) -> int:
    """The number of the capture into a CUDA graph that a stream, given by its pointer, is in; 0 for none."""
    if not stream:  # the legacy default stream cannot be captured
        return 0
    status, number = ctypes.c_int(), ctypes.c_uint64()
    code = jit._driver().cuStreamGetCaptureInfo_v2(
        ctypes.c_void_p(stream), ctypes.byref(status), ctypes.byref(number), None, None, None
    )
    jit._check(code)
    return number.value if status.value == ACTIVE else 0


@cache
def flags_of(library: Any, device: int) -> Flags:
    """The flags of a GPU, in memory of a library."""
    return Flags(library, device)
