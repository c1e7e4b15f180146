"""The CUDA driver's interface: contexts of threads, facts about GPUs, captures, and refusals."""

import ctypes
from types import SimpleNamespace

import pytest

from cuconv.device import DeviceSpec, UnsupportedDevice, device_spec
from cuconv.runtime import driver


def cuGetErrorString(code, text):
    text._obj.value = b"no such thing"


@pytest.mark.parametrize(
    ("before", "made", "devices"),
    [(0, 3, [0, 3, 0]), (3, 0, [3, 0, 3]), (None, 3, [None, 3, None]), (None, 0, [None, 0])],
)
def test_a_gpu_is_current_until_the_block_ends(gpus, before, made, devices):
    """A thread without a context keeps that of GPU 0, which is its current GPU anyway."""
    gpus.devices = [before]
    with pytest.raises(KeyError), driver.made_current(made):
        assert driver.current_gpu() == made
        raise KeyError
    assert gpus.devices == devices


@pytest.mark.parametrize(("current", "ordinal"), [(None, 0), (0, 0), (2, 2)])
def test_without_a_context_gpu_0_is_current(gpus, current, ordinal):
    gpus.devices = [current]
    assert driver.current_gpu() == ordinal


def test_a_primary_context_is_retained_once(gpus, monkeypatch):
    retained, retain = [], gpus.cuDevicePrimaryCtxRetain
    monkeypatch.setattr(
        gpus, "cuDevicePrimaryCtxRetain", lambda *arguments: retained.append(arguments) or retain(*arguments)
    )
    for _ in range(2):
        with driver.made_current(3):
            pass
    assert len(retained) == 1


@pytest.mark.parametrize(
    ("name", "capability"), [(b"NVIDIA H200", (9, 0)), (b"Tesla T4", (7, 5))], ids=["H200", "too old"]
)
def test_a_gpu_is_described_by_the_driver(gpus, monkeypatch, name, capability):
    attributes = {16: 132, 75: capability[0], 76: capability[1]}

    def cuDeviceGetName(text, size, device):
        assert device == 2 and len(text) == size
        text.value = name
        return 0

    def cuDeviceGetAttribute(value, attribute, device):
        assert device == 2
        value._obj.value = attributes[attribute]
        return 0

    monkeypatch.setattr(gpus, "cuDeviceGetName", cuDeviceGetName, raising=False)
    monkeypatch.setattr(gpus, "cuDeviceGetAttribute", cuDeviceGetAttribute, raising=False)
    if capability >= (8, 0):
        assert device_spec.__wrapped__(2) == DeviceSpec("NVIDIA H200", (9, 0), 132)
    else:
        with pytest.raises(UnsupportedDevice, match=r"7\.5"):
            device_spec.__wrapped__(2)


def test_a_refusal_of_the_driver_is_raised_with_its_text(monkeypatch):
    refusing = SimpleNamespace(cuDeviceGet=lambda device, ordinal: 101, cuGetErrorString=cuGetErrorString)
    monkeypatch.setattr(driver, "library", lambda: refusing)
    with pytest.raises(driver.DriverError, match=r"no such thing \(101\)"):
        driver.gpu(7)


@pytest.mark.parametrize(
    ("loaded", "message"),
    [
        (OSError("libcuda.so.1: no file"), r"libcuda\.so\.1: no file"),
        (SimpleNamespace(cuInit=lambda flags: 100, cuGetErrorString=cuGetErrorString), r"no such thing \(100\)"),
    ],
    ids=["no driver", "no GPU"],
)
def test_a_machine_without_a_gpu_is_told_of(monkeypatch, loaded, message):
    def load(name):
        if isinstance(loaded, OSError):
            raise loaded
        return loaded

    monkeypatch.setattr(ctypes, "CDLL", load)
    with pytest.raises(driver.DriverError, match=message):
        driver.library.__wrapped__()


def capturing(status, number, code=0):
    """A driver that tells of a capture, or refuses."""

    def cuStreamGetCaptureInfo_v2(stream, status_out, number_out, *others):
        assert stream.value == 99 and others == (None, None, None)
        status_out._obj.value, number_out._obj.value = status, number
        return code

    return SimpleNamespace(cuStreamGetCaptureInfo_v2=cuStreamGetCaptureInfo_v2, cuGetErrorString=cuGetErrorString)


def test_the_driver_says_whether_a_stream_is_captured(monkeypatch):
    for status, number in ((0, 0), (1, 2**40), (2, 0)):
        monkeypatch.setattr(driver, "library", lambda told=(status, number): capturing(*told))
        assert driver.capture_of(99) == number
    assert driver.capture_of(0) == 0, "the default stream never is"
    monkeypatch.setattr(driver, "library", lambda: capturing(0, 0, code=400))
    with pytest.raises(driver.DriverError, match="no such thing"):
        driver.capture_of(99)
