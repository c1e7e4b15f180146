"""Kernels that compile in the background, while their callers use others.

The threads end when nothing is left to compile. They also end with the program, which waits for the kernels that are
being compiled, and leaves out the rest.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

from cuconv.core.launch import KernelVariant
from cuconv.runtime import compiler

NAME = "cuconv compiles"  # the name of the threads
MAX_THREADS = max(1, min(4, (os.cpu_count() or 1) // 2))

_lock = threading.RLock()  # a signal handler may ask for kernels while its thread does
_queue: deque[tuple[KernelVariant, Job]] = deque()
_jobs: dict[frozenset[KernelVariant], Job] = {}  # jobs that have not ended
_failed: dict[KernelVariant, Exception] = {}  # kernels that the compiler refuses
_threads = 0


class _Thread(threading.local):
    """The number of nested `waiting` blocks of a thread."""

    waiting = 0


_thread = _Thread()


class StandIn(Protocol):
    """A call that is used until a job ends, which then sets both attributes.

    is_stale   whether the call is to be made again: its kernels are there, or the error may pass, as a lack of memory
    error      why the kernels are not there, or None
    """

    is_stale: bool
    error: Exception | None


class Job:
    """Kernels that are being compiled."""

    def __init__(self, kernels: frozenset[KernelVariant]):
        self._kernels, self._left = kernels, len(kernels)
        self._stand_ins: list[StandIn] = []
        self._ended = threading.Event()
        self._error: Exception | None = None

    def replaces(self, stand_in: StandIn) -> None:
        """Tell a stand-in when the kernels are there, or why they cannot be."""
        with _lock:
            if self._left:
                self._stand_ins.append(stand_in)
            else:
                self._tell(stand_in)

    def wait(self) -> None:
        """Wait until the kernels are there, or are known not to come."""
        self._ended.wait()

    def one_ended(self, error: Exception | None) -> None:
        """Take note of a kernel that is there, or of the reason why it is not."""
        with _lock:
            if not isinstance(self._error, compiler.CompileError):  # which lasts, whatever else may pass
                self._error = error or self._error
            self._left -= 1
            if self._left:
                return
            _jobs.pop(self._kernels, None)
            for stand_in in self._stand_ins:
                self._tell(stand_in)
            self._stand_ins.clear()
        self._ended.set()

    def _tell(self, stand_in: StandIn) -> None:
        stand_in.error, stand_in.is_stale = self._error, not isinstance(self._error, compiler.CompileError)


def compile_later(kernels: Iterable[KernelVariant]) -> Job:
    """Begin to compile kernels. Those that are asked for last come first."""
    wanted = frozenset(kernels)
    with _lock:
        job = _jobs.get(wanted)
        if job is None:
            job = _jobs[wanted] = Job(wanted)
            _queue.extend((one, job) for one in wanted)
            _start_threads()
    return job


def _start_threads() -> None:
    """Start as many threads as there is work for; where no thread can be started, what is queued ends with an error."""
    global _threads
    try:
        while _threads < min(len(_queue), MAX_THREADS):
            threading.Thread(target=_compile, name=NAME, daemon=False).start()
            _threads += 1
    except RuntimeError as error:  # a limit of the system
        while _queue and not _threads:
            _queue.pop()[1].one_ended(error)


def _compile() -> None:
    """Compile what is asked for, on a thread of its own."""
    global _threads
    while True:
        with _lock:
            if not _queue:
                _threads -= 1
                return
            one, job = _queue.pop()
        try:
            _compile_one(one)
        except Exception as error:  # the compiler may fail, or the disk be full
            job.one_ended(error)
        else:
            job.one_ended(None)


def _compile_one(one: KernelVariant) -> None:
    if one in _failed:
        raise _failed[one]
    if _program_ends():
        raise RuntimeError("the program ends")
    try:
        compiler.cubin(one)
    except compiler.CompileError as error:
        _failed[one] = error
        with suppress(Warning):  # where warnings are errors
            warnings.warn(f"a kernel of cuConv does not compile, and calls do without it: {error}", stacklevel=1)
        raise


def _program_ends() -> bool:
    """Whether no thread is left that could use a kernel."""
    threads = threading.enumerate()
    return not any(thread.is_alive() and not thread.daemon and thread.name != NAME for thread in threads)


@contextmanager
def waiting() -> Iterator[None]:
    """Let the calls of this thread wait for the kernels of their plans, as measurements must."""
    _thread.waiting += 1
    try:
        yield
    finally:
        _thread.waiting -= 1


def waits() -> bool:
    """Whether the calls of this thread wait for the kernels of their plans."""
    return _thread.waiting > 0


def wait_for_kernels() -> None:
    """Wait until no kernel is being compiled: the next call of each kind, outside of a capture, uses the fastest one.

    So before a CUDA graph is captured, call once, wait, and call once more. Not for signal handlers, which may have
    interrupted what they would wait for.
    """
    while True:
        with _lock:
            jobs = list(_jobs.values())
        if not jobs:
            return
        for job in jobs:
            job.wait()
