"""A residual, added before ReLU, with every algorithm."""

from contextlib import suppress

import pytest
import torch

from cuconv import ConvProblem, UnsupportedProblem, algorithms, conv2d, reference
from tests.gpu.problems import (
    SPARSE,
    TOLERANCES,
    UNEVEN,
    assert_same_with_non_finite,
    bias_for,
    geometry,
    operands,
    poisoned_output,
    refusal_allowed,
)

# Large enough for every pixel layout of fp16x3_pointwise, for split-K and for tiles that a cluster shares.
LARGE = [
    ConvProblem(1, 256, 56, 56, 64, 1, 1),
    ConvProblem(8, 128, 28, 28, 512, 1, 1),
    ConvProblem(16, 512, 7, 7, 2048, 1, 1),
    ConvProblem(4, 100, 27, 27, 300, 1, 1),
    ConvProblem(2, 256, 14, 14, 256, 3, 3, 1, 1),
    ConvProblem(8, 64, 56, 56, 64, 3, 3, 1, 1),
]
each_algorithm = pytest.mark.parametrize("algorithm", ["auto", *algorithms()])
each_precision = pytest.mark.parametrize("precision", TOLERANCES)
each_problem = pytest.mark.parametrize("problem", [*UNEVEN, *LARGE, *SPARSE], ids=lambda problem: problem.label)


def residual_for(problem: ConvProblem) -> torch.Tensor:
    """A residual as large as the sums, so that a wrong element shows."""
    generator = torch.Generator("cuda").manual_seed(9)
    scale = (problem.group_channels * problem.filter_area) ** 0.5
    return scale * torch.randn(problem.output_shape, generator=generator, device="cuda")


def truth_of(problem, x, weight, bias, residual, relu):
    truth = reference.conv2d(x, weight, bias=bias, **geometry(problem)) + residual.double()
    return torch.where(truth < 0, 0, truth) if relu else truth


@each_algorithm
@each_precision
@each_problem
@pytest.mark.parametrize("relu", [False, True])
def test_residual(algorithm, precision, problem, relu):
    x, weight = operands(problem)
    bias, residual = bias_for(problem), residual_for(problem)
    out = poisoned_output(problem)
    options = {"relu": relu, "residual": residual, "algorithm": algorithm, "precision": precision}
    allowed = refusal_allowed(algorithm, problem.is_dense) if precision == "fp32" else suppress(UnsupportedProblem)
    with allowed:
        conv2d(x, weight, bias, **geometry(problem), **options, out=out)
        truth = truth_of(problem, x, weight, bias, residual, relu)
        assert_same_with_non_finite(out, truth, TOLERANCES[precision])


@each_algorithm
@pytest.mark.parametrize("problem", LARGE, ids=lambda problem: problem.label)
def test_not_finite(algorithm, problem):
    """A NaN of the residual reaches its own output alone, and one of the sum is not lost."""
    x, weight = operands(problem)
    bias, residual = bias_for(problem), residual_for(problem)
    residual[0, 1, 2, 3], residual[-1, -1, -1, -1], x[0, 3, 1, 1] = torch.nan, torch.inf, -torch.inf
    truth = truth_of(problem, x, weight, bias, residual, relu=True)
    with refusal_allowed(algorithm):
        out = conv2d(x, weight, bias, **geometry(problem), relu=True, residual=residual, algorithm=algorithm)
        assert_same_with_non_finite(out, truth)


@each_algorithm
@pytest.mark.parametrize("problem", LARGE[:4], ids=lambda problem: problem.label)
def test_a_residual_may_start_anywhere(algorithm, problem):
    x, weight = operands(problem)
    residual = residual_for(problem)
    moved = torch.empty(residual.numel() + 1, device="cuda")[1:].view_as(residual).copy_(residual)
    with refusal_allowed(algorithm):
        aligned = conv2d(x, weight, residual=residual, algorithm=algorithm)
        shifted = conv2d(x, weight, residual=moved, algorithm=algorithm)
        truth = truth_of(problem, x, weight, None, residual, relu=False)
        for out in (aligned, shifted):
            assert_same_with_non_finite(out, truth)


def test_what_is_refused():
    problem = UNEVEN[0]
    x, weight = operands(problem)
    residual = residual_for(problem)
    refused = {
        "residual has shape": residual[:, 1:].contiguous(),
        "residual is torch.float16": residual.half(),
        "residual is not contiguous": residual.transpose(2, 3).contiguous().transpose(2, 3),
        "residual has 1 dimensions": residual.flatten(),
    }
    for message, wrong in refused.items():
        with pytest.raises(UnsupportedProblem, match=message):
            conv2d(x, weight, **geometry(problem), residual=wrong)
    with pytest.raises(UnsupportedProblem, match="out overlaps residual in memory"):
        conv2d(x, weight, **geometry(problem), residual=residual, out=residual)


def test_an_image_without_a_batch():
    problem = ConvProblem(1, 12, 14, 9, 20, 3, 3, 1, 1)
    x, weight = operands(problem)
    residual = residual_for(problem)
    truth = truth_of(problem, x, weight, None, residual, relu=True)[0]
    assert_same_with_non_finite(conv2d(x[0], weight, padding=1, relu=True, residual=residual[0]), truth)
