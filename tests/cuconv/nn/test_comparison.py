"""When a converted model's outputs agree with the model's, judged by torch's own errors."""

import random
import warnings
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from cuconv.core.problem import FP32, TF32
from cuconv.nn.comparison import Truth, call, difference, distance
from cuconv.reference import round_to_tf32

EXACT = torch.linspace(0.5, 2.0, 1000, dtype=torch.float64)
THEIRS = EXACT.float()
WITHOUT_DATA = FakeTensorMode().from_tensor(THEIRS)


def with_error(share):
    return (EXACT * (1 + share)).float()


OUTPUTS = {
    "tensor": lambda values: values,
    "complex": lambda values: torch.complex(values[::2], values[1::2]),
    "conjugate": lambda values: torch.complex(values[::2], values[1::2]).conj(),
    "sparse": lambda values: values.to_sparse(),
    "list": lambda values: {"values": values.tolist()},
    "number": lambda values: (values[0].item(),),
    "complex number": lambda values: complex(values[0], values[1]),
}


@pytest.mark.parametrize("kind", OUTPUTS)
@pytest.mark.parametrize(("precision", "torchs", "least"), [(FP32, 2e-5, 1e-5), (TF32, 2e-2, 1e-2)])
def test_an_error_may_be_three_times_that_of_torch_in_the_same_precision(precision, torchs, least, kind):
    def judged(ours, judges):
        values = [None if one is None else OUTPUTS[kind](one) for one in (with_error(ours), THEIRS, *judges)]
        return difference(*values[:2], precision, lambda: values[2:])

    assert judged(0.9 * least, (None, None)) == ""
    assert judged(2.9 * torchs, (EXACT, with_error(torchs))) == ""
    assert judged(3.1 * torchs, (EXACT, with_error(torchs))) != ""
    assert judged(2.9 * torchs, (EXACT, THEIRS)) != ""
    assert judged(0.2, (EXACT, with_error(0.2))) != "", "where torch's result is noise, nothing is as good"
    assert judged(2.9 * torchs, (EXACT, None)) != ""
    assert judged(2.9 * torchs, (None, with_error(torchs))) != ""


@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [
        (THEIRS.double(), THEIRS, "dtype torch.float64 instead of torch.float32"),
        (THEIRS.to_sparse(), THEIRS, "layout torch.sparse_coo instead of torch.strided"),
        ([0.5, 1.0], [0.5], "2 numbers instead of 1"),
        ([0.5], (0.5,), "list instead of a tuple"),
        (1.0, 1, "float instead of a int"),
        (torch.eye(2).bool().to_sparse(), torch.ones(2, 2).bool().to_sparse(), "2 of 4 numbers"),
        (WITHOUT_DATA, WITHOUT_DATA, "cannot be compared: aten.equal"),
    ],
)
def test_what_no_judge_excuses(ours, theirs, words):
    assert words in difference(ours, theirs, FP32, lambda: (ours, ours))


class Complex(nn.Module):
    """A product with complex weights."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1 / 3, 2j / 3]))

    def forward(self, x):
        return self.weight @ x


def test_complex_numbers_are_judged_in_their_widest_type():
    (exact, *_), (torchs, *_) = Truth(Complex()).judges(lambda: ((torch.ones(2, dtype=torch.complex64),), {}), FP32)
    assert (exact.dtype, torchs.dtype) == (torch.complex128, torch.complex64)


class Layers(nn.Module):
    """A convolution and products in torch's ways to write them, with factors that TF32 does not have."""

    def __init__(self):
        super().__init__()
        self.conv, self.linear = nn.Conv2d(3, 4, 3), nn.Linear(4, 5)

    def forward(self, x):
        features = self.conv(x)
        planes = features.flatten(2)
        return features, self.linear(planes.mean(2)), planes[0] @ planes[0].T, torch.bmm(planes, planes.mT)

    def rounded(self, x):
        """The same in float64, of factors rounded to TF32."""
        with torch.no_grad():
            exact = Layers().double()
            exact.conv.weight.copy_(round_to_tf32(self.conv.weight))
            exact.conv.bias.copy_(self.conv.bias)
            features = exact.conv(round_to_tf32(x).double())
            planes = features.flatten(2)
            products = round_to_tf32(planes.float()).double()
            means = round_to_tf32(planes.mean(2).float()).double()
            linear = F.linear(means, round_to_tf32(self.linear.weight).double(), self.linear.bias.double())
            return features, linear, products[0] @ products[0].T, products @ products.mT


@pytest.mark.parametrize("around", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("precision", [FP32, TF32])
def test_torch_judges_in_the_precision_of_the_conversion(precision, around):
    torch.manual_seed(3)
    model, x = Layers(), torch.randn(2, 3, 8, 8)
    before = torch.backends.cudnn.conv.fp32_precision
    with around():
        (exact, *_), (torchs, *_) = Truth(model).judges(lambda: ((x.clone(),), {}), precision)
    assert torch.backends.cudnn.conv.fp32_precision == before
    expected = model.rounded(x) if precision == TF32 else exact
    for output, wanted, truth in zip(torchs, expected, exact, strict=True):
        assert truth.dtype == torch.float64 and output.dtype == torch.float32
        assert distance(output, wanted) < 2e-5
        assert (distance(output, truth) > 5e-5) is (precision == TF32)


def test_random_numbers_go_on_afterwards_on_every_gpu_without_a_warning(monkeypatch):
    states = {0: torch.tensor([3]), 1: torch.tensor([4])}  # of the generators of two GPUs
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda gpu: states[gpu].clone())
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, gpu: states.update({gpu: state}))
    monkeypatch.setattr(torch.random, "_fork_rng_warned_already", False)
    before = torch.get_rng_state(), random.getstate()

    def draw():
        states.update({0: torch.tensor([5]), 1: torch.tensor([6])})
        return torch.rand(1), random.random()

    with warnings.catch_warnings(action="error"):
        first, second = call(draw, ((), {})), call(draw, ((), {}))
    assert first == second
    assert torch.equal(torch.get_rng_state(), before[0]) and random.getstate() == before[1]
    assert states == {0: torch.tensor([3]), 1: torch.tensor([4])}


class Float32Alone(nn.Module):
    """A model that refuses float64."""

    def forward(self, x):
        if x.dtype != torch.float32:
            raise TypeError(x.dtype)
        return x


def test_a_model_that_refuses_float64_has_no_exact_result():
    exact, (torchs, *_) = Truth(Float32Alone()).judges(lambda: ((torch.ones(2),), {}), FP32)
    assert exact is None
    assert torchs.tolist() == [1, 1]


class OutOfMemoryInFloat64(nn.Module):
    """A model for whose float64 copy there is no room."""

    def forward(self, x):
        if x.dtype == torch.float64:
            raise torch.OutOfMemoryError("no room")
        return x


def test_lack_of_memory_is_no_difference():
    with pytest.raises(torch.OutOfMemoryError):
        Truth(OutOfMemoryInFloat64()).judges(lambda: ((torch.ones(2),), {}), FP32)


@dataclass
class Out:
    score: torch.Tensor
    steps: int = 3


@pytest.mark.parametrize(
    "result", [Out, lambda score: [Out(score)], lambda score: score.numpy(), lambda score: {"scores": score.numpy()}]
)
def test_tensors_in_dataclasses_and_arrays_are_compared_like_others(result):
    score = torch.linspace(0.5, 2.0, 100)
    assert difference(result(score * (1 + 5e-6)), result(score), FP32) == ""
    assert "relative L2 error" in difference(result(score * 1.1), result(score), FP32)
    assert difference(Out(score, 4), Out(score), FP32) != ""


class Unequal:
    def __eq__(self, other):
        raise TypeError("nobody knows")


def test_what_cannot_be_compared_is_no_equal():
    assert "cannot be compared" in difference(Unequal(), Unequal(), FP32)
