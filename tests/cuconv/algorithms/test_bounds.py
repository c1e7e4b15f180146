"""The bounds by which "auto" leaves algorithms out: no configuration's predicted time is below them."""

from dataclasses import replace

import pytest

from cuconv import UnsupportedProblem
from cuconv.algorithms import ALGORITHMS
from cuconv.algorithms.base import CallOptions
from cuconv.select import ROUNDING
from tests.cuconv.algorithms.problems import DEVICES, ODD, PROBLEMS, in_precision
from tests.cuconv.layers import problems_of

OTHERS = [one for name in ("strided", "grouped", "fully_connected") for one in problems_of(name)]
SOME = [*PROBLEMS[::9], *ODD, *OTHERS[::7]]
SIZES = [replace(p, h=p.h + 5, w=2 * p.w + 3) for p in SOME[::2]]


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.arch)
@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_no_predicted_time_is_below_the_bound(name, prepared, device):
    algorithm = ALGORITHMS[name]
    problems = [*SOME, *SIZES]
    if "fp32" not in algorithm.precisions:
        problems = in_precision(algorithm.precisions[0], problems)
    if "tf32" in algorithm.precisions:
        problems += in_precision("tf32", SOME[::3])
    for problem in problems:
        least_us = algorithm.least_us(problem, device, prepared)
        try:
            us, _ = next(iter(algorithm.ranked(problem, device, CallOptions(packed=prepared), closed=False)))
        except UnsupportedProblem:
            continue
        assert 0 <= least_us <= ROUNDING * us, problem.label
