"""Times: none has a wait for the host in it; with other work between two calls outputs stay right, without overlap."""

import time

import pytest
import torch
import torch.nn.functional as F

from cuconv import ConvProblem, conv2d
from harness.contenders.base import Operands
from harness.stopwatch import between
from harness.stopwatch.graph import CapturedCalls, replay_times_us
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


@pytest.mark.parametrize("kind", [SEPARATED, COLD])
def test_a_call_is_right_with_other_work_between(operands, kind):
    timed = between.measure(call_of(operands), between.work(kind, DEVICE), count=3, runs=2)
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


@pytest.mark.parametrize("kind", [SEPARATED, COLD])
def test_the_work_between_has_no_part_in_a_programmatic_edge(operands, kind):
    call, other = call_of(operands), between.work(kind, DEVICE)
    assert programmatic_edges(lambda: (call(), call())) == 1
    assert programmatic_edges(lambda: (other(), call(), other(), call())) == 0


def test_no_time_has_a_wait_for_the_host_in_it():
    torch.cuda.set_device(DEVICE)
    captured = CapturedCalls(lambda: torch.cuda._sleep(100_000), 1)  # about 50 us
    replay, paused = captured.replay, []

    def late():
        if len(paused) < 2:  # the first runs of two attempts: longer than the kernel ahead waits
            paused.append(time.sleep(0.02))
        return replay()

    captured.replay = late
    (times_us,) = replay_times_us([captured], 9)
    assert len(times_us) == 9 and max(times_us) < 10_000
