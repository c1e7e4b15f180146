"""Tests of nhwc_stem on a GPU: configurations, with every option of a call, and calls of conv2d."""

from dataclasses import replace

import pytest
import torch

import cuconv
from cuconv import ConvProblem, UnsupportedProblem, reference
from cuconv.algorithms import ALGORITHMS
from cuconv.device import device_spec
from tests.gpu.half import (
    assert_configurations,
    assert_extreme_sums,
    assert_numbers_reach_their_outputs,
    assert_rounded_once,
    assert_writes_a_slice,
    each_half,
    in_precision,
    tensors,
)

STEM = ALGORITHMS["nhwc_stem"]
# Each number of channels; filter rows of odd and even numbers of elements; windows that start at odd elements; planes
# that no tile divides; filters that no vector, tile or block divides; filters larger than the image, of one row and of
# one column; unequal strides and padding; long reductions; a stride that leaves rows of the image out.
PROBLEMS = [
    ConvProblem(3, 3, 31, 32, 64, 7, 7, 3, 3, stride_h=2, stride_w=2),
    ConvProblem(1, 3, 37, 40, 96, 11, 11, 2, 2, stride_h=4, stride_w=4),
    ConvProblem(3, 3, 19, 24, 33, 3, 3, 1, 1),
    ConvProblem(1, 1, 29, 32, 8, 5, 5),
    ConvProblem(3, 1, 9, 40, 7, 3, 3, 1, 1),
    ConvProblem(1, 2, 17, 20, 16, 3, 3, 1, 1, stride_h=2, stride_w=2),
    ConvProblem(3, 4, 21, 18, 96, 4, 4, stride_h=4, stride_w=4),
    ConvProblem(1, 5, 11, 8, 200, 3, 5, 0, 4, stride_h=1, stride_w=3),
    ConvProblem(1, 6, 14, 12, 24, 5, 1, 4, 0, stride_h=2),
    ConvProblem(3, 7, 6, 16, 40, 2, 2, 1, 1),
    ConvProblem(1, 8, 13, 15, 128, 3, 3, 1, 1, stride_h=2, stride_w=2),
    ConvProblem(3, 1, 1, 400, 1, 1, 9, 0, 4, stride_w=2),
    ConvProblem(1, 3, 3, 8, 64, 7, 7, 5, 4),
    ConvProblem(1, 8, 30, 12, 64, 21, 9, 3, 3),
    ConvProblem(70, 3, 5, 8, 16, 1, 1),
    ConvProblem(1, 3, 40, 16, 32, 1, 1, stride_h=9, stride_w=2),
]
SMALL = PROBLEMS[:7]
each_problem = pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.label)
each_small = pytest.mark.parametrize("problem", SMALL, ids=lambda problem: problem.label)


@each_half
@each_problem
def test_configurations(problem, precision):
    assert_configurations(STEM, in_precision(problem, precision))


def test_a_ring_whose_stages_are_filled_again_and_again():
    """A block has more tiles than the ring has stages, and the barriers' parity changes more than once."""
    problem = in_precision(ConvProblem(16, 3, 224, 224, 64, 3, 3, 1, 1), "fp16")
    configs = STEM.candidates(problem, device_spec(torch.cuda.current_device()))
    assert any(config.turns > 2 * config.stages for config in configs)
    assert_configurations(STEM, problem)


def test_configurations_in_many_calls_that_overlap():
    problem = in_precision(ConvProblem(4, 3, 112, 112, 64, 7, 7, 3, 3, stride_h=2, stride_w=2), "fp16")
    assert_configurations(STEM, problem, 30)


@each_half
@each_small
@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_numbers_that_are_not_finite_reach_the_outputs_that_read_them_alone(number, problem, precision):
    """Each place in turn has the number, so that it also lies right behind the end of a filter's row."""
    c, h, w = problem.c, problem.h, problem.w
    pixels = ((0, 0), (h // 2, w // 2), (h - 1, w - 1), (4, 5), (4, 6))
    places = [(row % c, row, column) for row, column in pixels]
    assert_numbers_reach_their_outputs("nhwc_stem", in_precision(problem, precision), number, places)


@each_half
@each_small
def test_large_sums_overflow_to_infinity_and_small_ones_keep_their_bits(problem, precision):
    assert_extreme_sums("nhwc_stem", in_precision(problem, precision))


@each_half
@each_small
@pytest.mark.parametrize("start", [8, 3])
def test_a_slice_of_channels(start, problem, precision):
    assert_writes_a_slice("nhwc_stem", in_precision(problem, precision), start)


@each_half
def test_an_input_that_starts_anywhere_is_copied_first(precision):
    problem = in_precision(PROBLEMS[0], precision)
    x, weight = tensors(problem)
    memory = torch.empty(x.numel() + 1, device="cuda", dtype=x.dtype)[1:]
    shifted = memory.as_strided(x.shape, x.stride()).copy_(x)
    out = cuconv.conv2d(shifted, weight, **problem.geometry)
    assert_rounded_once(out, reference.conv2d(x, weight, **problem.geometry))
    with pytest.raises(UnsupportedProblem, match="input does not start"):
        cuconv.conv2d(shifted, weight, **problem.geometry, algorithm="nhwc_stem")


@each_half
def test_an_image_does_not_depend_on_its_batch(precision):
    problem = in_precision(replace(PROBLEMS[0], n=70), precision)
    x, weight = tensors(problem)
    many = cuconv.conv2d(x, weight, **problem.geometry, algorithm="batch_invariant")
    for n in (1, 9):
        few = cuconv.conv2d(x[:n], weight, **replace(problem, n=n).geometry, algorithm="batch_invariant")
        assert torch.equal(few, many[:n])
