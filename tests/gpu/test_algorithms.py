"""Every algorithm, and auto, against float64. A new algorithm is covered by being registered."""

import pytest
import torch

from cuconv import ConvProblem, UnsupportedProblem, algorithms, conv2d, reference
from tests.gpu.problems import LAYERS, ODD, TOLERANCE, error_of, operands, pads, poisoned_output, rel_l2_error

ALGORITHMS = ["auto", *algorithms()]
SMALL = ConvProblem(3, 24, 14, 13, 40, 3, 3, 1, 1)
each_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS)


@each_algorithm
@pytest.mark.parametrize("problem", LAYERS, ids=lambda problem: problem.label)
def test_layers_of_the_networks(algorithm, problem):
    assert error_of(problem, algorithm) < TOLERANCE


@each_algorithm
@pytest.mark.parametrize("problem", ODD, ids=str)
def test_odd_shapes(algorithm, problem):
    try:
        error = error_of(problem, algorithm)
    except UnsupportedProblem:
        assert algorithm not in ("auto", "two_stage"), "these two compute everything"
        return
    assert error < TOLERANCE


@each_algorithm
@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e12, 1e30])
def test_magnitudes_are_those_of_float32(algorithm, scale):
    """Large inputs with small weights: products are ordinary, operands are near the ends of the range."""
    x, weight = operands(SMALL)
    out = conv2d(x * scale, weight / scale, padding=1, algorithm=algorithm)
    assert rel_l2_error(out, reference.conv2d(x * scale, weight / scale, (1, 1))) < TOLERANCE


@each_algorithm
def test_mixed_magnitudes_across_channels(algorithm):
    """Channels from 1e-18 to 1e18 with weights that balance them, so that each matters equally."""
    x, weight = operands(SMALL)
    scale = torch.logspace(-18, 18, SMALL.c, device="cuda")[None, :, None, None]
    out = conv2d(x * scale, weight / scale, padding=1, algorithm=algorithm)
    assert rel_l2_error(out, reference.conv2d(x * scale, weight / scale, (1, 1))) < TOLERANCE


@each_algorithm
def test_subnormal_results_are_kept(algorithm):
    x, weight = operands(SMALL)
    small = 1e-41 / 20
    out = conv2d(x * 1e-20, weight * (small / 1e-20), padding=1, algorithm=algorithm)
    truth = reference.conv2d(x * 1e-20, weight * (small / 1e-20), (1, 1))
    assert float(out.abs().max()) > 0
    assert float((out.double() - truth).abs().max()) < SMALL.c * 9 * 2e-45  # half a subnormal step a product


@each_algorithm
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("operand", ["input", "weight"])
def test_nan_and_infinity_go_where_a_plain_sum_takes_them(algorithm, value, operand):
    x, weight = operands(SMALL)
    if operand == "input":
        x[1, 5, 6, 0] = value
    else:
        weight[7, 3, 1, 2] = value
    out = conv2d(x, weight, padding=1, algorithm=algorithm).double()
    truth = reference.conv2d(x, weight, (1, 1))
    assert torch.equal(out.isnan(), truth.isnan())
    assert torch.equal(out.isposinf(), truth.isposinf()) and torch.equal(out.isneginf(), truth.isneginf())
    finite = truth.isfinite()
    assert rel_l2_error(out[finite], truth[finite]) < TOLERANCE


@each_algorithm
def test_results_are_the_same_every_time(algorithm):
    x, weight = operands(SMALL)
    first = conv2d(x, weight, padding=1, algorithm=algorithm)
    assert all(torch.equal(conv2d(x, weight, padding=1, algorithm=algorithm), first) for _ in range(5))


@each_algorithm
@pytest.mark.parametrize("k", [1, 3])
def test_operands_need_only_the_alignment_of_a_float(algorithm, k):
    """Views that start one element into their memory."""
    problem = ConvProblem(2, 16, 8, 8, 16, k, k, k // 2, k // 2)
    x, weight = operands(problem)

    def shifted(tensor):
        return torch.cat([tensor.new_zeros(1), tensor.flatten()])[1:].view(tensor.shape)

    out = shifted(poisoned_output(problem))
    conv2d(shifted(x), shifted(weight), padding=k // 2, algorithm=algorithm, out=out)
    assert rel_l2_error(out, reference.conv2d(x, weight, pads(problem))) < TOLERANCE


@each_algorithm
def test_nothing_is_written_outside_the_output(algorithm):
    x, weight = operands(SMALL)
    size = torch.Size(SMALL.output_shape).numel()
    memory = torch.full((size + 2048,), 7.0, device="cuda")
    out = memory[1024 : 1024 + size].view(SMALL.output_shape)
    conv2d(x, weight, padding=1, algorithm=algorithm, out=out)
    assert bool((memory[:1024] == 7).all()) and bool((memory[-1024:] == 7).all())


@each_algorithm
def test_a_batch_of_gigabytes(algorithm):
    """256 x 64 x 224 x 224: tensors of 3.3 GB, where 32-bit byte offsets would wrap."""
    problem = ConvProblem(256, 64, 224, 224, 64, 3, 3, 1, 1)
    x, weight = operands(problem)
    out = conv2d(x, weight, padding=1, algorithm=algorithm)
    images = [0, 100, 200, 255]
    assert rel_l2_error(out[images], reference.conv2d(x[images], weight, (1, 1))) < TOLERANCE
