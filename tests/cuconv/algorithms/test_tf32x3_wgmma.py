"""Tests of tf32x3_wgmma's configurations and launches; they are pure functions of problem and device."""

from dataclasses import replace
from itertools import product
from math import ceil

import pytest

from cuconv import ConvProblem, UnsupportedProblem
from cuconv.algorithms import ALGORITHMS
from cuconv.algorithms.base import CallOptions
from cuconv.algorithms.common.divider import packed_divisor
from cuconv.algorithms.tf32x3.tf32x3 import blocks_per_sm
from cuconv.algorithms.tf32x3.wgmma_model import CLUSTER_SIZES, TILES, is_general
from cuconv.core.launch import BIAS, INPUT, OUTPUT, RESIDUAL, WEIGHT
from cuconv.device import A100, H200, DeviceSpec
from tests.cuconv.algorithms.problems import PROBLEMS, TYPICAL, each_precision, in_precision, launched, one_by_one

WGMMA = ALGORITHMS["tf32x3_wgmma"]


def specialised(problem):
    """The macros of the variant that is specialised for a problem the most."""
    return WGMMA.forms(problem, WGMMA.configure(problem, H200), CallOptions())[0][1]


B200 = DeviceSpec("NVIDIA B200", (10, 0), 148)


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
            assert config.blocks == tiles * config.split_k < 2**31
            assert config.split_k * tile.warpgroup_split_k <= stages, "a warpgroup without stages"
            assert config.split_k <= tile.filters / 2, "a block of the cluster without a pair of filters to write"
            pipeline_bytes = tile.pipeline_bytes(config.products)
            assert pipeline_bytes <= config.shared_bytes <= H200.shared_bytes_per_block
            sums = tile.warpgroup_split_k * tile.filters * tile.pixels if tile.warpgroup_split_k > 1 else 0
            assert pipeline_bytes >= 4 * sums, "the sums of the warpgroups take the place of the stages"
            assert config.workspace_bytes == 0
            assert WGMMA.predicted_us(problem, H200, config) > 0


@pytest.mark.parametrize("device", [A100, B200], ids=lambda device: device.arch)
def test_only_hopper_is_supported(device):
    assert WGMMA.variants(device.arch) == []
    with pytest.raises(UnsupportedProblem, match=f"the instructions of sm_90a, {device.name} is {device.arch}"):
        WGMMA.configure(one_by_one(64), device)


def test_clusters_of_16_blocks_need_a_whole_gpu():
    problem = ConvProblem(1, 832, 7, 7, 160, 1, 1)
    part = replace(H200, sm_count=16)
    assert max(config.split_k for config in WGMMA.candidates(problem, H200)) == 16
    assert max(config.split_k for config in WGMMA.candidates(problem, part)) == 8


@pytest.mark.parametrize(("batch", "split_ks"), [(1, set(CLUSTER_SIZES)), (64, {1, 2, 4, 8, 16})])
def test_odd_cluster_sizes_are_offered_only_while_sms_idle(batch, split_ks):
    configs = WGMMA.candidates(ConvProblem(batch, 512, 14, 14, 64, 3, 3, 1, 1), H200)
    assert {config.split_k for config in configs if config.tile.filters == 64} == split_ks


def test_configure_takes_the_candidate_of_least_predicted_time():
    times = [WGMMA.predicted_us(TYPICAL, H200, config) for config in WGMMA.candidates(TYPICAL, H200)]
    assert WGMMA.predicted_us(TYPICAL, H200, WGMMA.configure(TYPICAL, H200)) == min(times)


def test_a_long_reduction_is_split_until_its_tap_table_fits():
    deep = ConvProblem(1, 12000, 3, 3, 8, 3, 3, 1, 1)
    assert {config.split_k for config in WGMMA.candidates(deep, H200)} == {4, 5, 6, 8, 14, 16}
    with pytest.raises(UnsupportedProblem, match="bytes of shared memory for its 540000 weights in a filter"):
        WGMMA.configure(ConvProblem(1, 60000, 3, 3, 8, 3, 3, 1, 1), H200)


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (ConvProblem(1, 3, 40, 40, 8, 2, 32), "32 columns in a filter, the limit of the tf32x3 algorithms is 31"),
        (ConvProblem(2, 1, 32768, 32768, 8, 1, 1), "2147483648 output pixels in the batch"),
        (ConvProblem(1, 512, 1024, 1024, 8, 3, 3), "536870912 input elements in an image"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_sizes_beyond_the_kernels_integers_are_refused(problem, message):
    with pytest.raises(UnsupportedProblem, match=message):
        WGMMA.configure(problem, H200)


@pytest.mark.parametrize(
    ("kh", "kw", "large"), [(1, 1, 0), (5, 5, 0), (4, 8, 0), (3, 11, 1), (7, 9, 1), (8, 8, 2), (11, 11, 2)]
)
def test_a_filter_of_more_than_32_positions_needs_a_wider_mask_and_one_of_more_than_63_two(kh, kw, large):
    problem = ConvProblem(1, 16, 30, 30, 16, kh, kw)
    assert specialised(problem)["LARGE_FILTER"] == large


@pytest.mark.parametrize(
    ("problem", "linear"),
    [
        (ConvProblem(1, 16, 30, 20, 16, 3, 3, 1, 1), 1),
        (ConvProblem(1, 16, 30, 20, 16, 5, 3, 0, 1), 1),
        (ConvProblem(2, 16, 30, 20, 16, 3, 3, 1, 1), 0),
        (ConvProblem(1, 16, 30, 20, 16, 3, 3, 1, 0), 0),
        (ConvProblem(1, 1, 2, 70000, 16, 1, 1), 0),  # beyond the exact range of the kernel's division
    ],
    ids=str,
)
def test_linear_is_one_image_as_wide_as_its_output(problem, linear):
    assert specialised(problem)["LINEAR"] == linear


@pytest.mark.parametrize(("c", "k", "whole"), [(64, 1, 1), (65, 1, 0), (64, 3, 0)])
def test_whole_is_a_1x1_reduction_of_whole_stages(c, k, whole):
    problem = ConvProblem(1, c, 14, 14, 16, k, k, k // 2, k // 2)
    assert specialised(problem)["WHOLE"] == whole


def test_the_launch_passes_the_kernels_arguments_and_overlaps():
    problem = ConvProblem(2, 6, 12, 9, 18, 3, 4, 1, 2, stride_h=2, dilation_w=2, groups=3)
    launch = launched(WGMMA, problem, relu=True, residual=True)
    sizes, geometry = (2, 2, 12, 9, 6, 3, 4, 1, 2, 6, 7), (2, 1, 1, 2, 3)  # channels and filters of one group
    tiles = ceil(2 * 6 * 7 / WGMMA.configure(problem, H200).tile.pixels)
    divisors = map(packed_divisor, (tiles, 1, 6 * 7, 7))  # tiles of a group, of its filters; outputs of a plane, a row
    apart = (
        6 * 12 * 9,
        18 * 6 * 7,
        2 * 12 * 9,
        6 * 2 * 3 * 4,
    )  # images of input and output, groups of input and weight
    assert launch.arguments == (INPUT, WEIGHT, BIAS, OUTPUT, *sizes, 1, *geometry, *apart, *divisors, 0, RESIDUAL)
    assert launch.threads == WGMMA.configure(problem, H200).threads
    assert launch.overlap


def test_vector_loads_need_whole_and_aligned_rows_of_weights():
    assert specialised(one_by_one(64))["VECTOR"] == 1
    assert specialised(one_by_one(66))["VECTOR"] == 0
    assert launched(WGMMA, one_by_one(64), aligned=False).macros["VECTOR"] == 0


@each_precision
def test_an_sm_holds_an_even_share_of_the_blocks_or_two(precision):
    """Room for more than an even share, but not for a second launch, would make occupancy uneven."""
    for problem in in_precision(precision, PROBLEMS):
        for config in WGMMA.candidates(problem, H200):
            registers = config.tile.registers(config.split_k, config.products, is_general(problem))
            resident = H200.resident_blocks(config.threads, registers, config.shared_bytes)
            even_share = blocks_per_sm(config, H200)
            assert resident <= even_share or resident >= 2 * even_share


@pytest.mark.parametrize("device", [H200, B200, A100], ids=lambda device: device.name)
@pytest.mark.parametrize("resident", [1, 2, 3, 5, 8])
def test_shared_memory_can_limit_the_occupancy(device, resident):
    least = device.shared_bytes_that_hold(resident)
    assert device.resident_blocks(32, 32, least) == resident
    assert device.resident_blocks(32, 32, least - 128) > resident
