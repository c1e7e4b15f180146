"""conv1d without a GPU: the call of conv2d that it is, in the same memory, and what it refuses."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

import cuconv
from cuconv import UnsupportedProblem
from cuconv.core.geometry import Geometry, in_a_row
from cuconv.runtime.arrays import CupyArrays, TorchArrays, is_channels_last
from tests.cuconv.fake_gpu import Recorder

X, WEIGHT, BIAS = torch.zeros(2, 4, 35), torch.zeros(9, 4, 3), torch.zeros(9)
RESIDUAL = torch.zeros(2, 9, 35)


def last_in_memory(t):
    """The same tensor in half precision, with the channels of a position together in memory."""
    return t.half().mT.contiguous().mT


@pytest.mark.parametrize("options", [{}, {"relu": True}, {"activation": "silu", "residual": RESIDUAL}], ids=",".join)
def test_it_is_conv2d_of_images_of_one_row(cuda, options):
    for _ in range(2):
        out = cuconv.conv1d(X, WEIGHT, BIAS, padding=1, **options)
    assert out.shape == (2, 9, 35) and out.is_contiguous() and len(Recorder.made) == 1
    images = {name: value[:, :, None] if torch.is_tensor(value) else value for name, value in options.items()}
    cuconv.conv2d(X[:, :, None], WEIGHT[:, :, None], BIAS, padding=(0, 1), **images)
    _, (ours, _, addresses), (theirs, _, others) = Recorder.enqueued
    assert ours == theirs
    assert addresses[:3] == others[:3] == (X.data_ptr(), WEIGHT.data_ptr(), BIAS.data_ptr())
    assert addresses[3] == out.data_ptr()


def test_one_signal_has_no_batch(cuda):
    out = torch.zeros(9, 17)
    assert cuconv.conv1d(X[0], WEIGHT, stride=2).shape == (9, 17)
    assert cuconv.conv1d(X[0], WEIGHT, stride=2, residual=torch.zeros(9, 17), out=out) is out
    assert Recorder.enqueued[-1][2][3] == out.data_ptr()


def test_an_output_may_be_a_slice_of_channels(cuda):
    buffer = torch.zeros(2, 12, 33)
    out = buffer[:, 3:]
    assert cuconv.conv1d(X, WEIGHT, algorithm="tf32x3_gemm", out=out) is out
    assert Recorder.enqueued[-1][2][3] == out.data_ptr() and not cuda.tensors.allocated


def test_half_precision_takes_channels_that_are_together_in_memory(cuda):
    x, weight = (last_in_memory(t) for t in (torch.zeros(2, 16, 35), torch.zeros(24, 16, 3)))
    out = cuconv.conv1d(x, weight, last_in_memory(torch.zeros(1, 1, 24))[0, 0].contiguous(), padding=1)
    assert out.shape == (2, 24, 35) and out.mT.is_contiguous() and out.dtype == torch.float16
    assert Recorder.enqueued[-1][2][:2] == (x.data_ptr(), weight.data_ptr())


@pytest.mark.parametrize("stride", [1, 3, (2,)])
@pytest.mark.parametrize("padding", [0, [2], (7,), "valid", "same"])
@pytest.mark.parametrize("dilation", [1, 4])
@pytest.mark.parametrize("length", [1, 2, 3, 7])
def test_output_lengths_are_torchs(stride, padding, dilation, length):
    arguments = {"stride": stride, "padding": padding, "dilation": dilation}
    others = {"stride": 1, "padding": 0, "dilation": 1}
    try:
        operands = (torch.empty(2, 6, 40, device="meta"), torch.empty(8, 3, length, device="meta"))
        expected = F.conv1d(*operands, None, stride, padding, dilation, 2).shape
    except RuntimeError:  # "same" with a stride
        expected = None
    rows = [in_a_row(name, value, others[name]) for name, value in arguments.items()]
    if expected is None:
        with pytest.raises(UnsupportedProblem, match="same"):
            Geometry(*rows, 2).problem((2, 6, 1, 40), (8, 3, 1, length), "fp32")
        return
    n, m, height, width = Geometry(*rows, 2).problem((2, 6, 1, 40), (8, 3, 1, length), "fp32").output_shape
    assert (n, m, width) == expected and height == 1


@pytest.mark.parametrize("padding", [(2, 0), (0, 5), [3, 3]])
def test_padding_may_differ_on_both_sides(padding):
    rows = in_a_row("padding", padding, 0)
    problem = Geometry(1, rows, (1, 2)).problem((2, 6, 1, 40), (8, 6, 1, 3), "fp32")
    assert problem.padding == ((0, 0), tuple(padding)) and problem.output_shape == (2, 8, 1, 36 + sum(padding))


REFUSED = {  # by what is wrong: the arguments, and what the error names
    "an image": ({"input": X[:, :, None]}, "3 are needed, .N, C, L."),
    "a signal without channels": ({"input": X[0, 0]}, "input has 1 dimensions"),
    "an image's weight": ({"weight": WEIGHT[:, :, None]}, "weight has 4 dimensions"),
    "a residual without batch": ({"residual": RESIDUAL[0]}, "residual has 2 dimensions"),
    "a batch of outputs": ({"input": X[0], "out": RESIDUAL}, "out has 3 dimensions"),
    "bias": ({"bias": BIAS[None]}, "bias"),
    "channels": ({"weight": torch.zeros(9, 3, 3)}, "channels"),
    "shape of residual": ({"residual": RESIDUAL}, "residual"),
    "a filter longer than the signal": ({"dilation": 20}, "larger than the padded"),
    **{f"{value} as stride": ({"stride": value}, "stride=") for value in (1.0, True, (1, 1), (), None, "1")},
    **{f"{value} as padding": ({"padding": value}, "padding=") for value in (1.0, (1, 1, 1), (1, -1), None, "full")},
}


@pytest.mark.parametrize("wrong", REFUSED)
def test_a_call_is_refused_in_a_sentence_before_any_launch(cuda, wrong):
    changed, named = REFUSED[wrong]
    with pytest.raises(UnsupportedProblem, match=named) as caught:
        cuconv.conv1d(**{"input": X, "weight": WEIGHT} | changed)
    assert "\n" not in str(caught.value) and not Recorder.enqueued


class Subclass(torch.Tensor):
    """A subclass of torch.Tensor that does nothing."""


@pytest.mark.parametrize(
    ("value", "error", "why"),
    [
        (X.as_subclass(Subclass), TypeError, "subclasses"),
        (X.to_sparse(), UnsupportedProblem, "sparse"),
        (torch._neg_view(X), UnsupportedProblem, "negates"),
        (torch.nested.nested_tensor([X[0]]), UnsupportedProblem, "nested"),
        (X.to("meta"), UnsupportedProblem, "meta"),
        (X, UnsupportedProblem, "cpu"),
    ],
    ids=["subclass", "sparse", "negative", "nested", "meta", "cpu"],
)
def test_tensors_that_are_no_plain_memory_of_a_gpu_are_refused(value, error, why):
    with pytest.raises(error, match=why):
        cuconv.conv1d(value, WEIGHT)


def test_cupy_sees_rows_in_the_same_memory():
    arrays = CupyArrays(None)
    first, last = np.zeros((2, 8, 35), np.float32), np.zeros((2, 35, 8), np.float16).swapaxes(1, 2)
    rows = [arrays.as_row(signal) for signal in (first, last)]
    assert [row.shape for row in rows] == [(2, 8, 1, 35)] * 2 and rows[0].flags.c_contiguous
    assert is_channels_last(rows[1].shape, arrays.strides(rows[1])) and np.shares_memory(rows[1], last)


@pytest.mark.parametrize("name", ["weight", "bias", "residual", "out"])
def test_arrays_of_two_libraries_are_refused(cuda, name):
    with pytest.raises(TypeError, match=name):
        cuconv.conv1d(**{"input": X, "weight": WEIGHT} | {name: np.zeros((9, 4, 3), np.float32)})


def test_half_precision_in_another_layout_is_refused():
    arrays = TorchArrays(torch)
    with FakeTensorMode():  # tensors of a GPU, without data
        first, last = (
            arrays.as_row(torch.empty_strided((2, 16, 35), strides, dtype=torch.float16, device="cuda"))
            for strides in ((560, 35, 1), (560, 1, 16))
        )
        arrays.check("input", last)
        with pytest.raises(UnsupportedProblem, match="float16"):
            arrays.check("input", first)
