"""nhwc_stem without a GPU: its index arithmetic in NumPy, tiles, shared memory, and what it refuses."""

from dataclasses import replace
from math import prod
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from cuconv import ConvProblem, UnsupportedProblem, select
from cuconv.algorithms import ALGORITHMS
from cuconv.algorithms.base import CallOptions
from cuconv.device import H200
from cuconv.operands import check_maps
from tests.cuconv.algorithms.problems import arguments, assert_every_block_has_a_tile

STEM = ALGORITHMS["nhwc_stem"]


def stem(n, c, h, w, m, kh, kw, pad_h=0, pad_w=0, **more):
    return ConvProblem(n, c, h, w, m, kh, kw, pad_h, pad_w, "fp16", **more)


RESNET = stem(1, 3, 224, 224, 64, 7, 7, 3, 3, stride_h=2, stride_w=2)
# Filter rows of an odd and an even number of elements, windows that start at odd elements, planes that no tile divides,
# filters that no block divides, filters larger than the image, and unequal strides and padding.
SMALL = [
    stem(2, 3, 13, 16, 20, 7, 7, 3, 3, stride_h=2, stride_w=2),
    stem(1, 3, 9, 24, 7, 3, 3, 1, 1),
    stem(2, 1, 11, 16, 33, 5, 3, 2, 0, stride_h=3),
    stem(1, 1, 5, 8, 8, 1, 1),
    stem(1, 5, 6, 8, 100, 1, 4, 0, 3, stride_w=3),
    stem(1, 8, 19, 9, 200, 3, 3, 0, 2, stride_h=2, stride_w=2),
    stem(1, 4, 3, 6, 16, 5, 1, 4, 4, stride_w=4),
    stem(1, 7, 4, 8, 9, 2, 2, 1, 1, stride_h=5),
]
PROBLEMS = [*SMALL, *(replace(RESNET, n=n) for n in (1, 8, 32)), stem(3, 3, 224, 224, 96, 11, 11, 2, 2, stride_w=4)]
each_problem = pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.label)


def spread(a, filters, weight):
    """Tile B, [depth][filter], as wgmma finds it in the core matrices that threads write; weight: (M, KH, KW * C)."""
    depth = 16 * a["steps"]
    shared = np.full(depth * filters, np.nan)
    for pair in range(depth // 2):
        row, in_row = divmod(pair, a["row_pairs"])
        for filter in range(filters):
            for i in range(2):
                element = 2 * in_row - a["lead"] + i
                exists = row < a["kernel_h"] and 0 <= element < a["row_elements"] and filter < len(weight)
                at = (pair // 4 * filters + filter) * 8 + pair % 4 * 2 + i
                shared[at] = weight[filter, row, element] if exists else 0
    return shared.reshape(depth // 8, filters, 8).transpose(0, 2, 1).reshape(depth, filters)


def tile_a(a, window, tile):
    """Tile A, [pixel][depth], as threads read it; window: (rows, elements), behind which nothing is defined."""
    shared = np.append(window.ravel(), [np.nan] * 16)
    pairs = np.arange(8 * a["steps"])
    row, in_row = np.divmod(pairs, a["row_pairs"])
    element = (2 * in_row - a["lead"])[:, None] + np.arange(2)
    kept = (row < a["kernel_h"])[:, None] & (element >= 0) & (element < a["row_elements"])
    offset = np.where(kept.any(1), row * a["pitch"] // 2 + 2 * in_row, 0)
    pixel = np.arange(tile.rows * tile.columns)
    down, along = pixel >> a["log_columns"], pixel & ((1 << a["log_columns"]) - 1)
    start = down * a["stride_h"] * a["pitch"] // 2 + along * a["stride_w"] * a["channels"] + a["skipped"] - a["lead"]
    first = (start - start % 2)[:, None] + offset
    words = shared.reshape(-1, 2)
    elements = np.concatenate([words[first // 2], words[np.minimum(first // 2 + 1, len(words) - 1)]], axis=2)
    shift = (start % 2)[:, None, None] + np.arange(2)
    values = np.take_along_axis(elements, np.broadcast_to(shift, (*first.shape, 2)), 2)
    return np.where(kept, values, 0).reshape(len(pixel), -1)


def emulated(problem, config, x, weight):
    """The output, NHWC, by the kernel's index arithmetic; x: (N, H, W * C), weight: (M, KH, KW * C)."""
    p, tile = problem, config.tile
    a = arguments(STEM.launches(p, config)[0])
    out = np.full((p.n, p.out_h, p.out_w, p.m), np.nan)
    elements, rows, _ = a["input"].box
    padded = np.pad(x, ((0, 0), (p.pad_h, p.pad_h + 300), (a["left"], a["left"] + 600)))
    for block in range(config.filter_blocks):
        filters = slice(block * config.filters, min(p.m, (block + 1) * config.filters))
        b = spread(a, config.filters, weight[filters])
        for index in range(a["tiles"]):
            rest, x_tile = divmod(index, a["tiles_along"])
            image, y_tile = divmod(rest, a["tiles_down"])
            top, left = y_tile * tile.rows, x_tile * tile.columns
            y, x_from = top * p.stride_h, left * p.stride_w * p.c
            window = padded[image, y : y + rows, x_from : x_from + elements]
            sums = (tile_a(a, window, tile) @ b).reshape(tile.rows, tile.columns, -1)
            part = out[image, top : top + tile.rows, left : left + tile.columns, filters]
            part[:] = sums[: part.shape[0], : part.shape[1], : part.shape[2]]
    return out


def direct(problem, x, weight):
    """The output, NHWC, as a sum over filter positions; x: (N, H, W, C), weight: (M, KH, KW, C)."""
    p, out = problem, 0.0
    padded = np.pad(x, ((0, 0), (p.pad_h, p.pad_h), (p.pad_w, p.pad_w), (0, 0)))
    for ky in range(p.kh):
        for kx in range(p.kw):
            y, x_at = ky * p.dilation_h, kx * p.dilation_w
            rows = slice(y, y + (p.out_h - 1) * p.stride_h + 1, p.stride_h)
            columns = slice(x_at, x_at + (p.out_w - 1) * p.stride_w + 1, p.stride_w)
            out = out + padded[:, rows, columns] @ weight[:, ky, kx].T
    return out


@pytest.mark.parametrize("problem", SMALL, ids=lambda problem: problem.label)
def test_the_index_arithmetic_computes_the_convolution(problem):
    p, chance = problem, np.random.default_rng(5)
    x, weight = chance.standard_normal((p.n, p.h, p.w, p.c)), chance.standard_normal((p.m, p.kh, p.kw, p.c))
    x[0, p.h // 2, p.w // 2, p.c // 2] = np.nan
    truth = direct(p, x, weight)
    for config in STEM.candidates(p, H200):
        found = emulated(p, config, x.reshape(p.n, p.h, -1), weight.reshape(p.m, p.kh, -1))
        np.testing.assert_allclose(found, truth, atol=1e-12, err_msg=str(config))


@each_problem
def test_a_window_has_every_element_that_its_tile_reads(problem):
    p = problem
    for config in STEM.candidates(p, H200):
        tile, a = config.tile, arguments(STEM.launches(p, config)[0])
        images, down, along = tile.counts(p)
        assert images == p.n and down * tile.rows >= p.out_h and along * tile.columns >= p.out_w
        elements, rows, one = a["input"].box
        assert rows >= (tile.rows - 1) * p.stride_h + p.kh and one == 1
        assert elements >= a["skipped"] + ((tile.columns - 1) * p.stride_w + p.kw) * p.c and elements % 8 == 0
        assert a["left"] - a["skipped"] == p.pad_w * p.c and a["left"] % 8 == tile.columns % 8 == 0
        assert max(elements, rows) <= 256 and all(stride % 16 == 0 for stride in a["input"].strides)


@each_problem
def test_shared_memory_is_enough_and_every_block_has_a_tile(problem):
    p = problem
    for config in STEM.candidates(p, H200):
        (launch,) = STEM.launches(p, config)
        a, filters = arguments(launch), config.filters
        window = -(-2 * prod(a["input"].box) // 128) * 128
        fixed = 16 * a["steps"] * (2 * filters + 4) + 4 * filters + launch.threads // 2 * (2 * filters + 16)
        assert config.stages * (window + 8) + fixed <= launch.shared_bytes <= 227 * 1024
        assert_every_block_has_a_tile(p, config, launch)


def test_a_first_layer_reads_the_image_itself():
    for n in (1, 8, 32):
        assert select.plan(replace(RESNET, n=n), H200, "auto", prepared=True).algorithm == "nhwc_stem"


def test_an_operand_of_a_map_that_starts_anywhere_is_refused():
    launches, x = STEM.launches(RESNET, STEM.configure(RESNET, H200)), torch.zeros(33, dtype=torch.float16)
    library = SimpleNamespace(pointer=lambda array: array.data_ptr())
    check_maps(library, {"input": x[:-1], "weight": x[:-1]}, launches)
    for name in ("input", "weight"):
        with pytest.raises(UnsupportedProblem, match=f"{name} does not start at a multiple of 16 bytes"):
            check_maps(library, {"input": x[:-1], "weight": x[:-1], name: x[1:]}, launches)


def test_operands_that_start_anywhere_are_left_to_the_padded_copy():
    assert select.plan(RESNET, H200, aligned=False).algorithm != "nhwc_stem"
    with pytest.raises(UnsupportedProblem, match="closed set"):
        STEM.weighed(RESNET, H200, CallOptions(aligned=False))


@pytest.mark.parametrize(
    ("problem", "value"),
    [
        (stem(1, 9, 16, 16, 8, 3, 3), "up to 8 channels"),
        (stem(1, 2, 16, 16, 8, 3, 3, groups=2), "one group"),
        (stem(1, 2, 16, 16, 8, 3, 3, dilation_w=2), "dilation 1"),
        (stem(1, 3, 223, 223, 64, 7, 7), "1338 bytes"),
        (stem(1, 3, 224, 224, 768, 16, 16, stride_h=16, stride_w=16), "384 elements"),
        (stem(1, 1, 300, 16, 8, 280, 1), "280 rows"),
        (stem(1, 8, 250, 40, 8, 250, 24), "more than 256 elements"),
        (stem(1, 8, 160, 16, 8, 120, 16), "shared memory"),
    ],
    ids=lambda value: getattr(value, "label", None),
)
def test_what_a_tensor_map_or_the_kernel_cannot_do_is_refused(problem, value):
    with pytest.raises(UnsupportedProblem, match=value):
        STEM.candidates(problem, H200)
