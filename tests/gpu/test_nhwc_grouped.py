"""Tests of nhwc_grouped on a GPU: configurations, with every option of a call, and calls of conv2d."""

from dataclasses import replace

import pytest
import torch

import cuconv
from cuconv import ConvProblem, reference
from cuconv.algorithms import ALGORITHMS
from cuconv.device import device_spec
from tests.gpu.half import (
    assert_configurations,
    assert_extreme_sums,
    assert_rounded_once,
    each_half,
    in_precision,
    tensors,
)

GROUPED = ALGORITHMS["nhwc_grouped"]


def grouped(n, groups, channels, h, w, kh, kw, pad_h, pad_w, **more):
    c = groups * channels
    return ConvProblem(n, c, h, w, c, kh, kw, pad_h, pad_w, groups=groups, **more)


# Groups of 2, 4, 8, 16 and 32 channels that fill channel blocks, and that do not; an odd and an even number of filter
# positions; planes that no tile divides, and of one row, column or pixel; filters larger than the image, and long ones;
# strides and dilations that differ; windows of which only one fits in shared memory.
PROBLEMS = [
    grouped(2, 3, 8, 13, 9, 3, 3, 1, 1),
    grouped(1, 32, 8, 28, 28, 3, 3, 1, 1),
    grouped(2, 32, 4, 19, 23, 3, 3, 1, 1, stride_h=2, stride_w=2),
    grouped(3, 6, 4, 9, 11, 5, 2, 2, 1),
    grouped(1, 20, 2, 31, 17, 3, 3, 1, 2, dilation_h=2, dilation_w=2),
    grouped(3, 32, 16, 15, 14, 3, 3, 1, 1, stride_h=2, stride_w=2),
    grouped(1, 5, 16, 37, 45, 3, 3, 0, 2),
    grouped(5, 3, 32, 7, 7, 3, 3, 1, 1),
    grouped(2, 9, 8, 7, 5, 2, 2, 0, 1),
    grouped(1, 2, 32, 19, 6, 5, 5, 2, 2, stride_h=1, stride_w=2),
    grouped(1, 7, 8, 3, 4, 7, 7, 5, 4),
    grouped(2, 4, 16, 33, 30, 4, 7, 3, 3, dilation_h=2, dilation_w=3),
    grouped(3, 4, 8, 1, 300, 1, 31, 0, 15),
    grouped(1, 2, 8, 300, 3, 64, 1, 20, 0),
    grouped(1, 16, 8, 90, 85, 3, 3, 21, 21, dilation_h=21, dilation_w=21),
    grouped(1, 6, 16, 50, 47, 1, 1, 2, 1, stride_h=3, stride_w=4),
    grouped(9, 2, 32, 1, 1, 3, 3, 1, 1),
]
each_problem = pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.label)


@each_half
@each_problem
def test_configurations(problem, precision):
    assert_configurations(GROUPED, in_precision(problem, precision))


def test_a_ring_whose_stages_are_filled_again_and_again():
    """A block has more tiles than the ring has stages, and the barriers' parity changes more than once."""
    problem = in_precision(grouped(32, 32, 8, 57, 55, 3, 3, 1, 1), "fp16")
    configs = GROUPED.candidates(problem, device_spec(torch.cuda.current_device()))
    assert any(config.turns > 2 * config.stages for config in configs)
    assert_configurations(GROUPED, problem)


def test_configurations_in_many_calls_that_overlap():
    assert_configurations(GROUPED, in_precision(grouped(8, 32, 16, 28, 28, 3, 3, 1, 1), "fp16"), 30)


@each_half
def test_sums_that_overflow_and_small_ones(precision):
    assert_extreme_sums("nhwc_grouped", in_precision(PROBLEMS[1], precision))


@each_half
@pytest.mark.parametrize("problem", PROBLEMS[:5], ids=lambda problem: problem.label)
def test_numbers_that_are_not_finite_stay_in_their_group(problem, precision):
    problem = in_precision(problem, precision)
    x, weight = tensors(problem)
    x[0, 3, 4, 4], x[-1, 17, 0, 0] = torch.nan, torch.inf
    weight[9, 0, 1, 1], weight[-1, -1, 0, 0] = -torch.inf, torch.nan
    out = cuconv.conv2d(x, weight, **problem.geometry, algorithm="nhwc_grouped")
    assert_rounded_once(out, reference.conv2d(x, weight, **problem.geometry))


@each_half
def test_an_image_does_not_depend_on_its_batch(precision):
    problem = in_precision(grouped(70, 8, 8, 14, 14, 3, 3, 1, 1), precision)
    x, weight = tensors(problem)
    many = cuconv.conv2d(x, weight, **problem.geometry, algorithm="batch_invariant")
    for n in (1, 9):
        few = cuconv.conv2d(x[:n], weight, **replace(problem, n=n).geometry, algorithm="batch_invariant")
        assert torch.equal(few, many[:n])
