"""A GPU that is not there, for what measures one and writes results."""

from pathlib import Path

import pytest
import torch

from harness.results import environment


@pytest.fixture
def made_up_gpu(monkeypatch, tmp_path) -> Path:
    """torch seems to see a GPU, and results/DEVICE, which is returned, is under tmp_path."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    monkeypatch.setattr(environment, "device_slug", lambda: "nvidia-test")
    monkeypatch.setattr(environment, "_gpu_facts", lambda device: {"gpu": "NVIDIA Test"})
    return tmp_path / "results" / "nvidia-test"
