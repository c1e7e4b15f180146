"""Prepared weights: the same bits as conv2d's with every configuration, in streams, in graphs, and after changes."""

from itertools import product

import pytest
import torch

import cuconv
from cuconv import ConvProblem, UnsupportedProblem, conv2d, reference
from cuconv.algorithms import ALGORITHMS
from cuconv.algorithms.common import weight_packing
from cuconv.device import device_spec
from cuconv.flags import SLOT_BYTES
from cuconv.jit import LaunchSequence
from cuconv.prepared import _workspace_bytes
from cuconv.select import LaunchPlan, launches_of
from harness.measure.compiling import Compiler, variants_of
from tests.gpu.configurations import run
from tests.gpu.problems import (
    SPARSE,
    TOLERANCES,
    UNEVEN,
    assert_same_with_non_finite,
    bias_for,
    geometry,
    operands,
    poisoned_output,
    rel_l2_error,
)

LARGER_FILTERS = [
    ConvProblem(2, 130, 9, 11, 150, 3, 3, 1, 1),
    ConvProblem(16, 50, 28, 28, 200, 3, 3, 1, 1),
    ConvProblem(4, 40, 20, 20, 96, 5, 5, 2, 2),
    ConvProblem(8, 512, 7, 7, 512, 3, 3, 1, 1),
]
POINTWISE = [
    ConvProblem(1, 256, 56, 56, 64, 1, 1),
    ConvProblem(16, 512, 7, 7, 520, 1, 1),
    ConvProblem(4, 100, 27, 27, 300, 1, 1),
    ConvProblem(8, 512, 28, 28, 128, 1, 1),
    ConvProblem(16, 512, 14, 14, 1024, 1, 1, stride_h=2, stride_w=2),
]
CASES = [
    *(("fp16x3", problem) for problem in LARGER_FILTERS),
    *(("fp16x3_winograd", problem) for problem in LARGER_FILTERS),
    *(("fp16x3_pointwise", problem) for problem in POINTWISE),
]
LAYER = ConvProblem(8, 256, 14, 14, 256, 3, 3, 1, 1)


MOST = 12  # configurations of a case, since each takes three kernel variants


def packing_configurations(algorithm, problem):
    """Configurations with a kernel that packs weights, spread over all that can run, with their kernels compiled."""
    spec = device_spec(torch.cuda.current_device())
    try:
        found = [config for config in algorithm.candidates(problem, spec) if algorithm.packing(problem, config)]
    except UnsupportedProblem:
        pytest.skip("another architecture")
    found = found[:: max(1, len(found) // MOST)]
    launches = []
    for config, residual in product(found, (False, True)):
        plain = launches_of(LaunchPlan(algorithm.name, config), problem, True, False, residual, spec)
        launches += [*plain, *weight_packing.prepare(plain)[1]]
    variants = variants_of(launches)
    with Compiler(spec.arch) as compiler:
        compiler.start(variants)
        compiler.wait_for(variants)
    return found


class Packed:
    """A configuration's launches on prepared weights; every call finds its flags 0 and must leave them so."""

    def __init__(self, algorithm, problem, config, weight, residual=None):
        plan, device = LaunchPlan(algorithm.name, config), torch.cuda.current_device()
        spec = device_spec(device)
        self.problem, self.weight, self.residual = problem, weight, residual
        launches = launches_of(plan, problem, True, False, residual is not None, spec)
        once, calls = weight_packing.prepare(launches)
        size = algorithm.packing(problem, config).workspace_bytes(problem)
        self.packed = torch.full((size // 4,), torch.nan, device="cuda")
        self.flags = torch.zeros(SLOT_BYTES // 4, device="cuda", dtype=torch.int32)
        self.workspace_bytes = _workspace_bytes(calls, config.workspace_bytes, size)
        self.calls = LaunchSequence(calls, spec.arch, device)
        stream = torch.cuda.current_stream().cuda_stream
        sequence = LaunchSequence([once], spec.arch, device)
        sequence.enqueue(stream, 0, weight.data_ptr(), 0, 0, 0, packed=self.packed.data_ptr())
        torch.cuda.synchronize()

    def __call__(self, x):
        """The output; it and the workspace are filled with NaN before."""
        out = poisoned_output(self.problem)
        workspace = torch.full((self.workspace_bytes // 4 + 1,), torch.nan, device="cuda")
        residual = 0 if self.residual is None else self.residual.data_ptr()
        self.calls.enqueue(
            torch.cuda.current_stream().cuda_stream, x.data_ptr(), self.weight.data_ptr(), 0, out.data_ptr(),
            workspace.data_ptr(), residual, self.packed.data_ptr(), self.flags.data_ptr(),
        )  # fmt: skip
        return out


@pytest.mark.parametrize(("name", "problem"), CASES, ids=str)
def test_every_configuration_gives_the_bits_of_the_plain_one(name, problem):
    algorithm = ALGORITHMS[name]
    x, weight = operands(problem)
    infinite = x.clone()
    infinite[0, problem.c // 2, 3, 4] = torch.inf
    for config in packing_configurations(algorithm, problem):
        packed = Packed(algorithm, problem, config, weight)
        expected = run(algorithm, problem, config, x, weight)
        for _ in range(3):  # each after the other, so that a flag which is left behind shows
            outputs = [packed(x) for _ in range(3)]
            assert all(torch.equal(output, expected) for output in outputs), config
        assert not packed.flags.any(), config
        assert_same_with_non_finite(packed(infinite), run(algorithm, problem, config, infinite, weight).double())


@pytest.mark.parametrize(("name", "problem"), CASES, ids=str)
def test_a_residual(name, problem):
    algorithm = ALGORITHMS[name]
    x, weight = operands(problem)
    residual = 30 * torch.randn(problem.output_shape, device="cuda")
    truth = reference.conv2d(x, weight, **geometry(problem)) + residual.double()
    for config in packing_configurations(algorithm, problem):
        packed = Packed(algorithm, problem, config, weight, residual)
        assert rel_l2_error(packed(x), truth) < TOLERANCES["fp32"], config


@pytest.mark.parametrize("precision", TOLERANCES)
@pytest.mark.parametrize("problem", [*UNEVEN, *SPARSE, *LARGER_FILTERS, *POINTWISE], ids=lambda problem: problem.label)
def test_a_prepared_layer_computes_what_conv2d_does(problem, precision):
    x, weight = operands(problem)
    bias, residual = bias_for(problem), torch.randn(problem.output_shape, device="cuda")
    layer = cuconv.prepare(weight, bias, **geometry(problem), relu=True, precision=precision)
    truth = reference.conv2d(x, weight, bias=bias, **geometry(problem))
    for added in (None, residual):
        expected = (truth if added is None else truth + added.double()).relu()
        for _ in range(2):
            out = poisoned_output(problem)
            assert layer(x, added, out=out) is out
            assert_same_with_non_finite(out, expected, TOLERANCES[precision])


def layer_and_operands(algorithm="fp16x3"):
    """A prepared layer whose blocks hand partial sums to each other, its input, weight and output."""
    x, weight = operands(LAYER)
    layer = cuconv.prepare(weight, padding=1, algorithm=algorithm)
    return layer, x, weight, layer(x)


@pytest.mark.parametrize("algorithm", ["fp16x3", "fp16x3_winograd"])
def test_in_a_graph_and_beside_it(algorithm):
    """A graph is replayed on one stream while the layer computes on another."""
    layer, x, _, expected = layer_and_operands(algorithm)
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.graph(graph, stream=stream):
        captured = [layer(x) for _ in range(3)]
    torch.cuda.synchronize()
    for _ in range(20):
        with torch.cuda.stream(stream):
            graph.replay()
        beside = [layer(x) for _ in range(3)]
        torch.cuda.synchronize()
        assert all(torch.equal(output, expected) for output in (*captured, *beside))


def test_a_graph_without_a_call_before_its_capture():
    x, weight = operands(LAYER)
    layer = cuconv.prepare(weight, padding=1)
    conv2d(x, weight, padding=1)  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = layer(x)
    graph.replay()
    assert rel_l2_error(captured, reference.conv2d(x, weight, (1, 1))) < TOLERANCES["fp32"]


def test_streams_side_by_side():
    layer, x, _, expected = layer_and_operands()
    streams = [torch.cuda.Stream() for _ in range(4)]
    torch.cuda.synchronize()
    for _ in range(10):
        outputs = []
        for stream in streams:
            with torch.cuda.stream(stream):
                outputs.append(layer(x))
        torch.cuda.synchronize()
        assert all(torch.equal(output, expected) for output in outputs)


def test_weights_that_change():
    layer, x, weight, first = layer_and_operands()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = layer(x)
    weight.mul_(-2)
    assert torch.equal(layer(x), -2 * first)
    graph.replay()
    assert torch.equal(captured, -2 * first)  # the call before has packed the new weights to the same place
    weight.data.mul_(-0.5)
    layer.update()
    assert torch.equal(layer(x), first)


def test_cupy_arrays():
    cupy = pytest.importorskip("cupy")
    x, weight = operands(LAYER)
    layer = cuconv.prepare(cupy.from_dlpack(weight), padding=1)
    for _ in range(2):
        out = torch.from_dlpack(layer(cupy.from_dlpack(x)))
        assert rel_l2_error(out, reference.conv2d(x, weight, (1, 1))) < TOLERANCES["fp32"]
