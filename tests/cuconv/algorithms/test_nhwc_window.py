"""nhwc_window without a GPU: its index arithmetic in NumPy, tiles, shared memory, and what it refuses."""

from dataclasses import replace
from math import prod

import numpy as np
import pytest

from cuconv import ConvProblem, UnsupportedProblem, select
from cuconv.algorithms import ALGORITHMS
from cuconv.algorithms.base import CallOptions
from cuconv.core.launch import WORKSPACE
from cuconv.device import H200
from tests.cuconv.algorithms.problems import arguments, assert_every_block_has_a_tile
from tests.cuconv.algorithms.test_nhwc_stem import direct

WINDOW = ALGORITHMS["nhwc_window"]


def window(n, c, h, w, m, kh, kw, pad_h=0, pad_w=0, **more):
    return ConvProblem(n, c, h, w, m, kh, kw, pad_h, pad_w, "fp16", **more)


GOOGLENET = window(1, 24, 14, 14, 64, 5, 5, 2, 2)
# Every number of bytes of a pixel that has a swizzle, and two that have none; reductions that end within a step, a
# group and a box of weights; planes that no tile divides; filters that no block divides; filters larger than the image;
# unequal strides, dilations and padding.
SMALL = [
    window(2, 24, 7, 9, 20, 5, 5, 2, 2),
    window(1, 16, 9, 12, 7, 3, 3, 1, 1, stride_h=2, stride_w=3),
    window(2, 32, 5, 6, 33, 3, 2, 2, 0),
    window(1, 64, 4, 11, 100, 1, 2),
    window(1, 8, 6, 8, 9, 3, 3, 4, 2, dilation_h=4, dilation_w=2),
    window(1, 40, 3, 4, 16, 5, 5, 4, 4),
    window(1, 72, 5, 6, 12, 3, 3, 1, 1),
]
# Channels that are padded, and how many they become.
PADDED = [
    (window(2, 3, 9, 8, 5, 3, 3, 1, 1, dilation_w=2), 8),
    (window(1, 12, 7, 9, 20, 5, 5, 2, 2, stride_w=2), 16),
    (window(1, 57, 4, 11, 9, 1, 2), 64),
    (window(1, 68, 5, 6, 3, 3, 3, 1, 1), 72),
    (window(1, 77, 5, 6, 3, 3, 3, 1, 1), 88),
]
PROBLEMS = [*SMALL, *(replace(GOOGLENET, n=n) for n in (1, 8, 32)), window(2, 64, 224, 224, 64, 3, 3, 1, 1)]
each_problem = pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.label)


def tile_a(a, window, tile):
    """Tile A, [pixel][depth], as threads read it from a window of (rows, columns, channels); behind it all is NaN."""
    octet = np.arange(-(-a["octets"] // 8) * 8)  # whole boxes of weights
    row, in_row = np.divmod(octet, a["row_octets"])
    column, in_position = np.divmod(in_row, a["position_octets"])
    pitch, channels = a["pitch"] // 2, a["channels"]
    place = row * a["dilation_h"] * pitch + column * a["dilation_w"] * channels + in_position * 8
    pixel = np.arange(tile.rows * tile.columns)
    down, along = pixel >> a["log_columns"], pixel & ((1 << a["log_columns"]) - 1)
    start = down * a["stride_h"] * pitch + along * a["stride_w"] * channels
    at = (start[:, None] + place)[:, :, None] + np.arange(8)
    shared = np.append(window.ravel(), [np.nan])
    values = shared[np.minimum(at, len(shared) - 1)]
    return np.where((octet < a["octets"])[:, None], values, 0).reshape(len(pixel), -1)


def emulated(problem, config, x, weight):
    """The output, NHWC, by the kernel's index arithmetic; x: (N, H, W, C), weight: (M, KH, KW, C)."""
    p, tile = problem, config.tile
    a = arguments(WINDOW.launches(p, config)[0])
    out = np.full((p.n, p.out_h, p.out_w, p.m), np.nan)
    channels, columns, rows, _ = a["input"].box
    assert channels == p.c and a["pitch"] == 2 * columns * channels and a["window_rows"] == rows
    padded = np.pad(x, ((0, 0), (p.pad_h, p.pad_h + 300), (p.pad_w, p.pad_w + 300), (0, 0)))
    flat = weight.reshape(p.m, -1)
    for block in range(config.filter_blocks):
        filters = slice(block * config.filters, min(p.m, (block + 1) * config.filters))
        for index in range(a["tiles"]):
            rest, x_tile = divmod(index, a["tiles_along"])
            image, y_tile = divmod(rest, a["tiles_down"])
            top, left = y_tile * tile.rows, x_tile * tile.columns
            y, x_from = top * p.stride_h, left * p.stride_w
            a_tile = tile_a(a, padded[image, y : y + rows, x_from : x_from + columns], tile)
            b = np.pad(flat[filters], ((0, 0), (0, a_tile.shape[1] - flat.shape[1])))
            sums = (a_tile @ b.T).reshape(tile.rows, tile.columns, -1)
            part = out[image, top : top + tile.rows, left : left + tile.columns, filters]
            part[:] = sums[: part.shape[0], : part.shape[1], : part.shape[2]]
    return out


@pytest.mark.parametrize("problem", SMALL, ids=lambda problem: problem.label)
def test_the_index_arithmetic_computes_the_convolution(problem):
    p, chance = problem, np.random.default_rng(5)
    x, weight = chance.standard_normal((p.n, p.h, p.w, p.c)), chance.standard_normal((p.m, p.kh, p.kw, p.c))
    x[0, p.h // 2, p.w // 2, p.c // 2] = np.nan
    truth = direct(p, x, weight)
    for config in WINDOW.candidates(p, H200):
        np.testing.assert_allclose(emulated(p, config, x, weight), truth, atol=1e-11, err_msg=str(config))


@pytest.mark.parametrize(("problem", "channels"), PADDED, ids=lambda value: getattr(value, "label", ""))
def test_padded_channels_have_a_window_of_the_copies(problem, channels):
    p = problem
    equal = WINDOW.copies(p).computed
    assert equal == replace(p, c=channels)
    for config in WINDOW.candidates(p, H200):
        padding, main = WINDOW.launches(p, config, CallOptions(packed=True))
        (alone,) = WINDOW.launches(equal, config, CallOptions())
        found, wanted = arguments(main), arguments(alone)
        for operand, bytes_ahead in (("input", 0), ("weight", 2 * p.n * p.h * p.w * channels)):
            assert found[operand] == replace(wanted[operand], address=WORKSPACE + bytes_ahead)
        # The kernel ahead writes the weights.
        assert found | dict.fromkeys(("input", "weight")) == wanted | dict.fromkeys(("input", "weight"))
        assert found["weights_early"] == 0
        assert config.workspace_bytes == 2 * channels * (p.n * p.h * p.w + p.m * p.filter_area)
        assert padding.blocks * padding.threads * 16 >= config.workspace_bytes


@each_problem
def test_shared_memory_is_enough_and_every_block_has_a_tile(problem):
    p = problem
    for config in WINDOW.candidates(p, H200):
        (launch,) = WINDOW.launches(p, config)
        a, filters = arguments(launch), config.filters
        stage = -(-2 * prod(a["input"].box) // 1024) * 1024
        boxes = -(-a["octets"] // 8)
        fixed = boxes * (128 * filters + 40) + 4 * filters + 16 + launch.threads // 2 * (2 * filters + 16)
        assert config.stages * (stage + 8) + fixed <= launch.shared_bytes <= 227 * 1024
        assert max(a["input"].box) <= 256 and a["weight"].box == (64, filters)
        assert_every_block_has_a_tile(p, config, launch)


def test_large_filters_of_few_channels_read_windows():
    for n in (32, 128):
        assert select.plan(replace(GOOGLENET, n=n), H200, "auto", prepared=True).algorithm == "nhwc_window"


def test_operands_that_start_anywhere_are_left_to_other_algorithms():
    assert select.plan(replace(GOOGLENET, n=32), H200, aligned=False).algorithm != "nhwc_window"
    with pytest.raises(UnsupportedProblem, match="closed set"):
        WINDOW.weighed(GOOGLENET, H200, CallOptions(aligned=False))


@pytest.mark.parametrize(
    ("problem", "value"),
    [
        (window(1, 80, 16, 16, 8, 3, 3), "up to 64"),
        (window(1, 121, 16, 16, 8, 3, 3), "up to 120"),
        (window(1, 16, 16, 16, 8, 3, 3, groups=2), "one group"),
        (window(1, 12, 16, 16, 8, 3, 3, groups=2), "one group"),
        (window(1, 16, 16, 16, 8, 1, 1), "larger than 1x1"),
        (window(1, 8, 300, 16, 8, 280, 1), "280 rows"),
        (window(1, 8, 16, 300, 8, 1, 260), "267 columns"),
        (window(1, 64, 40, 40, 8, 16, 16), "shared memory"),
    ],
    ids=lambda value: getattr(value, "label", None),
)
def test_what_a_tensor_map_or_the_kernel_cannot_do_is_refused(problem, value):
    with pytest.raises(UnsupportedProblem, match=value):
        WINDOW.candidates(problem, H200)


@pytest.mark.parametrize(
    "problem",
    [
        window(8, 12, 56, 56, 64, 1, 1),
        window(1, 78, 16, 400, 64, 3, 200, dilation_w=2),
        window(1, 60, 40, 40, 8, 16, 16),
    ],
    ids=lambda problem: problem.label,
)
def test_a_refusal_names_the_layer_that_was_asked_for_rather_than_the_padded_one(problem):
    with pytest.raises(UnsupportedProblem, match=f"^{problem.label}: "):
        WINDOW.candidates(problem, H200)
