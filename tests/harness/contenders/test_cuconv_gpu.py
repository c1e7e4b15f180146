"""The offers of cuConv's contender, without a GPU."""

import pytest

from cuconv import ConvProblem, algorithms
from cuconv.algorithms import offering
from harness.contenders import cuconv_gpu


@pytest.mark.parametrize("precision", ["fp32", "tf32"])
def test_it_offers_the_algorithms_of_its_precision(precision):
    contender = object.__new__(cuconv_gpu.Contender)  # its constructor needs a GPU
    contender.precision = precision
    offers = contender.offers(ConvProblem(1, 64, 28, 28, 64, 3, 3, 1, 1), None)
    names = algorithms() if precision == "fp32" else offering(precision)
    assert [offer.algorithm for offer in offers] == ["auto", "batch_invariant", *names]
    assert {offer.precision for offer in offers} == {precision}
