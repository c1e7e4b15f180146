"""The fixtures `gpus` and `cuda`: contexts, and conv2d and prepare, without a GPU."""

import pytest

from cuconv import call, call_cache, conv, prepared
from cuconv.device import H200
from cuconv.runtime import driver
from cuconv.runtime.flags import flags_of
from tests.cuconv.fake_gpu import FakeCuda, Recorder, TensorsOfGpu3


@pytest.fixture
def gpus(monkeypatch):
    """The driver of a machine with several GPUs."""
    gpus = FakeCuda()
    monkeypatch.setattr(driver, "library", lambda: gpus)
    driver._primary_context.cache_clear()
    yield gpus
    driver._primary_context.cache_clear()


@pytest.fixture
def cuda(gpus, monkeypatch):
    """A machine whose launches go to Recorder."""
    cuda, library = gpus, TensorsOfGpu3()
    cuda.tensors = library
    Recorder.made, Recorder.enqueued = [], []
    monkeypatch.setattr(call_cache, "_thread", call_cache.ReadyCalls())
    monkeypatch.setattr(call_cache, "LaunchSequence", Recorder)
    monkeypatch.setattr(call_cache, "device_spec", lambda device: H200)
    cuda.missing = set()  # stems of the sources whose kernels must be compiled
    monkeypatch.setattr(call_cache, "is_available", lambda variant, _: variant.source.stem not in cuda.missing)
    for module in (conv, prepared):
        monkeypatch.setattr(module, "library_of", lambda array: library)
    for module in (call, prepared, call_cache):
        monkeypatch.setattr(module, "capture_of", lambda stream: cuda.capture)
    flags_of.cache_clear()
    return cuda
