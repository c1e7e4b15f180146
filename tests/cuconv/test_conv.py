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
from cuconv.core.launch import RESIDUAL
from cuconv.device import H200
from cuconv.runtime.arrays import CupyArrays, TorchArrays
from cuconv.runtime.flags import SLOT_BYTES
from tests.cuconv.fake_gpu import Recorder, TensorsOfGpu3


def test_cpu_tensors_are_sent_to_the_gpu_or_the_reference():
    with pytest.raises(UnsupportedProblem, match=r"input is on cpu: .*cuconv\.reference"):
        cuconv.conv2d(torch.ones(1, 1, 3, 3), torch.ones(1, 1, 1, 1))


@pytest.mark.parametrize("value", [np.ones((1, 1, 3, 3), np.float32), [[1.0]], None])
def test_other_kinds_of_array(value):
    with pytest.raises(TypeError, match="torch CUDA tensors or CuPy arrays"):
        cuconv.conv2d(value, value)


def test_wrong_rank_names_the_layout():
    with pytest.raises(UnsupportedProblem, match=r"input has 2 dimensions \(3, 3\): 4 are needed, NCHW, or 3"):
        cuconv.conv2d(torch.ones(3, 3), torch.ones(1, 1, 1, 1))


def test_a_plan_prints_itself_and_its_workspace():
    problem = ConvProblem(n=1, c=192, h=7, w=7, m=384, kh=3, kw=3, pad_h=1, pad_w=1)
    plan = cuconv.plan(problem, H200)
    assert plan.algorithm in cuconv.algorithms()
    assert str(plan).startswith(plan.algorithm) and "grid=" in str(plan)
    assert cuconv.plan(problem, H200, "two_stage").workspace_bytes == 9 * 384 * 49 * 4


def test_auto_is_one_of_the_algorithms_for_any_shape():
    for shape in [(1, 1, 1, 1, 1, 1, 1), (3, 17, 65, 31, 5, 7, 7), (256, 64, 224, 224, 64, 3, 3)]:
        assert cuconv.plan(ConvProblem(*shape), H200).algorithm in cuconv.algorithms()


def test_unknown_algorithm_names_the_known_ones():
    with pytest.raises(ValueError, match="algorithm='magic': must be one of auto, ready, batch_invariant, two_stage"):
        cuconv.plan(ConvProblem(1, 1, 3, 3, 1, 1, 1), H200, "magic")


X, WEIGHT, BIAS = torch.zeros(2, 4, 5, 7), torch.zeros(9, 4, 1, 1), torch.zeros(9)


@pytest.mark.parametrize("bias", [None, BIAS])
@pytest.mark.parametrize("relu", [False, True])
def test_operands_reach_the_launch(cuda, bias, relu):
    problem = ConvProblem(2, 4, 5, 7, 9, 1, 1)
    two_stage = ALGORITHMS["two_stage"]
    launches = two_stage.launches(problem, two_stage.configure(problem, H200), CallOptions(relu=relu))
    bias_address = 0 if bias is None else bias.data_ptr()
    for _ in range(2):
        out = cuconv.conv2d(X, WEIGHT, bias, relu=relu, algorithm="two_stage")
        assert out.shape == (2, 9, 5, 7) and out.dtype == torch.float32
        addresses = (X.data_ptr(), WEIGHT.data_ptr(), bias_address, out.data_ptr(), 0, 0)
        assert Recorder.enqueued.pop() == (launches, (77, 3), addresses)
    assert Recorder.made == [(launches, "sm_90a", 3)]


def test_a_workspace_is_new_for_each_call_and_the_stream_is_followed(cuda, monkeypatch):
    workspaces = []
    monkeypatch.setattr(
        cuda.tensors,
        "allocator",
        lambda shape, device: lambda: workspaces.append(torch.empty(shape)) or workspaces[-1],
    )
    out = torch.zeros(2, 9, 5, 7)
    for stream in (77, 78):
        cuda.tensors.stream = stream
        cuconv.conv2d(X, torch.zeros(9, 4, 3, 3), padding=1, algorithm="two_stage", out=out)
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


@pytest.mark.parametrize("precision", ["half", None, torch.float32])
def test_an_unknown_precision_is_refused_before_any_launch(cuda, precision):
    with pytest.raises(UnsupportedProblem, match=r"precision=.*: must be one of fp32, tf32"):
        cuconv.conv2d(X, WEIGHT, precision=precision)
    assert not Recorder.enqueued


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


def test_an_accepted_call_does_not_let_a_different_one_through(cuda):
    """A weight of another shape, one with a gradient and one of another library are checked anew."""
    cuconv.conv2d(X, WEIGHT)
    with pytest.raises(UnsupportedProblem, match="weight has 5 channels, input 4"):
        cuconv.conv2d(X, torch.zeros(9, 5, 1, 1))
    with torch.enable_grad(), pytest.raises(UnsupportedProblem, match="weight is on GPU 4"):
        cuconv.conv2d(X, WEIGHT.clone().requires_grad_())
    with pytest.raises(TypeError, match=r"weight is a numpy\.ndarray, input a torch\.Tensor: use one library"):
        cuconv.conv2d(X, WEIGHT.numpy())


@pytest.mark.parametrize("padding", [1.0, (1.0, 1), True, (True, 1), None, (1, 1, 1), "full"])
def test_padding_that_equals_a_known_one_is_still_refused(cuda, padding):
    cuconv.conv2d(X, WEIGHT, padding=1, algorithm="two_stage")
    with pytest.raises(UnsupportedProblem, match="must be a whole number"):
        cuconv.conv2d(X, WEIGHT, padding=padding, algorithm="two_stage")


MEMORY = torch.zeros(2 * 9 * 5 * 7 + 8)
OUT = MEMORY[: 2 * 9 * 5 * 7].view(2, 9, 5, 7)


@pytest.mark.parametrize(
    ("bias", "error", "message"),
    [
        (torch.zeros(1, 9), UnsupportedProblem, r"bias has 2 dimensions \(1, 9\): 1 is needed, \(M,\)"),
        (torch.zeros(()), UnsupportedProblem, r"bias has 0 dimensions \(\): 1 is needed"),
        (torch.zeros(4), UnsupportedProblem, r"bias has shape \(4,\): it must be \(9,\), a value for each filter"),
        (torch.zeros(9, requires_grad=True), UnsupportedProblem, "bias is on GPU 4, input on GPU 3: use one device"),
        (MEMORY[-9:], UnsupportedProblem, "out overlaps bias in memory"),
        (np.zeros(9, np.float32), TypeError, r"bias is a numpy\.ndarray, input a torch\.Tensor: use one library"),
        (0.5, TypeError, r"bias is a builtins\.float"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_bias_that_does_not_fit_is_refused_before_any_launch(cuda, bias, error, message):
    with pytest.raises(error, match=message) as caught:
        cuconv.conv2d(X, WEIGHT, bias, out=OUT)
    assert "\n" not in str(caught.value) and not Recorder.enqueued


def test_a_bias_on_the_cpu_is_refused():
    with pytest.raises(UnsupportedProblem, match="bias is on cpu"):
        TorchArrays(torch).check("bias", BIAS)


@pytest.mark.parametrize("fused", [True, False])
def test_a_residual_is_added_by_the_last_kernel_or_by_one_more(cuda, fused):
    residual = torch.zeros(2, 9, 5, 7)
    algorithm = "tf32x3_gemm" if fused else "two_stage"
    cuconv.conv2d(X, WEIGHT, algorithm=algorithm, relu=True, residual=residual)
    launches, _, addresses = Recorder.enqueued[-1]
    assert addresses[-1] == residual.data_ptr()
    assert launches[-1].arguments.count(RESIDUAL) == 1
    assert (launches[-1].kernel == "add_residual") is not fused
    assert [RESIDUAL in launch.arguments for launch in launches] == ([True] if fused else [False, True])
    with pytest.raises(UnsupportedProblem, match=r"residual has shape \(9, 2, 5, 7\): it must be \(2, 9, 5, 7\)"):
        cuconv.conv2d(X, WEIGHT, residual=residual.view(9, 2, 5, 7))


# Slices of channels


PLANES = 16  # the place among tf32x3_gemm's arguments of the planes from one image of the output to the next


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


@pytest.mark.parametrize("options", [{"algorithm": "two_stage"}, {"residual": torch.zeros(2, 9, 5, 7)}])
def test_where_no_kernel_writes_to_slices_the_output_is_copied(cuda, monkeypatch, options):
    made = []
    monkeypatch.setattr(
        cuda.tensors, "allocator", lambda shape, device: lambda: made.append(torch.ones(shape)) or made[-1]
    )
    out = slice_of(12)
    assert cuconv.conv2d(X, WEIGHT, **({"algorithm": "tf32x3_gemm"} | options), out=out) is out
    launches, _, addresses = Recorder.enqueued[-1]
    assert addresses[3] == made[0].data_ptr() and not any(12 in one.arguments for one in launches)
    assert (out == 1).all() and (out._base[:, :3] == 7).all()


def test_one_image_of_a_slice_is_contiguous(cuda):
    cuconv.conv2d(X[:1], WEIGHT, algorithm="tf32x3_gemm", out=slice_of(12)[:1])
    assert Recorder.enqueued[-1][0][0].arguments[PLANES] == 9


LAYOUTS = {
    "a slice of rows": torch.zeros(2, 9, 6, 7)[:, :, 1:],
    "a slice of columns": torch.zeros(2, 9, 5, 8)[..., 1:],
    "channels last": torch.zeros(2, 5, 7, 9).permute(0, 3, 1, 2),
    "one image for all": torch.zeros(1, 9, 5, 7).expand(2, 9, 5, 7),
    "overlapping images": torch.zeros(2 * 9 * 5 * 7).as_strided((2, 9, 5, 7), (35, 35, 7, 1)),
    "no whole planes apart": torch.zeros(1000).as_strided((2, 9, 5, 7), (9 * 35 + 1, 35, 7, 1)),
    "every other channel": torch.zeros(2, 18, 5, 7)[:, ::2],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_other_layouts_of_the_output_are_refused_before_any_launch(cuda, layout):
    cuconv.conv2d(X, WEIGHT, out=slice_of(12))
    Recorder.enqueued.clear()
    with pytest.raises(
        UnsupportedProblem, match=r"out is neither contiguous nor a slice of the channels .*strides"
    ) as e:
        cuconv.conv2d(X, WEIGHT, out=LAYOUTS[layout])
    assert "\n" not in str(e.value) and not Recorder.enqueued


def test_a_slice_that_overlaps_an_operand_is_refused(cuda):
    memory = torch.zeros(2 * 12 * 35)
    out = memory.view(2, 12, 5, 7)[:, :9]
    with pytest.raises(UnsupportedProblem, match="out overlaps input"):
        cuconv.conv2d(memory[13 * 35 : 13 * 35 + X.numel()].view(X.shape), WEIGHT, out=out)


def test_cupy_counts_strides_in_bytes():
    array = np.zeros((2, 12, 5, 7), np.float32)[:, :9]
    assert CupyArrays(None).strides(array) == torch.zeros(2, 12, 5, 7)[:, :9].stride()


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
