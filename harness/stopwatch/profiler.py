"""The kernels that a call launches, by torch's profiler."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

WARM_UP_CALLS = 3
MARKER = "spin_kernel"  # the kernel of torch.cuda._sleep


def kernels(call: Callable[[], object], calls: int) -> list[tuple[str, float]]:
    """Each kernel and memory operation of some calls on the GPU, in order of launch: (name, device microseconds).

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
    launched = [event for event in profiler.events() if event.device_type.name == "CUDA"]
    launched.sort(key=lambda event: event.time_range.start)
    marker = max((at for at, event in enumerate(launched) if MARKER in event.name), default=len(launched))
    return [(event.name, event.time_range.elapsed_us()) for event in launched[marker + 1 :]]
