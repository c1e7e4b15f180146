"""Tests of fp16x3_pointwise's configurations and launches; they are pure functions of problem and device."""

from dataclasses import replace
from itertools import pairwise
from math import ceil, prod

import pytest

from cuconv import ConvProblem, UnsupportedProblem
from cuconv.algorithms import ALGORITHMS
from cuconv.algorithms.base import CallOptions
from cuconv.algorithms.pointwise.candidates import chunk_channels, tile_filters
from cuconv.algorithms.pointwise.registers import CONSUMERS, most_filters, packed_weights
from cuconv.algorithms.pointwise.tiles import (
    PixelLayout,
    filter_tile_count,
    grain_of,
    pixel_tile_count,
    warpgroup_tile_count,
    weight_loads,
)
from cuconv.core.launch import BIAS, INPUT, OUTPUT, WEIGHT, WORKSPACE, KernelVariant
from cuconv.device import A100, H200
from cuconv.runtime import compiler
from tests.cuconv.algorithms.problems import PROBLEMS, one_by_one

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


def test_candidates_differ_and_fit_the_device():
    assert len(FIT) > 3
    for problem in FIT:
        configs = POINTWISE.candidates(problem, H200)
        assert len({str(config) for config in configs}) == len(configs)
        for config in configs:
            static_bytes = POINTWISE.static_shared_bytes(main_macros(problem, config))
            assert config.shared_bytes + static_bytes <= H200.shared_bytes_per_block
            assert config.pixel_stages >= (2 if config.weights_resident or config.warpgroup_split_k else 3)
            assert config.weight_stages >= (1 if config.weights_resident else 2)
            assert 1 <= config.blocks <= min(H200.sm_count, prod(tile_counts(problem, config)))
            single_chunk = config.weights_resident and config.weight_stages == 1
            most = most_filters(config.consumers, config.channels, config.products, single_chunk, config.layout)
            assert config.filters <= most
            assert POINTWISE.predicted_us(problem, H200, config) > 0


def test_resident_weights_are_those_of_all_chunks():
    for problem in FIT:
        for config in POINTWISE.candidates(problem, H200):
            if config.weights_resident:
                assert config.weight_stages == ceil(problem.c / config.channels)


def test_blocks_pack_weights_that_are_resident_and_fit_the_registers():
    packing = [c for problem in FIT for c in POINTWISE.candidates(problem, H200) if c.packs_weights]
    assert {config.consumers for config in packing} == set(CONSUMERS)
    for config in packing:
        assert config.weights_resident and config.workspace_bytes == 0
        assert config.filters * config.channels * config.weight_stages <= 2**14 * 1.2
    # 64 x 64 x 8 weights are 128 for each of 256 threads; 80 x 48 x 7 do not divide evenly among 12 warps.
    assert packed_weights(64, 64, 8, 2) == 128
    assert packed_weights(80, 48, 7, 3) == 120


@pytest.mark.parametrize(
    ("problem", "aligned", "weights_at_once"), [(HEAVY, True, 4), (HEAVY, False, 1), (ODD, True, 1)]
)
def test_a_block_that_packs_its_weights_needs_one_launch(problem, aligned, weights_at_once):
    config = next(config for config in POINTWISE.candidates(problem, H200) if config.packs_weights)
    (main,) = POINTWISE.launches(problem, config, CallOptions(aligned=aligned))
    assert main.overlap and main.kernel == "fp16x3_pointwise" and main.macros["PACKS_WEIGHTS"] == weights_at_once


def test_weight_loads_of_the_busiest_block():
    few = ConvProblem(8, 256, 14, 14, 256, 1, 1)
    configs = (c for c in POINTWISE.candidates(few, H200) if c.packs_weights)
    config = next(c for c in configs if (c.filters, c.pixels) == (64, 128))
    assert weight_loads(config, *tile_counts(few, config)) == 1, "a tile for each block"
    many = ConvProblem(16, 48, 55, 55, 800, 1, 1)
    config = next(c for c in POINTWISE.candidates(many, H200) if c.packs_weights and c.filters == 160)
    assert weight_loads(config, *tile_counts(many, config)) == 2, "132 blocks share five filter tiles"
    assert weight_loads(replace(config, blocks=1), *tile_counts(many, config)) == 5
    in_step = replace(config, blocks=130)
    assert weight_loads(in_step, *tile_counts(many, config)) == 1, "a grid stride of 26 times five filter tiles"


def test_consumers_share_tiles_where_these_are_few():
    few = ConvProblem(8, 512, 14, 14, 256, 1, 1)
    sharing = [config for config in POINTWISE.candidates(few, H200) if config.warpgroup_split_k]
    assert {config.consumers for config in sharing} == set(CONSUMERS)
    for config in sharing:
        assert config.pixels == 64 and ceil(few.c / config.channels) >= 2 * config.consumers
        assert config.weights_resident or config.weight_stages == config.consumers * config.pixel_stages
    assert POINTWISE.configure(few, H200).warpgroup_split_k
    assert not any(c.warpgroup_split_k for c in POINTWISE.candidates(HEAVY, H200) if c.filters > 64)


def of_144_filters(images):
    """A problem, and its configurations of 144 filters x 128 pixels without tail split-K and with it."""
    problem = ConvProblem(images, 512, 14, 14, 144, 1, 1)
    found = [c for c in POINTWISE.candidates(problem, H200) if (c.filters, c.pixels) == (144, 128)]
    whole, split = ([c for c in found if (c.tail_split_k > 1) is is_split] for is_split in (False, True))
    return problem, whole, split


def test_blocks_share_the_tiles_of_a_last_wave_that_leaves_sms_idle():
    problem, (whole,), (split,) = of_144_filters(128)  # 196 tiles: 64 are left after a wave of 132
    assert (split.tail_split_k, split.blocks) == (2, H200.sm_count)
    published_bytes = split.blocks * split.consumers * (4 * 64 * split.filters + 4)  # partial sums and a flag
    assert split == replace(whole, tail_split_k=2, workspace_bytes=whole.workspace_bytes + published_bytes)
    packing, main = POINTWISE.launches(problem, split)
    assert packing.arguments[-1] == split.blocks and main.macros["TAIL_SPLIT_K"] == 2
    split_us, whole_us = (POINTWISE.predicted_us(problem, H200, config) for config in (split, whole))
    assert split_us < whole_us


@pytest.mark.parametrize(("images", "parts"), [(64, []), (86, []), (87, [4]), (120, [2]), (150, []), (173, [4])])
def test_a_last_wave_is_split_if_another_comes_before_and_half_of_the_sms_are_idle(images, parts):
    """The problems have 98, 132, 134, 184, 230 and 265 tiles."""
    assert [config.tail_split_k for config in of_144_filters(images)[2]] == parts


def test_more_epilogue_filters_never_cost_a_pixel_stage():
    seen = set()
    for problem in FIT:
        for config in POINTWISE.candidates(problem, H200):
            macros = main_macros(problem, config)
            seen.add(config.epilogue_filters)
            more_bytes = 4 * config.consumers * (64 - config.epilogue_filters) * macros["PITCH"]
            if more_bytes:
                static_bytes = POINTWISE.static_shared_bytes(macros)
                assert config.shared_bytes + more_bytes + static_bytes > H200.shared_bytes_per_block
    assert seen == {32, 64}


def test_shifted_layouts_are_for_large_planes_of_no_multiple_of_four_pixels():
    def layouts(h, w):
        problem = ConvProblem(16, 64, h, w, 64, 1, 1)
        return {config.layout for config in POINTWISE.candidates(problem, H200)}

    assert layouts(27, 27) == layouts(13, 11) == layouts(11, 14) == {PLAIN, *SHIFTED}
    assert layouts(28, 28) == {PLAIN} and not layouts(7, 7) & set(SHIFTED)


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


def test_a_finer_grain_needs_fewer_tiles():
    problem = ConvProblem(1, 64, 27, 27, 64, 1, 1)
    assert [warpgroup_tile_count(problem, layout) for layout in SHIFTED] == [13, 12]


def test_shifted_layouts_need_no_alignment():
    problem = ConvProblem(16, 64, 27, 27, 64, 1, 1)
    for layout in SHIFTED:
        config = next(c for c in POINTWISE.candidates(problem, H200) if c.layout is layout)
        for aligned in True, False:
            macros = main_macros(problem, config, aligned)
            assert (macros["SHIFTED"], macros["VECTOR"], macros["PLANE"]) == (grain_of(layout), 0, 0)


@pytest.mark.parametrize(("c", "h", "w", "m"), [(64, 7, 7, 48), (36, 5, 7, 200), (64, 7, 9, 64)])
def test_whole_images_are_for_planes_of_33_to_63_pixels(c, h, w, m):
    assert WHOLE_IMAGES in {config.layout for config in POINTWISE.candidates(ConvProblem(16, c, h, w, m, 1, 1), H200)}


@pytest.mark.parametrize(
    ("c", "h", "w", "m"),
    [
        (64, 4, 8, 64),  # multiples of four pixels
        (64, 8, 8, 64),
        (64, 6, 6, 64),
        (64, 5, 5, 64),  # too small
        (64, 5, 13, 64),  # too large
        (66, 7, 7, 64),  # channels or filters that are no multiple of four
        (64, 7, 7, 50),
    ],
)
def test_other_planes_have_no_layout_of_whole_images(c, h, w, m):
    configs = POINTWISE.candidates(ConvProblem(16, c, h, w, m, 1, 1), H200)
    assert WHOLE_IMAGES not in {config.layout for config in configs}


def of_whole_images(problem):
    """The configurations in the layout of whole images."""
    return [config for config in POINTWISE.candidates(problem, H200) if config.layout is WHOLE_IMAGES]


def test_a_consumer_has_a_whole_image():
    seen = set()
    for config in of_whole_images(SMALL_PLANES):
        seen.add((config.consumers, config.warpgroup_split_k))
        pixel_tiles = ceil(70 / (1 if config.warpgroup_split_k else config.consumers))
        assert prod(tile_counts(SMALL_PLANES, config)) == pixel_tiles * ceil(200 / config.filters)
        floats = 49 * config.consumers * (config.pixel_stages * config.channels + config.epilogue_filters)
        weights = config.weight_stages * (config.filters * config.channels + config.filters + config.channels)
        assert config.shared_bytes == 4 * (floats + weights)
    assert seen == {(2, False), (3, False), (2, True), (3, True)}


def test_whole_images_are_copied_in_bulk_where_operands_are_aligned():
    for config in of_whole_images(SMALL_PLANES):
        for aligned in True, False:
            macros = main_macros(SMALL_PLANES, config, aligned)
            assert (macros["SHIFTED"], macros["VECTOR"], macros["PLANE"]) == (0, int(aligned), 49)


def test_whole_images_are_predicted_faster_than_single_elements():
    busy = replace(SMALL_PLANES, n=256)
    best = {}
    for config in POINTWISE.candidates(busy, H200):
        us = POINTWISE.predicted_us(busy, H200, config)
        best[config.layout] = min(us, best.get(config.layout, us))
    assert best[WHOLE_IMAGES] < best[PLAIN]


def test_tiles_and_chunks_pad_little():
    assert tile_filters(144, (160, 128, 64, 32)) == [144, 80, 48, 32]
    assert tile_filters(16, (160, 64)) == [16]
    assert chunk_channels(48) == [16, 48] and chunk_channels(96) == [32, 48]
    assert chunk_channels(3) == [16]


def test_weights_are_packed_first_and_both_launches_overlap():
    config = next(config for config in POINTWISE.candidates(ODD, H200) if not config.packs_weights)
    packing, main = POINTWISE.launches(ODD, config, CallOptions(relu=True))
    assert (packing.kernel, packing.arguments) == ("pack_weights", (WEIGHT, WORKSPACE, 37, 70, 0))
    assert (main.kernel, main.blocks) == ("fp16x3_pointwise", config.blocks)
    assert main.threads == 128 * (config.consumers + 1), "consumers and a warpgroup of producers"
    assert main.arguments == (INPUT, WEIGHT, BIAS, OUTPUT, WORKSPACE, 3, 70, 13, 7, 37, 1, 37, 0)
    assert packing.overlap and main.overlap and packing.macros == main.macros and main.macros["PACKS_WEIGHTS"] == 0


@pytest.mark.parametrize(("problem", "aligned", "vector"), [(HEAVY, True, 1), (HEAVY, False, 0), (ODD, True, 0)])
def test_vectors_need_aligned_operands_and_planes_of_whole_vectors(problem, aligned, vector):
    assert main_macros(problem, POINTWISE.configure(problem, H200), aligned)["VECTOR"] == vector


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (ConvProblem(1, 8, 9, 9, 8, 3, 3, 1, 1), "for filters of 1x1 without padding"),
        (ConvProblem(1, 8, 9, 9, 8, 1, 1, 1, 0), "for filters of 1x1 without padding"),
        (ConvProblem(2**18, 8, 100, 100, 8, 1, 1), "pixels in the batch, the limit of fp16x3_pointwise is"),
        (ConvProblem(1, 8, 2**15, 2**14, 8, 1, 1), "2147483648 bytes in a plane, the limit of fp16x3_pointwise is"),
    ],
)
def test_unsupported_problems_are_refused_in_one_sentence(problem, message):
    with pytest.raises(UnsupportedProblem, match=message):
        POINTWISE.configure(problem, H200)


def test_hopper_only():
    assert POINTWISE.variants(A100.arch) == []
    with pytest.raises(UnsupportedProblem, match=f"sm_90a, {A100.name} is sm_80"):
        POINTWISE.configure(one_by_one(64), A100)


def test_products_are_not_serialised():
    """The compiler's report says so where it has to wait after each instruction of the tensor cores."""
    for macros in POINTWISE.variants("sm_90a")[::VARIANTS_STEP]:
        log = compiler.cubin(KernelVariant.of(POINTWISE.source, "sm_90a", macros)).log
        assert log and "serialized" not in log, macros


def test_a_larger_batch_is_never_predicted_faster():
    times = []
    for n in (1, 8, 32, 128):
        problem = ConvProblem(n, 256, 14, 14, 256, 1, 1)
        times.append(POINTWISE.predicted_us(problem, H200, POINTWISE.configure(problem, H200)))
    assert times == sorted(times)
