"""The description of a convolution: its sizes, FLOP and bytes, the paper's label, and what it refuses."""

import pytest

from cuconv import ConvProblem, UnsupportedProblem


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
