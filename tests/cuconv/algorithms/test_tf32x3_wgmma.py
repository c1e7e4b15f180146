"""Tests of tf32x3_wgmma's configurations and launches; they are pure functions of problem and device."""

from dataclasses import replace
from itertools import product
from math import ceil

import pytest

from cuconv import ConvProblem
from cuconv.algorithms import ALGORITHMS
from cuconv.algorithms.base import CallOptions
from cuconv.algorithms.tf32x3.tf32x3 import blocks_per_sm
from cuconv.algorithms.tf32x3.wgmma_model import CLUSTER_SIZES, TILES, is_general
from cuconv.device import H200
from tests.cuconv.algorithms.problems import PROBLEMS, each_precision, in_precision

WGMMA = ALGORITHMS["tf32x3_wgmma"]


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_registers_of_a_block_fit_an_sm(tile):
    for split_k, products, general in product(CLUSTER_SIZES, (3, 1), (False, True)):
        registers = tile.registers(split_k, products, general)
        assert tile.threads * registers <= 64 * 1024 and registers <= 256


@each_precision
def test_candidates_cover_the_output_and_fit_the_device(precision):
    for problem in in_precision(precision, PROBLEMS):
        stages = ceil(problem.c * problem.filter_area / 32)
        for config in WGMMA.candidates(problem, H200):
            tile, pixels = config.tile, problem.n * problem.out_pixels
            tiles = ceil(problem.m / tile.filters) * ceil(pixels / tile.pixels)
            assert config.blocks == tiles * config.split_k
            assert config.split_k * tile.warpgroup_split_k <= stages, "a warpgroup without stages"
            assert config.split_k <= tile.filters / 2, "a block of the cluster without a pair of filters to write"
            pipeline_bytes = tile.pipeline_bytes(config.products)
            assert pipeline_bytes <= config.shared_bytes
            sums = tile.warpgroup_split_k * tile.filters * tile.pixels if tile.warpgroup_split_k > 1 else 0
            assert pipeline_bytes >= 4 * sums, "the sums of the warpgroups take the place of the stages"


def test_clusters_of_16_blocks_need_a_whole_gpu():
    problem = ConvProblem(1, 832, 7, 7, 160, 1, 1)
    part = replace(H200, sm_count=16)
    assert max(config.split_k for config in WGMMA.candidates(problem, H200)) == 16
    assert max(config.split_k for config in WGMMA.candidates(problem, part)) == 8


def test_a_long_reduction_is_split_until_its_tap_table_fits():
    deep = ConvProblem(1, 12000, 3, 3, 8, 3, 3, 1, 1)
    assert min(config.split_k for config in WGMMA.candidates(deep, H200)) > 1


@each_precision
def test_an_sm_holds_an_even_share_of_the_blocks_or_two(precision):
    """Room for more than an even share, but not for a second launch, would make occupancy uneven."""
    for problem in in_precision(precision, PROBLEMS):
        for config in WGMMA.candidates(problem, H200):
            registers = config.tile.registers(config.split_k, config.products, is_general(problem))
            resident = H200.resident_blocks(config.threads, registers, config.shared_bytes)
            even_share = blocks_per_sm(config, H200)
            assert resident <= even_share or resident >= 2 * even_share


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
        (ConvProblem(1, 16, 30, 30, 16, 4, 8), {"LARGE_FILTER": 0}),  # 32 positions fit a mask
        (ConvProblem(1, 16, 30, 30, 16, 3, 11), {"LARGE_FILTER": 1}),
        (ConvProblem(1, 16, 30, 30, 16, 7, 9), {"LARGE_FILTER": 1}),
        (ConvProblem(1, 16, 30, 30, 16, 8, 8), {"LARGE_FILTER": 2}),  # more than 63 need two
    ],
    ids=str,
)
def test_a_kernel_is_specialised_only_where_the_problem_allows(problem, macros):
    _, found = WGMMA.forms(problem, WGMMA.configure(problem, H200), CallOptions())[0]
    assert macros.items() <= found.items()
