"""A results folder that one process at a time fills, which notices that somebody moved or replaced it."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from harness.errors import ResultsError
from harness.store.files import OWN_FILE, open_regular, write_whole

LOCK = ".lock"


class FolderReplaced(ResultsError):
    """Another folder is in the place of the one that this process fills."""


class LockedFolder:
    """A folder with a lock in its file .lock, which is made where it is missing.

    Every file of the folder that is replaced is replaced by `write`. It compares the locked file with the one that the
    path names now, so that files of another folder are never written over. Use as a context manager.
    """

    def __init__(self, path: Path):
        """Raises ResultsError where the folder cannot be written, or another process fills it."""
        self.path = path
        self._descriptors: tuple[int, ...] = ()  # the lock's and the folder's; held, so that no other has their inode
        self._take()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the lock back."""
        _close(self._descriptors)
        self._descriptors = ()

    def is_ours(self) -> bool:
        """Whether the path still names the folder that is locked; False where it may be filled again.

        That is where nothing is there, or an empty folder, or this folder without its lock.

        Raises FolderReplaced where another folder is there that has files or a lock of its own.
        """
        lock, folder = map(os.fstat, self._descriptors)
        try:
            if os.path.samestat(os.lstat(self.path / LOCK), lock):
                return True
        except FileNotFoundError:
            if not os.path.lexists(self.path):
                return False
            if not os.listdir(self.path) or os.path.samestat(self.path.stat(), folder):
                return False  # empty, or it lacks the lock alone
        except NotADirectoryError:
            pass
        raise FolderReplaced(
            f"{self.path} was replaced by another folder while this run filled it: that one stays as it is"
        )

    def write(self, name: str, content: str) -> None:
        """Replace a file of the folder, which is made again where it was moved or deleted.

        Raises FolderReplaced as `is_ours` does, and ResultsError where the file cannot be written.
        """
        if not self.is_ours():
            print(f"{self.path} was moved or deleted: it is made again, with all rows", file=sys.stderr)
            replaced = self._descriptors
            self._take()
            _close(replaced)
        write_whole(self.path / name, content)

    def _take(self) -> None:
        another = "choose another folder with --out"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                lock = open_regular(self.path / LOCK, OWN_FILE | os.O_RDWR)
            except OSError:
                os.close(folder)
                raise
        except OSError as error:
            raise ResultsError(f"cannot write to {self.path} ({error.strerror}): {another}") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            _close((lock, folder))
            raise ResultsError(f"{self.path} is in use by another run: wait for it, or {another}") from None
        self._descriptors = (lock, folder)


def _close(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
