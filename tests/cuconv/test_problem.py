"""The description of a convolution: its sizes, FLOP and bytes, the paper's label, and what it refuses."""

import random
import time
from dataclasses import replace

import numpy as np
import pytest

from cuconv import ConvProblem, UnsupportedProblem
from cuconv.core.problem import MAX_SIZE, SIZES, _positions_read


def test_sizes_and_costs_of_a_padded_3x3():
    problem = ConvProblem(n=2, c=5, h=9, w=7, m=4, kh=3, kw=3, pad_h=1, pad_w=1)
    assert problem.output_shape == (2, 4, 9, 7)
    assert problem.flop == 2 * (2 * 4 * 9 * 7) * (5 * 9)
    assert problem.min_bytes == 4 * (2 * 5 * 63 + 4 * 5 * 9 + 2 * 4 * 63)


def test_without_padding_the_output_shrinks_by_the_filter():
    assert ConvProblem(n=1, c=1, h=9, w=7, m=1, kh=5, kw=3).output_shape == (1, 1, 5, 5)


def test_label_is_the_papers():
    assert ConvProblem(n=1, c=832, h=7, w=7, m=256, kh=1, kw=1).label == "7-1-1-256-832"
    assert ConvProblem(n=8, c=3, h=6, w=7, m=2, kh=1, kw=5).label == "6x7-8-1x5-2-3"


@pytest.mark.parametrize("field", ["n", "c", "h", "w", "m", "kh", "kw"])
@pytest.mark.parametrize("value", [0, -1])
def test_every_size_is_at_least_one(field, value):
    sizes = dict.fromkeys(("n", "c", "h", "w", "m", "kh", "kw"), 3) | {field: value}
    with pytest.raises(UnsupportedProblem, match=f"{field}={value}.*at least 1"):
        ConvProblem(**sizes)


def test_filter_larger_than_the_padded_input():
    ConvProblem(n=1, c=1, h=3, w=3, m=1, kh=5, kw=5, pad_h=1, pad_w=1)
    with pytest.raises(UnsupportedProblem, match=r"filter 7x5 is larger than the padded input 5x5"):
        ConvProblem(n=1, c=1, h=3, w=3, m=1, kh=7, kw=5, pad_h=1, pad_w=1)


def test_negative_padding():
    with pytest.raises(UnsupportedProblem, match="pad_w=-1"):
        ConvProblem(n=1, c=1, h=3, w=3, m=1, kh=1, kw=1, pad_w=-1)


def test_output_sizes_with_stride_and_dilation():
    assert ConvProblem(1, 3, 224, 224, 64, 7, 7, 3, 3, stride_h=2, stride_w=2).output_shape == (1, 64, 112, 112)
    assert ConvProblem(1, 3, 227, 227, 96, 11, 11, stride_h=4, stride_w=4).output_shape == (1, 96, 55, 55)
    assert ConvProblem(1, 8, 20, 21, 8, 3, 5, dilation_h=4, dilation_w=2).output_shape == (1, 8, 12, 13)


def test_groups_divide_channels_and_filters():
    problem = ConvProblem(2, 64, 8, 8, 32, 3, 3, 1, 1, groups=16)
    assert problem.weight_shape == (32, 4, 3, 3)
    assert problem.flop == 2 * 2 * 32 * 64 * 4 * 9
    with pytest.raises(UnsupportedProblem, match="groups=3: must divide the 64 channels"):
        ConvProblem(2, 64, 8, 8, 33, 3, 3, groups=3)
    with pytest.raises(UnsupportedProblem, match="groups=2: must divide the 33 filters"):
        ConvProblem(2, 64, 8, 8, 33, 3, 3, groups=2)


@pytest.mark.parametrize("field", ["stride_h", "stride_w", "dilation_h", "dilation_w", "groups"])
def test_steps_and_groups_are_at_least_one(field):
    with pytest.raises(UnsupportedProblem, match=f"{field}=0: must be at least 1"):
        ConvProblem(1, 1, 3, 3, 1, 1, 1, **{field: 0})


def test_least_traffic_counts_only_what_is_read():
    """A 1x1 filter with stride 2 reads every other row and column; a 3x3 filter with stride 2 reads all of them."""
    pointwise = ConvProblem(1, 8, 10, 10, 4, 1, 1, stride_h=2, stride_w=2)
    assert pointwise.min_bytes == 4 * (8 * 5 * 5 + 4 * 8 + 4 * 5 * 5)
    square = ConvProblem(1, 8, 10, 10, 4, 3, 3, 1, 1, stride_h=2, stride_w=2)
    assert square.min_bytes == 4 * (8 * 10 * 10 + 4 * 8 * 9 + 4 * 5 * 5)


def test_labels_of_strides_dilations_and_groups():
    assert ConvProblem(1, 64, 56, 56, 64, 3, 3, 1, 1, stride_h=2, stride_w=2).label == "56-1-3-64-64-s2"
    assert ConvProblem(1, 64, 9, 9, 64, 3, 3, dilation_h=2, dilation_w=3, groups=32).label == "9-1-3-64-64-d2x3-g32"


NOT_WHOLE = [1.5, 1.0, float("nan"), True, np.True_, "3", None, [3], (3, 3), 10**400, -1, 2**31]


@pytest.mark.parametrize("field", SIZES)
@pytest.mark.parametrize("value", NOT_WHOLE, ids=lambda value: str(value)[:9])
def test_what_counts_nothing_is_refused_in_one_sentence(field, value):
    with pytest.raises(UnsupportedProblem, match=rf"^{field}=.*: (must|every size|padding|the limit)"):
        replace(ConvProblem(1, 2, 3, 3, 2, 3, 3, 1, 1), **{field: value})


@pytest.mark.parametrize("precision", [None, 1, ["fp32"], np.zeros(2), "fp8"])
def test_an_unknown_precision_is_refused(precision):
    with pytest.raises(UnsupportedProblem, match=r"^precision=.*must be one of fp32, tf32"):
        ConvProblem(1, 2, 3, 3, 2, 3, 3, precision=precision)


def test_numbers_of_numpy_become_plain_ones_that_do_not_overflow():
    problem = ConvProblem(*map(np.int32, (64, 2048, 512, 512, 2048, 3, 3, 1, 1)))
    assert all(type(getattr(problem, name)) is int for name in SIZES)
    assert problem == ConvProblem(64, 2048, 512, 512, 2048, 3, 3, 1, 1) and problem.flop > 2**40


@pytest.mark.parametrize(
    ("problem", "why"),
    [
        ({"h": 2**30, "pad_h": 2**30}, "rows in the padded image"),
        ({"w": 2**30, "pad_w": 2**30}, "columns in the padded image"),
    ],
)
def test_what_kernels_cannot_count_is_refused(problem, why):
    with pytest.raises(UnsupportedProblem, match=f"{why}, the limit is "):
        ConvProblem(**({"n": 1, "c": 1, "h": 1, "w": 1, "m": 1, "kh": 1, "kw": 1} | problem))


def test_positions_that_are_read_are_counted_as_a_set_counts_them():
    made = random.Random(0)
    for _ in range(5000):
        size, kernel, pad, stride, dilation = (made.randint(least, 13) for least in (1, 1, 0, 1, 1))
        out = (size + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1
        read = {y * stride + k * dilation - pad for y in range(out) for k in range(kernel)}
        if out >= 1:
            assert _positions_read(size, kernel, pad, stride, dilation, out) == len(read & set(range(size)))


def test_least_bytes_of_huge_images_take_no_time():
    """As many rows of the filter, strides and outputs as an image can have of all of them, without common divisors."""
    start = time.process_time()
    for stride, dilation in ((2, 1), (46337, 46300), (46337, 1), (1, 46300)):
        assert ConvProblem(1, 1, MAX_SIZE, 1, 1, 46000, 1, stride_h=stride, dilation_h=dilation).min_bytes > 0
    assert time.process_time() - start < 1
