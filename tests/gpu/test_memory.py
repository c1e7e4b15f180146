"""Thousands of input sizes in one process: what is kept for each of them has a bound."""

import gc
import random
import tracemalloc
from itertools import product

import pytest
import torch

import cuconv.nn
from cuconv.call_cache import MAX_READY_CALLS

LAYERS = 3
SIZES = 2 * MAX_READY_CALLS // LAYERS  # twice as many as ready calls are kept for
MIB = 2**20


@pytest.fixture
def traced():
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()


def test_memory_is_flat_over_thousands_of_sizes(traced):
    layers = [torch.nn.Conv2d(3, 32, 3), torch.nn.ReLU(), torch.nn.Conv2d(32, 64, 1), torch.nn.Conv2d(64, 64, 3)]
    model, report = cuconv.nn.convert(torch.nn.Sequential(*layers).eval().cuda(), torch.zeros(1, 3, 64, 64).cuda())
    assert len(report.rows) == LAYERS
    sizes = random.Random(0).sample(list(product(range(16, 96), repeat=2)), SIZES)
    kept = []
    for part in (sizes[: SIZES // 2 + 100], sizes[SIZES // 2 + 100 :]):
        for height, width in part:
            model(torch.zeros(1, 3, height, width, device="cuda"))
        torch.cuda.synchronize()
        gc.collect()
        kept.append((torch.cuda.memory_allocated(), traced()))
    (gpu_before, host_before), (gpu_after, host_after) = kept
    assert gpu_after <= gpu_before
    assert host_after - host_before < MIB
