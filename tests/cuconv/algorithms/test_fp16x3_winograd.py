"""Tests of fp16x3_winograd's configurations, launches, transform and layout: pure functions of problem and device."""

from fractions import Fraction
from math import ceil, prod

import pytest

from cuconv import ConvProblem
from cuconv.algorithms import ALGORITHMS
from cuconv.device import H200
from tests.cuconv.algorithms.problems import PROBLEMS

WINOGRAD = ALGORITHMS["fp16x3_winograd"]
HEAVY = ConvProblem(32, 256, 28, 28, 512, 3, 3, 1, 1)
FIVE = ConvProblem(32, 96, 27, 27, 256, 5, 5, 2, 2)
FIT = [
    p for p in PROBLEMS if p.pad_h < p.kh <= 5 and p.kw in (3, 5) and p.out_w >= 4 and p.c * p.filter_area >= 288
] + [HEAVY, FIVE, ConvProblem(2, 50, 9, 50, 5, 2, 3, 1, 0)]
CELL, FILTERS, CHANNELS = 4, 64, 16  # outputs of a cell, filters of a block's tile, channels of a chunk

PAIRS = {3: (Fraction(5, 8), Fraction(3, 2)), 5: (Fraction(1, 2), Fraction(1), Fraction(2))}  # as in the kernel


def tiles_of(problem: ConvProblem, config) -> int:
    """The tiles of all cells and filters, where a tile has the filters of a cluster."""
    strips = ceil(problem.out_w / CELL / config.pitch)
    cells = problem.n * strips * (problem.h + problem.pad_h) * config.pitch
    return ceil(cells / config.cells) * ceil(problem.m / (FILTERS * config.cluster))


def test_clusters_share_the_work():
    assert len(FIT) > 3
    for problem in FIT:
        for config in WINOGRAD.candidates(problem, H200):
            # Clusters wait for each other, so all of them must run at the same time, and find something to do.
            units, at_a_time = ceil(problem.c / CHANNELS) * tiles_of(problem, config), {1: 132, 2: 66, 3: 39}
            assert config.blocks % config.cluster == 0
            assert 1 <= config.blocks // config.cluster <= min(at_a_time[config.cluster], units)


def products(row, inputs):
    """A cell's four outputs for a filter's row and the cell's inputs, exactly, by the kernel's formulas."""
    pairs = PAIRS[len(row)]

    def remainder(first, others):
        """Every other input from the first one on, times the coefficients of the product of (x^2 - other^2)."""
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
            outputs = [output + point**j * product for j, output in enumerate(outputs)]
    return outputs


@pytest.mark.parametrize("columns", [3, 5])
def test_the_transforms_are_a_convolution(columns):
    row = [Fraction(3 * i + 1, 7) for i in range(columns)]
    inputs = [Fraction(i * i - 4, 3) for i in range(columns + 3)]
    assert products(row, inputs) == [sum(w * inputs[j + i] for i, w in enumerate(row)) for j in range(4)]


@pytest.mark.parametrize("problem", [HEAVY, FIVE, ConvProblem(2, 50, 9, 50, 5, 2, 3, 1, 0)], ids=str)
def test_shared_memory_holds_all_that_the_cells_of_a_tile_need(problem):
    """A stage has a tile and its halo. Rows of raw input lie four floats further apart than their cells' outputs."""
    points = problem.kw + 3
    for config in WINOGRAD.candidates(problem, H200):
        macros = WINOGRAD.launches(problem, config)[1].macros
        stage_cells, raw_floats = macros["STAGE_CELLS"], macros["RAW_FLOATS"]
        assert stage_cells >= config.cells + (problem.kh - 1) * config.pitch
        assert raw_floats % 4 == 0
        for first in range(config.pitch):
            last = stage_cells - 1
            assert CELL * last + (first + last) // config.pitch * 4 + points <= raw_floats


def test_the_workspace_holds_packed_weights_scales_and_partial_sums():
    for config in WINOGRAD.candidates(HEAVY, H200):
        tiles = ceil(512 / (FILTERS * config.cluster))
        weights = tiles * FILTERS * config.cluster * 256 * 18 * 4
        scales = tiles * (256 // CHANNELS) * (FILTERS * config.cluster + CHANNELS) * 4
        partial_sums = config.blocks * ((6 * FILTERS * config.cells + 256) * 4 + 8)
        assert config.workspace_bytes == weights + scales + partial_sums
