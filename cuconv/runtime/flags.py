"""Flags by which blocks of a kernel hand partial sums to each other, for prepared weights.

A kernel finds all flags 0 and leaves them 0. Kernels that may run at the same time therefore need flags of their own.
Each stream has some. So has each stream in a capture of a CUDA graph: a graph may run while its stream computes
something else, so its flags are in memory of the graph, which sets them to 0 when it begins.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable
from functools import cache
from typing import Any

from cuconv.core.problem import FLOAT_BYTES
from cuconv.runtime.streams import stream_key

SLOT_BYTES = 8192  # more than the flags of a kernel: 12 bytes for each block of a grid that fills a GPU once
SLOTS = 64  # per allocation


class Flags:
    """The flags of one GPU: 8 KiB for each stream and for each stream of a capture. Threads may share it."""

    def __init__(self, library: Any, device: int):
        """library: where `graphs_own_memory` is true, `address` may be called in a capture."""
        self._library, self._device = library, device
        self._lock = threading.RLock()  # also for a call in the middle of another call of its thread
        self._slots: dict[Hashable, int] = {}  # by stream
        self._memory: list[Any] = []
        self._free: list[int] = []
        self._captured: dict[int, tuple[int, Any]] = {}  # by stream: the number of a capture, and memory of its graph
        self._pointer = library.pointer

    def address(self, stream: int, capture: int = 0) -> int:
        """The address of the flags for a launch on the current stream, given by its pointer.

        capture: the number of the capture that the stream is in; 0 for none.
        """
        if capture:
            return self._of_capture(stream, capture)
        if self._captured:
            self._captured.pop(stream, None)  # this capture has ended: from now on only its graph holds them
        key = stream_key(stream)
        return self._slots.get(key) or self._assign(key)

    def _of_capture(self, stream: int, capture: int) -> int:
        """The address of flags in memory of a graph, which all calls of a stream in its capture share."""
        number, memory = self._captured.get(stream, (0, None))
        if number != capture:
            memory = self._library.zeros(SLOT_BYTES // FLOAT_BYTES, self._device)
            self._captured[stream] = capture, memory
        return self._pointer(memory)

    def _assign(self, key: Hashable) -> int:
        with self._lock:
            if key not in self._slots:
                if not self._free:
                    self._allocate()
                self._slots[key] = self._free.pop()
            return self._slots[key]

    def _allocate(self) -> None:
        memory = self._library.zeros(SLOTS * SLOT_BYTES // FLOAT_BYTES, self._device)
        self._library.synchronize(self._device)  # the zeros are there for every stream
        self._memory.append(memory)
        start = self._pointer(memory)
        self._free += range(start, start + SLOTS * SLOT_BYTES, SLOT_BYTES)


@cache
def flags_of(library: Any, device: int) -> Flags:
    """The flags of a GPU, in memory of a library."""
    return Flags(library, device)
