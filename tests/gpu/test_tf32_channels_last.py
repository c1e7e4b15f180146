"""Tests of TF32 of float32 tensors in channels last on a GPU, through the library's entry points."""

import pytest
import torch

from cuconv import ConvProblem, conv2d, prepare, reference
from tests.gpu.half import TF32, assert_rounded_once, each_tf32, in_precision, poisoned, tensors

SMALL = [
    ConvProblem(3, 24, 14, 13, 40, 3, 3, 1, 1),
    ConvProblem(1, 512, 7, 7, 136, 3, 3, 1, 1),
    ConvProblem(2, 36, 14, 13, 30, 3, 3, 1, 1, groups=3),
]
each_small = pytest.mark.parametrize("problem", SMALL, ids=lambda problem: problem.label)
each_algorithm = pytest.mark.parametrize("algorithm", ["auto", "batch_invariant", "nhwc_wgmma", "nhwc_split"])


@each_tf32
def test_auto_keeps_the_layout(problem):
    x, weight = tensors(in_precision(problem, TF32))
    out = conv2d(x, weight, **problem.geometry, precision="tf32")
    assert out.dtype == x.dtype and out.is_contiguous(memory_format=torch.channels_last)
    assert_rounded_once(out, reference.conv2d(x, weight, **problem.geometry))


@each_small
@each_algorithm
def test_bias_residual_and_relu(algorithm, problem):
    x, weight = tensors(in_precision(problem, TF32))
    bias = torch.randn(problem.m, device="cuda")
    residual = torch.randn(problem.output_shape, device="cuda").to(memory_format=torch.channels_last)
    truth = reference.conv2d(x, weight, bias=bias, **problem.geometry) + residual.double()
    options = {**problem.geometry, "relu": True, "algorithm": algorithm, "precision": "tf32"}
    out = conv2d(x, weight, bias, **options, residual=residual)
    assert_rounded_once(out, truth.clamp_min(0))
    layer = prepare(weight, bias, **options)
    for _ in range(3):
        assert torch.equal(layer(x, residual), out)


@each_small
@each_algorithm
def test_the_operands_are_rounded_to_the_nearest(algorithm, problem):
    """Truncation would lose 5e-4 of a sum of positive products on average."""
    x, weight = (one.abs() for one in tensors(in_precision(problem, TF32)))
    out = conv2d(x, weight, **problem.geometry, algorithm=algorithm, precision="tf32").double()
    truth = reference.conv2d(x, weight, **problem.geometry)
    assert abs((out / truth).mean().item() - 1) < 3e-5


@each_small
@each_algorithm
def test_numbers_that_are_not_finite_reach_the_outputs_that_read_them(algorithm, problem):
    x, weight = tensors(in_precision(problem, TF32))
    x[0, 3, 2, 4], x[-1, 5, 0, 0] = torch.inf, torch.nan
    weight[1, 2, 1, 1], weight[-1, 0, 0, 0] = -torch.inf, torch.nan
    out = conv2d(x, weight, **problem.geometry, algorithm=algorithm, precision="tf32")
    assert_rounded_once(out, reference.conv2d(x, weight, **problem.geometry))


@each_small
@pytest.mark.parametrize("channels", [0, 1, 8])
def test_it_writes_to_a_slice_of_channels_and_to_nothing_else(channels, problem):
    x, weight = tensors(in_precision(problem, TF32))
    whole = poisoned(
        in_precision(ConvProblem(problem.n, 1, *problem.output_shape[2:], problem.m + channels, 1, 1), TF32)
    )
    for start in {0, channels // 2, channels}:
        whole.fill_(torch.nan)
        out = whole[:, start : start + problem.m]
        assert conv2d(x, weight, **problem.geometry, out=out, precision="tf32") is out
        assert_rounded_once(out, reference.conv2d(x, weight, **problem.geometry))
        assert whole[:, :start].isnan().all() and whole[:, start + problem.m :].isnan().all()


@each_small
def test_extreme_magnitudes(problem):
    for scale in (1e15, 1e-15):
        x, weight = tensors(in_precision(problem, TF32), scale=scale)
        out = conv2d(x, weight, **problem.geometry, precision="tf32")
        assert_rounded_once(out, reference.conv2d(x, weight, **problem.geometry))
