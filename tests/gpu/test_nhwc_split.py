"""Tests of nhwc_split on a GPU: every configuration, with every option of a call."""

from cuconv.algorithms import ALGORITHMS
from tests.gpu.half import assert_every_configuration, each_half, each_large, each_problem, in_half


@each_half
@each_problem
def test_every_configuration(problem, precision):
    assert_every_configuration(ALGORITHMS["nhwc_split"], in_half(problem, precision))


@each_large
def test_every_configuration_in_many_calls_that_overlap(problem):
    assert_every_configuration(ALGORITHMS["nhwc_split"], in_half(problem, "fp16"), repeats=30)
