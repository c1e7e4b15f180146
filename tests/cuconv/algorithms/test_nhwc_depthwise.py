"""The tiles, windows and shared memory of nhwc_depthwise, checked without a GPU."""

from math import prod

import pytest

from cuconv import ConvProblem, UnsupportedProblem
from cuconv.algorithms import ALGORITHMS
from cuconv.device import H200

DEPTHWISE = ALGORITHMS["nhwc_depthwise"]
MOBILE = [  # channels, rows and columns, filter size and stride of layers of mobile networks
    (32, 112, 3, 1), (96, 112, 3, 2), (144, 56, 3, 1), (192, 28, 3, 1), (240, 28, 5, 2), (480, 14, 3, 1),
    (672, 14, 5, 1), (960, 7, 3, 1), (96, 56, 7, 1), (768, 7, 7, 1),
]  # fmt: skip


def depthwise(n, c, h, w, kh, kw, pad_h, pad_w, **more):
    return ConvProblem(n, c, h, w, c, kh, kw, pad_h, pad_w, "fp16", groups=c, **more)


def mobile(n, c, size, k, stride):
    return depthwise(n, c, size, size, k, k, k // 2, k // 2, stride_h=stride, stride_w=stride)


# Planes and images that no tile divides; strides and dilations that differ; windows as large as a box, or wider than
# shared memory has room for with many channels.
PROBLEMS = [
    depthwise(3, 40, 13, 9, 3, 3, 1, 1),
    depthwise(70, 144, 7, 5, 5, 5, 2, 2, stride_h=2, stride_w=2),
    depthwise(1, 24, 30, 41, 4, 3, 6, 0, stride_h=3, stride_w=2, dilation_h=2, dilation_w=5),
    depthwise(2, 8, 1, 3000, 1, 31, 0, 15),
    depthwise(1, 16, 256, 1, 256, 1, 0, 0),
    depthwise(1, 64, 90, 90, 31, 31, 15, 15),
    depthwise(1, 128, 130, 140, 3, 3, 40, 40, dilation_h=40, dilation_w=40),
    depthwise(1, 8, 900, 900, 1, 1, 0, 0, stride_h=100, stride_w=100),
    *(mobile(n, *layer) for layer in MOBILE for n in (1, 32)),
]
each_problem = pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.label)


@each_problem
def test_a_window_has_every_pixel_that_its_tile_reads(problem):
    p = problem
    for config in DEPTHWISE.candidates(p, H200):
        tile, (pixels, *_) = config.tile, DEPTHWISE.launches(p, config)[0].arguments
        counts = tile.counts(p)
        assert (
            counts[0] * tile.images >= p.n and counts[1] * tile.rows >= p.out_h and counts[2] * tile.columns >= p.out_w
        )
        last_row = (tile.rows - 1) * p.stride_h + (p.kh - 1) * p.dilation_h
        last_column = (tile.columns - 1) * p.stride_w + (p.kw - 1) * p.dilation_w
        assert pixels.box[1] > last_column and pixels.box[2] > last_row and pixels.box[3] == tile.images
        assert max(pixels.box) <= 256 and config.channel_blocks * pixels.box[0] >= p.c


@each_problem
def test_stages_weights_and_barriers_fit_and_every_block_has_a_tile(problem):
    p = problem
    for config in DEPTHWISE.candidates(p, H200):
        (launch,) = DEPTHWISE.launches(p, config)
        window, weights = 2 * prod(launch.arguments[0].box), 48 * config.vectors * p.filter_area
        assert config.stages * window + weights + 8 * (config.stages + 1) <= launch.shared_bytes <= 227 * 1024
        tiles, blocks = prod(config.tile.counts(p)), launch.blocks // config.channel_blocks
        assert launch.blocks % config.channel_blocks == 0 and blocks <= tiles <= blocks * config.turns
        assert 1 <= config.stages <= config.turns


def wavefronts(problem, config):
    """The mean times that shared memory is read for eight threads that each read the first vector of their windows."""
    p, tile, pixel, found = problem, config.tile, 16 * config.vectors, []
    for first in range(0, config.threads, 8):
        banks = {}
        for thread in range(first, first + 8):
            position, vector = divmod(thread, config.vectors)
            column, row = divmod(position, tile.rows)
            if position < min(config.positions, tile.rows * tile.columns // config.strip.columns):
                at = (row * p.stride_h * tile.window_columns + column * config.strip.columns * p.stride_w) * pixel
                banks.setdefault((at + 16 * vector) % 128, set()).add(at + 16 * vector)
        found += [max(map(len, banks.values()))] if banks else []
    return sum(found) / len(found)


@pytest.mark.parametrize("layer", [layer for layer in MOBILE if layer[3] == 1], ids=str)
def test_threads_of_neighbouring_rows_read_different_banks(layer):
    problem = mobile(1, *layer)
    assert all(wavefronts(problem, config) < 1.2 for config in DEPTHWISE.candidates(problem, H200))


@pytest.mark.parametrize("layer", MOBILE, ids=str)
def test_few_threads_of_many_images_have_no_output(layer):
    problem = mobile(32, *layer)
    config = DEPTHWISE.configure(problem, H200)
    computed = prod(config.tile.counts(problem)) * config.tile.images * config.tile.rows * config.tile.columns
    assert 32 * problem.out_pixels >= 0.75 * computed, config


@pytest.mark.parametrize(
    ("problem", "value"),
    [
        (depthwise(1, 8, 9, 300, 1, 257, 0, 0), "257 columns"),
        (depthwise(1, 8, 300, 300, 3, 3, 0, 0, dilation_h=128), "257 rows"),
        (depthwise(1, 8, 300, 300, 3, 3, 0, 0, dilation_h=100, dilation_w=100), "3x3 filter"),
        (depthwise(1, 8, 99, 99, 40, 40, 0, 0), "1600 filter positions"),
        (depthwise(1, 12, 9, 9, 3, 3, 1, 1), "multiple of 8"),
    ],
)
def test_a_window_that_is_too_large_is_refused(problem, value):
    with pytest.raises(UnsupportedProblem, match=value):
        DEPTHWISE.configure(problem, H200)
