"""Tests of the tiles of plain_pointwise: blocks cover the output, and every launch has a variant of the closed set."""

from math import ceil

import pytest

from cuconv import ConvProblem
from cuconv.algorithms import ALGORITHMS
from cuconv.algorithms.base import CallOptions
from cuconv.device import H200
from tests.cuconv.algorithms.problems import each_device, one_by_one

PLAIN = ALGORITHMS["plain_pointwise"]
PROBLEMS = [
    *(one_by_one(channels, m=70) for channels in (1, 8, 9, 16, 20, 24, 31, 33, 48, 49, 64)),
    ConvProblem(256, 16, 55, 55, 64, 1, 1),
    ConvProblem(32, 3, 7, 1, 1, 1, 1),
    ConvProblem(1, 16, 112, 112, 96, 1, 1),
    ConvProblem(2, 64, 5, 5, 20000, 1, 1),
]


@each_device
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.label)
def test_blocks_cover_the_output_with_kernels_of_the_closed_set(device, problem):
    p, variants = problem, PLAIN.variants(device.arch)
    for config in PLAIN.candidates(p, device):
        tiles = ceil(p.n * p.out_pixels / config.block_positions)
        assert config.blocks == tiles * ceil(p.m / config.block_filters)
        assert config.channels >= p.c and config.channels * config.positions <= 128, "they are in registers"
        for options in (CallOptions(), CallOptions(residual=True), CallOptions(output_channels=p.m + 3)):
            (launch,) = PLAIN.launches(p, config, options)
            assert launch.macros in variants and launch.threads == config.threads


def test_a_thread_holds_no_more_channels_than_the_layer_needs():
    found = {c: {config.channels for config in PLAIN.candidates(one_by_one(c), H200)} for c in (1, 8, 9, 25, 33, 64)}
    assert found == {1: {8}, 8: {8}, 9: {16}, 25: {32}, 33: {48}, 64: {64}}


def test_few_positions_have_more_blocks_by_dividing_the_filters():
    blocks = [PLAIN.configure(ConvProblem(n, 16, 55, 55, 64, 1, 1), H200).block_filters for n in (1, 32)]
    assert blocks[0] < blocks[1]
