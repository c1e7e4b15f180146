"""Times of a call with other work between two calls: `separated` by a small kernel, and `cold`, with L2 flushed.

Two CUDA graphs are replayed in turns: one has the other work before each call, the other has that work alone, as often.
The difference of the two, divided by the number of calls, is the time of a call. It includes the launch gap that a call
adds: a captured network with a kernel of another library between two layers would be so much slower by each layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import torch

from harness.stopwatch.clocks import Steadily, once
from harness.stopwatch.graph import CapturedCalls, During, replay_times_us
from harness.stopwatch.timing import Timing
from harness.store.times import COLD, SEPARATED

L2_SIZES = 2  # the flush reads this multiple of L2's bytes
MAX_CALLS = {SEPARATED: 200, COLD: 32}  # in one graph; a flush takes longer than most calls
_FLOAT_BYTES = 4


class Separator:
    """A kernel on one number, then a copy of that number.

    The copy is no kernel. A programmatic edge of a CUDA graph goes from kernel to kernel, so no call can start before
    the work ahead of it has ended.
    """

    def __init__(self, device: torch.device):
        self._number = torch.zeros(1, device=device)
        self._copy = torch.zeros_like(self._number)

    def __call__(self) -> None:
        """Enqueue both."""
        self._number.add_(1)
        self._copy.copy_(self._number)


class Flush:
    """A sum over L2_SIZES times the bytes of L2, then a Separator: L2 then holds nothing that a call has used.

    It reads and writes nothing, so that the next call finds no changed lines to write back. Two buffers take turns, so
    that a flush finds nothing of the one before.
    """

    def __init__(self, device: torch.device, l2_bytes: int):
        numbers = L2_SIZES * l2_bytes // _FLOAT_BYTES
        self._buffers = [torch.zeros(numbers, device=device) for _ in range(2)]
        self._sum = torch.zeros((), device=device)
        self._separator = Separator(device)

    def __call__(self) -> None:
        """Enqueue the sum and the separator."""
        self._buffers.reverse()
        torch.sum(self._buffers[0], dim=0, out=self._sum)
        self._separator()


@cache
def work(time: str, device: torch.device) -> Callable[[], None]:
    """The function that enqueues the work between two calls, for a time: SEPARATED or COLD.

    Its buffers are made once for each GPU.
    """
    between: Callable[[], None] = Separator(device)
    if time == COLD:
        between = Flush(device, torch.cuda.get_device_properties(device).L2_cache_size)
    between()  # outside a graph, because the first call may load the kernel
    return between


def measure(
    call: Callable[[], torch.Tensor], between: Callable[[], None], count: int, runs: int, steadily: Steadily = once
) -> Timing:
    """Time a call that ran before, `count` times in each of the two graphs, with other work before each call.

    between: enqueues that work. steadily: takes the function that does all runs, and may repeat it.
    """

    def both() -> torch.Tensor:
        between()
        return call()

    together, alone = CapturedCalls(both, count), CapturedCalls(between, count)
    for captured in (together, alone):
        captured.replay()  # warm-up

    def all_runs(during: During) -> list[float]:
        return differences(*replay_times_us([together, alone], runs, during))

    steady = steadily(all_runs)
    runs_us = tuple(total / count for total in steady.times_us)
    return Timing(runs_us, count, "graph", together.output, together.replay, steady.reading, steady.remeasured)


def differences(together_us: Sequence[float], alone_us: Sequence[float]) -> list[float]:
    """The microseconds of the calls in each run: those of both, less those of the other work alone."""
    return [together - alone for together, alone in zip(together_us, alone_us, strict=True)]
