"""Arguments that a LaunchSequence hands to the driver; a fake driver reads them from memory as the real one does."""

import ctypes
from pathlib import Path

import pytest

from cuconv.core.launch import BIAS, INPUT, OUTPUT, WEIGHT, WORKSPACE, KernelVariant, Launch
from cuconv.runtime import compiler, launch_sequence
from cuconv.runtime import driver as cuda_driver
from cuconv.runtime.cubins import Cubin
from cuconv.runtime.launch_sequence import LaunchSequence

STREAM = 0x7F0000000010
MODULE = 0x7F0000000020
ADDRESSES = (0x7F1000000000, 0x7F2000000000, 0, 0x7F4000000000, 0x7F5000000000)
FIRST = Launch(Path("a.cu"), {"SIZE": 4}, "first", 7, 64, (WEIGHT, 2**40, WORKSPACE, -1, BIAS + 8), overlap=True)
SECOND = Launch(Path("a.cu"), {"SIZE": 4}, "second", 9, 128, (OUTPUT + 400, BIAS, INPUT, INPUT + 8, 1), 60_000)


class Driver:
    """The functions of libcuda that launches need; `launched` records the arguments of every launch."""

    def __init__(self, monkeypatch):
        self.launched, self.attributes_set, self.status = [], [], 0
        self.arguments_of = {1: 5, 2: 5}
        self.attributes = {}  # by (kernel, attribute)
        monkeypatch.setattr(cuda_driver, "library", lambda: self)
        monkeypatch.setattr(compiler, "cubin", lambda variant: Cubin(repr(variant).encode(), ""))
        self.loaded = []

    def cuModuleLoadData(self, module, code):
        self.loaded.append(code)
        module._obj.value = MODULE
        return 0

    def cuModuleGetFunction(self, kernel, module, name):
        assert module.value == MODULE
        kernel._obj.value = {b"first": 1, b"second": 2}[name]
        return 0

    def cuFuncGetAttribute(self, value, attribute, kernel):
        is_limit = attribute == launch_sequence.MAX_DYNAMIC_SHARED_SIZE_BYTES
        default = launch_sequence.SHARED_BYTES_BY_DEFAULT if is_limit else 0
        value._obj.value = self.attributes.get((kernel.value, attribute), default)
        return 0

    def cuFuncSetAttribute(self, kernel, attribute, value):
        self.attributes_set.append((kernel.value, attribute, value))
        self.attributes[kernel.value, attribute] = value
        return 0

    def cuLaunchKernelEx(self, config, kernel, arguments, extra):
        config = config._obj
        grid = (config.gridDimX, config.gridDimY, config.gridDimZ)
        block = (config.blockDimX, config.blockDimY, config.blockDimZ)
        values = [ctypes.c_int64.from_address(arguments[i]).value for i in range(self.arguments_of[kernel.value])]
        stream = config.hStream or 0
        self.launched.append((kernel.value, grid, block, config.sharedMemBytes, stream, config.numAttrs, values))
        assert extra is None
        attribute = launch_sequence._LaunchAttribute.from_address(config.attrs)
        assert (attribute.id, attribute.value[0]) == (6, 1)
        return self.status

    def cuGetErrorString(self, status, text):
        text._obj.value = b"out of luck"


@pytest.fixture
def driver(monkeypatch):
    driver = Driver(monkeypatch)
    loaded = launch_sequence
    kept = (loaded._load.cache_clear, loaded._module.cache_clear, loaded._found.clear, loaded._loaded.clear)
    for clear in kept:
        clear()
    yield driver
    for clear in kept:
        clear()


def test_launches_reach_the_driver_in_order_with_their_arguments(driver):
    LaunchSequence((FIRST, SECOND), "sm_90a", 0).enqueue(STREAM, *ADDRESSES)
    input, weight, bias, output, workspace = ADDRESSES
    assert driver.launched == [
        (1, (7, 1, 1), (64, 1, 1), 0, STREAM, 1, [weight, 2**40, workspace, -1, 0]),  # no bias
        (2, (9, 1, 1), (128, 1, 1), 60_000, STREAM, 0, [output + 400, bias, input, input + 8, 1]),
    ]


def test_addresses_and_streams_are_those_of_each_call(driver):
    sequence = LaunchSequence((SECOND,), "sm_90a", 0)
    for stream, shift in ((0, 0), (STREAM, 4096), (STREAM, 0), (0, 64)):
        sequence.enqueue(stream, *(address + shift for address in ADDRESSES))
        input, _, bias, output, _ = ADDRESSES
        values = [output + shift + 400, bias + shift, input + shift, input + shift + 8, 1]
        assert driver.launched.pop() == (2, (9, 1, 1), (128, 1, 1), 60_000, stream, 0, values)


def test_a_cubin_is_loaded_once_for_each_gpu_and_its_shared_memory_allowed_once(driver):
    for device in (0, 0, 1):
        LaunchSequence((FIRST, SECOND), "sm_90a", device)
    assert len(driver.loaded) == 2
    assert driver.attributes_set == [(2, launch_sequence.MAX_DYNAMIC_SHARED_SIZE_BYTES, 60_000)]


def test_a_cubin_that_is_available_is_read_once(driver, monkeypatch):
    read, there = [], Cubin(b"code", "")
    monkeypatch.setattr(compiler, "find", lambda variant: read.append(dict(variant.macros)["SIZE"]) or there)
    launch = Launch(Path("a.cu"), {"SIZE": 8}, "first", 7, 64, (WEIGHT,))
    for _ in range(2):
        assert launch_sequence.is_available(launch.variant("sm_90a"), 0)
        LaunchSequence((launch,), "sm_90a", 0)
    assert read == [8] and driver.loaded == [there.code]


def test_a_cubin_that_is_missing_is_looked_for_again(driver, monkeypatch):
    found = [Cubin(b"code", ""), None]
    monkeypatch.setattr(compiler, "find", lambda variant: found.pop())
    missing = KernelVariant.of(Path("a.cu"), "sm_90a", {"SIZE": 9})
    assert [launch_sequence.is_available(missing, 0) for _ in range(2)] == [False, True]


def test_the_limit_of_shared_memory_is_never_lowered(driver):
    """Two kernels loaded from one cubin share the driver's function, and with it the limit."""
    kernels = [launch_sequence.Kernel(MODULE, "second") for _ in range(2)]
    for kernel, shared_bytes in zip((*kernels, *kernels), (100_000, 60_000, 49_152, 200_000), strict=True):
        kernel.allow_shared(shared_bytes)
    assert driver.attributes_set == [
        (2, launch_sequence.MAX_DYNAMIC_SHARED_SIZE_BYTES, size) for size in (100_000, 200_000)
    ]


@pytest.mark.parametrize("reported", [48_152, 49_152])
@pytest.mark.parametrize("wanted", [(48_000,), (48_500,), (49_152,), (48_500, 48_200), (60_000, 48_500)])
def test_static_shared_memory_counts_before_the_limit_is_raised(driver, wanted, reported):
    """reported: the limit of dynamic shared memory by default, less static memory or not."""
    driver.attributes[2, launch_sequence.SHARED_SIZE_BYTES] = 1000
    driver.attributes[2, launch_sequence.MAX_DYNAMIC_SHARED_SIZE_BYTES] = reported
    kernel = launch_sequence.Kernel(MODULE, "second")
    for shared_bytes in wanted:
        kernel.allow_shared(shared_bytes)
    sizes = [size for *_, size in driver.attributes_set]
    assert bool(sizes) == (max(wanted) > 48_152)
    assert sizes == sorted(sizes) and (not sizes or sizes[-1] >= max(wanted))


@pytest.mark.parametrize(
    ("width", "asked"), [(0, []), (8, []), (16, [(2, launch_sequence.NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1)])]
)
def test_only_clusters_beyond_the_portable_size_are_asked_for(driver, width, asked):
    driver.attributes[2, launch_sequence.REQUIRED_CLUSTER_WIDTH] = width
    launch_sequence.Kernel(MODULE, "second")
    assert driver.attributes_set == asked


def test_a_call_in_the_middle_of_another_one_changes_nothing_of_it(driver):
    """A signal handler or a finaliser runs between two launches of the sequence that it calls too, two deep."""
    pending = [tuple(address + 64 * depth for address in ADDRESSES) for depth in (1, 2)]
    launch = driver.cuLaunchKernelEx

    def interrupted(*arguments):
        if pending:
            sequence.enqueue(STREAM + 16, *pending.pop())
        return launch(*arguments)

    driver.cuLaunchKernelEx = interrupted
    sequence = LaunchSequence((FIRST, SECOND), "sm_90a", 0)
    sequence.enqueue(STREAM, *ADDRESSES)
    outer = [one for one in driver.launched if one[4] == STREAM]
    assert not pending and len(driver.launched) == 6
    driver.launched.clear()
    LaunchSequence((FIRST, SECOND), "sm_90a", 0).enqueue(STREAM, *ADDRESSES)
    assert outer == driver.launched


def test_a_refusal_of_the_driver_is_raised_and_a_call_after_it_is_no_nested_one(driver):
    sequence = LaunchSequence((FIRST, SECOND), "sm_90a", 0)
    driver.status = 701
    with pytest.raises(cuda_driver.DriverError, match=r"out of luck \(701\)"):
        sequence.enqueue(STREAM, *ADDRESSES)
    assert len(driver.launched) == 1
    driver.status = 0
    sequence.enqueue(STREAM, *ADDRESSES)
    assert sequence._spare is None and driver.launched[0] == driver.launched[1]
