"""Clocks: which runs are repeated, which of them count, and what is read from NVML, by a made-up one."""

import sys
from types import SimpleNamespace

import pytest
import torch

from harness.stopwatch.clocks import CaseClocks, Reading, _Sensors, once, reasons_in_words, sensors_of


def clocks_of(*sm_clocks_mhz):
    """The clocks of a case whose sensors show these one after another."""
    readings = iter(sm_clocks_mhz)
    return CaseClocks(lambda: Reading(sm_clock_mhz=next(readings)))


def numbered_runs():
    """Runs that take 1 us the first time that they are done, 2 us the second time, and so on."""
    attempts = []

    def runs(during):
        attempts.append(len(attempts) + 1.0)
        during()
        return [attempts[-1]]

    return runs


@pytest.mark.parametrize(
    ("sm_clocks_mhz", "counts", "remeasured"),
    [
        ([1900], 1, 0),  # 95% of 2000
        ([1899, 1950], 2, 1),
        ([1899, 1500, 2000], 3, 2),
        ([1500, 1700, 1600, 1400], 2, 3),  # the fourth and last; the highest clock counts
        ([1600, 1600, 1600, 1600], 1, 3),
        ([2200], 1, 0),
    ],
)
def test_runs_below_95_percent_of_the_best_clock_are_repeated_three_times(sm_clocks_mhz, counts, remeasured):
    clocks = clocks_of(2000, *sm_clocks_mhz)
    clocks.steadily(numbered_runs())
    steady = clocks.steadily(numbered_runs())
    assert (steady.times_us, steady.remeasured) == ([counts], remeasured)
    assert steady.reading.sm_clock_mhz == sm_clocks_mhz[counts - 1]


QUIET, DISTURBED, WORSE, NEGATIVE = [7.0, 10.0, 14.9], [10.0, 10.2, 15.4], [10.0, 10.0, 46.0], [-3.0, 10.0, 10.2]


@pytest.mark.parametrize(
    ("attempts", "sm_clocks_mhz", "counts", "remeasured"),
    [
        ([QUIET], [2000], 0, 0),
        ([DISTURBED, QUIET], [2000, 1990], 1, 1),
        ([NEGATIVE, QUIET], [2000, 1990], 1, 1),
        ([DISTURBED, WORSE, QUIET], [2000, 2000, 1500], 2, 3),  # quiet at last, but then the clock is low
        ([WORSE, DISTURBED, DISTURBED], [1950, 1960, 2000], 2, 3),
    ],
)
def test_runs_with_one_far_from_the_others_are_repeated_three_times(attempts, sm_clocks_mhz, counts, remeasured):
    clocks = clocks_of(2000, *sm_clocks_mhz, *[1500] * 3)
    clocks.steadily(numbered_runs())
    left = iter([*attempts, *[WORSE] * 3])
    steady = clocks.steadily(lambda during: during() or next(left))
    assert (steady.times_us, steady.remeasured) == (attempts[counts], remeasured)


def test_as_many_repeats_as_are_left_and_none_of_long_runs():
    clocks = clocks_of(2000, 1000, 1000, 1000)
    clocks.steadily(numbered_runs())
    assert clocks.steadily(numbered_runs(), repeats=1).remeasured == 1
    steady = clocks.steadily(lambda during: during() or [6e6, 5e6])
    assert (steady.times_us, steady.remeasured) == ([6e6, 5e6], 0)


def test_the_best_clock_of_a_repeat_is_that_of_the_case():
    clocks = clocks_of(1000, 2000)
    assert not clocks.is_low(1000)
    for _ in range(2):
        clocks.steadily(numbered_runs())
    assert clocks.is_low(1899) and not clocks.is_low(1900) and not clocks.is_low(None)


def test_without_a_clock_nothing_is_repeated():
    steady = CaseClocks().steadily(numbered_runs())
    assert (steady.times_us, steady.reading, steady.remeasured) == ([1.0], Reading(), None)
    assert once(numbered_runs()) == steady


GPU = torch.device("cuda", 1)


def test_without_the_package_and_on_a_cpu_nothing_is_read(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)  # an import of it fails
    for device in (GPU, torch.device("cpu")):
        assert sensors_of.__wrapped__(device)() == Reading()


def test_the_gpu_is_found_by_its_uuid(monkeypatch):
    properties = {GPU: SimpleNamespace(uuid="4f1c")}
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties.get)
    by_uuid = {"GPU-4f1c": "handle"}
    nvml = made_up_nvml(nvmlInit=lambda: None, nvmlDeviceGetHandleByUUID=by_uuid.__getitem__)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    assert sensors_of.__wrapped__(GPU)() == Reading(1980, 3201, 650.0, "power_cap")
    by_uuid.clear()  # as where NVML does not show the device
    assert sensors_of.__wrapped__(GPU)() == Reading()


def test_throttle_reasons_have_names():
    names = {0: "none", 0x4: "power_cap", 0x4 | 0x20: "power_cap;thermal", 0x1000 | 0x1: "idle;0x1000"}
    assert {reasons: reasons_in_words(reasons) for reasons in names} == names


class NvmlError(Exception):
    pass


def not_supported(*arguments):
    raise NvmlError("Not Supported")


def made_up_nvml(**changes):
    """An NVML whose GPU runs at 1980 and 3201 MHz, at 650 W now and 500 W on average, under its power cap."""
    now = SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=650_000))
    shown = {
        "NVMLError": NvmlError, "NVML_SUCCESS": 0, "NVML_FI_DEV_POWER_INSTANT": 186,
        "NVML_CLOCK_SM": 1980, "NVML_CLOCK_MEM": 3201, "nvmlDeviceGetClockInfo": lambda handle, which: which,
        "nvmlDeviceGetCurrentClocksThrottleReasons": lambda handle: 0x4,
        "nvmlDeviceGetFieldValues": lambda handle, fields: [now],
        "nvmlDeviceGetPowerUsage": lambda handle: 500_000,
    }  # fmt: skip
    return SimpleNamespace(**(shown | changes))


@pytest.mark.parametrize(
    ("changes", "reading"),
    [
        ({}, Reading(1980, 3201, 650.0, "power_cap")),
        ({"nvmlDeviceGetFieldValues": not_supported}, Reading(1980, 3201, 500.0, "power_cap")),
        (
            {"nvmlDeviceGetFieldValues": lambda handle, fields: [SimpleNamespace(nvmlReturn=3)]},
            Reading(1980, 3201, 500.0, "power_cap"),
        ),
        ({"nvmlDeviceGetCurrentClocksThrottleReasons": not_supported}, Reading(1980, 3201, 650.0, "")),
        ({"nvmlDeviceGetClockInfo": not_supported}, Reading(None, None, 650.0, "power_cap")),
    ],
    ids=["all", "no power now", "power now failed", "no reasons", "no clocks"],
)
def test_what_a_gpu_does_not_show_is_empty(changes, reading):
    assert _Sensors(made_up_nvml(**changes), "handle")() == reading
