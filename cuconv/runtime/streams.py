"""Streams: a key for each, and the lifetime of constant arrays that several streams read.

The memory of such an array goes back to its library only after all of them have read it.

torch and CuPy give memory that is freed to the next allocation on the stream where it was allocated, and do not know
which other streams still read it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Hashable
from contextlib import suppress
from itertools import count
from typing import Any, NamedTuple

from cuconv.runtime.driver import capture_of, made_current

PER_THREAD = 2  # CU_STREAM_PER_THREAD, the one handle of the default streams of all threads


class _Thread(threading.local):
    """A number of the thread that no other thread has, unlike `threading.get_ident()`, also after it has ended."""

    def __init__(self) -> None:
        self.number = next(_numbers)


_numbers = count()
_thread = _Thread()


def stream_key(stream: int) -> Hashable:
    """A key that each stream has alone: its pointer, with the thread for a thread's default stream."""
    return (stream, _thread.number) if stream == PER_THREAD else stream


class TorchLifetime:
    """Tensors that torch's allocator keeps until every stream that has read them is done, by `record_stream`.

    `known` has the streams of which torch knows: a call on any other must be followed by `record_use`.
    """

    def __init__(self, torch: Any, arrays: list[Any], device: int):
        self._torch, self._arrays, self._device = torch, arrays, device
        self.known: set[int] = set()

    def record_use(self, stream: int, capture: int) -> None:
        """Note that the current stream, given by its pointer, reads the arrays in what has been launched."""
        if capture:  # a graph must not outlive what it reads, and torch forgets streams that it learns of in a capture
            return
        current = self._torch.cuda.current_stream(self._device)
        for array in self._arrays:
            array.record_stream(current)
        self.known.add(stream)


class CupyLifetime:
    """Arrays of CuPy, whose memory is given back behind an event of each other stream that has read them.

    `known` has the stream on which they were allocated, unless it is a thread's default stream. A call on a stream that
    it lacks must be followed by `record_use`.
    """

    def __init__(self, cupy: Any, arrays: list[Any], device: int):
        """The current stream is the one on which the arrays were allocated."""
        self._cuda, self._device = cupy.cuda, device
        home = cupy.cuda.get_current_stream(device)
        self.known: set[int] = set() if home.ptr == PER_THREAD else {home.ptr}
        self._events: dict[Hashable, Any] = {}
        held = _Held(device, arrays, home, stream_key(home.ptr), self._events)
        giving_back = weakref.finalize(self, _give_back, held)
        giving_back.atexit = False
        _give_back_later()

    def record_use(self, stream: int, capture: int) -> None:
        """Note that the current stream, given by its pointer, reads the arrays in what has been launched."""
        if capture:  # a graph must not outlive what it reads
            return
        key = stream_key(stream)
        event = self._events.get(key)
        if event is None:
            event = self._events.setdefault(key, self._cuda.Event(disable_timing=True))
        event.record(self._cuda.get_current_stream(self._device))


class _Held(NamedTuple):
    """Arrays that are given back, the stream on which they were allocated, and events of the others."""

    device: int
    arrays: list[Any]
    home: Any
    home_key: Hashable
    events: dict[Hashable, Any]


_waiting: list[_Held] = []  # to be given back when the stream on which they were allocated is not captured


def _give_back(held: _Held) -> None:
    """Let the home stream, on which memory is allocated again, wait for all events before the arrays are dropped."""
    events = [event for key, event in held.events.items() if key != held.home_key]
    if not events:
        return
    with made_current(held.device):
        if stream_key(held.home.ptr) != held.home_key:  # the default stream of another thread: the host waits instead
            for event in events:
                event.synchronize()
        elif capture_of(held.home.ptr):  # an event from outside would break the capture
            _waiting.append(held)
        else:
            for event in events:
                held.home.wait_event(event)


def _give_back_later() -> None:
    """Give back what could not be when it was dropped."""
    for _ in range(len(_waiting)):
        with suppress(IndexError):  # another thread was first
            _give_back(_waiting.pop(0))
