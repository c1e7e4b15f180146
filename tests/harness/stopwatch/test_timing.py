"""Hot times on a made-up GPU: how many calls a graph holds, and what a row learns of its runs."""

import time
from types import SimpleNamespace

import pytest
import torch

from harness.stopwatch import timing
from harness.stopwatch.clocks import CaseClocks, Reading
from harness.stopwatch.timing import TooSlow, measure

GPU = torch.device("cuda", 0)


@pytest.fixture
def gpu(monkeypatch):
    """Let a call take a number of microseconds, alone and in a graph; returns the number of calls of each graph."""
    counts = []

    def of(alone_us, in_graph_us):
        def captured(call, count):
            counts.append(count)
            return SimpleNamespace(count=count, output="output", replay=lambda: "again")

        def replay_times_us(graphs, runs, during=lambda: None, ahead=None):
            during()
            of.aheads.append(ahead)
            return [[graph.count * in_graph_us] * runs for graph in graphs]

        monkeypatch.setattr(timing, "_time_one_us", lambda call: alone_us)
        monkeypatch.setattr(timing, "CapturedCalls", captured)
        monkeypatch.setattr(timing, "replay_times_us", replay_times_us)
        return counts

    of.aheads = []
    return of


@pytest.mark.parametrize(
    ("alone_us", "in_graph_us", "counts"),
    [
        (20.0, 3.0, [8, 100]),  # 300 us are 100 calls
        (20.0, 7.0, [8, 43]),  # 300 / 7 = 42.9
        (20.0, 1.0, [8, 200]),  # at most
        (299.0, 299.0, [8, 2]),
        (300.0, 300.0, [1, 1]),
        (900.0, 7.0, [1, 8, 43]),  # the host is slow to launch it
    ],
)
def test_a_graph_holds_as_many_calls_as_fill_a_run(gpu, alone_us, in_graph_us, counts):
    captured = gpu(alone_us, in_graph_us)
    timed = measure(lambda: None, 9, GPU)
    assert captured == counts and timed.calls_per_run == counts[-1]
    assert timed.runs_us == pytest.approx([in_graph_us] * 9)
    assert (timed.mode, timed.output, timed.again()) == ("graph", "output", "again")


def test_a_row_learns_the_clock_of_its_runs_and_how_often_they_were_repeated(gpu):
    gpu(400.0, 400.0)
    clocks = iter([2000, 1500, 1960])
    case = CaseClocks(lambda: Reading(sm_clock_mhz=next(clocks)))
    first, second = (measure(lambda: None, 1, GPU, case.steadily) for _ in range(2))
    assert (first.reading.sm_clock_mhz, first.remeasured) == (2000, 0)
    assert (second.reading.sm_clock_mhz, second.remeasured) == (1960, 1)
    without = measure(lambda: None, 1, GPU)
    assert (without.reading, without.remeasured) == (Reading(), None)


def test_runs_beyond_the_limit_are_refused(gpu):
    gpu(7e6, 7e6)
    with pytest.raises(TooSlow, match=r"7\.0 s"):
        measure(lambda: None, 9, GPU)


def test_a_load_comes_right_before_the_runs_and_is_of_their_graph(gpu, monkeypatch):
    counts, loads = gpu(20.0, 3.0), []
    monkeypatch.setattr(timing, "load", lambda captured, seconds, longer: loads.append((captured.count, seconds)))
    measure(lambda: None, 9, GPU, load_s=2.0)
    *probes, runs = gpu.aheads
    assert probes == [None] and counts == [8, 100]
    runs(1)
    assert loads == [(100, 2.0)]


def test_on_a_cpu_a_load_repeats_the_call():
    calls = []

    def call():
        calls.append(time.sleep(0.001))

    measure(call, 2, torch.device("cpu"))
    few, began = len(calls), time.perf_counter()
    measure(call, 2, torch.device("cpu"), load_s=0.05)
    assert len(calls) > 2 * few and time.perf_counter() - began > 0.05
