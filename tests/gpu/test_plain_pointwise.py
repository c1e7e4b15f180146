"""Tests of configurations of plain_pointwise: any plane, channels and filters over the edge, images sharing a tile."""

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
    configurations,
    each_operand,
    each_scales,
    run,
)
from tests.gpu.problems import TOLERANCE, bias_for, geometry, operands, rel_l2_error

NAME = "plain_pointwise"
ONE = ConvProblem(1, 1, 4, 5, 1, 1, 1)
EIGHT = ConvProblem(3, 8, 17, 13, 24, 1, 1)
ODD = ConvProblem(2, 13, 29, 31, 37, 1, 1)
SQUEEZE = ConvProblem(4, 16, 55, 55, 64, 1, 1)
SMALL_PLANES = ConvProblem(41, 24, 4, 5, 33, 1, 1)  # a tile of many images
MANY_FILTERS = ConvProblem(2, 32, 9, 20, 515, 1, 1)
DEEP = ConvProblem(5, 47, 14, 14, 9, 1, 1)
DEEPEST = ConvProblem(2, 64, 28, 28, 256, 1, 1)
PROBLEMS = [ONE, EIGHT, ODD, SQUEEZE, SMALL_PLANES, MANY_FILTERS, DEEP, DEEPEST]
each_problem = pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.label)
each_layout = pytest.mark.parametrize("problem", [EIGHT, ODD, SMALL_PLANES, DEEP], ids=lambda problem: problem.label)


@each_problem
def test_configurations_are_right_and_the_same_every_time(problem):
    assert_right_and_the_same_every_time(ALGORITHMS[NAME], problem, repeats=3)


@each_problem
def test_weights_that_are_not_finite(problem):
    """A weight of the first filter is NaN, and one of the last is -Inf: no other filter's output sees them."""
    assert_right_with_weights_that_are_not_finite(ALGORITHMS[NAME], problem)


@each_layout
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_inputs_that_are_not_finite_change_their_own_outputs(problem, value):
    x, weight = operands(problem)
    x[-1, -1, -1, -1] = value
    truth = reference.conv2d(x, weight)
    for config in configurations(ALGORITHMS[NAME], problem):
        out = run(ALGORITHMS[NAME], problem, config, x, weight)
        assert torch.allclose(out.double(), truth, rtol=1e-4, atol=1e-4, equal_nan=True), config


@pytest.mark.parametrize("problem", [ODD, DEEP], ids=lambda problem: problem.label)
@each_scales
def test_channels_of_any_magnitude(problem, scales):
    """Plain FP32 products, so that very small and very large channels are as accurate as others."""
    assert_channels_may_be_of_any_magnitude(ALGORITHMS[NAME], problem, scales)


@each_layout
@each_operand
def test_configurations_take_operands_that_start_anywhere(problem, operand):
    assert_configurations_take_an_operand_anywhere(ALGORITHMS[NAME], problem, operand)


@each_layout
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_bias_and_relu_follow_the_sum_and_keep_nan(problem, value):
    assert_bias_and_relu_keep_nan(NAME, problem, value)


@each_problem
def test_a_residual_and_an_activation_follow_the_bias(problem):
    x, weight = operands(problem)
    bias, residual = bias_for(problem), torch.randn(problem.output_shape, device="cuda")
    truth = reference.conv2d(x, weight, bias=bias) + residual.double()
    out = conv2d(x, weight, bias, residual=residual, activation="silu", algorithm=NAME)
    assert rel_l2_error(out, torch.nn.functional.silu(truth)) < TOLERANCE


@each_layout
def test_nothing_is_written_outside_the_output(problem):
    assert_nothing_is_written_outside(ALGORITHMS[NAME], problem)


def test_tensors_of_more_than_2_to_the_31_elements():
    """In the first and the last images, of the input and of the output."""
    for channels, filters in ((64, 2), (2, 64)):
        problem = ConvProblem(2**31 // (64 * 230 * 230) + 1, channels, 230, 230, filters, 1, 1)
        x, weight = operands(problem)
        out = conv2d(x, weight, **geometry(problem), algorithm=NAME)
        for image in (0, problem.n - 1):
            truth = reference.conv2d(x[image : image + 1], weight)
            assert rel_l2_error(out[image : image + 1], truth) < TOLERANCE
