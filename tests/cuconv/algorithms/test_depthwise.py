"""Tests of what depthwise's strips cover and of the layers that its special kernels are for."""

from math import ceil

import pytest

from cuconv import ConvProblem
from cuconv.algorithms import ALGORITHMS
from cuconv.algorithms.depthwise.strips import kind_of, vectors_of
from cuconv.device import H200
from tests.cuconv.algorithms.problems import each_device

DEPTHWISE = ALGORITHMS["depthwise"]


def layer(n, c, hw, k, stride=1, dilation=1, groups=None, multiplier=1):
    """A layer of square planes and filters whose padding keeps the size, depthwise unless it has groups."""
    pad = k // 2 * dilation
    return ConvProblem(
        n, c, hw, hw, c * multiplier, k, k, pad, pad, "fp32", stride, stride, dilation, dilation, groups or c
    )


PROBLEMS = [
    layer(1, 32, 112, 3),
    layer(8, 128, 56, 3, stride=2),
    layer(1, 960, 7, 3),
    layer(64, 384, 14, 7),
    layer(2, 24, 33, 3, dilation=12),
    layer(1, 16, 9, 3, multiplier=3),
    layer(8, 256, 28, 3, groups=64),
    layer(1, 64, 14, 31),
    ConvProblem(3, 6, 5, 40, 18, 2, 7, 9, 1, stride_h=3, stride_w=5, dilation_h=2, groups=2),
    ConvProblem(1, 2, 1, 1, 2, 1, 1, groups=2),
    layer(70000, 2, 3, 3),  # more planes than a grid's second dimension could count
    layer(1024, 64, 224, 3),  # tensors of 2**31 elements and more
]
by_label = {"ids": lambda problem: problem.label}


@each_device
@pytest.mark.parametrize("problem", PROBLEMS, **by_label)
def test_candidates_cover_the_output_and_fit_the_device(device, problem):
    for config in DEPTHWISE.candidates(problem, device):
        strip = config.strip
        down, along = strip.grid(problem)
        assert down * strip.rows >= problem.out_h and along * strip.columns >= problem.out_w
        assert problem.group_filters % strip.filters == 0, "a strip reads one group"
        if config.groups:  # blocks copy the planes of whole groups, in vectors of four
            assert config.batches(problem) * config.groups >= problem.n * problem.groups >= config.groups
            assert config.blocks <= config.batches(problem)
            assert config.groups * problem.group_channels * problem.h * problem.w % 4 == 0
            assert config.groups * problem.group_filters * problem.out_pixels % 4 == 0
        else:
            strips = problem.n * problem.m // strip.filters * down * along
            assert config.blocks == ceil(strips / config.threads) and config.blocks * config.threads < 2**31


@pytest.mark.parametrize(
    ("problem", "columns", "aligned", "vectors"),
    [
        (layer(1, 8, 56, 3), 4, True, (4, 4)),
        (layer(1, 8, 56, 3), 4, False, (1, 1)),
        (layer(1, 8, 14, 3), 4, True, (2, 2)),
        (layer(1, 8, 56, 3, stride=2), 2, True, (4, 2)),
        (layer(1, 8, 7, 3), 4, True, (1, 1)),
        (layer(1, 8, 56, 3, stride=2), 1, True, (2, 1)),
        (layer(1, 8, 56, 3, dilation=2), 1, True, (1, 1)),  # the general kernel
        (ConvProblem(1, 8, 56, 56, 8, 3, 3, groups=8), 4, True, (1, 1)),  # of another padding
    ],
)
def test_elements_are_moved_together_where_rows_and_alignment_allow(problem, columns, aligned, vectors):
    strip = next(c.strip for c in DEPTHWISE.candidates(problem, H200) if c.strip.columns == columns)
    assert vectors_of(kind_of(problem), strip, aligned) == vectors


@pytest.mark.parametrize(
    "problem",
    [
        layer(1, 8, 14, 9),
        layer(1, 8, 14, 3, dilation=2),
        ConvProblem(1, 8, 14, 14, 8, 3, 3, 1, 2, dilation_w=2, groups=8),
        layer(1, 8, 14, 3, stride=3),
        layer(1, 8, 14, 3, groups=4),
        ConvProblem(1, 8, 14, 14, 8, 3, 5, 1, 2, groups=8),
        ConvProblem(1, 8, 14, 14, 6, 3, 3, 1, 1, groups=2),  # of four channels, but of three filters
    ],
    **by_label,
)
def test_layers_of_other_geometries_are_for_the_general_kernel(problem):
    for config in DEPTHWISE.candidates(problem, H200):
        assert config.general and DEPTHWISE.launches(problem, config)[0].macros["GENERAL"] == 1
