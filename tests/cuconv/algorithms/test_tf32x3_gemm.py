"""Tests of tf32x3_gemm's configurations and launches; they are pure functions of problem and device."""

from math import ceil

import pytest

from cuconv import ConvProblem, UnsupportedProblem
from cuconv.algorithms import ALGORITHMS
from cuconv.algorithms.base import CallOptions
from cuconv.algorithms.tf32x3.tf32x3_gemm import TILES
from cuconv.core.launch import BIAS, INPUT, OUTPUT, RESIDUAL, WEIGHT
from cuconv.device import A100, H200, DeviceSpec
from tests.cuconv.algorithms.problems import (
    PROBLEMS,
    TYPICAL,
    each_device,
    each_precision,
    in_precision,
    launched,
    one_by_one,
)

GEMM = ALGORITHMS["tf32x3_gemm"]


@each_device
@each_precision
def test_candidates_cover_the_output_and_fit_the_device(device, precision):
    for problem in in_precision(precision, PROBLEMS):
        for config in GEMM.candidates(problem, device):
            tile, pixels = config.tile, problem.n * problem.out_pixels
            filter_tiles, pixel_tiles = ceil(problem.m / tile.filters), ceil(pixels / tile.pixels)
            assert config.blocks == filter_tiles * pixel_tiles * config.split_k < 2**31
            assert config.split_k <= ceil(problem.c * problem.filter_area / tile.stage_depth), "a block without stages"
            assert max(tile.pipeline_bytes, tile.sums_bytes) <= config.shared_bytes <= device.shared_bytes_per_block
            assert config.workspace_bytes == 0
            assert config.threads == tile.threads <= 1024
            assert GEMM.predicted_us(problem, device, config) > 0


@each_device
def test_only_devices_with_clusters_offer_split_k(device):
    split_ks = {config.split_k for config in GEMM.candidates(one_by_one(4096), device)}
    assert split_ks == ({1, 2, 4, 8} if device is H200 else {1})


def test_shared_memory_limit_of_each_compute_capability():
    limits = {(8, 0): 163, (8, 6): 99, (8, 9): 99, (9, 0): 227, (10, 0): 227, (12, 0): 99}
    for capability, kib in limits.items():
        assert DeviceSpec("", capability, 100).shared_bytes_per_block == kib * 1024


@each_device
def test_configure_takes_the_candidate_of_least_predicted_time(device):
    times = [GEMM.predicted_us(TYPICAL, device, config) for config in GEMM.candidates(TYPICAL, device)]
    assert GEMM.predicted_us(TYPICAL, device, GEMM.configure(TYPICAL, device)) == min(times)


def test_a_long_reduction_is_split_until_its_tap_table_fits():
    deep = ConvProblem(1, 30000, 3, 3, 8, 3, 3, 1, 1)
    assert {config.split_k for config in GEMM.candidates(deep, H200)} == {8}
    with pytest.raises(UnsupportedProblem, match=r"bytes of shared memory .* the limit of NVIDIA A100.* is 166912"):
        GEMM.configure(deep, A100)
    assert GEMM.candidates(one_by_one(270000), A100), "a 1x1 filter without padding needs no table"


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (ConvProblem(1, 3, 40, 40, 8, 32, 2), "32 rows in a filter, the limit of the tf32x3 algorithms is 31"),
        (ConvProblem(2, 1, 32768, 32768, 8, 1, 1), "2147483648 output pixels in the batch"),
        (ConvProblem(1, 2048, 1024, 1024, 8, 3, 3), "2147483648 input elements in an image"),
        # The filter's last tap lies two rows beyond the input.
        (ConvProblem(1, 2, 1, 2**30 - 1, 1, 3, 1, 1, 0), "3221225470 input elements in an image"),
        (ConvProblem(1, 1, 4096, 4096, 2**24, 1, 1), "a grid of"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_sizes_beyond_the_kernels_integers_are_refused(problem, message):
    with pytest.raises(UnsupportedProblem, match=message):
        GEMM.configure(problem, H200)


def test_the_launch_passes_the_kernels_arguments():
    problem = ConvProblem(2, 10, 12, 9, 34, 3, 4, 1, 2, "fp32", 1, 2, 3, 1, groups=2)
    launch = launched(GEMM, problem, relu=True)
    of_group = (2, 5, 12, 9, 17, 3, 4, 1, 2, 8, 5)
    assert launch.arguments == (INPUT, WEIGHT, BIAS, OUTPUT, *of_group, 1, 34, 1, 2, 3, 1, 2, 1, 0)
    assert launch.threads == GEMM.configure(problem, H200).threads
    assert not launch.overlap


def test_vector_copies_need_whole_and_aligned_rows_of_weights():
    assert launched(GEMM, one_by_one(64)).arguments[-2] == 1
    assert launched(GEMM, one_by_one(66)).arguments[-2] == 0
    assert launched(GEMM, one_by_one(64), aligned=False).arguments[-2] == 0


def test_layers_of_every_geometry_share_a_variant():
    dense, sparse = (ConvProblem(1, 64, 9, 9, 64, 3, 3, 1, 1, "fp32", step, 1, step, 1, step) for step in (1, 2))
    for config in GEMM.candidates(sparse, H200):
        (one,), (other,) = GEMM.launches(dense, config), GEMM.launches(sparse, config, CallOptions(False, True))
        assert one.macros == other.macros


def test_a_residual_is_an_argument_that_may_be_null():
    config = GEMM.configure(TYPICAL, H200)
    plain, added = (GEMM.launches(TYPICAL, config, CallOptions(residual=residual))[0] for residual in (False, True))
    assert plain.macros == added.macros and plain.arguments == (*added.arguments[:-1], 0)
    assert added.arguments[-1] == RESIDUAL


@pytest.mark.parametrize(("pad", "pointwise"), [(0, 1), (1, 0)])
def test_pointwise_is_1x1_without_padding(pad, pointwise):
    assert launched(GEMM, one_by_one(64, pad=pad)).macros["POINTWISE"] == pointwise


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100"])
def test_variants_have_every_tile_and_setting(arch):
    sample = GEMM.variants(arch)
    assert len({tuple(macros.items()) for macros in sample}) == len(sample)
    of_tile = ("FILTERS", "PIXELS", "FILTER_WARPS", "PIXEL_WARPS", "WARP_SPLIT_K", "STAGE_DEPTH")
    for products in (3, 1):
        assert len({tuple(m[name] for name in of_tile) for m in sample if m["PRODUCTS"] == products}) == len(TILES)
    assert {(m["POINTWISE"], m["TAP_BYTES"]) for m in sample} == {(0, 4), (1, 4), (0, 8)}
    assert {m["SPLIT_K"] for m in sample} == ({1} if arch == "sm_80" else {1, 2, 4, 8})
