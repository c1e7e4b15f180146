"""Configurations as arrays: each element is the configuration by itself, with the same predicted time."""

from dataclasses import replace
from itertools import product
from math import inf

import numpy as np
import pytest

from cuconv import ConvProblem, UnsupportedProblem
from cuconv.algorithms import ALGORITHMS, kernel_set
from cuconv.algorithms.base import CallOptions
from cuconv.algorithms.common.many import ManyConfigurations, chosen
from cuconv.device import H200
from tests.cuconv.algorithms.problems import DEVICES, ODD, PROBLEMS, in_precision
from tests.cuconv.layers import problems_of

MANY = [name for name, algorithm in ALGORITHMS.items() if isinstance(algorithm, ManyConfigurations)]
LARGE = [ConvProblem(2, 64, 4096, 4097, 512, 1, 1), ConvProblem(1, 3, 30000, 30000, 8, 3, 3, 1, 1)]
STRIDED = [replace(problem, stride_h=2, stride_w=2) for problem in PROBLEMS[::40]]
GROUPED = problems_of("grouped")[::9]
GENERAL = [ConvProblem(2, 32, 19, 23, 32, 5, 3, 2, 1, groups=groups) for groups in (8, 32)]
SOME = [*PROBLEMS[::15], *ODD, *LARGE, *STRIDED, *GROUPED, *GENERAL]


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.arch)
@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("name", MANY)
def test_times_of_arrays_are_those_of_each_configuration(name, prepared, device):
    algorithm, compared = ALGORITHMS[name], 0
    predict = algorithm.prepared_us if prepared else algorithm.predicted_us
    within = {"rel": 1e-12 if prepared else 0.0, "abs": 0.0}  # prepared: packing is subtracted in another order
    for problem in [*SOME, *(in_precision("tf32", SOME[::3]) if "tf32" in algorithm.precisions else [])]:
        try:
            many, possible, times = algorithm.timed(problem, device, prepared)
        except UnsupportedProblem:
            continue
        for index in np.flatnonzero(possible)[::5]:
            one = chosen(many, index)
            assert predict(problem, device, one) == pytest.approx(times[index], **within), (problem.label, str(one))
            compared += 1
        config = algorithm.configure(problem, device, prepared)
        assert predict(problem, device, config) == pytest.approx(min(times[possible]), **within)
    assert compared or not device.is_hopper


@pytest.mark.parametrize("name", MANY)
def test_slowdowns_of_arrays_are_those_of_each_configuration(name):
    algorithm, found = ALGORITHMS[name], []
    problems = [*SOME[::4], *(in_precision("tf32", SOME[::9]) if "tf32" in algorithm.precisions else [])]
    for problem, (aligned, residual, packed) in product(problems, product((False, True), repeat=3)):
        options = CallOptions(aligned, residual=residual, packed=packed)
        try:
            many, possible = algorithm.many(problem, H200)
        except UnsupportedProblem:
            continue
        slowdowns = np.broadcast_to(algorithm.slowdowns(problem, H200, many, options), possible.shape)
        for index in np.flatnonzero(possible)[::7]:
            one = chosen(many, index)
            slowdown = algorithm.slowdown(problem, H200, one, options)
            assert slowdown == slowdowns[index], (problem, options, str(one))
            assert (slowdown < inf) == kernel_set.holds(H200.arch, algorithm.launches(problem, one, options))
            found.append(slowdown < inf)
    assert any(found) and (all(found) == (name in ("tf32x3_gemm", "depthwise", "direct")))
