"""Every registered algorithm, and auto, against float64."""

import pytest
import torch

from cuconv import ConvProblem, algorithms, conv2d, reference
from tests.gpu.problems import (
    LAYERS,
    ODD,
    TOLERANCE,
    UNEVEN,
    assert_same_with_non_finite,
    bias_for,
    error_of,
    operands,
    pads,
    poisoned_output,
    refusal_allowed,
    rel_l2_error,
)

ALGORITHMS = ["auto", "batch_invariant", *algorithms()]
SMALL = ConvProblem(3, 24, 14, 13, 40, 3, 3, 1, 1)
SMALL_POINTWISE = ConvProblem(3, 24, 14, 13, 40, 1, 1)
each_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS)
each_small = pytest.mark.parametrize("problem", [SMALL, SMALL_POINTWISE], ids=str)


@each_algorithm
@pytest.mark.parametrize("problem", LAYERS, ids=lambda problem: problem.label)
def test_layers_of_the_networks(algorithm, problem):
    with refusal_allowed(algorithm):
        assert error_of(problem, algorithm) < TOLERANCE


@each_algorithm
@pytest.mark.parametrize("problem", ODD, ids=str)
def test_odd_shapes(algorithm, problem):
    with refusal_allowed(algorithm):
        assert error_of(problem, algorithm) < TOLERANCE


@each_algorithm
@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e12, 1e30])
@each_small
def test_magnitudes_are_those_of_float32(algorithm, problem, scale):
    """Inputs are near one end of the range of float32 and weights near the other; their products are near 1."""
    with refusal_allowed(algorithm):
        x, weight = operands(problem)
        out = conv2d(x * scale, weight / scale, padding=pads(problem), algorithm=algorithm)
        assert rel_l2_error(out, reference.conv2d(x * scale, weight / scale, pads(problem))) < TOLERANCE


@each_algorithm
@each_small
def test_mixed_magnitudes_across_channels(algorithm, problem):
    """Channels range from 1e-18 to 1e18, with weights that balance them, so that all matter equally."""
    with refusal_allowed(algorithm):
        x, weight = operands(problem)
        scale = torch.logspace(-18, 18, problem.c, device="cuda")[None, :, None, None]
        out = conv2d(x * scale, weight / scale, padding=pads(problem), algorithm=algorithm)
        assert rel_l2_error(out, reference.conv2d(x * scale, weight / scale, pads(problem))) < TOLERANCE


@each_algorithm
@each_small
def test_subnormal_results_are_kept(algorithm, problem):
    with refusal_allowed(algorithm):
        x, weight = operands(problem)
        small = 1e-41 / 20
        out = conv2d(x * 1e-20, weight * (small / 1e-20), padding=pads(problem), algorithm=algorithm)
        truth = reference.conv2d(x * 1e-20, weight * (small / 1e-20), pads(problem))
        assert float(out.abs().max()) > 0
        products = problem.c * problem.filter_area
        assert float((out.double() - truth).abs().max()) < products * 2e-45  # half a subnormal step each


@each_algorithm
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("operand", ["input", "weight"])
@each_small
def test_nan_and_infinity_go_where_a_plain_sum_takes_them(algorithm, problem, value, operand):
    with refusal_allowed(algorithm):
        x, weight = operands(problem)
        if operand == "input":
            x[1, 5, 6, 0] = value
        else:
            weight[7, 3, -1, -1] = value
        out = conv2d(x, weight, padding=pads(problem), algorithm=algorithm)
        assert_same_with_non_finite(out, reference.conv2d(x, weight, pads(problem)))


@each_algorithm
@pytest.mark.parametrize("problem", [SMALL, *UNEVEN], ids=str)
@pytest.mark.parametrize(("with_bias", "relu"), [(True, False), (False, True), (True, True)])
def test_bias_and_relu_follow_the_sum(algorithm, problem, with_bias, relu):
    """The output agrees with float64, and to the bit with bias and ReLU applied after a call without them."""
    x, weight = operands(problem)
    bias = bias_for(problem) if with_bias else None
    out = poisoned_output(problem)
    with refusal_allowed(algorithm):
        conv2d(x, weight, bias, padding=pads(problem), relu=relu, algorithm=algorithm, out=out)
        truth = reference.conv2d(x, weight, pads(problem), bias, relu)
        assert_same_with_non_finite(out, truth)
        expected = conv2d(x, weight, padding=pads(problem), algorithm=algorithm)
        if with_bias:
            expected += bias[:, None, None]
        assert torch.equal(out, torch.where(expected < 0, 0, expected) if relu else expected)


@each_algorithm
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@each_small
def test_relu_keeps_nan_and_drops_only_what_is_negative(algorithm, problem, value):
    with refusal_allowed(algorithm):
        x, weight = operands(problem)
        x[1, 5, 6, 0] = value
        weight[7, 3, -1, -1] = value
        weight[7, 5, problem.kh // 2, problem.kw // 2] = 0  # 0 times an infinity gives a NaN
        out = conv2d(x, weight, padding=pads(problem), relu=True, algorithm=algorithm)
        truth = reference.conv2d(x, weight, pads(problem), relu=True)
        assert bool(truth.isnan().any()) and not bool((truth < 0).any())
        assert_same_with_non_finite(out, truth)


@each_algorithm
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("k", [1, 3])
def test_a_bias_that_is_not_finite_reaches_every_output_of_its_filter(algorithm, relu, k):
    problem = ConvProblem(3, 24, 14, 13, 40, k, k, k // 2, k // 2)
    x, weight = operands(problem)
    x[2, 1, 3, 4] = torch.inf
    bias = bias_for(problem)
    bias[3], bias[17], bias[39] = torch.nan, torch.inf, -torch.inf
    with refusal_allowed(algorithm):
        out = conv2d(x, weight, bias, padding=k // 2, relu=relu, algorithm=algorithm)
        assert bool(out[:, 3].isnan().all())
        assert_same_with_non_finite(out, reference.conv2d(x, weight, pads(problem), bias, relu))


@each_algorithm
@each_small
def test_results_are_the_same_every_time(algorithm, problem):
    with refusal_allowed(algorithm):
        x, weight = operands(problem)
        first = conv2d(x, weight, padding=pads(problem), algorithm=algorithm)
        assert all(torch.equal(conv2d(x, weight, padding=pads(problem), algorithm=algorithm), first) for _ in range(5))


@each_algorithm
@pytest.mark.parametrize("k", [1, 3])
def test_operands_need_only_the_alignment_of_a_float(algorithm, k):
    """The operands are views that start four bytes after an aligned address."""
    problem = ConvProblem(2, 16, 8, 8, 16, k, k, k // 2, k // 2)
    x, weight = operands(problem)

    def shifted(tensor):
        return torch.cat([tensor.new_zeros(1), tensor.flatten()])[1:].view(tensor.shape)

    out, bias = shifted(poisoned_output(problem)), bias_for(problem)
    with refusal_allowed(algorithm):
        conv2d(shifted(x), shifted(weight), shifted(bias), padding=k // 2, algorithm=algorithm, out=out)
        assert rel_l2_error(out, reference.conv2d(x, weight, pads(problem), bias)) < TOLERANCE


@each_algorithm
@each_small
def test_nothing_is_written_outside_the_output(algorithm, problem):
    with refusal_allowed(algorithm):
        x, weight = operands(problem)
        size = torch.Size(problem.output_shape).numel()
        memory = torch.full((size + 2048,), 7.0, device="cuda")
        out = memory[1024 : 1024 + size].view(problem.output_shape)
        conv2d(x, weight, bias_for(problem), padding=pads(problem), relu=True, algorithm=algorithm, out=out)
        assert bool((memory[:1024] == 7).all()) and bool((memory[-1024:] == 7).all())


@each_algorithm
def test_a_batch_of_gigabytes(algorithm):
    """Tensors of 256 x 64 x 224 x 224 have 3.3 GB, where 32-bit byte offsets would wrap."""
    problem = ConvProblem(256, 64, 224, 224, 64, 3, 3, 1, 1)
    x, weight = operands(problem)
    bias = bias_for(problem)
    with refusal_allowed(algorithm):
        out = conv2d(x, weight, bias, padding=1, relu=True, algorithm=algorithm)
        images = [0, 100, 200, 255]
        assert rel_l2_error(out[images], reference.conv2d(x[images], weight, (1, 1), bias, True)) < TOLERANCE
