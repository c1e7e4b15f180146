"""When a converted model's outputs agree with the model's, judged by torch's own errors."""

import pytest
import torch
from torch import nn

from cuconv.nn.comparison import Truth, difference
from cuconv.problem import FP32, TF32

EXACT = torch.linspace(0.5, 2.0, 1000, dtype=torch.float64)
THEIRS = EXACT.float()


def with_error(share):
    return (EXACT * (1 + share)).float()


@pytest.mark.parametrize(("precision", "torchs", "least"), [(FP32, 2e-5, 1e-5), (TF32, 2e-2, 1e-2)])
def test_an_error_may_be_three_times_that_of_torch_in_the_same_precision(precision, torchs, least):
    def judged(ours, judges):
        return difference(with_error(ours), THEIRS, precision, lambda: judges)

    assert judged(0.9 * least, (None, None)) == ""
    assert judged(2.9 * torchs, (EXACT, with_error(torchs))) == ""
    assert judged(3.1 * torchs, (EXACT, with_error(torchs))) != ""
    assert judged(2.9 * torchs, (EXACT, THEIRS)) != ""
    assert judged(0.2, (EXACT, with_error(0.2))) != "", "where torch's result is noise, nothing is as good"
    assert judged(2.9 * torchs, (EXACT, None)) != ""
    assert judged(2.9 * torchs, (None, with_error(torchs))) != ""


class Rounding(nn.Module):
    """One more where torch may round to TF32, whatever the processor."""

    def forward(self, x):
        return x + (torch.backends.cudnn.conv.fp32_precision == "tf32")


@pytest.mark.parametrize(("precision", "more"), [(FP32, 0), (TF32, 1)])
def test_torch_judges_in_the_precision_of_the_conversion(precision, more):
    x = torch.zeros(3)
    before = torch.backends.cudnn.conv.fp32_precision
    exact, torchs = Truth(Rounding()).judges(lambda: ((x,), {}), precision)
    assert exact.dtype == torch.float64
    assert exact.tolist() == [0] * 3
    assert torchs.tolist() == [more] * 3
    assert torch.backends.cudnn.conv.fp32_precision == before


class Float32Alone(nn.Module):
    """A model that refuses float64."""

    def forward(self, x):
        if x.dtype != torch.float32:
            raise TypeError(x.dtype)
        return x


def test_a_model_that_refuses_float64_has_no_exact_result():
    exact, torchs = Truth(Float32Alone()).judges(lambda: ((torch.ones(2),), {}), FP32)
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
