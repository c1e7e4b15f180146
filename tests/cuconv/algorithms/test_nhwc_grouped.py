"""The tiles, windows and shared memory of nhwc_grouped, checked without a GPU."""

from math import prod

import pytest

from cuconv import ConvProblem, UnsupportedProblem, plan
from cuconv.algorithms import ALGORITHMS
from cuconv.algorithms.channels_last.nhwc_grouped import REGISTERS
from cuconv.core.launch import KernelVariant
from cuconv.device import H200
from cuconv.runtime import compiler
from tests.cuconv.compilers import checks_registers
from tests.cuconv.layers import problems_of

GROUPED = ALGORITHMS["nhwc_grouped"]


def grouped(n, groups, channels, h, w, k, pad, **more):
    c = groups * channels
    return ConvProblem(n, c, h, w, c, k, k, pad, pad, "fp16", groups=groups, **more)


# ResNeXt's layers; channel blocks that groups do not fill; planes that no tile divides; strides and dilations that
# differ; windows as large as a box; filters whose weights hardly fit.
PROBLEMS = [
    *(grouped(n, 32, c, 224 // c, 224 // c, 3, 1) for n in (1, 32) for c in (8, 16, 32)),
    grouped(3, 5, 8, 13, 9, 3, 1),
    grouped(2, 3, 16, 30, 41, 4, 6, stride_h=3, stride_w=2, dilation_h=2, dilation_w=5),
    grouped(1, 2, 32, 1, 3000, 1, 0),
    grouped(1, 9, 8, 90, 90, 13, 6),
    grouped(2, 32, 4, 56, 56, 3, 1),
    grouped(3, 20, 2, 15, 9, 5, 2, stride_h=2),
    grouped(1, 16, 8, 200, 200, 3, 20, dilation_h=20, dilation_w=20),
]
each_problem = pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.label)


@each_problem
def test_a_window_has_every_pixel_that_its_tile_reads(problem):
    p = problem
    for config in GROUPED.candidates(p, H200):
        tile, (pixels, *_) = config.tile, GROUPED.launches(p, config)[0].arguments
        images, down, along = tile.counts(p)
        assert images == p.n and down * tile.rows >= p.out_h and along * tile.columns >= p.out_w
        last_row = (tile.rows - 1) * p.stride_h + (p.kh - 1) * p.dilation_h
        last_column = (tile.columns - 1) * p.stride_w + (p.kw - 1) * p.dilation_w
        assert pixels.box[1] > last_column and pixels.box[2] > last_row and pixels.box[3] == 1
        assert max(pixels.box) <= 256 and config.channel_blocks * pixels.box[0] >= p.c
        assert pixels.swizzle == 2 * pixels.box[0] == 16 * config.vectors


@each_problem
def test_stages_weights_and_barriers_fit_and_every_block_has_a_tile(problem):
    p = problem
    for config in GROUPED.candidates(p, H200):
        (launch,) = GROUPED.launches(p, config)
        window, weights = (
            2 * prod(launch.arguments[0].box),
            2 * config.vectors * 8 * p.filter_area * max(8, p.group_channels),
        )
        assert config.stages * window + weights + 8 * config.stages + 4 * p.filter_area <= launch.shared_bytes
        assert launch.shared_bytes <= 227 * 1024
        tiles, blocks = prod(config.tile.counts(p)), launch.blocks // config.channel_blocks
        assert launch.blocks % config.channel_blocks == 0 and blocks <= tiles <= blocks * config.turns
        assert 1 <= config.stages <= config.turns
        groups = 8 * config.vectors // max(8, p.group_channels)  # those that share a vector count as one
        assert launch.threads // 32 >= groups >= 1 and (8 * config.vectors) % p.group_channels == 0


@pytest.mark.parametrize("n", [1, 8, 32])
def test_auto_takes_it_for_groups_of_eight_channels(n):
    assert plan(grouped(n, 32, 8, 28, 28, 3, 1), H200).algorithm == "nhwc_grouped"


@pytest.mark.parametrize(
    "problem",
    [
        grouped(1, 1, 8, 14, 14, 3, 1),
        grouped(1, 4, 24, 14, 14, 3, 1),
        ConvProblem(1, 64, 14, 14, 128, 3, 3, 1, 1, "fp16", groups=8),
        grouped(1, 4, 8, 300, 300, 33, 0),
        grouped(1, 4, 8, 600, 600, 3, 0, dilation_h=128),
        grouped(1, 4, 8, 200, 200, 3, 60, dilation_h=60, dilation_w=60),
    ],
    ids=lambda problem: problem.label,
)
def test_what_the_kernel_does_not_compute_is_refused_in_one_line(problem):
    with pytest.raises(UnsupportedProblem) as refused:
        GROUPED.candidates(problem, H200)
    assert "\n" not in str(refused.value)


@checks_registers
def test_kernels_do_not_spill_and_take_the_registers_that_configurations_count_on():
    for macros in GROUPED.variants("sm_90a"):
        (report,) = compiler.resources(KernelVariant.of(GROUPED.source, "sm_90a", macros))
        assert report.spill_bytes == 0 and report.registers <= REGISTERS[macros["CHUNKS"], macros["SMALL"]]


def test_layers_of_the_sweep_have_configurations():
    found = [one for one in problems_of("grouped") if one.groups > 1 and one.group_channels in (8, 16, 32)]
    assert found and all(GROUPED.candidates(one, H200) for one in found)
