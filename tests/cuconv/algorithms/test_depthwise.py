"""Tests of depthwise's configurations and launches; they are pure functions of problem and device."""

from math import ceil

import pytest

from cuconv import ConvProblem, UnsupportedProblem
from cuconv.algorithms import ALGORITHMS
from cuconv.algorithms.base import CallOptions
from cuconv.algorithms.common.divider import packed_divisor
from cuconv.algorithms.depthwise.depthwise import MAX_STAGED_BYTES
from cuconv.algorithms.depthwise.strips import kind_of, vectors_of
from cuconv.core.launch import BIAS, INPUT, OUTPUT, WEIGHT
from cuconv.device import A100, H200
from cuconv.select import plan
from tests.cuconv.algorithms.problems import TYPICAL, each_device, launched

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
    layer(2, 672, 14, 5, stride=2),
    layer(2, 24, 33, 3, dilation=12),
    layer(1, 16, 9, 3, multiplier=3),
    layer(8, 256, 28, 3, groups=64),
    layer(1, 64, 14, 31),
    layer(8, 256, 28, 9),
    layer(8, 256, 28, 3, groups=128),
    ConvProblem(3, 6, 5, 40, 18, 2, 7, 9, 1, stride_h=3, stride_w=5, dilation_h=2, groups=2),
    ConvProblem(1, 2, 1, 1, 2, 1, 1, groups=2),
    layer(70000, 2, 3, 3),  # more planes than a grid's second dimension could count
    layer(1024, 64, 224, 3),  # tensors of 2**31 elements and more
]
each_problem = pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.label)


@each_device
@each_problem
def test_candidates_cover_the_output_and_fit_the_device(device, problem):
    configs = DEPTHWISE.candidates(problem, device)
    assert len(set(map(str, configs))) == len(configs)
    for config in configs:
        strip = config.strip
        down, along = strip.grid(problem)
        assert down * strip.rows >= problem.out_h and along * strip.columns >= problem.out_w
        assert problem.group_filters % strip.filters == 0, "a strip reads one group"
        if config.groups:
            batches = ceil(problem.n * problem.groups / config.groups)
            assert config.batches(problem) == batches and config.groups <= problem.groups
            assert config.blocks == batches if config.buffers == 1 else config.blocks < batches
            assert config.buffers == 1 or config.blocks % device.sm_count == 0
            assert config.groups * problem.group_channels * problem.h * problem.w % 4 == 0
            assert config.groups * problem.group_filters * problem.out_pixels % 4 == 0
            assert 0 < config.shared_bytes <= MAX_STAGED_BYTES
        else:
            strips = problem.n * problem.m // strip.filters * down * along
            assert config.blocks == ceil(strips / config.threads) and config.blocks * config.threads < 2**31
            assert config.shared_bytes == 0
        assert config.workspace_bytes == 0
        assert DEPTHWISE.predicted_us(problem, device, config) > 0


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (TYPICAL, "one group, depthwise computes two or more"),
        (layer(1, 18, 9, 3, groups=2), "9 channels in a group, the limit of depthwise is 8"),
        (ConvProblem(1, 4, 9, 40, 4, 1, 32, groups=4), "32 columns in a filter, the limit of depthwise is 31"),
        (layer(1, 4, 9, 1, stride=2**25), "rows of stride, the limit of depthwise is 16777216"),
        (ConvProblem(1, 2, 9, 9, 2, 1, 1, 2**29, 0, stride_h=2**20, groups=2), "rows in the padded image"),
        (ConvProblem(2**26, 2, 64, 64, 2, 1, 1, groups=2), "outputs are too many for 32-bit numbers of strips"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_unsupported_problems_are_refused(problem, message):
    with pytest.raises(UnsupportedProblem, match=message):
        DEPTHWISE.configure(problem, H200)


@pytest.mark.parametrize(
    "problem", [p for p in PROBLEMS if p.flop > 10**6 and p.kh < 31], ids=lambda problem: problem.label
)
def test_auto_takes_it_for_few_channels_a_group(problem):
    assert plan(problem, H200).algorithm == "depthwise"


def test_a_large_batch_keeps_every_sm_busy_and_a_small_one_too():
    for problem in PROBLEMS[:3]:
        assert DEPTHWISE.configure(problem, H200).blocks >= H200.sm_count


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
        (ConvProblem(1, 8, 56, 64, 8, 3, 3, 1, 5, groups=8), 4, True, (4, 4)),
    ],
)
def test_elements_are_moved_together_where_rows_and_alignment_allow(problem, columns, aligned, vectors):
    strip = next(c.strip for c in DEPTHWISE.candidates(problem, H200) if c.strip.columns == columns)
    assert vectors_of(kind_of(problem), strip, aligned) == vectors


@pytest.mark.parametrize(("k", "lead"), [(3, 3), (5, 2), (7, 1)])
def test_a_window_leads_from_a_vector_to_its_first_element(k, lead):
    problem = layer(1, 8, 56, k)
    config = next(c for c in DEPTHWISE.candidates(problem, H200) if c.strip.columns == 4)
    (launch,) = DEPTHWISE.launches(problem, config)
    assert (launch.macros["VECTOR"], launch.macros["LEAD"]) == (4, lead)


def test_layers_of_other_widths_share_a_variant():
    small, large = layer(1, 32, 56, 3), layer(8, 144, 112, 3)
    config = DEPTHWISE.configure(small, H200)
    (first,) = DEPTHWISE.launches(small, config)
    (second,) = DEPTHWISE.launches(large, config, CallOptions(relu=True))
    assert first.macros == second.macros


@pytest.mark.parametrize(
    "problem",
    [
        layer(1, 8, 14, 9),
        layer(1, 8, 14, 3, dilation=2),
        layer(1, 8, 14, 3, stride=3),
        layer(1, 8, 14, 3, groups=4),
        ConvProblem(1, 8, 14, 14, 8, 3, 5, 1, 2, groups=8),
        ConvProblem(1, 8, 14, 14, 6, 3, 3, 1, 1, groups=2),  # of four channels, but of three filters
    ],
    ids=lambda problem: problem.label,
)
def test_layers_of_other_geometries_share_the_general_variants(problem):
    configs = DEPTHWISE.candidates(problem, H200)
    assert all(config.general and "general" in str(config) for config in configs)
    macros = [DEPTHWISE.launches(problem, config)[0].macros for config in configs]
    assert {tuple(one.items()) for one in macros} == {(("GENERAL", 1), ("ROWS", rows)) for rows in (1, 4)}


def test_the_general_kernel_gets_the_geometry_as_arguments():
    problem = ConvProblem(2, 12, 10, 20, 24, 3, 5, 1, 2, "fp32", 2, 1, 1, 3, groups=6)
    assert launched(DEPTHWISE, problem).arguments[-7:] == (2, 3, 5, 2, 1, 1, 3)


def test_the_launch_passes_the_kernels_arguments():
    problem = ConvProblem(2, 24, 10, 20, 24, 3, 3, 1, 1, groups=6)
    config = DEPTHWISE.configure(problem, H200)
    launch, strip = launched(DEPTHWISE, problem, relu=True), config.strip
    down, along = strip.grid(problem)
    divisors = (along, down, 24 // strip.filters, 4 // strip.filters)
    packed = tuple(number for divisor in divisors for number in (divisor, packed_divisor(divisor)))
    sizes = (10, 20, 1, 1, 10, 20, 1, 2 * 24 // strip.filters)
    last = (config.groups, config.batches(problem), config.buffers, 1)
    assert launch.arguments == (INPUT, WEIGHT, BIAS, OUTPUT, *sizes, *packed, *last)
    assert launch.threads == config.threads


@pytest.mark.parametrize(("device", "overlap"), [(H200, True), (A100, False)], ids=["sm_90a", "sm_80"])
def test_launches_overlap_where_the_device_allows_it(device, overlap):
    assert launched(DEPTHWISE, PROBLEMS[0], device).overlap == overlap


def test_variants_are_few_and_cover_every_code_path():
    variants = DEPTHWISE.variants("sm_90a")
    assert len({tuple(macros.items()) for macros in variants}) == len(variants) <= 110
    specialised = [macros for macros in variants if not macros["GENERAL"]]
    assert {m["STAGED"] for m in specialised} == {0, 1}
    assert {m["VECTOR"] for m in specialised} == {m["OUT_VECTOR"] for m in specialised} == {1, 2, 4}
    assert {m["FILTERS"] for m in specialised} == {1, 2, 4}
