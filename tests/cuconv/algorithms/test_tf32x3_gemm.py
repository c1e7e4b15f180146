"""Configurations of the tensor-core GEMM: pure functions of problem and device; also what tf32x3_wgmma shares."""

from dataclasses import replace
from math import ceil

import pytest

from cuconv import ConvProblem, UnsupportedProblem
from cuconv.algorithms.common.implicit_gemm import tf32x3_gemm
from cuconv.device import A100, H200, DeviceSpec
from cuconv.jit import BIAS, INPUT, OUTPUT, WEIGHT
from tests.cuconv.algorithms.problems import ADA, DEVICES, ODD, PROBLEMS, each_device, each_precision, in_precision, launched, one_by_one

@pytest.mark.parametrize("tile", tf32x3_gemm.TILES, ids=str)
def test_tiles_divide_as_the_kernel_asserts(tile):
    row_step = tile.threads // tile.bn
    assert tile.threads % tile.bn == 0 and tile.bk % row_step == 0 and tile.bk % (8 * tile.wk) == 0
    assert tile.bm % (16 * tile.wm) == 0 and tile.bn % (8 * tile.wn) == 0
    assert tile.bm % max(tf32x3_gemm.SPLITS) == 0
    for width in (1, 4):
        assert tile.threads * width % tile.bk == 0 and tile.bm % (tile.threads * width // tile.bk) == 0
    assert tile.threads <= 1024 and tile.stages >= 2


@each_device
@each_precision
def test_candidates_cover_the_output_and_fit_the_device(device, precision):
    for problem in in_precision(precision, PROBLEMS):
        for config in tf32x3_gemm.candidates(problem, device):
            tile, pixels = config.tile, problem.n * problem.out_pixels
            filter_tiles, pixel_tiles = ceil(problem.m / tile.bm), ceil(pixels / tile.bn)
            assert config.blocks == filter_tiles * pixel_tiles * config.split < 2**31
            assert config.split <= ceil(problem.c * problem.filter_area / tile.bk)
            assert max(tile.pipeline_bytes, tile.sums_bytes) <= config.shared_bytes <= device.shared_bytes_per_block
            assert config.workspace_bytes == 0
            assert tf32x3_gemm.predicted_us(problem, device, config) > 0


@each_device
def test_only_devices_with_clusters_split_a_tile(device):
    splits = {config.split for config in tf32x3_gemm.candidates(one_by_one(4096), device)}
    assert splits == ({1, 2, 4, 8} if device is H200 else {1})


def test_shared_memory_of_a_block():
    limits = {(8, 0): 163, (8, 6): 99, (8, 9): 99, (9, 0): 227, (10, 0): 227, (12, 0): 99}
    for capability, kib in limits.items():
        assert DeviceSpec("", capability, 100).shared_bytes_per_block == kib * 1024


@each_device
def test_configure_takes_the_candidate_of_least_predicted_time(device):
    problem = ConvProblem(8, 96, 28, 28, 128, 3, 3, 1, 1)
    times = [tf32x3_gemm.predicted_us(problem, device, c) for c in tf32x3_gemm.candidates(problem, device)]
    assert tf32x3_gemm.predicted_us(problem, device, tf32x3_gemm.configure(problem, device)) == min(times)


def test_a_deep_filter_is_split_until_its_tap_table_fits():
    deep = ConvProblem(1, 30000, 3, 3, 8, 3, 3, 1, 1)
    assert {config.split for config in tf32x3_gemm.candidates(deep, H200)} == {8}
    with pytest.raises(UnsupportedProblem, match=r"bytes of shared memory .* the limit of NVIDIA A100.* is 166912"):
        tf32x3_gemm.configure(deep, A100)
    assert tf32x3_gemm.candidates(one_by_one(270000), A100)  # pointwise has no table


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (ConvProblem(1, 3, 20, 20, 8, 8, 8), "64 filter positions, the limit of the tf32x3 algorithms is 63"),
        (ConvProblem(2, 1, 32768, 32768, 8, 1, 1), "2147483648 output pixels in the batch"),
        (ConvProblem(1, 64, 1024, 1024, 8, 3, 3), "67108864 input elements in an image"),
        (ConvProblem(1, 2, 1, 2**24 - 1, 1, 3, 1, 1, 0), "50331646 input elements in an image"),  # two rows beyond
        (ConvProblem(1, 1, 4096, 4096, 2**24, 1, 1), "a grid of"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_sizes_beyond_the_kernels_integers_are_refused(problem, message):
    with pytest.raises(UnsupportedProblem, match=message):
        tf32x3_gemm.configure(problem, H200)


def test_arguments_are_the_kernels():
    problem = ConvProblem(2, 5, 12, 9, 17, 3, 4, 1, 2)
    launch = launched(tf32x3_gemm, problem, relu=True)
    assert launch.arguments == (INPUT, WEIGHT, BIAS, OUTPUT, 2, 5, 12, 9, 17, 3, 4, 1, 2, 12, 10, 1)
    assert launch.threads == tf32x3_gemm.configure(problem, H200).tile.threads
    assert not launch.overlap


def test_vector_copies_need_whole_and_aligned_rows():
    def vector(c, aligned=True):
        return launched(tf32x3_gemm, one_by_one(c), aligned=aligned).macros["VECTOR"]

    assert (vector(64), vector(66), vector(64, aligned=False)) == (1, 0, 0)


def test_pointwise_is_1x1_without_padding():
    macros = [launched(tf32x3_gemm, one_by_one(64, pad=pad)).macros["POINTWISE"] for pad in (0, 1)]
    assert macros == [1, 0]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100"])
def test_variants_sample_every_tile_and_setting(arch):
    sample = tf32x3_gemm.variants(arch)
    assert len({tuple(macros.items()) for macros in sample}) == len(sample)
    for products in (3, 1):
        tiles = {(m["BM"], m["BN"], m["WK"], m["BK"], m["WM"]) for m in sample if m["PRODUCTS"] == products}
        assert len(tiles) == len(tf32x3_gemm.TILES)
    assert {(m["POINTWISE"], m["VECTOR"]) for m in sample} == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert {m["SPLIT"] for m in sample} == ({1} if arch == "sm_80" else {1, 2, 4, 8})
