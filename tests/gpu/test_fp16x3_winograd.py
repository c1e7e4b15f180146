"""Every tile and share of work of the Winograd kernel, and inputs whose scale changes from chunk to chunk."""

import pytest
import torch

from cuconv import ConvProblem, UnsupportedProblem, conv2d, reference
from cuconv.algorithms import fp16x3_winograd
from cuconv.device import device_spec
from cuconv.jit import LaunchSequence
from tests.gpu.problems import (
    TOLERANCE,
    assert_same_with_non_finite,
    operands,
    pads,
    poisoned_output,
    refusal_allowed,
    rel_l2_error,
)

DEEP = ConvProblem(
    2, 130, 9, 11, 150, 3, 3, 1, 1
)  # nine chunks: tiles that several blocks share, and blocks with several
FEW_FILTERS = ConvProblem(4, 40, 20, 20, 20, 5, 5, 2, 2)  # tiles with many positions
WIDE = ConvProblem(1, 20, 70, 200, 70, 3, 3, 1, 1)  # much halo


def run(problem, config, x, weight):
    device = torch.cuda.current_device()
    launches = fp16x3_winograd.launches(problem, config, aligned=True, relu=False)
    sequence = LaunchSequence(launches, device_spec(device).arch, device)
    out = poisoned_output(problem)
    workspace = torch.full((config.workspace_bytes // 4 + 1,), torch.nan, device="cuda")
    stream = torch.cuda.current_stream().cuda_stream
    sequence.enqueue(stream, x.data_ptr(), weight.data_ptr(), 0, out.data_ptr(), workspace.data_ptr())
    return out


@pytest.mark.parametrize("problem", [DEEP, FEW_FILTERS, WIDE], ids=str)
def test_every_configuration_is_right_and_the_same_every_time(problem):
    try:
        configs = fp16x3_winograd.candidates(problem, device_spec(torch.cuda.current_device()))
    except UnsupportedProblem:
        pytest.skip("another architecture")
    x, weight = operands(problem)
    infinite = x.clone()
    infinite[0, 5, 3, 4] = torch.inf
    truth, infinite_truth = (reference.conv2d(data, weight, pads(problem)) for data in (x, infinite))
    for config in configs:
        first = run(problem, config, x, weight)
        assert rel_l2_error(first, truth) < TOLERANCE, config
        assert all(torch.equal(run(problem, config, x, weight), first) for _ in range(5)), config
        assert_same_with_non_finite(run(problem, config, infinite, weight), infinite_truth)


@pytest.mark.parametrize("problem", [DEEP, FEW_FILTERS], ids=str)
@pytest.mark.parametrize("scales", [(1e-20, 1, 1e20), (1e20, 1, 1e-20), (0, 1e-30, 1e-25), (1, 0, 1)], ids=str)
def test_the_scale_follows_the_chunks(problem, scales):
    """Thirds of the channels of different magnitude, weights that balance them where they can."""
    x, weight = operands(problem)
    third = -(-problem.c // 3)
    factors = torch.tensor(scales, device="cuda", dtype=torch.float32).repeat_interleave(third)[: problem.c]
    x *= factors[None, :, None, None]
    weight /= torch.where(factors > 0, factors, 1)[None, :, None, None]
    with refusal_allowed("fp16x3_winograd"):
        out = conv2d(x, weight, padding=pads(problem), algorithm="fp16x3_winograd")
        assert rel_l2_error(out, reference.conv2d(x, weight, pads(problem))) < TOLERANCE


def test_an_input_of_zeros_gives_zeros():
    x, weight = operands(DEEP)
    with refusal_allowed("fp16x3_winograd"):
        assert not conv2d(torch.zeros_like(x), weight, padding=1, algorithm="fp16x3_winograd").any()
        assert not conv2d(x, torch.zeros_like(weight), padding=1, algorithm="fp16x3_winograd").any()
