"""Stride, dilation and groups of every algorithm, against float64."""

import random
from dataclasses import replace

import pytest
import torch

from cuconv import ConvProblem, UnsupportedProblem, algorithms, conv2d, reference
from cuconv.algorithms import ALGORITHMS
from tests.gpu.configurations import assert_right_and_the_same_every_time
from tests.gpu.problems import (
    SPARSE,
    TOLERANCE,
    TOLERANCES,
    assert_same_with_non_finite,
    bias_for,
    error_of,
    geometry,
    operands,
    poisoned_output,
    refusal_allowed,
    rel_l2_error,
)

each_algorithm = pytest.mark.parametrize("algorithm", ["auto", "batch_invariant", *algorithms()])
each_sparse = pytest.mark.parametrize("problem", SPARSE, ids=lambda problem: problem.label)


def random_problems(count: int) -> list[ConvProblem]:
    """Problems of random sizes, strides, dilations and groups, with equal seeds equal."""
    numbers, found = random.Random(7), []
    while len(found) < count:
        groups = numbers.choice([1, 1, 2, 3, 8])
        channels, filters = groups * numbers.choice([1, 2, 5, 16, 33]), groups * numbers.choice([1, 3, 8, 20])
        sizes = [numbers.randint(1, 24) for _ in range(2)] + [filters] + [numbers.randint(1, 5) for _ in range(2)]
        pads = [numbers.randint(0, 4) for _ in range(2)]
        steps = [numbers.choice([1, 1, 2, 3]) for _ in range(4)]
        try:
            found.append(ConvProblem(numbers.randint(1, 4), channels, *sizes, *pads, "fp32", *steps, groups))
        except UnsupportedProblem:
            continue  # the filter is larger than the padded input
    return found


@each_algorithm
@each_sparse
def test_strides_dilations_and_groups(algorithm, problem):
    with refusal_allowed(algorithm, problem.is_dense):
        assert error_of(problem, algorithm) < TOLERANCE


@each_sparse
def test_in_tf32(problem):
    problem = replace(problem, precision="tf32")
    assert error_of(problem, "auto") < TOLERANCES["tf32"]


@each_algorithm
@each_sparse
def test_bias_and_relu(algorithm, problem):
    x, weight = operands(problem)
    bias = bias_for(problem)
    truth = reference.conv2d(x, weight, bias=bias, relu=True, **geometry(problem))
    with refusal_allowed(algorithm, problem.is_dense):
        out = conv2d(x, weight, bias, **geometry(problem), relu=True, algorithm=algorithm)
        assert rel_l2_error(out, truth) < TOLERANCE


@each_algorithm
@each_sparse
def test_nan_and_infinities(algorithm, problem):
    x, weight = operands(problem)
    x[-1, -1, -1, -1], x[0, 0, 0, 0], weight[0, 0, 0, 0] = torch.inf, -torch.inf, torch.nan
    truth = reference.conv2d(x, weight, **geometry(problem))
    with refusal_allowed(algorithm, problem.is_dense):
        assert_same_with_non_finite(conv2d(x, weight, **geometry(problem), algorithm=algorithm), truth)


@pytest.mark.parametrize("problem", random_problems(150), ids=str)
def test_random_problems(problem):
    x, weight = operands(problem)
    truth = reference.conv2d(x, weight, **geometry(problem))
    for algorithm in ("auto", "tf32x3_gemm"):
        out = poisoned_output(problem)
        conv2d(x, weight, **geometry(problem), algorithm=algorithm, out=out)
        assert_same_with_non_finite(out, truth)  # of zeros alone where no filter position meets the input


@pytest.mark.parametrize("algorithm", ["tf32x3_gemm", "tf32x3_wgmma"])
@pytest.mark.parametrize("precision", TOLERANCES)
@pytest.mark.parametrize(
    "problem",
    [
        ConvProblem(2, 130, 9, 10, 136, 3, 3, 1, 1, stride_h=2, stride_w=2),
        ConvProblem(1, 260, 12, 11, 100, 1, 1, stride_h=2, stride_w=2),
        ConvProblem(1, 96, 13, 12, 80, 3, 3, 2, 1, dilation_h=2, groups=2),
    ],
    ids=lambda problem: problem.label,
)
def test_configurations(algorithm, precision, problem):
    assert_right_and_the_same_every_time(ALGORITHMS[algorithm], replace(problem, precision=precision), repeats=3)


def test_an_image_without_a_batch():
    problem = ConvProblem(1, 12, 14, 9, 20, 3, 3, 1, 1, stride_h=2, stride_w=2)
    x, weight = operands(problem)
    truth = reference.conv2d(x, weight, **geometry(problem))[0]
    out = poisoned_output(problem)[0]
    assert conv2d(x[0], weight, **geometry(problem), out=out) is out
    for output in (out, conv2d(x[0], weight, None, 2, 1)):
        assert output.shape == truth.shape
        assert rel_l2_error(output, truth) < TOLERANCE


def test_arguments_in_torchs_order():
    problem = ConvProblem(2, 12, 14, 9, 20, 3, 3, 2, 1, "fp32", 2, 1, 2, 1, 2)
    x, weight = operands(problem)
    bias = bias_for(problem)
    ours = conv2d(x, weight, bias, (2, 1), (2, 1), (2, 1), 2)
    torchs = torch.nn.functional.conv2d(x.double(), weight.double(), bias.double(), (2, 1), (2, 1), (2, 1), 2)
    assert rel_l2_error(ours, torchs) < TOLERANCE
