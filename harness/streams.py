"""Standard output and standard error that cannot end a measurement.

A measurement takes hours. It must not end because a terminal has no letter for a character, or because the file behind
2> is full or closed. `harness/__init__.py` makes both streams safe before a command imports anything else.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Any


class _Descriptor(io.FileIO):
    """A descriptor whose writes do not fail: what cannot be written is dropped, and `lost` says why.

    Where it ends with its reader, as standard output does, a pipe that nobody reads any more raises BrokenPipeError.
    """

    def __init__(self, descriptor: int, ends_with_its_reader: bool):
        super().__init__(descriptor, "w", closefd=False)
        self._ends = ends_with_its_reader
        self.lost: str | None = None

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if self._ends and isinstance(error, BrokenPipeError):
                raise
            self.lost = error.strerror or str(error)
            return len(data)


def secure() -> None:
    """Open the standard streams that are closed, on /dev/null, and make writes to the others safe.

    A closed descriptor would become that of the next file, into which a library would write its warnings.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # gets the lowest number that is free
    sys.stdout = _safe(sys.stdout, 1, ends_with_its_reader=True)
    sys.stderr = _safe(sys.stderr, 2, ends_with_its_reader=False)


def _safe(stream: Any, descriptor: int, ends_with_its_reader: bool) -> Any:
    """A safe stream in the place of another; `stream` is None where its descriptor was closed."""
    return io.TextIOWrapper(
        io.BufferedWriter(_Descriptor(descriptor, ends_with_its_reader)),
        encoding=stream.encoding if stream else "utf-8",
        errors="backslashreplace",
        line_buffering=stream is None or stream.line_buffering or stream.write_through,  # the last with python -u
    )


def lost_output() -> str | None:
    """Why some of standard output could not be written; None where all was, or where a test took its place."""
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return raw.lost if isinstance(raw, _Descriptor) else None
