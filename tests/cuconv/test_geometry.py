"""Stride, padding, dilation and groups as a caller writes them."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from cuconv import UnsupportedProblem
from cuconv.core.geometry import Geometry, pair

INPUT, WEIGHT = (2, 8, 20, 17), (6, 4, 3, 5)


@pytest.mark.parametrize("stride", [1, 2, (3, 1)])
@pytest.mark.parametrize("padding", [0, 2, (1, 3), "valid", "same"])
@pytest.mark.parametrize("dilation", [1, (2, 3)])
def test_output_shapes_are_torchs(stride, padding, dilation):
    geometry = Geometry(stride, padding, dilation, 2)
    try:
        expected = torch.nn.functional.conv2d(
            torch.empty(INPUT, device="meta"), torch.empty(WEIGHT, device="meta"), None, stride, padding, dilation, 2
        ).shape
    except RuntimeError:  # "same" with a stride
        with pytest.raises(UnsupportedProblem, match="stride"):
            geometry.problem(INPUT, WEIGHT, "fp32")
    else:
        assert geometry.problem(INPUT, WEIGHT, "fp32").output_shape == expected


@pytest.mark.parametrize(
    ("filter", "zeros"), [((2, 3), ((0, 1), (1, 1))), ((3, 4), ((1, 1), (1, 2))), ((6, 1), ((2, 3), (0, 0)))]
)
def test_the_odd_zero_of_an_even_filter_is_the_last(filter, zeros):
    shapes = INPUT, (6, 8, *filter)
    assert Geometry(padding="same").problem(*shapes, "fp32").padding == zeros
    for dilation in (1, 2, 3):
        problem = Geometry(padding="same", dilation=dilation).problem(*shapes, "fp32")
        assert problem.output_shape == (2, 6, *INPUT[2:])


@pytest.mark.parametrize("stride", [1, (2, 3)])
@pytest.mark.parametrize("padding", [((0, 1), (0, 1)), [[2, 0], [0, 3]], ((4, 1), (2, 2))])
def test_padding_that_differs_at_both_ends(padding, stride):
    rows, columns = padding
    x = F.pad(torch.empty(INPUT, device="meta"), (*columns, *rows))
    expected = F.conv2d(x, torch.empty(WEIGHT, device="meta"), None, stride, 0, (3, 1), 2).shape
    for geometry in (Geometry(stride, padding, (3, 1), 2), Geometry(stride, padding, (3, 1), 2).checked()):
        problem = geometry.problem(INPUT, WEIGHT, "fp32")
        assert problem.output_shape == expected and problem.padding == tuple(map(tuple, padding))


def test_equal_padding_is_the_same_in_pairs():
    assert Geometry(padding=((1, 1), (2, 2))).checked() == Geometry(padding=(1, 2)).checked()


@pytest.mark.parametrize(
    "padding",
    [
        ((0, 1),),
        ((0, 1), 1),
        ((0, 1), (1, 2, 3)),
        ((0, 1.0), (0, 1)),
        ((0, True), (0, 1)),
        ((0, -1), (0, 1)),
        np.array([1, 1]),
    ],
    ids=str,
)
def test_other_paddings_are_refused(padding):
    with pytest.raises(UnsupportedProblem, match=r"^padding="):
        Geometry(padding=padding, groups=2).problem(INPUT, WEIGHT, "fp32")
    with pytest.raises(UnsupportedProblem, match=r"^padding="):
        Geometry(padding=padding).checked()


def test_channels_fit_the_groups():
    with pytest.raises(UnsupportedProblem, match="groups=1"):
        Geometry().problem(INPUT, WEIGHT, "fp32")


def test_one_number_in_a_tuple_stands_for_both_axes():
    assert pair("stride", (2,)) == pair("stride", [2]) == (2, 2)
    assert pair("padding", [1, 0]) == (1, 0)


@pytest.mark.parametrize("value", [1.0, None, (), (1, 2, 3), (1, True), "same"])
def test_other_values_are_refused(value):
    with pytest.raises(UnsupportedProblem, match="stride="):
        pair("stride", value)
