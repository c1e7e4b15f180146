"""Kernels that compile in the background, while their callers use others.

Threads that compile end when there is nothing left, or when the interpreter does: it waits for the kernels that are
being compiled, and leaves out the rest.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from cuconv import jit

Kernel = tuple[Path, str, tuple[tuple[str, int], ...]]
"""A kernel variant: its source, architecture and macros."""

MAX_THREADS = max(1, min(4, (os.cpu_count() or 1) // 2))

_lock = threading.RLock()  # a signal handler may ask for kernels while its thread does
_queue: deque[tuple[Kernel, Job]] = deque()
_jobs: dict[frozenset[Kernel], Job] = {}  # that are not finished
_threads = 0
_waiting = 0  # how many `waiting` are entered


class Outdated(Protocol):
    """What is to be made again when kernels are there."""

    outdated: bool


class Job:
    """Kernels that are being compiled. `error` is why one of them cannot be."""

    def __init__(self, kernels: frozenset[Kernel]):
        self._kernels, self._left = kernels, len(kernels)
        self._dependents: list[Outdated] = []
        self._finished = threading.Event()
        self.error: Exception | None = None

    def will_outdate(self, dependent: Outdated) -> None:
        """Mark what stands in for the kernels as outdated, once they are there."""
        with _lock:
            if self._left:
                self._dependents.append(dependent)
            elif self.error is None:
                dependent.outdated = True

    def wait(self) -> None:
        """Wait until the kernels are there, or are known not to come."""
        self._finished.wait()

    def one_ended(self, error: Exception | None) -> None:
        """Take note of a kernel that is there, or of the reason why it is not."""
        with _lock:
            self.error = self.error or error
            self._left -= 1
            if self._left:
                return
            _jobs.pop(self._kernels, None)
            if self.error is None:
                for dependent in self._dependents:
                    dependent.outdated = True
            self._dependents.clear()
        self._finished.set()


def kernel(source: Path, arch: str, macros: Mapping[str, int]) -> Kernel:
    """A kernel variant by its macros."""
    return source, arch, tuple(macros.items())


def compile_later(kernels: Iterable[Kernel]) -> Job:
    """Begin to compile kernels; those that are asked for last come first."""
    global _threads
    wanted = frozenset(kernels)
    with _lock:
        job = _jobs.get(wanted)
        if job is not None:
            return job
        job = _jobs[wanted] = Job(wanted)
        _queue.extend((one, job) for one in wanted)
        started = min(len(_queue), MAX_THREADS - _threads)
        _threads += started
    for _ in range(started):
        threading.Thread(target=_compile, name="cuconv compiles").start()
    return job


def _compile() -> None:
    """Compile what is asked for, on a thread of its own."""
    global _threads
    while True:
        with _lock:
            if not _queue:
                _threads -= 1
                return
            (source, arch, macros), job = _queue.pop()
        error: Exception | None = None
        try:
            if not threading.main_thread().is_alive():
                raise RuntimeError("the interpreter ends")
            jit.cubin(source, arch, dict(macros))
        except Exception as reason:  # of the compiler, or of a full disk
            error = reason
        job.one_ended(error)


@contextmanager
def waiting() -> Iterator[None]:
    """Let calls wait for the kernels that their plans ask for, as measurements must."""
    global _waiting
    with _lock:
        _waiting += 1
    try:
        yield
    finally:
        with _lock:
            _waiting -= 1


def waits() -> bool:
    """Whether calls wait for their kernels."""
    return _waiting > 0


def wait_for_kernels() -> None:
    """Wait until no kernel is being compiled: the next call of each kind uses the fastest one.

    Between a first call and a CUDA graph's capture, so that the graph has the fastest kernels.
    """
    while True:
        with _lock:
            jobs = list(_jobs.values())
        if not jobs:
            return
        for job in jobs:
            job.wait()
