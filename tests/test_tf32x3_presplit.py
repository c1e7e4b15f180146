"""Configurations of the Hopper GEMM on weights split ahead: pure functions of problem and device."""

from dataclasses import replace
from math import ceil

import pytest

from cuconv import ConvProblem, UnsupportedProblem
from cuconv.algorithms import tf32x3_presplit
from cuconv.device import A100, H200
from cuconv.jit import BIAS, INPUT, OUTPUT, WEIGHT, WORKSPACE
from tests.test_tf32x3_gemm import PROBLEMS, each_precision, in_precision, one_by_one


@pytest.mark.parametrize("tile", tf32x3_presplit.TILES, ids=str)
def test_tiles_divide_as_the_kernel_asserts(tile):
    assert tile.bf in (64, 128) and tile.bf % tf32x3_presplit.MAX_SPLIT == 0
    assert tile.stages >= 3 and tile.threads % tile.pixels == 0
    assert all(tile.threads * tile.registers(products) <= 64 * 1024 for products in (3, 1))


@each_precision
def test_candidates_cover_the_output_and_fit_the_device(precision):
    for problem in in_precision(precision, PROBLEMS):
        stages = ceil(problem.c * problem.filter_area / 32)
        for config in tf32x3_presplit.candidates(problem, H200):
            tile = config.tile
            tiles = ceil(problem.m / tile.bf) * ceil(problem.n * problem.out_pixels / tile.pixels)
            assert config.blocks == tiles * config.split < 2**31
            assert config.split <= stages
            assert tile.stages * tile.stage_bytes(config.products) <= config.shared_bytes <= H200.shared_bytes_per_block
            assert tf32x3_presplit.predicted_us(problem, H200, config) > 0


def test_the_workspace_holds_both_parts_of_every_stage_and_each_weight_has_a_thread():
    problem = ConvProblem(1, 17, 9, 9, 65, 3, 3, 1, 1)  # a depth of 153: five stages
    config = next(c for c in tf32x3_presplit.candidates(problem, H200) if c.tile.bf == 64)
    assert config.workspace_bytes == 2 * 64 * (5 * 32) * 2 * 4
    rounded = next(c for c in tf32x3_presplit.candidates(replace(problem, precision="tf32"), H200) if c.tile.bf == 64)
    assert rounded.workspace_bytes == config.workspace_bytes / 2
    assert config.split_blocks * tf32x3_presplit.SPLIT_THREADS * 4 >= 2 * 64 * (5 * 32)


def test_hopper_only():
    assert tf32x3_presplit.variants(A100.arch) == []
    with pytest.raises(UnsupportedProblem, match=f"sm_90a, {A100.name} is sm_80"):
        tf32x3_presplit.configure(one_by_one(64), A100)


def test_weights_are_split_first_and_both_launches_overlap():
    problem = ConvProblem(2, 5, 12, 9, 17, 3, 4, 1, 2)
    config = tf32x3_presplit.configure(problem, H200)
    launches = tf32x3_presplit.launches(problem, config, aligned=True, relu=True)
    assert [(one.kernel, one.blocks, one.threads, one.arguments, one.overlap) for one in launches] == [
        ("split_weights", config.split_blocks, 256, (WEIGHT, WORKSPACE, 17, 60), True),
        (
            "tf32x3_presplit",
            config.blocks,
            config.tile.threads,
            (INPUT, WEIGHT, BIAS, OUTPUT, WORKSPACE, 2, 5, 12, 9, 17, 3, 4, 1, 2, 12, 10, 1),
            True,
        ),
    ]


def test_variants_sample_every_tile_and_setting():
    sample = tf32x3_presplit.variants("sm_90a")
    assert {(m["BF"], m["WP"], m["STAGES"]) for m in sample} == {(t.bf, t.wp, t.stages) for t in tf32x3_presplit.TILES}
    assert {m["BF"] * m["WP"] for m in sample if m["PRODUCTS"] == 1} == {t.bf * t.wp for t in tf32x3_presplit.TILES}
    assert {m["SPLIT"] for m in sample} == {1, 2, 4}
    assert {m["POINTWISE"] for m in sample} == {m["LARGE_FILTER"] for m in sample} == {0, 1}
