"""conv2d refuses what it cannot compute before it looks for a GPU, in one sentence; plans need no GPU."""

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import cuconv
from cuconv import ConvProblem, UnsupportedProblem, conv
from cuconv.arrays import TorchArrays
from cuconv.device import H200
from cuconv.jit import Pointers


def test_cpu_tensors_are_sent_to_the_gpu_or_the_reference():
    with pytest.raises(UnsupportedProblem, match=r"input is on cpu: .*cuconv\.reference"):
        cuconv.conv2d(torch.ones(1, 1, 3, 3), torch.ones(1, 1, 1, 1))


@pytest.mark.parametrize("value", [np.ones((1, 1, 3, 3), np.float32), [[1.0]], None])
def test_other_kinds_of_array(value):
    with pytest.raises(TypeError, match="torch CUDA tensors or CuPy arrays"):
        cuconv.conv2d(value, value)


def test_wrong_rank_names_the_layout():
    with pytest.raises(UnsupportedProblem, match=r"input has 3 dimensions \(1, 3, 3\): 4 are needed, NCHW"):
        cuconv.conv2d(torch.ones(1, 3, 3), torch.ones(1, 1, 1, 1))


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
    with pytest.raises(ValueError, match="algorithm='magic': must be one of auto, two_stage"):
        cuconv.plan(ConvProblem(1, 1, 3, 3, 1, 1, 1), H200, "magic")


class TensorsOfGpu3(TorchArrays):
    """CPU tensors that pass for those of a GPU; one that requires a gradient passes for one of GPU 4."""

    def __init__(self):
        super().__init__(torch)

    def check(self, name, tensor):
        pass

    def device(self, tensor):
        return 3 + tensor.requires_grad

    def stream(self, device):
        return 77


@pytest.fixture
def launches(monkeypatch):
    """conv2d without a GPU: what would have been launched, as (problem, config, launcher, pointers, relu)."""
    calls = []
    recorder = SimpleNamespace(
        configure=conv.ALGORITHMS["two_stage"].configure,
        predicted_us=lambda *args: 0.0,
        launch=lambda *args: calls.append(args),
    )
    library = TensorsOfGpu3()
    monkeypatch.setitem(conv.ALGORITHMS, "two_stage", recorder)
    monkeypatch.setattr(conv, "library_of", lambda array: library)
    monkeypatch.setattr(conv, "device_spec", lambda device: H200)
    monkeypatch.setattr(conv, "_current", lambda device: nullcontext())
    for cached in (conv._problem_and_plan, conv._launcher):
        cached.cache_clear()
    yield calls
    for cached in (conv._problem_and_plan, conv._launcher):
        cached.cache_clear()


X, WEIGHT, BIAS = torch.zeros(2, 4, 5, 7), torch.zeros(9, 4, 1, 1), torch.zeros(9)


@pytest.mark.parametrize("bias", [None, BIAS])
@pytest.mark.parametrize("relu", [False, True])
def test_operands_reach_the_launch(launches, bias, relu):
    out = cuconv.conv2d(X, WEIGHT, bias, relu=relu, algorithm="two_stage")
    assert out.shape == (2, 9, 5, 7) and out.dtype == torch.float32
    ((problem, _, launcher, pointers, flag),) = launches
    assert problem == ConvProblem(2, 4, 5, 7, 9, 1, 1)
    assert (launcher.arch, launcher.device, launcher.stream) == ("sm_90a", 3, 77)
    assert flag is relu
    bias_pointer = 0 if bias is None else bias.data_ptr()
    assert pointers == Pointers(X.data_ptr(), WEIGHT.data_ptr(), out.data_ptr(), bias_pointer)


def test_a_plan_is_made_once_for_each_shape_padding_and_algorithm(launches):
    for x, options in [(X, {}), (X, {}), (X[:1], {}), (X, {"padding": 1}), (X, {"padding": [1, 1]})]:
        cuconv.conv2d(x, WEIGHT, algorithm="two_stage", **options)
    cached = conv._problem_and_plan.cache_info()
    assert (cached.hits, cached.misses) == (2, 3)
    assert [launch[0].n for launch in launches] == [2, 2, 1, 2, 2]
    assert [launch[0].pad_w for launch in launches] == [0, 0, 0, 1, 1]


@pytest.mark.parametrize("padding", [1.0, (1.0, 1), True, (True, 1), None, (1,), "full"])
def test_padding_that_equals_a_known_one_is_still_refused(launches, padding):
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
def test_a_bias_that_does_not_fit_is_refused_before_any_launch(launches, bias, error, message):
    with pytest.raises(error, match=message) as caught:
        cuconv.conv2d(X, WEIGHT, bias, out=OUT)
    assert "\n" not in str(caught.value) and not launches


def test_a_bias_on_the_cpu_is_refused():
    with pytest.raises(UnsupportedProblem, match="bias is on cpu"):
        conv._check_operand(TorchArrays(torch), "bias", BIAS)
