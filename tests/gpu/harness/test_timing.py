"""Times with other work between two calls: outputs stay right, and no call overlaps with that work."""

import pytest
import torch
import torch.nn.functional as F

from cuconv import ConvProblem, conv2d
from harness.contenders.base import Operands
from harness.stopwatch import between
from harness.store.times import COLD, SEPARATED
from tests.gpu.problems import TOLERANCE, rel_l2_error

PROBLEM = ConvProblem(1, 832, 7, 7, 32, 1, 1)  # one kernel, which starts while the kernel ahead finishes
DEVICE = torch.device("cuda", 0)


@pytest.fixture
def operands():
    torch.cuda.set_device(DEVICE)
    return Operands.random(PROBLEM, torch.Generator(DEVICE).manual_seed(0))


def call_of(operands):
    def call():
        return conv2d(operands.input, operands.weight, out=operands.output)

    call()  # compiles
    return call


@pytest.mark.parametrize("time", [SEPARATED, COLD])
def test_a_call_is_right_with_other_work_between(operands, time):
    timed = between.measure(call_of(operands), between.work(time, DEVICE), count=3, runs=2)
    assert len(timed.runs_us) == 2
    operands.output.fill_(torch.nan)
    timed.again()
    expected = F.conv2d(operands.input.double(), operands.weight.double())
    assert rel_l2_error(operands.output, expected) < TOLERANCE


def programmatic_edges(work):
    """The number of edges in a graph of the work by which a kernel may start before the one ahead ends."""
    from cuda.bindings import runtime

    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        work()
    raw = runtime.cudaGraph_t(graph.raw_cuda_graph())
    *_, count = runtime.cudaGraphGetEdges(raw)
    error, _, _, edges, _ = runtime.cudaGraphGetEdges(raw, count)
    assert error == runtime.cudaError_t.cudaSuccess and len(edges) == count > 0
    return sum(edge.type == runtime.cudaGraphDependencyType.cudaGraphDependencyTypeProgrammatic for edge in edges)


@pytest.mark.parametrize("time", [SEPARATED, COLD])
def test_the_work_between_has_no_part_in_a_programmatic_edge(operands, time):
    call, other = call_of(operands), between.work(time, DEVICE)
    assert programmatic_edges(lambda: (call(), call())) == 1
    assert programmatic_edges(lambda: (other(), call(), other(), call())) == 0
