"""The kernels of a call, from a made-up profiler that loses launches as torch's does."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from harness.stopwatch import profiler


@pytest.fixture
def launch(monkeypatch):
    """Launches a kernel of a name: the n-th starts at time n, and ends 1.5 later.

    The profiler loses all after its first start, and two launches after later ones.
    """
    records = []

    def launch(name):
        at = len(records[-1])
        times = SimpleNamespace(start=at, end=at + 1.5)
        records[-1].append(SimpleNamespace(name=name, time_range=times, device_type=SimpleNamespace(name="CUDA")))

    def events():
        on_host = SimpleNamespace(name="cudaLaunchKernel", device_type=SimpleNamespace(name="CPU"))
        return [on_host, *reversed(records[-1][2:])] if len(records) > 1 else []

    @contextmanager
    def profile(activities):
        records.append([])
        yield SimpleNamespace(events=events)

    monkeypatch.setattr(profiler, "profile", profile)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: launch("at::cuda::spin_kernel(long)"))
    return launch


def test_every_launch_of_the_calls_that_count_is_there_in_order(launch):
    def call():
        launch("pack")
        launch("multiply")

    found = profiler.kernels(call, 2)  # launches 7 to 10: three calls of two kernels and the marker come before
    assert found == [("pack", 1.5), ("multiply", 1.0), ("pack", 1.0), ("multiply", 1.0)]  # they overlap by 0.5


def test_a_profiler_that_sees_nothing_finds_nothing(launch, monkeypatch):
    monkeypatch.setattr(profiler, "MARKER", "never seen")
    assert profiler.kernels(lambda: launch("multiply"), 2) == []
