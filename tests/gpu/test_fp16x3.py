"""Tests of configurations of fp16x3, and of inputs whose scale changes from chunk to chunk."""

from dataclasses import replace

import pytest
import torch

from cuconv import ConvProblem, conv2d, reference
from cuconv.algorithms import ALGORITHMS
from tests.gpu.configurations import (
    assert_right_and_the_same_every_time,
    assert_scale_follows_chunks,
    assert_zeros_give_zeros,
    each_precision,
    each_scales,
)
from tests.gpu.problems import TOLERANCES, operands, refusal_allowed, rel_l2_error

NAME = "fp16x3"
# Nine chunks: tiles that several blocks share, and blocks with several tiles.
DEEP = ConvProblem(2, 130, 9, 11, 150, 3, 3, 1, 1)
FEW_FILTERS = ConvProblem(4, 40, 20, 20, 20, 5, 5, 2, 2)  # narrow tiles; weight packing without a cluster
WIDE = ConvProblem(1, 20, 70, 200, 70, 3, 3, 1, 1)  # much halo, or strips
# Filters in pieces: rows and columns that pieces divide or not, and more padding than the filter has rows; images of
# one strip and of several, with fewer columns than a strip could have.
CUT = [
    ConvProblem(2, 20, 23, 150, 70, 9, 11, 4, 5),
    ConvProblem(1, 33, 40, 17, 24, 15, 1, 20, 0),
    ConvProblem(3, 16, 5, 130, 130, 1, 31, 0, 15),
    ConvProblem(1, 8, 66, 70, 8, 64, 64),
    ConvProblem(2, 130, 8, 9, 150, 3, 8, 3, 2),
]
# Phases of the outputs where there is a dilation, and of the taps where there is a stride; fewer taps than phases.
SPREAD = [
    ConvProblem(2, 20, 23, 50, 70, 3, 3, 2, 2, dilation_h=2, dilation_w=2),
    ConvProblem(1, 33, 40, 17, 24, 7, 5, 3, 2, stride_h=2, stride_w=2),
    ConvProblem(3, 16, 5, 130, 130, 1, 11, 0, 25, dilation_w=5),
    ConvProblem(1, 20, 31, 41, 40, 5, 9, 7, 2, stride_h=4, stride_w=2, dilation_h=6, dilation_w=4),
    ConvProblem(2, 24, 30, 33, 130, 3, 8, 1, 3, stride_h=4, stride_w=3),
]
# Whole images, of which neighbouring taps read positions that are further apart; rows as long as a chain may be.
LINES = [
    ConvProblem(2, 33, 1, 1300, 130, 1, 11, 0, 25, dilation_w=5),
    ConvProblem(3, 20, 9, 31, 24, 3, 3, 4, 3, dilation_h=2, dilation_w=3),
    ConvProblem(2, 40, 9, 30, 70, 4, 11, 1, 5),
]


@each_precision
@pytest.mark.parametrize("problem", [DEEP, FEW_FILTERS, WIDE, *CUT, *SPREAD, *LINES], ids=str)
def test_configurations_are_right_and_the_same_every_time(problem, precision):
    assert_right_and_the_same_every_time(ALGORITHMS[NAME], replace(problem, precision=precision), repeats=5)


@each_precision
@pytest.mark.parametrize("problem", [DEEP, FEW_FILTERS, CUT[0], SPREAD[1], LINES[1]], ids=str)
@each_scales
def test_the_scale_follows_the_chunks(problem, scales, precision):
    assert_scale_follows_chunks(NAME, problem, scales, precision)


def test_an_image_beside_one_a_million_times_larger_has_the_accuracy_of_tf32():
    """The images share a scale. It starts out right for a largest element of 1, the least that keeps it."""
    x, weight = operands(DEEP)
    x *= 1.01 / x.abs().max()
    x[1] *= 2.0**-20
    with refusal_allowed(NAME):
        out = conv2d(x, weight, padding=1, algorithm=NAME, precision="tf32")
        assert rel_l2_error(out[1], reference.conv2d(x, weight, (1, 1))[1]) < TOLERANCES["tf32"]


@pytest.mark.parametrize("problem", [DEEP, CUT[0]], ids=str)
def test_zeros_give_zeros(problem):
    assert_zeros_give_zeros(NAME, problem)


@pytest.mark.parametrize("number", [torch.nan, torch.inf])
@pytest.mark.parametrize("problem", [CUT[0], SPREAD[0], SPREAD[3], LINES[1]], ids=str)
def test_a_number_that_is_not_finite_reaches_the_outputs_that_read_it_and_no_other(problem, number):
    """Also where the last piece of a filter reaches beyond the filter, and multiplies the number by a zero."""
    x, weight = operands(problem)
    for place in ((0, 0, 0), (problem.c - 1, problem.h - 1, problem.w - 1), (7, problem.h // 2, 30)):
        bad = x.clone()
        bad[-1, *place] = number
        with refusal_allowed(NAME):
            out = conv2d(bad, weight, **problem.geometry, algorithm=NAME)
            truth = reference.conv2d(bad, weight, **problem.geometry)
            assert torch.equal(out.isnan(), truth.isnan()) and torch.equal(out.isinf(), truth.isinf())
            finite = truth.isfinite()
            assert rel_l2_error(out[finite], truth[finite]) < TOLERANCES["fp32"]
