"""Tests of nhwc_wgmma on a GPU: configurations, with every option of a call."""

from cuconv.algorithms import ALGORITHMS
from tests.gpu.half import (
    TF32,
    assert_configurations,
    each_half,
    each_large,
    each_problem,
    each_tf32,
    in_precision,
)


@each_half
@each_problem
def test_configurations(problem, precision):
    assert_configurations(ALGORITHMS["nhwc_wgmma"], in_precision(problem, precision))


@each_tf32
def test_configurations_in_tf32(problem):
    assert_configurations(ALGORITHMS["nhwc_wgmma"], in_precision(problem, TF32))


@each_large
def test_configurations_in_many_calls_that_overlap(problem):
    assert_configurations(ALGORITHMS["nhwc_wgmma"], in_precision(problem, "fp16"), repeats=30)
