"""Stride, padding, dilation and groups as a caller writes them."""

import pytest
import torch

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


@pytest.mark.parametrize("filter", [(2, 3), (3, 4), (6, 1)])
def test_an_even_filter_has_equal_padding_where_the_dilation_makes_it_equal(filter):
    shapes = INPUT, (6, 8, *filter)
    with pytest.raises(UnsupportedProblem, match="pad the input"):
        Geometry(padding="same").problem(*shapes, "fp32")
    problem = Geometry(padding="same", dilation=2).problem(*shapes, "fp32")
    assert problem.output_shape == (2, 6, *INPUT[2:])
    assert (problem.pad_h, problem.pad_w) == tuple(size - 1 for size in filter)


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
