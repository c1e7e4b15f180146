"""The compile cache: a file for each compiled kernel variant, which is checked whenever it is read.

A file is the cubin, then the compiler's report, then a trailer with the length of the report and a checksum. So it is
whole or it is compiled again, and tools for cubins read it as it is. Files are written under another name first and
then renamed: processes that compile the same kernel at once replace each other's file by an equal one.

Kernels run with the rights of the process. The cache is therefore used only where this user or root owns it and nobody
else can write to it. A kernel that cannot be written is kept in memory.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
import warnings
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

MAX_BYTES = 2 * 1024**3  # all files together; those not used for the longest time are removed
STALE_SECONDS = 3600  # after which a file that is being written has lost its writer
MARK = b"cuConv 1"  # the format of the file
DIGEST_BYTES = hashlib.sha256().digest_size
LENGTH_BYTES = 8
TRAILER_BYTES = len(MARK) + LENGTH_BYTES + DIGEST_BYTES


class Cubin(NamedTuple):
    """A compiled kernel variant: its machine code, an ELF file, and the compiler's report."""

    code: bytes
    log: str


_in_memory: dict[Path, Cubin] = {}  # kernels that could not be written, by the path that they would have


def folder() -> Path:
    """The folder of the compile cache: $CUCONV_CACHE_DIR, or ~/.cache/cuconv."""
    chosen = os.environ.get("CUCONV_CACHE_DIR")
    home = os.path.expanduser("~")  # "~" for a user without a home
    return Path(chosen) if chosen else Path(home if home != "~" else os.devnull, ".cache", "cuconv")


def read(name: str) -> Cubin | None:
    """The cubin of this name; None where it is missing, damaged, or might be the work of another user."""
    path = folder() / f"{name}.cubin"
    if path in _in_memory:
        return _in_memory[path]
    try:
        with path.open("rb") as file:
            if _distrust(os.stat(path.parent)) or _distrust(os.fstat(file.fileno())):
                return None
            cubin = unpack(file.read())
    except OSError:
        return None
    if cubin is not None:
        with suppress(OSError):  # as for a file of root's
            os.utime(path)
    return cubin


def write(name: str, cubin: Cubin) -> None:
    """Keep a cubin under a name: in the folder, or in memory, with a warning, where that is not possible."""
    path = folder() / f"{name}.cubin"
    try:
        path.parent.mkdir(0o755, parents=True, exist_ok=True)
        reason = _distrust(os.stat(path.parent))
        if not reason:
            _write_whole(path, pack(cubin))
            _tidy(path.parent)
    except OSError as error:
        reason = error.strerror or str(error)
    if reason:
        _in_memory[path] = cubin
        _warn(path.parent, reason)


@cache
def _warn(folder: Path, reason: str) -> None:
    """Tell once that a folder cannot be used."""
    warnings.warn(
        f"cuConv cannot keep compiled kernels in {folder} ({reason}), so every process compiles them again: set "
        "CUCONV_CACHE_DIR to a folder that is yours and that nobody else can write to",
        stacklevel=2,
    )


def _distrust(status: os.stat_result) -> str:
    """Why a file or folder might hold the work of another user; empty where it cannot."""
    if status.st_uid not in (0, os.geteuid()):
        return "another user owns it"
    return "other users can write to it" if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else ""


def pack(cubin: Cubin) -> bytes:
    """The content of the file of a cubin."""
    log = cubin.log.encode()
    content = cubin.code + log + MARK + len(log).to_bytes(LENGTH_BYTES, "little")
    return content + hashlib.sha256(content).digest()


def unpack(content: bytes) -> Cubin | None:
    """The cubin of a file's content; None where that is damaged or of another format."""
    end = len(content) - TRAILER_BYTES
    checked, digest = content[:-DIGEST_BYTES], content[-DIGEST_BYTES:]
    if end < 0 or content[end : end + len(MARK)] != MARK or hashlib.sha256(checked).digest() != digest:
        return None
    start = end - int.from_bytes(checked[-LENGTH_BYTES:], "little")
    return Cubin(content[:start], content[start:end].decode())


def _write_whole(path: Path, content: bytes) -> None:
    """Write a file that is never seen in part. The umask decides who reads it; nobody else can write to it."""
    part = path.with_name(f"{path.name}.{uuid4().hex}.part")
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "wb") as file:
            file.write(content)
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _tidy(folder: Path) -> None:
    """Remove what killed writers left, and the files of oldest use beyond MAX_BYTES."""
    files = []
    for entry in os.scandir(folder):
        if entry.name.endswith((".cubin", ".part")):
            try:
                status = entry.stat()
            except FileNotFoundError:
                continue  # another process removed or renamed it
            files.append((status.st_mtime, status.st_size, entry))
    total = sum(size for _, size, entry in files if entry.name.endswith(".cubin"))
    for used, size, entry in sorted(files, key=lambda file: file[0]):
        if entry.name.endswith(".part"):
            if used < time.time() - STALE_SECONDS:
                Path(entry).unlink(missing_ok=True)
        elif total > MAX_BYTES:
            Path(entry).unlink(missing_ok=True)
            total -= size
