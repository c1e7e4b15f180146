"""Tests of nhwc_depthwise on a GPU: configurations, with every option of a call, and calls of conv2d."""

from dataclasses import replace

import pytest
import torch

import cuconv
from cuconv import ConvProblem, reference
from cuconv.algorithms import ALGORITHMS
from cuconv.device import device_spec
from tests.gpu.half import assert_configurations, assert_rounded_once, each_half, in_precision, tensors


def depthwise(n, c, h, w, kh, kw, pad_h, pad_w, **more):
    return ConvProblem(n, c, h, w, c, kh, kw, pad_h, pad_w, groups=c, **more)


# The geometries that are macros, and others; channels of one vector, of channel blocks that they do not fill, and of
# several; planes that no tile divides, and tiles of several images; filters larger than the image, and long ones;
# windows as large as a box of a tensor map, of odd widths, and of which only one or two fit in shared memory.
PROBLEMS = [
    depthwise(2, 24, 13, 9, 3, 3, 1, 1),
    depthwise(1, 264, 14, 15, 3, 3, 0, 2),
    depthwise(3, 96, 11, 12, 3, 3, 1, 1, stride_h=2, stride_w=2),
    depthwise(2, 104, 37, 45, 3, 3, 1, 1),
    depthwise(2, 40, 7, 7, 5, 5, 2, 2),
    depthwise(13, 72, 7, 5, 5, 5, 2, 2),
    depthwise(1, 8, 19, 6, 5, 5, 2, 2, stride_h=2, stride_w=2),
    depthwise(3, 144, 35, 43, 5, 5, 1, 3, stride_h=2, stride_w=2),
    depthwise(2, 72, 14, 14, 7, 7, 3, 3),
    depthwise(1, 48, 33, 30, 7, 7, 3, 3),
    depthwise(1, 16, 3, 4, 7, 7, 5, 4),
    depthwise(2, 56, 10, 9, 9, 4, 4, 0),
    depthwise(1, 520, 9, 13, 3, 3, 2, 2, dilation_h=2, dilation_w=2),
    depthwise(1, 32, 16, 17, 1, 5, 0, 2, stride_h=3, stride_w=1),
    depthwise(1, 16, 40, 41, 31, 31, 15, 15),
    depthwise(3, 64, 1, 700, 1, 31, 0, 15),
    depthwise(1, 24, 300, 3, 256, 1, 20, 0),
    depthwise(1, 128, 90, 85, 3, 3, 40, 40, dilation_h=40, dilation_w=40),
    depthwise(1, 8, 130, 140, 3, 3, 7, 0, dilation_h=55, dilation_w=55),
    depthwise(1, 40, 50, 47, 1, 1, 2, 1, stride_h=9, stride_w=20),
]
each_problem = pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.label)


@each_half
@each_problem
def test_configurations(problem, precision):
    assert_configurations(ALGORITHMS["nhwc_depthwise"], in_precision(problem, precision))


def test_a_ring_whose_stages_are_filled_again_and_again():
    """A block has more tiles than the ring has stages, and the barriers' parity changes more than once."""
    problem = in_precision(depthwise(8, 512, 57, 55, 3, 3, 1, 1), "fp16")
    configs = ALGORITHMS["nhwc_depthwise"].candidates(problem, device_spec(torch.cuda.current_device()))
    assert any(config.turns > 2 * config.stages for config in configs)
    assert_configurations(ALGORITHMS["nhwc_depthwise"], problem)


def test_configurations_in_many_calls_that_overlap():
    problem = in_precision(depthwise(8, 144, 28, 28, 3, 3, 1, 1), "fp16")
    assert_configurations(ALGORITHMS["nhwc_depthwise"], problem, 30)


@each_half
def test_numbers_that_are_not_finite_stay_in_their_channel(precision):
    problem = in_precision(PROBLEMS[0], precision)
    x, weight = tensors(problem)
    x[0, 3, 4, 4], x[1, 7, 0, 0] = torch.nan, torch.inf
    out = cuconv.conv2d(x, weight, **problem.geometry)
    assert_rounded_once(out, reference.conv2d(x, weight, **problem.geometry))
    assert out[0, 3].isnan().any() and not out[:, [2, 4, 6, 8]].isnan().any()


@each_half
def test_an_image_does_not_depend_on_its_batch(precision):
    problem = in_precision(depthwise(70, 64, 14, 14, 3, 3, 1, 1), precision)
    x, weight = tensors(problem)
    many = cuconv.conv2d(x, weight, **problem.geometry, algorithm="batch_invariant")
    for n in (1, 9):
        few = cuconv.conv2d(x[:n], weight, **replace(problem, n=n).geometry, algorithm="batch_invariant")
        assert torch.equal(few, many[:n])
