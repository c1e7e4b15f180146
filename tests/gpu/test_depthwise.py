"""Tests of configurations of depthwise: strips over the edge, staged planes, the general kernel, groups."""

from dataclasses import replace

import pytest
import torch

from cuconv import ConvProblem, conv2d, reference
from cuconv.algorithms import ALGORITHMS
from tests.gpu.configurations import (
    assert_bias_and_relu_keep_nan,
    assert_configurations_take_an_operand_anywhere,
    assert_nothing_is_written_outside,
    assert_right_and_the_same_every_time,
    assert_right_with_weights_that_are_not_finite,
    configurations,
    each_operand,
    run,
)
from tests.gpu.problems import (
    TOLERANCE,
    bias_for,
    geometry,
    operands,
    rel_l2_error,
)

NAME = "depthwise"
EVEN = ConvProblem(3, 24, 28, 28, 24, 3, 3, 1, 1, groups=24)  # rows of whole vectors
HALVES = ConvProblem(2, 20, 14, 14, 20, 5, 5, 2, 2, groups=20)  # rows of whole pairs
SMALL = ConvProblem(5, 31, 7, 7, 31, 3, 3, 1, 1, groups=31)  # blocks of planes across images, a last one in part
STRIDED = ConvProblem(2, 18, 23, 24, 18, 3, 3, 1, 1, stride_h=2, stride_w=2, groups=18)
THIRD = ConvProblem(2, 9, 17, 20, 9, 5, 3, 2, 0, stride_h=3, stride_w=3, groups=9)
DILATED = ConvProblem(2, 16, 16, 20, 16, 3, 3, 2, 4, dilation_h=2, dilation_w=4, groups=16)
APART = ConvProblem(1, 6, 70, 90, 6, 3, 3, 30, 40, dilation_h=30, dilation_w=40, groups=6)  # outputs share nothing
SEVEN = ConvProblem(1, 12, 15, 14, 12, 7, 7, 3, 3, groups=12)
LARGE = ConvProblem(2, 5, 20, 18, 5, 31, 31, 15, 15, groups=5)  # many products
NINE = ConvProblem(2, 5, 20, 18, 5, 9, 9, 4, 4, groups=5)  # the general kernel
FLAT = ConvProblem(2, 10, 8, 33, 10, 1, 7, 0, 3, groups=10)
PADDED = ConvProblem(2, 8, 5, 6, 8, 2, 3, 5, 9, groups=8)  # padding beyond the filter
MULTIPLIER = ConvProblem(3, 10, 13, 12, 30, 3, 3, 1, 1, groups=10)
PAIRS = ConvProblem(2, 12, 14, 14, 24, 3, 3, 1, 1, stride_h=2, stride_w=1, groups=6)
FOURS = ConvProblem(3, 32, 14, 14, 32, 3, 3, 1, 1, groups=8)
EIGHTS = ConvProblem(2, 24, 9, 10, 12, 3, 3, 1, 1, groups=3)
# More groups than an H200 stages at a time, so that blocks go from batch to batch.
MANY = ConvProblem(66, 200, 14, 14, 200, 3, 3, 1, 1, groups=200)
MANY_ODD = ConvProblem(131, 301, 7, 7, 301, 5, 5, 2, 2, groups=301)
MANY_FOURS = ConvProblem(70, 256, 10, 9, 256, 3, 3, 1, 1, groups=64)
PROBLEMS = [
    EVEN, HALVES, SMALL, STRIDED, THIRD, DILATED, APART, SEVEN, LARGE, NINE, FLAT, PADDED, MULTIPLIER, PAIRS, FOURS,
    EIGHTS, MANY, MANY_ODD, MANY_FOURS,
]  # fmt: skip
each_problem = pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.label)
each_layout = pytest.mark.parametrize(
    "problem", [EVEN, SMALL, STRIDED, FOURS, MANY_ODD], ids=lambda problem: problem.label
)


@each_problem
def test_configurations_are_right_and_the_same_every_time(problem):
    assert_right_and_the_same_every_time(ALGORITHMS[NAME], problem, repeats=3)


@each_problem
def test_weights_that_are_not_finite(problem):
    """A weight of the first filter is NaN. One of the last is -Inf, also where it meets the zeros of the padding."""
    assert_right_with_weights_that_are_not_finite(ALGORITHMS[NAME], problem)


@each_layout
@each_operand
def test_configurations_take_operands_that_start_anywhere(problem, operand):
    assert_configurations_take_an_operand_anywhere(ALGORITHMS[NAME], problem, operand)


@each_layout
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_bias_and_relu_follow_the_sum_and_keep_nan(problem, value):
    assert_bias_and_relu_keep_nan(NAME, problem, value)


@each_layout
def test_configurations_add_the_bias_of_each_filter(problem):
    x, weight = operands(problem)
    bias = bias_for(problem)
    truth = reference.conv2d(x, weight, bias=bias, **geometry(problem))
    for config in configurations(ALGORITHMS[NAME], problem):
        assert rel_l2_error(run(ALGORITHMS[NAME], problem, config, x, weight, bias=bias), truth) < TOLERANCE, config


@each_layout
def test_nothing_is_written_outside_the_output(problem):
    assert_nothing_is_written_outside(ALGORITHMS[NAME], problem)


def test_fp32_stands_in_for_tf32():
    x, weight = operands(EVEN)
    out = conv2d(x, weight, **geometry(EVEN), precision="tf32")
    assert torch.equal(out, conv2d(x, weight, **geometry(EVEN)))


def test_more_planes_than_a_grids_second_dimension_could_count():
    problem = ConvProblem(9000, 16, 3, 5, 16, 3, 3, 1, 1, groups=16)
    x, weight = operands(problem)
    out = conv2d(x, weight, **geometry(problem), algorithm=NAME)
    assert rel_l2_error(out, reference.conv2d(x, weight, **geometry(problem))) < TOLERANCE


@pytest.mark.parametrize("hw", [7, 230])
def test_tensors_of_more_than_2_to_the_31_elements(hw):
    """Both kinds of configuration, in the first and the last images."""
    channels = 1024 if hw == 7 else 32
    problem = ConvProblem(-(-(2**31) // (channels * hw * hw)) + 1, channels, hw, hw, channels, 3, 3, 1, 1)
    problem = replace(problem, groups=channels)
    x, weight = operands(problem)
    out = conv2d(x, weight, **geometry(problem), algorithm=NAME)
    for image in (0, problem.n - 1):
        truth = reference.conv2d(x[image : image + 1], weight, **geometry(problem))
        assert rel_l2_error(out[image : image + 1], truth) < TOLERANCE
