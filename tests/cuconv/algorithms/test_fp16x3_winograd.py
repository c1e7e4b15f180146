"""Configurations of the Winograd kernel, its transform and its cells: pure functions of problem and device."""

from dataclasses import replace
from fractions import Fraction
from math import ceil, prod

import pytest

from cuconv import ConvProblem, UnsupportedProblem
from cuconv.algorithms.winograd import fp16x3_winograd as winograd
from cuconv.device import A100, H200
from cuconv.jit import BIAS, INPUT, OUTPUT, WEIGHT, WORKSPACE
from harness.tune.candidates import PER_ALGORITHM
from harness.catalogue import load_sweep
from tests.cuconv.algorithms.problems import PROBLEMS, one_by_one

HEAVY = ConvProblem(32, 256, 28, 28, 512, 3, 3, 1, 1)
FIVE = ConvProblem(32, 96, 27, 27, 256, 5, 5, 2, 2)
FIT = [p for p in PROBLEMS if p.pad_h < p.kh <= 5 and p.kw in winograd.COLUMNS and p.out_w >= winograd.OUTPUTS] + [
    HEAVY,
    FIVE,
]

PAIRS = {3: (Fraction(5, 8), Fraction(3, 2)), 5: (Fraction(1, 2), Fraction(1), Fraction(2))}  # as in the kernel


def test_candidates_fit_the_device_and_share_the_work():
    assert len(FIT) > 3
    for problem in FIT:
        for config in winograd.candidates(problem, H200):
            points = problem.kw + 3
            stage = winograd._stage_cells(problem.kh, config.pitch, config.cells)
            copies = ceil(winograd._raw_floats(points, stage, config.pitch) / config.producers)
            rounds = ceil(stage / 16 / (config.producers // 32))
            static = winograd.STATIC_BYTES + 2 * 8 * config.cells + 4 * config.producers * (copies + rounds)
            assert config.shared_bytes + static <= H200.shared_bytes_per_block
            chunks, tiles = ceil(problem.c / 16), winograd._tiles(problem, config)
            # Clusters wait for each other: all of them must run at a time, and find something to do.
            at_a_time = winograd._clusters_at_a_time(H200, config.cluster)
            assert config.blocks % config.cluster == 0
            assert 1 <= config.blocks // config.cluster <= min(at_a_time, chunks * tiles)
            assert winograd.predicted_us(problem, H200, config) > 0
            assert stage >= config.cells + (problem.kh - 1) * config.pitch


def test_clusters_have_filters_for_all_blocks_or_there_are_none():
    for filters, sizes in ((64, {1}), (96, {2}), (192, {3}), (256, {2}), (320, {1, 2}), (384, {2}), (1031, {1, 2})):
        problem = ConvProblem(8, 64, 28, 28, filters, 3, 3, 1, 1)
        assert {config.cluster for config in winograd.candidates(problem, H200)} == sizes


def test_only_what_is_shared_is_exchanged():
    """Larger shares come first: 66 clusters with 131 tiles of two chunks have whole ones, but for the last ones."""
    costs = winograd.COSTS["fp32"]
    dear = replace(costs, leave=100 * costs.leave, collect=100 * costs.collect)
    for channels, tiles, exchanged in ((16, 131, False), (32, 131, False), (32, 165, True), (256, 149, True)):
        problem = ConvProblem(1, channels, 20 * tiles - 1, 16, 128, 3, 3, 1, 1)  # 20 rows of four cells are a tile
        configs = [c for c in winograd.candidates(problem, H200) if (c.cells, c.pitch, c.blocks) == (80, 4, 132)]
        assert configs and winograd._tiles(problem, configs[0]) == tiles
        for config in configs:
            of_both = [winograd.predicted_us(problem, H200, config, some) for some in (costs, dear)]
            assert (of_both[0] < of_both[1]) == exchanged


def test_few_configurations_are_worth_measuring():
    problems = [case.problem for case in load_sweep("paper").cases if case.layer.k > 1]
    assert max(len(winograd.candidates(problem, H200)) for problem in problems) <= PER_ALGORITHM


def products(row, inputs):
    """What the kernel makes of a filter's row and a cell's inputs: its four outputs, exactly, with its formulas."""
    pairs = PAIRS[len(row)]

    def remainder(first, others):
        """Of the inputs from one on, every other: times the product of x^2 less the squares of others."""
        coefficients = [Fraction(1)]
        for x in others:
            shifted, scaled = [Fraction(0), *coefficients], [x * x * c for c in coefficients] + [Fraction(0)]
            coefficients = [a - b for a, b in zip(shifted, scaled, strict=True)]
        return sum(c * inputs[first + 2 * i] for i, c in enumerate(coefficients))

    def polynomial(x):
        return sum(w * x**i for i, w in enumerate(row))

    outputs = [Fraction(0)] * 4
    outputs[0] += row[0] / prod(-x * x for x in pairs) * remainder(0, pairs)
    outputs[3] += row[-1] * remainder(1, pairs)
    for x in pairs:
        others = [other for other in pairs if other != x]
        even, odd = remainder(2, others), remainder(1, others)
        over = 1 / (2 * x * x * prod(x * x - other * other for other in others))
        for point in (x, -x):
            product = over * polynomial(point) * (even + point * odd)
            outputs = [out + point**j * product for j, out in enumerate(outputs)]
    return outputs


@pytest.mark.parametrize("columns", [3, 5])
def test_the_transforms_are_a_convolution(columns):
    row = [Fraction(3 * i + 1, 7) for i in range(columns)]
    inputs = [Fraction(i * i - 4, 3) for i in range(columns + 3)]
    assert products(row, inputs) == [sum(w * inputs[j + i] for i, w in enumerate(row)) for j in range(4)]


@pytest.mark.parametrize("problem", [HEAVY, FIVE, ConvProblem(2, 3, 9, 50, 5, 2, 3, 1, 0)], ids=str)
def test_what_lies_in_shared_memory_holds_all_that_cells_need(problem):
    """Rows of a strip follow each other, four floats more than their cells' outputs apart."""
    points = problem.kw + 3
    for form in winograd.FORMS[problem.kw]:
        pitch = winograd._pitches(problem, H200, form)[0]
        stage = winograd._stage_cells(problem.kh, pitch, form[0])
        floats = winograd._raw_floats(points, stage, pitch)
        assert floats % 4 == 0
        for first in range(pitch):
            last = stage - 1
            assert 4 * last + (first + last) // pitch * 4 + points <= floats


def test_strips_waste_little():
    for width in (7, 13, 14, 27, 28, 56, 112, 224):
        problem = ConvProblem(32, 64, width, width, 64, 3, 3, 1, 1)
        row = ceil(width / 4)
        pitches = winograd._pitches(problem, H200, (80, 256))
        assert pitches and all(8 * (pitch * ceil(row / pitch) - row) <= row for pitch in pitches)


def test_the_workspace_holds_transformed_weights_scales_and_sums():
    for config in winograd.candidates(HEAVY, H200):
        tiles = ceil(512 / (64 * config.cluster))
        weights = tiles * 64 * config.cluster * 256 * 18 * 4
        scales = tiles * (256 // 16) * (64 * config.cluster + 16) * 4
        assert config.workspace_bytes == weights + scales + config.blocks * (6 * 64 * config.cells * 4 + 8)


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (ConvProblem(1, 8, 9, 9, 8, 3, 3, 3, 1), "padding of 3 rows, for fp16x3_winograd it must be less than"),
        (ConvProblem(1, 8, 9, 9, 8, 7, 3, 1, 1), "7 rows in a filter, the limit of fp16x3_winograd is 5"),
        (ConvProblem(1, 8, 9, 9, 8, 3, 7, 1, 1), "7 columns in a filter, fp16x3_winograd computes 3 or 5"),
        (ConvProblem(1500, 64, 112, 112, 8, 3, 3), "input bytes, the limit of fp16x3_winograd is"),
        (one_by_one(64), "1 columns in a filter"),
        (ConvProblem(1, 8, 9, 9, 8, 1, 5, 0, 2), "one row in a filter of five columns"),
        (ConvProblem(1, 8, 9, 5, 8, 3, 3), "rows of 3 outputs, fp16x3_winograd needs 4 side by side"),
    ],
)
def test_what_does_not_suit_the_kernel_is_refused_in_one_sentence(problem, message):
    with pytest.raises(UnsupportedProblem, match=message):
        winograd.configure(problem, H200)


def test_hopper_only():
    assert winograd.variants(A100.arch) == []
    with pytest.raises(UnsupportedProblem, match=f"sm_90a, {A100.name} is sm_80"):
        winograd.configure(HEAVY, A100)


def test_variants_have_all_kinds():
    sample = winograd.variants("sm_90a")
    assert len(sample) <= 30
    kinds = {"KW": {3, 5}, "WHOLE_GROUPS": {0, 1}, "CLUSTER": {1, 2, 3}, "TILE_CELLS": {64, 72, 80, 88, 96}}
    for name, values in kinds.items():
        assert {m[name] for m in sample} == values


def test_weights_are_split_first_and_both_launches_overlap():
    problem = ConvProblem(2, 5, 12, 9, 17, 3, 5, 1, 2)
    config = winograd.configure(problem, H200)
    split, main = winograd.launches(problem, config, aligned=False, relu=True)
    assert split.kernel == "split_weights"
    assert split.threads == 32 * 3 * 2  # a warp for a row of eight channels
    assert split.arguments == (WEIGHT, WORKSPACE, 17, 5, config.blocks)
    assert (main.kernel, main.blocks, main.threads) == ("fp16x3_winograd", config.blocks, config.threads)
    operands = (INPUT, WEIGHT, BIAS, OUTPUT, WORKSPACE)
    assert main.arguments == (*operands, 2, 5, 12, 9, 17, 1, 2, 12, 9, config.pitch, *main.arguments[-3:])
    assert main.arguments[-1] == 1
    assert split.overlap and main.overlap
    assert split.macros == main.macros and main.macros["WHOLE_GROUPS"] == 0


def test_more_of_a_batch_never_costs_less():
    times = []
    for n in (1, 2, 8, 32, 128, 256):
        problem = ConvProblem(n, 256, 14, 14, 256, 3, 3, 1, 1)
        times.append(winograd.predicted_us(problem, H200, winograd.configure(problem, H200)))
    assert times == sorted(times)
