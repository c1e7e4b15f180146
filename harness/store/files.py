"""Reading and writing of files: only regular files are read, and a file is written in one step, in UTF-8.

A device or a FIFO would block a reader or never end, so both are refused. A new file is written next to the old one and
then renamed, so that a full disk or a crash leaves the old one. Neither step follows a symbolic link that somebody
left in the place of a new file.

A CSV file may be compressed by gzip, as FILE.gz. Readers find either form by `stored`;
a writer of FILE deletes FILE.gz.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness.errors import ResultsError

LONGEST_SHOWN = 60  # characters of a value in a message
NOT_REGULAR = "it is no regular file"
OWN_FILE = os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def open_regular(path: Path, flags: int) -> int:
    """A descriptor of a regular file. Raises OSError for a folder, a device, a FIFO or a socket, without waiting."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, NOT_REGULAR)
    return descriptor


def read_regular(path: Path, most: int = -1) -> bytes:
    """The content of a regular file, or its first `most` bytes. Raises OSError where it is no such file."""
    with open(open_regular(path, os.O_RDONLY), "rb") as file:
        return file.read(most)


def stored(path: Path) -> Path:
    """The path of a file, or of its compressed form where the file is missing or empty.

    Raises ResultsError where a file with content stands next to a compressed one, since one of them is out of date.
    """
    packed = _packed(path)
    if not packed.exists():
        return path
    if not is_empty(path):
        raise ResultsError(f"{path} and {packed.name} are both there: delete the one that is out of date")
    return packed


def is_empty(path: Path) -> bool:
    """Whether there is no file, or one without content, as a killed run leaves."""
    return not path.exists() or (path.is_file() and not path.stat().st_size)


def _packed(path: Path) -> Path:
    return path.with_name(f"{path.name}.gz")


def inflated(content: bytes) -> bytes:
    """The text of a gzip file of one or more members, the last of which a killed run may have cut off."""
    text = b""
    while content:
        member = zlib.decompressobj(wbits=31)  # gzip
        text += member.decompress(content)
        content = member.unused_data
    return text


def read_json(path: Path, remedy: str) -> Any:
    """The data in a JSON file. Raises ResultsError, which ends with the remedy, where it cannot be read."""
    try:
        return json.loads(read_regular(path).decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        reason = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        raise ResultsError(f"{path} cannot be read ({reason}): {remedy}") from None


def shown(cell: str) -> str:
    """A text from a file in a message: quoted, and cut where it is long."""
    return repr(cell if len(cell) <= LONGEST_SHOWN else f"{cell[:LONGEST_SHOWN]}...")


def encoded(text: str) -> bytes:
    """A text in UTF-8. A lone surrogate, which UTF-8 lacks, is written as its escape, such as \\udc80."""
    return text.encode("utf-8", "backslashreplace")


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file, a text in UTF-8, and the folders above it where they are missing.

    Its compressed form is deleted. Raises ResultsError where the file cannot be written; both are then as they were.
    """
    fresh = path.with_name(f"{path.name}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh.unlink(missing_ok=True)  # a killed run may have left one, or somebody a link
        with open(os.open(fresh, OWN_FILE | os.O_EXCL | os.O_WRONLY, 0o666), "wb") as file:
            file.write(encoded(content) if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
    except OSError as error:
        with suppress(OSError):  # the folder may be gone, or be a file
            fresh.unlink(missing_ok=True)
        raise ResultsError(
            f"cannot write {path} ({error.strerror}), which stays as it was: free some space or choose another folder"
        ) from None
    with suppress(OSError):  # where both stay, `stored` says so
        _packed(path).unlink(missing_ok=True)
