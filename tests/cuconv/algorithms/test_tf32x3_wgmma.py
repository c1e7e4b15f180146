"""Configurations of the Hopper GEMM: pure functions of problem and device."""

from dataclasses import replace
from itertools import product
from math import ceil

import pytest

from cuconv import ConvProblem, UnsupportedProblem
from cuconv.algorithms.common.implicit_gemm import tf32x3_wgmma
from cuconv.algorithms.tf32x3.tf32x3 import blocks_of_an_sm
from cuconv.device import A100, H200, DeviceSpec
from cuconv.jit import BIAS, INPUT, OUTPUT, WEIGHT
from tests.cuconv.algorithms.problems import PROBLEMS, each_precision, in_precision, launched, one_by_one

B200 = DeviceSpec("NVIDIA B200", (10, 0), 148)


@pytest.mark.parametrize("tile", tf32x3_wgmma.TILES, ids=str)
def test_tiles_divide_as_the_kernel_asserts(tile):
    assert tile.bf in (16, 32, 48, 64, 96, 128)
    assert tile.bf % 16 == 0 and tile.threads >= 2 * tile.pixels
    for split, products in product(tf32x3_wgmma.SPLITS, (3, 1)):
        registers = tile.registers(split, products)
        assert tile.threads * registers <= 64 * 1024 and registers <= 256


@each_precision
def test_candidates_cover_the_output_and_fit_the_device(precision):
    for problem in in_precision(precision, PROBLEMS):
        stages = ceil(problem.c * problem.filter_area / 32)
        for config in tf32x3_wgmma.candidates(problem, H200):
            tile, pixels = config.tile, problem.n * problem.out_pixels
            tiles = ceil(problem.m / tile.bf) * ceil(pixels / tile.pixels)
            assert config.blocks == tiles * config.split < 2**31
            assert config.split * tile.wk <= stages
            assert config.split <= tile.bf / 2, "two filters of a piece belong to one block"
            pipeline_bytes = tile.pipeline_bytes(config.products)
            assert pipeline_bytes <= config.shared_bytes <= H200.shared_bytes_per_block
            sums_bytes = 4 * tile.wk * tile.bf * tile.pixels if tile.wk > 1 else 0
            assert pipeline_bytes >= sums_bytes, "the sums take the place of the stages"
            assert config.workspace_bytes == 0
            assert tf32x3_wgmma.predicted_us(problem, H200, config) > 0


@pytest.mark.parametrize("device", [A100, B200], ids=lambda device: device.arch)
def test_hopper_only(device):
    assert tf32x3_wgmma.variants(device.arch) == []
    with pytest.raises(UnsupportedProblem, match=f"the instructions of sm_90a, {device.name} is {device.arch}"):
        tf32x3_wgmma.configure(one_by_one(64), device)


def test_clusters_of_16_only_where_they_were_seen_to_run():
    problem = ConvProblem(1, 832, 7, 7, 160, 1, 1)
    part = replace(H200, sm_count=16)
    assert max(config.split for config in tf32x3_wgmma.candidates(problem, H200)) == 16
    assert max(config.split for config in tf32x3_wgmma.candidates(problem, part)) == 8


def test_splits_that_fill_the_sms_only_while_they_are_not_full():
    def splits(batch):
        found = tf32x3_wgmma.candidates(ConvProblem(batch, 512, 14, 14, 64, 3, 3, 1, 1), H200)
        return {config.split for config in found if config.tile.bf == 64}

    assert splits(1) == set(tf32x3_wgmma.SPLITS)
    assert splits(64) == {1, 2, 4, 8, 16}


def test_configure_takes_the_candidate_of_least_predicted_time():
    problem = ConvProblem(8, 96, 28, 28, 128, 3, 3, 1, 1)
    times = [tf32x3_wgmma.predicted_us(problem, H200, c) for c in tf32x3_wgmma.candidates(problem, H200)]
    assert tf32x3_wgmma.predicted_us(problem, H200, tf32x3_wgmma.configure(problem, H200)) == min(times)


def test_a_deep_filter_is_split_until_its_tap_table_fits():
    deep = ConvProblem(1, 12000, 3, 3, 8, 3, 3, 1, 1)
    assert {config.split for config in tf32x3_wgmma.candidates(deep, H200)} == {4, 5, 6, 8, 14, 16}
    with pytest.raises(UnsupportedProblem, match="bytes of shared memory for its 540000 weights in a filter"):
        tf32x3_wgmma.configure(ConvProblem(1, 60000, 3, 3, 8, 3, 3, 1, 1), H200)


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (ConvProblem(1, 3, 20, 20, 8, 8, 8), "64 filter positions, the limit of the tf32x3 algorithms is 63"),
        (ConvProblem(2, 1, 32768, 32768, 8, 1, 1), "2147483648 output pixels in the batch"),
        (ConvProblem(1, 512, 1024, 1024, 8, 3, 3), "536870912 input elements in an image"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_sizes_beyond_the_kernels_integers_are_refused(problem, message):
    with pytest.raises(UnsupportedProblem, match=message):
        tf32x3_wgmma.configure(problem, H200)


@pytest.mark.parametrize(("kh", "kw", "large"), [(1, 1, 0), (5, 5, 0), (4, 8, 0), (3, 11, 1), (7, 9, 1)])
def test_more_filter_positions_than_bits_of_a_word(kh, kw, large):
    problem = ConvProblem(1, 16, 30, 30, 16, kh, kw)
    assert launched(tf32x3_wgmma, problem).macros["LARGE_FILTER"] == large


@pytest.mark.parametrize(
    ("problem", "linear"),
    [
        (ConvProblem(1, 16, 30, 20, 16, 3, 3, 1, 1), 1),
        (ConvProblem(1, 16, 30, 20, 16, 5, 3, 0, 1), 1),
        (ConvProblem(2, 16, 30, 20, 16, 3, 3, 1, 1), 0),
        (ConvProblem(1, 16, 30, 20, 16, 3, 3, 1, 0), 0),
        (ConvProblem(1, 1, 2, 70000, 16, 1, 1), 0),
    ],
    ids=str,
)
def test_linear_is_one_image_as_wide_as_its_output(problem, linear):
    assert launched(tf32x3_wgmma, problem).macros["LINEAR"] == linear


@pytest.mark.parametrize(("c", "k", "whole"), [(64, 1, 1), (65, 1, 0), (64, 3, 0)])
def test_whole_stages_need_no_look_at_the_end_of_the_reduction(c, k, whole):
    problem = ConvProblem(1, c, 14, 14, 16, k, k, k // 2, k // 2)
    assert launched(tf32x3_wgmma, problem).macros["WHOLE"] == whole


def test_arguments_are_the_kernels_and_launches_overlap():
    problem = ConvProblem(2, 5, 12, 9, 17, 3, 4, 1, 2)
    launch = launched(tf32x3_wgmma, problem, relu=True)
    assert launch.arguments == (INPUT, WEIGHT, BIAS, OUTPUT, 2, 5, 12, 9, 17, 3, 4, 1, 2, 12, 10, 1)
    assert launch.threads == tf32x3_wgmma.configure(problem, H200).tile.threads
    assert launch.overlap


def test_vector_loads_need_whole_and_aligned_rows():
    def vector(c, aligned=True):
        return launched(tf32x3_wgmma, one_by_one(c), aligned=aligned).macros["VECTOR"]

    assert (vector(64), vector(66), vector(64, aligned=False)) == (1, 0, 0)


def test_variants_sample_every_tile_and_setting():
    sample = tf32x3_wgmma.variants("sm_90a")
    assert len({tuple(macros.items()) for macros in sample}) == len(sample)
    assert {(m["BF"], m["WP"], m["WK"]) for m in sample} == {(t.bf, t.wp, t.wk) for t in tf32x3_wgmma.TILES}
    assert {m["SPLIT"] for m in sample} == set(tf32x3_wgmma.SPLITS)
    assert {(m["BF"], m["WP"], m["WK"]) for m in sample if m["PRODUCTS"] == 1} == {
        (t.bf, t.wp, t.wk) for t in tf32x3_wgmma.TILES
    }
    for name in ("POINTWISE", "VECTOR", "LARGE_FILTER", "LINEAR", "WHOLE"):
        assert {m[name] for m in sample} == {0, 1}
    narrow = [m for m in sample if m["SPLIT"] in tf32x3_wgmma.FILLING_SPLITS and not m["VECTOR"]]
    assert {(m["BF"], m["WP"], m["WK"]) for m in narrow} == {(t.bf, t.wp, t.wk) for t in tf32x3_wgmma.TILES}


@each_precision
def test_no_sm_has_room_for_some_blocks_of_the_next_launch_but_not_for_all(precision):
    for problem in in_precision(precision, PROBLEMS):
        for config in tf32x3_wgmma.candidates(problem, H200):
            registers = config.tile.registers(config.split, config.products)
            resident = H200.resident_blocks(config.threads, registers, config.shared_bytes)
            evenly = blocks_of_an_sm(config, H200)
            assert resident <= evenly or resident >= 2 * evenly


@pytest.mark.parametrize("device", [H200, B200, A100], ids=lambda device: device.name)
@pytest.mark.parametrize("resident", [1, 2, 3, 5, 8])
def test_memory_taken_in_vain_holds_as_many_blocks_as_are_wanted(device, resident):
    least = device.shared_bytes_that_hold(resident)
    assert device.resident_blocks(32, 32, least) == resident
    assert device.resident_blocks(32, 32, least - 128) > resident
