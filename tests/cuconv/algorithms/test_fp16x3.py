"""Configurations of the FP16 kernel: pure functions of problem and device."""

from dataclasses import replace
from math import ceil

import pytest

from cuconv import ConvProblem, UnsupportedProblem
from cuconv.algorithms.fp16x3.fp16x3 import fp16x3
from cuconv.device import A100, H200
from cuconv.jit import BIAS, INPUT, OUTPUT, WEIGHT, WORKSPACE
from tests.cuconv.algorithms.problems import PROBLEMS, one_by_one

HEAVY = ConvProblem(32, 256, 28, 28, 512, 3, 3, 1, 1)
FIT = [p for p in PROBLEMS if p.pad_h < p.kh <= 7 and p.pad_w < p.kw <= 7 and p.filter_area > 1]


def test_candidates_fit_the_device_and_share_the_work():
    assert len(FIT) > 3
    for problem in FIT:
        for config in fp16x3.candidates(problem, H200):
            assert config.shared_bytes + fp16x3.STATIC_BYTES <= H200.shared_bytes_per_block
            split, _ = fp16x3.launches(problem, config, aligned=True, relu=False)
            assert split.shared_bytes + fp16x3.STATIC_BYTES <= H200.shared_bytes_per_block
            chunks = ceil(problem.c / fp16x3.CHANNELS)
            # Blocks wait for each other: all of them must find an SM, and something to do.
            assert 1 <= config.blocks <= min(H200.sm_count, chunks * fp16x3._tiles(problem, config.tile))
            assert config.input_stages >= 2 and config.weight_stages >= 2
            assert fp16x3.predicted_us(problem, H200, config) > 0


def test_a_tile_and_its_halo_fit_the_slots():
    for problem in FIT:
        pitch = problem.w + problem.pad_w
        for config in fp16x3.candidates(problem, H200):
            last = config.tile.positions - 1 + (problem.kh - 1) * pitch + problem.kw - 1
            assert last < config.slots * 128


def test_a_tile_is_shared_by_no_more_blocks_than_it_has_chunks():
    for chunks in (1, 2, 3, 7, 32):
        for tiles in (1, 2, 5, 44, 131, 132, 133, 1000):
            for blocks in range(1, min(132, tiles * chunks) + 1):
                ends = [tiles * chunks * (block + 1) // blocks for block in range(blocks)]
                inside = [sum(tile * chunks < end < (tile + 1) * chunks for end in ends) for tile in range(tiles)]
                assert max(inside) + 1 <= fp16x3.parts_of_tile(tiles, chunks, blocks) <= chunks


def test_tiles_of_one_chunk_are_left_to_nobody():
    costs = fp16x3.COSTS["fp32"]
    dear = replace(costs, leave=100 * costs.leave, collect=100 * costs.collect)
    for n in (1, 8, 50, 256):
        problem = ConvProblem(n, 16, 28, 28, 32, 5, 5, 2, 2)
        for config in fp16x3.candidates(problem, H200):
            of_both = [fp16x3.predicted_us(problem, H200, config, some) for some in (costs, dear)]
            assert of_both[0] == of_both[1]


@pytest.mark.parametrize("filters", [1, 8, 16, 17, 32, 48, 65, 96, 120, 144, 208, 224, 288, 1000])
def test_narrow_tiles_pad_less_and_fill_the_registers(filters):
    tiles = fp16x3._narrow_tiles(filters)
    assert len(set(tiles)) == len(tiles)
    assert tiles or filters % 64 == 0 or filters % 64 > 56 or filters > 128
    for tile in tiles:
        count = ceil(filters / tile.filters)
        assert tile.narrow and tile.filters % 8 == 0 and count * tile.filters < 64 * ceil(filters / 64)
        assert tile.positions % 128 == 0 and tile.filters * tile.positions <= 128 * 128
    large = [tile for tile in tiles if tile.positions == 512 or tile.filters * tile.positions > 64 * 128]
    assert large or not tiles


@pytest.mark.parametrize("filters", [63, 64, 128, 192, 384, 512])
def test_without_padding_to_save_filters_are_rows(filters):
    problem = ConvProblem(8, 64, 14, 14, filters, 3, 3, 1, 1)
    assert not any(config.tile.narrow for config in fp16x3.candidates(problem, H200))


@pytest.mark.parametrize("filters", [32, 96])
def test_few_filters_are_columns_where_they_would_be_padded(filters):
    assert fp16x3.configure(ConvProblem(64, 32, 28, 28, filters, 5, 5, 2, 2), H200).tile.narrow


@pytest.mark.parametrize("pad", [0, 1, 2])
def test_positions_hold_every_output_pixel_once(pad):
    """Padding is shared by neighbours: a filter never meets another row's or another image's input."""
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
                assert position < fp16x3._positions(p)
                for ky in range(p.kh):
                    for kx in range(p.kw):
                        iy, ix = y + ky - p.pad_h, x + kx - p.pad_w
                        inside = 0 <= iy < p.h and 0 <= ix < p.w
                        assert owner.get(position + ky * pitch + kx) == ((n, iy, ix) if inside else None)


def test_the_workspace_holds_split_weights_scales_and_sums():
    config = next(c for c in fp16x3.candidates(HEAVY, H200) if c.tile.filters == 128)
    weights = HEAVY.m * HEAVY.c * 9 * 4
    scales = (HEAVY.m // 128) * (HEAVY.c // 16) * (128 + 16) * 4
    assert config.workspace_bytes == weights + scales + config.blocks * (128 * 128 * 4 + 8)
    split, _ = fp16x3.launches(HEAVY, config, aligned=True, relu=False)
    assert split.blocks == (HEAVY.m // 128) * (HEAVY.c // 16) * 4  # of 32 filters each


def test_a_small_problem_takes_as_many_blocks_for_each_tile():
    problem = ConvProblem(8, 512, 14, 14, 512, 3, 3, 1, 1)
    grids = {(c.tile.filters, c.blocks) for c in fp16x3.candidates(problem, H200)}
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
def test_what_does_not_suit_the_kernel_is_refused_in_one_sentence(problem, message):
    with pytest.raises(UnsupportedProblem, match=message):
        fp16x3.configure(problem, H200)


def test_hopper_only():
    assert fp16x3.variants(A100.arch) == []
    with pytest.raises(UnsupportedProblem, match=f"sm_90a, {A100.name} is sm_80"):
        fp16x3.configure(one_by_one(64), A100)


def test_variants_sample_both_kinds_of_tiles():
    sample = fp16x3.variants("sm_90a")
    for narrow, filters in ((0, {64, 128}), (1, {8, 32, 48, 96, 120})):
        assert {m["FILTERS"] for m in sample if m["NARROW"] == narrow} >= filters
        assert {m["WHOLE_GROUPS"] for m in sample if m["NARROW"] == narrow} == {0, 1}
        assert {m["KH"] for m in sample if m["NARROW"] == narrow} >= {3, 5}
    assert max(m["KW"] for m in sample) == fp16x3.MAX_FILTER


def test_weights_are_split_first_and_both_launches_overlap():
    problem = ConvProblem(2, 5, 12, 9, 17, 3, 4, 1, 2)
    config = fp16x3.configure(problem, H200)
    split, main = fp16x3.launches(problem, config, aligned=False, relu=True)
    assert split.kernel == "split_weights"
    assert split.threads == 32 * 5 * 2  # five warps for eight channels
    assert split.arguments == (WEIGHT, WORKSPACE, 17, 5, config.blocks)
    assert (main.kernel, main.blocks, main.threads) == ("fp16x3", config.blocks, 512)
    assert main.arguments == (INPUT, WEIGHT, BIAS, OUTPUT, WORKSPACE, 2, 5, 12, 9, 17, 3, 4, 1, 2, 12, 10, 1)
    assert split.overlap and main.overlap
    assert split.macros == main.macros and main.macros["WHOLE_GROUPS"] == 0


def test_more_of_a_batch_never_costs_less():
    times = []
    for n in (1, 8, 32, 128):
        problem = ConvProblem(n, 256, 14, 14, 256, 3, 3, 1, 1)
        times.append(fp16x3.predicted_us(problem, H200, fp16x3.configure(problem, H200)))
    assert times == sorted(times)
