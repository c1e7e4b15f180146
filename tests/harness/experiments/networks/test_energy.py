"""The energy of an image, on a CPU whose clock, queue of work and energy counter are made up."""

import math
import sys
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

from harness.errors import UsageError
from harness.experiments.networks import energy, measure
from harness.experiments.networks.energy import consumption, counter_of
from harness.experiments.networks.measure import Consumption
from harness.experiments.networks.rows import NetworkEnergy
from tests.harness.experiments.networks.toy_networks import Cpu, network, plain, settings

READING_S = 0.002


class Board(Cpu):
    """A GPU that works off a queue, takes WATTS while it works and 100 W while it waits; its counter ticks coarsely.

    forward_s: the duration of a forward. tick_s: the counter shows the energy up to the last multiple of it.
    """

    WATTS, IDLE_WATTS = 500.0, 100.0

    def __init__(self, forward_s=0.001, tick_s=0.1):
        super().__init__()
        self.forward_s, self.tick_s = forward_s, tick_s
        self.now = self.free_at = self.idle_s = 0.0
        self.shown = self.shown_at = 0.0

    def enqueue(self):
        self.idle_s += max(0.0, self.now - self.free_at)
        self.free_at = max(self.now, self.free_at) + self.forward_s

    def synchronize(self):
        self.now = max(self.now, self.free_at)

    def mark(self):
        until = self.free_at

        def wait():
            self.now = max(self.now, until)

        return wait

    def counter(self):
        """The millijoules up to the last tick. A reading takes a while, in which a GPU without work is idle."""
        self.now += READING_S
        tick = math.floor(self.now / self.tick_s)
        if tick > self.shown_at:
            idle_s = self.idle_s + max(0.0, self.now - self.free_at)
            seconds = tick * self.tick_s
            self.shown, self.shown_at = 1e3 * (self.WATTS * (seconds - idle_s) + self.IDLE_WATTS * idle_s), tick
        return round(self.shown)


@pytest.fixture
def board(monkeypatch):
    """A function that makes a Board, by whose clock everything is timed."""

    def make(**properties):
        made = Board(**properties)
        clock = SimpleNamespace(perf_counter=lambda: made.now)
        monkeypatch.setattr(energy, "time", clock)
        monkeypatch.setattr(measure, "time", clock)
        return made

    return make


def consumed(machine):
    return consumption(machine.enqueue, machine, machine.counter)


@pytest.mark.parametrize("tick_s", [0.02, 0.1])
@pytest.mark.parametrize("forward_s", [0.0001, 0.001, 0.02])
def test_a_counter_that_ticks_coarsely_gives_the_energy_of_a_forward(board, forward_s, tick_s):
    machine = board(forward_s=forward_s, tick_s=tick_s)
    taken = consumed(machine)
    late = max(0.006, forward_s) / energy.SECONDS  # a burst, by which a tick is seen too late
    assert taken.millijoules / taken.forwards == pytest.approx(1e3 * Board.WATTS * forward_s, rel=late)
    assert taken.seconds == pytest.approx(taken.forwards * forward_s, rel=late)
    assert energy.SECONDS <= taken.seconds < energy.SECONDS + 2 * tick_s + 0.05


def test_the_gpu_is_not_idle_from_the_first_burst_to_the_last(board):
    machine = board()
    seen = []

    def counter(read=machine.counter):
        found = read()
        seen.append(machine.now > machine.free_at)
        return found

    machine.counter = counter
    consumed(machine)
    assert len(seen) > 500 and not any(seen)


def test_the_measurement_starts_and_ends_at_a_tick_after_the_warm_up(board):
    machine = board()
    readings = []

    def counter(read=machine.counter):
        readings.append((machine.now, read()))
        return readings[-1][1]

    machine.counter = counter
    taken = consumed(machine)
    changes = [later for earlier, later in pairwise(readings) if earlier[1] != later[1]]
    first, last = next(one for one in changes if one[0] > readings[0][0] + energy.WARM_UP_S), changes[-1]
    assert readings[-1] == last and taken.seconds == pytest.approx(last[0] - first[0])
    assert taken.millijoules == last[1] - first[1]


def test_a_counter_that_stands_still_is_one_sentence_and_no_hang(board):
    machine = board()
    machine.counter = lambda: 7
    with pytest.raises(UsageError, match="energy counter stood still for 2 s of work"):
        consumed(machine)
    assert machine.now == machine.free_at < 4 and not machine.errors, "nothing runs on"


def energies(machine, batch, consumption, **contenders):
    """The rows of energy of a tiny network on a CPU."""
    chosen = settings(consumption=consumption, **contenders)
    events = list(measure.measure(measure.cases(machine, chosen)(network(), batch), machine))
    return [event for event in events if isinstance(event, NetworkEnergy)]


def test_each_graph_has_the_energy_of_its_images(monkeypatch):
    monkeypatch.setattr(measure, "RUN_US", 1.0)
    machine, taken = Cpu(), iter([Consumption(100, 2.0, 1000), Consumption(10, 5.0, 400)])
    calls = []

    def consumption(call, its_machine):
        assert its_machine is machine
        calls.append(call)
        return next(taken)

    one, other = energies(machine, 2, consumption, torch=plain, cuconv=plain)
    assert len(calls) == machine.captured == 2
    assert one == NetworkEnergy("toy", "torchvision", 2, "torch", "fp32", 100, 2.0, 5.0, 0.5)
    assert other == NetworkEnergy("toy", "torchvision", 2, "cuconv", "fp32", 10, 5.0, 20.0, 0.08)


def test_a_contender_that_fails_has_no_energy(monkeypatch):
    def broken(model, images, options):
        raise RuntimeError("cannot take this\nnor that")

    fails = iter([True, False])

    def consumption(call, machine):
        if next(fails):
            raise RuntimeError("lost")
        return Consumption(1, 1.0, 1)

    monkeypatch.setattr(measure, "RUN_US", 1.0)
    machine = Cpu()
    found = energies(machine, 1, consumption, other=broken, torch=plain, cuconv=plain)
    assert [row.contender for row in found] == ["cuconv"]
    assert machine.errors == ["other on toy, batch 1", "torch on toy, batch 1"]


class NvmlError(Exception):
    pass


@pytest.fixture
def nvml(monkeypatch):
    """An NVML that knows one GPU, whose counter is at 1234 mJ."""
    made = SimpleNamespace(
        NVMLError=NvmlError,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID={"GPU-4f1c": "handle"}.__getitem__,
        nvmlDeviceGetTotalEnergyConsumption={"handle": 1234}.__getitem__,
    )
    monkeypatch.setitem(sys.modules, "pynvml", made)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="4f1c"))
    return made


def test_the_counter_is_that_of_the_gpu_with_the_uuid(nvml):
    assert counter_of(torch.device("cuda", 1))() == 1234


@pytest.mark.parametrize("function", ["nvmlInit", "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetTotalEnergyConsumption"])
def test_a_driver_without_a_counter_is_one_sentence(nvml, function):
    def not_supported(*arguments):
        raise NvmlError("Not Supported")

    setattr(nvml, function, not_supported)
    with pytest.raises(UsageError, match=r"no energy counter \(Not Supported\): use another GPU"):
        counter_of(torch.device("cuda", 0))
