"""Timing: the device time of a call, launch overhead excluded, by the same function for every contender.

On a GPU the call is captured in a CUDA graph as often as fills some hundred microseconds. Each run is one replay
between two events. Operands are warm in the caches, as in the paper; between.py has the times with other
work between two calls. On a CPU a run is a loop of calls between two readings of the monotonic clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import ceil

import torch

from harness.stopwatch.clocks import NO_READING, Reading, Steadily, once
from harness.stopwatch.graph import CapturedCalls, load, replay_times_us

FILL_US = 300.0  # the least duration of a run: the event timer resolves half a microsecond
MAX_CALLS = 200  # the most in one graph: enough to fill a run with the shortest kernels
PROBE_CALLS = 8
CPU_FILL_US = 2_000.0
LIMIT_S = 10.0  # all runs of one algorithm on one case


class TooSlow(Exception):
    """The runs of an algorithm would take longer than LIMIT_S."""


@dataclass(frozen=True, slots=True)
class Timing:
    """The device microseconds of one call in each run. again() repeats the timed work and returns its output.

    reading has the GPU's sensors during the runs, remeasured how often the runs were repeated, None where the clock is
    not known.
    """

    runs_us: tuple[float, ...]
    calls_per_run: int
    mode: str
    output: torch.Tensor
    again: Callable[[], torch.Tensor]
    reading: Reading = NO_READING
    remeasured: int | None = None


def measure(
    call: Callable[[], torch.Tensor], runs: int, device: torch.device, steadily: Steadily = once, load_s: float = 0.0
) -> Timing:
    """Time a call that ran before, so that it is compiled. Raises TooSlow, HostTooSlow, and what the call raises.

    steadily: takes the function that does all runs, and may repeat it, as `clocks.CaseClocks.steadily` does. load_s:
    seconds of the same calls right before the runs, without a pause between.
    """
    if device.type == "cuda":
        return _measure_graph(call, runs, steadily, load_s)
    return _measure_loop(call, runs, load_s)


def _measure_graph(call: Callable[[], torch.Tensor], runs: int, steadily: Steadily, load_s: float) -> Timing:
    single_us = _time_one_us(call)
    _check_limit(single_us, runs)
    if single_us >= FILL_US:  # a host that is slow to launch makes a short call look long
        single_us = _in_graph_us(call, 1, replays=1)
    count = 1
    if single_us < FILL_US:  # includes the start of a graph or the host's launch, so the call itself is shorter still
        count = max(1, min(MAX_CALLS, ceil(FILL_US / _in_graph_us(call, PROBE_CALLS, replays=2))))
    captured = CapturedCalls(call, count)
    captured.replay()  # warm-up
    ahead = partial(load, captured, load_s) if load_s else None
    steady = steadily(lambda during: replay_times_us([captured], runs, during, ahead)[0])
    runs_us = tuple(total / count for total in steady.times_us)
    return Timing(runs_us, count, "graph", captured.output, captured.replay, steady.reading, steady.remeasured)


def _time_one_us(call: Callable[[], torch.Tensor]) -> float:
    """The device microseconds of one call, including the time that the GPU waits for the host."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return 1000.0 * start.elapsed_time(end)


def _in_graph_us(call: Callable[[], torch.Tensor], count: int, replays: int) -> float:
    """The device microseconds of one of `count` calls in a graph, in the shortest of some replays."""
    (times_us,) = replay_times_us([CapturedCalls(call, count)], replays)
    return min(times_us) / count


def _measure_loop(call: Callable[[], torch.Tensor], runs: int, load_s: float) -> Timing:
    def run(count: int) -> float:
        begin = time.perf_counter()
        for _ in range(count):
            call()
        return 1e6 * (time.perf_counter() - begin) / count

    single_us = run(1)
    _check_limit(single_us, runs)
    count = max(1, ceil(CPU_FILL_US / single_us))
    begin = time.perf_counter()
    run(count)  # warm-up
    while time.perf_counter() - begin < load_s:
        run(count)
    runs_us = tuple(run(count) for _ in range(runs))
    return Timing(runs_us, count, "loop", call(), call)


def _check_limit(single_us: float, runs: int) -> None:
    seconds = 1e-6 * single_us * runs
    if seconds > LIMIT_S:
        raise TooSlow(f"one call takes {1e-6 * single_us:.1f} s: {runs} runs would exceed the limit of {LIMIT_S:.0f} s")
