"""Every tile and split of the Hopper GEMMs, not only those that they choose: weights split by each block, or ahead."""

import pytest

from cuconv import ConvProblem
from cuconv.algorithms import ALGORITHMS
from tests.gpu.configurations import (
    assert_operand_may_start_anywhere,
    assert_right_and_the_same_every_time,
    assert_right_with_weights_that_are_not_finite,
    each_operand,
)

LINEAR = ConvProblem(1, 130, 7, 9, 40, 3, 3, 1, 1)  # 37 stages: enough for two warpgroups in each of 16 blocks
PADDED_POINTWISE = ConvProblem(2, 1050, 7, 9, 40, 1, 1, 1, 0)
PAIRS = ConvProblem(3, 1050, 6, 7, 40, 1, 1)  # pixels two by two, the last tile's not all there
LINEAR_PAIRS = ConvProblem(1, 1056, 5, 14, 70, 1, 1)

each_name = pytest.mark.parametrize("name", ["tf32x3_wgmma", "tf32x3_presplit"])
each_problem = pytest.mark.parametrize("problem", [LINEAR, PADDED_POINTWISE, PAIRS, LINEAR_PAIRS], ids=str)


@each_name
@each_problem
def test_every_configuration_is_right_and_the_same_every_time(name, problem):
    assert_right_and_the_same_every_time(ALGORITHMS[name], problem, repeats=5)


@each_name
@each_problem
def test_weights_that_are_not_finite_show_in_every_configuration(name, problem):
    assert_right_with_weights_that_are_not_finite(ALGORITHMS[name], problem)


@each_name
@each_operand
def test_operands_may_start_anywhere(name, operand):
    assert_operand_may_start_anywhere(name, PAIRS, operand)
