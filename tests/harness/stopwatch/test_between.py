"""Times with other work between two calls, on a made-up GPU whose replays take as long as the captured work says."""

import pytest
import torch

from harness.stopwatch import between
from harness.stopwatch.between import Flush, Separator, differences, measure
from harness.stopwatch.clocks import CaseClocks, Reading

CPU = torch.device("cpu")
US = {"other": 40.0, "call": 3.0}  # of a piece of work


@pytest.fixture
def done(monkeypatch):
    """A list that pieces of work append their names to; a replay takes the time of those that its graph has."""
    log = []

    class Graph:
        def __init__(self, call, count):
            start = len(log)
            for _ in range(count):
                self.output = call()
            self.work = log[start:]

        def replay(self):
            log.extend(self.work)
            return self.output

    def replay_times_us(graphs, runs, during):
        during()
        return [[sum(US[name] for name in graph.work)] * runs for graph in graphs]

    monkeypatch.setattr(between, "CapturedCalls", Graph)
    monkeypatch.setattr(between, "replay_times_us", replay_times_us)
    return log


def test_other_work_stands_before_each_call_and_its_time_is_taken_off(done):
    output = torch.zeros(1)
    timed = measure(lambda: done.append("call") or output, lambda: done.append("other"), count=2, runs=3)
    assert timed.runs_us == (3.0, 3.0, 3.0) and timed.calls_per_run == 2 and timed.output is output
    done.clear()
    assert timed.again() is output
    assert done == ["other", "call", "other", "call"]


def test_runs_at_a_low_clock_are_repeated(done):
    clocks = iter([2000, 1000, 2000])
    case = CaseClocks(lambda: Reading(sm_clock_mhz=next(clocks)))
    case.steadily(lambda during: during() or [1.0])
    timed = measure(lambda: done.append("call"), lambda: done.append("other"), 1, 1, case.steadily)
    assert (timed.remeasured, timed.reading.sm_clock_mhz, timed.runs_us) == (1, 2000, (3.0,))


def test_a_run_is_compared_with_the_other_work_of_the_same_turn():
    assert differences([43.0, 50.0], [40.0, 45.0]) == [3.0, 5.0]


def test_a_flush_reads_twice_the_cache_and_takes_turns():
    flush = Flush(CPU, l2_bytes=64)
    assert [buffer.nbytes for buffer in flush._buffers] == [128, 128]
    flush._buffers[0].fill_(1.0)
    sums = []
    for _ in range(4):
        flush()
        sums.append(float(flush._sum))
    assert sums == [0.0, 32.0, 0.0, 32.0]


def test_a_separator_works_on_two_numbers_alone():
    separator = Separator(CPU)
    for _ in range(3):
        separator()
    assert separator._copy.tolist() == [3.0]
