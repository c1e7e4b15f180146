"""Turns of the processes that measure on one GPU: one at a time has it, while the others build what they measure next.

A lock on a file gives the turn. The system frees it where a process ends, however it ends.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from harness.errors import ResultsError
from harness.store.files import OWN_FILE, open_regular

POLL_S = 0.002
WORD_S = 1.0  # between two signs of life of a process that waits


class Turns:
    """The turns of one process on a device, or on none that others use."""

    def __init__(self, lock: Path | None = None):
        """lock: the file that the processes of the device share; None where it is always this process's turn.

        Raises ResultsError where the file cannot be opened.
        """
        try:
            self._descriptor = None if lock is None else open_regular(lock, OWN_FILE | os.O_RDWR)
        except OSError as error:
            raise ResultsError(f"cannot open {lock} ({error.strerror}), the lock of the GPU: delete it") from None

    @classmethod
    def on(cls, device: torch.device) -> Turns:
        """The turns on a device: those of a GPU are shared by all processes of this user on this host."""
        if device.type != "cuda":
            return cls()
        name = f"cuconv-{os.getuid()}-{torch.cuda.get_device_properties(device).uuid}.lock"
        return cls(Path(tempfile.gettempdir()) / name)

    def take(self) -> Iterator[None]:
        """Wait for the turn, and take it; yields about once a second meanwhile, as a sign of life."""
        word_at = time.monotonic() + WORD_S
        while not self._try():
            time.sleep(POLL_S)
            if time.monotonic() > word_at:
                yield
                word_at = time.monotonic() + WORD_S

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Hold the turn, which is waited for without a sign of life."""
        for _ in self.take():
            pass
        try:
            yield
        finally:
            self.end()

    def _try(self) -> bool:
        try:
            if self._descriptor is not None:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def end(self) -> None:
        """Give the turn back, to a process that waits for it if there is one."""
        if self._descriptor is not None:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            time.sleep(2 * POLL_S)
