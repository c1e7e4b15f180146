"""Outputs that are slices of the channels of a larger tensor: right, and nothing else is written."""

from dataclasses import replace

import pytest
import torch

import cuconv
from cuconv import ConvProblem, UnsupportedProblem, algorithms, conv2d, reference
from cuconv.algorithms import ALGORITHMS
from cuconv.algorithms.base import CallOptions
from cuconv.device import device_spec
from cuconv.runtime.launch_sequence import LaunchSequence
from cuconv.select import LaunchPlan, launches_of
from harness.contenders.compiling import compile_launches
from tests.gpu.problems import (
    TOLERANCES,
    UNEVEN,
    assert_same_with_non_finite,
    bias_for,
    geometry,
    operands,
    refusal_allowed,
)

PROBLEMS = [
    *UNEVEN[:3],
    ConvProblem(2, 3, 1, 65, 17, 3, 3, 1, 1),
    ConvProblem(9, 64, 7, 7, 129, 1, 1),
    ConvProblem(16, 832, 7, 7, 384, 1, 1),
    ConvProblem(8, 128, 28, 28, 256, 1, 1),
    ConvProblem(4, 100, 27, 27, 300, 1, 1),
    ConvProblem(2, 256, 14, 14, 256, 3, 3, 1, 1),
    ConvProblem(8, 64, 56, 56, 64, 3, 3, 1, 1),
    ConvProblem(8, 3, 56, 56, 64, 3, 3, 1, 1),
    ConvProblem(2, 24, 15, 14, 40, 3, 3, 1, 1, stride_h=2, stride_w=2),
    ConvProblem(2, 64, 14, 14, 64, 3, 3, 1, 1, groups=2),
    ConvProblem(2, 28, 11, 12, 28, 3, 3, 1, 1, groups=28),
    ConvProblem(33, 960, 1, 1, 242, 1, 1),
]
CHANNELS = {"aligned": (512, 8), "odd": (517, 3)}  # of the tensor, and before the slice
OUTSIDE = 7.0
MOST = 6  # configurations of a case, since each is a kernel variant
SLICING = [name for name, algorithm in ALGORITHMS.items() if algorithm.writes_slices]
SEVERAL = [
    ConvProblem(4, 130, 9, 11, 150, 3, 3, 1, 1),
    ConvProblem(16, 50, 28, 28, 200, 1, 1),
    ConvProblem(8, 20, 28, 28, 64, 3, 3, 1, 1),
]


class Slice:
    """A slice of a tensor's channels for the output of a problem."""

    def __init__(self, problem: ConvProblem, kind: str):
        channels, self.first = CHANNELS[kind]
        shape = (problem.n, channels, problem.out_h, problem.out_w)
        self.tensor, self.end = torch.empty(shape, device="cuda"), self.first + problem.m
        self.out = self.tensor[:, self.first : self.end]
        self.clear()

    def clear(self) -> None:
        self.tensor.fill_(OUTSIDE)

    def others_are_untouched(self) -> bool:
        before, after = self.tensor[:, : self.first], self.tensor[:, self.end :]
        return bool((before == OUTSIDE).all()) and bool((after == OUTSIDE).all())


def with_infinity(x: torch.Tensor) -> torch.Tensor:
    """The input with an infinite element in the last image."""
    infinite = x.clone()
    infinite[-1, x.shape[1] // 2, 0, x.shape[3] // 2] = torch.inf
    return infinite


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.label)
@pytest.mark.parametrize("kind", CHANNELS)
@pytest.mark.parametrize("algorithm", ["auto", *algorithms()])
def test_every_algorithm(algorithm, kind, problem):
    x, weight = operands(problem)
    bias, target = bias_for(problem), Slice(problem, kind)
    for data in (x, with_infinity(x)):
        with refusal_allowed(algorithm, problem.is_dense):
            target.clear()
            assert conv2d(data, weight, bias, **geometry(problem), algorithm=algorithm, out=target.out) is target.out
            truth = reference.conv2d(data, weight, bias=bias, **geometry(problem))
            assert_same_with_non_finite(target.out, truth)
            assert target.others_are_untouched()


@pytest.mark.parametrize("problem", SEVERAL, ids=lambda problem: problem.label)
@pytest.mark.parametrize("precision", TOLERANCES)
@pytest.mark.parametrize("name", SLICING)
def test_configurations(name, precision, problem):
    algorithm, spec = ALGORITHMS[name], device_spec(torch.cuda.current_device())
    problem = replace(problem, precision=precision)
    try:
        found = algorithm.candidates(problem, spec) if precision in algorithm.precisions else []
    except UnsupportedProblem:
        found = []
    found = found[:: max(1, len(found) // MOST)]
    channels = CHANNELS["aligned"][0]
    plans = [launches_of(LaunchPlan(name, config), problem, CallOptions(output_channels=channels)) for config in found]
    compile_launches((launch for launches in plans for launch in launches), spec.arch)
    x, weight = operands(problem)
    target, infinite = Slice(problem, "aligned"), with_infinity(x)
    truths = [reference.conv2d(data, weight, **geometry(problem)) for data in (x, infinite)]
    for config, launches in zip(found, plans, strict=True):
        sequence = LaunchSequence(launches, spec.arch, torch.cuda.current_device())
        workspace = torch.full((config.workspace_bytes // 4 + 1,), torch.nan, device="cuda")
        for data, truth in zip((x, infinite), truths, strict=True):
            target.clear()
            stream = torch.cuda.current_stream().cuda_stream
            addresses = (data.data_ptr(), weight.data_ptr(), 0, target.out.data_ptr(), workspace.data_ptr())
            sequence.enqueue(stream, *addresses)
            assert_same_with_non_finite(target.out, truth, TOLERANCES[precision])
            assert target.others_are_untouched(), config


@pytest.mark.parametrize("kind", CHANNELS)
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.label)
def test_a_prepared_layer(problem, kind):
    x, weight = operands(problem)
    bias, target = bias_for(problem), Slice(problem, kind)
    layer = cuconv.prepare(weight, bias, **geometry(problem), relu=True)
    truth = reference.conv2d(x, weight, bias=bias, **geometry(problem))
    for residual in (None, torch.randn(problem.output_shape, device="cuda")):
        target.clear()
        layer(x, residual, out=target.out)
        expected = (truth if residual is None else truth + residual.double()).relu()
        assert_same_with_non_finite(target.out, expected)
        assert target.others_are_untouched()


def test_slices_of_one_tensor_in_a_graph():
    problem = ConvProblem(8, 128, 28, 28, 100, 3, 3, 1, 1)
    x, weight = operands(problem)
    layers = [cuconv.prepare(weight), cuconv.prepare(2 * weight)]
    tensor = torch.empty((8, 200, 26, 26), device="cuda")

    def both():
        for layer, part in zip(layers, tensor.split(100, 1), strict=True):
            layer(x, out=part)

    both()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        both()
    tensor.fill_(torch.nan)
    graph.replay()
    truth = reference.conv2d(x, weight)
    assert_same_with_non_finite(tensor, torch.cat([truth, 2 * truth], 1))


@pytest.mark.parametrize("algorithm", ["auto", "two_stage"])
def test_a_slice_of_a_cupy_array(algorithm):
    import cupy

    problem = PROBLEMS[0]
    x, weight = operands(problem)
    array = cupy.full((problem.n, 50, problem.out_h, problem.out_w), OUTSIDE, cupy.float32)
    out = array[:, 5 : 5 + problem.m]
    torch.cuda.synchronize()  # CuPy has a stream of its own
    conv2d(cupy.from_dlpack(x), cupy.from_dlpack(weight), algorithm=algorithm, out=out)
    cupy.cuda.get_current_stream().synchronize()
    assert_same_with_non_finite(torch.from_dlpack(out), reference.conv2d(x, weight))
    assert bool((array[:, :5] == OUTSIDE).all()) and bool((array[:, 5 + problem.m :] == OUTSIDE).all())
