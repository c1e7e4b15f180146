"""Configurations of the 1x1 kernel whose weights stay in shared memory: pure functions of problem and device."""

from dataclasses import replace
from math import ceil

import pytest

from cuconv import ConvProblem, UnsupportedProblem
from cuconv.algorithms.common.implicit_gemm import tf32x3_stationary
from cuconv.device import A100, H200
from cuconv.jit import BIAS, INPUT, OUTPUT, WEIGHT
from tests.cuconv.algorithms.problems import one_by_one

MANY = ConvProblem(128, 96, 55, 55, 16, 1, 1)
WIDE = ConvProblem(64, 384, 27, 27, 200, 1, 1)
FEW = ConvProblem(1, 33, 5, 5, 70, 1, 1)
PROBLEMS = [MANY, WIDE, FEW, replace(MANY, precision="tf32"), replace(WIDE, precision="tf32")]


def configs_of(problem):
    return tf32x3_stationary.candidates(problem, H200)


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: f"{problem.label} {problem.precision}")
def test_candidates_cover_the_output_and_fit_the_device(problem):
    parts = 2 if problem.precision == "fp32" else 1
    configs = configs_of(problem)
    assert len({str(config) for config in configs}) == len(configs)
    for config in configs:
        weights = config.tile.bf * ceil(problem.c / 32) * 32
        assert config.shared_bytes == 4 * parts * weights <= H200.shared_bytes_per_block
        filter_tiles = ceil(problem.m / config.tile.bf)
        assert config.blocks > 0 and config.blocks % filter_tiles == 0
        assert config.blocks <= max(filter_tiles, H200.sm_count * config.resident)
        assert config.tile.threads * config.tile.registers * config.resident <= 64 * 1024
        assert tf32x3_stationary.predicted_us(problem, H200, config) > 0


def test_no_block_is_without_pixels():
    for problem in PROBLEMS:
        for config in configs_of(problem):
            tiles = ceil(problem.n * problem.out_pixels / 64)
            of_filters = config.blocks // ceil(problem.m / config.tile.bf)
            assert (of_filters - 1) * config.tile.warpgroups < tiles


def test_weights_that_do_not_fit_leave_small_tiles_and_then_none():
    tiles = {config.tile.bf for config in configs_of(ConvProblem(8, 1700, 14, 14, 64, 1, 1))}
    assert tiles == {16}
    with pytest.raises(UnsupportedProblem, match="bytes of shared memory for its 1800 weights in a filter, the limit"):
        configs_of(ConvProblem(8, 1800, 14, 14, 64, 1, 1))
    assert configs_of(ConvProblem(8, 1800, 14, 14, 64, 1, 1, precision="tf32"))


@pytest.mark.parametrize("problem", [ConvProblem(1, 8, 9, 9, 8, 3, 3), ConvProblem(1, 8, 9, 9, 8, 1, 1, 1, 1)], ids=str)
def test_only_plain_1x1_filters(problem):
    with pytest.raises(UnsupportedProblem, match="tf32x3_stationary is for filters of 1x1 without padding"):
        configs_of(problem)


def test_hopper_only():
    assert tf32x3_stationary.variants(A100.arch) == []
    with pytest.raises(UnsupportedProblem, match=f"sm_90a, {A100.name} is sm_80"):
        tf32x3_stationary.configure(one_by_one(64), A100)


def test_one_kernel_is_launched_that_overlaps_and_is_compiled_for_how_pixels_lie():
    config = tf32x3_stationary.configure(MANY, H200)
    (launch,) = tf32x3_stationary.launches(MANY, config, aligned=True, relu=True)
    assert (launch.kernel, launch.blocks, launch.threads) == ("tf32x3_stationary", config.blocks, config.threads)
    assert launch.arguments == (INPUT, WEIGHT, BIAS, OUTPUT, 128, 96, 55, 55, 16, 1, 1, 0, 0, 55, 55, 1)
    assert launch.overlap and launch.shared_bytes == config.shared_bytes
    names = ("LINEAR", "WHOLE", "PAIRED", "VECTOR")
    for problem, aligned, macros in (
        (MANY, True, (0, 1, 0, 1)),
        (replace(MANY, w=56), True, (0, 1, 1, 1)),
        (replace(MANY, w=56), False, (0, 1, 0, 0)),
        (replace(MANY, n=1, c=33), True, (1, 0, 0, 0)),
    ):
        (launch,) = tf32x3_stationary.launches(problem, config, aligned, relu=False)
        assert tuple(launch.macros[name] for name in names) == macros


def test_variants_sample_every_tile_and_setting():
    sample = tf32x3_stationary.variants("sm_90a")
    tiles = {(tile.bf, tile.warpgroups) for tile in tf32x3_stationary.TILES}
    for products in (3, 1):
        assert {(m["BF"], m["WARPGROUPS"]) for m in sample if m["PRODUCTS"] == products} == tiles
    for name in ("LINEAR", "WHOLE", "PAIRED", "VECTOR"):
        assert {m[name] for m in sample} == {0, 1}
