"""Files written in one step: beside the old one, then renamed, so that a full disk or a crash leaves the old one."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from harness.errors import ResultsError


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file, a text in UTF-8, and the folders above it where they are missing.

    Raises ResultsError where it cannot be written; it is then as it was.
    """
    fresh = path.with_name(f"{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(fresh, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
    except OSError as error:
        with suppress(OSError):  # the folder may be gone, or be a file
            fresh.unlink(missing_ok=True)
        raise ResultsError(
            f"cannot write {path} ({error.strerror}), which stays as it was: free some space or choose another folder"
        ) from None
