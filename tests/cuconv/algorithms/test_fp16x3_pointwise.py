"""Tests of fp16x3_pointwise's configurations and launches; they are pure functions of problem and device."""

from dataclasses import replace
from itertools import pairwise
from math import ceil, prod

import pytest

from cuconv import ConvProblem
from cuconv.algorithms import ALGORITHMS
from cuconv.algorithms.base import CallOptions
from cuconv.algorithms.pointwise.registers import CONSUMERS, most_filters
from cuconv.algorithms.pointwise.tiles import (
    PixelLayout,
    filter_tile_count,
    grain_of,
    pixel_tile_count,
    warpgroup_tile_count,
    weight_loads,
)
from cuconv.core.launch import KernelVariant
from cuconv.device import H200
from cuconv.runtime import compiler
from tests.cuconv.algorithms.problems import PROBLEMS

POINTWISE = ALGORITHMS["fp16x3_pointwise"]
HEAVY = ConvProblem(128, 256, 14, 14, 1024, 1, 1)
ODD = ConvProblem(3, 70, 13, 7, 37, 1, 1)
SMALL_PLANES = ConvProblem(70, 832, 7, 7, 200, 1, 1)
DEEP = ConvProblem(1, 4200, 7, 7, 16, 1, 1, precision="tf32")  # so many resident chunks that their barriers count
USUAL = [HEAVY, ODD, SMALL_PLANES]
IN_TF32 = [DEEP, *(replace(problem, precision="tf32") for problem in USUAL)]
FIT = [*USUAL, *IN_TF32, *(problem for problem in PROBLEMS if problem.filter_area == 1 and not problem.pad_h)]

PLAIN, WHOLE_IMAGES = PixelLayout.PLAIN, PixelLayout.WHOLE_IMAGES
SHIFTED = (PixelLayout.SHIFTED_8, PixelLayout.SHIFTED_4)
VARIANTS_STEP = 31  # of the kernel variants, each of which takes half a second to compile


def main_macros(problem, config, aligned=True):
    """The macros of the main kernel of a configuration."""
    return POINTWISE.launches(problem, config, CallOptions(aligned=aligned))[-1].macros


def tile_counts(problem, config):
    """The tiles with the same filters, and those with the same pixels."""
    pixel_tiles = pixel_tile_count(problem, config.warpgroup_tiles, config.layout)
    return pixel_tiles, filter_tile_count(problem, config.filters)


def test_candidates_fit_registers_stages_and_sms():
    assert len(FIT) > 3
    for problem in FIT:
        for config in POINTWISE.candidates(problem, H200):
            assert config.pixel_stages >= (2 if config.weights_resident or config.warpgroup_split_k else 3)
            assert config.weight_stages >= (1 if config.weights_resident else 2)
            assert not config.weights_resident or config.weight_stages == ceil(problem.c / config.channels)
            if config.packs_weights:  # they pass through the registers of the consumers
                assert config.weights_resident and config.workspace_bytes == 0
                assert config.filters * config.channels * config.weight_stages <= 2**14 * 1.2
            # Blocks wait for each other, so all of them need an SM at the same time, and something to do.
            assert 1 <= config.blocks <= min(H200.sm_count, prod(tile_counts(problem, config)))
            single_chunk = config.weights_resident and config.weight_stages == 1
            most = most_filters(config.consumers, config.channels, config.products, single_chunk, config.layout)
            assert config.filters <= most


@pytest.mark.parametrize(
    ("problem", "aligned", "weights_at_once"), [(HEAVY, True, 4), (HEAVY, False, 1), (ODD, True, 1)]
)
def test_a_block_that_packs_its_weights_needs_one_launch(problem, aligned, weights_at_once):
    config = next(config for config in POINTWISE.candidates(problem, H200) if config.packs_weights)
    (main,) = POINTWISE.launches(problem, config, CallOptions(aligned=aligned))
    assert main.kernel == "fp16x3_pointwise" and main.macros["PACKS_WEIGHTS"] == weights_at_once


def test_weight_loads_are_those_of_the_busiest_block():
    """Blocks take equal shares of the tiles in order, or stride over the grid where that keeps a block's filters."""
    for problem in (ConvProblem(8, 256, 14, 14, 256, 1, 1), ConvProblem(16, 48, 55, 55, 800, 1, 1)):
        found = [config for config in POINTWISE.candidates(problem, H200) if config.packs_weights]
        for config in (replace(one, blocks=blocks) for one in found for blocks in (1, 7, 130, one.blocks)):
            pixel_tiles, filter_tiles = tile_counts(problem, config)
            tiles, loads = pixel_tiles * filter_tiles, 1
            if config.blocks % filter_tiles:
                ends = [tiles * block // config.blocks for block in range(config.blocks + 1)]
                loads = max((end - 1) // pixel_tiles - begin // pixel_tiles + 1 for begin, end in pairwise(ends))
            assert loads <= weight_loads(config, pixel_tiles, filter_tiles) <= loads + 1


def test_consumers_share_tiles_where_these_are_few():
    few = ConvProblem(8, 512, 14, 14, 256, 1, 1)
    sharing = [config for config in POINTWISE.candidates(few, H200) if config.warpgroup_split_k]
    assert {config.consumers for config in sharing} == set(CONSUMERS)
    for config in sharing:
        assert config.pixels == 64 and ceil(few.c / config.channels) >= 2 * config.consumers
        assert config.weights_resident or config.weight_stages == config.consumers * config.pixel_stages
    assert POINTWISE.configure(few, H200).warpgroup_split_k


@pytest.mark.parametrize(("images", "parts"), [(64, []), (86, []), (87, [4]), (120, [2]), (150, []), (173, [4])])
def test_a_last_wave_is_split_if_another_comes_before_and_half_of_the_sms_are_idle(images, parts):
    """The problems have 98, 132, 134, 184, 230 and 265 tiles of 144 filters x 128 pixels, for 132 SMs."""
    problem = ConvProblem(images, 512, 14, 14, 144, 1, 1)
    found = [c for c in POINTWISE.candidates(problem, H200) if (c.filters, c.pixels) == (144, 128)]
    (whole,), split = ([c for c in found if (c.tail_split_k > 1) is is_split] for is_split in (False, True))
    assert [config.tail_split_k for config in split] == parts
    for config in split:
        published_bytes = config.blocks * config.consumers * (4 * 64 * config.filters + 4)  # partial sums and a flag
        assert config.blocks == H200.sm_count and config.workspace_bytes == whole.workspace_bytes + published_bytes
        assert POINTWISE.predicted_us(problem, H200, config) < POINTWISE.predicted_us(problem, H200, whole)


@pytest.mark.parametrize(
    ("c", "h", "w", "m", "layouts"),
    [
        (64, 27, 27, 64, {PLAIN, *SHIFTED}),
        (64, 13, 11, 64, {PLAIN, *SHIFTED}),
        (64, 11, 14, 64, {PLAIN, *SHIFTED}),
        (64, 28, 28, 64, {PLAIN}),  # multiples of four pixels
        (64, 8, 8, 64, {PLAIN}),
        (64, 6, 6, 64, {PLAIN}),
        (64, 7, 7, 48, {PLAIN, WHOLE_IMAGES}),  # planes of 33 to 63 pixels
        (36, 5, 7, 200, {PLAIN, WHOLE_IMAGES}),
        (64, 7, 9, 64, {PLAIN, WHOLE_IMAGES}),
        (64, 5, 5, 64, {PLAIN}),
        (66, 7, 7, 64, {PLAIN}),  # channels or filters that are no multiple of four
        (64, 7, 7, 50, {PLAIN}),
    ],
)
def test_a_plane_has_the_layouts_that_its_pixels_allow(c, h, w, m, layouts):
    configs = POINTWISE.candidates(ConvProblem(16, c, h, w, m, 1, 1), H200)
    assert {config.layout for config in configs} == layouts


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("layout", [*SHIFTED, WHOLE_IMAGES])
def test_shifted_tiles_need_no_alignment_and_whole_images_are_copied_in_bulk_with_it(layout, aligned):
    problem = SMALL_PLANES if layout is WHOLE_IMAGES else ConvProblem(16, 64, 27, 27, 64, 1, 1)
    expected = (0, int(aligned), 49) if layout is WHOLE_IMAGES else (grain_of(layout), 0, 0)
    for config in (c for c in POINTWISE.candidates(problem, H200) if c.layout is layout):
        macros = main_macros(problem, config, aligned)
        assert (macros["SHIFTED"], macros["VECTOR"], macros["PLANE"]) == expected


@pytest.mark.parametrize("layout", SHIFTED)
def test_shifted_tiles_cover_an_image_wherever_it_begins(layout):
    """A tile has 64 pixels of its image, and writes those from one multiple of the grain to another."""
    step = 65 - grain_of(layout)
    for plane in (129, 169, 176, 177, 178, 247, 248, 729, 3025):
        problem = ConvProblem(5, 64, 1, plane, 64, 1, 1)
        tiles, rest = divmod(warpgroup_tile_count(problem, layout), 5)
        assert rest == 0
        for start in range(grain_of(layout)):  # of the plane, in floats off a multiple of the grain
            begins = [0, *(tile * step + -(start + tile * step) % grain_of(layout) for tile in range(1, tiles)), plane]
            for tile, (begin, end) in enumerate(pairwise(begins)):
                first = tile * step if tile + 1 < tiles else plane - 64
                assert first <= begin < end <= first + 64


def test_products_are_not_serialised():
    """The compiler's report says so where it has to wait after each instruction of the tensor cores."""
    for macros in POINTWISE.variants("sm_90a")[::VARIANTS_STEP]:
        log = compiler.cubin(KernelVariant.of(POINTWISE.source, "sm_90a", macros)).log
        assert log and "serialized" not in log, macros
