"""Tests of what configurations of tf32x3_gemm, tf32x3_wgmma and tf32x3_shallow have to keep for their kernels."""

from itertools import product
from math import ceil

import pytest

from cuconv import ConvProblem, UnsupportedProblem
from cuconv.algorithms import ALGORITHMS
from cuconv.algorithms.base import CallOptions
from cuconv.algorithms.tf32x3.wgmma_model import CLUSTER_SIZES, TILES
from cuconv.device import A100, H200
from tests.cuconv.algorithms.problems import PROBLEMS, each_device, each_precision, in_precision, one_by_one

GEMM, WGMMA, SHALLOW = (ALGORITHMS[f"tf32x3_{name}"] for name in ("gemm", "wgmma", "shallow"))


@each_device
@each_precision
@pytest.mark.parametrize("algorithm", [GEMM, WGMMA], ids=lambda algorithm: algorithm.name)
def test_blocks_cover_the_output_and_each_has_a_part_of_the_reduction(algorithm, device, precision):
    for problem in in_precision(precision, PROBLEMS) if device.is_hopper or algorithm is GEMM else []:
        for config in algorithm.candidates(problem, device):
            tile, depth = config.tile, problem.c * problem.filter_area
            outputs = config.blocks // config.split_k * tile.filters * tile.pixels
            assert outputs >= problem.m * problem.n * problem.out_pixels and config.blocks % config.split_k == 0
            if algorithm is GEMM:
                assert config.split_k <= ceil(depth / tile.stage_depth), "a block without stages"
                assert max(tile.pipeline_bytes, tile.sums_bytes) <= config.shared_bytes
            else:
                assert config.split_k * tile.warpgroup_split_k <= ceil(depth / 32), "a warpgroup without stages"
                assert config.split_k <= tile.filters / 2, "a block of the cluster without a pair of filters to write"
                assert tile.pipeline_bytes(config.products) <= config.shared_bytes


@each_device
@each_precision
def test_blocks_of_shallow_have_pixels_and_are_one_wave(device, precision):
    computed = 0
    for problem in in_precision(precision, PROBLEMS):
        try:
            configs = SHALLOW.candidates(problem, device)
        except UnsupportedProblem:
            continue
        computed += 1
        for config in configs:
            filter_blocks = ceil(problem.m / config.block_filters)
            pixels = (config.blocks / filter_blocks - 1) * config.warps * 32  # of all but one block of pixels
            assert config.blocks % filter_blocks == 0 and pixels < problem.n * problem.out_pixels
            assert config.blocks <= max(filter_blocks, config.resident * device.sm_count), "a second wave"
            assert config.resident * (config.shared_bytes + 1024) <= device.shared_bytes_per_sm
    assert computed >= 9, "the first layers of networks, and 1x1 layers of few channels"


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_registers_of_a_block_fit_an_sm(tile):
    for split_k, products, general in product(CLUSTER_SIZES, (3, 1), (False, True)):
        registers = tile.registers(split_k, products, general)
        assert tile.threads * registers <= 64 * 1024 and registers <= 256


@pytest.mark.parametrize(("algorithm", "channels"), [(GEMM, 30000), (WGMMA, 12000)])
def test_a_long_reduction_is_split_until_its_tap_table_fits(algorithm, channels):
    deep = ConvProblem(1, channels, 3, 3, 8, 3, 3, 1, 1)
    assert min(config.split_k for config in algorithm.candidates(deep, H200)) > 1
    if algorithm is GEMM:
        with pytest.raises(UnsupportedProblem):
            algorithm.configure(deep, A100)
        assert algorithm.candidates(one_by_one(270000), A100), "a 1x1 filter without padding needs no table"


@pytest.mark.parametrize(
    ("problem", "macros"),
    [
        (ConvProblem(1, 16, 30, 20, 16, 3, 3, 1, 1), {"LINEAR": 1, "WHOLE": 0, "LARGE_FILTER": 0}),
        (ConvProblem(1, 16, 30, 20, 16, 5, 3, 0, 1), {"LINEAR": 1}),
        (ConvProblem(2, 16, 30, 20, 16, 3, 3, 1, 1), {"LINEAR": 0}),  # not one image as wide as its output
        (ConvProblem(1, 16, 30, 20, 16, 3, 3, 1, 0), {"LINEAR": 0}),
        (ConvProblem(1, 1, 2, 70000, 16, 1, 1), {"LINEAR": 0}),  # beyond the exact range of the kernel's division
        (ConvProblem(1, 64, 14, 14, 16, 1, 1), {"WHOLE": 1}),  # a 1x1 reduction of whole stages
        (ConvProblem(1, 65, 14, 14, 16, 1, 1), {"WHOLE": 0}),
        (ConvProblem(1, 64, 14, 14, 16, 3, 3, 1, 1), {"WHOLE": 0}),
        (ConvProblem(1, 16, 30, 30, 16, 4, 8), {"LARGE_FILTER": 0}),  # 32 positions fit a mask
        (ConvProblem(1, 16, 30, 30, 16, 3, 11), {"LARGE_FILTER": 1}),
        (ConvProblem(1, 16, 30, 30, 16, 7, 9), {"LARGE_FILTER": 1}),
        (ConvProblem(1, 16, 30, 30, 16, 8, 8), {"LARGE_FILTER": 2}),  # more than 63 need two
    ],
    ids=str,
)
def test_wgmma_is_specialised_only_where_the_problem_allows(problem, macros):
    _, found = WGMMA.forms(problem, WGMMA.configure(problem, H200), CallOptions())[0]
    assert macros.items() <= found.items()
