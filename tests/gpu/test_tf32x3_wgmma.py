"""Tests of configurations of tf32x3_wgmma: its tiles, cluster sizes and ways to find pixels."""

import pytest

from cuconv import ConvProblem
from cuconv.algorithms import ALGORITHMS
from tests.gpu.configurations import (
    assert_operand_may_start_anywhere,
    assert_right_and_the_same_every_time,
    assert_right_with_weights_that_are_not_finite,
    each_operand,
)

NAME = "tf32x3_wgmma"
LINEAR = ConvProblem(1, 130, 7, 9, 40, 3, 3, 1, 1)  # 37 stages: enough for two warpgroups in each of 16 blocks
PADDED_POINTWISE = ConvProblem(2, 1050, 7, 9, 40, 1, 1, 1, 0)
PAIRS = ConvProblem(3, 1050, 6, 7, 40, 1, 1)  # pixels in pairs, and a last tile that is not full
LINEAR_PAIRS = ConvProblem(1, 1056, 5, 14, 70, 1, 1)
each_problem = pytest.mark.parametrize("problem", [LINEAR, PADDED_POINTWISE, PAIRS, LINEAR_PAIRS], ids=str)


@each_problem
def test_configurations_are_right_and_the_same_every_time(problem):
    assert_right_and_the_same_every_time(ALGORITHMS[NAME], problem, repeats=5)


@each_problem
def test_weights_that_are_not_finite(problem):
    assert_right_with_weights_that_are_not_finite(ALGORITHMS[NAME], problem)


@each_operand
def test_operands_may_start_anywhere(operand):
    assert_operand_may_start_anywhere(NAME, PAIRS, operand)
