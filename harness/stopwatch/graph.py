"""Calls captured in a CUDA graph, and the device time of its replays.

All replays are enqueued behind a kernel that waits, or behind a load of the same calls, so that the GPU does not wait
for the host and its clock does not fall. Where the GPU waited nevertheless, the times are thrown away, and taken again
behind a longer kernel or load.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

WAIT_CYCLES = 600_000  # the waiting kernel takes about 0.3 ms, longer than an idle host needs to enqueue the runs
WAIT_PRODUCTS = 40  # products of small matrices, which take at least as long
LONGER = (1, 4, 16, 64)  # length of the waiting kernel in each attempt, in multiples of WAIT_CYCLES
LOAD_REPLAYS = 16  # the runs are enqueued behind a load's last ones, most of which take 0.3 ms or more

During = Callable[[], None]
Ahead = Callable[[int], None]


def nothing() -> None:
    """Do nothing while the GPU works."""


class CapturedCalls:
    """A call captured several times in one CUDA graph; `output` is what its last call returns."""

    def __init__(self, call: Callable[[], Any], count: int, stream: torch.cuda.Stream | None = None):
        """stream: the one to capture; None for a new one."""
        self._graph = torch.cuda.CUDAGraph()
        stream = stream or torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            # Relaxed: a library may allocate while it is captured. torch.cuda.graph() is not used, since it would also
            # collect garbage: that takes longer than the measurement.
            self._graph.capture_begin(capture_error_mode="relaxed")
            try:
                for _ in range(count):
                    self.output = call()
            finally:
                self._graph.capture_end()
        torch.cuda.current_stream().wait_stream(stream)

    def replay(self) -> Any:
        """Enqueue all captured calls once; returns the output of the last."""
        self._graph.replay()
        return self.output


class HostTooSlow(RuntimeError):
    """The GPU waited for the host in every attempt, so the host's time would be taken for the GPU's."""


def replay_times_us(
    graphs: Sequence[CapturedCalls], runs: int, during: During = nothing, ahead: Ahead | None = None
) -> list[list[float]]:
    """The device microseconds of several replays of each graph, which take turns. Raises HostTooSlow.

    during: is called on the host once, when half of the replays have ended; the others are enqueued by then. ahead:
    enqueues the work that keeps the GPU busy meanwhile, the longer the larger its argument, one of LONGER; by default
    the waiting kernel.
    """
    replays = [graph for _ in range(runs) for graph in graphs]
    for longer in LONGER:
        events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in replays]
        (ahead or _keep_busy)(longer)
        if _enqueue_in_time(replays, events):
            break
        torch.cuda.synchronize()
    else:
        raise HostTooSlow("the GPU waited for the host while it was timed: end the other programs of this machine")
    events[len(events) // 2][0].synchronize()
    during()
    torch.cuda.synchronize()
    times_us = [1000.0 * start.elapsed_time(end) for start, end in events]
    return [times_us[i :: len(graphs)] for i in range(len(graphs))]


def _enqueue_in_time(
    replays: Sequence[CapturedCalls], events: Sequence[tuple[torch.cuda.Event, torch.cuda.Event]]
) -> bool:
    """Enqueue each replay between its two events; False as soon as the GPU comes to one before it is enqueued."""
    for graph, (start, end) in zip(replays, events, strict=True):
        start.record()
        graph.replay()
        if start.query():
            return False
        end.record()
    return True


def load(captured: CapturedCalls, seconds: float, longer: int) -> None:
    """Replay a graph for some seconds; returns while the GPU is at the last `longer` times LOAD_REPLAYS replays."""
    end, before = time.monotonic() + seconds, None
    while time.monotonic() < end:
        for _ in range(longer * LOAD_REPLAYS):
            captured.replay()
        event = torch.cuda.Event()
        event.record()
        if before is not None:
            before.synchronize()
        before = event


def _keep_busy(longer: int) -> None:
    """Enqueue `longer` times 0.3 ms of work.

    torch's kernel that waits is private, so products of matrices stand in for it where it is missing.
    """
    wait = getattr(torch.cuda, "_sleep", None)
    if wait is not None:
        wait(longer * WAIT_CYCLES)
        return
    matrix = torch.zeros(512, 512, device="cuda")
    for _ in range(longer * WAIT_PRODUCTS):
        torch.mm(matrix, matrix)
