"""Tests of nhwc_depthwise on a GPU: every configuration, with every option of a call, and calls of conv2d."""

from dataclasses import replace

import pytest
import torch

import cuconv
from cuconv import ConvProblem, reference
from cuconv.algorithms import ALGORITHMS
from tests.gpu.half import assert_every_configuration, assert_rounded_once, each_half, in_half, tensors


def depthwise(n, c, h, w, kh, kw, pad_h, pad_w, **more):
    return ConvProblem(n, c, h, w, c, kh, kw, pad_h, pad_w, groups=c, **more)


# The geometries that are macros, and others; channels of one vector, of blocks that they do not fill, and of several;
# planes that no strip divides; filters larger than the image.
PROBLEMS = [
    depthwise(2, 24, 13, 9, 3, 3, 1, 1),
    depthwise(1, 264, 14, 15, 3, 3, 0, 2),
    depthwise(3, 96, 11, 12, 3, 3, 1, 1, stride_h=2, stride_w=2),
    depthwise(2, 40, 7, 7, 5, 5, 2, 2),
    depthwise(1, 8, 19, 6, 5, 5, 2, 2, stride_h=2, stride_w=2),
    depthwise(2, 72, 14, 14, 7, 7, 3, 3),
    depthwise(1, 16, 3, 4, 7, 7, 5, 4),
    depthwise(2, 56, 10, 9, 9, 4, 4, 0),
    depthwise(1, 520, 9, 13, 3, 3, 2, 2, dilation_h=2, dilation_w=2),
    depthwise(1, 32, 16, 17, 1, 5, 0, 2, stride_h=3, stride_w=1),
    depthwise(1, 16, 40, 41, 31, 31, 15, 15),
]
each_problem = pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.label)


@each_half
@each_problem
def test_every_configuration(problem, precision):
    assert_every_configuration(ALGORITHMS["nhwc_depthwise"], in_half(problem, precision))


def test_every_configuration_in_many_calls_that_overlap():
    assert_every_configuration(ALGORITHMS["nhwc_depthwise"], in_half(depthwise(8, 144, 28, 28, 3, 3, 1, 1), "fp16"), 30)


@each_half
def test_numbers_that_are_not_finite_stay_in_their_channel(precision):
    problem = in_half(PROBLEMS[0], precision)
    x, weight = tensors(problem)
    x[0, 3, 4, 4], x[1, 7, 0, 0] = torch.nan, torch.inf
    out = cuconv.conv2d(x, weight, **problem.geometry)
    assert_rounded_once(out, reference.conv2d(x, weight, **problem.geometry))
    assert out[0, 3].isnan().any() and not out[:, [2, 4, 6, 8]].isnan().any()


@each_half
def test_an_image_does_not_depend_on_its_batch(precision):
    problem = in_half(depthwise(70, 64, 14, 14, 3, 3, 1, 1), precision)
    x, weight = tensors(problem)
    many = cuconv.conv2d(x, weight, **problem.geometry, algorithm="batch_invariant")
    for n in (1, 9):
        few = cuconv.conv2d(x[:n], weight, **replace(problem, n=n).geometry, algorithm="batch_invariant")
        assert torch.equal(few, many[:n])
