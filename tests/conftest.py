"""Settings of all tests: slow tests first, work that tests share, and a made-up GPU.

The process of pytest-xdist that starts the others reads this file too. It needs no torch, whose import takes seconds,
so that torch and what imports it are imported where they are used.
"""

import functools
import gc
from pathlib import Path

import pytest

# Files with tests of seconds, which start new processes. They go first, so that no worker is left with one at the end.
SLOW = (
    "test_hosts.py",
    "test_run.py",
    "test_background.py",
    "test_precision.py",
    "test_without_torch.py",
)


def pytest_collection():
    """Find no garbage among what is imported: it is a million objects that stay, and each search takes 0.2 s."""
    gc.disable()


def pytest_collection_finish():
    """Leave what is imported out of the searches for garbage during the tests, and search less often."""
    gc.freeze()
    gc.set_threshold(50_000)
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Start with the slow tests. The conftest.py of tests/gpu has an order of its own, which comes after this one."""
    items.sort(key=lambda item: item.path.name not in SLOW)


@pytest.fixture(autouse=True, scope="session")
def normalised_once():
    """Normalise each text of a source file once: every report of a measurement has a hash of some 200 files."""
    from harness.store import code

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(code, "normalised", functools.cache(code.normalised))
        yield


@pytest.fixture
def made_up_gpu(monkeypatch, tmp_path) -> Path:
    """Let torch seem to see a GPU, and experiments measure in this process; returns its results/DEVICE in tmp_path."""
    import torch

    from harness import isolation
    from harness.store import environment

    class InThisProcess:
        """A worker without a process, so that tests can replace parts of what it measures."""

        def __init__(self, begin, say):
            self.measure, self.end = begin(say), lambda: None

    monkeypatch.setattr(isolation, "Worker", InThisProcess)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    monkeypatch.setattr(environment, "device_slug", lambda: "nvidia-test")
    monkeypatch.setattr(environment, "_gpu_facts", lambda device: {"gpu": "NVIDIA Test"})
    return tmp_path / "results" / "nvidia-test"
