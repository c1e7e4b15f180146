"""Checks of many configurations of an algorithm, where `conv2d` runs only the one of least predicted time."""

from collections.abc import Callable
from math import inf

import pytest
import torch

from cuconv import ConvProblem, UnsupportedProblem, conv2d, reference
from cuconv.algorithms.base import Algorithm, CallOptions, Configuration
from cuconv.device import device_spec
from cuconv.runtime.launch_sequence import LaunchSequence
from harness.contenders.compiling import compile_launches
from tests.gpu.problems import (
    TOLERANCES,
    assert_same_with_non_finite,
    bias_for,
    geometry,
    operands,
    pads,
    poisoned_output,
    refusal_allowed,
    rel_l2_error,
)

each_precision = pytest.mark.parametrize("precision", TOLERANCES)
each_operand = pytest.mark.parametrize("operand", ["input", "weight", "out"])
# The factors of the first, second and last third of the channels.
each_scales = pytest.mark.parametrize(
    "scales", [(1e-20, 1, 1e20), (1e20, 1, 1e-20), (0, 1e-30, 1e-25), (1, 0, 1)], ids=str
)


# Configurations of a problem, at most, whose kernels are not of the closed set: most have a variant to compile.
OTHERS = 8


def selected(
    algorithm: Algorithm, problem: ConvProblem, wanted: Callable[[Configuration], bool] = lambda config: True
) -> list:
    """The wanted configurations whose kernels are of the closed set, and others, spread over all that are not.

    Skips the test if none can run on the current GPU.
    """
    spec = device_spec(torch.cuda.current_device())
    try:
        found = [config for config in algorithm.candidates(problem, spec) if wanted(config)]
    except UnsupportedProblem:
        pytest.skip("another architecture")
    listed = [config for config in found if algorithm.slowdown(problem, spec, config, CallOptions()) < inf]
    others = [config for config in found if config not in listed]
    assert found, f"{algorithm.name} has no such configuration for {problem.label}"
    return listed + others[:: -(-len(others) // OTHERS) or 1]


def configurations(
    algorithm: Algorithm, problem: ConvProblem, wanted: Callable[[Configuration], bool] = lambda config: True
) -> list:
    """The selected configurations, with their kernels compiled."""
    found = selected(algorithm, problem, wanted)
    compile_kernels(algorithm, problem, found)
    return found


def compile_kernels(algorithm: Algorithm, problem: ConvProblem, configs: list) -> None:
    """Compile the kernels of configurations, side by side."""
    launches = (one for config in configs for one in algorithm.launches(problem, config))
    compile_launches(launches, device_spec(torch.cuda.current_device()).arch)


def run(
    algorithm: Algorithm,
    problem: ConvProblem,
    config: Configuration,
    x: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    aligned: bool = True,
) -> torch.Tensor:
    """The output of a configuration; output and workspace are filled with NaN before the launch."""
    device = torch.cuda.current_device()
    launches = algorithm.launches(problem, config, CallOptions(aligned=aligned))
    sequence = LaunchSequence(launches, device_spec(device).arch, device)
    out = poisoned_output(problem) if out is None else out
    workspace = torch.full((config.workspace_bytes // 4 + 1,), torch.nan, device="cuda")
    stream = torch.cuda.current_stream().cuda_stream
    bias_address = 0 if bias is None else bias.data_ptr()
    sequence.enqueue(stream, x.data_ptr(), weight.data_ptr(), bias_address, out.data_ptr(), workspace.data_ptr())
    return out


def assert_right_and_the_same_every_time(algorithm: Algorithm, problem: ConvProblem, repeats: int) -> None:
    """Check configurations against float64 and for equal bits, on normal data and with an infinite input."""
    tolerance = TOLERANCES[problem.precision]
    configs = configurations(algorithm, problem)
    x, weight = operands(problem)
    infinite = x.clone()
    infinite[0, problem.c // 2, min(3, problem.h - 1), 4] = torch.inf
    truth, infinite_truth = (reference.conv2d(data, weight, **geometry(problem)) for data in (x, infinite))
    for config in configs:
        first = run(algorithm, problem, config, x, weight)
        assert rel_l2_error(first, truth) < tolerance, config
        assert all(torch.equal(run(algorithm, problem, config, x, weight), first) for _ in range(repeats)), config
        assert_same_with_non_finite(run(algorithm, problem, config, infinite, weight), infinite_truth, tolerance)


def assert_right_with_weights_that_are_not_finite(algorithm: Algorithm, problem: ConvProblem) -> None:
    """Check configurations with -Inf in the last filter and NaN in the first."""
    configs = configurations(algorithm, problem)
    x, weight = operands(problem)
    weight[-1].view(-1)[weight[-1].numel() // 3], weight[0].view(-1)[-1] = -torch.inf, torch.nan
    truth = reference.conv2d(x, weight, **geometry(problem))
    for config in configs:
        assert_same_with_non_finite(run(algorithm, problem, config, x, weight), truth)


def assert_scale_follows_chunks(name: str, problem: ConvProblem, scales: tuple[float, ...], precision: str) -> None:
    """Check an algorithm on thirds of the channels of different magnitude, with weights that balance them."""
    x, weight = operands(problem)
    third = -(-problem.c // 3)
    factors = torch.tensor(scales, device="cuda", dtype=torch.float32).repeat_interleave(third)[: problem.c]
    x *= factors[None, :, None, None]
    weight /= torch.where(factors > 0, factors, 1)[None, :, None, None]
    with refusal_allowed(name):
        out = conv2d(x, weight, padding=pads(problem), algorithm=name, precision=precision)
        assert rel_l2_error(out, reference.conv2d(x, weight, pads(problem))) < TOLERANCES[precision]


def assert_channels_may_be_of_any_magnitude(
    algorithm: Algorithm, problem: ConvProblem, scales: tuple[float, ...], step: int = 1
) -> None:
    """Check every `step`-th configuration of plain FP32 products on thirds of the channels of different magnitude."""
    x, weight = operands(problem)
    factors = torch.tensor(scales, device="cuda", dtype=torch.float32)
    factors = factors.repeat_interleave(-(-problem.c // 3))[: problem.c]
    x *= factors[None, :, None, None]
    weight /= torch.where(factors > 0, factors, 1)[None, :, None, None]
    truth = reference.conv2d(x, weight, **geometry(problem))
    for config in configurations(algorithm, problem)[::step]:
        assert rel_l2_error(run(algorithm, problem, config, x, weight), truth) < TOLERANCES["fp32"], config


def assert_nothing_is_written_outside(algorithm: Algorithm, problem: ConvProblem) -> None:
    """Check configurations, with a bias, on an output in the midst of other memory."""
    x, weight = operands(problem)
    bias = bias_for(problem)
    truth = reference.conv2d(x, weight, bias=bias, **geometry(problem))
    size = torch.Size(problem.output_shape).numel()
    for config in configurations(algorithm, problem):
        memory = torch.full((size + 2048,), 7.0, device="cuda")
        out = memory[1024 : 1024 + size].view(problem.output_shape)
        run(algorithm, problem, config, x, weight, out, bias=bias)
        assert rel_l2_error(out, truth) < TOLERANCES["fp32"], config
        assert bool((memory[:1024] == 7).all()) and bool((memory[-1024:] == 7).all()), config


def assert_operand_may_start_anywhere(name: str, problem: ConvProblem, operand: str) -> None:
    """Check an algorithm with an operand, "input", "weight" or "out", four bytes after an aligned address."""
    x, weight = operands(problem)
    data = {"input": x, "weight": weight, "out": poisoned_output(problem)}
    memory = torch.empty(data[operand].numel() + 1, device="cuda")[1:]
    data[operand] = memory.view_as(data[operand]).copy_(data[operand])
    with refusal_allowed(name):
        conv2d(data["input"], data["weight"], padding=pads(problem), out=data["out"], algorithm=name)
        assert rel_l2_error(data["out"], reference.conv2d(x, weight, pads(problem))) < TOLERANCES["fp32"]


def assert_configurations_take_an_operand_anywhere(algorithm: Algorithm, problem: ConvProblem, operand: str) -> None:
    """Check configurations with an operand, "input", "weight" or "out", four bytes after an aligned address."""
    x, weight = operands(problem)
    data = {"input": x, "weight": weight, "out": poisoned_output(problem)}
    memory = torch.empty(data[operand].numel() + 1, device="cuda")[1:]
    data[operand] = memory.view_as(data[operand]).copy_(data[operand])
    truth = reference.conv2d(x, weight, **geometry(problem))
    for config in configurations(algorithm, problem):
        data["out"].fill_(torch.nan)
        run(algorithm, problem, config, data["input"], data["weight"], data["out"], aligned=False)
        assert rel_l2_error(data["out"], truth) < TOLERANCES["fp32"], config


def assert_bias_and_relu_keep_nan(name: str, problem: ConvProblem, value: float) -> None:
    """Check an output with a NaN or infinity in the input: against float64, and to the bit against a plain call.

    Bias and ReLU are applied to the output of the plain call.
    """
    x, weight = operands(problem)
    x[-1, 1, 3, 4] = value
    weight[0].view(-1)[0] = 0  # 0 times an infinity gives a NaN
    bias, options = bias_for(problem), geometry(problem)
    out = conv2d(x, weight, bias, **options, relu=True, algorithm=name, out=poisoned_output(problem))
    assert_same_with_non_finite(out, reference.conv2d(x, weight, bias=bias, relu=True, **options))
    expected = conv2d(x, weight, **options, algorithm=name) + bias[:, None, None]
    assert torch.equal(out.nan_to_num(7), torch.where(expected < 0, 0, expected).nan_to_num(7))


def assert_zeros_give_zeros(name: str, problem: ConvProblem) -> None:
    """Check that an input of zeros gives zeros, and weights of zeros too."""
    x, weight = operands(problem)
    with refusal_allowed(name):
        assert not conv2d(torch.zeros_like(x), weight, padding=pads(problem), algorithm=name).any()
        assert not conv2d(x, torch.zeros_like(weight), padding=pads(problem), algorithm=name).any()
