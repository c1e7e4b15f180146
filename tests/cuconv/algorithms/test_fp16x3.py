"""Tests of what the host and the kernels of fp16x3 and fp16x3_winograd have to agree on."""

import re
from collections import Counter
from dataclasses import replace
from math import ceil

import pytest
import torch

from cuconv import ConvProblem, reference
from cuconv.algorithms import ALGORITHMS
from cuconv.algorithms.common import weight_packing
from cuconv.algorithms.common.pieces import axes
from cuconv.algorithms.common.shares import blocks_per_tile
from cuconv.algorithms.fp16x3.flattened import flattened, is_whole
from cuconv.device import H200
from cuconv.runtime.compiler import INCLUDES
from tests.cuconv.algorithms.problems import PROBLEMS

FP16X3, WINOGRAD = ALGORITHMS["fp16x3"], ALGORITHMS["fp16x3_winograd"]
FIT = [p for p in PROBLEMS if is_whole(p) and p.filter_area > 1]
WINOGRAD_FIT = [
    ConvProblem(32, 256, 28, 28, 512, 3, 3, 1, 1),
    ConvProblem(32, 96, 27, 27, 256, 5, 5, 2, 2),
    ConvProblem(2, 50, 9, 50, 5, 2, 3, 1, 0),
]


def test_a_tile_and_its_halo_fit_the_stages_of_a_block():
    assert len(FIT) > 3
    for problem in FIT:
        for config in FP16X3.candidates(problem, H200):
            assert config.input_stages >= 2 and config.weight_stages >= 2
            assert last_position(problem, config) < config.slots * 128


def last_position(problem, config):
    """The last position of a flattened image that a tile from the first one on reads."""
    p, pitch = problem, problem.w + problem.pad_w
    rows, columns = (p.kh - 1) * p.dilation_h, (p.kw - 1) * p.dilation_w
    if config.cut:
        rows, columns = config.cut.kh - 1, config.cut.kw - 1
        pitch = config.cut.columns + columns
    return config.tile.positions - 1 + rows * pitch + columns


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("pads", [(0, 0), (1, 0), (2, 1), (2, 2)])
@pytest.mark.parametrize("axis", ["h", "w"])
@pytest.mark.parametrize("dilation", [1, 2])
def test_whole_images_share_no_more_padding_than_they_have(dilation, axis, pads, more):
    """Every output of a flattened image is that of the reference, wherever images may stay whole."""
    before, behind = (dilation * pad for pad in pads)
    changes = {f"pad_{axis}": before, f"more_{axis}": behind + more - before, f"dilation_{axis}": dilation}
    problem = replace(ConvProblem(2, 1, 6, 5, 1, 3, 3), **changes)
    x, weight = (torch.randn(shape, dtype=torch.float64) for shape in (problem.input_shape, problem.weight_shape))
    pitch = problem.w + problem.pad_w
    ahead = torch.nn.functional.pad(x, (problem.pad_w, 0, problem.pad_h, 0)).flatten()
    flat = torch.cat([ahead, torch.zeros(6 * pitch, dtype=torch.float64)])
    sums = sum(
        weight[0, 0, ky, kx] * flat[ky * problem.dilation_h * pitch + kx * problem.dilation_w :][: len(ahead)]
        for ky in range(problem.kh)
        for kx in range(problem.kw)
    )
    found = sums.reshape(2, 1, problem.h + problem.pad_h, pitch)[:, :, : problem.out_h, : problem.out_w]
    expected = reference.conv2d(x, weight, **problem.geometry)
    is_right = found.shape == expected.shape and torch.allclose(found, expected)
    assert is_right == (behind + more <= before) == is_whole(problem)
    flat = flattened(problem, None)
    places = torch.arange(2 * flat.rows * pitch).reshape(2, flat.rows, pitch)[:, : problem.out_h, : problem.out_w]
    assert flat.pitch == pitch and (not is_right or flat.positions == 1 + places.max())


LONG_FILTERS = [
    ConvProblem(1, 16, 40, 50, 24, 9, 9, 4, 4),
    ConvProblem(2, 33, 64, 64, 130, 1, 64),
    ConvProblem(1, 8, 300, 9, 8, 31, 1, 40, 0),
    ConvProblem(1, 3, 64, 64, 64, 64, 64),
    ConvProblem(1, 16, 1, 3000, 64, 1, 1024),
]


@pytest.mark.parametrize("problem", LONG_FILTERS, ids=lambda problem: problem.label)
def test_pieces_cover_a_long_filter_and_strips_the_columns_of_an_image(problem):
    found = FP16X3.candidates(problem, H200)
    assert found
    for config in found:
        kh, kw, columns = config.cut
        assert 1 < kh * kw <= 49 and kh <= min(7, problem.kh) and kw <= min(11, problem.kw)
        strips = ceil(problem.out_w / columns)
        assert 0 <= strips * columns - problem.out_w < strips  # equally wide
        assert last_position(problem, config) < config.slots * 128
        pieces = ceil(problem.kh / kh) * ceil(problem.kw / kw)
        packed = 4 * ceil(problem.m / config.tile.filters) * config.tile.filters * ceil(problem.c / 16) * 16
        assert config.workspace_bytes >= packed * pieces * kh * kw + 4 * config.blocks


@pytest.mark.parametrize(
    ("problem", "taps"),
    [
        (ConvProblem(2, 33, 40, 51, 24, 3, 3, 2, 2, dilation_h=2, dilation_w=2), (3, 3)),
        (ConvProblem(2, 33, 40, 51, 24, 4, 3, 1, 1, stride_h=2, stride_w=2), (2, 2)),
        (ConvProblem(1, 16, 1, 3000, 64, 1, 11, 0, 25, dilation_w=5), (1, 11)),
        (ConvProblem(1, 20, 31, 41, 40, 5, 9, 7, 2, stride_h=4, stride_w=2, dilation_h=6, dilation_w=4), (3, 9)),
    ],
    ids=lambda case: getattr(case, "label", None),
)
def test_pieces_have_taps_of_one_phase_and_strips_outputs_of_one_phase(problem, taps):
    """taps: the most of a phase."""
    p, found = problem, [config for config in FP16X3.candidates(problem, H200) if config.cut]
    assert found
    for config in found:
        kh, kw, columns = config.cut
        assert kh <= taps[0] and kw <= taps[1] and columns <= ceil(p.out_w / axes(p)[1].phases)
        assert last_position(p, config) < config.slots * 128
        flat = flattened(p, config.cut)
        assert flat.positions >= p.n * p.out_pixels and flat.chunks * 16 * kh * kw >= p.c * p.filter_area


def test_a_wide_image_has_smaller_halos_in_strips():
    problem = ConvProblem(1, 64, 720, 1280, 64, 3, 3, 1, 1)
    assert all(config.cut and config.slots <= 4 for config in FP16X3.candidates(problem, H200))


@pytest.mark.parametrize("size", [7, 14, 28, 56])
def test_small_images_stay_whole(size):
    found = FP16X3.candidates(ConvProblem(1, 64, size, size, 64, 3, 3, 1, 1), H200)
    assert found and not any(config.cut for config in found)


@pytest.mark.parametrize("problem", WINOGRAD_FIT, ids=str)
def test_shared_memory_holds_all_that_the_winograd_cells_of_a_tile_need(problem):
    """A stage has a tile and its halo. Rows of raw input lie four floats further apart than their cells' outputs."""
    outputs_of_cell, points = 4, problem.kw + 3
    for config in WINOGRAD.candidates(problem, H200):
        assert config.blocks % config.cluster == 0
        macros = WINOGRAD.launches(problem, config)[1].macros
        stage_cells, raw_floats = macros["STAGE_CELLS"], macros["RAW_FLOATS"]
        assert stage_cells >= config.cells + (problem.kh - 1) * config.pitch
        assert raw_floats % 4 == 0
        for first in range(config.pitch):
            last = stage_cells - 1
            assert outputs_of_cell * last + (first + last) // config.pitch * 4 + points <= raw_floats


@pytest.mark.parametrize(("algorithm", "points"), [(FP16X3, 9), (WINOGRAD, 18)])
def test_the_workspace_holds_packed_weights_and_the_partial_sums_of_every_block(algorithm, points):
    """points: of a filter, as packed for each channel."""
    problem = WINOGRAD_FIT[0]
    for config in algorithm.candidates(problem, H200):
        sums = 6 * 64 * config.cells if algorithm is WINOGRAD else config.tile.filters * config.tile.positions
        assert config.workspace_bytes > 4 * (problem.m * problem.c * points + config.blocks * (sums + 1))


def test_the_blocks_of_a_tile_are_bounded():
    """The bound holds for equal shares of all (tile, chunk) pairs in order, and never exceeds a tile's chunks."""
    for chunks in (1, 2, 3, 7, 32):
        for tiles in (1, 2, 5, 44, 131, 132, 133, 1000):
            for blocks in range(1, min(132, tiles * chunks) + 1):
                ends = [tiles * chunks * (block + 1) // blocks for block in range(blocks)]
                inside = Counter(end // chunks for end in ends if end % chunks)  # by tile, the blocks that end within
                assert max(inside.values(), default=0) + 1 <= blocks_per_tile(tiles, chunks, blocks) <= chunks


@pytest.mark.parametrize("algorithm", [FP16X3, WINOGRAD], ids=lambda algorithm: algorithm.name)
def test_every_block_has_a_part_of_the_reduction(algorithm):
    """A small layer, here of 10 x 12 positions and two chunks of channels, has less work than the GPU has SMs."""
    small = ConvProblem(1, 32, 9, 9, 24, 3, 3, 1, 1)
    for config in algorithm.candidates(small, H200):
        if algorithm is WINOGRAD:
            assert 1 <= config.blocks <= 2 * ceil(10 * 12 / (4 * config.cells))
        else:
            assert 1 <= config.blocks <= 2 * ceil(10 * 12 / config.tile.positions) * ceil(24 / config.tile.filters)


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
