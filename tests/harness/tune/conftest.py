"""The made-up algorithms in place of the library's, and a GPU's calls replaced by torch on the CPU."""

from functools import partial

import pytest
import torch

from cuconv.algorithms import ALGORITHMS
from cuconv.runtime import compiler
from harness.tune import candidates
from tests.harness.tune.toys import TOYS


@pytest.fixture
def toys(monkeypatch):
    """The library has the made-up algorithms and no others, in this process."""
    for name in list(reversed(ALGORITHMS)):  # restored in reverse, so their order is as before
        monkeypatch.delitem(ALGORITHMS, name)
    for name, toy in TOYS.items():
        monkeypatch.setitem(ALGORITHMS, name, toy)


@pytest.fixture
def on_the_cpu(monkeypatch):
    """Nothing is compiled, and every candidate is torch's convolution; returns the kernels that would be compiled."""
    compiled = []

    def prepare(problem, candidate, operands, workspace, spec):
        padding = (problem.pad_h, problem.pad_w)
        convolve = partial(torch.conv2d, operands.input, operands.weight, padding=padding)
        return lambda: operands.output.copy_(convolve())

    monkeypatch.setattr(compiler, "cubin", compiled.append)
    monkeypatch.setattr(candidates, "prepare", prepare)
    return compiled
