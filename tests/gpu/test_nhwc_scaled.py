"""Tests of nhwc_scaled on a GPU: configurations, with every option of a call, and operands beyond FP16's range."""

import pytest
import torch

import cuconv
from cuconv import ConvProblem, reference
from cuconv.algorithms import ALGORITHMS
from tests.gpu.half import (
    LARGE,
    TF32,
    assert_configurations,
    assert_rounded_once,
    each_tf32,
    in_precision,
    tensors,
)
from tests.gpu.problems import TOLERANCES, rel_l2_error

SCALED = ALGORITHMS["nhwc_scaled"]
SMALL = ConvProblem(2, 72, 13, 9, 40, 3, 3, 1, 1, precision=TF32)
each_dense = pytest.mark.parametrize(
    "problem",
    [one for one in each_tf32.args[1] if one.groups == 1],
    ids=lambda problem: problem.label,
)


def convolved(x, weight, problem=SMALL):
    return cuconv.conv2d(x, weight, **problem.geometry, algorithm="nhwc_scaled", precision="tf32")


@each_dense
def test_configurations(problem):
    assert_configurations(SCALED, in_precision(problem, TF32))


@pytest.mark.parametrize("problem", LARGE[:2], ids=lambda problem: problem.label)
def test_configurations_in_many_calls_that_overlap(problem):
    assert_configurations(SCALED, in_precision(problem, TF32), repeats=30)


def test_numbers_that_grow_along_the_reduction():
    """Each channel is larger than those before: the scale of a pixel is lowered again and again."""
    x, weight = tensors(SMALL)
    growth = torch.logspace(-30, 30, SMALL.c, device="cuda")[:, None, None]
    x, weight = x * growth, weight / growth
    assert_rounded_once(convolved(x, weight), reference.conv2d(x, weight, **SMALL.geometry))


def test_pixels_of_very_different_size():
    """A pixel's scale is its own: the outputs that read small pixels alone are as accurate as the others."""
    problem = ConvProblem(2, 64, 12, 12, 48, 1, 1, precision=TF32)
    x, weight = tensors(problem)
    sizes = torch.logspace(-25, 25, 144, device="cuda").reshape(12, 12)
    out, truth = convolved(x * sizes, weight, problem), reference.conv2d(x * sizes, weight)
    for y in range(12):
        for column in range(12):
            at = (..., y, column)
            assert rel_l2_error(out[at], truth[at]) < 2 * TOLERANCES["tf32"]  # of few outputs


def test_filters_of_very_different_size():
    x, weight = tensors(SMALL)
    weight = weight * torch.logspace(-30, 30, SMALL.m, device="cuda")[:, None, None, None]
    out, truth = convolved(x, weight), reference.conv2d(x, weight, **SMALL.geometry)
    for filter in range(SMALL.m):
        assert rel_l2_error(out[:, filter], truth[:, filter]) < TOLERANCES["tf32"]


def test_numbers_below_the_largest_of_their_sum_have_all_their_bits():
    """Channels at 2^-20 of the largest one, whose weights make up for it."""
    x, weight = tensors(SMALL)
    x[:, ::2] *= 2.0**-20
    weight[:, 1::2] *= 2.0**-20
    assert_rounded_once(convolved(x, weight), reference.conv2d(x, weight, **SMALL.geometry))


def test_images_beside_an_unusual_one_keep_their_bits():
    x, weight = tensors(SMALL)
    before = convolved(x, weight)
    x[0] *= 1e20
    assert torch.equal(convolved(x, weight)[1], before[1])


def test_zeros():
    x, weight = tensors(SMALL)
    assert not convolved(x * 0, weight).any() and not convolved(x, weight * 0).any()


def test_sums_that_overflow_and_small_ones():
    for scale in (1e18, 1e-18):
        x, weight = tensors(SMALL, scale=scale)
        assert_rounded_once(convolved(x, weight), reference.conv2d(x, weight, **SMALL.geometry))


@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_numbers_that_are_not_finite(number):
    for place in ((0, 0, 0), (5, 6, 4), (71, 12, 8)):
        x, weight = tensors(SMALL)
        x[-1, *place] = number
        assert_rounded_once(convolved(x, weight), reference.conv2d(x, weight, **SMALL.geometry), place)
    x, weight = tensors(SMALL)
    weight[0, 0, 0, 0], weight[-1, -1, -1, -1] = number, -number
    assert_rounded_once(convolved(x, weight), reference.conv2d(x, weight, **SMALL.geometry))
