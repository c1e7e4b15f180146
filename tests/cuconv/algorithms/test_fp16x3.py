"""Tests of fp16x3's configurations and launches, which are pure functions of problem and device."""

import re
from collections import Counter
from dataclasses import replace
from math import ceil

import pytest

from cuconv import ConvProblem
from cuconv.algorithms import ALGORITHMS
from cuconv.algorithms.common import weight_packing
from cuconv.algorithms.common.shares import blocks_per_tile
from cuconv.device import H200
from cuconv.runtime.compiler import INCLUDES
from tests.cuconv.algorithms.problems import PROBLEMS

FP16X3 = ALGORITHMS["fp16x3"]
HEAVY = ConvProblem(32, 256, 28, 28, 512, 3, 3, 1, 1)
FIT = [p for p in PROBLEMS if p.pad_h < p.kh <= 7 and p.pad_w < p.kw <= 7 and p.filter_area > 1]
CHANNELS = 16  # of a chunk


def tiles_of(problem: ConvProblem, tile) -> int:
    """The tiles of all filters and flattened positions: rows share the padding between them, and so do images."""
    positions = problem.n * (problem.h + problem.pad_h) * (problem.w + problem.pad_w)
    return ceil(positions / tile.positions) * ceil(problem.m / tile.filters)


def test_blocks_share_the_work_and_have_room_for_a_tile_and_its_halo():
    assert len(FIT) > 3
    for problem in FIT:
        for config in FP16X3.candidates(problem, H200):
            # Blocks wait for each other, so all of them need an SM at the same time, and something to do.
            units = ceil(problem.c / CHANNELS) * tiles_of(problem, config.tile)
            assert 1 <= config.blocks <= min(H200.sm_count, units)
            assert config.input_stages >= 2 and config.weight_stages >= 2
            last = config.tile.positions - 1 + (problem.kh - 1) * (problem.w + problem.pad_w) + problem.kw - 1
            assert last < config.slots * 128, "a tile and its halo fit the slots"


def test_the_blocks_of_a_tile_are_bounded():
    """The bound holds for equal shares of all (tile, chunk) pairs in order, and never exceeds a tile's chunks."""
    for chunks in (1, 2, 3, 7, 32):
        for tiles in (1, 2, 5, 44, 131, 132, 133, 1000):
            for blocks in range(1, min(132, tiles * chunks) + 1):
                ends = [tiles * chunks * (block + 1) // blocks for block in range(blocks)]
                inside = Counter(end // chunks for end in ends if end % chunks)  # by tile, the blocks that end within
                assert max(inside.values(), default=0) + 1 <= blocks_per_tile(tiles, chunks, blocks) <= chunks


def test_tiles_of_one_chunk_need_no_partial_sums():
    costs = FP16X3.costs()
    expensive = replace(costs, publish=100 * costs.publish, accumulate=100 * costs.accumulate)
    for n in (1, 8, 50, 256):
        problem = ConvProblem(n, CHANNELS, 28, 28, 32, 5, 5, 2, 2)
        for config in FP16X3.candidates(problem, H200):
            times = {FP16X3.predicted_us(problem, H200, config, some) for some in (costs, expensive)}
            assert len(times) == 1


@pytest.mark.parametrize("filters", [1, 8, 16, 17, 32, 48, 63, 64, 65, 96, 120, 128, 144, 208, 224, 288, 512, 1000])
def test_narrow_tiles_pad_fewer_filters_and_there_are_none_where_that_saves_nothing(filters):
    problem = ConvProblem(64, 64, 14, 14, filters, 3, 3, 1, 1)
    tiles = {config.tile for config in FP16X3.candidates(problem, H200) if config.tile.narrow}
    assert bool(tiles) == (0 < filters % 64 <= 56) or filters > 128
    for tile in tiles:
        assert tile.filters % 8 == 0 and ceil(filters / tile.filters) * tile.filters < 64 * ceil(filters / 64)
        assert tile.positions % 128 == 0 and tile.filters * tile.positions < 128 * 128


def test_the_workspace_holds_packed_weights_scales_and_partial_sums():
    config = next(c for c in FP16X3.candidates(HEAVY, H200) if c.tile.filters == 128)
    weights = HEAVY.m * HEAVY.c * 9 * 4
    scales = (HEAVY.m // 128) * (HEAVY.c // 16) * (128 + 16) * 4
    assert config.workspace_bytes == weights + scales + config.blocks * (128 * 128 * 4 + 8)
    packing, _ = FP16X3.launches(HEAVY, config)
    assert packing.blocks == (HEAVY.m // 128) * (HEAVY.c // 16) * 4  # of 32 filters each


def test_host_and_header_agree_on_the_block_of_weight_packing():
    """The host computes grid and threads of pack_weights from two numbers that stand in its header too."""
    header = (INCLUDES / "common" / "weight_packing.cuh").read_text()
    (filters,) = re.findall(r"PACK_FILTERS = (\d+);", header)
    (warps,) = re.findall(r"GROUP_WARPS = TAPS < \d+ \? TAPS : (\d+);", header)
    assert (int(filters), int(warps)) == (weight_packing.FILTERS, weight_packing.GROUP_WARPS)


def test_configurations_whose_packing_is_equal_pack_alike():
    """A prepared layer uses its packed weights for all of them; the source decides by macros how they lie."""
    (rule,) = re.findall(r"#define SIDE_BY_SIDE \((.*)\)\n", FP16X3.source.read_text())
    for filters in (24, 40, 48, 56):
        problem, found = ConvProblem(8, 24, 28, 28, filters, 5, 5, 2, 2), {}
        for config in FP16X3.candidates(problem, H200):
            _, main = FP16X3.launches(problem, config)
            lies = bool(eval(rule.replace("&&", "and"), {}, main.macros))
            assert found.setdefault(FP16X3.packing(problem, config), lies) is lies, config
        assert set(found.values()) == {False, True}
