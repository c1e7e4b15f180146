"""The evict-first policy changes no bit of the output."""

import pytest
import torch

from cuconv import ConvProblem
from cuconv.algorithms import ALGORITHMS
from cuconv.algorithms.common import eviction
from tests.gpu.configurations import compile_kernels, run, selected
from tests.gpu.problems import operands

# Planes with aligned rows, planes that start at any address, whole images in a tile; pixels in pairs and one by one.
PROBLEMS = [
    ConvProblem(9, 70, 28, 28, 40, 1, 1),
    ConvProblem(5, 33, 27, 27, 130, 1, 1),
    ConvProblem(40, 100, 7, 7, 48, 1, 1),
    ConvProblem(3, 64, 13, 26, 24, 1, 1),
]


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
@pytest.mark.parametrize("name", ["fp16x3_pointwise", "tf32x3_wgmma"])
def test_configurations_give_the_same_with_every_policy(name, problem, monkeypatch):
    algorithm = ALGORITHMS[name]
    x, weight = operands(problem)
    outputs = {}
    found = selected(algorithm, problem)[::5]  # once: the closed set has a policy for a configuration
    for eighths in (0, 3, 8):
        monkeypatch.setattr(eviction, "evict_first", lambda problem, eighths=eighths: eighths)
        compile_kernels(algorithm, problem, found)
        outputs[eighths] = [run(algorithm, problem, config, x, weight) for config in found]
    for eighths in (3, 8):
        assert all(map(torch.equal, outputs[eighths], outputs[0])), eighths
