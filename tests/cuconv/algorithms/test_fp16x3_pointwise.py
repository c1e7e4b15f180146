"""Tests of what fp16x3_pointwise's tiles cover, of its alignment, and of the compiler's report on its kernels."""

from dataclasses import replace
from itertools import pairwise

import pytest

from cuconv import ConvProblem
from cuconv.algorithms import ALGORITHMS
from cuconv.algorithms.base import CallOptions
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

POINTWISE = ALGORITHMS["fp16x3_pointwise"]
HEAVY = ConvProblem(128, 256, 14, 14, 1024, 1, 1)
ODD = ConvProblem(3, 70, 13, 7, 37, 1, 1)
PLAIN, WHOLE_IMAGES = PixelLayout.PLAIN, PixelLayout.WHOLE_IMAGES
SHIFTED = (PixelLayout.SHIFTED_8, PixelLayout.SHIFTED_4)
VARIANTS_STEP = 31  # of the kernel variants, each of which takes half a second to compile


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
            pixel_tiles = pixel_tile_count(problem, config.warpgroup_tiles, config.layout)
            filter_tiles, loads = filter_tile_count(problem, config.filters), 1
            if config.blocks % filter_tiles:
                ends = [pixel_tiles * filter_tiles * block // config.blocks for block in range(config.blocks + 1)]
                loads = max((end - 1) // pixel_tiles - begin // pixel_tiles + 1 for begin, end in pairwise(ends))
            assert loads <= weight_loads(config, pixel_tiles, filter_tiles) <= loads + 1


@pytest.mark.parametrize(
    ("c", "h", "w", "m", "layouts"),
    [
        (64, 27, 27, 64, {PLAIN, *SHIFTED}),
        (64, 28, 28, 64, {PLAIN}),  # multiples of four pixels
        (64, 7, 9, 64, {PLAIN, WHOLE_IMAGES}),  # planes of 33 to 63 pixels
        (64, 5, 5, 64, {PLAIN}),
        (66, 7, 7, 64, {PLAIN}),  # channels or filters that are no multiple of four
        (64, 7, 7, 50, {PLAIN}),
    ],
)
def test_a_plane_has_the_layouts_that_its_pixels_allow_and_reads_vectors_only_where_aligned(c, h, w, m, layouts):
    problem = ConvProblem(16, c, h, w, m, 1, 1)
    configs = POINTWISE.candidates(problem, H200)
    assert {config.layout for config in configs} == layouts
    for config in configs:
        for aligned in (True, False):
            vector = POINTWISE.launches(problem, config, CallOptions(aligned=aligned))[-1].macros["VECTOR"]
            whole_vectors = h * w % 4 == 0 or config.layout is WHOLE_IMAGES
            assert vector == int(aligned and whole_vectors and config.layout not in SHIFTED)


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
