"""Configurations of the kernel for short reductions: pure functions of problem and device."""

from math import ceil

import pytest

from cuconv import ConvProblem, UnsupportedProblem
from cuconv.algorithms.common.implicit_gemm import tf32x3_shallow
from cuconv.device import A100, H200
from cuconv.jit import BIAS, INPUT, OUTPUT, WEIGHT
from tests.cuconv.algorithms.problems import PROBLEMS, each_device, each_precision, in_precision, launched, one_by_one

STEM = ConvProblem(8, 3, 224, 224, 64, 3, 3, 1, 1)


@each_device
@each_precision
def test_candidates_cover_the_output_and_fit_the_device(device, precision):
    computed = 0
    for problem in in_precision(precision, PROBLEMS):
        try:
            found = tf32x3_shallow.candidates(problem, device)
        except UnsupportedProblem:
            continue
        computed += 1
        assert len(set(map(str, found))) == len(found)
        tiles = ceil(problem.n * problem.out_pixels / 32)
        for config in found:
            split = ceil(problem.m / config.block_filters)
            assert config.block_filters % tf32x3_shallow.FILTERS == 0 and config.blocks % split == 0
            assert config.blocks // split <= ceil(tiles / config.warps), "a block without pixels"
            assert config.blocks <= max(split, config.resident * device.sm_count), "they stay"
            assert config.resident * (config.shared_bytes + 1024) <= device.shared_bytes_per_sm
            assert config.workspace_bytes == 0
            assert tf32x3_shallow.predicted_us(problem, device, config) > 0
    assert computed >= 9  # of 1x1 with few channels, and of the first layers


def test_lanes_share_a_reduction_out():
    slots = {  # (channels, kh, kw): rows with all positions in X, and single positions of the rows that are left
        (3, 3, 3): (2, 1),
        (4, 3, 3): (3, 0),
        (1, 3, 3): (0, 3),
        (1, 5, 5): (1, 2),
        (17, 1, 1): (5, 0),
        (4, 3, 1): (3, 0),
    }
    for (c, kh, kw), expected in slots.items():
        problem = ConvProblem(1, c, 8, 8, 8, kh, kw, kh // 2, kw // 2)
        rows, singles = tf32x3_shallow.slots_of(problem)
        assert (rows, singles) == expected
        assert rows * kw + singles == ceil(c * kh * kw / 4)
        assert tf32x3_shallow.steps_of(problem) == ceil(c * kh * kw / 8)


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
def test_what_it_does_not_compute_is_refused(problem, message):
    with pytest.raises(UnsupportedProblem, match=message):
        tf32x3_shallow.configure(problem, H200)


@pytest.mark.parametrize(
    ("problem", "aligned", "adjacent", "vector"),
    [
        (STEM, True, 1, 1),
        (STEM, False, 1, 0),  # positions in X share what a lane has, whatever the alignment
        (ConvProblem(1, 3, 8, 10, 8, 3, 3), True, 1, 0),  # the output is narrower than the input
        (one_by_one(16), True, 1, 1),
        (one_by_one(16), False, 0, 0),
        (one_by_one(16, hw=7), True, 0, 0),
    ],
)
def test_how_pixels_lie(problem, aligned, adjacent, vector):
    macros = launched(tf32x3_shallow, problem, aligned=aligned).macros
    assert (macros["ADJACENT"], macros["VECTOR"]) == (adjacent, vector)


def test_arguments_are_the_kernels():
    problem = ConvProblem(2, 3, 12, 16, 17, 3, 3, 1, 1)
    launch, config = launched(tf32x3_shallow, problem, relu=True), tf32x3_shallow.configure(problem, H200)
    sizes = (2, 3, 12, 16, 17, 3, 3, 1, 1, 12, 16, 1)
    split = ceil(17 / config.block_filters)
    assert launch.arguments == (INPUT, WEIGHT, BIAS, OUTPUT, *sizes, split, config.block_filters)
    assert launch.threads == config.threads and launch.overlap
    assert not launched(tf32x3_shallow, problem, A100).overlap


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_variants_sample_every_shape_of_a_reduction(arch):
    sample = tf32x3_shallow.variants(arch)
    assert len({tuple(macros.items()) for macros in sample}) == len(sample)
    assert {(m["ADJACENT"], m["VECTOR"]) for m in sample} == {(0, 0), (1, 0), (1, 1)}
    assert {m["PRODUCTS"] for m in sample} == {3, 1}
