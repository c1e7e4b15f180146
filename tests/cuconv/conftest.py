"""The fixture `cuda`: conv2d and prepare without a GPU."""

import pytest

from cuconv import call, conv, prepared
from cuconv.device import H200
from cuconv.flags import flags_of
from tests.cuconv.fake_gpu import FakeCuda, Recorder, TensorsOfGpu3


@pytest.fixture
def cuda(monkeypatch):
    """A machine whose launches go to Recorder."""
    cuda, library = FakeCuda(), TensorsOfGpu3()
    cuda.tensors = library
    Recorder.made, Recorder.enqueued = [], []
    monkeypatch.setattr(call, "cuda", lambda: cuda)
    monkeypatch.setattr(call, "_thread", call._Thread())
    monkeypatch.setattr(call, "LaunchSequence", Recorder)
    monkeypatch.setattr(call, "device_spec", lambda device: H200)
    for module in (conv, prepared):
        monkeypatch.setattr(module, "library_of", lambda array: library)
    for module in (call, prepared):
        monkeypatch.setattr(module, "capture_of", lambda stream: cuda.capture)
    flags_of.cache_clear()
    return cuda
