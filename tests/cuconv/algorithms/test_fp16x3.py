"""Tests of fp16x3's configurations and launches, which are pure functions of problem and device."""

import re
from collections import Counter
from dataclasses import replace
from math import ceil

import pytest

from cuconv import ConvProblem, UnsupportedProblem
from cuconv.algorithms import ALGORITHMS
from cuconv.algorithms.base import CallOptions
from cuconv.algorithms.common import weight_packing
from cuconv.algorithms.common.shares import blocks_per_tile
from cuconv.core.launch import BIAS, INPUT, OUTPUT, WEIGHT, WORKSPACE
from cuconv.device import A100, H200
from cuconv.runtime.compiler import INCLUDES
from tests.cuconv.algorithms.problems import PROBLEMS, one_by_one

FP16X3 = ALGORITHMS["fp16x3"]
HEAVY = ConvProblem(32, 256, 28, 28, 512, 3, 3, 1, 1)
FIT = [p for p in PROBLEMS if p.pad_h < p.kh <= 7 and p.pad_w < p.kw <= 7 and p.filter_area > 1]
CHANNELS = 16  # of a chunk


def positions_of(problem: ConvProblem) -> int:
    """The flattened positions of all images: rows share the padding between them, and so do images."""
    return problem.n * (problem.h + problem.pad_h) * (problem.w + problem.pad_w)


def tiles_of(problem: ConvProblem, tile) -> int:
    """The tiles that cover all positions and filters."""
    return ceil(positions_of(problem) / tile.positions) * ceil(problem.m / tile.filters)


def test_candidates_fit_the_device_and_share_the_work():
    assert len(FIT) > 3
    for problem in FIT:
        for config in FP16X3.candidates(problem, H200):
            packing, main = FP16X3.launches(problem, config)
            static = FP16X3.static_shared_bytes(main.macros)
            assert config.shared_bytes + static <= H200.shared_bytes_per_block
            assert packing.shared_bytes + static <= H200.shared_bytes_per_block
            # Blocks wait for each other, so all of them need an SM at the same time, and something to do.
            units = ceil(problem.c / CHANNELS) * tiles_of(problem, config.tile)
            assert 1 <= config.blocks <= min(H200.sm_count, units)
            assert config.input_stages >= 2 and config.weight_stages >= 2
            assert FP16X3.predicted_us(problem, H200, config) > 0


def test_a_tile_and_its_halo_fit_the_slots():
    for problem in FIT:
        pitch = problem.w + problem.pad_w
        for config in FP16X3.candidates(problem, H200):
            last = config.tile.positions - 1 + (problem.kh - 1) * pitch + problem.kw - 1
            assert last < config.slots * 128


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


@pytest.mark.parametrize("filters", [1, 8, 16, 17, 32, 48, 65, 96, 120, 144, 208, 224, 288, 1000])
def test_narrow_tiles_pad_fewer_filters_and_fill_half_of_the_registers_or_more(filters):
    problem = ConvProblem(64, 64, 14, 14, filters, 3, 3, 1, 1)
    tiles = {config.tile for config in FP16X3.candidates(problem, H200) if config.tile.narrow}
    assert tiles or filters % 64 == 0 or filters % 64 > 56 or filters > 128
    for tile in tiles:
        count = ceil(filters / tile.filters)
        assert tile.filters % 8 == 0 and count * tile.filters < 64 * ceil(filters / 64)
        assert tile.positions % 128 == 0 and tile.filters * tile.positions < 128 * 128
    large = [tile for tile in tiles if tile.positions == 512 or tile.filters * tile.positions >= 64 * 128]
    assert large or not tiles


@pytest.mark.parametrize("filters", [63, 64, 128, 192, 384, 512])
def test_no_narrow_tiles_where_they_save_no_padding(filters):
    problem = ConvProblem(8, 64, 14, 14, filters, 3, 3, 1, 1)
    assert not any(config.tile.narrow for config in FP16X3.candidates(problem, H200))


@pytest.mark.parametrize("filters", [32, 96])
def test_narrow_tiles_are_taken_where_they_save_padding(filters):
    assert FP16X3.configure(ConvProblem(64, 32, 28, 28, filters, 5, 5, 2, 2), H200).tile.narrow


@pytest.mark.parametrize("pad", [0, 1, 2])
def test_shared_padding_keeps_rows_and_images_apart(pad):
    """In the flattened layout every tap of every output meets the element that the convolution wants, or padding."""
    p = ConvProblem(3, 1, 5, 4, 1, 3, 3, pad, pad)
    pitch, image_rows = p.w + p.pad_w, p.h + p.pad_h
    owner = {}
    for n in range(p.n):
        for y in range(p.h):
            for x in range(p.w):
                owner[(n * image_rows + y + p.pad_h) * pitch + x + p.pad_w] = (n, y, x)
    for n in range(p.n):
        for y in range(p.out_h):
            for x in range(p.out_w):
                position = (n * image_rows + y) * pitch + x
                assert position < positions_of(p)
                for ky in range(p.kh):
                    for kx in range(p.kw):
                        iy, ix = y + ky - p.pad_h, x + kx - p.pad_w
                        inside = 0 <= iy < p.h and 0 <= ix < p.w
                        assert owner.get(position + ky * pitch + kx) == ((n, iy, ix) if inside else None)


def test_the_workspace_holds_packed_weights_scales_and_partial_sums():
    config = next(c for c in FP16X3.candidates(HEAVY, H200) if c.tile.filters == 128)
    weights = HEAVY.m * HEAVY.c * 9 * 4
    scales = (HEAVY.m // 128) * (HEAVY.c // 16) * (128 + 16) * 4
    assert config.workspace_bytes == weights + scales + config.blocks * (128 * 128 * 4 + 8)
    packing, _ = FP16X3.launches(HEAVY, config)
    assert packing.blocks == (HEAVY.m // 128) * (HEAVY.c // 16) * 4  # of 32 filters each


def test_split_k_is_offered_for_a_problem_of_few_tiles():
    problem = ConvProblem(8, 512, 14, 14, 512, 3, 3, 1, 1)
    grids = {(c.tile.filters, c.blocks) for c in FP16X3.candidates(problem, H200)}
    tiles = ceil(8 * 15 * 15 / 128) * 4
    assert (128, tiles * (132 // tiles)) in grids and (128, 132) in grids


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (ConvProblem(1, 8, 9, 9, 8, 3, 3, 3, 1), r"padding \(3, 1\), for fp16x3 it must be less than the filter's 3x3"),
        (ConvProblem(1, 8, 9, 9, 8, 9, 3, 1, 1), "9 rows in a filter, the limit of fp16x3 is 7"),
        (ConvProblem(1, 8, 9, 2000, 8, 3, 3, 1, 1), "fits the .* bytes of shared memory"),
        (ConvProblem(1500, 64, 112, 112, 8, 3, 3), "input bytes, the limit of fp16x3 is"),
        (ConvProblem(8, 64, 14, 14, 64, 1, 1), "fp16x3 is for larger filters than 1x1, fp16x3_pointwise for these"),
        (ConvProblem(8, 64, 14, 14, 64, 1, 1, 1, 1), "padding"),
    ],
)
def test_a_problem_beyond_the_limits_is_refused_in_one_sentence(problem, message):
    with pytest.raises(UnsupportedProblem, match=message):
        FP16X3.configure(problem, H200)


def test_hopper_only():
    assert FP16X3.variants(A100.arch) == []
    with pytest.raises(UnsupportedProblem, match=f"sm_90a, {A100.name} is sm_80"):
        FP16X3.configure(one_by_one(64), A100)


def test_weight_packing_is_launched_first_and_both_launches_overlap():
    problem = ConvProblem(2, 5, 12, 9, 17, 3, 4, 1, 2)
    config = FP16X3.configure(problem, H200)
    packing, main = FP16X3.launches(problem, config, CallOptions(aligned=False, relu=True))
    assert packing.kernel == "pack_weights"
    assert packing.threads == 32 * 5 * 2  # five warps for eight channels
    assert packing.arguments == (WEIGHT, WORKSPACE, 17, 5, config.blocks)
    assert (main.kernel, main.blocks, main.threads) == ("fp16x3", config.blocks, 512)
    assert main.arguments == (INPUT, WEIGHT, BIAS, OUTPUT, WORKSPACE, 2, 5, 12, 9, 17, 3, 4, 1, 2, 12, 10, 1, 17)
    assert packing.overlap and main.overlap
    assert packing.macros == main.macros
    assert main.macros["WHOLE_GROUPS"] == 0 and main.macros["SHARED_BYTES"] == main.shared_bytes


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


def test_a_larger_batch_never_costs_less():
    times = []
    for n in (1, 8, 32, 128):
        problem = ConvProblem(n, 256, 14, 14, 256, 3, 3, 1, 1)
        times.append(FP16X3.predicted_us(problem, H200, FP16X3.configure(problem, H200)))
    assert times == sorted(times)
