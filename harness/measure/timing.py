"""Timing: the device time of a call, launch overhead excluded, by the same function for every contender.

On a GPU the call is captured in a CUDA graph as often as fills some hundred microseconds. Each run is one replay
between two events. All runs are enqueued behind a kernel that waits, so that the host never starves the GPU and its
clock does not fall between runs. Operands are warm in the caches, as in the paper. On a CPU a run is a loop of calls
between two readings of the monotonic clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

import torch

FILL_US = 300.0  # the least duration of a run: the event timer resolves half a microsecond
MAX_CALLS = 200  # the most in one graph: enough to fill a run with the shortest kernels
PROBE_CALLS = 8
WAIT_CYCLES = 600_000  # of the waiting kernel: about 0.3 ms, longer than the host needs to enqueue the runs
WAIT_PRODUCTS = 40  # of small matrices, which take at least as long
CPU_FILL_US = 2_000.0
LIMIT_S = 60.0  # all runs of one algorithm on one case


class TooSlow(Exception):
    """The runs of an algorithm would take longer than LIMIT_S."""


@dataclass(frozen=True, slots=True)
class Timing:
    """The device microseconds of one call in each run. again() repeats the timed work and returns its output."""

    runs_us: tuple[float, ...]
    calls_per_run: int
    mode: str
    output: torch.Tensor
    again: Callable[[], torch.Tensor]


def measure(call: Callable[[], torch.Tensor], runs: int, device: torch.device) -> Timing:
    """Time a call that ran before, so that it is compiled. Raises TooSlow, and whatever the call raises."""
    return _measure_graph(call, runs) if device.type == "cuda" else _measure_loop(call, runs)


class _CapturedCalls:
    """A call captured several times in one CUDA graph; `output` is the tensor that its last call returns."""

    def __init__(self, call: Callable[[], torch.Tensor], count: int):
        self._graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            # Relaxed: a library may allocate while it is captured. torch.cuda.graph() would also collect garbage,
            # which takes longer than the measurement.
            self._graph.capture_begin(capture_error_mode="relaxed")
            try:
                for _ in range(count):
                    self.output = call()
            finally:
                self._graph.capture_end()
        torch.cuda.current_stream().wait_stream(stream)

    def replay(self) -> torch.Tensor:
        """Enqueue all captured calls once; returns the output of the last."""
        self._graph.replay()
        return self.output

    def time_us(self, runs: int) -> list[float]:
        """The device microseconds of each of several replays, enqueued together."""
        events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(runs)]
        _keep_busy()
        for start, end in events:
            start.record()
            self._graph.replay()
            end.record()
        torch.cuda.synchronize()
        return [1000.0 * start.elapsed_time(end) for start, end in events]


def _keep_busy() -> None:
    """Enqueue about 0.3 ms of work. torch's kernel that waits is private, so products of matrices stand in for it."""
    wait = getattr(torch.cuda, "_sleep", None)
    if wait is not None:
        wait(WAIT_CYCLES)
        return
    matrix = torch.zeros(512, 512, device="cuda")
    for _ in range(WAIT_PRODUCTS):
        torch.mm(matrix, matrix)


def _measure_graph(call: Callable[[], torch.Tensor], runs: int) -> Timing:
    single_us = _time_one_us(call)
    _check_limit(single_us, runs)
    if single_us >= FILL_US:  # measured again, because an interruption may make a short call look long
        single_us = min(single_us, _time_one_us(call))

    count = 1
    if single_us < FILL_US:  # includes the host's launch overhead, so the call itself is shorter still
        probe_us = min(_CapturedCalls(call, PROBE_CALLS).time_us(2)) / PROBE_CALLS
        count = max(1, min(MAX_CALLS, ceil(FILL_US / probe_us)))
    captured = _CapturedCalls(call, count)
    captured.replay()  # warm-up
    runs_us = tuple(total / count for total in captured.time_us(runs))
    return Timing(runs_us, count, "graph", captured.output, captured.replay)


def _time_one_us(call: Callable[[], torch.Tensor]) -> float:
    """The device microseconds of one call, including the time that the GPU waits for the host."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return 1000.0 * start.elapsed_time(end)


def _measure_loop(call: Callable[[], torch.Tensor], runs: int) -> Timing:
    def run(count: int) -> float:
        begin = time.perf_counter()
        for _ in range(count):
            call()
        return 1e6 * (time.perf_counter() - begin) / count

    single_us = run(1)
    _check_limit(single_us, runs)
    count = max(1, ceil(CPU_FILL_US / single_us))
    run(count)  # warm-up
    runs_us = tuple(run(count) for _ in range(runs))
    return Timing(runs_us, count, "loop", call(), call)


def _check_limit(single_us: float, runs: int) -> None:
    seconds = 1e-6 * single_us * runs
    if seconds > LIMIT_S:
        raise TooSlow(f"one call takes {1e-6 * single_us:.1f} s: {runs} runs would exceed the limit of {LIMIT_S:.0f} s")
