"""Tests of tf32x3_gemm's configurations and launches; they are pure functions of problem and device."""

from math import ceil

import pytest

from cuconv import ConvProblem, UnsupportedProblem
from cuconv.algorithms import ALGORITHMS
from cuconv.algorithms.base import CallOptions
from cuconv.device import A100, H200
from tests.cuconv.algorithms.problems import (
    PROBLEMS,
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
            assert config.blocks == filter_tiles * pixel_tiles * config.split_k
            assert config.split_k <= ceil(problem.c * problem.filter_area / tile.stage_depth), "a block without stages"
            assert max(tile.pipeline_bytes, tile.sums_bytes) <= config.shared_bytes


@each_device
def test_only_devices_with_clusters_offer_split_k(device):
    split_ks = {config.split_k for config in GEMM.candidates(one_by_one(4096), device)}
    assert split_ks == ({1, 2, 4, 8} if device is H200 else {1})


def test_a_long_reduction_is_split_until_its_tap_table_fits():
    deep = ConvProblem(1, 30000, 3, 3, 8, 3, 3, 1, 1)
    assert {config.split_k for config in GEMM.candidates(deep, H200)} == {8}
    with pytest.raises(UnsupportedProblem, match="166912"):
        GEMM.configure(deep, A100)
    assert GEMM.candidates(one_by_one(270000), A100), "a 1x1 filter without padding needs no table"


def test_layers_of_every_geometry_share_a_variant():
    dense, sparse = (ConvProblem(1, 64, 9, 9, 64, 3, 3, 1, 1, "fp32", step, 1, step, 1, step) for step in (1, 2))
    for config in GEMM.candidates(sparse, H200):
        (one,), (other,) = GEMM.launches(dense, config), GEMM.launches(sparse, config, CallOptions(False, True))
        assert one.macros == other.macros


@pytest.mark.parametrize(("pad", "pointwise"), [(0, 1), (1, 0)])
def test_pointwise_is_1x1_without_padding(pad, pointwise):
    assert launched(GEMM, one_by_one(64, pad=pad)).macros["POINTWISE"] == pointwise
