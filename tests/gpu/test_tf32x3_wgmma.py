"""Every tile and split of the Hopper GEMM, not only those that it chooses."""

import pytest
import torch

from cuconv import ConvProblem, UnsupportedProblem, reference
from cuconv.algorithms import tf32x3_wgmma
from cuconv.device import device_spec
from cuconv.jit import LaunchSequence
from tests.gpu.problems import TOLERANCE, assert_same_with_non_finite, operands, pads, poisoned_output, rel_l2_error

LINEAR = ConvProblem(1, 130, 7, 9, 40, 3, 3, 1, 1)  # 37 stages: enough for two warpgroups in each of 16 blocks
PADDED_POINTWISE = ConvProblem(2, 1050, 7, 9, 40, 1, 1, 1, 0)


def configurations(problem):
    """None on another architecture."""
    try:
        return tf32x3_wgmma.candidates(problem, device_spec(torch.cuda.current_device()))
    except UnsupportedProblem:
        return []


def prepared(problem, config):
    device = torch.cuda.current_device()
    launches = tf32x3_wgmma.launches(problem, config, aligned=True, relu=False)
    return LaunchSequence(launches, device_spec(device).arch, device)


def run(problem, sequence, x, weight):
    out = poisoned_output(problem)
    stream = torch.cuda.current_stream().cuda_stream
    sequence.enqueue(stream, x.data_ptr(), weight.data_ptr(), 0, out.data_ptr(), 0)
    return out


@pytest.mark.parametrize("problem", [LINEAR, PADDED_POINTWISE], ids=str)
def test_every_configuration_is_right_and_the_same_every_time(problem):
    x, weight = operands(problem)
    infinite = x.clone()
    infinite[0, 5, 3, 4] = torch.inf
    truth, infinite_truth = (reference.conv2d(data, weight, pads(problem)) for data in (x, infinite))
    for config in configurations(problem):
        sequence = prepared(problem, config)
        first = run(problem, sequence, x, weight)
        assert rel_l2_error(first, truth) < TOLERANCE, config
        assert all(torch.equal(run(problem, sequence, x, weight), first) for _ in range(5)), config
        assert_same_with_non_finite(run(problem, sequence, infinite, weight), infinite_truth)
