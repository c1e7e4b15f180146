"""The paper's algorithm in every kernel variant and number of passes, not only those that its rule chooses."""

from dataclasses import replace

import pytest
import torch

from cuconv import ConvProblem, conv2d, reference
from cuconv.algorithms import ALGORITHMS
from cuconv.algorithms.base import CallOptions
from cuconv.algorithms.two_stage.two_stage import REUSE
from cuconv.core.activation import NONE, RELU
from cuconv.device import device_spec
from cuconv.runtime.launch_sequence import LaunchSequence
from tests.gpu.problems import TOLERANCE, bias_for, operands, pads, poisoned_output, rel_l2_error

two_stage = ALGORITHMS["two_stage"]

PROBLEMS = [ConvProblem(5, 13, 11, 7, 19, k, k, k // 2, k // 2) for k in (1, 3)]
each_problem = pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.label)
each_pass = pytest.mark.parametrize("images_per_pass", [1, 2, 5])
each_reuse = pytest.mark.parametrize(("rows", "dots"), REUSE)


def error_of(problem: ConvProblem, bias: torch.Tensor | None = None, relu: bool = False, **geometry: int) -> float:
    """The relative L2 error with a launch geometry that configure() may not choose."""
    spec = device_spec(0)
    config = replace(two_stage.configure(problem, spec), **geometry)
    x, weight = operands(problem)
    out = poisoned_output(problem)
    planes = torch.full((problem.filter_area * out.numel(),), torch.nan, device="cuda")
    sequence = LaunchSequence(
        two_stage.launches(problem, config, CallOptions(activation=RELU if relu else NONE)), spec.arch, device=0
    )
    addresses = [0 if tensor is None else tensor.data_ptr() for tensor in (x, weight, bias, out, planes)]
    sequence.enqueue(torch.cuda.current_stream().cuda_stream, *addresses)
    return rel_l2_error(out, reference.conv2d(x, weight, pads(problem), bias, relu))


@each_problem
@each_pass
@pytest.mark.parametrize("channels_per_pass", [1, 4, 13])
@pytest.mark.parametrize("threads", [32, 96, 256])
@each_reuse
def test_every_geometry(problem, images_per_pass, channels_per_pass, threads, rows, dots):
    geometry = {"rows": rows, "dots": dots, "threads": threads}
    passes = {"channels_per_pass": channels_per_pass, "images_per_pass": images_per_pass}
    assert error_of(problem, **geometry, **passes) < TOLERANCE


@each_problem
@each_pass
@each_reuse
@pytest.mark.parametrize(("with_bias", "relu"), [(True, False), (False, True), (True, True)])
def test_bias_and_relu_in_every_pass(problem, images_per_pass, rows, dots, with_bias, relu):
    """The bias of each filter is added once, whichever images a pass holds, also in a partial group of filters."""
    bias = bias_for(problem) if with_bias else None
    geometry = {"rows": rows, "dots": dots, "threads": 96, "channels_per_pass": 4}
    assert error_of(problem, bias, relu, images_per_pass=images_per_pass, **geometry) < TOLERANCE


def test_a_batch_whose_planes_exceed_their_limit_goes_in_passes():
    problem = ConvProblem(21, 4, 225, 223, 61, 3, 3, 1, 1)
    assert two_stage.configure(problem, device_spec(0)).images_per_pass < problem.n
    x, weight = operands(problem)
    bias = bias_for(problem)
    out = conv2d(x, weight, bias, padding=1, relu=True, algorithm="two_stage", out=poisoned_output(problem))
    assert rel_l2_error(out, reference.conv2d(x, weight, (1, 1), bias, True)) < TOLERANCE


def test_an_element_beyond_32_bits_gets_the_bias_of_its_filter():
    """One image has 2.3e9 outputs: 9 GB, and twice that of planes."""
    problem = ConvProblem(1, 1, 4096, 4096, 136, 1, 2, 0, 1)
    x, weight = operands(problem)
    bias = bias_for(problem)
    out = conv2d(x, weight, bias, padding=(0, 1), algorithm="two_stage")
    filters = [0, 1, 127, 128, 135]
    assert rel_l2_error(out[:, filters], reference.conv2d(x, weight[filters], (0, 1), bias[filters])) < TOLERANCE
    del out
    torch.cuda.empty_cache()
