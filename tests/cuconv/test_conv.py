"""conv2d without a GPU: what it refuses, which launches it prepares, and what a repeated call uses again."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from math import prod

import numpy as np
import pytest
import torch

import cuconv
from cuconv import ConvProblem, UnsupportedProblem, call_cache, conv, prepared
from cuconv.algorithms import ALGORITHMS
from cuconv.algorithms.base import CallOptions
from cuconv.core.activation import NONE, RELU, activation_of
from cuconv.core.launch import RESIDUAL
from cuconv.device import H200
from cuconv.runtime.arrays import CupyArrays
from cuconv.runtime.flags import SLOT_BYTES
from tests.cuconv.fake_gpu import Recorder, TensorsOfGpu3


@pytest.mark.parametrize("value", [np.ones((1, 1, 3, 3), np.float32), [[1.0]], None])
def test_other_kinds_of_array(value):
    with pytest.raises(TypeError):
        cuconv.conv2d(value, value)


@pytest.mark.parametrize("shape", [(1, 1, 3, 3), (3, 3)])
def test_cpu_tensors_and_other_ranks_are_refused(shape):
    with pytest.raises(UnsupportedProblem, match="cpu" if len(shape) == 4 else "NCHW"):
        cuconv.conv2d(torch.ones(shape), torch.ones(1, 1, 1, 1))


def test_a_plan_prints_itself_and_its_workspace():
    problem = ConvProblem(n=1, c=192, h=7, w=7, m=384, kh=3, kw=3, pad_h=1, pad_w=1)
    plan = cuconv.plan(problem, H200)
    assert plan.algorithm in cuconv.algorithms()
    assert str(plan).startswith(plan.algorithm) and "grid=" in str(plan)
    assert cuconv.plan(problem, H200, "two_stage").workspace_bytes == 9 * 384 * 49 * 4


def test_unknown_algorithm_names_the_known_ones():
    with pytest.raises(ValueError, match="two_stage"):
        cuconv.plan(ConvProblem(1, 1, 3, 3, 1, 1, 1), H200, "magic")


X, WEIGHT, BIAS = torch.zeros(2, 4, 5, 7), torch.zeros(9, 4, 1, 1), torch.zeros(9)


@pytest.mark.parametrize("bias", [None, BIAS])
@pytest.mark.parametrize("relu", [False, True])
def test_operands_reach_the_launch(cuda, bias, relu):
    problem = ConvProblem(2, 4, 5, 7, 9, 1, 1)
    two_stage = ALGORITHMS["two_stage"]
    launches = two_stage.launches(
        problem, two_stage.configure(problem, H200), CallOptions(activation=RELU if relu else NONE)
    )
    bias_address = 0 if bias is None else bias.data_ptr()
    for _ in range(2):
        out = cuconv.conv2d(X, WEIGHT, bias, relu=relu, algorithm="two_stage")
        assert out.shape == (2, 9, 5, 7) and out.dtype == torch.float32
        addresses = (X.data_ptr(), WEIGHT.data_ptr(), bias_address, out.data_ptr(), 0, 0)
        assert Recorder.enqueued.pop() == (launches, (77, 3), addresses)
    assert Recorder.made == [(launches, "sm_90a", 3)]


def test_a_workspace_is_new_for_each_call_and_the_stream_is_followed(cuda):
    out = torch.zeros(2, 9, 5, 7)
    for stream in (77, 78):
        cuda.tensors.stream = stream
        cuconv.conv2d(X, torch.zeros(9, 4, 3, 3), padding=1, algorithm="two_stage", out=out)
    workspaces = cuda.tensors.allocated
    assert [workspace.shape for workspace in workspaces] == [(9 * 2 * 9 * 5 * 7,)] * 2
    assert [(stream, addresses[-2]) for _, stream, addresses in Recorder.enqueued] == [
        ((77, 3), workspaces[0].data_ptr()),
        ((78, 3), workspaces[1].data_ptr()),
    ]


def test_every_launch_is_in_the_context_of_the_operands_gpu(cuda):
    """The operands' GPU is made current where it is not, and the previous one again afterwards."""
    for current, switches in ((0, [3, 0, 3, 0]), (0, [3, 0]), (3, [])):
        cuda.devices = [current]
        cuconv.conv2d(X, WEIGHT)
        assert cuda.devices[1:] == switches


def test_calls_that_differ_in_what_the_launches_depend_on_are_prepared_once_each(cuda):
    def unaligned(operand):
        return torch.zeros(operand.numel() + 1)[1:].view(operand.shape)

    out = torch.zeros(2, 9, 5, 7)
    calls = [
        (X, WEIGHT, {}),
        (X[:1], WEIGHT, {}),
        (X, unaligned(WEIGHT), {}),
        (X, WEIGHT, {"out": out}),
        (X, WEIGHT, {"out": unaligned(out)}),
        (X, WEIGHT, {"padding": 1}),
        (X, WEIGHT, {"padding": (0, 1)}),
        (X, WEIGHT, {"relu": True}),
        (X, WEIGHT, {"bias": BIAS}),
        (X, WEIGHT, {"algorithm": "tf32x3_gemm"}),
        (X, WEIGHT, {"algorithm": "tf32x3_gemm", "precision": "tf32"}),
    ]
    for _ in range(2):
        for x, weight, options in calls:
            cuconv.conv2d(x, weight, **({"algorithm": "two_stage"} | options))
    cuconv.conv2d(X, WEIGHT, padding=[0, 1], algorithm="two_stage")
    assert len(Recorder.made) == len(calls)
    launches = [launches for launches, _, _ in Recorder.enqueued]
    assert launches[len(calls) : -1] == launches[: len(calls)] and launches[-1] == launches[6]


def test_unaligned_weights_are_not_copied_as_vectors(cuda):
    memory = torch.zeros(9 * 4 + 1)
    for weight in (memory[:-1].view(9, 4, 1, 1), memory[1:].view(9, 4, 1, 1)):
        cuconv.conv2d(X, weight, algorithm="tf32x3_gemm")
    assert [launches[0].arguments[-2] for launches, _, _ in Recorder.enqueued] == [1, 0]


def test_threads_share_nothing_that_a_call_writes_to(cuda):
    for _ in range(2):
        with ThreadPoolExecutor(1) as thread:
            thread.submit(cuconv.conv2d, X, WEIGHT).result()
    assert len(Recorder.made) == 2


def test_prepared_calls_are_limited_in_number(cuda, monkeypatch):
    monkeypatch.setattr(call_cache, "MAX_READY_CALLS", 2)
    for padding in (0, 1, 2, 1, 2, 0):
        cuconv.conv2d(X, WEIGHT, padding=padding)
    assert len(Recorder.made) == 4


@pytest.mark.parametrize("fused", [True, False])
def test_a_residual_is_added_by_the_last_kernel_or_by_one_more(cuda, fused):
    residual = torch.zeros(2, 9, 5, 7)
    algorithm = "tf32x3_gemm" if fused else "two_stage"
    cuconv.conv2d(X, WEIGHT, algorithm=algorithm, relu=True, residual=residual)
    launches, _, addresses = Recorder.enqueued[-1]
    assert addresses[-1] == residual.data_ptr()
    assert launches[-1].arguments.count(RESIDUAL) == 1
    assert (launches[-1].kernel == "finish_output") is not fused
    assert [RESIDUAL in launch.arguments for launch in launches] == ([True] if fused else [False, True])


@pytest.mark.parametrize("residual", [None, torch.zeros(2, 9, 5, 7)])
@pytest.mark.parametrize("algorithm", ["tf32x3_gemm", "two_stage"])
def test_an_activation_is_computed_once_after_the_residual(cuda, algorithm, residual):
    given = activation_of(("leaky_relu", 0.3))
    cuconv.conv2d(X, WEIGHT, algorithm=algorithm, activation=given, residual=residual)
    launches, _, _ = Recorder.enqueued[-1]
    assert [given.packed_numbers in one.arguments for one in launches] == [False] * (len(launches) - 1) + [True]
    assert [RESIDUAL in one.arguments for one in launches][-1] == (residual is not None)
    assert (launches[-1].kernel == "finish_output") == (algorithm == "two_stage" and residual is not None)


def test_activations_have_ready_calls_of_their_own(cuda):
    asked = [{"activation": "silu"}, {"activation": ("leaky_relu", 0.1)}, {"activation": ("leaky_relu", 0.2)}, {}]
    for options in asked * 2:
        cuconv.conv2d(X, WEIGHT, **options)
    cuconv.conv2d(X, WEIGHT, relu=True)
    cuconv.conv2d(X, WEIGHT, activation="relu")
    assert len(Recorder.made) == len(asked) + 1


# Slices of channels


PLANES = 17  # the place among tf32x3_gemm's arguments of the planes from one image of the output to the next


def slice_of(channels, first=3):
    return torch.full((2, channels, 5, 7), 7.0)[:, first : first + 9]


@pytest.mark.parametrize(("channels", "vector"), [(12, 1), (13, 0)])  # 13 * 5 * 7 floats are no multiple of four
def test_a_kernel_writes_to_a_slice_of_channels(cuda, channels, vector):
    out = slice_of(channels)
    for _ in range(2):
        assert cuconv.conv2d(X, WEIGHT, algorithm="tf32x3_gemm", out=out) is out
    launches, _, addresses = Recorder.enqueued[-1]
    assert [launch.arguments[PLANES] for launch in launches] == [channels] and len(Recorder.made) == 1
    assert addresses[3] == out.data_ptr()
    assert launches[0].arguments[-2] == vector or out.data_ptr() % 16


@pytest.mark.parametrize(
    "options", [{"algorithm": "two_stage", "activation": "silu"}, {"residual": torch.zeros(2, 9, 5, 7)}]
)
def test_where_no_kernel_writes_to_slices_the_output_is_copied(cuda, options):
    out, cuda.tensors.empty = slice_of(12), torch.ones
    assert cuconv.conv2d(X, WEIGHT, **({"algorithm": "tf32x3_gemm"} | options), out=out) is out
    launches, _, addresses = Recorder.enqueued[-1]
    assert addresses[3] == cuda.tensors.allocated[0].data_ptr() and not any(12 in one.arguments for one in launches)
    assert (out == 1).all() and (out._base[:, :3] == 7).all()


def test_one_image_of_a_slice_is_contiguous(cuda):
    cuconv.conv2d(X[:1], WEIGHT, algorithm="tf32x3_gemm", out=slice_of(12)[:1])
    assert Recorder.enqueued[-1][0][0].arguments[PLANES] == 9


def test_cupy_counts_strides_in_bytes():
    array = np.zeros((2, 12, 5, 7), np.float32)[:, :9]
    assert CupyArrays(None).strides(array) == torch.zeros(2, 12, 5, 7)[:, :9].stride()


# Refusals


MEMORY = torch.zeros(2 * 12 * 5 * 7)
OUT = MEMORY[: 2 * 9 * 5 * 7].view(2, 9, 5, 7)
REFUSED = {  # by what is wrong: the arguments, and what the error names
    "precision": ({"precision": "half"}, "half"),
    "no precision": ({"precision": None}, "None"),
    "channels": ({"weight": torch.zeros(9, 5, 1, 1)}, "channels"),
    "gradient": ({"weight": WEIGHT.clone().requires_grad_()}, "GPU 4"),
    "rank of bias": ({"bias": torch.zeros(1, 9)}, "bias"),
    "scalar bias": ({"bias": torch.zeros(())}, "bias"),
    "size of bias": ({"bias": torch.zeros(4)}, "bias"),
    "GPU of bias": ({"bias": torch.zeros(9, requires_grad=True)}, "bias is on GPU 4"),
    "shape of residual": ({"residual": torch.zeros(9, 2, 5, 7)}, "residual"),
    **{f"padding {value}": ({"padding": value}, "padding") for value in (1.0, (1.0, 1), True, (True, 1), None, "full")},
    "three paddings": ({"padding": (1, 1, 1)}, "padding"),
    "bias in out": ({"bias": MEMORY[9:18], "out": OUT}, "overlaps bias"),
    "input in out": (
        {"input": MEMORY[13 * 35 : 21 * 35].view(X.shape), "out": MEMORY.view(2, 12, 5, 7)[:, :9]},
        "input",
    ),
    "out in input": ({"input": MEMORY[: X.numel()].view(X.shape), "out": MEMORY[35:665].view(OUT.shape)}, "input"),
    "a slice of rows": ({"out": torch.zeros(2, 9, 6, 7)[:, :, 1:]}, "strides"),
    "a slice of columns": ({"out": torch.zeros(2, 9, 5, 8)[..., 1:]}, "strides"),
    "channels last": ({"out": torch.zeros(2, 5, 7, 9).permute(0, 3, 1, 2)}, "strides"),
    "one image for all": ({"out": torch.zeros(1, 9, 5, 7).expand(2, 9, 5, 7)}, "strides"),
    "overlapping images": ({"out": torch.zeros(630).as_strided((2, 9, 5, 7), (35, 35, 7, 1))}, "strides"),
    "no whole planes apart": ({"out": torch.zeros(1000).as_strided((2, 9, 5, 7), (316, 35, 7, 1))}, "strides"),
    "every other channel": ({"out": torch.zeros(2, 18, 5, 7)[:, ::2]}, "strides"),
}


@pytest.mark.parametrize("wrong", REFUSED)
def test_a_call_is_refused_before_any_launch_also_where_one_like_it_was_accepted(cuda, wrong):
    """A padding may equal a known one, and operands are checked again where anything of them has changed."""
    call, named = {"input": X, "weight": WEIGHT, "algorithm": "two_stage"}, REFUSED[wrong]
    for accepted in ({}, {"padding": 1}, {"out": slice_of(12)}):
        cuconv.conv2d(**call | accepted)
    Recorder.enqueued.clear()
    with torch.enable_grad(), pytest.raises(UnsupportedProblem, match=named[1]) as caught:
        cuconv.conv2d(**call | named[0])
    assert "\n" not in str(caught.value) and not Recorder.enqueued


@pytest.mark.parametrize(
    "wrong", [{"weight": WEIGHT.numpy()}, {"bias": np.zeros(9, np.float32)}, {"bias": 0.5}], ids=str
)
def test_arrays_of_two_libraries_are_refused(cuda, wrong):
    cuconv.conv2d(X, WEIGHT)
    with pytest.raises(TypeError, match=next(iter(wrong))):
        cuconv.conv2d(**{"input": X, "weight": WEIGHT} | wrong)


# Captures of CuPy


class ArraysOfGraphs(TensorsOfGpu3):
    """Tensors of a library that, like CuPy, does not leave memory to the graph in whose capture it was allocated."""

    graphs_own_memory = False

    def __init__(self):
        super().__init__()
        self.memory, self.wanted = torch.full((2**22,), 7, dtype=torch.uint8), []

    @contextmanager
    def graph_memory(self, size, zeros, stream):
        self.wanted.append((size, zeros, stream))
        self.memory[:zeros] = 0
        yield self.memory.data_ptr()
        self.wanted.append("freed")

    def array_at(self, address, shape, device):
        offset = address - self.memory.data_ptr()
        return self.memory[offset : offset + 4 * prod(shape)].view(torch.float32).view(shape)


@pytest.fixture
def graphs(cuda, monkeypatch):
    """A library like CuPy in the place of torch."""
    library = cuda.tensors = ArraysOfGraphs()
    for module in (conv, prepared):
        monkeypatch.setattr(module, "library_of", lambda array: library)
    return library


def test_temporary_memory_in_a_capture_belongs_to_the_graph(cuda, graphs):
    weight, size = torch.zeros(9, 4, 3, 3), 4 * 9 * 2 * 9 * 5 * 7
    cuconv.conv2d(X, weight, padding=1, algorithm="two_stage")
    assert not graphs.wanted
    cuda.capture = 1
    out = cuconv.conv2d(X, weight, padding=1, algorithm="two_stage")
    (_, _, addresses), start = Recorder.enqueued[-1], graphs.memory.data_ptr()
    assert addresses == (X.data_ptr(), weight.data_ptr(), 0, out.data_ptr(), start, 0, 0, 0)
    assert graphs.wanted == [(-(-size // 256) * 256, 0, (77, 3)), "freed"]


def test_a_copied_output_and_flags_in_a_capture(cuda, graphs):
    out = slice_of(12)
    cuda.capture = 1
    assert cuconv.conv2d(X, WEIGHT, algorithm="two_stage", out=out) is out
    assert graphs.wanted[0][0] >= 4 * 2 * 9 * 35 and not (out == 7).all()
    cuda.capture = 0
    layer, x = cuconv.prepare(torch.zeros(64, 64, 3, 3), padding=1, algorithm="fp16x3"), torch.zeros(8, 64, 28, 28)
    layer(x)
    outside = Recorder.enqueued[-1][2]
    graphs.wanted.clear()
    cuda.capture = 2
    layer(x)
    inside, start = Recorder.enqueued[-1][2], graphs.memory.data_ptr()
    assert inside[-1] == start and inside[4] == start + SLOT_BYTES and inside[-2] == outside[-2]
    assert graphs.wanted[0][1:] == (SLOT_BYTES, (77, 3))
