"""The energy of an image: what the whole board of the GPU takes while it replays a network's forward without a pause.

NVML counts the energy of a GPU in millijoules. The counter changes only every 20 to 100 ms, so both the energy
and the forwards are counted between two of its changes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from harness.errors import UsageError
from harness.experiments.networks.contenders import Forward
from harness.experiments.networks.measure import Consumption, Machine, forwards_in

WARM_UP_S = 0.5  # replays until clock and power are steady
SECONDS = 2.5  # the least duration of a measurement
BURST_US = 5_000.0  # the least duration of the replays between two readings
STILL_S = 2.0  # a counter that does not change for so long does not count

Counter = Callable[[], int]


def counter_of(device: torch.device) -> Counter:
    """A function that reads the GPU's energy in millijoules since its driver was loaded. NVML stays open.

    Raises UsageError where the package nvidia-ml-py is missing, or the driver has no such counter for this GPU.
    """
    try:
        import pynvml
    except ImportError:
        raise UsageError("--energy takes the package nvidia-ml-py, which is missing: install it with pip") from None
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
        pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except pynvml.NVMLError as error:
        raise UsageError(f"--energy: this GPU or driver has no energy counter ({error}): use another GPU") from None
    return partial(pynvml.nvmlDeviceGetTotalEnergyConsumption, handle)


def consumption(call: Forward, machine: Machine, counter: Counter) -> Consumption:
    """The energy and time of a CUDA graph of one forward, replayed for SECONDS or longer without a pause.

    counter: returns the millijoules of the GPU so far. Raises UsageError where it stands still.
    """
    first, last = _between_ticks(call, machine, counter)
    forwards, seconds = last.forwards - first.forwards, last.seconds - first.seconds
    return Consumption(forwards, seconds, last.millijoules - first.millijoules)


@dataclass(frozen=True, slots=True)
class _Reading:
    """A reading of the counter: the host's time in seconds, the millijoules, and the forwards that had ended."""

    seconds: float
    millijoules: int
    forwards: int


def _between_ticks(call: Forward, machine: Machine, counter: Counter) -> tuple[_Reading, _Reading]:
    """The readings at two changes of the counter, at least SECONDS apart, of a GPU that is warm and never idle."""
    try:
        readings = _readings(call, machine, counter)
        start = next(readings)
        next(reading for reading in readings if reading.seconds - start.seconds >= WARM_UP_S)
        ticks = _ticks(readings)
        first = next(ticks)
        return first, next(tick for tick in ticks if tick.seconds - first.seconds >= SECONDS)
    finally:
        machine.synchronize()


def _readings(call: Forward, machine: Machine, counter: Counter) -> Iterator[_Reading]:
    """A reading after each burst of forwards, without end.

    The next burst is already enqueued, so that the GPU, which takes less power when idle, works during a slow reading.
    """
    burst = forwards_in(BURST_US, call, machine)

    def enqueue() -> Callable[[], None]:
        for _ in range(burst):
            call()
        return machine.mark()

    forwards, wait = 0, enqueue()
    while True:
        wait_for_next = enqueue()
        wait()
        forwards += burst
        yield _Reading(time.perf_counter(), counter(), forwards)
        wait = wait_for_next


def _ticks(readings: Iterator[_Reading]) -> Iterator[_Reading]:
    """The readings at which the counter had changed. Raises UsageError where it stands still for STILL_S."""
    last = next(readings)
    for reading in readings:
        if reading.millijoules != last.millijoules:
            yield reading
            last = reading
        elif reading.seconds - last.seconds > STILL_S:
            raise UsageError(f"--energy: NVML's energy counter stood still for {STILL_S:g} s of work: use another GPU")
