"""The description of a convolution: its sizes, FLOP and bytes, the paper's label, and what it refuses."""

import random
import time
from dataclasses import replace

import numpy as np
import pytest

from cuconv import ConvProblem, UnsupportedProblem
from cuconv.core.problem import MAX_SIZE, SIZES, _positions_read


def test_sizes_and_costs():
    padded = ConvProblem(n=2, c=5, h=9, w=7, m=4, kh=3, kw=3, pad_h=1, pad_w=1)
    assert padded.output_shape == (2, 4, 9, 7)
    assert padded.flop == 2 * (2 * 4 * 9 * 7) * (5 * 9)
    assert padded.min_bytes == 4 * (2 * 5 * 63 + 4 * 5 * 9 + 2 * 4 * 63)
    grouped = ConvProblem(2, 64, 8, 8, 32, 3, 3, 1, 1, groups=16)
    assert grouped.weight_shape == (32, 4, 3, 3)
    assert grouped.flop == 2 * 2 * 32 * 64 * 4 * 9
    every_other = ConvProblem(1, 8, 10, 10, 4, 1, 1, stride_h=2, stride_w=2)  # rows and columns of the input
    assert every_other.min_bytes == 4 * (8 * 5 * 5 + 4 * 8 + 4 * 5 * 5)


@pytest.mark.parametrize(
    ("problem", "label"),
    [
        (ConvProblem(n=1, c=832, h=7, w=7, m=256, kh=1, kw=1), "7-1-1-256-832"),  # the paper's
        (ConvProblem(n=8, c=3, h=6, w=7, m=2, kh=1, kw=5), "6x7-8-1x5-2-3"),
        (ConvProblem(1, 64, 56, 56, 64, 3, 3, 1, 1, stride_h=2, stride_w=2), "56-1-3-64-64-s2"),
        (ConvProblem(1, 64, 9, 9, 64, 3, 3, dilation_h=2, dilation_w=3, groups=32), "9-1-3-64-64-d2x3-g32"),
        (ConvProblem(1, 64, 9, 9, 8, 3, 3, more_h=1, more_w=1, stride_h=2, stride_w=2), "9-1-3-8-64-s2-p0:1"),
        (ConvProblem(2, 64, 1, 9, 64, 1, 3, pad_w=2, more_w=-2), "1x9-2-1x3-64-64-p0:0x2:0"),
    ],
)
def test_labels(problem, label):
    assert problem.label == label


def test_padding_may_differ_at_both_ends_of_an_axis():
    problem = ConvProblem(2, 5, 9, 8, 4, 3, 3, 0, 2, stride_h=2, stride_w=2, more_h=1, more_w=-2)
    assert problem.padding == ((0, 1), (2, 0)) and problem.output_shape == (2, 4, 4, 4)
    assert (problem.padded_h, problem.padded_w) == (10, 10)
    assert problem.geometry["padding"] == ((0, 1), (2, 0))
    assert problem.min_bytes == 4 * (2 * 5 * 9 * 7 + 4 * 5 * 9 + 2 * 4 * 16)
    assert problem != replace(problem, more_h=0) and replace(problem, more_h=0, more_w=0).geometry["padding"] == (0, 2)
    with pytest.raises(UnsupportedProblem, match=r"^more_w=-3"):
        replace(problem, more_w=-3)
    with pytest.raises(UnsupportedProblem, match="padded input 10x12"):
        replace(problem, kh=11, more_w=0)


def test_a_filter_may_be_larger_than_the_input_but_not_than_the_padded_one():
    ConvProblem(n=1, c=1, h=3, w=3, m=1, kh=5, kw=5, pad_h=1, pad_w=1)
    with pytest.raises(UnsupportedProblem, match="7x5"):
        ConvProblem(n=1, c=1, h=3, w=3, m=1, kh=7, kw=5, pad_h=1, pad_w=1)


@pytest.mark.parametrize(("m", "groups"), [(33, 3), (33, 2)])
def test_groups_divide_channels_and_filters(m, groups):
    with pytest.raises(UnsupportedProblem, match=f"groups={groups}"):
        ConvProblem(2, 64, 8, 8, m, 3, 3, groups=groups)


NOT_WHOLE = [1.5, 1.0, float("nan"), True, np.True_, "3", None, [3], (3, 3), 10**400, 2**31]
COUNTS_NOTHING = {"pad_": [-1], "more": [-2]}  # by the start of a field's name; for all others -1 and 0


@pytest.mark.parametrize(
    ("field", "value"),
    [(field, value) for field in SIZES for value in [*NOT_WHOLE, *COUNTS_NOTHING.get(field[:4], [-1, 0])]],
    ids=lambda value: str(value)[:9],
)
def test_what_counts_nothing_is_refused_in_one_sentence(field, value):
    with pytest.raises(UnsupportedProblem, match=rf"^{field}="):
        replace(ConvProblem(1, 2, 3, 3, 2, 3, 3, 1, 1), **{field: value})


@pytest.mark.parametrize("precision", [None, 1, ["fp32"], np.zeros(2), "fp8"])
def test_an_unknown_precision_is_refused(precision):
    with pytest.raises(UnsupportedProblem, match="precision="):
        ConvProblem(1, 2, 3, 3, 2, 3, 3, precision=precision)


def test_numbers_of_numpy_become_plain_ones_that_do_not_overflow():
    problem = ConvProblem(*map(np.int32, (64, 2048, 512, 512, 2048, 3, 3, 1, 1)))
    assert all(type(getattr(problem, name)) is int for name in SIZES)
    assert problem == ConvProblem(64, 2048, 512, 512, 2048, 3, 3, 1, 1) and problem.flop > 2**40


@pytest.mark.parametrize("axis", ["h", "w"])
def test_what_kernels_cannot_count_is_refused(axis):
    sizes = dict.fromkeys(("n", "c", "h", "w", "m", "kh", "kw"), 1) | {axis: 2**30, f"pad_{axis}": 2**30}
    with pytest.raises(UnsupportedProblem, match="padded image"):
        ConvProblem(**sizes)


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
