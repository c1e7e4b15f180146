"""Every configuration of the 1x1 kernel whose weights stay: with several tiles for each warpgroup, and with none."""

from dataclasses import replace

import pytest

from cuconv import ConvProblem
from cuconv.algorithms.common.implicit_gemm import tf32x3_stationary
from tests.gpu.configurations import (
    assert_operand_may_start_anywhere,
    assert_right_and_the_same_every_time,
    assert_right_with_weights_that_are_not_finite,
    each_operand,
    each_precision,
)

NAME = "tf32x3_stationary"
SINGLE = ConvProblem(120, 70, 27, 27, 40, 1, 1)  # 1,367 tiles for at most 528 warpgroups, the last one not whole
PAIRS = ConvProblem(130, 96, 26, 27, 20, 1, 1)
LINEAR = ConvProblem(1, 130, 230, 231, 72, 1, 1)
FEW = ConvProblem(1, 40, 5, 5, 130, 1, 1)  # most warpgroups have no tile

each_problem = pytest.mark.parametrize("problem", [SINGLE, PAIRS, LINEAR, FEW], ids=str)


@each_precision
@each_problem
def test_every_configuration_is_right_and_the_same_every_time(problem, precision):
    assert_right_and_the_same_every_time(tf32x3_stationary, replace(problem, precision=precision), repeats=5)


@each_problem
def test_weights_that_are_not_finite_show_in_every_configuration(problem):
    assert_right_with_weights_that_are_not_finite(tf32x3_stationary, problem)


@each_operand
def test_operands_may_start_anywhere(operand):
    assert_operand_may_start_anywhere(NAME, PAIRS, operand)
