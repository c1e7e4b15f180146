"""Configurations of tf32x3_gemm, tf32x3_wgmma and tf32x3_shallow; they are pure functions of problem and device."""

from dataclasses import replace
from itertools import product
from math import ceil

import pytest

from cuconv import ConvProblem, UnsupportedProblem
from cuconv.algorithms import ALGORITHMS
from cuconv.algorithms.base import CallOptions
from cuconv.algorithms.tf32x3.tf32x3 import blocks_per_sm
from cuconv.algorithms.tf32x3.tf32x3_shallow import FILTERS, slots_of, steps_of
from cuconv.algorithms.tf32x3.wgmma_model import CLUSTER_SIZES, TILES, is_general
from cuconv.device import A100, H200
from tests.cuconv.algorithms.problems import (
    PROBLEMS,
    each_device,
    each_precision,
    in_precision,
    one_by_one,
)

GEMM, WGMMA, SHALLOW = (ALGORITHMS[f"tf32x3_{name}"] for name in ("gemm", "wgmma", "shallow"))


def tiles_of(problem, tile):
    """The tiles that cover all filters and output pixels."""
    return ceil(problem.m / tile.filters) * ceil(problem.n * problem.out_pixels / tile.pixels)


@each_device
@each_precision
def test_blocks_of_gemm_cover_the_output_and_have_stages(device, precision):
    for problem in in_precision(precision, PROBLEMS):
        for config in GEMM.candidates(problem, device):
            tile = config.tile
            assert config.blocks == tiles_of(problem, tile) * config.split_k
            assert config.split_k <= ceil(problem.c * problem.filter_area / tile.stage_depth)
            assert max(tile.pipeline_bytes, tile.sums_bytes) <= config.shared_bytes


@each_precision
def test_blocks_of_wgmma_cover_the_output_and_have_stages_filters_and_an_even_share(precision):
    for problem in in_precision(precision, PROBLEMS):
        stages = ceil(problem.c * problem.filter_area / 32)
        for config in WGMMA.candidates(problem, H200):
            tile = config.tile
            assert config.blocks == tiles_of(problem, tile) * config.split_k
            assert config.split_k * tile.warpgroup_split_k <= stages, "a warpgroup without stages"
            assert config.split_k <= tile.filters / 2, "a block of the cluster without a pair of filters to write"
            sums = tile.warpgroup_split_k * tile.filters * tile.pixels if tile.warpgroup_split_k > 1 else 0
            assert 4 * sums <= tile.pipeline_bytes(config.products) <= config.shared_bytes
            # Room for more than an even share, but not for a second launch, would make occupancy uneven.
            registers = tile.registers(config.split_k, config.products, is_general(problem))
            resident = H200.resident_blocks(config.threads, registers, config.shared_bytes)
            even_share = blocks_per_sm(config, H200)
            assert resident <= even_share or resident >= 2 * even_share


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
        tiles = ceil(problem.n * problem.out_pixels / 32)
        for config in configs:
            filter_blocks = ceil(problem.m / config.block_filters)
            assert config.block_filters % FILTERS == 0 and config.blocks % filter_blocks == 0
            assert config.blocks // filter_blocks <= ceil(tiles / config.warps), "a block without pixels"
            assert config.blocks <= max(filter_blocks, config.resident * device.sm_count), "a second wave"
            assert config.resident * (config.shared_bytes + 1024) <= device.shared_bytes_per_sm
    assert computed >= 9, "the first layers of networks, and 1x1 layers of few channels"


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_registers_of_a_block_fit_an_sm(tile):
    for split_k, products, general in product(CLUSTER_SIZES, (3, 1), (False, True)):
        registers = tile.registers(split_k, products, general)
        assert tile.threads * registers <= 64 * 1024 and registers <= 256


@each_device
def test_split_k_needs_clusters_and_sixteen_blocks_a_whole_gpu(device):
    split_ks = {config.split_k for config in GEMM.candidates(one_by_one(4096), device)}
    assert split_ks == ({1, 2, 4, 8} if device is H200 else {1})
    problem = ConvProblem(1, 832, 7, 7, 160, 1, 1)
    for hopper, most in ((H200, 16), (replace(H200, sm_count=16), 8)):
        assert max(config.split_k for config in WGMMA.candidates(problem, hopper)) == most


@pytest.mark.parametrize(("algorithm", "channels"), [(GEMM, 30000), (WGMMA, 12000)])
def test_a_long_reduction_is_split_until_its_tap_table_fits(algorithm, channels):
    deep = ConvProblem(1, channels, 3, 3, 8, 3, 3, 1, 1)
    assert min(config.split_k for config in algorithm.candidates(deep, H200)) > 1
    if algorithm is GEMM:
        with pytest.raises(UnsupportedProblem, match="166912"):
            algorithm.configure(deep, A100)
        assert algorithm.candidates(one_by_one(270000), A100), "a 1x1 filter without padding needs no table"


def test_layers_of_every_geometry_share_a_variant_of_gemm_but_1x1_without_padding():
    dense, sparse = (ConvProblem(1, 64, 9, 9, 64, 3, 3, 1, 1, "fp32", step, 1, step, 1, step) for step in (1, 2))
    for config in GEMM.candidates(sparse, H200):
        (one,), (other,) = GEMM.launches(dense, config), GEMM.launches(sparse, config, CallOptions(False, True))
        assert one.macros == other.macros
    for problem in (one_by_one(64), one_by_one(64, pad=1)):
        (launch,) = GEMM.launches(problem, GEMM.configure(problem, H200))
        assert launch.macros["POINTWISE"] == (problem.pad_h == 0)


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


@pytest.mark.parametrize(("c", "kh", "kw"), [(3, 3, 3), (4, 3, 3), (1, 3, 3), (1, 5, 5), (17, 1, 1), (4, 3, 1)])
def test_four_lanes_share_a_reduction_of_shallow_by_rows_and_then_by_single_positions(c, kh, kw):
    problem = ConvProblem(1, c, 8, 8, 8, kh, kw, kh // 2, kw // 2)
    rows, singles = slots_of(problem)
    assert rows * kw + singles == ceil(c * kh * kw / 4) and steps_of(problem) == ceil(c * kh * kw / 8)
    assert rows in (c * kh // 4, ceil(c * kh / 4)), "as many rows as all lanes have"
