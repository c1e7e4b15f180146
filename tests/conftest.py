"""A made-up GPU, for tests of the commands that measure one and write results; worker processes that start fast."""

import multiprocessing
from pathlib import Path

import pytest
import torch

from harness.measure import worker
from harness.results import environment


@pytest.fixture(autouse=True)
def fast_start(monkeypatch):
    """Fork workers from a server that has imported torch, which takes seconds; it never used a GPU."""
    monkeypatch.setattr(worker, "START", "forkserver")
    multiprocessing.set_forkserver_preload(["harness.measure.worker"])


@pytest.fixture
def made_up_gpu(monkeypatch, tmp_path) -> Path:
    """Let torch seem to see a GPU; returns the folder results/DEVICE of it, which is under tmp_path."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    monkeypatch.setattr(environment, "device_slug", lambda: "nvidia-test")
    monkeypatch.setattr(environment, "_gpu_facts", lambda device: {"gpu": "NVIDIA Test"})
    return tmp_path / "results" / "nvidia-test"
