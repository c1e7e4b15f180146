"""The copies of nhwc_scaled and what its kernels are told, checked without a GPU."""

from dataclasses import replace
from math import ceil

import pytest

from cuconv import UnsupportedProblem
from cuconv.algorithms import ALGORITHMS
from cuconv.algorithms.base import CallOptions
from cuconv.algorithms.channels_last import scale_rows
from cuconv.core.launch import INPUT, PACKED, WEIGHT, WORKSPACE
from cuconv.device import H200
from tests.cuconv.algorithms.problems import arguments, typical_problem

SCALED = ALGORITHMS["nhwc_scaled"]
TYPICAL = typical_problem("nhwc_scaled")
# Channels and filters that fill no tile or box; images of one slice and of many, also beyond shared memory; one image.
PROBLEMS = [
    TYPICAL,
    replace(TYPICAL, c=24, m=257),
    replace(TYPICAL, n=1, c=8, h=1, w=1, m=1, kh=1, kw=1, pad_h=0, pad_w=0),
    replace(TYPICAL, n=2, c=64, h=224, w=224, m=64),
    replace(TYPICAL, n=300, c=512, h=7, w=7, m=512),
]
each_problem = pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.label)


@each_problem
def test_copies_lie_behind_one_another_and_every_number_has_a_block(problem):
    p, config = problem, SCALED.configure(problem, H200)
    weights, images, main = SCALED.launches(p, config)
    of_images, of_filters = scale_rows.images(p), scale_rows.filters(p)
    assert config.workspace_bytes == of_images.bytes + of_filters.bytes
    assert (images.arguments[:2], weights.arguments[:2]) == (
        (INPUT, WORKSPACE),
        (WEIGHT, WORKSPACE + of_images.bytes),
    )
    for launch, rows, count in ((images, of_images, p.n), (weights, of_filters, p.m)):
        elements, slice_, kept, copies_at = launch.arguments[2:]
        blocks = launch.macros["BLOCKS"]
        assert launch.blocks == count * blocks and blocks * slice_ >= elements == rows.elements
        assert slice_ % 8 == 0 and copies_at >= 4 * count and copies_at % 16 == 0
        assert rows.bytes >= copies_at + 2 * count * elements
        assert launch.shared_bytes == (4 * slice_ if kept else 0) <= H200.shared_bytes_of(2)
    told = arguments(main)
    assert (told["image_factors"], told["filter_factors"]) == (WORKSPACE, WORKSPACE + of_images.bytes)
    pixels, filters = main.arguments[:2]
    assert pixels.address == WORKSPACE + of_images.copies_at and pixels.element == filters.element == "fp16"
    assert filters.address == WORKSPACE + of_images.bytes + of_filters.copies_at
    assert told["tiles"] == ceil(p.n * p.out_pixels / config.tile.pixels) * ceil(p.m / config.tile.filters)


def test_constant_weights_are_copied_once():
    config, options = SCALED.configure(TYPICAL, H200), CallOptions(packed=True)
    images, main = SCALED.launches(TYPICAL, config, options)
    assert images.kernel == "scale_rows" and arguments(main)["filter_factors"] == PACKED
    assert arguments(main)["weights_early"] == 1
    once = SCALED.packing_launch(TYPICAL, config, options)
    assert once is not None and once.arguments[:2] == (WEIGHT, PACKED)
    packing = SCALED.packing(TYPICAL, config)
    assert all(SCALED.packing(p, SCALED.configure(p, H200)) == packing for p in PROBLEMS)
    assert packing.workspace_bytes(TYPICAL) == scale_rows.filters(TYPICAL).bytes


@pytest.mark.parametrize(
    ("change", "words"),
    [({"groups": 2}, "one group"), ({"c": 100}, "multiple of 8"), ({"stride_w": 9}, "strides up to")],
)
def test_what_it_does_not_compute_is_refused(change, words):
    with pytest.raises(UnsupportedProblem, match=words):
        SCALED.candidates(replace(TYPICAL, **change), H200)
