"""The fixture `cuda`: conv2d and prepare without a GPU."""

import pytest

from cuconv import call, conv, prepared
from cuconv.device import H200
from tests.cuconv.fake_gpu import FakeCuda, Recorder, TensorsOfGpu3


@pytest.fixture
def cuda(monkeypatch):
    """A machine whose launches go to Recorder."""
    cuda, library = FakeCuda(), TensorsOfGpu3()
    cuda.tensors = library
    Recorder.made, Recorder.enqueued = [], []
    monkeypatch.setattr(call, "cuda", lambda: cuda)
    monkeypatch.setattr(conv, "_thread", conv._Thread())
    for module in (conv, prepared):
        monkeypatch.setattr(module, "LaunchSequence", Recorder)
        monkeypatch.setattr(module, "library_of", lambda array: library)
        monkeypatch.setattr(module, "device_spec", lambda device: H200)
    return cuda
