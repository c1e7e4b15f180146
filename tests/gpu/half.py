"""Problems in channels last for the tests on a GPU, their operands, and how outputs are checked."""

from collections.abc import Iterable
from dataclasses import replace

import pytest
import torch

from cuconv import ConvProblem, conv2d, reference
from cuconv.algorithms.base import Algorithm, CallOptions
from cuconv.core.activation import RELU
from cuconv.device import device_spec
from cuconv.runtime.launch_sequence import LaunchSequence
from harness.contenders.compiling import compile_launches
from tests.gpu.configurations import selected
from tests.gpu.problems import TOLERANCES, rel_l2_error

HALVES = {"fp16": torch.float16, "bf16": torch.bfloat16}
TF32 = "tf32_channels_last"
DTYPES = {**HALVES, TF32: torch.float32}
WORSE = 1.05  # the most of an output's error over that of rounding the true output once

# Planes, filters and batches that no tile divides; channels of less than a box and of boxes and a half; filters that
# are not square or larger than the image; strides, dilations and padding, unequal on the axes; outputs of one column.
PROBLEMS = [
    ConvProblem(2, 24, 13, 9, 40, 3, 3, 1, 1),
    ConvProblem(3, 96, 7, 7, 72, 3, 5, 1, 2, stride_h=2, stride_w=2),
    ConvProblem(1, 8, 14, 14, 200, 3, 3, 2, 1, dilation_h=2, dilation_w=2),
    ConvProblem(4, 64, 5, 1, 8, 1, 1),
    ConvProblem(2, 48, 17, 17, 33, 5, 5, 2, 2),
    ConvProblem(1, 136, 9, 9, 7, 3, 3, 1, 1),
    ConvProblem(1, 128, 28, 28, 128, 3, 3, 1, 1),
    ConvProblem(1, 320, 6, 6, 257, 1, 1),
    ConvProblem(2, 72, 11, 11, 64, 2, 4, 0, 3, stride_h=3, stride_w=1),
    ConvProblem(1, 16, 4, 5, 24, 3, 3, 4, 4),
    ConvProblem(70, 16, 7, 5, 8, 7, 1, 3, 0),
    ConvProblem(1, 40, 20, 18, 32, 3, 5, 4, 8, dilation_h=4, dilation_w=4),
    # Channels that are padded.
    ConvProblem(2, 3, 31, 33, 64, 7, 7, 3, 3, stride_h=2, stride_w=2),
    ConvProblem(3, 1, 9, 5, 3, 3, 3, 1, 1),
    ConvProblem(1, 129, 7, 7, 33, 1, 1),
    # Groups: channels of less than a box, of boxes and a half, and of whole ones; filters of a group that a tensor map
    # writes and that threads write, in pairs and one by one; the largest padding and dilation.
    ConvProblem(3, 64, 11, 9, 64, 3, 3, 1, 1, groups=8),
    ConvProblem(2, 72, 13, 7, 60, 3, 5, 1, 2, stride_h=2, groups=3),
    ConvProblem(1, 128, 9, 14, 26, 3, 3, 2, 2, dilation_h=2, dilation_w=2, groups=2),
    ConvProblem(5, 256, 7, 7, 256, 3, 3, 1, 1, stride_h=2, stride_w=2, groups=32),
    ConvProblem(70, 48, 7, 5, 144, 1, 1, groups=2),
    ConvProblem(1, 16, 40, 36, 6, 2, 2, 15, 15, dilation_h=31, dilation_w=31, groups=2),
]
# Many blocks for each SM, which a cluster's blocks leave one after the other; many stages, few of which fit.
LARGE = [
    ConvProblem(8, 32, 28, 28, 96, 5, 5, 2, 2),
    ConvProblem(8, 48, 27, 27, 200, 5, 5, 2, 2),
    ConvProblem(8, 96, 27, 27, 160, 5, 5, 2, 2, groups=4),
]
each_problem = pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.label)
each_large = pytest.mark.parametrize("problem", LARGE, ids=lambda problem: problem.label)
each_half = pytest.mark.parametrize("precision", HALVES)
each_tf32 = pytest.mark.parametrize(
    "problem", [one for one in PROBLEMS if one.group_channels % 4 == 0], ids=lambda problem: problem.label
)


def tensors(problem: ConvProblem, seed: int = 3, scale: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Input and weight of a problem: normal data times `scale`, rounded to the problem's type, channels last."""
    generator, dtype = torch.Generator("cuda").manual_seed(seed), DTYPES[problem.precision]
    shapes = problem.input_shape, problem.weight_shape
    values = (scale * torch.randn(shape, generator=generator, device="cuda") for shape in shapes)
    input, weight = (value.to(dtype, memory_format=torch.channels_last) for value in values)
    return input, weight


def poisoned(problem: ConvProblem, channels: int | None = None) -> torch.Tensor:
    """An output full of NaN, channels last; with more channels, a slice of them that starts at the second."""
    n, m, h, w = problem.output_shape
    shape = (n, channels or m, h, w)
    out = torch.full(shape, torch.nan, device="cuda", dtype=DTYPES[problem.precision])
    out = out.to(memory_format=torch.channels_last)
    return out if channels is None else out[:, 1 : 1 + m]


def assert_rounded_once(out: torch.Tensor, truth: torch.Tensor, what: object = "") -> None:
    """Check an output against the true one in float64: hardly worse than the true one rounded to the output's type.

    In float32 it has the error of operands that are rounded to TF32.
    """
    rounded = truth.to(out.dtype)
    assert torch.equal(out.isnan(), rounded.isnan()), what
    infinite = rounded.isinf()
    assert torch.equal(out.isinf(), infinite) and torch.equal(out[infinite], rounded[infinite]), what
    finite = rounded.isfinite()
    error, once = rel_l2_error(out[finite], truth[finite]), rel_l2_error(rounded[finite], truth[finite])
    assert error <= (TOLERANCES["tf32"] if out.dtype == torch.float32 else WORSE * once + 1e-7), (what, error, once)


def assert_configurations(algorithm: Algorithm, problem: ConvProblem, repeats: int = 3) -> None:
    """Check configurations with and without each option of a call, and for equal bits in repeated calls."""
    spec = device_spec(torch.cuda.current_device())
    x, weight = tensors(problem)
    dtype = DTYPES[problem.precision]
    bias = torch.randn(problem.m, device="cuda").to(dtype)
    residual = torch.randn(problem.output_shape, device="cuda").to(dtype, memory_format=torch.channels_last)
    plain = reference.conv2d(x, weight, **problem.geometry)
    full = (plain + bias.double()[:, None, None] + residual.double()).clamp_min(0)
    calls = [
        (CallOptions(), plain),
        (CallOptions(packed=True, activation=RELU, residual=True), full),
        (CallOptions(aligned=False, activation=RELU, residual=True, output_channels=problem.m + 3), full),
    ]
    configs = selected(algorithm, problem)
    compile_launches(
        (launch for one in configs for options, _ in calls for launch in algorithm.launches(problem, one, options)),
        spec.arch,
    )
    for config in configs:
        for options, truth in calls:
            sequence = LaunchSequence(algorithm.launches(problem, config, options), spec.arch, x.device.index)
            outs = [poisoned(problem, options.output_channels) for _ in range(repeats)]
            extra = (bias.data_ptr(), residual.data_ptr()) if options.residual else (0, 0)
            stream = torch.cuda.current_stream().cuda_stream
            workspace = torch.full((config.workspace_bytes // 2 + 1,), torch.nan, device="cuda", dtype=dtype)
            for out in outs:  # one right after the other, so that they overlap
                sequence.enqueue(
                    stream, x.data_ptr(), weight.data_ptr(), extra[0], out.data_ptr(), workspace.data_ptr(), extra[1]
                )
            assert_rounded_once(outs[0], truth, (config, options))
            assert all(torch.equal(out, outs[0]) for out in outs[1:]), (config, options)
            if options.output_channels:
                base = outs[0]._base
                assert base is not None and base[:, 0].isnan().all() and base[:, 1 + problem.m :].isnan().all()


def assert_extreme_sums(algorithm: str, problem: ConvProblem) -> None:
    """Check that large sums overflow to infinity, and that small ones keep their bits."""
    for scale in (1e2, 4e-4) if problem.precision == "fp16" else (1e18, 1e-18):
        x, weight = tensors(problem, scale=scale)
        truth = reference.conv2d(x, weight, **problem.geometry)
        assert_rounded_once(conv2d(x, weight, **problem.geometry, algorithm=algorithm), truth)


def assert_numbers_reach_their_outputs(
    algorithm: str, problem: ConvProblem, number: float, places: Iterable[tuple[int, int, int]]
) -> None:
    """Check that a NaN or infinity reaches the outputs that read it, and no other: at each place, then in the weights.

    places: (channel, row, column) of the last image.
    """
    clean, weight = tensors(problem)
    for place in places:
        x = clean.clone(memory_format=torch.preserve_format)
        x[-1, *place] = number
        out = conv2d(x, weight, **problem.geometry, algorithm=algorithm)
        assert_rounded_once(out, reference.conv2d(x, weight, **problem.geometry), place)
    weight[0, 0, 0, 0], weight[-1, -1, -1, -1] = number, -number
    out = conv2d(clean, weight, **problem.geometry, algorithm=algorithm)
    assert_rounded_once(out, reference.conv2d(clean, weight, **problem.geometry))


def assert_writes_a_slice(algorithm: str, problem: ConvProblem, start: int) -> None:
    """Check an output that is a slice of channels, from `start` on, and that nothing beside it is written."""
    x, weight = tensors(problem)
    n, m, h, w = problem.output_shape
    shape = (n, start + (m + 7) // 8 * 8, h, w)
    whole = torch.full(shape, torch.nan, device="cuda", dtype=x.dtype).to(memory_format=torch.channels_last)
    conv2d(x, weight, **problem.geometry, out=whole[:, start : start + m], algorithm=algorithm)
    assert_rounded_once(whole[:, start : start + m], reference.conv2d(x, weight, **problem.geometry))
    assert whole[:, :start].isnan().all() and whole[:, start + m :].isnan().all()


def in_precision(problem: ConvProblem, precision: str) -> ConvProblem:
    """The problem in FP16, BF16 or TF32."""
    return replace(problem, precision=precision)
