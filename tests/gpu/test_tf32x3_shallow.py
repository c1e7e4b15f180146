"""Tests of configurations of tf32x3_shallow: windows in rows, planes of any size, unaligned operands."""

from dataclasses import replace

import pytest

from cuconv import ConvProblem
from cuconv.algorithms import ALGORITHMS
from tests.gpu.configurations import (
    assert_operand_may_start_anywhere,
    assert_right_and_the_same_every_time,
    assert_right_with_weights_that_are_not_finite,
    assert_zeros_give_zeros,
    each_operand,
    each_precision,
)

NAME = "tf32x3_shallow"
STEM = ConvProblem(3, 3, 20, 24, 70, 3, 3, 1, 1)  # lanes have rows and single positions; a last tile of filters
EVEN = ConvProblem(5, 16, 14, 14, 64, 1, 1)  # planes of whole vectors
ODD = ConvProblem(9, 17, 7, 9, 40, 1, 1)  # tiles meet two images, and the last rows of a lane do not exist
SMALL = ConvProblem(70, 32, 5, 7, 33, 1, 1)  # planes just longer than a tile
MANY = ConvProblem(64, 9, 55, 55, 24, 1, 1)  # more tiles than warps
UNPADDED = ConvProblem(2, 3, 12, 14, 17, 3, 3, 0, 0)  # an output narrower than the input
PADDED = ConvProblem(2, 3, 9, 10, 17, 3, 3, 1, 2)  # an output wider than the input
LARGE = ConvProblem(2, 1, 20, 24, 9, 5, 5, 2, 2)
TALL = ConvProblem(2, 4, 10, 8, 33, 3, 1, 1, 0)  # windows of one position
WIDE = ConvProblem(2, 2, 10, 9, 33, 2, 4, 1, 1)  # a filter that is neither odd nor square
PADDED_POINTWISE = ConvProblem(2, 9, 6, 6, 17, 1, 1, 1, 1)
PROBLEMS = [STEM, EVEN, ODD, SMALL, MANY, UNPADDED, PADDED, LARGE, TALL, WIDE, PADDED_POINTWISE]


@each_precision
@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_configurations_are_right_and_the_same_every_time(problem, precision):
    assert_right_and_the_same_every_time(ALGORITHMS[NAME], replace(problem, precision=precision), repeats=5)


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_weights_that_are_not_finite(problem):
    assert_right_with_weights_that_are_not_finite(ALGORITHMS[NAME], problem)


@pytest.mark.parametrize("problem", [STEM, EVEN, LARGE], ids=str)
@each_operand
def test_operands_may_start_anywhere(problem, operand):
    assert_operand_may_start_anywhere(NAME, problem, operand)


@pytest.mark.parametrize("problem", [STEM, ODD], ids=str)
def test_zeros_give_zeros(problem):
    assert_zeros_give_zeros(NAME, problem)
