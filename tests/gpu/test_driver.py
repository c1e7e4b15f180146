"""The CUDA driver's interface on a GPU: it agrees with torch, and users of torch never import CuPy."""

import subprocess
import sys

import pytest
import torch

from cuconv.runtime import driver

BEGIN = """
import sys, torch, cuconv, cuconv.nn
from concurrent.futures import ThreadPoolExecutor
from cuconv.runtime.driver import context_reader

def operands(gpu, size):
    x, weight = torch.randn(2, 16, size, size, device=gpu), torch.randn(8, 16, 3, 3, device=gpu)
    truth = torch.conv2d(x.double(), weight.double(), padding=1)
    torch.cuda.synchronize(gpu)
    return x, weight, lambda y: float((y - truth).norm() / truth.norm()) < 3e-6

"""
CALLS = """
with torch.no_grad():
    x, weight, right = operands(0, 12)
    assert right(cuconv.conv2d(x, weight, padding=1))
    assert right(cuconv.prepare(weight, padding=1)(x))
    model = torch.nn.Sequential(torch.nn.Conv2d(16, 8, 3, padding=1, bias=False)).eval().cuda()
    model[0].weight.copy_(weight)
    converted, report = cuconv.nn.convert(model, x)
    assert right(converted(x)), report
"""
THREADS = """
def call(x, weight):
    before = context_reader()()
    y = cuconv.conv2d(x, weight, padding=1)
    torch.cuda.current_stream(x.device).synchronize()
    return before, y

for gpu in range(torch.cuda.device_count()):
    x, weight, right = operands(gpu, 12)
    cuconv.conv2d(x, weight, padding=1)  # compiles and loads, and leaves the first thread nothing but launches
    for x, weight, right in ((x, weight, right), operands(gpu, 13)):
        with ThreadPoolExecutor(1) as thread:
            before, y = thread.submit(call, x, weight).result()
            assert before == 0 and right(y), gpu
            before, y = thread.submit(call, x, weight).result()
            assert right(y) and thread.submit(torch.cuda.current_device).result() == 0, gpu
"""
END = """
assert "cupy" not in sys.modules
"""


@pytest.mark.parametrize("code", [CALLS, THREADS], ids=["calls", "threads without a context"])
def test_users_of_torch_never_import_cupy(code):
    done = subprocess.run([sys.executable, "-c", BEGIN + code + END], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_gpus_are_described_as_by_torch():
    for ordinal in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(ordinal)
        assert driver.gpu(ordinal) == (facts.name, (facts.major, facts.minor), facts.multi_processor_count)
    with pytest.raises(driver.DriverError, match="invalid device ordinal"):
        driver.gpu(torch.cuda.device_count())


def test_the_current_gpu_is_that_of_torch():
    before = torch.cuda.current_device()
    for ordinal in range(torch.cuda.device_count()):
        torch.zeros(1, device=ordinal)  # makes its context
        with torch.cuda.device(ordinal):
            assert driver.current_gpu() == ordinal
        with driver.made_current(ordinal):
            assert driver.current_gpu() == torch.cuda.current_device() == ordinal
        assert driver.current_gpu() == torch.cuda.current_device() == before
