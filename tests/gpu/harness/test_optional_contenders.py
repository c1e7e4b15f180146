"""The optional contender on a GPU: every kernel of CUTLASS against float64.

Where nvcc or CUTLASS's headers are missing the tests are skipped.
"""

from functools import cache

import pytest
import torch

from cuconv import ConvProblem, reference
from harness.contenders import cutlass
from harness.contenders.base import Operands, Unavailable, load
from harness.contenders.cutlass_library import kernels_for
from tests.gpu.problems import operands, poisoned_output, rel_l2_error

NEAR_FP32 = 1e-5  # relative L2; TF32 stands at 3e-4
SPLITS = (1, 2, 4)

PROBLEMS = [  # every alignment of channels and filters; few channels; stride, dilation, padding; odd sizes
    ConvProblem(2, 64, 14, 14, 96, 3, 3, 1, 1),
    ConvProblem(1, 832, 7, 7, 32, 1, 1),
    ConvProblem(3, 128, 15, 11, 64, 3, 5, 4, 2, stride_h=2, stride_w=1, dilation_h=3, dilation_w=1),
    ConvProblem(2, 64, 9, 14, 31, 3, 3, 1, 1),
    ConvProblem(3, 65, 13, 6, 36, 5, 5, 2, 2),
    ConvProblem(2, 12, 11, 8, 20, 7, 7, 3, 3, stride_h=2, stride_w=2),
    ConvProblem(1, 3, 20, 17, 7, 3, 5, 0, 2, dilation_h=2, dilation_w=2),
]
each_problem = pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.label)


@pytest.fixture(scope="module")
def fast_fp32():
    """The contender cutlass with all its kernels compiled."""
    try:
        contender = load("cutlass")
    except Unavailable as reason:
        pytest.skip(str(reason))
    contender.begin(PROBLEMS, None)
    return contender


@cache
def case(problem: ConvProblem) -> tuple[Operands, torch.Tensor]:
    """Operands and the float64 result."""
    x, weight = operands(problem)
    return Operands(x, weight, poisoned_output(problem)), reference.conv2d(x, weight, **problem.geometry)


def captured(call) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    """A CUDA graph of three calls, and the output that it writes."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        graph.capture_begin(capture_error_mode="relaxed")
        try:
            output = [call() for _ in range(3)][-1]
        finally:
            graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)
    return graph, output


def assert_right(call, truth: torch.Tensor, name: str) -> None:
    """Check a call, and three of it in a graph that is replayed twice: semaphores of split-K must return to zero."""
    output = call()
    assert output.shape == truth.shape and output.dtype == torch.float32
    assert rel_l2_error(output, truth) < NEAR_FP32, f"{name} called"
    graph, output = captured(call)
    for _ in range(2):
        output.fill_(torch.nan)
        graph.replay()
        assert rel_l2_error(output, truth) < NEAR_FP32, f"{name} captured"


@each_problem
def test_every_kernel_of_cutlass(fast_fp32, problem):
    tensors, truth = case(problem)
    tensors = cutlass._in_channels_last(problem, tensors)
    splits_tried = set()
    for kernel in kernels_for(problem):
        for slices in set(SPLITS) & set(kernel.split_counts(problem, 132)):
            tensors.output.fill_(torch.nan)
            prepared = fast_fp32._call(kernel, slices, problem, tensors)
            assert_right(prepared.call, truth, prepared.detail)
            splits_tried.add(slices)
    assert splits_tried == (set(SPLITS) if problem.c >= 64 else {1})


def test_cutlass_in_several_launches(fast_fp32, monkeypatch):
    problem = PROBLEMS[2]
    monkeypatch.setattr(cutlass, "images_of_a_launch", lambda problem: 2)
    tensors, truth = case(problem)
    (offer,) = fast_fp32.offers(problem, tensors)
    assert_right(offer.prepare().call, truth, "in two launches")
