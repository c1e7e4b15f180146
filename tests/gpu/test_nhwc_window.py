"""Tests of nhwc_window on a GPU: configurations, with every option of a call, and calls of conv2d."""

import pytest
import torch

from cuconv import ConvProblem
from cuconv.algorithms import ALGORITHMS
from cuconv.device import device_spec
from tests.gpu.half import (
    assert_configurations,
    assert_extreme_sums,
    assert_numbers_reach_their_outputs,
    assert_writes_a_slice,
    each_half,
    in_precision,
)

WINDOW = ALGORITHMS["nhwc_window"]
# Every swizzle, and channels without one; reductions that end within a step, a group and a box of weights; planes that
# no tile divides; filters that no vector, tile or block divides; filters larger than the image, of one row and of one
# column; unequal strides, dilations and padding; a stride that leaves rows of the image out.
PROBLEMS = [
    ConvProblem(3, 24, 14, 14, 64, 5, 5, 2, 2),
    ConvProblem(2, 16, 28, 19, 33, 5, 5, 2, 2),
    ConvProblem(2, 32, 13, 17, 128, 3, 3, 1, 1),
    ConvProblem(1, 64, 15, 30, 96, 3, 3, 1, 1, stride_h=2, stride_w=2),
    ConvProblem(3, 8, 11, 12, 7, 3, 3, 1, 1),
    ConvProblem(1, 48, 9, 9, 200, 5, 5, 2, 2),
    ConvProblem(1, 56, 10, 8, 40, 1, 5, 0, 4, stride_h=1, stride_w=3),
    ConvProblem(2, 40, 14, 12, 24, 5, 1, 4, 0, stride_h=2),
    ConvProblem(1, 8, 6, 16, 16, 1, 2),
    ConvProblem(2, 16, 9, 21, 20, 3, 3, 4, 2, dilation_h=4, dilation_w=2),
    ConvProblem(1, 24, 3, 5, 64, 7, 7, 5, 4),
    ConvProblem(1, 16, 40, 16, 32, 2, 2, stride_h=9, stride_w=2),
    ConvProblem(70, 32, 5, 7, 16, 3, 3, 1, 1),
]
# Channels that are padded: odd, even and a multiple of 4; and more of them than a swizzle takes.
PADDED = [
    ConvProblem(2, 3, 21, 18, 5, 7, 7, 6, 6, dilation_h=2, dilation_w=2),
    ConvProblem(1, 12, 13, 17, 20, 5, 5, 2, 2, stride_h=2, stride_w=2),
    ConvProblem(2, 50, 9, 10, 33, 3, 3, 1, 1),
    ConvProblem(2, 68, 9, 10, 3, 3, 3, 1, 1),
    ConvProblem(1, 77, 12, 9, 7, 5, 5, 2, 2),
]
MANY = [ConvProblem(1, 120, 12, 9, 24, 3, 3, 1, 1), ConvProblem(3, 72, 7, 11, 40, 2, 3, 1, 1, stride_w=2)]
each_problem = pytest.mark.parametrize("problem", [*PROBLEMS, *PADDED, *MANY], ids=lambda problem: problem.label)
each_small = pytest.mark.parametrize("problem", [*PROBLEMS[:6], *PADDED[:4]], ids=lambda problem: problem.label)


@each_half
@each_problem
def test_configurations(problem, precision):
    assert_configurations(WINDOW, in_precision(problem, precision))


def test_a_ring_whose_stages_are_filled_again_and_again():
    """A block has more tiles than the ring has stages, and the barriers' parity changes more than once."""
    problem = in_precision(ConvProblem(16, 32, 160, 160, 64, 3, 3, 1, 1), "fp16")
    configs = WINDOW.candidates(problem, device_spec(torch.cuda.current_device()))
    assert any(config.turns > 2 * config.stages for config in configs)
    assert_configurations(WINDOW, problem)


def test_configurations_in_many_calls_that_overlap():
    problem = in_precision(ConvProblem(4, 24, 28, 28, 64, 5, 5, 2, 2), "fp16")
    assert_configurations(WINDOW, problem, 30)


@each_half
@each_small
@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_numbers_that_are_not_finite_reach_the_outputs_that_read_them_alone(number, problem, precision):
    c, h, w = problem.c, problem.h, problem.w
    pixels = ((0, 0), (h // 2, w // 2), (h - 1, w - 1), (4, 5))
    places = [(channel, *pixel) for pixel in pixels for channel in (0, c // 2, c - 1)]
    assert_numbers_reach_their_outputs("nhwc_window", in_precision(problem, precision), number, places)


@each_half
@each_small
def test_large_sums_overflow_to_infinity_and_small_ones_keep_their_bits(problem, precision):
    assert_extreme_sums("nhwc_window", in_precision(problem, precision))


@each_half
@each_small
@pytest.mark.parametrize("start", [8, 3])
def test_a_slice_of_channels(start, problem, precision):
    assert_writes_a_slice("nhwc_window", in_precision(problem, precision), start)
