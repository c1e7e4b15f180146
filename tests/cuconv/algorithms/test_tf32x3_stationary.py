"""Tests of tf32x3_stationary's configurations and launches; they are pure functions of problem and device."""

from dataclasses import replace
from math import ceil

import pytest

from cuconv import ConvProblem, UnsupportedProblem
from cuconv.algorithms import ALGORITHMS
from cuconv.algorithms.base import CallOptions
from cuconv.algorithms.tf32x3.tf32x3_stationary import TILES
from cuconv.device import A100, H200
from cuconv.jit import BIAS, INPUT, OUTPUT, WEIGHT
from tests.cuconv.algorithms.problems import one_by_one

STATIONARY = ALGORITHMS["tf32x3_stationary"]
MANY = ConvProblem(128, 96, 55, 55, 16, 1, 1)  # tiles of pixels for every block
WIDE = ConvProblem(64, 384, 27, 27, 200, 1, 1)  # several filter tiles
FEW = ConvProblem(1, 33, 5, 5, 70, 1, 1)  # one tile of pixels
PROBLEMS = [MANY, WIDE, FEW]
each_problem = pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.label)


@each_problem
def test_candidates_cover_the_output_and_fit_the_device(problem):
    configs = STATIONARY.candidates(problem, H200)
    assert len({str(config) for config in configs}) == len(configs)
    for config in configs:
        weights = config.tile.filters * ceil(problem.c / 32) * 32
        assert config.shared_bytes == 4 * 2 * weights <= H200.shared_bytes_per_block, "two parts of every weight"
        filter_tiles = ceil(problem.m / config.tile.filters)
        assert config.blocks > 0 and config.blocks % filter_tiles == 0
        assert config.blocks <= max(filter_tiles, H200.sm_count * config.resident), "a second wave"
        assert config.tile.threads * config.tile.registers * config.resident <= 64 * 1024
        assert STATIONARY.predicted_us(problem, H200, config) > 0


@each_problem
def test_every_block_has_pixels(problem):
    tiles = ceil(problem.n * problem.out_pixels / 64)
    for config in STATIONARY.candidates(problem, H200):
        blocks_per_filter_tile = config.blocks // ceil(problem.m / config.tile.filters)
        assert (blocks_per_filter_tile - 1) * config.tile.warpgroups < tiles


def test_weights_must_fit_into_the_shared_memory_of_a_block():
    tiles = {config.tile.filters for config in STATIONARY.candidates(ConvProblem(8, 1700, 14, 14, 64, 1, 1), H200)}
    assert tiles == {16}
    with pytest.raises(UnsupportedProblem, match="bytes of shared memory for its 1800 weights in a filter, the limit"):
        STATIONARY.candidates(ConvProblem(8, 1800, 14, 14, 64, 1, 1), H200)


@pytest.mark.parametrize("problem", [ConvProblem(1, 8, 9, 9, 8, 3, 3), ConvProblem(1, 8, 9, 9, 8, 1, 1, 1, 1)], ids=str)
def test_filters_other_than_1x1_without_padding_are_refused(problem):
    with pytest.raises(UnsupportedProblem, match="tf32x3_stationary is for filters of 1x1 without padding"):
        STATIONARY.candidates(problem, H200)


def test_only_hopper_is_supported():
    assert STATIONARY.variants(A100.arch) == []
    with pytest.raises(UnsupportedProblem, match=f"sm_90a, {A100.name} is sm_80"):
        STATIONARY.configure(one_by_one(64), A100)


def test_the_launch_passes_the_kernels_arguments_and_overlaps():
    config = STATIONARY.configure(MANY, H200)
    (launch,) = STATIONARY.launches(MANY, config, CallOptions(relu=True))
    assert (launch.kernel, launch.blocks, launch.threads) == ("tf32x3_stationary", config.blocks, config.threads)
    assert launch.arguments == (INPUT, WEIGHT, BIAS, OUTPUT, 128, 96, 55, 55, 16, 1, 1, 0, 0, 55, 55, 1)
    assert launch.overlap and launch.shared_bytes == config.shared_bytes


@pytest.mark.parametrize(
    ("problem", "aligned", "linear", "whole", "paired", "vector"),
    [
        (MANY, True, 0, 1, 0, 1),
        (replace(MANY, w=56), True, 0, 1, 1, 1),
        (replace(MANY, w=56), False, 0, 1, 0, 0),
        (replace(MANY, n=1, c=33), True, 1, 0, 0, 0),
    ],
    ids=["odd plane", "even plane", "unaligned", "one image"],
)
def test_the_kernel_variant_follows_the_layer(problem, aligned, linear, whole, paired, vector):
    config = STATIONARY.configure(problem, H200)
    (launch,) = STATIONARY.launches(problem, config, CallOptions(aligned=aligned))
    settings = [launch.macros[name] for name in ("LINEAR", "WHOLE", "PAIRED", "VECTOR")]
    assert settings == [linear, whole, paired, vector]


def test_variants_sample_every_tile_and_setting():
    sample = STATIONARY.variants("sm_90a")
    assert len({tuple(macros.items()) for macros in sample}) == len(sample)
    assert {(m["FILTERS"], m["WARPGROUPS"]) for m in sample} == {(tile.filters, tile.warpgroups) for tile in TILES}
    for name in ("LINEAR", "WHOLE", "PAIRED", "VECTOR"):
        assert {m[name] for m in sample} == {0, 1}
