"""Prepared weights: the same bits as conv2d's with many configurations, in streams, threads and graphs."""

import copy
import pickle
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import pytest
import torch

import cuconv
from cuconv import ConvProblem, UnsupportedProblem, conv2d, reference
from cuconv.algorithms import ALGORITHMS
from cuconv.algorithms.base import CallOptions
from cuconv.call_cache import workspace_beside
from cuconv.device import device_spec
from cuconv.runtime.flags import SLOT_BYTES
from cuconv.runtime.launch_sequence import LaunchSequence
from cuconv.select import LaunchPlan, launches_of
from harness.contenders.compiling import compile_launches
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
    for config, residual, packed in product(found, (False, True), (False, True)):
        options = CallOptions(residual=residual, packed=packed)
        launches += launches_of(LaunchPlan(algorithm.name, config), problem, options)
    compile_launches(launches, spec.arch)
    return found


class Packed:
    """A configuration's launches on prepared weights; every call finds its flags 0 and must leave them so."""

    def __init__(self, algorithm, problem, config, weight, residual=None):
        plan, device = LaunchPlan(algorithm.name, config), torch.cuda.current_device()
        spec = device_spec(device)
        self.problem, self.weight, self.residual = problem, weight, residual
        options = CallOptions(residual=residual is not None, packed=True)
        once, calls = algorithm.packing_launch(problem, config, options), launches_of(plan, problem, options)
        size = algorithm.packing(problem, config).workspace_bytes(problem)
        self.packed = torch.full((size // 4,), torch.nan, device="cuda")
        self.flags = torch.zeros(SLOT_BYTES // 4, device="cuda", dtype=torch.int32)
        self.workspace_bytes = workspace_beside(calls, config.workspace_bytes, size)
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
def test_configurations_give_the_bits_of_the_plain_one(name, problem):
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


def test_later_changes_of_the_weight_change_nothing():
    layer, x, weight, first = layer_and_operands()
    weight.mul_(-2)
    assert torch.equal(layer(x), first)
    weight.untyped_storage().resize_(0)
    assert torch.equal(layer(x), first)


@pytest.mark.parametrize("again", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
def test_copies(again):
    layer, x, _, expected = layer_and_operands()
    other = again(layer)
    del layer
    assert torch.equal(other(x), expected) and other.packed_bytes > 0


def test_a_layer_is_deleted_while_other_streams_compute_with_it():
    """Its memory is filled with NaN by the next layer of its size, which must wait for the others."""
    x, weight = operands(LAYER)
    expected = cuconv.prepare(weight, padding=1, algorithm="fp16x3")(x)
    side = torch.cuda.Stream()
    for _ in range(20):
        layer = cuconv.prepare(weight, padding=1, algorithm="fp16x3")
        layer(x)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(20_000_000)
            out = layer(x)
        size = layer.packed_bytes // 4
        del layer
        poison = [torch.full_like(weight, torch.nan), torch.full((size,), torch.nan, device="cuda")]
        torch.cuda.synchronize()
        assert torch.equal(out, expected)
        del poison


def test_swapped_layers_leave_no_memory():
    x, weight = operands(LAYER)
    for turn in range(30):
        cuconv.prepare(weight, padding=1, algorithm="fp16x3")(x)
        torch.cuda.synchronize()
        if turn == 4:
            before = torch.cuda.memory_allocated()
    assert torch.cuda.memory_allocated() == before


def test_many_captures():
    """Each has flags of its own, and all of them packed weights."""
    layer, x, _, expected = layer_and_operands()
    graphs = []
    for turn in range(200):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = layer(x)
        graphs = [*graphs[-3:], (graph, out)]
        if turn % 50 == 49:
            for one, _ in graphs:
                one.replay()
            torch.cuda.synchronize()
            assert all(torch.equal(found, expected) for _, found in graphs)


def test_a_graph_of_several_streams():
    layer, x, _, expected = layer_and_operands()
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            beside = [layer(x) for _ in range(3)]
        here = [layer(x) for _ in range(3)]
        torch.cuda.current_stream().wait_stream(side)
    for _ in range(20):
        for out in (*here, *beside):
            out.zero_()
        graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(out, expected) for out in (*here, *beside))


def test_threads():
    layer, x, _, expected = layer_and_operands()

    def compute(_):
        with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
            outputs = [layer(x) for _ in range(50)]
            torch.cuda.current_stream().synchronize()
        return all(torch.equal(out, expected) for out in outputs)

    torch.cuda.synchronize()
    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(compute, range(16)))


def test_a_signal_handler_that_calls_too():
    layer, x, weight, _ = layer_and_operands()

    def both(input):
        return layer(input), conv2d(input, weight, padding=1, algorithm="fp16x3")

    def equal(found, expected):
        return all(torch.equal(*pair) for pair in zip(found, expected, strict=True))

    other, nested = torch.randn_like(x), []
    expected, expected_nested = both(x), both(other)
    before = signal.signal(signal.SIGALRM, lambda number, frame: nested.append(both(other)))
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        deadline = time.monotonic() + 2
        while time.monotonic() < deadline and len(nested) < 500:
            assert equal(both(x), expected)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert nested and all(equal(found, expected_nested) for found in nested)


DAEMON = """
import threading, time, torch, cuconv
x, weight = torch.randn(1, 64, 28, 28, device="cuda"), torch.randn(64, 64, 3, 3, device="cuda")
layer = cuconv.prepare(weight, padding=1)
layer(x)
def calls():
    while True:
        layer(x)
for _ in range(4):
    threading.Thread(target=calls, daemon=True).start()
time.sleep(0.5)
"""


def test_daemon_threads_that_call_when_the_interpreter_ends():
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", DAEMON], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr


def test_cupy_arrays():
    cupy = pytest.importorskip("cupy")
    x, weight = operands(LAYER)
    layer = cuconv.prepare(cupy.from_dlpack(weight), padding=1)
    for _ in range(2):
        out = torch.from_dlpack(layer(cupy.from_dlpack(x)))
        assert rel_l2_error(out, reference.conv2d(x, weight, (1, 1))) < TOLERANCES["fp32"]


def cupy_operands():
    """CuPy's x and weight of LAYER, a prepared layer that has been called, and what it computes."""
    cupy = pytest.importorskip("cupy")
    x, weight = (cupy.from_dlpack(operand) for operand in operands(LAYER))
    layer = cuconv.prepare(weight, padding=1, algorithm="fp16x3")
    expected = layer(x)
    cupy.cuda.Device().synchronize()
    return cupy, x, weight, layer, expected


def test_a_graph_of_cupy_writes_to_no_other_array():
    cupy, x, weight, layer, expected = cupy_operands()
    wanted = [expected, conv2d(x, weight, padding=1, algorithm="fp16x3")]
    outputs = [cupy.empty_like(expected) for _ in range(2)]
    cupy.cuda.Device().synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        layer(x, out=outputs[0])
        conv2d(x, weight, padding=1, algorithm="fp16x3", out=outputs[1])
        graph = stream.end_capture()
        others = [cupy.full(2**20 // 4, 7, cupy.float32) for _ in range(100)]
        for _ in range(10):
            for out in outputs:
                out.fill(0)
            graph.launch(stream)
            stream.synchronize()
            assert all((out == right).all() for out, right in zip(outputs, wanted, strict=True))
        assert all((other == 7).all() for other in others)


def test_a_layer_of_cupy_is_deleted_while_another_stream_computes_with_it():
    cupy, x, weight, _, expected = cupy_operands()
    side = cupy.cuda.Stream(non_blocking=True)
    for _ in range(10):
        layer = cuconv.prepare(weight, padding=1, algorithm="fp16x3")
        layer(x)
        cupy.cuda.Device().synchronize()
        with side:
            outputs = [layer(x) for _ in range(200)]  # enough that the last ones wait for the GPU
        del layer
        poison = [cupy.full(weight.shape, cupy.nan, cupy.float32) for _ in range(4)]
        cupy.cuda.Device().synchronize()
        assert all((out == expected).all() for out in outputs)
        del poison


def test_default_streams_of_threads_of_cupy():
    cupy, x, _, layer, expected = cupy_operands()

    def compute(_):
        with cupy.cuda.Stream.ptds:
            outputs = [layer(x) for _ in range(50)]
            cupy.cuda.Stream.ptds.synchronize()
            return all(bool((out == expected).all()) for out in outputs)

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(compute, range(16)))


def test_a_copy_of_a_layer_of_cupy():
    _, x, _, layer, expected = cupy_operands()
    assert (pickle.loads(pickle.dumps(layer))(x) == expected).all()
    assert (copy.deepcopy(layer)(x) == expected).all()
