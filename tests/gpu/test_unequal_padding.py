"""Padding that differs at both ends of an axis: configurations of every algorithm, and calls, against float64."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import cuconv
import cuconv.nn
from cuconv import ConvProblem, UnsupportedProblem, reference
from cuconv.algorithms import ALGORITHMS
from cuconv.device import H200
from tests.gpu.configurations import assert_right_and_the_same_every_time
from tests.gpu.half import DTYPES, assert_configurations, assert_rounded_once, tensors
from tests.gpu.problems import TOLERANCE, operands, poisoned_output, rel_l2_error

# As "SAME" of TensorFlow, with and without a stride; causal; more above and left, and more below and right, with wide
# and narrow images; strides and dilations; one filter, few and many channels; groups; a 1x1 filter.
PROBLEMS = [
    ConvProblem(2, 33, 15, 18, 36, 3, 3, stride_h=2, stride_w=2, more_h=1, more_w=1),
    ConvProblem(1, 16, 9, 12, 24, 2, 2, more_h=1, more_w=1),
    ConvProblem(3, 130, 7, 65, 24, 1, 3, pad_w=2, more_w=-2),
    ConvProblem(2, 20, 13, 32, 70, 5, 5, 4, 4, more_h=-4, more_w=-3),
    ConvProblem(2, 64, 12, 20, 64, 3, 3, 1, 0, more_w=3),
    ConvProblem(2, 64, 12, 150, 64, 3, 3, 1, 2, more_h=-1, more_w=-1),
    ConvProblem(1, 40, 20, 18, 33, 3, 4, 1, 5, stride_h=2, dilation_h=1, dilation_w=3, more_h=3, more_w=-4),
    ConvProblem(2, 12, 19, 20, 5, 3, 3, 0, 2, more_h=2, more_w=-1),
    ConvProblem(2, 3, 12, 16, 17, 3, 3, 1, 2, more_w=-2),
    ConvProblem(2, 16, 9, 12, 16, 1, 1, more_h=1, more_w=4),
    ConvProblem(2, 28, 11, 12, 28, 3, 3, stride_h=2, stride_w=2, more_h=1, more_w=1, groups=28),
    ConvProblem(2, 16, 20, 24, 16, 5, 5, 2, 2, more_h=-1, more_w=2, groups=16),
    ConvProblem(2, 16, 9, 20, 32, 3, 3, 0, 1, more_h=1, more_w=-1, groups=4),
]
LAST = [
    ConvProblem(2, 24, 13, 10, 40, 3, 3, stride_h=2, stride_w=2, more_h=1, more_w=1),
    ConvProblem(3, 64, 7, 33, 24, 1, 3, pad_w=2, more_w=-2),
    ConvProblem(1, 128, 12, 9, 72, 2, 4, 3, 0, more_h=-2, more_w=3),
    ConvProblem(1, 40, 20, 18, 32, 3, 5, 1, 5, stride_h=2, dilation_w=3, more_h=3, more_w=-4),
    ConvProblem(2, 3, 31, 32, 64, 7, 7, 2, 2, stride_h=2, stride_w=2, more_h=1, more_w=1),
    ConvProblem(2, 5, 9, 11, 16, 3, 3, 0, 2, more_h=2, more_w=-1),
    ConvProblem(1, 129, 7, 7, 33, 1, 1, more_h=1, more_w=2),
    ConvProblem(3, 64, 11, 9, 64, 3, 3, 0, 1, more_h=1, more_w=-1, groups=8),
    ConvProblem(2, 24, 14, 15, 24, 3, 3, stride_h=2, stride_w=2, more_h=1, more_w=1, groups=24),
    ConvProblem(2, 16, 9, 20, 16, 5, 5, 4, 1, more_h=-4, more_w=3, groups=16),
]


def computed(problems, precisions):
    """Each algorithm and problem that it computes on a Hopper GPU."""
    found = []
    for name, algorithm in ALGORITHMS.items():
        for precision in sorted({*precisions} & {*algorithm.precisions}):
            for problem in problems:
                one = replace(problem, precision=precision)
                try:
                    algorithm.candidates(one, H200)
                except UnsupportedProblem:
                    continue
                found.append(pytest.param(name, one, id=f"{name}-{precision}-{problem.label}"))
    return found


@pytest.mark.parametrize(("name", "problem"), computed(PROBLEMS, ("fp32", "tf32")))
def test_configurations(name, problem):
    assert_right_and_the_same_every_time(ALGORITHMS[name], problem, repeats=2)


@pytest.mark.parametrize(("name", "problem"), computed(LAST, DTYPES))
def test_configurations_in_channels_last(name, problem):
    assert_configurations(ALGORITHMS[name], problem, repeats=2)


@pytest.mark.parametrize("algorithm", ["auto", "batch_invariant"])
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.label)
def test_calls(algorithm, problem):
    x, weight = operands(problem)
    truth = reference.conv2d(x, weight, **problem.geometry)
    out = cuconv.conv2d(x, weight, **problem.geometry, algorithm=algorithm, out=poisoned_output(problem))
    assert rel_l2_error(out, truth) < TOLERANCE
    if algorithm == "auto":
        assert rel_l2_error(cuconv.prepare(weight, **problem.geometry)(x), truth) < TOLERANCE


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("problem", LAST, ids=lambda problem: problem.label)
def test_calls_in_half_precision(precision, problem):
    problem = replace(problem, precision=precision)
    x, weight = tensors(problem)
    truth = reference.conv2d(x, weight, **problem.geometry)
    assert_rounded_once(cuconv.conv2d(x, weight, **problem.geometry), truth)
    assert_rounded_once(cuconv.prepare(weight, **problem.geometry)(x), truth)


@pytest.mark.parametrize("convolve", [cuconv.conv2d, cuconv.nn.conv2d])
@pytest.mark.parametrize("filter", [(2, 2), (3, 4)])
def test_same_padding_of_an_even_filter(convolve, filter):
    x, weight = torch.randn(2, 12, 17, 20, device="cuda"), torch.randn(9, 12, *filter, device="cuda")
    expected = F.conv2d(x.double(), weight.double(), padding="same")
    assert rel_l2_error(convolve(x, weight, padding="same"), expected) < TOLERANCE


@pytest.mark.parametrize("convolve", [cuconv.conv1d, cuconv.nn.conv1d])
def test_a_causal_convolution(convolve):
    x, weight = torch.randn(2, 24, 1001, device="cuda"), torch.randn(32, 24, 3, device="cuda")
    expected = F.conv1d(F.pad(x.double(), (8, 0)), weight.double(), dilation=4)
    assert rel_l2_error(convolve(x, weight, padding=(8, 0), dilation=4), expected) < TOLERANCE
