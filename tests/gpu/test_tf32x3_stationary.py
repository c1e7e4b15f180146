"""Tests of every configuration of tf32x3_stationary, where warpgroups have several tiles of pixels, one, or none."""

import pytest

from cuconv import ConvProblem
from cuconv.algorithms import ALGORITHMS
from tests.gpu.configurations import (
    assert_operand_may_start_anywhere,
    assert_right_and_the_same_every_time,
    assert_right_with_weights_that_are_not_finite,
    each_operand,
)

NAME = "tf32x3_stationary"
SINGLE = ConvProblem(120, 70, 27, 27, 40, 1, 1)  # 1,367 tiles for at most 528 warpgroups; the last tile is not full
PAIRS = ConvProblem(130, 96, 26, 27, 20, 1, 1)  # planes of an even number of pixels
LINEAR = ConvProblem(1, 130, 230, 231, 72, 1, 1)
FEW = ConvProblem(1, 40, 5, 5, 130, 1, 1)  # one tile, so most warpgroups have none
each_problem = pytest.mark.parametrize("problem", [SINGLE, PAIRS, LINEAR, FEW], ids=str)


@each_problem
def test_every_configuration_is_right_and_the_same_every_time(problem):
    assert_right_and_the_same_every_time(ALGORITHMS[NAME], problem, repeats=5)


@each_problem
def test_weights_that_are_not_finite(problem):
    assert_right_with_weights_that_are_not_finite(ALGORITHMS[NAME], problem)


@each_operand
def test_operands_may_start_anywhere(operand):
    assert_operand_may_start_anywhere(NAME, PAIRS, operand)
