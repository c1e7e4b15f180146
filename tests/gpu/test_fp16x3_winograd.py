"""Tests of configurations of fp16x3_winograd, of inputs whose scale changes, and of unaligned operands."""

import pytest
import torch

from cuconv import ConvProblem, conv2d, reference
from cuconv.algorithms import ALGORITHMS
from tests.gpu.configurations import (
    assert_operand_may_start_anywhere,
    assert_right_and_the_same_every_time,
    assert_right_with_weights_that_are_not_finite,
    assert_scale_follows_chunks,
    assert_zeros_give_zeros,
    each_operand,
    each_scales,
)
from tests.gpu.problems import (
    assert_same_with_non_finite,
    bias_for,
    operands,
    pads,
    refusal_allowed,
    rel_l2_error,
)

NAME = "fp16x3_winograd"
DEEP = ConvProblem(2, 130, 9, 11, 150, 3, 3, 1, 1)  # clusters of 3, which share a few tiles of nine chunks
PAIRS = ConvProblem(
    16, 50, 28, 28, 200, 3, 3, 1, 1
)  # clusters of 2, more tiles than run at a time; a part of eight channels
WASTE = ConvProblem(8, 72, 28, 30, 300, 3, 3, 1, 1)  # single blocks, and clusters that pad filters
FIVE = ConvProblem(4, 40, 20, 20, 96, 5, 5, 2, 2)
FEW_FILTERS = ConvProblem(4, 40, 20, 20, 20, 5, 5, 2, 2)  # single blocks
WIDE = ConvProblem(1, 36, 70, 200, 70, 3, 3, 1, 1)  # rows in strips
PROBLEMS = [DEEP, PAIRS, WASTE, FIVE, FEW_FILTERS, WIDE]


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_configurations_are_right_and_the_same_every_time(problem):
    assert_right_and_the_same_every_time(ALGORITHMS[NAME], problem, repeats=5)


@pytest.mark.parametrize("problem", [DEEP, FIVE], ids=str)
def test_weights_that_are_not_finite(problem):
    assert_right_with_weights_that_are_not_finite(ALGORITHMS[NAME], problem)


@pytest.mark.parametrize("problem", [DEEP, PAIRS, FIVE], ids=str)
@each_scales
def test_the_scale_follows_the_chunks(problem, scales):
    assert_scale_follows_chunks(NAME, problem, scales, "fp32")


@each_operand
def test_operands_may_start_anywhere(operand):
    assert_operand_may_start_anywhere(NAME, PAIRS, operand)


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_bias_and_relu(problem):
    x, weight = operands(problem)
    bias = bias_for(problem)
    x[0, 0, 0, 0] = torch.nan
    with refusal_allowed(NAME):
        out = conv2d(x, weight, bias, padding=pads(problem), relu=True, algorithm=NAME)
        assert_same_with_non_finite(out, reference.conv2d(x, weight, pads(problem), bias, relu=True))


@pytest.mark.parametrize("filters", [1, 7, 8, 9, 67])
def test_few_last_filters_of_images_of_unequal_scales(filters):
    """The tile's images are judged by eight filters, of which the last may be fewer."""
    problem = ConvProblem(4, 40, 7, 7, filters, 3, 3, 1, 1)
    x, weight = operands(problem)
    x[1] *= 1e-12
    x[2] = 0
    with refusal_allowed(NAME):
        out = conv2d(x, weight, padding=pads(problem), algorithm=NAME)
        expected = reference.conv2d(x, weight, pads(problem))
        for image in (0, 1, 3):
            assert rel_l2_error(out[image], expected[image]) < 1e-6, image
        assert not out[2].any()


@pytest.mark.parametrize("problem", [DEEP, PAIRS], ids=str)
def test_zeros_give_zeros(problem):
    assert_zeros_give_zeros(NAME, problem)
