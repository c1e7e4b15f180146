"""Tests of tf32x3_shallow's configurations and launches; they are pure functions of problem and device."""

from math import ceil

import pytest

from cuconv import ConvProblem, UnsupportedProblem
from cuconv.algorithms import ALGORITHMS
from cuconv.algorithms.tf32x3.tf32x3_shallow import FILTERS, slots_of, steps_of
from cuconv.core.launch import BIAS, INPUT, OUTPUT, WEIGHT
from cuconv.device import A100, H200
from tests.cuconv.algorithms.problems import PROBLEMS, each_device, each_precision, in_precision, launched, one_by_one

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
        assert len(set(map(str, configs))) == len(configs)
        tiles = ceil(problem.n * problem.out_pixels / 32)
        for config in configs:
            filter_blocks = ceil(problem.m / config.block_filters)
            assert config.block_filters % FILTERS == 0 and config.blocks % filter_blocks == 0
            assert config.blocks // filter_blocks <= ceil(tiles / config.warps), "a block without pixels"
            assert config.blocks <= max(filter_blocks, config.resident * device.sm_count), "a second wave"
            assert config.resident * (config.shared_bytes + 1024) <= device.shared_bytes_per_sm
            assert config.workspace_bytes == 0
            assert SHALLOW.predicted_us(problem, device, config) > 0
    assert computed >= 9, "the first layers of networks, and 1x1 layers of few channels"


@pytest.mark.parametrize(
    ("c", "kh", "kw", "rows", "singles"),
    [(3, 3, 3, 2, 1), (4, 3, 3, 3, 0), (1, 3, 3, 0, 3), (1, 5, 5, 1, 2), (17, 1, 1, 5, 0), (4, 3, 1, 3, 0)],
)
def test_four_lanes_share_a_reduction_by_rows_and_then_by_single_positions(c, kh, kw, rows, singles):
    problem = ConvProblem(1, c, 8, 8, 8, kh, kw, kh // 2, kw // 2)
    assert slots_of(problem) == (rows, singles)
    assert rows * kw + singles == ceil(c * kh * kw / 4)
    assert steps_of(problem) == ceil(c * kh * kw / 8)


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (one_by_one(33), "33 weights in a filter, the limit of tf32x3_shallow is 32"),
        (ConvProblem(1, 3, 9, 9, 8, 3, 3, 1, 1), "rows of 9 outputs"),
        (one_by_one(16, pad=1, hw=7), "rows of 9 outputs"),
        (one_by_one(16, hw=5), "25 pixels, tf32x3_shallow computes 32 or more"),
        (one_by_one(16, m=20000), "the weights of 20000 filters in 4 blocks"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_unsupported_problems_are_refused(problem, message):
    with pytest.raises(UnsupportedProblem, match=message):
        SHALLOW.configure(problem, H200)


@pytest.mark.parametrize(
    ("problem", "aligned", "adjacent", "vector"),
    [
        (STEM, True, 1, 1),
        (STEM, False, 1, 0),  # neighbours share the window that they see, whatever the alignment
        (ConvProblem(1, 3, 8, 10, 8, 3, 3), True, 1, 0),  # the output is narrower than the input
        (one_by_one(16), True, 1, 1),
        (one_by_one(16), False, 0, 0),
        (one_by_one(16, hw=7), True, 0, 0),  # a plane of 49 pixels
    ],
)
def test_pixels_are_moved_together_where_rows_and_alignment_allow(problem, aligned, adjacent, vector):
    macros = launched(SHALLOW, problem, aligned=aligned).macros
    assert (macros["ADJACENT"], macros["VECTOR"]) == (adjacent, vector)


def test_the_launch_passes_the_kernels_arguments():
    problem = ConvProblem(2, 3, 12, 16, 17, 3, 3, 1, 1)
    launch, config = launched(SHALLOW, problem, relu=True), SHALLOW.configure(problem, H200)
    sizes = (2, 3, 12, 16, 17, 3, 3, 1, 1, 12, 16, 1)
    filter_blocks = ceil(17 / config.block_filters)
    assert launch.arguments == (INPUT, WEIGHT, BIAS, OUTPUT, *sizes, 17, filter_blocks, config.block_filters)
    assert launch.threads == config.threads


@pytest.mark.parametrize(("device", "overlap"), [(H200, True), (A100, False)], ids=["sm_90a", "sm_80"])
def test_launches_overlap_where_the_device_allows_it(device, overlap):
    assert launched(SHALLOW, STEM, device).overlap == overlap
