"""Kernels that compare each channel's number with their count also compute layers of whole groups of 8 channels."""

import pytest

from cuconv import ConvProblem
from cuconv.algorithms import ALGORITHMS
from tests.gpu.configurations import assert_right_and_the_same_every_time

PROBLEMS = [
    ConvProblem(2, 144, 9, 11, 150, 3, 3, 1, 1),
    ConvProblem(4, 40, 20, 20, 20, 5, 5, 2, 2),
    ConvProblem(1, 24, 70, 200, 70, 3, 5, 1, 2),
]


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
@pytest.mark.parametrize("name", ["fp16x3", "fp16x3_winograd"])
def test_the_variant_for_any_channels_is_right_for_whole_groups(name, problem, monkeypatch):
    algorithm = ALGORITHMS[name]
    every_form = type(algorithm).forms
    monkeypatch.setattr(type(algorithm), "forms", lambda *arguments: every_form(*arguments)[1:])
    assert_right_and_the_same_every_time(algorithm, problem, repeats=2)
