"""Every tile and share of work of the FP16 kernel, and inputs whose scale changes from chunk to chunk."""

from dataclasses import replace

import pytest

from cuconv import ConvProblem, conv2d, reference
from cuconv.algorithms.fp16x3.fp16x3 import fp16x3
from tests.gpu.configurations import (
    assert_right_and_the_same_every_time,
    assert_scale_follows_chunks,
    assert_zeros_give_zeros,
    each_precision,
    each_scales,
)
from tests.gpu.problems import TOLERANCES, operands, refusal_allowed, rel_l2_error

NAME = "fp16x3"
DEEP = ConvProblem(
    2, 130, 9, 11, 150, 3, 3, 1, 1
)  # nine chunks: tiles that several blocks share, and blocks with several
FEW_FILTERS = ConvProblem(4, 40, 20, 20, 20, 5, 5, 2, 2)  # tiles with many positions
WIDE = ConvProblem(1, 20, 70, 200, 70, 3, 3, 1, 1)  # much halo


@each_precision
@pytest.mark.parametrize("problem", [DEEP, FEW_FILTERS, WIDE], ids=str)
def test_every_configuration_is_right_and_the_same_every_time(problem, precision):
    assert_right_and_the_same_every_time(fp16x3, replace(problem, precision=precision), repeats=5)


@each_precision
@pytest.mark.parametrize("problem", [DEEP, FEW_FILTERS], ids=str)
@each_scales
def test_the_scale_follows_the_chunks(problem, scales, precision):
    assert_scale_follows_chunks(NAME, problem, scales, precision)


def test_in_tf32_an_image_is_of_the_class_beside_one_a_million_times_larger():
    """They share a scale, which starts out right for a largest element of 1/2 and is then kept."""
    x, weight = operands(DEEP)
    x *= 0.51 / x.abs().max()
    x[1] *= 2.0**-20
    with refusal_allowed(NAME):
        out = conv2d(x, weight, padding=1, algorithm=NAME, precision="tf32")
        assert rel_l2_error(out[1], reference.conv2d(x, weight, (1, 1))[1]) < TOLERANCES["tf32"]


def test_zeros_give_zeros():
    assert_zeros_give_zeros(NAME, DEEP)
