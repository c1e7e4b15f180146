"""Tests of configurations of direct: tiles over the edge, shares of a sum, filters wider than a step, strides."""

import pytest
import torch

from cuconv import ConvProblem, conv2d, reference
from cuconv.algorithms import ALGORITHMS
from tests.gpu.configurations import (
    assert_bias_and_relu_keep_nan,
    assert_channels_may_be_of_any_magnitude,
    assert_configurations_take_an_operand_anywhere,
    assert_nothing_is_written_outside,
    assert_right_and_the_same_every_time,
    assert_right_with_weights_that_are_not_finite,
    each_operand,
    each_scales,
)
from tests.gpu.problems import (
    TOLERANCE,
    geometry,
    operands,
    rel_l2_error,
)

NAME = "direct"
THREE = ConvProblem(2, 37, 29, 36, 3, 3, 3, 1, 1)
FIVE = ConvProblem(1, 19, 33, 31, 7, 5, 5, 2, 2)
POINTWISE = ConvProblem(3, 70, 17, 19, 2, 1, 1)
PADDED_POINTWISE = ConvProblem(2, 9, 11, 12, 4, 1, 1, 1, 2)
NINE = ConvProblem(1, 10, 40, 44, 3, 9, 9, 4, 4)
BLUR = ConvProblem(2, 1, 50, 71, 1, 33, 33, 16, 16)
COLOURS = ConvProblem(2, 3, 40, 37, 3, 21, 21, 10, 10, groups=3)
ROWS = ConvProblem(1, 3, 23, 130, 3, 1, 31, 0, 15, groups=3)
COLUMN = ConvProblem(1, 3, 90, 23, 6, 31, 1, 15, 0, groups=3)
SMALL = ConvProblem(5, 64, 16, 16, 1, 15, 15, 7, 7)
SIGNALS = ConvProblem(3, 1, 22, 301, 8, 1, 64, 0, 32)
MANY_FILTERS = ConvProblem(2, 1, 7, 260, 40, 1, 125, 0, 62)
STRIDED = ConvProblem(2, 21, 27, 34, 5, 7, 6, 3, 2, stride_h=2, stride_w=2)
STRIDES = ConvProblem(2, 12, 25, 26, 8, 3, 3, 1, 1, stride_h=3, stride_w=2, groups=2)
BEYOND = ConvProblem(1, 5, 21, 22, 2, 2, 2, stride_h=3, stride_w=4)  # strides beyond the filter
GROUPS = ConvProblem(3, 40, 13, 15, 12, 3, 3, 1, 1, groups=4)
WIDE_PADDING = ConvProblem(2, 3, 5, 6, 2, 2, 3, 5, 9)
LONG = ConvProblem(1, 1031, 5, 6, 12, 2, 2)
ONE = ConvProblem(1, 1, 4, 5, 1, 1, 1)
PROBLEMS = [
    THREE, FIVE, POINTWISE, PADDED_POINTWISE, NINE, BLUR, COLOURS, ROWS, COLUMN, SMALL, SIGNALS, MANY_FILTERS, STRIDED,
    STRIDES, BEYOND, GROUPS, WIDE_PADDING, LONG, ONE,
]  # fmt: skip
each_problem = pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.label)
each_layout = pytest.mark.parametrize(
    "problem", [THREE, NINE, COLOURS, SMALL, STRIDED, GROUPS], ids=lambda problem: problem.label
)


@each_problem
def test_configurations_are_right_and_the_same_every_time(problem):
    assert_right_and_the_same_every_time(ALGORITHMS[NAME], problem, repeats=3)


@each_problem
def test_weights_that_are_not_finite(problem):
    """A weight of the first filter is NaN. One of the last is -Inf, also where it meets the zeros of the padding."""
    assert_right_with_weights_that_are_not_finite(ALGORITHMS[NAME], problem)


@pytest.mark.parametrize("problem", [THREE, NINE, LONG], ids=lambda problem: problem.label)
@each_scales
def test_channels_of_any_magnitude(problem, scales):
    """Plain FP32 products, so that very small and very large channels are as accurate as others."""
    assert_channels_may_be_of_any_magnitude(ALGORITHMS[NAME], problem, scales, step=3)


@each_layout
@each_operand
def test_configurations_take_operands_that_start_anywhere(problem, operand):
    assert_configurations_take_an_operand_anywhere(ALGORITHMS[NAME], problem, operand)


@each_layout
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_bias_and_relu_follow_the_sum_and_keep_nan(problem, value):
    assert_bias_and_relu_keep_nan(NAME, problem, value)


@each_layout
def test_nothing_is_written_outside_the_output(problem):
    assert_nothing_is_written_outside(ALGORITHMS[NAME], problem)


def test_fp32_stands_in_for_tf32():
    x, weight = operands(BLUR)
    out = conv2d(x, weight, **geometry(BLUR), precision="tf32")
    assert torch.equal(out, conv2d(x, weight, **geometry(BLUR), algorithm=NAME))


def test_tensors_of_more_than_2_to_the_31_elements():
    """In the first and the last images, of the input and of the output."""
    for channels, filters in ((64, 2), (2, 64)):
        problem = ConvProblem(2**31 // (64 * 230 * 230) + 1, channels, 230, 230, filters, 3, 3, 1, 1)
        x, weight = operands(problem)
        out = conv2d(x, weight, **geometry(problem), algorithm=NAME)
        for image in (0, problem.n - 1):
            truth = reference.conv2d(x[image : image + 1], weight, **geometry(problem))
            assert rel_l2_error(out[image : image + 1], truth) < TOLERANCE
