"""Tests of tf32x3_shallow's configurations and launches; they are pure functions of problem and device."""

from math import ceil

import pytest

from cuconv import ConvProblem, UnsupportedProblem
from cuconv.algorithms import ALGORITHMS
from cuconv.algorithms.tf32x3.tf32x3_shallow import FILTERS, slots_of, steps_of
from tests.cuconv.algorithms.problems import PROBLEMS, each_device, each_precision, in_precision

SHALLOW = ALGORITHMS["tf32x3_shallow"]
STEM = ConvProblem(8, 3, 224, 224, 64, 3, 3, 1, 1)  # the first layer of a network


@each_device
@each_precision
def test_candidates_cover_the_output_and_fit_the_device(device, precision):
    computed = 0
    for problem in in_precision(precision, PROBLEMS):
        try:
            configs = SHALLOW.candidates(problem, device)
        except UnsupportedProblem:
            continue
        computed += 1
        tiles = ceil(problem.n * problem.out_pixels / 32)
        for config in configs:
            filter_blocks = ceil(problem.m / config.block_filters)
            assert config.block_filters % FILTERS == 0 and config.blocks % filter_blocks == 0
            assert config.blocks // filter_blocks <= ceil(tiles / config.warps), "a block without pixels"
            assert config.blocks <= max(filter_blocks, config.resident * device.sm_count), "a second wave"
            assert config.resident * (config.shared_bytes + 1024) <= device.shared_bytes_per_sm
    assert computed >= 9, "the first layers of networks, and 1x1 layers of few channels"


@pytest.mark.parametrize(("c", "kh", "kw"), [(3, 3, 3), (4, 3, 3), (1, 3, 3), (1, 5, 5), (17, 1, 1), (4, 3, 1)])
def test_four_lanes_share_a_reduction_by_rows_and_then_by_single_positions(c, kh, kw):
    problem = ConvProblem(1, c, 8, 8, 8, kh, kw, kh // 2, kw // 2)
    rows, singles = slots_of(problem)
    assert rows * kw + singles == ceil(c * kh * kw / 4) and steps_of(problem) == ceil(c * kh * kw / 8)
    assert rows in (c * kh // 4, ceil(c * kh / 4)), "as many rows as all lanes have"
