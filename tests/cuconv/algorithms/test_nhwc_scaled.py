"""The sizes of nhwc_scaled: stages, packed weights and what its kernels are told, checked without a GPU."""

from dataclasses import replace
from math import ceil

import pytest

from cuconv import UnsupportedProblem
from cuconv.algorithms import ALGORITHMS
from cuconv.algorithms.base import CallOptions
from cuconv.core.launch import PACKED, WORKSPACE
from cuconv.device import H200
from tests.cuconv.algorithms.problems import arguments, typical_problem

SCALED = ALGORITHMS["nhwc_scaled"]
TYPICAL = typical_problem("nhwc_scaled")
# Filters and channels that fill no tile or box; one of each; strides and dilations; a long reduction.
PROBLEMS = [
    TYPICAL,
    replace(TYPICAL, c=20, m=257),
    replace(TYPICAL, c=4, m=1, kh=1, kw=1, pad_h=0, pad_w=0),
    replace(TYPICAL, n=1, c=2052, m=129, stride_w=3, dilation_h=2),
]
each_problem = pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.label)


@each_problem
def test_packed_weights_are_the_same_for_all_configurations_and_have_room_for_every_box(problem):
    p = problem
    for config in SCALED.candidates(p, H200):
        packing, main = SCALED.launches(p, config)
        packed, told = dict(zip(("weight", "to", "filters", "rows"), packing.arguments, strict=False)), arguments(main)
        assert packed["rows"] == told["rows"] == packing.blocks and p.m <= told["rows"] < p.m + 8
        assert packing.arguments[-1] == told["boxes_at"] >= 4 * told["rows"] and told["boxes_at"] % 16 == 0
        boxes = p.filter_area * ceil(p.c / 32)
        assert told["boxes_at"] + boxes * told["rows"] * 64 == config.workspace_bytes
        assert SCALED.packing(p, config).workspace_bytes(p) == config.workspace_bytes


@each_problem
def test_every_filter_and_pixel_has_a_tile_and_every_stage_room(problem):
    p = problem
    for config in SCALED.candidates(p, H200):
        main = SCALED.launches(p, config)[-1]
        told, tile = arguments(main), config.tile
        pixel_tiles, filter_tiles = ceil(p.n * p.out_pixels / tile.pixels), ceil(p.m / tile.filters)
        assert (told["tiles"], told["filter_tiles"]) == (pixel_tiles * filter_tiles, filter_tiles)
        assert main.arguments[0].box == (32, tile.pixels) and main.arguments[0].swizzle == 128
        stage = config.boxes * (128 * tile.pixels + 64 * tile.filters)
        assert config.ring * (stage + 16) <= config.shared_bytes <= H200.shared_bytes_of(config.resident)
        assert told["ring_stages"] == config.ring and config.blocks <= min(told["tiles"], config.resident * 132)


def test_constant_weights_are_read_where_they_are_packed_and_before_the_kernel_ahead_ends():
    config = SCALED.configure(TYPICAL, H200)
    plain, prepared = (
        arguments(SCALED.launches(TYPICAL, config, CallOptions(packed=one))[-1]) for one in (False, True)
    )
    assert (plain["packed"], plain["weights_early"]) == (WORKSPACE, 0)
    assert (prepared["packed"], prepared["weights_early"]) == (PACKED, 1)
    packing = SCALED.packing_launch(TYPICAL, config, CallOptions())
    assert packing is not None and PACKED in packing.arguments


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"groups": 2}, "one group"),
        ({"c": 98}, "multiple of 4"),
        ({"precision": "tf32"}, "tf32_channels_last"),
        ({"stride_w": 9}, "strides up to"),
    ],
)
def test_what_it_does_not_compute_is_refused(change, words):
    with pytest.raises(UnsupportedProblem, match=words):
        SCALED.candidates(replace(TYPICAL, **change), H200)
