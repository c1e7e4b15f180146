"""Clocks of a GPU while it is timed: a reading of NVML's sensors for each row, and runs again that were no fair sample.

Runs are repeated where the clock was low, or where the time of one is far from the others. NVML comes with the
driver; the package nvidia-ml-py reads it. Where either is missing no sensor is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from statistics import median
from typing import Any

import torch

from harness.stopwatch.graph import During, nothing

LEAST_SHARE = 0.95  # runs below this share of the case's best SM clock are repeated
DISTURBED = 1.5  # runs of which one differs from their median by more than this factor are repeated
MOST_REPEATS = 3
LONGEST_US = 10e6  # longer runs are not repeated: a clock that stays low for so long is no accident
NO_REASON = "none"  # in the column throttle: the clock is as high as it can be
# The bits of nvmlClocksEventReasons in nvml.h.
REASONS = {
    0x1: "idle",
    0x2: "application_clocks",
    0x4: "power_cap",
    0x8: "hardware_slowdown",
    0x10: "sync_boost",
    0x20: "thermal",
    0x40: "hardware_thermal",
    0x80: "power_brake",
    0x100: "display_clock",
}


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading of a GPU's sensors: SM and memory clock in MHz, power in W, and what holds the clock down.

    throttle has the names of REASONS, joined by ";", or NO_REASON. What cannot be read is None, or "" for throttle.
    """

    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    power_w: float | None = None
    throttle: str = ""


NO_READING = Reading()


@dataclass(frozen=True, slots=True)
class Steady:
    """The microseconds of the runs that count, the sensors meanwhile, and how often runs were repeated.

    remeasured is None where the clock is not known and none were repeated.
    """

    times_us: list[float]
    reading: Reading = NO_READING
    remeasured: int | None = None


# A function that does all runs. It calls its argument once, in their midst.
Runs = Callable[[During], list[float]]
Steadily = Callable[[Runs], Steady]


def once(measure: Runs) -> Steady:
    """Do the runs once, and read no sensor."""
    return Steady(measure(nothing))


class CaseClocks:
    """The SM clocks of one case: reads the sensors of each row, and repeats runs that are no fair sample.

    read: returns the sensors of the GPU, as `sensors_of` gives it.
    """

    def __init__(self, read: Callable[[], Reading] = Reading):
        self._read = read
        self._best_mhz = 0

    def steadily(self, measure: Runs, repeats: int = MOST_REPEATS) -> Steady:
        """Do the runs, and up to `repeats` times again while their clock is low or one of them was disturbed.

        Undisturbed runs count before others, and of these the ones with the highest clock. Runs of more than LONGEST_US
        together are not repeated.
        """
        best, remeasured = self._attempt(measure), 0
        if sum(best.times_us) > LONGEST_US:
            repeats = 0
        while (self.is_low(best.reading.sm_clock_mhz) or is_disturbed(best.times_us)) and remeasured < repeats:
            again, remeasured = self._attempt(measure), remeasured + 1
            best = max(best, again, key=lambda one: (not is_disturbed(one.times_us), one.reading.sm_clock_mhz or 0))
        unknown = best.reading.sm_clock_mhz is None and not remeasured
        return Steady(best.times_us, best.reading, None if unknown else remeasured)

    def is_low(self, sm_clock_mhz: int | None) -> bool:
        """Whether a clock is below LEAST_SHARE of the best one so far; False where it is not known."""
        return sm_clock_mhz is not None and sm_clock_mhz < LEAST_SHARE * self._best_mhz

    def _attempt(self, measure: Runs) -> Steady:
        readings = [NO_READING]
        times_us = measure(lambda: readings.append(self._read()))
        self._best_mhz = max(self._best_mhz, readings[-1].sm_clock_mhz or 0)
        return Steady(times_us, readings[-1])


def is_disturbed(times_us: Sequence[float]) -> bool:
    """Whether the time of one of some runs is far from their median, as if something else had the GPU meanwhile.

    Times that are differences are too short where the work that is taken off was disturbed.
    """
    middle = median(times_us) if times_us else 0.0
    return any(not middle <= DISTURBED * time <= DISTURBED**2 * middle for time in times_us)


@cache
def sensors_of(device: torch.device) -> Callable[[], Reading]:
    """The function that reads a device's sensors; it reads nothing on a CPU, and where NVML does not answer."""
    if device.type != "cuda":
        return Reading
    try:
        import pynvml

        pynvml.nvmlInit()
        uuid = torch.cuda.get_device_properties(device).uuid
        return _Sensors(pynvml, pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}"))
    except Exception:  # no package, no driver library, or a device that NVML does not show
        return Reading


class _Sensors:
    """The sensors of one GPU. NVML stays open until the process ends."""

    def __init__(self, pynvml: Any, handle: Any):
        self._nvml = pynvml
        self._handle = handle

    def __call__(self) -> Reading:
        """The sensors now; one that the GPU lacks is left empty. The SM clock comes first: it is of the runs."""
        nvml, handle = self._nvml, self._handle
        sm = self._try(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))
        reasons = self._try(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
        memory = self._try(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM))
        return Reading(sm, memory, self._try(self._power_w), "" if reasons is None else reasons_in_words(reasons))

    def _power_w(self) -> float:
        """The power at this instant, or else NVML's older reading, an average over up to a second."""
        nvml, handle = self._nvml, self._handle
        with suppress(AttributeError, nvml.NVMLError):
            (field,) = nvml.nvmlDeviceGetFieldValues(handle, [nvml.NVML_FI_DEV_POWER_INSTANT])
            if field.nvmlReturn == nvml.NVML_SUCCESS:
                return field.value.uiVal / 1000
        return nvml.nvmlDeviceGetPowerUsage(handle) / 1000

    def _try(self, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except self._nvml.NVMLError:
            return None


def reasons_in_words(reasons: int) -> str:
    """The names of a bit mask of throttle reasons, joined by ";"; bits without a name are shown as a number."""
    names = [name for bit, name in REASONS.items() if reasons & bit]
    unknown = reasons & ~sum(REASONS)
    return ";".join([*names, *([hex(unknown)] if unknown else [])]) or NO_REASON
