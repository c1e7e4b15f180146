"""Refinement on made-up times: wrong constants choose faster after it, the true ones stay."""

from dataclasses import replace
from math import log

import pytest

from cuconv.device import H200
from harness.tune import fit, refine
from tests.harness.tune.toys import TRUE, rows

pytestmark = pytest.mark.usefixtures("toys")


def wrong():
    large, small = TRUE["toy_large"], TRUE["toy_small"]
    return {
        "toy_large": replace(large, start=0.5 * large.start, block=3 * large.block),
        "toy_small": replace(small, multiply=0.4 * small.multiply),
    }


def test_refined_constants_choose_faster():
    given = rows()
    before = fit.regret(given, H200, wrong())
    after = fit.regret(given, H200, refine.refine(given, H200, wrong()))
    assert before.geometric > 1.03
    assert log(after.geometric) < 0.4 * log(before.geometric)


def test_the_true_constants_stay_without_regret():
    given = rows()
    assert fit.regret(given, H200, refine.refine(given, H200, TRUE)).geometric < 1.001


def test_no_algorithm_chooses_much_worse_among_its_own_candidates():
    given = rows()
    refined = refine.refine(given, H200, wrong())
    for name, costs in refined.items():
        mine = [row for row in given if row.algorithm == name]
        before = fit.regret(mine, H200, wrong())
        assert fit.regret(mine, H200, {name: costs}).geometric <= before.geometric + refine.MAX_OWN_REGRET


def test_algorithms_without_rows_are_left_out():
    assert set(refine.refine(rows("toy_small"), H200, TRUE)) == {"toy_small"}
