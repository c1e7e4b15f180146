"""Replays of graphs on a made-up GPU, whose clock moves by the duration of each replay."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch

from harness.stopwatch import graph
from harness.stopwatch.graph import LOAD_REPLAYS, load, replay_times_us


class MadeUpGpu:
    """What torch.cuda does here: events have the time at which they were recorded, in milliseconds."""

    def __init__(self):
        self.now_ms = 0.0
        self.log, self.waits = [], []
        self.starved = 0  # attempts in which it comes to a replay before the host has enqueued it

    def graph(self, name, ms):
        def replay():
            self.log.append(name)
            self.now_ms += ms

        return SimpleNamespace(replay=replay)

    def event(self, enable_timing=False):
        event = SimpleNamespace(at_ms=None)
        event.record = lambda: setattr(event, "at_ms", self.now_ms)
        event.query = lambda: self.log.count("busy") <= self.starved
        event.elapsed_time = lambda end: end.at_ms - event.at_ms
        event.synchronize = lambda: self.log.append(f"wait for {event.at_ms} ms")
        return event


@pytest.fixture
def gpu(monkeypatch):
    gpu = MadeUpGpu()
    monkeypatch.setattr(torch.cuda, "Event", gpu.event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: gpu.log.append("synchronize"))
    monkeypatch.setattr(graph, "_keep_busy", lambda longer: gpu.waits.append(longer) or gpu.log.append("busy"))
    return gpu


def test_graphs_take_turns_and_each_replay_has_its_time(gpu):
    slow, quick = gpu.graph("slow", 2.0), gpu.graph("quick", 0.5)
    assert replay_times_us([slow, quick], 3) == [[2000.0] * 3, [500.0] * 3]
    assert gpu.log == ["busy", *["slow", "quick"] * 3, "wait for 4.5 ms", "synchronize"]


def test_sensors_are_read_when_half_of_the_replays_have_ended_and_all_are_enqueued(gpu):
    replay_times_us([gpu.graph("run", 1.0)], 9, lambda: gpu.log.append("read"))
    assert gpu.log == ["busy", *["run"] * 9, "wait for 4.0 ms", "read", "synchronize"]


def test_replays_that_waited_for_the_host_are_repeated_behind_longer_waits(gpu):
    gpu.starved = 2
    assert replay_times_us([gpu.graph("run", 1.0)], 3, lambda: gpu.log.append("read")) == [[1000.0] * 3]
    assert gpu.log.count("read") == 1 and gpu.log[-6:-3] == ["run"] * 3
    assert len(gpu.waits) == 3 and gpu.waits == sorted(set(gpu.waits))


def test_a_host_that_is_always_too_slow_gives_no_times(gpu):
    gpu.starved = 100
    with pytest.raises(graph.HostTooSlow):
        replay_times_us([gpu.graph("run", 1.0)], 3)


def test_a_load_lasts_some_seconds_and_the_runs_are_enqueued_while_its_end_is_computed(gpu, monkeypatch):
    monkeypatch.setattr(graph, "time", SimpleNamespace(monotonic=lambda: gpu.now_ms / 1e3))
    run, ms = gpu.graph("run", 1.0), 3.5 * LOAD_REPLAYS
    assert replay_times_us([run], 9, ahead=partial(counted_load, gpu, run, 1e-3 * ms)) == [[1000.0] * 9]
    before = gpu.log[: gpu.log.index("busy")]
    assert before.count("run") == 4 * LOAD_REPLAYS
    waits = [entry for entry in before if entry != "run"]
    assert waits == [f"wait for {number * LOAD_REPLAYS}.0 ms" for number in (1, 2, 3)], "not for the last replays"


def test_a_load_that_the_host_was_too_slow_for_is_repeated_with_more_in_the_queue(gpu, monkeypatch):
    monkeypatch.setattr(graph, "time", SimpleNamespace(monotonic=lambda: gpu.now_ms / 1e3))
    gpu.starved = 1
    run = gpu.graph("run", 1.0)
    replay_times_us([run], 9, ahead=partial(counted_load, gpu, run, 1e-6))
    first, second = (place for place, entry in enumerate(gpu.log) if entry == "busy")
    assert first == LOAD_REPLAYS and gpu.log[first + 1 : second].count("run") == 1 + 4 * LOAD_REPLAYS


def counted_load(gpu, captured, seconds, longer):
    """A load, after which the made-up GPU is busy."""
    load(captured, seconds, longer)
    gpu.log.append("busy")
