"""Files written in one step: beside the old one, then renamed, so that a full disk or a crash leaves the old one."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from harness.errors import ResultsError


def write_whole(path: Path, text: str) -> None:
    """Write a text file, and the folders above it where they are missing.

    Raises ResultsError where it cannot be written; it is then as it was.
    """
    fresh = path.with_name(f"{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(fresh, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
    except OSError as error:
        with suppress(OSError):  # the folder may be gone, or be a file
            fresh.unlink(missing_ok=True)
        raise ResultsError(
            f"cannot write {path} ({error.strerror}), which stays as it was: free some space or choose another folder"
        ) from None
