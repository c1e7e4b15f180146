"""The kernels that a call launches, by torch's profiler."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

WARM_UP_CALLS = 3
MARKER = "spin_kernel"  # the kernel of torch.cuda._sleep


def kernels(call: Callable[[], object], calls: int) -> list[tuple[str, float]]:
    """Each kernel and memory operation of some calls on the GPU, in order of their starts: (name, microseconds).

    A moment counts once: one that ends at time t counts from the latest end so far, or from its own start if that is
    later. So the wait of a kernel that was launched before the one ahead had ended counts for the one ahead.

    The profiler loses the first launches after it starts, and more of them after its first start in a process. So one
    record is thrown away, and in the next one warm-up calls and a marker come before the calls that count. The result
    is empty where the profiler may not see the GPU.
    """
    _record(call, 0)
    return _record(call, calls)


def _record(call: Callable[[], object], calls: int) -> list[tuple[str, float]]:
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(WARM_UP_CALLS):
            call()
        torch.cuda.synchronize()
        torch.cuda._sleep(1)
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
    ranges = [(event.time_range, event.name) for event in profiler.events() if event.device_type.name == "CUDA"]
    ranges.sort(key=lambda one: one[0].start)
    marker = max((at for at, (_, name) in enumerate(ranges) if MARKER in name), default=len(ranges))
    found: list[tuple[str, float]] = []
    latest = 0.0
    for time_range, name in ranges[marker + 1 :]:
        found.append((name, max(0.0, time_range.end - max(time_range.start, latest))))
        latest = max(latest, time_range.end)
    return found
