"""Configurations as arrays: each element is the configuration by itself, with the same predicted time."""

from dataclasses import replace

import numpy as np
import pytest

from cuconv import ConvProblem, UnsupportedProblem
from cuconv.algorithms import ALGORITHMS
from cuconv.algorithms.common.many import ManyConfigurations, chosen
from tests.cuconv.algorithms.problems import DEVICES, ODD, PROBLEMS, in_precision

MANY = [name for name, algorithm in ALGORITHMS.items() if isinstance(algorithm, ManyConfigurations)]
LARGE = [ConvProblem(2, 64, 4096, 4097, 512, 1, 1), ConvProblem(1, 3, 30000, 30000, 8, 3, 3, 1, 1)]
STRIDED = [replace(problem, stride_h=2, stride_w=2) for problem in PROBLEMS[::40]]
SOME = [*PROBLEMS[::15], *ODD, *LARGE, *STRIDED]


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.arch)
@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("name", MANY)
def test_times_of_arrays_are_those_of_each_configuration(name, prepared, device):
    algorithm, compared = ALGORITHMS[name], 0
    predict = algorithm.prepared_us if prepared else algorithm.predicted_us
    for problem in [*SOME, *in_precision("tf32", SOME[::3])]:
        try:
            many, possible = algorithm.many(problem, device)
        except UnsupportedProblem:
            continue
        times = predict(problem, device, many)
        for index in np.flatnonzero(possible)[::5]:
            one = chosen(many, index)
            assert predict(problem, device, one) == pytest.approx(times[index], rel=1e-12), (problem.label, str(one))
            compared += 1
        config, us = algorithm.weighed(problem, device, prepared)
        assert us == min(times[possible]) and config == next(iter(algorithm.ranked(problem, device, prepared)))[1]
    assert compared or not device.is_hopper
