"""The offers of cuConv's contender, without a GPU."""

import pytest
import torch

from cuconv import ConvProblem
from cuconv.algorithms import offering
from harness.contenders import cuconv_gpu
from harness.contenders.base import Operands


@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16"])
def test_it_offers_the_algorithms_of_its_precision(precision):
    contender = object.__new__(cuconv_gpu.Contender)  # its constructor needs a GPU
    contender.precision = precision
    problem = ConvProblem(1, 64, 28, 28, 64, 3, 3, 1, 1)
    offers = contender.offers(problem, Operands.random(problem, torch.Generator()))
    last = ["auto_nhwc"] if precision == "tf32" else []
    assert [offer.algorithm for offer in offers] == ["auto", "batch_invariant", *offering(precision), *last]
    assert {offer.precision for offer in offers} == {precision}
