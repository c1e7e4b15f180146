"""Memory that other streams read goes back to its library only behind their work."""

import gc
from types import SimpleNamespace

import pytest

from cuconv.runtime import streams
from cuconv.runtime.streams import PER_THREAD, CupyLifetime, TorchLifetime


class Cupy:
    """CuPy's streams and events; `log` has what was done with them, in order."""

    def __init__(self):
        self.log = []
        self.current = self.stream(70)
        self.cuda = SimpleNamespace(get_current_stream=lambda device: self.current, Event=self.event)

    def stream(self, pointer):
        return SimpleNamespace(ptr=pointer, wait_event=lambda event: self.log.append(("wait", pointer, event.name)))

    def event(self, disable_timing):
        made = SimpleNamespace(name="", synchronize=lambda: self.log.append(("synchronize", made.name)))
        made.record = lambda stream: setattr(made, "name", f"after {stream.ptr}")
        return made

    def read(self, keeper, pointer, capture=0):
        """A call on a stream."""
        self.current = self.stream(pointer)
        if pointer not in keeper.known:
            keeper.record_use(pointer, capture)


class Array:
    """Says in the log when it is freed."""

    def __init__(self, log):
        self._log = log

    def __del__(self):
        self._log.append("freed")


@pytest.fixture
def cupy(gpus, monkeypatch):
    cupy = Cupy()
    cupy.captured, cupy.devices = set(), gpus.devices
    monkeypatch.setattr(streams, "capture_of", lambda stream: int(stream in cupy.captured))
    streams._waiting.clear()
    return cupy


def dropped(cupy, *reads):
    """The log after a keeper that was read on streams is dropped."""
    keeper = CupyLifetime(cupy, [Array(cupy.log)], 3)
    for pointer in reads:
        cupy.read(keeper, pointer)
    del keeper
    gc.collect()
    return cupy.log


def test_the_home_stream_waits_for_the_others_before_memory_is_freed(cupy):
    assert dropped(cupy, 70, 71, 72, 71) == [("wait", 70, "after 71"), ("wait", 70, "after 72"), "freed"]
    assert cupy.devices == [0, 3, 0]


def test_on_the_home_stream_alone_nothing_waits(cupy):
    assert dropped(cupy, 70, 70) == ["freed"] and cupy.devices == [0]


def test_a_captured_home_stream_waits_later(cupy):
    cupy.captured.add(70)
    assert dropped(cupy, 71) == []
    CupyLifetime(cupy, [], 3)
    assert cupy.log == [] and len(streams._waiting) == 1
    cupy.captured.clear()
    CupyLifetime(cupy, [], 3)
    assert cupy.log == [("wait", 70, "after 71"), "freed"] and not streams._waiting


def test_what_a_graph_reads_has_no_event(cupy):
    keeper = CupyLifetime(cupy, [], 3)
    cupy.read(keeper, 71, capture=5)
    assert not keeper._events


def test_the_host_waits_for_streams_of_other_threads(cupy, monkeypatch):
    cupy.current = cupy.stream(PER_THREAD)
    monkeypatch.setattr(streams, "stream_key", lambda stream: (stream, cupy.thread) if stream == PER_THREAD else stream)
    cupy.thread = 1
    keeper = CupyLifetime(cupy, [Array(cupy.log)], 3)
    cupy.read(keeper, PER_THREAD)
    cupy.thread = 2
    cupy.read(keeper, PER_THREAD)
    del keeper
    gc.collect()
    assert cupy.log == [("synchronize", "after 2"), "freed"]


def test_torch_is_told_of_each_stream():
    told = []
    fake = SimpleNamespace(cuda=SimpleNamespace(current_stream=lambda device: ("stream", device)))
    keeper = TorchLifetime(fake, [SimpleNamespace(record_stream=told.append)] * 2, 3)
    keeper.record_use(71, 5)  # in a capture
    keeper.record_use(70, 0)
    assert told == [("stream", 3)] * 2 and keeper.known == {70}
