"""Every share of work of the Winograd kernel, and inputs whose scale changes from chunk to chunk."""

import pytest

from cuconv import ConvProblem
from cuconv.algorithms import fp16x3_winograd
from tests.gpu.configurations import (
    assert_right_and_the_same_every_time,
    assert_scale_follows_chunks,
    assert_zeros_give_zeros,
    each_scales,
)

NAME = "fp16x3_winograd"
DEEP = ConvProblem(
    2, 130, 9, 11, 150, 3, 3, 1, 1
)  # nine chunks: tiles that several blocks share, and blocks with several
FEW_FILTERS = ConvProblem(4, 40, 20, 20, 20, 5, 5, 2, 2)  # tiles with many positions
WIDE = ConvProblem(1, 20, 70, 200, 70, 3, 3, 1, 1)  # much halo


@pytest.mark.parametrize("problem", [DEEP, FEW_FILTERS, WIDE], ids=str)
def test_every_configuration_is_right_and_the_same_every_time(problem):
    assert_right_and_the_same_every_time(fp16x3_winograd, problem, repeats=5)


@pytest.mark.parametrize("problem", [DEEP, FEW_FILTERS], ids=str)
@each_scales
def test_the_scale_follows_the_chunks(problem, scales):
    assert_scale_follows_chunks(NAME, problem, scales, "fp32")


def test_zeros_give_zeros():
    assert_zeros_give_zeros(NAME, DEEP)
