"""Tests of fp16x3_winograd's configurations, which are pure functions of problem and device."""

from math import ceil

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
